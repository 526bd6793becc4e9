"""The loops of the threads that copy through pinned buffers: compiled, without Python's lock.

A thread that asks for that lock waits for up to 5 ms while another one runs Python, which takes
longer than to copy a buffer. What the loops call is given to them as addresses of C functions.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

import numba.experimental.function_type  # noqa: F401  (registers the type of what is called)
import numpy as np
import numpy.typing as npt
from numba import types

from dask_gpuagg.engines.host.loops import compiled

Pieces = npt.NDArray[np.uint64]
Buffers = npt.NDArray[np.uint64]
_u64, _status = types.uint64, types.int32


class Function(types.WrapperAddressProtocol):
    """A function of C that compiled loops call.

    Parameters
    ----------
    function : ctypes function
    arguments : int
        How many it has; each is an address, a handle or a size.
    returns : numba type
    """

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
    """What the loops call: the driver's functions, and the copy of host memory."""

    synchronize: Function
    record: Function
    to_device: Function
    to_host: Function
    copy: Function


@cache
def calls() -> Calls:
    """Those of the CUDA driver and of the C library."""
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
    """Start the copies of pieces to the device; the driver's status.

    When this returns, the host memory is read.

    Parameters
    ----------
    calls : Calls
    pieces : ndarray of uint64
        Of shape (n, 3): addresses on the host and on the device, and bytes, at most a buffer's.
    buffers : ndarray of uint64
        Of shape (m, 2): addresses, and events behind their last copies.
    stream : int
        Handle of the stream of the copies.
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
