"""Tasks and kernels of this process: their events, the latest of them, totals by query and step."""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict, deque
from contextvars import ContextVar, Token
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_gpuagg.cache import after_fork
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.plan import short
from dask_gpuagg.reporting.events import Kernel, Progress, Step, emit
from dask_gpuagg.settings import using

if TYPE_CHECKING:
    from dask_gpuagg.cuda.aggregate import Run
    from dask_gpuagg.plan import Plan

_REMEMBERED = 1_000
# distinct queries, steps and kernels of which totals are kept
_TOTALS = 1_000
# in the order in which a query goes through them
STEPS = (
    *("partial", "chunk", "direct", "exchange", "combine"),
    *("sample", "aim", "count", "widen", "recount", "finalize", "gather", "divide"),
)
# steps whose rows are those of partitions
_OF_PARTITIONS = frozenset(("partial", "chunk", "direct", "count"))
# readings whose longest calls are kept apart: of blocks inside each other
_READINGS = 64
# plans that are compared with that of a task: of equal ones one is kept
_PLANS = 8
# outputs and keys that the description of a query names
_SHOWN = 4


class What(NamedTuple):
    """A total's query, abbreviated, step and engine; the kernel where its calls are counted."""

    query: str
    step: str
    engine: str
    kernel: str = ""


class Total(NamedTuple):
    """How often something ran, and what it took and made.

    Attributes
    ----------
    calls : int
    seconds : float
        Wall time, summed over threads.
    rows, groups : int
        Rows that went in; rows of the partials or outputs that came out.
    nbytes : int
        Of keys and values that were read, or of the pieces that are exchanged.
    longest : float
        Seconds of the longest call.
    born : int
        Tells a total from an earlier one of the same name, which was dropped.
    maxima : tuple of (int, float)
        The longest call between two readings, by the number of the later one.
    """

    calls: int = 0
    seconds: float = 0.0
    rows: int = 0
    groups: int = 0
    nbytes: int = 0
    longest: float = 0.0
    born: int = 0
    maxima: tuple[tuple[int, float], ...] = ()


class Measured(NamedTuple):
    """A reading of the totals of a process, which has counted since a time (of ``time.time``).

    The process has a name of its own among all, and its readings are numbered.
    """

    process: str
    since: float
    reading: int
    totals: dict[What, Total]


class Task:
    """Context manager: a task of a query; kernel calls and settings inside belong to it.

    It is measured, unless it has no ``engine``, which ``saw`` sets.
    """

    __slots__ = (
        *("_plan", "_settings", "_started", "_step", "_token"),
        *("engine", "groups", "nbytes", "rows"),
    )

    def __init__(self, plan: Plan, step: str) -> None:
        self._plan = plan
        self._step = step
        self._settings = using(plan.settings)
        self.engine = ""
        self.rows = self.groups = self.nbytes = 0

    def __enter__(self) -> Task:
        self._token: Token[tuple[Plan | None, str]] = _task.set((self._plan, self._step))
        self._settings.__enter__()
        self._started = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        seconds = time.perf_counter() - self._started
        self._settings.__exit__(kind, error, traceback)
        _task.reset(self._token)
        if self.engine and kind is None:
            counts = (self.rows, self.groups, self.nbytes)
            emit(Step(self._plan, self._step, self.engine, *counts, seconds))

    def saw(self, engine: str | None, rows: int = 0, groups: int = 0, nbytes: int = 0) -> None:
        """Say what went in and came out; several times, where a task has several inputs."""
        self.engine = engine or ""
        self.rows += rows
        if self._step in _OF_PARTITIONS:
            emit(Progress(rows))
        self.groups += groups
        self.nbytes += nbytes


_runs: deque[Run | Step] = deque(maxlen=_REMEMBERED)
_totals: OrderedDict[What, list[Any]] = OrderedDict()
# by step, engine and kernel: calls, seconds, rows, groups, groups expected, rows spilled
_activity: dict[tuple[str, str, str], list[Any]] = {}
_plans: deque[tuple[Plan, str, bool]] = deque(maxlen=_PLANS)
_born = _readings = _rows_done = 0
_lock = Lock()
_process = uuid.uuid4().hex
_since = time.time()
_task: ContextVar[tuple[Plan | None, str]] = ContextVar("_task", default=(None, ""))

task = Task


@after_fork
def _reset() -> None:
    """In the child: it has run nothing yet."""
    global _lock, _process, _since
    _lock, _process, _since = Lock(), uuid.uuid4().hex, time.time()
    forget()


def subject() -> tuple[str, ...]:
    """The labels of the keys of the running task's plan."""
    plan, _ = _task.get()
    return () if plan is None else tuple(str(key.label) for key in plan.keys)


def note_run(run: Run) -> None:
    """Emit one call of the kernels, in the task that runs."""
    plan, step = _task.get()
    emit(Kernel(run._replace(plan=plan, step=step)))


def add_progress(event: Progress) -> None:
    """Add rows of partitions to the progress of this process."""
    global _rows_done
    with _lock:
        _rows_done += event.rows


def add_kernel(event: Kernel) -> None:
    """Add a call of the kernels to the latest runs and to the totals."""
    run, query = event.run, ""
    if run.plan is not None:
        plan, query = _known(run.plan)
        run = run._replace(plan=plan)
    what = What(query, run.step, "device", run.decision.kernel)
    with _lock:
        _runs.append(run)
        _add(what, run.seconds, run.rows, run.groups, run.bytes_read)
        estimate = run.decision.estimate
        counts = _activity[what[1:]]
        # groups that were not estimated count on both sides
        counts[4] += run.groups if estimate is None else estimate.groups
        counts[5] += run.spilled


