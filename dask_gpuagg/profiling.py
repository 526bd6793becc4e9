"""The latest runs, a profile of some lines, and the fallbacks of a session."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dask_gpuagg.cluster import Gathered, gather
from dask_gpuagg.reporting.events import Fallback, FellBack, Planned, register, unregister
from dask_gpuagg.reporting.fallbacks import Tally, tally
from dask_gpuagg.reporting.runs import STEPS, Measured, Total, What, measured, runs_here, since
from dask_gpuagg.reporting.text import (
    bar,
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


def last_runs(plan: Plan | None = None) -> tuple[Run, ...]:
    """The latest runs in this process and on the workers of the current client.

    Parameters
    ----------
    plan : Plan, optional
        Only those made for this plan.

    Returns
    -------
    tuple of Run
        On the device one for each call of the kernels: task, kernel and geometry, estimated and
        true groups, rows, rows spilled, bytes read, time. On the host one for each task, with the
        kernel ``host``. Of each process the latest thousand, the oldest first.
    """
    by_process = dict(gather(runs_here, plan).answers.values())
    return tuple(run for runs in by_process.values() for run in runs)


def counted_here() -> tuple[str, int, dict[Fallback, int]]:
    """The process, the queries planned in it, and the fallbacks in it with their numbers."""
    return measured().process, *tally.counted()


@dataclass(frozen=True)
class Fallbacks:
    """Fallbacks, which ran otherwise than by a plan; as text, and as HTML in a notebook.

    Attributes
    ----------
    planned : int
        Queries that ran by a plan.
    entries : tuple of (Fallback, int)
        Each with the number of queries, the most frequent first.
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
    planned, counts = _counts(gather(counted_here))
    return Fallbacks(planned, tuple(counts.most_common()))


def _counts(gathered: Gathered, but: str = "") -> tuple[int, Counter[Fallback]]:
    """The queries planned in all processes but one, and their fallbacks."""
    by_process = {process: counts for process, *counts in gathered.answers.values()}
    by_process.pop(but, None)
    planned, counts = 0, Counter[Fallback]()
    for number, entries in by_process.values():
        planned += number
        counts.update(entries)
    return planned, counts


