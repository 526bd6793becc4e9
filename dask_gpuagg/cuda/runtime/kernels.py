"""The kernels of a query: compiled, loaded and launched."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, Protocol

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.query.instantiations import CORE, UNITS, TranslationUnit, unit_of
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.runtime import background
from dask_gpuagg.cuda.runtime.background import KernelsCompiling
from dask_gpuagg.cuda.runtime.compiler import (
    Compiled,
    CompileError,
    KernelsUnavailable,
    cubin,
    cubins,
    kept,
)
from dask_gpuagg.cuda.runtime.driver import Device, DriverError, bindings, checked


class Source(Protocol):
    """Where kernels come from: a query, or a unit that serves all queries."""

    @property
    def units(self) -> tuple[str, ...]:
        """Parts that are compiled on their own."""
        ...

    def source(self, *units: str) -> TranslationUnit:
        """The translation unit of some of them."""
        ...


class OneUnit:
    """A source of one translation unit, which serves all queries."""

    units = (CORE,)

    def __init__(self, unit: TranslationUnit) -> None:
        self._unit = unit

    def source(self, *units: str) -> TranslationUnit:
        """All of it."""
        return self._unit


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
        # units that are being compiled in the background
        self._begun: dict[str, Future[None]] = {}
        self._lock = Lock()
        # what is loaded is unloaded when nobody can launch it any more
        self._loads: list[Any] = []
        weakref.finalize(self, _retire, device, self._loads).atexit = False

    def prepare(self, *units: str) -> None:
        """Compile or load some units, or all, before one of their kernels is launched.

        Raises
        ------
        KernelsUnavailable
        """
        prepare([(self, units)])

    def begin(self, *units: str) -> bool:
        """Let units be compiled in the background; whether all can be loaded at once.

        Parameters
        ----------
        *units : str
            Of those that the query has; all if none is named.
        """
        ready = True
        for unit in units or self._query.units:
            with self._lock:
                ready = self._is_ready(unit) and ready
        return ready

    def _is_ready(self, unit: str) -> bool:
        """Whether a unit can be loaded, or has failed; it is begun if not."""
        if self._has(unit):
            return True
        begun = self._begun.get(unit)
        if begun is not None and not begun.done():
            return False
        if begun is not None:  # it ended by another error than the compiler's: the call meets it
            return True
        try:
            compiled = kept(self._query.source(unit), self._device.architecture)
        except KernelsUnavailable as error:
            self._failures[unit] = str(error)
            return True
        if compiled is not None:
            self._compiled[unit] = compiled
            return True
        self._begun[unit] = background.submit(partial(self._compile, unit))
        return False

    def _compile(self, unit: str) -> None:
        try:
            self._compiled[unit] = cubin(self._query.source(unit), self._device.architecture)
        except KernelsUnavailable as error:
            self._failures[unit] = str(error)

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
            checked(
                bindings().cuLaunchKernel(
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
        return int(checked(driver.cuLibraryGetGlobal(library.handle, name.encode())[:2]))

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

        kernel = checked(driver.cuLibraryGetKernel(library.handle, library.names[name].encode()))
        attribute = driver.CUfunction_attribute
        static = checked(
            driver.cuKernelGetAttribute(
                attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, self._device.ordinal
            )
        )
        checked(
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
        if not background.waits() and not self.begin(unit):
            raise KernelsCompiling(f"the kernels of the unit {unit} are being compiled")
        return self._libraries.of(unit, lambda: self._loaded(unit))

    def _loaded(self, unit: str) -> _Library:
        with self._lock:
            begun = self._begun.pop(unit, None)
        if begun is not None:
            # an error of its own is met again, where it lasts
            wait([begun])
        if unit in self._failures:  # each partition would wait for the same refusal
            raise KernelsUnavailable(self._failures[unit])
        from cuda.bindings import driver

        _unload_retired(self._device)
        try:
            compiled = self._compiled.pop(unit, None) or cubin(
                self._query.source(unit), self._device.architecture
            )
            handle = checked(driver.cuLibraryLoadData(compiled.code, [], [], 0, [], [], 0))
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
        self._loads.append(handle)
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


# Loaded code of queries that were dropped, by device.
_retired: dict[Device, deque[Any]] = {}


def _retire(device: Device, loads: list[Any]) -> None:
    """Note what is to be unloaded; the garbage collector calls this in the middle of anything."""
    _retired.setdefault(device, deque()).extend(loads)


def _unload_retired(device: Device) -> None:
    """Unload the code of queries that were dropped, once the device has passed all kernels.

    Loading calls this: it takes as long, and the thread has the device.
    """
    waiting = _retired.get(device)
    if not waiting:
        return
    from cuda.bindings import driver

    handles = []
    # not what is retired from now on, of which kernels may have been launched later
    for _ in range(len(waiting)):
        with suppress(IndexError):  # another thread unloads it
            handles.append(waiting.popleft())
    checked(driver.cuCtxSynchronize())
    for handle in handles:
        checked(driver.cuLibraryUnload(handle))


_known: Cache[tuple[Query, Device], Kernels] = Cache(1024)


def kernels_of(query: Query, device: Device) -> Kernels:
    """The kernels of a query, of which each process has one set."""
    return _known.of((query, device), lambda: Kernels(query, device))


def known() -> tuple[Query, ...]:
    """The queries whose kernels this process has."""
    held = _known.keys()
    return tuple(query for query, _ in held)
