"""The latest kernel runs of this process."""

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
    """Kernel calls inside belong to a task of this plan and use its settings."""
    token = _task.set((plan, step))
    try:
        with use(plan.settings):
            yield
    finally:
        _task.reset(token)


@contextmanager
def rehearsal() -> Iterator[None]:
    """Kernel calls inside belong to no query and are not recorded."""
    token = _task.set(_REHEARSAL)
    try:
        yield
    finally:
        _task.reset(token)


def subject() -> tuple[str, ...]:
    """The labels of the keys of the running task's plan."""
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
