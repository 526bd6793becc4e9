"""Compiling in the background: whether calls wait for their kernels, and the threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from dask.system import cpu_count

from dask_gpuagg.cuda.runtime.compiler import KernelsUnavailable, in_own_thread


class KernelsCompiling(KernelsUnavailable):
    """Kernels are being compiled, and will be ready for a later call."""


_waits: ContextVar[bool] = ContextVar("_waits", default=True)


def waits() -> bool:
    """Whether a call waits until its kernels are compiled."""
    return _waits.get()


@contextmanager
def waiting(waits: bool) -> Iterator[None]:
    """Calls inside wait for their kernels, or raise ``KernelsCompiling`` instead."""
    token = _waits.set(waits)
    try:
        yield
    finally:
        _waits.reset(token)


def submit(work: Callable[[], Any]) -> Future[Any]:
    """Call a function that compiles in a thread of its own.

    A program that ends completes what has begun, for the cache, and leaves out the rest, all of
    which an executor's threads would do first.
    """
    return in_own_thread(work, _cores_free(os.getpid()))


@lru_cache(1)
def _cores_free(process: int) -> threading.Semaphore:
    # of each process: a fork may find its parent's taken. One core is left to the program.
    return threading.Semaphore(max(1, cpu_count() - 1))
