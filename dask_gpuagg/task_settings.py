"""What a task needs of the configuration, which travels with it to whatever worker runs it.

Workers, and a scheduler that makes the graph, have configurations of their own: the one that
counts is that of the client where the query was planned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from dask_gpuagg.settings import settings


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The settings under ``gpuagg`` that the device engine reads while it runs a task.

    Attributes
    ----------
    kernel : str
        ``auto``, or the kernel that is forced.
    fallback : str
        ``warn``, ``silent`` or ``raise``: what happens where kernels cannot run.
    compile : str
        ``background`` or ``wait``: what happens while kernels are being compiled.
    engine : str
        ``device`` where host partitions are grouped on the GPU.
    """

    kernel: str
    fallback: str
    compile: str = "background"
    engine: str = "auto"


_used: ContextVar[TaskSettings | None] = ContextVar("_used", default=None)


def configured() -> TaskSettings:
    """The settings of this process."""
    here = settings()
    return TaskSettings(here.kernel, here.fallback, here.compile, here.engine)


def current() -> TaskSettings:
    """The settings of the task that runs; outside of one, those of this process."""
    return _used.get() or configured()


@contextmanager
def use(given: TaskSettings | None) -> Iterator[None]:
    """What is called inside runs by these settings; by those around it for ``None``."""
    if given is None:
        yield
        return
    token = _used.set(given)
    try:
        yield
    finally:
        _used.reset(token)
