"""Queries, tasks and kernels of this process: their totals, and the latest of them."""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict, deque
from contextvars import ContextVar, Token
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_gpuagg.cache import Cache, OfObjects, after_fork
from dask_gpuagg.plan import listed, short
from dask_gpuagg.reporting.events import (
    Fallback,
    FellBack,
    Kernel,
    Planned,
    TaskEnded,
    emit,
    register,
    unregister,
)
from dask_gpuagg.settings import using

if TYPE_CHECKING:
    from dask_gpuagg.cuda.aggregate import Run
    from dask_gpuagg.plan import Plan

# in the order in which a query goes through them
STEPS = (
    *("partial", "chunk", "direct", "join", "exchange", "combine"),
    *("sample", "aim", "count", "widen", "recount", "finalize", "gather", "divide"),
)
# steps whose rows are those of partitions
_OF_PARTITIONS = frozenset(("partial", "chunk", "direct", "count"))
# the latest runs, the totals of a recorder, and the recorders of ``profile`` that are remembered
_RUNS, _TOTALS, _RECORDERS = 1_000, 1_000, 32
# queries whose names a recorder remembers, and fallbacks that it tells apart
_NAMES, _FALLBACKS = 10_000, 1_000
# outputs and keys that the description of a query names
_SHOWN = 4


class Task:
    """Context manager: a task of a query; kernel calls and settings inside belong to it.

    It is measured, unless it has no ``engine``, which ``saw`` sets.
    """

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

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        seconds = time.perf_counter() - self._started
        self._settings.__exit__(kind, error, traceback)
        _task.reset(self._token)
        if self.engine and kind is None:
            counts = (self.rows, self.groups, self.nbytes)
            emit(TaskEnded(self._plan, self._step, self.engine, *counts, seconds))

    def saw(self, engine: str | None, rows: int = 0, groups: int = 0, nbytes: int = 0) -> None:
        """Say what went in and came out; several times, where a task has several inputs."""
        self.engine = engine or ""
        global _rows_done
        self.rows += rows
        if self._step in _OF_PARTITIONS:
            with _lock:
                _rows_done += rows
        self.groups += groups
        self.nbytes += nbytes


task = Task
_task: ContextVar[tuple[Plan | None, str]] = ContextVar("_task", default=(None, ""))


def subject() -> tuple[str, ...]:
    """The labels of the keys of the running task's plan."""
    plan, _ = _task.get()
    return () if plan is None else tuple(str(key.label) for key in plan.keys)


def note_run(run: Run) -> None:
    """Emit one call of the kernels, in the task that runs."""
    plan, step = _task.get()
    emit(Kernel(run._replace(plan=plan, step=step)))


