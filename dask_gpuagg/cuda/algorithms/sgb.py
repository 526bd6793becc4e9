"""Rows of each group side by side, by a radix sort or because their keys ascend; groups of rows.

The memory of everything that is returned belongs to the caller.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from dask_gpuagg.cuda.call import Call, Launcher, Run, collect, run_of, table_of
from dask_gpuagg.cuda.choice.decision import Sgb, even
from dask_gpuagg.cuda.query.forms import PACKED
from dask_gpuagg.cuda.query.instantiations import sorting
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import ColumnStruct, Counters, Pass, Range, Runs, Target
from dask_gpuagg.cuda.query.tuning import (
    DIGITS,
    ENCODE_THREADS,
    EXTRA_SLOTS,
    MARK_TILE,
    RUN_ROWS,
    SCAN_THREADS,
    SMALL_BLOCK,
    SORT_ITEMS,
    SORT_THREADS,
)
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import Device, Stopwatch, current_device, fill, read_back
from dask_gpuagg.cuda.runtime.kernels import Kernels, OneUnit

# Counts of rows share their words with two flags (kernels/sgb/radix.cuh).
ROWS_AT_MOST = (1 << 30) - 1
BETWEEN = ("linear", "lower", "higher", "midpoint", "nearest")

_TILE = SORT_THREADS * SORT_ITEMS
_DIGIT_BITS = 8


@cache
def _kernels(device: Device) -> Kernels:
    return Kernels(OneUnit(sorting()), device)


class _Same(ctypes.Structure):
    """The digits that all rows share."""

    _fields_ = [("digits", ctypes.c_uint32 * 8)]


@dataclass
class Words:
    """One array in device memory: a buffer of unsigned words of ``width`` bytes."""

    buffer: Any
    width: int

    @property
    def pointer(self) -> ctypes.c_void_p:
        """Its address."""
        return ctypes.c_void_p(self.buffer.ptr)


@dataclass
class Segments:
    """Rows in the order of their groups.

    Attributes
    ----------
    words : Words
        Of the values in ascending order, or the numbers of the rows as they came.
    of_row : Words
        The number of each row's group. Rows that take no part come last, with ``groups``.
    starts : rmm.DeviceBuffer
        uint32, one more than there are groups.
    rows, groups : int
    """

    words: Words
    of_row: Words
    starts: Any
    rows: int
    groups: int


def launcher(stream: Any, stopwatch: Stopwatch | None = None) -> Launcher:
    """The kernels that sort, on the current device.

    Parameters
    ----------
    stream : rmm.pylibrmm.stream.Stream
    stopwatch : Stopwatch, optional
        Takes the device time of every kernel.

    Returns
    -------
    Launcher
    """
    device = current_device()
    return Launcher(
        kernels=_kernels(device),
        device=device,
        stream=stream,
        handle=stream.__cuda_stream__()[1],
        stopwatch=stopwatch,
    )


def sort_values(
    on: Launcher, column: ColumnStruct, ctype: str, codes: int, rows: int, groups: int
) -> Segments:
    """Sort the values of each group.

    Parameters
    ----------
    on : Launcher
    column : ColumnStruct
        Null rows take no part.
    ctype : str
        Of the values: a name of ``TYPE_BYTES`` of at most 8 bytes.
    codes : int
        Address of the number of each row's group, int32; rows of -1 take no part.
    rows : int
        At most ``ROWS_AT_MOST``.
    groups : int

    Returns
    -------
    Segments
    """
    words = array_of(on, rows, max(4, TYPE_BYTES[ctype]))
    of_row = array_of(on, rows, 4)
    counts = ctypes.c_uint32(rows), ctypes.c_uint32(groups)
    blocks = on.spread(rows, SMALL_BLOCK)
    address = ctypes.c_void_p(codes)
    targets = words.pointer, of_row.pointer
    if rows:
        on.launch(f"words_{ctype}", blocks, SMALL_BLOCK, column, address, *counts, *targets)
    words, of_row = radix_sort(on, words, of_row, rows, 8 * TYPE_BYTES[ctype])
    of_row, words = radix_sort(on, of_row, words, rows, groups.bit_length())
    return segmented(on, words, of_row, rows, groups)


def sort_rows(on: Launcher, codes: int, rows: int, groups: int) -> Segments:
    """Bring the numbers of each group's rows together, in their order; see ``sort_values``."""
    words, of_row = array_of(on, rows, 4), array_of(on, rows, 4)
    counts = ctypes.c_uint32(rows), ctypes.c_uint32(groups)
    blocks = on.spread(rows, SMALL_BLOCK)
    targets = words.pointer, of_row.pointer
    if rows:
        on.launch("numbers", blocks, SMALL_BLOCK, ctypes.c_void_p(codes), *counts, *targets)
    of_row, words = radix_sort(on, of_row, words, rows, groups.bit_length())
    return segmented(on, words, of_row, rows, groups)