def add_step(event: Step) -> None:
    """Add a task to the totals, and one of the host to the latest runs."""
    plan, query = _known(event.plan) if event.plan is not None else (None, "")
    with _lock:
        if event.engine == "host":
            _runs.append(event._replace(plan=plan))
        what = What(query, event.step, event.engine)
        _add(what, event.seconds, event.rows, event.groups, event.nbytes)


def _add(what: What, seconds: float, rows: int, groups: int, nbytes: int) -> None:
    """Add a call to its total; the caller holds the lock."""
    global _born
    total = _totals.get(what)
    if total is None:
        _born += 1
        total = _totals[what] = [0, 0.0, 0, 0, 0, 0.0, _born, deque(maxlen=_READINGS)]
        if len(_totals) > _TOTALS:
            _totals.popitem(last=False)
    total[0] += 1
    total[1] += seconds
    total[2] += rows
    total[3] += groups
    total[4] += nbytes
    total[5] = max(total[5], seconds)
    counts = _activity.setdefault(what[1:], [0, 0.0, 0, 0, 0, 0])
    for i, added in enumerate((1, seconds, rows, groups)):
        counts[i] += added


def _known(plan: Plan) -> tuple[Plan | None, str]:
    """The plan that is kept of several equal ones, and its description.

    Workers unpickle a plan for each task. Users' functions, which may hold anything, are not kept.
    """
    known = tuple(_plans)
    for kept, text, _ in known:
        if kept is plan:
            return kept, text
    # comparing categories takes milliseconds on a GPU, and so does asking whether others are equal
    categorical = any(
        not isinstance(column.dtype, np.dtype) and dtype_class(column.dtype) == "category"
        for column in (*plan.keys, *plan.columns)
    )
    text = summary(plan) if categorical else ""
    for kept, same, also in known:
        if categorical == also and (text == same if categorical else kept == plan):
            return kept, same
    text = text or summary(plan)
    if any(use.custom is not None for use in plan.states):
        return None, text
    _plans.append((plan, text, categorical))
    return plan, text


def summary(plan: Plan) -> str:
    """The outputs and keys of a plan in one line: ``sum of v, mean of w by k``."""
    shown = [plan.output_label(i) for i in range(min(len(plan.outputs), _SHOWN))]
    more = len(plan.outputs) - _SHOWN
    outputs = ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
    keys = ", ".join(short(key.label) for key in plan.keys[:_SHOWN])
    keys += f" and {more:,} more" if (more := len(plan.keys) - _SHOWN) > 0 else ""
    return f"{outputs or 'groups'} by {keys}"


def measured() -> Measured:
    """Read the totals of this process."""
    global _readings
    totals = {}
    with _lock:
        _readings += 1
        for what, total in _totals.items():
            calls, seconds, rows, groups, nbytes, longest, born, maxima = total
            if longest:
                maxima.append((_readings, longest))
                total[5] = 0.0
            top = max((longest for _, longest in maxima), default=0.0)
            totals[what] = Total(calls, seconds, rows, groups, nbytes, top, born, tuple(maxima))
        return Measured(_process, _since, _readings, totals)


def since(before: Measured | None, now: Measured) -> dict[What, Total]:
    """The totals between two readings."""
    totals: dict[What, Total] = {}
    for what, total in now.totals.items():
        earlier = before.totals.get(what) if before is not None else None
        if earlier is None or earlier.born != total.born:
            totals[what] = total
        elif before is not None and total.calls > earlier.calls:
            totals[what] = total._replace(
                longest=max((s for n, s in total.maxima if n > before.reading), default=0.0),
                calls=total.calls - earlier.calls,
                seconds=total.seconds - earlier.seconds,
                rows=total.rows - earlier.rows,
                groups=total.groups - earlier.groups,
                nbytes=total.nbytes - earlier.nbytes,
            )
    return totals


def activity() -> dict[str, Any]:
    """Totals over all queries of this process, as plain values for a worker's heartbeat.

    Returns
    -------
    dict
        ``time`` (seconds since 1970), ``rows`` (as ``rows_done``) and ``steps``: lists of step,
        engine, kernel (empty for whole tasks), calls, seconds, rows, groups, groups expected and
        rows spilled.
    """
    with _lock:
        steps = [
            [*what, int(n), float(seconds), *map(int, counts)]
            for what, (n, seconds, *counts) in _activity.items()
        ]
        return {"time": time.time(), "rows": int(_rows_done), "steps": steps}


def rows_done() -> int:
    """Rows of partitions that this process has grouped, those of tasks that still run included."""
    return _rows_done


def forget() -> None:
    """Forget all runs and totals of this process."""
    with _lock:
        _runs.clear()
        _totals.clear()
        _activity.clear()


def runs_here(plan: Plan | None = None) -> tuple[str, tuple[Run, ...]]:
    """The name of this process, and its latest runs; see ``dask_gpuagg.last_runs``."""
    from dask_gpuagg.cuda.aggregate import Run
    from dask_gpuagg.cuda.choice.decision import Decision

    with _lock:
        latest = tuple(_runs)
    decision = Decision(kernel="host", why="the partitions are pandas'")
    runs: list[Run] = []
    for run in latest:
        if plan is not None and run.plan != plan:
            continue
        if isinstance(run, Step):
            run = Run(
                decision,
                run.rows,
                run.groups,
                bytes_read=run.nbytes,
                seconds=run.seconds,
                plan=run.plan,
                step=run.step,
            )
        runs.append(run)
    return _process, tuple(runs)
