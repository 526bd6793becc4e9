"""One call of the kernels: its columns, arguments and memory, and the columns of its groups."""

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.cuda.choice.summary import SEGMENTS
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import Args, ColumnStruct, Counters, Table, Target
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS, SEGMENT, SMALL_BLOCK
from dask_gpuagg.cuda.query.types import PRESENT, TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import Device, Stopwatch, fill, read_back
from dask_gpuagg.cuda.runtime.kernels import Kernels, kernels_of

Summary = ctypes.Structure | ctypes.Array[Any] | ctypes.c_uint32 | ctypes.c_uint64


class NeedsWholeColumns(Exception):
    """A kernel reads rows by number, which columns in pieces do not admit."""


class Piece(NamedTuple):
    """Rows whose columns lie together, with numbers of the input from ``first`` to ``end``."""

    columns: Any
    first: int
    end: int


class Made(NamedTuple):
    """A column of the result: RMM buffers, and how many of its rows are null.

    Of strings ``data`` are the offsets, of 64 bits if they are ``large``.
    """

    data: Any
    mask: Any | None
    nulls: int | None
    characters: Any | None = None
    large: bool = False


class Run(NamedTuple):
    """Record of one call of the kernels."""

    #: the kernel, its geometry, and why
    decision: Decision
    #: that were grouped
    rows: int
    #: that came out
    groups: int
    #: rows that found no place at first
    spilled: int = 0
    #: whether the estimate was so low that the work was done again with a larger table
    restarted: bool = False
    #: of keys and values, once
    bytes_read: int = 0
    #: wall time until the number of groups was known on the host
    seconds: float = 0.0
    #: of the query that the call was made for
    plan: Any = None
    #: the task: ``partial``, ``combine``, ``finalize``, ``direct`` or ``merge``
    step: str = ""

    def __str__(self) -> str:
        estimate = self.decision.estimate
        expected = "not estimated" if estimate is None else f"{estimate.groups:,} expected"
        text = f"{self.step}, " if self.step else ""
        text += (
            f"{self.decision.kernel}: {self.rows:,} rows to {self.groups:,} groups ({expected}), "
            f"{self.bytes_read / 2**20:,.1f} MiB read, {self.seconds * 1e3:.2f} ms"
        )
        text += f", {self.spilled:,} rows overflowed" if self.spilled else ""
        return text + (", done again with a larger table" if self.restarted else "")


def mask_bytes(rows: int) -> int:
    """Bytes of the validity bits of a column, which libcudf pads to 64."""
    return math.ceil(rows / 512) * 64


@dataclass(kw_only=True)
class Launcher:
    """Kernels, and where and when they run."""

    kernels: Kernels
    device: Device
    stream: Any
    stopwatch: Stopwatch | None = None
    # buffers that must live until the stream has passed the kernels that use them
    held: list[Any] = field(default_factory=list)

    @cached_property
    def handle(self) -> int:
        """The stream for the driver."""
        return int(self.stream.__cuda_stream__()[1])

    def allocate(self, size: int) -> Any:
        """Device memory that lives as long as the call."""
        buffer = self.buffer(max(size, 1))
        self.held.append(buffer)
        return buffer

    def launch(self, name: str, blocks: int, threads: int, *args: Any, shared: int = 0) -> None:
        """Launch the kernel of this name, and time it if there is a stopwatch."""
        started = self.stopwatch.start(self.handle) if self.stopwatch else None
        self.kernels.launch(name, blocks, threads, self.handle, *args, shared_bytes=shared)
        if self.stopwatch:
            self.stopwatch.stop(name, started, self.handle)

    def launch_over(self, name: str, items: int, *args: Any) -> None:
        """Launch a kernel whose threads stride over items."""
        self.launch(name, self.spread(items, SMALL_BLOCK), SMALL_BLOCK, *args)

    def buffer(self, size: int) -> Any:
        """Device memory of the result."""
        import rmm

        return rmm.DeviceBuffer(size=size, stream=self.stream)

    def mask(self, rows: int) -> Any:
        """Device memory for the validity bits of a column of the result."""
        return self.buffer(mask_bytes(rows))

    def read_number(self, address: int) -> int:
        """Wait for an unsigned number of 32 bits."""
        number = ctypes.c_uint32()
        read_back(address, number, self.handle)
        return int(number.value)

    def spread(self, items: int, threads: int, waves: int = 8) -> int:
        """Blocks for a kernel that strides over items."""
        return max(1, min(self.device.multiprocessors * waves, math.ceil(items / threads)))


@dataclass(kw_only=True)
class Call(Launcher):
    """One call of ``aggregate`` with the keys in one form, and the arguments of its kernels.

    Kernels that read rows one after another are launched for each piece. They add to the same
    table, so that all else is done once.
    """

    query: Query
    pieces: tuple[Piece, ...]
    rows: int
    # values of a row that are not null, on average
    values: float | None = None
    args: Args = field(default_factory=Args)
    # the numbers of coded keys
    codes: Any = None
    # labels of the keys in the plan
    key_labels: tuple[str, ...] = ()
    # groups that there are at least
    least: int = 0
    # columns that were written before the host knew the number of groups
    early: list[tuple[Any, Any]] | None = None
    # launches the comparison of samples, which may make the kernels behind it do nothing
    check: Callable[[], None] | None = None

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

    def summarise(self, kernel: str, into: Summary) -> None:
        """Read the summary that a kernel makes of a sample of the columns."""

        def launch(memory: ctypes.c_void_p) -> None:
            rows = ctypes.c_uint32(self.rows)
            self.launch(kernel, SEGMENTS, SEGMENT, self.columns, rows, memory)

        self.read_summary(launch, into, 0xFF)

    def read_summary(
        self, launch: Callable[[ctypes.c_void_p], None], into: Summary, byte: int
    ) -> None:
        """Read the results of kernels in memory that is ``byte`` throughout before."""
        import rmm

        size = ctypes.sizeof(into)
        memory = rmm.DeviceBuffer(size=size, stream=self.stream)
        fill(memory.ptr, byte, size, self.handle)
        launch(ctypes.c_void_p(memory.ptr))
        read_back(memory.ptr, into, self.handle)

    def counters(self) -> Counters:
        """The counters on the host, once all that was launched is done."""
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
    call.launch_over("collect", slots, call.args)


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


