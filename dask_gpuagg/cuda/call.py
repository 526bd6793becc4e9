"""One call of the kernels: its columns, arguments and memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import Args, ColumnStruct, Counters, Table
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS, SMALL_BLOCK
from dask_gpuagg.cuda.query.types import PRESENT
from dask_gpuagg.cuda.runtime.driver import Device, Stopwatch, fill, free_bytes, read_back
from dask_gpuagg.cuda.runtime.kernels import Kernels, kernels_of

Summary = ctypes.Structure | ctypes.Array[Any] | ctypes.c_uint32 | ctypes.c_uint64

_MASK_PADDING = 64


class NeedsWholeColumns(Exception):
    """A kernel reads rows by number, which columns in pieces do not admit."""


class Piece(NamedTuple):
    """Rows whose columns lie together.

    Attributes
    ----------
    columns : array of ColumnStruct
        Of which rows have the numbers that they have in the whole input.
    first, end : int
        Numbers of the first row, and of the one behind the last.
    """

    columns: Any
    first: int
    end: int


class Made(NamedTuple):
    """A column that the kernels wrote: RMM buffers, and how many of its rows are null.

    Of strings ``data`` are the offsets, of 64 bits if they are ``large``.
    """

    data: Any
    mask: Any | None
    nulls: int | None
    characters: Any | None = None
    large: bool = False


class Run(NamedTuple):
    """What one call did.

    Attributes
    ----------
    decision : Decision
    rows, groups : int
    spilled : int
        Rows that found no place at first.
    restarted : bool
        Whether the estimate was so low that the work was done again with a larger table.
    bytes_read : int
        Of keys and values, once.
    seconds : float
        Wall time until the number of groups was known on the host.
    plan : Plan, optional
        Of the query that the call was made for.
    step : str
        The task: ``partial``, ``combine``, ``finalize``, ``direct`` or ``merge``.
    """

    decision: Decision
    rows: int
    groups: int
    spilled: int = 0
    restarted: bool = False
    bytes_read: int = 0
    seconds: float = 0.0
    plan: Any = None
    step: str = ""

    def __str__(self) -> str:
        estimate = self.decision.estimate
        expected = "not estimated" if estimate is None else f"{estimate.groups:,} expected"
        text = f"{self.step}, " if self.step else ""
        text += (
            f"{self.decision.kernel}: {self.rows:,} rows to {self.groups:,} groups ({expected}), "
            f"{self.bytes_read / 2**20:,.1f} MiB read, {self.seconds * 1e3:.2f} ms"
        )
        text += f", {self.spilled:,} rows spilled" if self.spilled else ""
        return text + (", done again with a larger table" if self.restarted else "")


@dataclass(kw_only=True)
class Launcher:
    """Kernels, and where and when they run."""

    kernels: Kernels
    device: Device
    stream: Any
    handle: int
    stopwatch: Stopwatch | None = None
    # buffers that must live until the stream has passed the kernels that use them
    held: list[Any] = field(default_factory=list)

    def allocate(self, size: int) -> Any:
        """Device memory that lives as long as the call."""
        import rmm

        buffer = rmm.DeviceBuffer(size=max(size, 1), stream=self.stream)
        self.held.append(buffer)
        return buffer

    def has_room(self, sizes: Sequence[int]) -> bool:
        """Whether the allocator gives buffers of so many bytes at once; they are given back.

        No resource of RMM's says what it has free, and a pool may have it in pieces. Without one
        the driver says it, which is faster than giving it.
        """
        import rmm

        if type(rmm.mr.get_current_device_resource()) is rmm.mr.CudaMemoryResource:
            return sum(sizes) <= free_bytes()
        buffers: list[Any] = []
        try:
            for size in sizes:
                buffers.append(rmm.DeviceBuffer(size=size, stream=self.stream))
        except MemoryError:
            return False
        return True

    def launch(self, name: str, blocks: int, threads: int, *args: Any, shared: int = 0) -> None:
        """Launch the kernel of this name, and time it if there is a stopwatch."""
        started = self.stopwatch.start(self.handle) if self.stopwatch else None
        self.kernels.launch(name, blocks, threads, self.handle, *args, shared_bytes=shared)
        if self.stopwatch:
            self.stopwatch.stop(name, started, self.handle)

    def spread(self, items: int, threads: int, waves: int = 8) -> int:
        """Blocks for a kernel that strides over items."""
        return max(1, min(self.device.multiprocessors * waves, math.ceil(items / threads)))


@dataclass(kw_only=True)
class Call(Launcher):
    """One call of ``aggregate``: what is computed, where, and the arguments of its kernels.

    ``query`` has its keys in one representation. ``values`` is the mean number of values of a row
    that are not null, ``about`` the names of what is grouped by, and
    ``least`` how many groups there are at least.

    Kernels that read rows one after another are launched for each piece. They add to the same
    table, so that all else is done once.
    """

    query: Query
    pieces: tuple[Piece, ...]
    rows: int
    values: float | None = None
    args: Args = field(default_factory=Args)
    # of keys that are coded: their numbers
    codes: Any = None
    # of keys that are numbers of strings: where these are
    dictionary: Any = None
    about: tuple[str, ...] = ()
    least: int = 0
    # columns that were written before the host knew the number of groups
    early: list[tuple[Any, Any]] | None = None
    # launches the comparison of samples, which may make the kernels behind it do nothing
    check: Callable[[], None] | None = None
    # what the host has to do before it needs the groups
    meanwhile: Callable[[], None] | None = None

    @property
    def columns(self) -> Any:
        """All columns of the only piece, or what kernels that read no rows get in their place."""
        return self.pieces[0].columns

    def over(self, args: Args) -> Iterator[tuple[Args, Any, int]]:
        """Arguments, columns and number of rows of each piece; a list is the same for each."""
        if len(self.pieces) == 1:
            yield args, self.columns, self.rows
            return
        for piece in self.pieces:
            own = Args.from_buffer_copy(args)
            own.first, own.end = piece.first, piece.end
            if not args.list:
                own.rows = piece.end
            yield own, piece.columns, piece.end - piece.first

    def summarised(self, kernel: str, blocks: int, threads: int, into: Summary, byte: int) -> None:
        """Read what a kernel makes of the columns, from memory that is ``byte`` throughout."""

        def launch(memory: ctypes.c_void_p) -> None:
            self.launch(kernel, blocks, threads, self.columns, ctypes.c_uint32(self.rows), memory)

        self.read_summary(launch, into, byte)

    def read_summary(
        self, launch: Callable[[ctypes.c_void_p], None], into: Summary, byte: int
    ) -> None:
        """Read what kernels make in memory that is ``byte`` throughout."""
        import rmm

        size = ctypes.sizeof(into)
        memory = rmm.DeviceBuffer(size=size, stream=self.stream)
        fill(memory.ptr, byte, size, self.handle)
        launch(ctypes.c_void_p(memory.ptr))
        read_back(memory.ptr, into, self.handle)

    def mask(self, groups: int) -> Any:
        """Memory for the validity bits of a column of groups."""
        import rmm

        return rmm.DeviceBuffer(size=self.mask_bytes(groups), stream=self.stream)

    @staticmethod
    def mask_bytes(groups: int) -> int:
        """Bytes of the validity bits of a column of groups."""
        return math.ceil(groups / (8 * _MASK_PADDING)) * _MASK_PADDING

    def counters(self) -> Counters:
        """The counters on the host, once all that was launched is done."""
        work, self.meanwhile = self.meanwhile, None
        if work is not None:
            work()
        counters = Counters()
        read_back(self.args.counters, counters, self.handle)
        return counters


def table_of(call: Call, slots: int) -> Table:
    """A table in device memory, not cleared."""
    fixed, replica = call.query.slot_bytes
    all_slots = slots + EXTRA_SLOTS
    memory = call.allocate(all_slots * (fixed + replica)).ptr
    # a full table would be probed to its end
    limit = slots - slots // 16 - 1
    return Table(memory, memory + 8 * all_slots, slots, limit)


def number_groups(call: Call) -> None:
    """Number the groups of the table, not waiting for it."""
    slots = call.args.table.slots + EXTRA_SLOTS
    call.args.order = call.allocate(4 * slots).ptr
    call.early = None
    call.launch("collect", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, call.args)


def collect(call: Call) -> Counters:
    """Number the groups of the table, and say how many they are."""
    number_groups(call)
    return call.counters()


def reset(call: Call, first: str) -> None:
    """Zero a counter, or from ``groups`` on all that ``collect`` makes."""
    offset = getattr(Counters, first).offset
    words = 1 if first != "groups" else (Counters.ambiguous.offset - offset) // 4
    zero(call, call.args.counters + offset, words)


def zero(call: Call, address: int, words: int) -> None:
    """Zero some 32-bit words."""
    fill(address, 0, 4 * words, call.handle)


def run_of(call: Call, decision: Decision, counters: Counters, **more: Any) -> Run:
    """The report of a call."""
    read = call.query.row_bytes * call.rows
    return Run(decision, call.rows, counters.total, bytes_read=read, **more)


# ---- calls of columns ----------------------------------------------------------------------------


class DeviceColumn(NamedTuple):
    """A column in device memory.

    Attributes
    ----------
    data : int
        Address of the values (of the offsets, for strings).
    mask : int
        Address of the validity bits, 0 without.
    offset : int
        Rows to skip in both.
    characters, size : int
        Address of a string column's bytes, and how many they are.
    nulls : int
        Rows without a value.
    """

    data: int
    mask: int = 0
    offset: int = 0
    characters: int = 0
    size: int = 0
    nulls: int = 0


class Part(NamedTuple):
    """Keys and inputs of some rows, columns as the query describes them."""

    keys: Sequence[DeviceColumn]
    inputs: Sequence[DeviceColumn]
    rows: int


@dataclass(frozen=True)
class Columns:
    """What the calls of one group-by have in common, whatever represents the keys.

    Attributes
    ----------
    parts : sequence of Part
        One behind the other, the rows.
    least : int
        How many groups there are at least.
    meanwhile : callable, optional
        Called once by each call while its kernels run.
    """

    parts: Sequence[Part]
    device: Device
    stream: Any
    stopwatch: Stopwatch | None
    about: tuple[str, ...] = ()
    least: int = 0
    meanwhile: Callable[[], None] | None = None

    @cached_property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts)

    def call(self, query: Query, extra: Sequence[ColumnStruct] = (), codes: Any = None) -> Call:
        """A call of the kernels of a query, with the columns that represent its keys.

        Raises
        ------
        NeedsWholeColumns
            For several parts of a query whose kernels look at rows again.
        """
        parts = [part for part in self.parts if part.rows] or self.parts[:1]
        if len(parts) > 1 and not query.form.is_read_once:
            raise NeedsWholeColumns(f"keys that are {query.form.name}")
        query, kernels = prepared(query, self.device)
        pieces, first = [], 0
        for part in parts:
            columns = _structs(query, part, extra, first)
            pieces.append(Piece(columns, first, first + part.rows))
            first += part.rows
        handle = self.stream.__cuda_stream__()[1]
        nulls = sum(
            column.nulls
            for part in parts
            for column, value in zip(part.inputs, query.inputs, strict=True)
            if value.ctype != PRESENT
        )
        return Call(
            query=query,
            kernels=kernels,
            device=self.device,
            pieces=tuple(pieces),
            rows=self.rows,
            values=query.values - nulls / max(self.rows, 1),
            stream=self.stream,
            handle=handle,
            stopwatch=self.stopwatch,
            codes=codes,
            about=self.about,
            least=self.least,
            meanwhile=self.meanwhile,
        )


def _structs(
    query: Query, part: Part, extra: Sequence[ColumnStruct], first: int
) -> ctypes.Array[ColumnStruct]:
    """The columns of a part whose rows are numbered from ``first`` on."""
    flat = []
    for key, kind in zip(part.keys, query.keys, strict=True):
        flat.append(ColumnStruct(key.data, key.mask, key.offset - first))
        if kind.string:
            flat.append(ColumnStruct(key.characters, 0, key.size))
    flat += [ColumnStruct(c.data, c.mask, c.offset - first) for c in part.inputs]
    words = query.form.made_words
    flat += [ColumnStruct() for _ in range(words)]
    flat += extra or [ColumnStruct() for _ in range(query.extra_columns - words)]
    return (ColumnStruct * max(len(flat), 1))(*flat)


_prepared: Cache[tuple[Query, Device], tuple[Query, Kernels]] = Cache(1024)


def prepared(query: Query, device: Device) -> tuple[Query, Kernels]:
    """The kernels of a query, and the query as first seen, with the properties it has cached."""
    return _prepared.of((query, device), lambda: (query, kernels_of(query, device)))


def forget_prepared() -> None:
    """Ask for the kernels of all queries again."""
    _prepared.clear()