def radix_sort(
    on: Launcher, words: Words, moved: Words, rows: int, bits: int
) -> tuple[Words, Words]:
    """Sort words by their low bits, and move another array with them; the order is stable.

    Parameters
    ----------
    on : Launcher
    words, moved : Words
        Of ``rows`` rows; what they hold is lost.
    rows : int
        At most ``ROWS_AT_MOST``.
    bits : int

    Returns
    -------
    tuple of Words
        Both arrays, sorted.
    """
    if rows > ROWS_AT_MOST:
        raise ValueError(f"at most {ROWS_AT_MOST:,} rows can be sorted, not {rows:,}")
    digits = math.ceil(bits / _DIGIT_BITS)
    if rows < 2 or digits == 0:
        return words, moved
    number = ctypes.c_uint32(rows)
    tiles = math.ceil(rows / _TILE)
    places = digits * DIGITS
    # starts of the digits, the digits that all rows share, the ticket, what tiles have told
    work = array_of(on, places + 16 + tiles * DIGITS, 4)
    starts = work.buffer.ptr
    same, ticket, told = (starts + 4 * (places + n) for n in (0, 8, 16))
    fill(starts, 0, 4 * (places + 16), on.handle)
    blocks = on.spread(rows, SORT_THREADS, waves=4)
    on.launch(
        f"count_digits_{words.width}",
        blocks,
        SORT_THREADS,
        *(words.pointer, number, ctypes.c_uint32(digits), ctypes.c_void_p(starts)),
    )
    on.launch("scan_digits", digits, DIGITS, ctypes.c_void_p(starts), number, ctypes.c_void_p(same))
    seen = _Same()
    read_back(same, seen, on.handle)
    varying = [d for d in range(digits) if not seen.digits[d]]
    if not varying:
        return words, moved
    other_words, other_moved = array_of(on, rows, words.width), array_of(on, rows, moved.width)
    for digit in varying:
        fill(ticket, 0, 4 * (8 + tiles * DIGITS), on.handle)
        step = Pass(
            words.buffer.ptr,
            other_words.buffer.ptr,
            moved.buffer.ptr,
            other_moved.buffer.ptr,
            starts + 4 * DIGITS * digit,
            told,
            ticket,
            rows,
            _DIGIT_BITS * digit,
        )
        kernel = f"pass_{words.width}_{moved.width}"
        shared = _TILE * max(words.width, moved.width)
        on.launch(kernel, tiles, SORT_THREADS, step, shared=shared)
        words, other_words = other_words, words
        moved, other_moved = other_moved, moved
    return words, moved


def quantiles(
    on: Launcher, segments: Segments, ctype: str, q: float, between: str, ticks: bool = False
) -> tuple[Any, Any, int]:
    """One quantile of each group's values, float64.

    Parameters
    ----------
    on : Launcher
    segments : Segments
        Of ``sort_values``.
    ctype : str
        As it was given there.
    q : float
        From 0 to 1.
    between : str
        Of ``BETWEEN``: what to make of the two values on either side.
    ticks : bool
        Whether the values are 64-bit ticks, as of datetimes; then the quantiles are ticks as well.

    Returns
    -------
    data, mask : rmm.DeviceBuffer
    nulls : int
        Groups without a value.
    """
    groups = segments.groups
    data = array_of(on, groups, 8).buffer
    mask = array_of(on, mask_bytes(groups), 1).buffer
    if groups == 0:
        return data, mask, 0
    nulls = array_of(on, 1, 4)
    fill(nulls.buffer.ptr, 0, 4, on.handle)
    on.launch(
        "ticks" if ticks else f"quantiles_{ctype}",
        on.spread(groups, SMALL_BLOCK),
        SMALL_BLOCK,
        *(segments.words.pointer, ctypes.c_void_p(segments.starts.ptr), ctypes.c_uint32(groups)),
        *(ctypes.c_double(q), ctypes.c_uint32(BETWEEN.index(between))),
        *(Target(data.ptr, mask.ptr), nulls.pointer),
    )
    count = ctypes.c_uint32()
    read_back(nulls.buffer.ptr, count, on.handle)
    return data, mask, count.value


