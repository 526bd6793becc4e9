"""Copies between pageable host memory and the device, through pinned buffers and on a stream apart.

Threads fill and empty the buffers: one core copies slower than the link to the device does.
"""

from __future__ import annotations

import ctypes
import os
import queue
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
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
        self._run(self._one, pieces_of(copies, _BUFFER_BYTES))

    def _run(self, task: Callable[[Any], None], of: Iterable[Any]) -> None:
        """Run a task for each of some things by the threads, and wait for all of them."""
        started = [self._pool.submit(task, each) for each in of]
        # also where one has failed: the others write to memory that would be released
        wait(started)
        for each in started:
            each.result()

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

    def fetch(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Bytes of the device, behind what is on the stream."""
        made = np.empty(size, np.uint8)

        def one(start: int) -> None:
            piece = made[start : start + _BUFFER_BYTES]
            driver, (buffer, event) = bindings(), self._free.get()
            try:
                checked(driver.cuEventSynchronize(event))
                source = address + start
                checked(driver.cuMemcpyDtoHAsync(buffer, source, len(piece), self._stream))
                checked(driver.cuEventRecord(event, self._stream))
                checked(driver.cuEventSynchronize(event))
                np.copyto(piece, np.ctypeslib.as_array(_bytes_at(buffer), (len(piece),)))
            finally:
                self._free.put((buffer, event))

        self._run(one, range(0, size, _BUFFER_BYTES))
        return made


def _bytes_at(address: int) -> Any:
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))


def _event() -> Any:
    driver = bindings()
    flags = driver.CUevent_flags
    # a thread that waits leaves its core to those that copy
    waits = int(flags.CU_EVENT_DISABLE_TIMING) | int(flags.CU_EVENT_BLOCKING_SYNC)
    return checked(driver.cuEventCreate(waits))


def wait_for(stream: int, other: int) -> None:
    """Let what is started on a stream next wait for what was started on another one."""
    driver = bindings()
    event = _event()
    checked(driver.cuEventRecord(event, other))
    checked(driver.cuStreamWaitEvent(stream, event, 0))
    # the driver keeps it until the stream has passed it
    checked(driver.cuEventDestroy(event))
