"""What the kernels did lately in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING

from dask_gpuagg.task_settings import use

if TYPE_CHECKING:
    from dask_gpuagg.cuda.aggregate import Run
    from dask_gpuagg.plan import Plan

_REMEMBERED = 1_000
_runs: deque[Run] = deque(maxlen=_REMEMBERED)
_lock = Lock()
_task: ContextVar[tuple[Plan | None, str]] = ContextVar("_task", default=(None, ""))
_REHEARSAL = (None, "rehearsal")


@contextmanager
def task(plan: Plan, step: str) -> Iterator[None]:
    """Calls of the kernels inside are made for a task of this plan, by its settings."""
    token = _task.set((plan, step))
    try:
        with use(plan.settings):
            yield
    finally:
        _task.reset(token)


@contextmanager
def rehearsal() -> Iterator[None]:
    """Calls of the kernels inside answer nobody's query, and are not remembered."""
    token = _task.set(_REHEARSAL)
    try:
        yield
    finally:
        _task.reset(token)


def subject() -> tuple[str, ...]:
    """What the calls of this task group by: the labels of its plan's keys."""
    plan, _ = _task.get()
    return () if plan is None else tuple(str(key.label) for key in plan.keys)


def note_run(run: Run) -> None:
    """Remember one call of the kernels."""
    current = _task.get()
    if current is _REHEARSAL:
        return
    plan, step = current
    with _lock:
        _runs.append(run._replace(plan=plan, step=step))


def last_runs(plan: Plan | None = None) -> tuple[Run, ...]:
    """The latest calls of the kernels in this process, the oldest first.

    Parameters
    ----------
    plan : Plan, optional
        Only those made for this plan.

    Returns
    -------
    tuple of Run
        Task, kernel and geometry, estimated and true groups, rows, rows spilled, bytes read, time.
    """
    with _lock:
        found = tuple(_runs)
    return found if plan is None else tuple(run for run in found if run.plan == plan)
