"""Device memory that does not suffice: what is done about it, step by step.

A task that runs out of device memory takes these steps, each only where those before have failed:

1. the kernel that needs the least memory for its rows (``cuda/aggregate.py``, below this module);
2. the same again, once cached memory is given back;
3. the same without the task's finished tables, which leave for the host;
4. its rows in halves, down to few; of a merge one part of the key hashes after the other;
5. ``OutOfDeviceMemory``, with sizes.

Rows that come from the host can go back there: ``streaming/stream.py`` has the host engine as its
last step.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from dask.system import cpu_count

from dask_gpuagg.reporting.text import size_text

T = TypeVar("T")

# libcudf reads it with its first file: how many threads copy files to the device
_FILE_THREADS = "KVIKIO_NTHREADS"
_LIBCUDFS_OWN, _MOST_FILE_THREADS = 4, 16

_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


class OutOfDeviceMemory(MemoryError):
    """Device memory did not suffice for the smallest step of a task.

    The message has the bytes of the allocation that failed, where the allocator says it, those of
    the device that are free and all of them, and those of the finished tables of the task.
    """


def out_of_memory(what: str, refused: str, held: int = 0) -> OutOfDeviceMemory:
    """The error where no step is left to make ``what``.

    ``refused`` is the allocator's message, ``held`` the bytes of the task's finished tables.
    """
    sizes = []
    if (requested := requested_bytes(refused)) is not None:
        sizes.append(f"{size_text(requested)} requested")
    if (cupy := _imported("cupy")) is not None:
        free, total = cupy.cuda.Device().mem_info
        sizes.append(f"{size_text(free)} of {size_text(total)} free")
    if (limit := limit_of_resource()) is not None:
        sizes.append(f"RMM's resource is limited to {size_text(limit)}")
    sizes.append(f"{size_text(held)} held by finished tables of this task")
    message = f"device memory does not suffice for {what}: {', '.join(sizes)} ({refused})"
    return OutOfDeviceMemory(message)


def requested_bytes(message: str) -> int | None:
    """Bytes of the allocation that failed, by an allocator's message; None if it has none."""
    match = re.search(r"[Rr]equested (?:bytes |size[: ]+)?(\d+(?:\.\d+)?)\s*([KMGT]iB|B)?", message)
    match = match or re.search(r"allocat\w* (\d+(?:\.\d+)?)\s*([KMGT]iB|B|bytes)", message)
    if match is None:
        return None
    return int(float(match[1]) * _UNITS.get(match[2] or "B", 1))


def _imported(name: str) -> Any | None:
    """A module that this process uses already; the host engine never imports those of a GPU."""
    return importlib.import_module(name) if name in sys.modules else None


def resources() -> Iterator[Any]:
    """RMM's current memory resource and those that it takes its memory from, outermost first."""
    rmm = _imported("rmm")
    resource = None if rmm is None else rmm.mr.get_current_device_resource()
    while resource is not None:
        yield resource
        upstream = getattr(resource, "get_upstream", None)
        resource = None if upstream is None else upstream()


def limit_of_resource(pools: bool = True) -> int | None:
    """Bytes that RMM's current resource gives at most; None where that is not known.

    ``pools`` says whether the size of a pool is a limit too, though it may grow.
    """
    names = ("get_allocation_limit", "pool_size") if pools else ("get_allocation_limit",)
    for resource in resources():
        for name in names:
            if hasattr(resource, name):
                return int(getattr(resource, name)())
    return None


def spill_manager() -> Any | None:
    """CuDF's manager of spilled buffers; None where its option ``spill`` is off."""
    module = sys.modules.get("cudf.core.buffer.spill_manager")
    return None if module is None else module.get_global_manager()


def on_device(column: Any) -> Any:
    """A column of cuDF's as libcudf has it, its buffers in device memory.

    cuDF's own ``to_pylibcudf`` leaves out those that are spilled. What is brought back stays as
    long as the result refers to it, also where cuDF spills it again.
    """
    if spill_manager() is not None:
        with column.access(mode="read", scope="internal"):
            _bring_back(column.plc_column)
            return column.to_pylibcudf()
    return column.to_pylibcudf()


def _bring_back(column: Any) -> None:
    for buffer in (column.data(), column.null_mask()):
        if buffer is not None:
            # within ``access`` asking for the address brings a buffer back, for that long
            _ = buffer.ptr
    for child in column.children():
        _bring_back(child)


def free_cached() -> None:
    """Give back device memory that is kept for later: by cycles, by CuPy, by cuDF."""
    # cycles keep what their objects have allocated
    gc.collect()
    cupy = _imported("cupy")
    if cupy is not None:
        cupy.get_default_memory_pool().free_all_blocks()
    manager = spill_manager()
    if manager is not None:
        manager.spill_device_memory(nbytes=sys.maxsize)


@dataclass(frozen=True)
class Spilled(Generic[T]):
    """Tables of the device in host memory: their description, and their columns as buffers."""

    data: bytes
    buffers: tuple[Any, ...]

    @classmethod
    def of(cls, tables: T) -> Spilled[T]:
        """Copy tables to host memory; those of the device are not released by it."""
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(tables, protocol=5, buffer_callback=buffers.append)
        return cls(data, tuple(buffers))

    def restored(self) -> T:
        """The tables in device memory again."""
        tables: T = pickle.loads(self.data, buffers=self.buffers)
        return tables


def after_free(step: Callable[[], T]) -> Callable[[], T]:
    """A step that first gives cached memory back."""

    def again() -> T:
        free_cached()
        return step()

    return again


def within_memory(
    what: str,
    step: Callable[[], T],
    smaller: Callable[[], T] | None = None,
    held: list[Any] | None = None,
    held_bytes: Callable[[], int] = int,
) -> T:
    """The result of the first way for which memory suffices; see ``Engine.within_memory``.

    ``held_bytes`` gives the size of the task's finished tables, for the error.
    """

    def without_others(partials: list[Any]) -> T:
        partials[:] = [p if isinstance(p, Spilled) else Spilled.of(p) for p in partials]
        return step()

    steps = [step, after_free(step)]
    if held and not all(isinstance(p, Spilled) for p in held):
        steps.append(partial(without_others, held))
    steps += [] if smaller is None else [smaller]
    return first_that_fits(steps, lambda refused: out_of_memory(what, refused, held_bytes()))


def restored(partials: list[Any]) -> list[Any]:
    """Partials, those that are spilled in device memory again."""
    if not any(isinstance(p, Spilled) for p in partials):
        return partials
    return within_memory(
        f"{len(partials):,} partials",
        lambda: [p.restored() if isinstance(p, Spilled) else p for p in partials],
    )


def first_that_fits(steps: Iterable[Callable[[], T]], fails: Callable[[str], MemoryError]) -> T:
    """The result of the first step for which device memory suffices.

    Where none is left, the error is one of a step that knows its sizes, or what ``fails`` makes of
    the allocator's first message.
    """
    refused, failure = "", None
    for step in steps:
        try:
            return step()
        except OutOfDeviceMemory as error:
            # without its traceback, which keeps the step's buffers
            failure = error.with_traceback(None)
            failure.__context__ = None
        except MemoryError as error:
            refused = refused or str(error)
    raise failure if failure is not None else fails(refused)


def copy_files_by_all_cores() -> None:
    """Let libcudf read files by as many threads as this process has cores, but not too many."""
    threads = min(cpu_count(), _MOST_FILE_THREADS)
    if threads > _LIBCUDFS_OWN:
        os.environ.setdefault(_FILE_THREADS, str(threads))