# ---- from a table to columns ---------------------------------------------------------------------

# Columns of so few bytes are written before the host knows how many groups there are: it then waits
# once, for the columns, instead of for the groups and again for them.
_EARLY_BYTES = 1 << 25
# A column may keep so many times its bytes, and some more; otherwise its beginning is copied.
_LOOSEST = 1.5
_SMALL = 1 << 21
# Of ``Args.groups``: as many as the device has counted (kernels/output/output.cuh).
_COUNTED = 0xFFFFFFFF

Buffers = list[tuple[Any, Any]]


def collect_early(call: Call, most: int | None = None) -> Counters:
    """Number the groups and write a small table's columns, all before anything is waited for.

    The table must be final unless the counters say otherwise. ``most`` is the most groups that it
    may have, where its slots are more.
    """
    number_groups(call)
    room = (call.args.table.slots if most is None else most) + EXTRA_SLOTS
    if room * sum(TYPE_BYTES[ctype] for ctype, _ in call.query.columns_out) <= _EARLY_BYTES:
        call.early = columns_for(call, room)
        _write(call, call.early, _COUNTED, room)
    return call.counters()


def columns_for(call: Call, room: int, nulls: Sequence[int | None] = ()) -> Buffers:
    """Memory for the columns of so many groups, with masks of those that may have nulls."""
    buffers = []
    for (ctype, nullable), n in zip_longest(call.query.columns_out, nulls):
        mask = call.mask(room) if nullable and n != 0 else None
        buffers.append((call.buffer(room * TYPE_BYTES[ctype]), mask))
    return buffers


def targets_of(buffers: Buffers) -> ctypes.Array[Target]:
    """Structs of the memory that kernels write columns to."""
    return (Target * len(buffers))(
        *(Target(data.ptr, mask.ptr if mask else None) for data, mask in buffers)
    )


def no_targets(query: Query) -> ctypes.Array[Target]:
    """No columns, for kernels that do not write them now."""
    return (Target * len(query.columns_out))()


def write(call: Call, counters: Counters) -> tuple[list[Made], list[Made]]:
    """Keys and outputs of all groups; gathered or coded keys have one column."""
    import rmm

    groups, types, early = counters.total, call.query.columns_out, call.early
    keys = call.query.key_outputs
    nulls: list[int | None] = [None] * keys
    nulls += counters.nulls[: len(types) - keys]
    buffers = columns_for(call, groups, nulls) if early is None else early
    if early is None and groups:
        _write(call, buffers, groups, groups)
    columns = []
    for (ctype, nullable), n, (data, mask) in zip(types, nulls, buffers, strict=True):
        mask = None if n == 0 else mask
        if early is not None:
            size = groups * TYPE_BYTES[ctype]
            if data.size > _LOOSEST * size + _SMALL:
                data = rmm.DeviceBuffer(ptr=data.ptr, size=size, stream=call.stream)
            else:
                data.resize(size, call.stream)
            if mask is not None:
                mask.resize(mask_bytes(groups), call.stream)
        columns.append(Made(data, mask, n if nullable else 0))
    call.args.groups = groups
    return columns[:keys], columns[keys:]


def _write(call: Call, buffers: Buffers, groups: int, room: int) -> None:
    call.args.groups = groups
    call.launch_over("write", room, call.args, call.columns, targets_of(buffers))


# ---- calls of columns ----------------------------------------------------------------------------


class DeviceColumn(NamedTuple):
    """A column in device memory, from row ``offset`` on.

    ``data`` is the address of the values, or of the offsets of strings, ``mask`` that of the
    validity bits, 0 without; ``characters`` are the ``size`` bytes of strings.
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
    """The rows of one group-by, and all that its calls share whatever the form of the keys is."""

    # the rows, one part behind the other
    parts: Sequence[Part]
    device: Device
    stream: Any
    stopwatch: Stopwatch | None
    # these two are passed to each call
    key_labels: tuple[str, ...] = ()
    least: int = 0

    @cached_property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts)

    def call(self, query: Query, extra: Sequence[ColumnStruct] = (), codes: Any = None) -> Call:
        """A call of the kernels of a query, with the columns that represent its keys."""
        parts = [part for part in self.parts if part.rows] or self.parts[:1]
        if len(parts) > 1 and not query.form.is_read_once:
            raise NeedsWholeColumns(f"keys that are {query.form.name}")
        kernels = kernels_of(query, self.device)
        query = kernels.query
        pieces, first = [], 0
        for part in parts:
            columns = _structs(query, part, extra, first)
            pieces.append(Piece(columns, first, first + part.rows))
            first += part.rows
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
            stopwatch=self.stopwatch,
            codes=codes,
            key_labels=self.key_labels,
            least=self.least,
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
