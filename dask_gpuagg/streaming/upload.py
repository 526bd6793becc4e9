"""Copies between pageable host memory and the device, through pinned buffers and on a stream apart.

Threads fill and empty the buffers: one core copies slower than the link to the device does.
"""

from __future__ import annotations

import ctypes
import os
import queue
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_gpuagg.cuda.runtime.driver import DriverError, bindings, checked

# Bytes of a pinned buffer, and threads: on a host of 16 cores 8 MiB and 8 threads reached the most,
# 48 GB/s of the link's 55. Smaller buffers wait for Python, more threads for each other.
_BUFFER_BYTES = 8 << 20
_THREADS = 8
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


class _Buffer(NamedTuple):
    """Pinned memory, and the event behind its last copy."""

    address: int
    array: npt.NDArray[np.uint8]
    event: Any


class Pinned:
    """Pinned buffers, and threads that copy through them.

    Parameters
    ----------
    stream : int
        Handle of the stream of the copies.
    begin : callable
        Called once by each thread.

    Raises
    ------
    MemoryError
        If the host has no pinned memory for one buffer; a few suffice.
    """

    def __init__(self, stream: int, begin: Callable[[], None]) -> None:
        self._stream = stream
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = max(1, min(_THREADS, cores or 1))
        memory, number = _pinned(threads * _BUFFERS_OF_A_THREAD)
        self._threads = min(threads, number)
        self._free: queue.SimpleQueue[_Buffer] = queue.SimpleQueue()
        for address in range(memory, memory + number * _BUFFER_BYTES, _BUFFER_BYTES):
            pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
            array = np.ctypeslib.as_array(pointer, (_BUFFER_BYTES,))
            self._free.put(_Buffer(address, array, _event()))
        self._pool = ThreadPoolExecutor(self._threads, "gpuagg-pin", begin)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Start copies on the stream; when this returns, the host memory is read."""
        driver = bindings()

        def one(piece: Copy) -> None:
            size, buffer = len(piece.source), self._free.get()
            try:
                # the copy before, out of this buffer
                checked(driver.cuEventSynchronize(buffer.event))
                np.copyto(buffer.array[:size], piece.source)
                start, stream = buffer.address, self._stream
                checked(driver.cuMemcpyHtoDAsync(piece.target, start, size, stream))
                checked(driver.cuEventRecord(buffer.event, stream))
            finally:
                self._free.put(buffer)

        self._run(one, pieces_of(copies, _BUFFER_BYTES))

    def fetch(self, address: int, size: int) -> npt.NDArray[np.uint8]:
        """Bytes of the device, behind what is on the stream."""
        driver, made = bindings(), np.empty(size, np.uint8)

        def one(start: int) -> None:
            piece, buffer = made[start : start + _BUFFER_BYTES], self._free.get()
            try:
                checked(driver.cuEventSynchronize(buffer.event))
                source, stream = address + start, self._stream
                checked(driver.cuMemcpyDtoHAsync(buffer.address, source, len(piece), stream))
                checked(driver.cuEventRecord(buffer.event, stream))
                checked(driver.cuEventSynchronize(buffer.event))
                np.copyto(piece, buffer.array[: len(piece)])
            finally:
                self._free.put(buffer)

        self._run(one, range(0, size, _BUFFER_BYTES))
        return made

    def _run(self, task: Callable[[Any], None], of: Iterable[Any]) -> None:
        """Run a task for each of some things by the threads, and wait for all of them."""
        left = deque(of)

        def drain() -> None:
            while left:
                try:
                    each = left.popleft()
                except IndexError:  # another thread was faster
                    return
                task(each)

        started = [self._pool.submit(drain) for _ in range(min(self._threads, len(left)))]
        # also where one has failed: the others write to memory that would be released
        wait(started)
        for each in started:
            each.result()


def _pinned(number: int) -> tuple[int, int]:
    """The address of pinned memory for so many buffers or fewer, and for how many."""
    while number:
        try:
            return int(checked(bindings().cuMemHostAlloc(number * _BUFFER_BYTES, 0))), number
        except DriverError as error:
            if not error.passes:
                raise
        number //= 2
    raise MemoryError(f"no pinned host memory of {_BUFFER_BYTES} bytes")


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
