"""Load machine code and launch kernels through the CUDA driver."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.query.instantiations import UNITS, TranslationUnit, unit_of
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.runtime.compiler import (
    Compiled,
    CompileError,
    KernelsUnavailable,
    cubin,
    cubins,
)


class DriverError(RuntimeError):
    """A call of the CUDA driver failed.

    Parameters
    ----------
    message : str
    status : str
        Name of the driver's error.
    """

    def __init__(self, message: str, status: str = "") -> None:
        super().__init__(message)
        self.status = status

    @property
    def passes(self) -> bool:
        """Whether the same call may succeed the next time."""
        return self.status == "CUDA_ERROR_OUT_OF_MEMORY"


@dataclass(frozen=True)
class Device:
    """What the choice of a kernel and its geometry depend on.

    Attributes
    ----------
    ordinal : int
    name : str
    architecture : str
        As NVRTC names it: ``sm_90``.
    multiprocessors : int
    shared_bytes : int
        Shared memory that one block may have, bytes.
    """

    ordinal: int
    name: str
    architecture: str
    multiprocessors: int
    shared_bytes: int


def current_device() -> Device:
    """The calling thread's device, whose context is made current.

    Raises
    ------
    DriverError
        Without a device.
    """
    from cuda.bindings import runtime

    ordinal = _runtime(runtime.cudaGetDevice())
    # binds the primary context to this thread, which the driver's calls need
    _runtime(runtime.cudaSetDevice(ordinal))
    return _device(ordinal)


@cache
def _device(ordinal: int) -> Device:
    from cuda.bindings import runtime

    p = _runtime(runtime.cudaGetDeviceProperties(ordinal))
    return Device(
        ordinal,
        p.name.decode().rstrip("\0"),
        f"sm_{p.major}{p.minor}",
        p.multiProcessorCount,
        p.sharedMemPerBlockOptin,
    )


def l2_bytes(device: Device) -> int:
    """Size of a device's L2 cache."""
    from cuda.bindings import runtime

    return int(_runtime(runtime.cudaGetDeviceProperties(device.ordinal)).l2CacheSize)


def driver_version() -> int:
    """The CUDA version that the driver supports, as 13000 for 13.0."""
    from cuda.bindings import runtime

    return int(_runtime(runtime.cudaDriverGetVersion()))


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


class Source(Protocol):
    """Where kernels come from: a query, or a unit that serves all queries."""

    @property
    def units(self) -> tuple[str, ...]:
        """Parts that are compiled on their own."""
        ...

    def source(self, *units: str) -> TranslationUnit:
        """The translation unit of some of them."""
        ...


class _Library(NamedTuple):
    """Machine code that is loaded, and the names of its kernels in it."""

    handle: Any
    names: dict[str, str]


class Kernels:
    """The kernels of one query on one device, compiled and loaded as they are needed.

    Parameters
    ----------
    query : Source
    device : Device
    """

    def __init__(self, query: Source, device: Device) -> None:
        self._query = query
        self._device = device
        # one thread makes a unit's library, and others wait for that unit alone
        self._libraries: Cache[str, _Library] = Cache(len(UNITS))
        self._failures: dict[str, str] = {}
        # compiled, but not loaded for lack of memory
        self._compiled: dict[str, Compiled] = {}
        self._functions: dict[str, Any] = {}

    def prepare(self, *units: str) -> None:
        """Compile or load some units, or all, before one of their kernels is launched.

        Raises
        ------
        KernelsUnavailable
        """
        prepare([(self, units)])

    def launch(
        self,
        name: str,
        blocks: int,
        threads: int,
        stream: int,
        *arguments: Any,
        shared_bytes: int = 0,
    ) -> None:
        """Launch a kernel.

        Parameters
        ----------
        name : str
        blocks, threads : int
        stream : int
            Handle.
        *arguments : ctypes instances
            The kernel's parameters by value.
        shared_bytes : int
            Dynamic shared memory of a block, bytes.

        Raises
        ------
        DriverError
        KernelsUnavailable
            When the kernel could not be compiled or loaded.
        """
        function = self._function(name)
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        try:
            _driver(
                _bound().cuLaunchKernel(
                    function,
                    *(blocks, 1, 1),
                    *(threads, 1, 1),
                    shared_bytes,
                    stream,
                    ctypes.addressof(pointers),
                    0,
                )
            )
        except DriverError as error:  # a kernel is loaded when it is first launched
            if error.passes:
                raise _without_memory(error) from error
            raise

    def variable(self, name: str, kernel: str) -> int:
        """Device address of a global variable, as a kernel sees it: each unit has its own."""
        from cuda.bindings import driver

        library = self._library(unit_of(kernel))
        # the size comes after the address
        return int(_driver(driver.cuLibraryGetGlobal(library.handle, name.encode())[:2]))

    def _function(self, name: str) -> Any:
        function = self._functions.get(name)  # without a lock: a launch waits for no other unit
        if function is None:
            from cuda.bindings import driver

            library = self._library(unit_of(name))
            try:
                kernel = self._kernel(library, name)
            except DriverError as error:  # the driver may load code only now
                if error.passes:
                    raise _without_memory(error) from error
                raise
            function = self._functions[name] = driver.CUfunction(int(kernel))
        return function

    def _kernel(self, library: _Library, name: str) -> Any:
        from cuda.bindings import driver

        kernel = _driver(driver.cuLibraryGetKernel(library.handle, library.names[name].encode()))
        attribute = driver.CUfunction_attribute
        static = _driver(
            driver.cuKernelGetAttribute(
                attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, self._device.ordinal
            )
        )
        _driver(
            driver.cuKernelSetAttribute(
                attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                self._device.shared_bytes - static,
                kernel,
                self._device.ordinal,
            )
        )
        return kernel

    def _has(self, unit: str) -> bool:
        """Whether a unit has been compiled, or has failed."""
        return unit in self._libraries or unit in self._compiled or unit in self._failures

    def _library(self, unit: str) -> _Library:
        return self._libraries.of(unit, lambda: self._loaded(unit))

    def _loaded(self, unit: str) -> _Library:
        if unit in self._failures:  # each partition would wait for the same refusal
            raise KernelsUnavailable(self._failures[unit])
        from cuda.bindings import driver

        try:
            compiled = self._compiled.pop(unit, None) or cubin(
                self._query.source(unit), self._device.architecture
            )
            handle = _driver(driver.cuLibraryLoadData(compiled.code, [], [], 0, [], [], 0))
        except KernelsUnavailable as error:
            self._failures[unit] = str(error)
            raise
        except DriverError as error:
            if error.passes:
                # for this call only: the next one tries again, without compiling
                self._compiled[unit] = compiled
                raise _without_memory(error) from error
            self._failures[unit] = f"the driver does not take the compiled kernels: {error}"
            raise KernelsUnavailable(self._failures[unit]) from error
        return _Library(handle, compiled.names)


