"""The kernels of a query: compiled, loaded and launched."""

import ctypes
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.query.instantiations import CORE, UNITS, TranslationUnit, unit_of
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.runtime import compiler
from dask_gpuagg.cuda.runtime.compiler import (
    Compiled,
    KernelsCompiling,
    KernelsUnavailable,
    cached,
    cubin,
)
from dask_gpuagg.cuda.runtime.driver import Device, DriverError, bindings, checked


class OneUnit(NamedTuple):
    """A source of one translation unit, which serves all queries."""

    unit: TranslationUnit
    units: tuple[str, ...] = (CORE,)

    def source(self, *units: str) -> TranslationUnit:
        """The unit, as ``Query.source`` gives some of its own."""
        return self.unit


# Machine code that is loaded, and the names of its kernels in it.
_Library = tuple[Any, dict[str, str]]


class Kernels:
    """The kernels of one query on one device, compiled and loaded as they are needed."""

    def __init__(self, query: Query | OneUnit, device: Device) -> None:
        self._query = query
        self._device = device
        # one thread makes a unit's library, and others wait for that unit alone
        self._libraries: Cache[str, _Library] = Cache(len(UNITS))
        # of units that are not loaded: their code, or why there is none
        self._code: dict[str, Future[Compiled]] = {}
        self._functions: dict[str, Any] = {}
        self._lock = Lock()

    @property
    def query(self) -> Query:
        """The query, with the properties that earlier calls have cached."""
        assert isinstance(self._query, Query)
        return self._query

    def prepare(self, *units: str) -> None:
        """Compile or load some units, or all, before one of their kernels is launched."""
        prepare([(self, units)])

    def begin(self, *units: str) -> bool:
        """Let some units, or all, be compiled in the background; whether they can be loaded now."""
        ready = True
        for unit in units or self._query.units:
            with self._lock:
                if unit not in self._libraries:
                    ready = self._begun(unit).done() and ready
        return ready

    def _begun(self, unit: str) -> Future[Compiled]:
        """The code of a unit, from the disk cache or compiled in the background."""
        if unit not in self._code:
            source, architecture = self._query.source(unit), self._device.architecture
            work = partial(cubin, source, architecture)
            try:
                compiled = cached(source, architecture)
                self._code[unit] = _finished(compiled) if compiled else compiler.submit(work)
            except KernelsUnavailable as error:
                self._code[unit] = _finished(error)
        return self._code[unit]

    def launch(
        self,
        name: str,
        blocks: int,
        threads: int,
        stream: int,
        *arguments: Any,
        shared_bytes: int = 0,
    ) -> None:
        """Launch a kernel, whose parameters by value are instances of ``ctypes``."""
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        try:
            function = self._functions.get(name)  # without a lock: it waits for no other unit
            if function is None:
                function = self._functions[name] = self._function(name)
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
        except DriverError as error:  # the driver may load code only now
            if error.is_transient:
                raise _without_memory(error) from error
            raise

    def _function(self, name: str) -> Any:
        """A kernel that may use all shared memory of a block."""
        driver, (library, names) = bindings(), self._library(unit_of(name))
        kernel = checked(driver.cuLibraryGetKernel(library, names[name].encode()))
        attribute, ordinal = driver.CUfunction_attribute, self._device.ordinal
        static = checked(
            driver.cuKernelGetAttribute(
                attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, ordinal
            )
        )
        checked(
            driver.cuKernelSetAttribute(
                attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                self._device.shared_bytes - static,
                kernel,
                ordinal,
            )
        )
        return driver.CUfunction(int(kernel))

    def _library(self, unit: str) -> _Library:
        if not compiler.waits() and not self.begin(unit):
            raise KernelsCompiling(f"the kernels of the unit {unit} are being compiled")
        return self._libraries.of(unit, lambda: self._loaded(unit))

    def _loaded(self, unit: str) -> _Library:
        compiled = self._compiled(unit)
        try:
            handle = checked(bindings().cuLibraryLoadData(compiled.code, [], [], 0, [], [], 0))
        except DriverError as error:
            if error.is_transient:  # the next call tries again, without compiling
                raise _without_memory(error) from error
            failure = f"the driver does not take the compiled kernels: {error}"
            self._code[unit] = _finished(KernelsUnavailable(failure))
            raise KernelsUnavailable(failure) from error
        self._code.pop(unit, None)
        return handle, compiled.names

    def _compiled(self, unit: str) -> Compiled:
        """The code of a unit; units that failed do so again without being compiled."""
        future = self._code.get(unit)
        # an error that is not the compiler's may not come again
        if future is None or not isinstance(future.exception(), KernelsUnavailable | None):
            try:
                future = _finished(cubin(self._query.source(unit), self._device.architecture))
            except KernelsUnavailable as error:
                future = _finished(error)
            self._code[unit] = future
        failure = future.exception()
        if failure is not None:
            raise KernelsUnavailable(str(failure))
        return future.result()


def _finished(outcome: Compiled | KernelsUnavailable) -> Future[Compiled]:
    future: Future[Compiled] = Future()
    if isinstance(outcome, Compiled):
        future.set_result(outcome)
    else:
        # without the traceback, which keeps frames
        future.set_exception(KernelsUnavailable(str(outcome)))
    return future


def prepare(queries: Sequence[tuple[Kernels, Sequence[str]]]) -> None:
    """Compile side by side, then load, the named units that queries have; all if none is named."""
    pairs = [
        (kernels, unit)
        for kernels, units in queries
        for unit in kernels._query.units
        if not units or unit in units
    ]
    for kernels, unit in pairs:
        kernels.begin(unit)
    for kernels, unit in pairs:
        kernels._library(unit)


def _without_memory(error: DriverError) -> KernelsUnavailable:
    return KernelsUnavailable(f"device memory does not suffice to load the kernels: {error}")


# Kernels stay loaded as long as the process lives: a launch may still be under way.
_known: Cache[tuple[Query, Device], Kernels] = Cache(1 << 16)


def kernels_of(query: Query, device: Device) -> Kernels:
    """The kernels of a query, of which each process has one set."""
    return _known.of((query, device), lambda: Kernels(query, device))


def known_queries() -> tuple[Query, ...]:
    """The queries whose kernels this process has."""
    held = _known.keys()
    return tuple(query for query, _ in held)