@dataclass(slots=True)
class Step:
    """A step of a query on an engine, or one of its kernels."""

    query: str
    step: str
    engine: str
    #: empty where whole tasks are counted
    kernel: str
    calls: int
    #: wall time, summed over threads
    seconds: float
    #: that went in
    rows: int
    #: rows of the partials or outputs that came out
    groups: int
    #: of keys and values that were read, or of the pieces that are exchanged
    nbytes: int
    #: seconds of the longest call
    longest: float
    #: groups that kernels estimated
    expected: int = 0
    #: rows that found no place at first
    spilled: int = 0
    #: in how many processes it ran
    workers: int = 1

    @property
    def rows_per_second(self) -> float:
        """Rows that one thread takes in a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def key(self) -> tuple[str, ...]:
        """Names by which calls are added up."""
        return self.query, self.step, self.engine, self.kernel

    def add(self, other: Step) -> None:
        """Add more calls of the step."""
        self.calls += other.calls
        self.seconds += other.seconds
        self.rows += other.rows
        self.groups += other.groups
        self.nbytes += other.nbytes
        self.expected += other.expected
        self.spilled += other.spilled
        self.longest = max(self.longest, other.longest)


class Measured(NamedTuple):
    """A reading of a recorder; the process has a name of its own among all."""

    process: str
    token: str
    totals: list[Step]
    planned: int
    fallbacks: dict[Fallback, int]


class Recorder:
    """A sink that adds up queries, tasks and kernels; each distinct query counts once, by its name.

    That of a ``profile`` has a token and adds up each query by itself; that of the session does
    not. ``planned`` has the names of the queries planned last as its keys, ``fallbacks`` the
    reasons of those that fell back last by their names.
    """

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.reset()

    def reset(self) -> None:
        """Start anew."""
        with _lock:
            self.totals: OrderedDict[tuple[str, ...], Step] = OrderedDict()
            self.planned: OrderedDict[str, None] = OrderedDict()
            self.fallbacks: OrderedDict[str, str] = OrderedDict()
            self._queries = 0
            self._entries: OrderedDict[Fallback, int] = OrderedDict()

    def __call__(self, event: Any) -> None:
        """Add an event."""
        match event:
            case Planned(node):
                with _lock:
                    self._queries += node._name not in self.planned
                    _put(self.planned, node._name, None, _NAMES)
            case FellBack(fallback, name):
                with _lock:
                    if name and self.fallbacks.get(name) == fallback.reason:
                        return
                    if name:
                        _put(self.fallbacks, name, fallback.reason, _NAMES)
                    _put(self._entries, fallback, self._entries.get(fallback, 0) + 1, _FALLBACKS)
            case TaskEnded(plan, step, engine, rows, groups, nbytes, seconds):
                self._add(plan, step, engine, "", 1, seconds, rows, groups, nbytes, seconds)
            case Kernel(run):
                estimate = run.decision.estimate
                # groups that were not estimated count on both sides
                expected = run.groups if estimate is None else estimate.groups
                counts = (1, run.seconds, run.rows, run.groups, run.bytes_read, run.seconds)
                names = (run.step, "device", run.decision.kernel)
                self._add(run.plan, *names, *counts, expected, run.spilled)

    def _add(self, plan: Plan | None, *values: Any) -> None:
        step = Step(summary(plan) if self.token and plan is not None else "", *values)
        key = step.key
        with _lock:
            if key in self.totals:
                self.totals[key].add(step)
            else:
                _put(self.totals, key, step, _TOTALS)

    def measured(self) -> Measured:
        """Read the recorder."""
        with _lock:
            totals = list(map(replace, self.totals.values()))
            return Measured(_process, self.token, totals, self._queries, dict(self._entries))


def _put(entries: OrderedDict[Any, Any], key: Any, value: Any, limit: int) -> None:
    """Put an entry at the end, and drop the first ones beyond the limit."""
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > limit:
        entries.popitem(last=False)


_lock = Lock()
_process = uuid.uuid4().hex
session = Recorder()
_recorders: OrderedDict[str, Recorder] = OrderedDict()


def begin(token: str) -> None:
    """Record from now on what this process runs, for a ``profile``."""
    if token not in _recorders:
        _recorders[token] = recorder = Recorder(token)
        register(recorder, Planned, FellBack, TaskEnded, Kernel)
    while len(_recorders) > _RECORDERS:
        _, oldest = _recorders.popitem(last=False)
        unregister(oldest)


def end(token: str) -> Measured:
    """Read what was recorded; all that this process ever ran, where no recorder has the token."""
    recorder = _recorders.get(token, session)
    if recorder is not session:
        unregister(recorder)
    return recorder.measured()


def activity() -> list[list[Any]]:
    """The session's totals as plain values, for a worker's heartbeat.

    Of each step a list: step, engine, kernel (none of whole tasks), calls, seconds, rows, groups,
    groups expected, rows overflowed.
    """
    return [
        [
            *t.key[1:],
            t.calls,
            float(t.seconds),
            *map(int, (t.rows, t.groups, t.expected, t.spilled)),
        ]
        for t in session.measured().totals
    ]


_rows_done = 0


def rows_done() -> int:
    """Rows of partitions that this process has grouped, those of tasks that still run included."""
    return _rows_done


_runs: deque[Run | TaskEnded] = deque(maxlen=_RUNS)
# plans of which equal ones follow, and the ones that stand for those of the latest tasks
_plans: Cache[tuple[str, ...], Plan] = Cache(8)
_same: OfObjects[Plan] = OfObjects(8)


def remember(event: TaskEnded | Kernel) -> None:
    """Add a call of the kernels, or a task of the host, to the latest runs."""
    entry: Run | TaskEnded = event.run if isinstance(event, Kernel) else event
    if isinstance(entry, TaskEnded) and entry.engine != "host":
        return
    if entry.plan is not None and (plan := _remembered(entry.plan)) is not entry.plan:
        entry = entry._replace(plan=plan)
    with _lock:
        _runs.append(entry)


def _remembered(plan: Plan) -> Plan | None:
    """The one of equal plans that is remembered; none with users' functions, which hold anything.

    Workers unpickle a plan for each task.
    """
    for use in plan.states:
        if use.custom is not None:
            return None

    def first_of_equals() -> Plan:
        # by text: comparing categories takes milliseconds on a GPU
        _, text, dtypes, _ = plan.__dask_tokenize__()
        return _plans.of((text, *map(str, dtypes)), lambda: plan)

    return _same.of(plan, first_of_equals)


def summary(plan: Plan) -> str:
    """The outputs and keys of a plan in one line: ``sum of v, mean of w by k``."""
    outputs = listed([plan.output_label(i) for i in range(len(plan.outputs))], _SHOWN)
    keys = listed([short(key.label) for key in plan.keys], _SHOWN)
    return f"{outputs or 'groups'} by {keys}"


def runs_here(plan: Plan | None = None) -> tuple[str, tuple[Run, ...]]:
    """The name of this process, and its latest runs; see ``dask_gpuagg.last_runs``."""
    from dask_gpuagg.cuda.aggregate import Run
    from dask_gpuagg.cuda.choice.decision import Decision

    with _lock:
        latest = tuple(_runs)
    decision = Decision(kernel="host", why="the partitions are pandas'")
    runs: list[Run] = []
    for entry in latest:
        if plan is not None and entry.plan != plan:
            continue
        if isinstance(entry, TaskEnded):
            of_task, step, _, rows, groups, nbytes, seconds = entry
            runs.append(Run(decision, rows, groups, 0, False, nbytes, seconds, of_task, step))
        else:
            runs.append(entry)
    return _process, tuple(runs)


def forget() -> None:
    """Forget all runs and totals of this process."""
    with _lock:
        _runs.clear()
        session.totals.clear()


@after_fork
def _reset() -> None:
    """In the child: it has run nothing yet."""
    global _lock, _process
    _lock, _process = Lock(), uuid.uuid4().hex
    _runs.clear()
    session.reset()
