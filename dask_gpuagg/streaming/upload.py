"""Copies between pageable host memory and the device, through pinned buffers and on a stream apart.

Threads fill and empty the buffers: one core copies slower than the link to the device does.
"""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_gpuagg.cuda.runtime.driver import DriverError, bindings, checked
from dask_gpuagg.streaming import staging

# Bytes of a pinned buffer, and threads: of 16 cores 8 threads copy most to the device, 12 back to
# new pages of the host. With 12 streams of all numbers of groups keep above 70 % of the link.
_BUFFER_BYTES = 8 << 20
_THREADS = 12
# Buffers for each thread: one is filled while another is copied.
_BUFFERS_OF_A_THREAD = 2


class Copy(NamedTuple):
    """Bytes of the host, and where they go."""

    source: npt.NDArray[np.uint8]
    target: int


def pieces_of(copies: Sequence[Copy], size: int) -> staging.Pieces:
    """Copies in pieces of at most ``size`` bytes: addresses of host and device, and bytes."""
    made = []
    for source, target in copies:
        starts = np.arange(0, len(source), size)
        sizes = np.minimum(len(source) - starts, size)
        made.append(np.column_stack([source.ctypes.data + starts, target + starts, sizes]))
    return np.concatenate(made or [np.empty((0, 3))]).astype(np.uint64)


class Pinned:
    """Pinned buffers, and threads that copy through them.

    Several threads may call it: copies that are asked for next begin as soon as a thread has
    nothing left to do of those before.

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
        self._stream, self._begin = stream, begin
        self._calls = staging.calls()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = max(1, min(_THREADS, cores or 1))
        memory, number = _pinned(threads * _BUFFERS_OF_A_THREAD)
        self._threads = min(threads, number)
        places = range(memory, memory + number * _BUFFER_BYTES, _BUFFER_BYTES)
        buffers = np.array([(place, int(_event())) for place in places], np.uint64)
        # each thread has its own
        self._buffers: queue.SimpleQueue[staging.Buffers] = queue.SimpleQueue()
        for own in np.array_split(buffers, self._threads):
            self._buffers.put(own)
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(self._threads, "gpuagg-pin", self._start)

    def _start(self) -> None:
        self._begin()
        self._own.buffers = self._buffers.get()

    def copy(self, copies: Sequence[Copy]) -> None:
        """Start copies on the stream; when this returns, the host memory is read."""
        self._run(staging.upload, copies)

    def fetch(self, places: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint8]:
        """Bytes from addresses of the device, so many each, behind what is on the stream."""
        ends = list(itertools.accumulate((size for _, size in places), initial=0))
        made = np.empty(ends[-1], np.uint8)
        pairs = zip(places, ends[:-1], strict=True)
        self._run(
            staging.download, [Copy(made[at : at + size], place) for (place, size), at in pairs]
        )
        return made

    def _run(self, loop: Callable[..., int], copies: Sequence[Copy]) -> None:
        """Run a loop over the pieces by the threads, and wait for all of them."""
        pieces = pieces_of(copies, _BUFFER_BYTES)
        shares = [pieces[first :: self._threads].copy() for first in range(self._threads)]

        def run(share: staging.Pieces) -> int:
            return loop(self._calls, share, self._own.buffers, self._stream)

        started: list[Future[int]] = []
        try:
            started += (self._pool.submit(run, share) for share in shares if len(share))
            # also where one has failed: the others write to memory that would be released
            wait(started)
        except BaseException:
            # Ctrl-C has ended that wait
            wait(started)
            raise
        for each in started:
            checked((bindings().CUresult(each.result()),))


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
