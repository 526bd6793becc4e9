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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from dask.system import cpu_count

from dask_gpuagg.plan import Partial, Plan
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


# ---- merging: at once, or in parts by key hash ---------------------------------------------------

# ``engine`` has ``combine_tables`` and ``finalize_tables``, which merge at once, ``alike``,
# ``stack``, ``split``, ``concatenated_outputs`` and ``bytes_of_partials``.

# Parts by key hash, each of which needs so small a share of the memory.
PARTS = 16


def combine(engine: Any, partials: Sequence[Partial], plan: Plan, owned: bool) -> Partial:
    """Merge partials into one; those that are ``owned`` may be emptied."""
    tables, least = _stacked(engine, partials, plan, owned)
    at_once = partial(engine.combine_tables, tables, plan, least)
    in_parts = partial(combined_in_parts, engine, tables, plan, PARTS, least)
    return _merged(engine, tables, plan, at_once, in_parts)


def finalize(engine: Any, partials: Sequence[Partial], plan: Plan, meta: Any, owned: bool) -> Any:
    """Merge partials and compute the outputs; those that are ``owned`` may leave the device."""
    tables, least = _stacked(engine, partials, plan, owned)
    at_once = partial(engine.finalize_tables, tables, plan, meta, least)
    in_parts = partial(finalized_in_parts, engine, tables, plan, meta, PARTS, owned, least)
    return _merged(engine, tables, plan, at_once, in_parts)


def _stacked(
    engine: Any, partials: Sequence[Partial], plan: Plan, owned: bool
) -> tuple[list[Partial], int | None]:
    """Owned partials as one table, in which a group may have several rows, and the others empty.

    Merging needs room for what it moves, which that of the partials may be. Where there is no room
    for a copy of them, they stay. The second result is a lower bound of the number of groups,
    which a stacked table does not show.
    """
    tables = list(partials)
    if not (owned and plan.is_one_table and len(tables) > 1):
        return tables, None
    least = max(len(table["groups"]) for table in tables)

    def copied() -> Any:
        return engine.stack(engine.alike([table["groups"] for table in tables], plan))

    stacked = first_that_fits([copied, lambda: None], MemoryError)
    if stacked is None:
        return tables, None
    for emptied in tables:
        emptied.clear()
    return [{"groups": stacked}], least


def _merged(engine: Any, tables: list[Partial], plan: Plan, *ways: Callable[[], T]) -> T:
    """Merge tables at once, or in parts where memory does not suffice."""
    at_once, in_parts = ways
    rows = sum(len(next(iter(table.values()))) for table in tables)
    return within_memory(
        f"merging {len(tables):,} partials of {rows:,} rows",
        at_once,
        in_parts if plan.observed and plan.shape == "groups" else None,
        held_bytes=lambda: engine.bytes_of_partials(tables),
    )


def combined_in_parts(
    engine: Any, tables: list[Partial], plan: Plan, parts: int, least: int | None = None
) -> Partial:
    """Combine one part of the key hashes after the other, the others on the host."""
    # of a part nothing is known, if a group may have several rows
    least = None if least is None else 0
    spilled = [
        Spilled.of(engine.combine_tables(pieces(), plan, least))
        for pieces in parts_on_host(engine, tables, plan, parts)
    ]
    restored = [part.restored() for part in spilled]
    names = [table.name for table in plan.tables]
    stacked = {name: engine.alike([part[name] for part in restored], plan) for name in names}
    return {name: engine.stack(tables) for name, tables in stacked.items()}


def finalized_in_parts(
    engine: Any,
    tables: list[Partial],
    plan: Plan,
    meta: Any,
    parts: int,
    owned: bool = False,
    least: int | None = None,
) -> Any:
    """Compute the outputs of one part of the key hashes after the other."""
    least = None if least is None else 0
    spilled = [
        Spilled.of(engine.finalize_tables(pieces(), plan, meta, least))
        for pieces in parts_on_host(engine, tables, plan, parts, owned)
    ]
    return engine.concatenated_outputs([part.restored() for part in spilled], plan, meta)


def parts_on_host(
    engine: Any, tables: Sequence[Partial], plan: Plan, parts: int, owned: bool = False
) -> list[Callable[[], list[Partial]]]:
    """For each part a call that brings its pieces back, in the order of the partials.

    Partials that are ``owned`` are emptied: several all leave before the first is divided. Few are
    divided by slices of their rows: to divide a table takes several times its memory.
    """
    spilled: list[list[Spilled[Partial]]] = [[] for _ in range(parts)]
    bring_back: list[Callable[[], Partial]] = [partial(dict, table) for table in tables]
    if owned:
        bring_back = []
        for table in tables:
            own = [dict(table)]
            table.clear()
            # the only one would come back at once
            bring_back.append(own.pop if len(tables) == 1 else Spilled.of(own.pop()).restored)
    for bring_table in bring_back:
        for rows in _slices(bring_table(), -(-parts // len(bring_back))):
            for of_part, piece in zip(spilled, engine.split(rows, plan, parts, True), strict=True):
                of_part.append(Spilled.of(piece))
    return [partial(_restored, pieces) for pieces in spilled]


def _restored(pieces: list[Spilled[Partial]]) -> list[Partial]:
    return [piece.restored() for piece in pieces]


def _slices(tables: Partial, number: int) -> Iterator[Partial]:
    """The rows of each table in so many slices, in their order."""
    for i in range(number):
        yield {
            name: table.iloc[len(table) * i // number : len(table) * (i + 1) // number]
            for name, table in tables.items()
        }
