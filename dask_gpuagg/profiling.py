"""The latest runs, a profile of some lines, and the fallbacks of a session."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from dask_gpuagg.cluster import gather
from dask_gpuagg.reporting.events import Fallback
from dask_gpuagg.reporting.runs import STEPS, Measured, Step, begin, end, runs_here
from dask_gpuagg.reporting.text import (
    Lines,
    count_text,
    escaped,
    html_table,
    page,
    rate_text,
    size_text,
    text_table,
    time_text,
)

if TYPE_CHECKING:
    from dask_gpuagg.cuda.aggregate import Run
    from dask_gpuagg.plan import Plan


def last_runs(plan: Plan | None = None) -> Lines[Run]:
    """The latest runs in this process and on the workers of the current client.

    Parameters
    ----------
    plan : Plan, optional
        Only those made for this plan.

    Returns
    -------
    list of Run
        It prints one run a line. On the device one for each call of the kernels: task, kernel and
        geometry, estimated and true groups, rows, rows overflowed, bytes read, time. On the host
        one for each task, with the kernel ``host``. Of each process the latest thousand, the
        oldest first.
    """
    by_process = dict(gather(runs_here, plan).answers.values())
    return Lines(run for runs in by_process.values() for run in runs)


@dataclass(frozen=True)
class Fallbacks:
    """The number of planned queries, and fallbacks; as text, and as HTML in a notebook.

    ``entries`` are pairs of a ``Fallback`` and the number of its queries, the most frequent first.
    """

    planned: int
    entries: tuple[tuple[Fallback, int], ...]

    def __len__(self) -> int:
        return len(self.entries)

    def _head(self) -> str:
        queries = sum(number for _, number in self.entries)
        return f"{count_text(self.planned, 'group-by')} planned, {count_text(queries, 'fallback')}"

    def _lines(self) -> list[str]:
        return [f"  {number:,} × {fallback}" for fallback, number in self.entries]

    def __str__(self) -> str:
        return "\n".join([self._head(), *self._lines()])

    __repr__ = __str__

    def _table(self) -> str:
        if not self.entries:
            return ""
        rows = [[*map(escaped, fallback), f"{number:,}"] for fallback, number in self.entries]
        return html_table((*Fallback._fields, "queries"), rows, text=True)

    def _repr_html_(self) -> str:
        return page(f"<p>{escaped(self._head())}</p>", self._table())

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "planned": self.planned,
            "fallbacks": [{**fallback._asdict(), "queries": n} for fallback, n in self.entries],
        }


def fallbacks() -> Fallbacks:
    """The fallbacks of this session: in this process, and on the workers of the current client.

    Returns
    -------
    Fallbacks
        Since the import of the package; each distinct query counts once.
    """
    return _fallbacks(_by_process(gather(end, "").answers))


def _by_process(answers: dict[str, Measured]) -> list[Measured]:
    """One reading of each process, of which several workers may be threads."""
    return list({answer.process: answer for answer in answers.values()}.values())


def _fallbacks(readings: Iterable[Measured]) -> Fallbacks:
    planned, counts = 0, Counter[Fallback]()
    for reading in readings:
        planned += reading.planned
        counts.update(reading.fallbacks)
    return Fallbacks(planned, tuple(counts.most_common()))


def _cells(step: Step) -> list[str]:
    return [
        f"{step.step}: {step.kernel}" if step.kernel else step.step,
        step.engine,
        f"{step.calls:,}",
        time_text(step.seconds),
        time_text(step.longest),
        f"{step.rows:,}",
        f"{step.groups:,}",
        rate_text(step.rows_per_second),
        size_text(step.nbytes) if step.nbytes else "–",
    ]


def _as_dict(step: Step) -> dict[str, Any]:
    return {**asdict(step), "rows_per_second": step.rows_per_second}


_HEAD = ("step", "engine", "tasks", "time", "longest", "rows in", "rows out", "rows/s", "bytes")


def _steps(readings: Iterable[Measured]) -> list[Step]:
    """The totals of several processes as one, in the order of the steps."""
    totals: dict[tuple[str, ...], Step] = {}
    for step in (step for reading in readings for step in reading.totals):
        if step.key in totals:
            totals[step.key].add(step)
            totals[step.key].workers += 1
        else:
            totals[step.key] = step
    place = {name: i for i, name in enumerate(STEPS)}
    return sorted(totals.values(), key=lambda s: (s.query, place.get(s.step, len(place)), s.kernel))


class profile:
    """Context manager: what the group-bys of some lines did, and how long it took.

    Tasks of other threads, and of other clients of the same cluster, that end inside the block are
    counted too. On the device, times are the host's: of a task until it returns.
    """

    #: of the whole block
    seconds = 0.0
    #: of every query and step
    steps: tuple[Step, ...] = ()
    #: on the device, the calls of every kernel
    kernels: tuple[Step, ...] = ()
    #: queries planned inside
    planned = 0
    #: each with the number of its queries
    fallbacks: tuple[tuple[Fallback, int], ...] = ()
    #: what could not be measured
    notes: tuple[str, ...] = ()
    _fallen = Fallbacks(0, ())
    _done = False

    def __enter__(self) -> profile:
        self._token = uuid.uuid4().hex
        gather(begin, self._token)
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._started
        gathered = gather(end, self._token)
        readings = _by_process(gathered.answers)
        self._fallen = _fallbacks(readings)
        self.planned, self.fallbacks = self._fallen.planned, self._fallen.entries
        self.notes = (
            *(f"missing: {where} ({why})" for where, why in gathered.missing.items()),
            *(
                f"{where} was not asked at the beginning: all that it ever ran is counted"
                for where, reading in gathered.answers.items()
                if reading.token != self._token and reading.totals
            ),
        )
        steps = _steps(readings)
        self.steps = tuple(step for step in steps if not step.kernel)
        self.kernels = tuple(step for step in steps if step.kernel)
        self._done = True

    def _head(self) -> str:
        if not self._done:
            return "profile: the block has not ended"
        inside = sum(step.seconds for step in self.steps)
        return (
            f"{time_text(self.seconds)}: {self._fallen._head()}; "
            f"tasks took {time_text(inside)}, summed over threads"
        )

    def _tables(self) -> list[tuple[str, Sequence[str], list[list[str]]]]:
        """Titles, heads and cells: the steps of each query, and the kernels."""
        by_query = groupby(self.steps, lambda step: step.query)
        tables: list[tuple[str, Sequence[str], list[list[str]]]] = [
            (query, _HEAD, [_cells(step) for step in steps]) for query, steps in by_query
        ]
        if self.kernels:
            cells = [_cells(kernel) for kernel in self.kernels]
            tables.append(("calls of the kernels", ("kernel", *_HEAD[1:]), cells))
        return tables

    def __str__(self) -> str:
        lines = [self._head()]
        for title, head, rows in self._tables():
            lines += ["", title, *(f"  {line}" for line in text_table(head, rows))]
        if self.fallbacks:
            lines += ["", "fallbacks", *self._fallen._lines()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<p>{escaped(self._head())}</p>"]
        for title, head, rows in self._tables():
            cells = [list(map(escaped, row)) for row in rows]
            parts += [f"<h4>{escaped(title)}</h4>", html_table(head, cells)]
        if self.fallbacks:
            parts += ["<h4>fallbacks</h4>", self._fallen._table()]
        parts += [f"<p>note: {escaped(note)}</p>" for note in self.notes]
        return page(*parts)

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain values."""
        return {
            "seconds": self.seconds,
            **self._fallen.to_dict(),
            "steps": [_as_dict(step) for step in self.steps],
            "kernels": [_as_dict(kernel) for kernel in self.kernels],
            "notes": list(self.notes),
        }

    def to_json(self, indent: int | None = 1) -> str:
        """The profile as JSON."""
        return json.dumps(self.to_dict(), indent=indent)