def count_distinct(on: Launcher, segments: Segments) -> Any:
    """How many different values each group has, int64; segments of ``sort_values``."""
    counts = array_of(on, segments.groups, 8).buffer
    fill(counts.ptr, 0, max(8 * segments.groups, 1), on.handle)
    if segments.rows:
        on.launch(
            f"count_distinct_{segments.words.width}",
            on.spread(segments.rows, SMALL_BLOCK),
            SMALL_BLOCK,
            *(segments.words.pointer, segments.of_row.pointer),
            *(ctypes.c_uint32(n) for n in (segments.rows, segments.groups)),
            ctypes.c_void_p(counts.ptr),
        )
    return counts


def mask_bytes(groups: int) -> int:
    """Bytes of the validity bits of a column of groups, which libcudf pads to 64."""
    return math.ceil(groups / 512) * 64


def rows_of_groups(on: Launcher, segments: Segments) -> int:
    """How many rows belong to groups."""
    end = ctypes.c_uint32()
    read_back(segments.starts.ptr + 4 * segments.groups, end, on.handle)
    return int(end.value)


def array_of(on: Launcher, items: int, width: int) -> Words:
    """Memory for an array, which lives as long as the array does."""
    import rmm

    return Words(rmm.DeviceBuffer(size=max(items * width, 1), stream=on.stream), width)


def segmented(on: Launcher, words: Words, of_row: Words, rows: int, groups: int) -> Segments:
    """Where each group begins among rows that are sorted by group.

    Parameters
    ----------
    on : Launcher
    words, of_row : Words
        Of ``rows`` rows.
    rows, groups : int
        Groups may have no rows: they are of categories that no row has, or of nulls alone.

    Returns
    -------
    Segments
    """
    starts = array_of(on, groups + 1, 4)
    fill(starts.buffer.ptr, 0xFF, 4 * (groups + 1), on.handle)
    counts = ctypes.c_uint32(rows), ctypes.c_uint32(groups)
    arguments = (of_row.pointer, *counts, starts.pointer)
    on.launch("mark_starts", on.spread(rows + 1, SMALL_BLOCK), SMALL_BLOCK, *arguments)
    if groups:
        on.launch("fill_starts", on.spread(groups, SMALL_BLOCK), SMALL_BLOCK, *arguments)
    return Segments(words, of_row, starts.buffer, rows, groups)


# ---- runs of equal keys --------------------------------------------------------------------------

_WARPS = SMALL_BLOCK // 32


class _Seen(ctypes.Structure):
    _fields_ = [("groups", ctypes.c_uint32), ("falls", ctypes.c_uint32)]


def sgb(call: Call, decision: Sgb) -> tuple[Run, Counters] | None:
    """Groups of rows whose keys ascend.

    None if the rows are not sorted, or a key has an extra slot behind tables.
    """
    args = call.args
    runs, seen = _count(call)
    if seen.falls:
        return None
    args.table = table_of(call, even(max(seen.groups, 2)))
    slots = args.table.slots
    call.launch("clear", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, args)
    call.launch("reduce_runs", _blocks(call), SMALL_BLOCK, args, runs, call.columns)
    counters = collect(call)
    # the groups are the first slots, in the order of their keys
    args.order = None
    return run_of(call, decision, counters), counters


def _blocks(call: Call) -> int:
    return math.ceil(call.rows / (RUN_ROWS * _WARPS))


def _count(call: Call) -> tuple[Runs, _Seen]:
    """Number the groups of the rows."""
    tiles = math.ceil(call.rows / RUN_ROWS)
    heads = call.allocate(4 * (tiles + 2)).ptr
    totals = heads + 4 * tiles
    runs = Runs(heads, totals + 4)
    fill(totals, 0, 8, call.handle)
    call.launch("count_runs", _blocks(call), SMALL_BLOCK, call.args, runs, call.columns)
    scanned = ctypes.c_void_p(heads), ctypes.c_uint32(tiles), ctypes.c_void_p(totals)
    call.launch("scan_tiles", 1, SCAN_THREADS, *scanned)
    seen = _Seen()
    read_back(totals, seen, call.handle)
    return runs, seen


# ---- numbers of the rows' groups -----------------------------------------------------------------