@dataclass(frozen=True)
class Step:
    """A step of a query on an engine, or one of its kernels; fields as of the totals.

    Attributes
    ----------
    query, step, engine, kernel : str
        ``kernel`` is empty where whole tasks are counted.
    calls : int
    seconds, longest : float
    rows, groups, nbytes : int
    workers : int
        In how many processes it ran.
    """

    query: str
    step: str
    engine: str
    kernel: str
    calls: int
    seconds: float
    rows: int
    groups: int
    nbytes: int
    longest: float
    workers: int

    @property
    def rows_per_second(self) -> float:
        """Rows that one thread takes in a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    def _to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rows_per_second": self.rows_per_second}

    def _cells(self) -> list[str]:
        return [
            f"{self.step}: {self.kernel}" if self.kernel else self.step,
            self.engine,
            f"{self.calls:,}",
            time_text(self.seconds),
            time_text(self.longest),
            f"{self.rows:,}",
            f"{self.groups:,}",
            rate_text(self.rows_per_second),
            size_text(self.nbytes) if self.nbytes else "–",
        ]


_HEAD = ("step", "engine", "tasks", "time", "longest", "rows in", "rows out", "rows/s", "bytes")
_KERNEL_HEAD = ("kernel", *_HEAD[1:])


def _steps(by_process: Iterable[dict[What, Total]]) -> list[Step]:
    """The totals of several processes as one, in the order of the steps."""
    by_what: dict[What, list[Total]] = {}
    for totals in by_process:
        for what, total in totals.items():
            by_what.setdefault(what, []).append(total)
    steps = []
    for what, several in by_what.items():
        sums = (sum(column) for column in zip(*(total[:5] for total in several), strict=True))
        calls, seconds, rows, groups, nbytes = sums
        longest = max(total.longest for total in several)
        of_all = (calls, seconds, rows, groups, nbytes, longest, len(several))
        steps.append(Step(*what, *of_all))
    place = {name: i for i, name in enumerate(STEPS)}
    return sorted(steps, key=lambda s: (s.query, place.get(s.step, len(place)), s.kernel))


class profile:
    """Context manager: what the group-bys of some lines did, and how long it took.

    Examples
    --------
    >>> with dask_gpuagg.profile() as p:  # doctest: +SKIP
    ...     query.compute()
    >>> print(p)  # doctest: +SKIP

    Attributes
    ----------
    seconds : float
        Of the whole block.
    steps : tuple of Step
        Of every query and step.
    kernels : tuple of Step
        On the device, the calls of every kernel.
    planned : int
        Queries planned inside.
    fallbacks : tuple of (Fallback, int)
    notes : tuple of str
        What could not be measured.

    Notes
    -----
    Tasks of other threads, and of other clients of the same cluster, that end inside the block are
    counted too. On the device, times are the host's: of a task until it returns.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps: tuple[Step, ...] = ()
        self.kernels: tuple[Step, ...] = ()
        self.planned = 0
        self.fallbacks: tuple[tuple[Fallback, int], ...] = ()
        self.notes: tuple[str, ...] = ()
        self._done = False

    def __enter__(self) -> profile:
        self._before = _by_process(gather(measured))
        self._elsewhere = _counts(gather(counted_here), but=measured().process)
        self._here = Tally()
        register(self._here.plan, Planned)
        register(self._here.fall_back, FellBack)
        self._began = time.time()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._started
        unregister(self._here.plan)
        unregister(self._here.fall_back)
        gathered = gather(measured)
        planned_before, before = self._elsewhere
        planned_elsewhere, elsewhere = _counts(gather(counted_here), but=measured().process)
        planned_here, here = self._here.counted()
        self.planned = planned_here + max(planned_elsewhere - planned_before, 0)
        self.fallbacks = tuple((elsewhere - before + Counter(here)).most_common())
        missing = [f"missing: {where} ({why})" for where, why in gathered.missing.items()]
        older = [
            f"{where} was not asked at the beginning: all that it ever ran is counted"
            for where, answer in gathered.answers.items()
            if answer.process not in self._before and answer.since < self._began and answer.totals
        ]
        self.notes = (*missing, *older)
        after = _by_process(gathered)
        steps = _steps(since(self._before.get(name), m) for name, m in after.items())
        self.steps = tuple(step for step in steps if not step.kernel)
        self.kernels = tuple(step for step in steps if step.kernel)
        self._done = True

    def __str__(self) -> str:
        if not self._done:
            return "profile: the block has not ended"
        lines = [self._head()]
        for query, steps in self._by_query().items():
            table = text_table(_HEAD, [step._cells() for step in steps])
            lines += ["", query, *(f"  {line}" for line in table)]
        if self.kernels:
            table = text_table(_KERNEL_HEAD, [kernel._cells() for kernel in self.kernels])
            lines += ["", "calls of the kernels", *(f"  {line}" for line in table)]
        if self.fallbacks:
            lines += ["", "fallbacks", *Fallbacks(self.planned, self.fallbacks)._lines()]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    __repr__ = __str__

    def _by_query(self) -> dict[str, list[Step]]:
        steps: dict[str, list[Step]] = {}
        for step in self.steps:
            steps.setdefault(step.query, []).append(step)
        return steps

    def _head(self) -> str:
        inside = sum(step.seconds for step in self.steps)
        return (
            f"{time_text(self.seconds)}: {Fallbacks(self.planned, self.fallbacks)._head()}; "
            f"tasks took {time_text(inside)}, summed over threads"
        )

    def _repr_html_(self) -> str:
        if not self._done:
            return page(f"<p>{self}</p>")
        longest = max((step.seconds for step in self.steps), default=0.0) or 1.0
        place = _HEAD.index("longest")
        parts = [f"<p>{escaped(self._head())}</p>"]
        for query, steps in self._by_query().items():
            rows = [list(map(escaped, step._cells())) for step in steps]
            for step, row in zip(steps, rows, strict=True):
                row.insert(place, bar(step.seconds / longest))
            head = (*_HEAD[:place], "", *_HEAD[place:])
            parts += [f"<h4>{escaped(query)}</h4>", html_table(head, rows)]
        if self.kernels:
            rows = [list(map(escaped, kernel._cells())) for kernel in self.kernels]
            parts += ["<h4>calls of the kernels</h4>", html_table(_KERNEL_HEAD, rows)]
        if self.fallbacks:
            parts += ["<h4>fallbacks</h4>", Fallbacks(self.planned, self.fallbacks)._table()]
        parts += [f"<p>note: {escaped(note)}</p>" for note in self.notes]
        return page(*parts)

    def to_dict(self) -> dict[str, Any]:
        """The profile as plain values."""
        return {
            "seconds": self.seconds,
            **Fallbacks(self.planned, self.fallbacks).to_dict(),
            "steps": [step._to_dict() for step in self.steps],
            "kernels": [kernel._to_dict() for kernel in self.kernels],
            "notes": list(self.notes),
        }

    def to_json(self, indent: int | None = 1) -> str:
        """The profile as JSON."""
        return json.dumps(self.to_dict(), indent=indent)


def _by_process(gathered: Gathered) -> dict[str, Measured]:
    return {answer.process: answer for answer in gathered.answers.values()}
