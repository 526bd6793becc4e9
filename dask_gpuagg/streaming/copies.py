"""Copies between pageable host memory and the device, through pinned buffers and on a stream apart.

Threads fill and empty the buffers: one core copies slower than the link to the device does. Their
loops are compiled, without Python's lock: a thread that asks for it waits for up to 5 ms while
another one runs Python, which takes longer than to copy a buffer.
"""

import ctypes
import itertools
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Any, NamedTuple

import numba.experimental.function_type  # noqa: F401  (registers the type of what is called)
import numpy as np
import numpy.typing as npt
from dask.system import cpu_count
from numba import types

from dask_gpuagg.cuda.runtime.driver import DriverError, bindings, checked
from dask_gpuagg.engines.host.loops import compiled

Pieces = npt.NDArray[np.uint64]
Buffers = npt.NDArray[np.uint64]
_u64, _status = types.uint64, types.int32


class Function(types.WrapperAddressProtocol):
    """A function of C that compiled loops call; each argument is an address, handle or size."""

    def __init__(self, function: Any, arguments: int, returns: Any = _status) -> None:
        self._function = function
        self._signature = returns(*[_u64] * arguments)

    def __wrapper_address__(self) -> int:
        return int(ctypes.cast(self._function, ctypes.c_void_p).value or 0)

    def __call__(self, *arguments: Any) -> int:
        """Call it from Python, as loops do that Numba is told not to compile."""
        return int(self._function(*(ctypes.c_uint64(int(each)) for each in arguments)))

    def signature(self) -> Any:
        """Its types."""
        return self._signature


class Calls(NamedTuple):
    """Functions that the loops call: the driver's, and the copy of host memory."""

    synchronize: Function
    record: Function
    to_device: Function
    to_host: Function
    copy: Function


@cache
def calls() -> Calls:
    """Look up the functions in the CUDA driver and the C library."""
    driver, c = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
    return Calls(
        Function(driver.cuEventSynchronize, 1),
        Function(driver.cuEventRecord, 2),
        Function(driver.cuMemcpyHtoDAsync_v2, 4),
        Function(driver.cuMemcpyDtoHAsync_v2, 4),
        Function(c.memcpy, 3, _u64),
    )


@compiled
def upload(calls: Calls, pieces: Pieces, buffers: Buffers, stream: int) -> int:
    """Start the copies of pieces to the device; the driver's status. The host memory is read then.

    ``pieces`` has rows of host address, device address, and bytes, at most a buffer's; ``buffers``
    rows of addresses, and events behind their last copies.
    """
    handle = np.uint64(stream)
    for i in range(len(pieces)):
        host, device, size = pieces[i]
        buffer, event = buffers[i % len(buffers)]
        # the copy before, out of this buffer
        status = calls.synchronize(event)
        if status == 0:
            calls.copy(buffer, host, size)
            status = calls.to_device(device, buffer, size, handle)
        if status == 0:
            status = calls.record(event, handle)
        if status != 0:
            return status
    return 0


@compiled
def download(calls: Calls, pieces: Pieces, buffers: Buffers, stream: int) -> int:
    """Copy pieces to the host; the driver's status. Arguments are those of ``upload``."""
    handle = np.uint64(stream)
    for i in range(len(pieces) + len(buffers)):
        buffer, event = buffers[i % len(buffers)]
        before = i - len(buffers)
        if before >= len(pieces):
            break
        status = calls.synchronize(event)
        if status == 0 and before >= 0:
            calls.copy(pieces[before, 0], buffer, pieces[before, 2])
        if status == 0 and i < len(pieces):
            status = calls.to_host(buffer, pieces[i, 1], pieces[i, 2], handle)
            if status == 0:
                status = calls.record(event, handle)
        if status != 0:
            return status
    return 0


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


def pieces_of(copies: Sequence[Copy], size: int) -> Pieces:
    """Copies in pieces of at most ``size`` bytes: addresses of host and device, and bytes."""
    tables = []
    for source, target in copies:
        starts = np.arange(0, len(source), size)
        sizes = np.minimum(len(source) - starts, size)
        tables.append(np.column_stack([source.ctypes.data + starts, target + starts, sizes]))
    return np.concatenate(tables or [np.empty((0, 3))]).astype(np.uint64)


class Pinned:
    """Pinned buffers, and threads that copy through them; each thread calls ``begin`` once.

    Several threads may call it: copies that are asked for next begin as soon as a thread has
    nothing left to do of those before. A few buffers suffice; MemoryError if the host has no memory
    for one.
    """

    def __init__(self, stream: int, begin: Callable[[], None]) -> None:
        self._stream, self._calls = stream, calls()
        threads = min(_THREADS, cpu_count())
        memory, number = _pinned(threads * _BUFFERS_OF_A_THREAD)
        self._threads = min(threads, number)
        places = range(memory, memory + number * _BUFFER_BYTES, _BUFFER_BYTES)
        buffers = np.array([(place, int(_event())) for place in places], np.uint64)
        # a loop has its own, as many as there are threads
        self._buffers: queue.SimpleQueue[Buffers] = queue.SimpleQueue()
        for own in np.array_split(buffers, self._threads):
            self._buffers.put(own)
        self._pool = ThreadPoolExecutor(self._threads, "gpuagg-pin", begin)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Start copies on the stream; when this returns, the host memory is read."""
        self._run(upload, copies)

    def fetch(self, places: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint8]:
        """Bytes from addresses of the device, so many each, behind what is on the stream."""
        ends = list(itertools.accumulate((size for _, size in places), initial=0))
        fetched = np.empty(ends[-1], np.uint8)
        pairs = zip(places, ends[:-1], strict=True)
        self._run(download, [Copy(fetched[at : at + size], place) for (place, size), at in pairs])
        return fetched

    def _run(self, loop: Callable[..., int], copies: Sequence[Copy]) -> None:
        """Run a loop over the pieces by the threads, and wait for all of them."""
        pieces = pieces_of(copies, _BUFFER_BYTES)
        shares = [pieces[first :: self._threads].copy() for first in range(self._threads)]

        def run(share: Pieces) -> int:
            own = self._buffers.get()
            try:
                return loop(self._calls, share, own, self._stream)
            finally:
                self._buffers.put(own)

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
            if not error.is_transient:
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