# Values for each row that a range of keys may have for a bit each to be worth while.
_NARROW = 4
# A key's word and its group's number, at 16 bytes' alignment.
_ENTRY_BYTES = 16


def may_be_narrow(query: Query) -> bool:
    """Whether the groups can be numbered by the range of the keys."""
    nulls = query.keep_nulls and any(key.nullable for key in query.keys)
    return query.form == PACKED and not nulls and not query.outputs


def encode(call: Call, groups: int, order: int = 0) -> Any:
    """The number of every row's group, from the table that holds the groups.

    Parameters
    ----------
    call : Call
        That has left its groups in one table in global memory.
    groups : int
    order : int
        Address of the numbers, int32, of the groups that come first, second, ...; 0 for the order
        of ``call.args.order``.

    Returns
    -------
    rmm.DeviceBuffer
        int32, -1 for rows of no group.
    """
    codes = _codes(call)
    if call.rows == 0:
        return codes
    args = call.args
    slots = args.table.slots + EXTRA_SLOTS
    entries = ctypes.c_void_p(call.allocate(_ENTRY_BYTES * slots).ptr)
    sorted_groups, count = ctypes.c_void_p(order), ctypes.c_uint32(groups)
    blocks = call.spread(slots, SMALL_BLOCK)
    call.launch("entries", blocks, SMALL_BLOCK, args, sorted_groups, count, entries)
    blocks = call.spread(call.rows, ENCODE_THREADS * call.query.unroll)
    target = ctypes.c_void_p(codes.ptr)
    call.launch("encode", blocks, ENCODE_THREADS, args, call.columns, entries, target)
    return codes


def encode_range(call: Call) -> tuple[list[Any], Any, int] | None:
    """Number every row's group by the range of the keys, in whose order the groups then are.

    Keys, codes and how many groups there are; None where the range is wide, or no row has a group.
    The keys fit one word, nulls form no groups, and there are no outputs.
    """
    import rmm

    blocks = call.spread(call.rows, ENCODE_THREADS, waves=4)
    bounds = call.allocate(ctypes.sizeof(Range)).ptr
    fill(bounds, 0xFF, 8, call.handle)
    fill(bounds + 8, 0, 8, call.handle)
    rows = call.args, call.columns
    call.launch("find_range", blocks, ENCODE_THREADS, *rows, ctypes.c_void_p(bounds))
    span = Range()
    read_back(bounds, span, call.handle)
    width = span.high - span.low + 1
    if not 0 < width <= _NARROW * call.rows:
        return None
    words = math.ceil(width / 32)
    marks = call.allocate(8 * words).ptr
    fill(marks, 0, 8 * words, call.handle)
    low, marked, count = ctypes.c_uint64(span.low), ctypes.c_void_p(marks), ctypes.c_uint32(words)
    call.launch("mark_keys", blocks, ENCODE_THREADS, *rows, low, marked)
    tiles = math.ceil(words / MARK_TILE)
    counts = call.allocate(4 * (tiles + 1)).ptr
    of_tiles, total = ctypes.c_void_p(counts), ctypes.c_void_p(counts + 4 * tiles)
    tile_blocks = math.ceil(tiles * 32 / SMALL_BLOCK)
    call.launch("count_marks", tile_blocks, SMALL_BLOCK, marked, count, of_tiles)
    call.launch("scan_tiles", 1, SCAN_THREADS, of_tiles, ctypes.c_uint32(tiles), total)
    groups = ctypes.c_uint32()
    read_back(counts + 4 * tiles, groups, call.handle)
    ordered = ctypes.c_void_p(call.allocate(8 * groups.value).ptr)
    call.launch("number_marks", tile_blocks, SMALL_BLOCK, marked, count, of_tiles, low, ordered)
    codes = _codes(call)
    call.launch(
        "encode_range", blocks, ENCODE_THREADS, *rows, low, marked, ctypes.c_void_p(codes.ptr)
    )
    keys = [
        rmm.DeviceBuffer(size=TYPE_BYTES[k.ctype] * groups.value, stream=call.stream)
        for k in call.query.keys
    ]
    targets = (Target * len(keys))(*(Target(k.ptr, None) for k in keys))
    write_blocks = call.spread(groups.value, SMALL_BLOCK)
    call.launch("write_range", write_blocks, SMALL_BLOCK, ordered, groups, targets)
    return keys, codes, int(groups.value)


def _codes(call: Call) -> Any:
    import rmm

    return rmm.DeviceBuffer(size=4 * call.rows, stream=call.stream)
