"""The events of group-bys, and the sinks that get them.

Planner, tasks and kernels emit one event for each thing that happens; whatever reports on group-bys
registers a sink. Nothing else observes them.

=============  =====================================  ==========================================
event          emitted                                sinks
=============  =====================================  ==========================================
``Planned``    when a group-by is lowered to a plan   session, ``profile``, ``explain``
``Refused``    when stock Dask has to lower it        ``explain``
``FellBack``   when something runs otherwise          session, ``profile``
``TaskEnded``  when a task ends                       session, ``profile``, latest runs
``Kernel``     when a call of the kernels ends        session, ``profile``, latest runs
=============  =====================================  ==========================================

The sinks of every process are registered in ``reporting/__init__.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dask_gpuagg.cuda.aggregate import Run
    from dask_gpuagg.plan import Plan

_log = logging.getLogger("dask_gpuagg")


class Planned(NamedTuple):
    """A group-by is lowered to a plan: its logical node, which names it, and what it becomes."""

    node: Any
    query: Any  # GroupByQuery, on lowered inputs
    decision: Any  # Routing
    nodes: Any  # physical


class Refused(NamedTuple):
    """A group-by, of a logical node, is left to stock Dask."""

    node: Any
    reason: str


class Fallback(NamedTuple):
    """A call, abbreviated, that ran otherwise than by the plan: how, why, and at which line.

    ``line`` is a file of the program and a line in it; empty where no code of the user is known.
    """

    what: str
    how: str
    reason: str
    line: str = ""

    def __str__(self) -> str:
        where = f" ({self.line})" if self.line else ""
        return f"{self.what} {self.how}: {self.reason}{where}"


class FellBack(NamedTuple):
    """A query, which may be lowered several times, or a task runs otherwise than by the plan."""

    fallback: Fallback
    name: str = ""  # the query's; empty for a task


class TaskEnded(NamedTuple):
    """A task has ended; its numbers are those of ``profiling.Step``."""

    plan: Plan | None  # none where it is not remembered
    step: str  # one of runs.STEPS
    engine: str
    rows: int
    groups: int
    nbytes: int
    seconds: float


class Kernel(NamedTuple):
    """A call of the kernels has ended; the run has the plan and the step of its task, if any."""

    run: Run


Sink = Callable[[Any], None]

_KINDS = (Planned, Refused, FellBack, TaskEnded, Kernel)
_sinks: dict[type, list[Sink]] = {kind: [] for kind in _KINDS}
# gets all events of a dry run
_dry_sink: ContextVar[Sink | None] = ContextVar("_dry_sink", default=None)


def emit(event: NamedTuple) -> None:
    """Give an event to the sinks of its kind, or to the sink of the dry run around it alone."""
    dry = _dry_sink.get()
    # a copy: other threads register sinks meanwhile
    for sink in [*_sinks[type(event)]] if dry is None else [dry]:
        try:
            sink(event)
        except Exception:  # the query runs all the same
            _log.exception("an event (%s) could not be reported", type(event).__name__)


def register(sink: Sink, *kinds: type) -> None:
    """Give the events of some kinds to a sink, in the threads in which they happen."""
    for kind in kinds:
        _sinks[kind].append(sink)


def unregister(sink: Sink) -> None:
    """Give a sink no more events."""
    for sinks in _sinks.values():
        with suppress(ValueError):
            sinks.remove(sink)


@contextmanager
def dry_run(sink: Sink = lambda event: None) -> Iterator[None]:
    """Record, warn of and refuse nothing in this thread or coroutine; one sink gets all events."""
    token = _dry_sink.set(sink)
    try:
        yield
    finally:
        _dry_sink.reset(token)


def is_dry_run() -> bool:
    """Whether this thread or coroutine only tries something."""
    return _dry_sink.get() is not None