def prepare(wanted: Sequence[tuple[Kernels, Sequence[str]]]) -> None:
    """Compile side by side, then load, units of several queries.

    Parameters
    ----------
    wanted : sequence of (Kernels, sequence of str)
        Each with the units of it that it has and are wanted: all if none is named.

    Raises
    ------
    KernelsUnavailable
    """
    pairs = [
        (kernels, unit)
        for kernels, units in wanted
        for unit in kernels._query.units
        if not units or unit in units
    ]
    missing = [(kernels, unit) for kernels, unit in pairs if not kernels._has(unit)]
    sources = [(k._query.source(unit), k._device.architecture) for k, unit in missing]
    for (kernels, unit), made in zip(missing, cubins(sources), strict=True):
        if isinstance(made, CompileError):
            kernels._failures[unit] = str(made)
        else:
            kernels._compiled[unit] = made
    for kernels, unit in pairs:
        kernels._library(unit)


def _without_memory(error: DriverError) -> KernelsUnavailable:
    return KernelsUnavailable(f"device memory does not suffice to load the kernels: {error}")


class Stopwatch:
    """Device time of what is launched between ``start`` and ``stop``, by name."""

    def __init__(self) -> None:
        self._laps: list[tuple[str, Any, Any]] = []

    def start(self, stream: int) -> Any:
        """Record an event."""
        from cuda.bindings import driver

        event = _driver(driver.cuEventCreate(0))
        _driver(driver.cuEventRecord(event, stream))
        return event

    def stop(self, name: str, started: Any, stream: int) -> None:
        """Record the event that ends a lap."""
        self._laps.append((name, started, self.start(stream)))

    def milliseconds(self) -> dict[str, float]:
        """Device milliseconds by name; waits for the last lap."""
        from cuda.bindings import driver

        times: dict[str, float] = {}
        for name, first, last in self._laps:
            _driver(driver.cuEventSynchronize(last))
            times[name] = times.get(name, 0.0) + _driver(driver.cuEventElapsedTime(first, last))
            _driver(driver.cuEventDestroy(first))
            _driver(driver.cuEventDestroy(last))
        self._laps.clear()
        return times


# Code stays loaded when its query is dropped: kernels on some stream may still need it.
_known: Cache[tuple[Query, Device], Kernels] = Cache(1024)


def kernels_of(query: Query, device: Device) -> Kernels:
    """The kernels of a query, of which each process has one set."""
    return _known.of((query, device), lambda: Kernels(query, device))


def known() -> tuple[Query, ...]:
    """The queries whose kernels this process has."""
    held = _known.keys()
    return tuple(query for query, _ in held)


def fill(pointer: int, byte: int, size: int, stream: int) -> None:
    """Set ``size`` bytes of device memory."""
    _driver(_bound().cuMemsetD8Async(pointer, byte, size, stream))


def copy(target: int, source: int, size: int, stream: int) -> None:
    """Copy device memory to device memory, on a stream."""
    _driver(_bound().cuMemcpyDtoDAsync(target, source, size, stream))


def read_back(
    pointer: int, into: ctypes.Structure | ctypes.c_uint32 | ctypes.c_uint64, stream: int
) -> None:
    """Copy a device struct or number to the host and wait for the stream.

    Parameters
    ----------
    pointer : int
        Device address.
    into : ctypes.Structure, ctypes.c_uint32 or ctypes.c_uint64
    stream : int
    """
    driver = _bound()
    _driver(driver.cuMemcpyDtoHAsync(ctypes.addressof(into), pointer, ctypes.sizeof(into), stream))
    _driver(driver.cuStreamSynchronize(stream))


@cache
def _bound() -> Any:
    """The driver's bindings, imported once: even an import that is found again takes its time."""
    from cuda.bindings import driver

    return driver


@cache
def _success() -> Any:
    return _bound().CUresult.CUDA_SUCCESS


def _driver(returned: tuple[Any, ...]) -> Any:
    if returned[0] != _success():
        raise DriverError(f"CUDA driver: {returned[0].name}", returned[0].name)
    return returned[1] if len(returned) > 1 else None


def _runtime(returned: tuple[Any, ...]) -> Any:
    from cuda.bindings import runtime

    status, *values = returned
    if status != runtime.cudaError_t.cudaSuccess:
        raise DriverError(f"CUDA runtime: {status.name}")
    return values[0] if values else None
