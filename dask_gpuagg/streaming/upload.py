"""Copies from pageable host memory to the device, through pinned buffers and on a stream apart.

Threads fill the buffers: one core copies slower than the link to the device does.
"""

from __future__ import annotations

import ctypes
import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_gpuagg.cuda.runtime.driver import bindings, checked

# Bytes of a pinned buffer: to fill it takes half a millisecond, and to start a copy microseconds.
_BUFFER_BYTES = 4 << 20
_THREADS = 16
# Buffers for each thread: one is filled while another is copied.
_BUFFERS_OF_A_THREAD = 2


class Copy(NamedTuple):
    """Bytes of the host, and where they go."""

    source: npt.NDArray[np.uint8]
    target: int


def pieces_of(copies: Sequence[Copy], size: int) -> list[Copy]:
    """The same copies, none of more than ``size`` bytes."""
    return [
        Copy(copy.source[start : start + size], copy.target + start)
        for copy in copies
        for start in range(0, len(copy.source), size)
    ]


class Pinned:
    """Pinned buffers, and threads that copy through them.

    Parameters
    ----------
    stream : int
        Handle of the stream of the copies.
    begin : callable
        Called once by each thread.
    """

    def __init__(self, stream: int, begin: Callable[[], None]) -> None:
        self._stream = stream
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = max(1, min(_THREADS, cores or 1))
        driver, number = bindings(), threads * _BUFFERS_OF_A_THREAD
        self._memory = int(checked(driver.cuMemHostAlloc(number * _BUFFER_BYTES, 0)))
        self._free: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        for i in range(number):
            self._free.put((self._memory + i * _BUFFER_BYTES, _event()))
        self._pool = ThreadPoolExecutor(threads, "gpuagg-pin", begin)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Start copies on the stream; when this returns, the host memory is read."""
        pieces = pieces_of(copies, _BUFFER_BYTES)
        for _ in self._pool.map(self._one, pieces):
            pass

    def _one(self, piece: Copy) -> None:
        driver, size = bindings(), len(piece.source)
        address, event = self._free.get()
        try:
            # the copy before, out of this buffer
            checked(driver.cuEventSynchronize(event))
            buffer = np.ctypeslib.as_array(_bytes_at(address), (size,))
            np.copyto(buffer, piece.source)
            checked(driver.cuMemcpyHtoDAsync(piece.target, address, size, self._stream))
            checked(driver.cuEventRecord(event, self._stream))
        finally:
            self._free.put((address, event))


def _bytes_at(address: int) -> Any:
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))


def _event() -> Any:
    driver = bindings()
    return checked(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))


def wait_for(stream: int, other: int) -> None:
    """Let what is started on a stream next wait for what was started on another one."""
    driver = bindings()
    event = _event()
    checked(driver.cuEventRecord(event, other))
    checked(driver.cuStreamWaitEvent(stream, event, 0))
    # the driver keeps it until the stream has passed it
    checked(driver.cuEventDestroy(event))
