"""The CUDA driver: devices, memory, events; and what its calls return, checked."""

import ctypes
import queue
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

# Bytes of pinned memory for what is read back, and addresses of it, as many as threads have read
# at once.
_LANDING_BYTES = 1 << 16
_landings: queue.SimpleQueue[int] = queue.SimpleQueue()


class DriverError(RuntimeError):
    """A call of CUDA failed; ``status`` is the name of its error."""

    def __init__(self, message: str, status: str = "") -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed the next time."""
        return self.status == "CUDA_ERROR_OUT_OF_MEMORY"


@dataclass(frozen=True)
class Device:
    """Properties of a device that the choice of a kernel and its geometry depend on."""

    ordinal: int
    name: str
    # as NVRTC names it: sm_90
    architecture: str
    multiprocessors: int
    # shared memory that one block may have
    shared_bytes: int
    l2_bytes: int = 0
    # peak of the device's memory, GB/s; 0 where the driver does not say
    bandwidth: float = 0.0


def current_device() -> Device:
    """The calling thread's device, whose context is made current; ``DriverError`` without one."""
    from cuda.bindings import runtime

    ordinal = checked(runtime.cudaGetDevice())
    # binds the primary context to this thread, which the driver's calls need
    use_device(ordinal)
    return _device(ordinal)


def use_device(ordinal: int) -> None:
    """Make a device the calling thread's own."""
    from cuda.bindings import runtime

    checked(runtime.cudaSetDevice(ordinal))


@cache
def _device(ordinal: int) -> Device:
    from cuda.bindings import runtime

    p = checked(runtime.cudaGetDeviceProperties(ordinal))
    attribute = runtime.cudaDeviceAttr
    clock, width = (
        checked(runtime.cudaDeviceGetAttribute(of, ordinal))
        for of in (attribute.cudaDevAttrMemoryClockRate, attribute.cudaDevAttrGlobalMemoryBusWidth)
    )
    return Device(
        ordinal,
        p.name.decode().rstrip("\0"),
        f"sm_{p.major}{p.minor}",
        p.multiProcessorCount,
        p.sharedMemPerBlockOptin,
        int(p.l2CacheSize),
        # kHz and bits; data move at both edges of the clock
        2e-6 * clock * width / 8,
    )


def driver_version() -> int:
    """The CUDA version that the driver supports, as 13000 for 13.0."""
    from cuda.bindings import runtime

    return int(checked(runtime.cudaDriverGetVersion()))


def unavailable() -> str | None:
    """Why kernels cannot run in this process; None if they can."""
    try:
        from cuda.bindings import nvrtc, runtime  # noqa: F401
    except ImportError as error:
        return f"the CUDA bindings cannot be imported ({error})"
    try:
        status, count = runtime.cudaGetDeviceCount()
    except RuntimeError as error:  # the bindings' own, where there is no driver to load
        return f"no CUDA driver ({error})"
    if status != runtime.cudaError_t.cudaSuccess:
        return f"no usable CUDA device ({status.name})"
    return None if count else "no CUDA device"


class Stopwatch:
    """Device time of what is launched between ``start`` and ``stop``, by name."""

    def __init__(self) -> None:
        self._laps: list[tuple[str, Any, Any]] = []
        self._events: list[Any] = []

    def start(self, stream: int) -> Any:
        """Record an event."""
        event = checked(bindings().cuEventCreate(0))
        self._events.append(event)
        checked(bindings().cuEventRecord(event, stream))
        return event

    def stop(self, name: str, started: Any, stream: int) -> None:
        """Record the event that ends a lap."""
        self._laps.append((name, started, self.start(stream)))

    def milliseconds(self) -> dict[str, float]:
        """Device milliseconds by name; waits for the last lap."""
        driver = bindings()
        times: dict[str, float] = {}
        for name, first, last in self._laps:
            checked(driver.cuEventSynchronize(last))
            times[name] = times.get(name, 0.0) + checked(driver.cuEventElapsedTime(first, last))
        self._laps.clear()
        while self._events:
            checked(driver.cuEventDestroy(self._events.pop()))
        return times


def fill(pointer: int, byte: int, size: int, stream: int) -> None:
    """Set ``size`` bytes of device memory."""
    checked(bindings().cuMemsetD8Async(pointer, byte, size, stream))


def copy(target: int, source: int, size: int, stream: int) -> None:
    """Copy device memory to device memory, on a stream."""
    checked(bindings().cuMemcpyDtoDAsync(target, source, size, stream))


def read_back(
    pointer: int,
    into: ctypes.Structure | ctypes.Array[Any] | ctypes.c_uint32 | ctypes.c_uint64,
    stream: int,
) -> None:
    """Copy a struct or number at a device address to the host and wait for the stream."""
    driver, size, target = bindings(), ctypes.sizeof(into), ctypes.addressof(into)
    # a copy to pageable memory keeps the copies of all threads waiting for the kernels before it
    landing = _landing() if size <= _LANDING_BYTES else None
    checked(driver.cuMemcpyDtoHAsync(target if landing is None else landing, pointer, size, stream))
    checked(driver.cuStreamSynchronize(stream))
    if landing is not None:
        ctypes.memmove(target, landing, size)
        _landings.put(landing)


def _landing() -> int | None:
    """The address of pinned memory that no thread uses; None where the host has none left."""
    with suppress(queue.Empty):
        return _landings.get_nowait()
    driver = bindings()
    try:
        return int(checked(driver.cuMemHostAlloc(_LANDING_BYTES, driver.CU_MEMHOSTALLOC_PORTABLE)))
    except DriverError as error:
        if not error.is_transient:
            raise
    return None


@cache
def bindings() -> Any:
    """The driver's bindings, imported once: even an import that is found again takes its time."""
    from cuda.bindings import driver

    return driver


def checked(returned: tuple[Any, ...]) -> Any:
    """The first value that a call of CUDA returns behind its status, or ``DriverError``."""
    status = returned[0]
    if status != 0:
        raise DriverError(f"CUDA: {status.name}", status.name)
    return returned[1] if len(returned) > 1 else None
