"""Rows of each group side by side, by a radix sort or because their keys ascend; groups of rows.

The caller owns the memory of everything that is returned.
"""

import ctypes
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from dask_gpuagg.cuda.call import Call, Launcher, Run, collect, run_of, table_of
from dask_gpuagg.cuda.choice.decision import Sgb, even
from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.forms import PACKED
from dask_gpuagg.cuda.query.instantiations import sorting
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import ColumnStruct, Counters, Pass, Range, Runs, Target
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import Device, Stopwatch, current_device, fill, read_back
from dask_gpuagg.cuda.runtime.kernels import Kernels, OneUnit

# Counts of rows share their words with two flags (kernels/sgb/radix.cuh).
ROWS_AT_MOST = (1 << 30) - 1
BETWEEN = ("linear", "lower", "higher", "midpoint", "nearest")

_TILE = tuning.SORT_THREADS * tuning.SORT_ITEMS
_DIGIT_BITS = 8


@cache
def _kernels(device: Device) -> Kernels:
    return Kernels(OneUnit(sorting()), device)


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
    """Rows in the order of their groups."""

    # the values in ascending order, or the numbers of the rows as they came
    words: Words
    # the number of each row's group; rows that take no part come last, with ``groups``
    of_row: Words
    # uint32, one more than there are groups
    starts: Any
    rows: int
    groups: int


def launcher(stream: Any, stopwatch: Stopwatch | None = None) -> Launcher:
    """The kernels that sort, on the current device; a stopwatch takes the time of every kernel."""
    device = current_device()
    kernels = _kernels(device)
    return Launcher(kernels=kernels, device=device, stream=stream, stopwatch=stopwatch)


def array_of(on: Launcher, items: int, width: int) -> Words:
    """Memory for an array, which lives as long as the array does."""
    return Words(on.buffer(max(items * width, 1)), width)


def zeros_of(on: Launcher, items: int, width: int) -> Words:
    """An array of zeros."""
    zeros = array_of(on, items, width)
    fill(zeros.buffer.ptr, 0, max(items * width, 1), on.handle)
    return zeros


def sort_values(
    on: Launcher, column: ColumnStruct, ctype: str, codes: int, rows: int, groups: int
) -> Segments:
    """Sort the values of each group; null ones take no part.

    ``codes`` is the address of the number of each row's group, int32; rows of -1 take no part.
    Of at most ``ROWS_AT_MOST`` rows and types of at most 8 bytes.
    """
    words, of_row = array_of(on, rows, max(4, TYPE_BYTES[ctype])), array_of(on, rows, 4)
    counts = ctypes.c_uint32(rows), ctypes.c_uint32(groups)
    operands = column, ctypes.c_void_p(codes), *counts, words.pointer, of_row.pointer
    if rows:
        on.launch_over(f"words_{ctype}", rows, *operands)
    words, of_row = radix_sort(on, words, of_row, rows, 8 * TYPE_BYTES[ctype])
    of_row, words = radix_sort(on, of_row, words, rows, groups.bit_length())
    return segmented(on, words, of_row, rows, groups)


def sort_rows(on: Launcher, codes: int, rows: int, groups: int) -> Segments:
    """Bring the numbers of each group's rows together, in their order; see ``sort_values``."""
    words, of_row = array_of(on, rows, 4), array_of(on, rows, 4)
    if rows:
        counts = ctypes.c_uint32(rows), ctypes.c_uint32(groups)
        operands = ctypes.c_void_p(codes), *counts, words.pointer, of_row.pointer
        on.launch_over("numbers", rows, *operands)
    of_row, words = radix_sort(on, of_row, words, rows, groups.bit_length())
    return segmented(on, words, of_row, rows, groups)


def radix_sort(
    on: Launcher, words: Words, moved: Words, rows: int, bits: int
) -> tuple[Words, Words]:
    """Sort words by their low bits, and move another array with them; the order is stable.

    Both arrays, sorted, of at most ``ROWS_AT_MOST`` rows; what the old ones hold is lost.
    """
    if rows > ROWS_AT_MOST:
        raise ValueError(f"at most {ROWS_AT_MOST:,} rows can be sorted, not {rows:,}")
    digits = math.ceil(bits / _DIGIT_BITS)
    if rows < 2 or digits == 0:
        return words, moved
    number = ctypes.c_uint32(rows)
    tiles = math.ceil(rows / _TILE)
    places = digits * tuning.DIGITS
    # starts of the digits, the digits that all rows share, the ticket, counts of the tiles
    work = array_of(on, places + 16 + tiles * tuning.DIGITS, 4)
    starts = work.buffer.ptr
    same, ticket, tile_counts = (starts + 4 * (places + n) for n in (0, 8, 16))
    fill(starts, 0, 4 * (places + 16), on.handle)
    blocks = on.spread(rows, tuning.SORT_THREADS, waves=4)
    operands = words.pointer, number, ctypes.c_uint32(digits), ctypes.c_void_p(starts)
    on.launch(f"count_digits_{words.width}", blocks, tuning.SORT_THREADS, *operands)
    on.launch(
        "scan_digits", digits, tuning.DIGITS, ctypes.c_void_p(starts), number, ctypes.c_void_p(same)
    )
    shared_digits = (ctypes.c_uint32 * 8)()
    read_back(same, shared_digits, on.handle)
    varying = [d for d in range(digits) if not shared_digits[d]]
    if not varying:
        return words, moved
    other_words, other_moved = array_of(on, rows, words.width), array_of(on, rows, moved.width)
    kernel = f"pass_{words.width}_{moved.width}"
    shared = _TILE * max(words.width, moved.width)
    for digit in varying:
        fill(ticket, 0, 4 * (8 + tiles * tuning.DIGITS), on.handle)
        step = Pass(
            words.buffer.ptr,
            other_words.buffer.ptr,
            moved.buffer.ptr,
            other_moved.buffer.ptr,
            starts + 4 * tuning.DIGITS * digit,
            tile_counts,
            ticket,
            rows,
            _DIGIT_BITS * digit,
        )
        on.launch(kernel, tiles, tuning.SORT_THREADS, step, shared=shared)
        words, other_words = other_words, words
        moved, other_moved = other_moved, moved
    return words, moved


def segmented(on: Launcher, words: Words, of_row: Words, rows: int, groups: int) -> Segments:
    """Mark where each group begins among rows that are sorted by group.

    Groups may have no rows: they are of categories that no row has, or of nulls alone.
    """
    starts = array_of(on, groups + 1, 4)
    fill(starts.buffer.ptr, 0xFF, 4 * (groups + 1), on.handle)
    operands = of_row.pointer, ctypes.c_uint32(rows), ctypes.c_uint32(groups), starts.pointer
    on.launch_over("mark_starts", rows + 1, *operands)
    if groups:
        on.launch_over("fill_starts", groups, *operands)
    return Segments(words, of_row, starts.buffer, rows, groups)


def quantiles(
    on: Launcher, segments: Segments, ctype: str, q: float, between: str, ticks: bool = False
) -> tuple[Any, Any, int]:
    """One quantile of each group's values, float64 or ticks; see ``write_quantiles``."""
    if segments.groups == 0:
        return array_of(on, 0, 8).buffer, array_of(on, 0, 1).buffer, 0
    operands = segments.words.pointer, ctypes.c_void_p(segments.starts.ptr)
    kernel = "ticks" if ticks else f"quantiles_{ctype}"
    return write_quantiles(on, kernel, operands, segments.groups, 8, q, between)


def write_quantiles(
    on: Launcher, kernel: str, operands: Any, groups: int, width: int, q: float, between: str
) -> tuple[Any, Any, int]:
    """Data, mask and number of nulls of a column of quantiles that a kernel writes.

    ``between`` of ``BETWEEN`` says how a quantile between two values is made of them.
    """
    data, mask, nulls = array_of(on, groups, width).buffer, on.mask(groups), zeros_of(on, 1, 4)
    rank = ctypes.c_double(q), ctypes.c_uint32(BETWEEN.index(between))
    target = Target(data.ptr, mask.ptr)
    on.launch_over(kernel, groups, *operands, ctypes.c_uint32(groups), *rank, target, nulls.pointer)
    return data, mask, on.read_number(nulls.buffer.ptr)


def count_distinct(on: Launcher, segments: Segments) -> Any:
    """Count the distinct values of each group, as int64, in the segments of ``sort_values``."""
    counts = zeros_of(on, segments.groups, 8)
    if segments.rows:
        sizes = ctypes.c_uint32(segments.rows), ctypes.c_uint32(segments.groups)
        operands = segments.words.pointer, segments.of_row.pointer, *sizes, counts.pointer
        on.launch_over(f"count_distinct_{segments.words.width}", segments.rows, *operands)
    return counts.buffer


# ---- runs of equal keys --------------------------------------------------------------------------

_WARPS = tuning.SMALL_BLOCK // 32


def sgb(call: Call, decision: Sgb) -> tuple[Run, Counters] | None:
    """Groups of rows whose keys ascend.

    None if the rows are not sorted, or a key has an extra slot behind tables.
    """
    args = call.args
    tiles = math.ceil(call.rows / tuning.RUN_ROWS)
    blocks = math.ceil(call.rows / (tuning.RUN_ROWS * _WARPS))
    heads = call.allocate(4 * (tiles + 2)).ptr
    totals = heads + 4 * tiles
    runs = Runs(heads, totals + 4)
    fill(totals, 0, 8, call.handle)
    call.launch("count_runs", blocks, tuning.SMALL_BLOCK, args, runs, call.columns)
    scanned = ctypes.c_void_p(heads), ctypes.c_uint32(tiles), ctypes.c_void_p(totals)
    call.launch("scan_tiles", 1, tuning.SCAN_THREADS, *scanned)
    sums = (ctypes.c_uint32 * 2)()
    read_back(totals, sums, call.handle)
    groups, falls = sums
    if falls:
        return None
    args.table = table_of(call, even(max(groups, 2)))
    call.launch_over("clear", args.table.slots, args)
    call.launch("reduce_runs", blocks, tuning.SMALL_BLOCK, args, runs, call.columns)
    counters = collect(call)
    # the groups are the first slots, in the order of their keys
    args.order = None
    return run_of(call, decision, counters), counters


# ---- numbers of the rows' groups -----------------------------------------------------------------

# Values for each row that a range of keys may have for a bit each to be worth while.
_NARROW = 4
# A key's word and its group's number, at 16 bytes' alignment.
_ENTRY_BYTES = 16


def may_be_narrow(query: Query) -> bool:
    """Whether the groups can be numbered by the range of the keys."""
    nulls = query.keep_nulls and any(key.nullable for key in query.keys)
    return query.form == PACKED and not nulls and not query.outputs


def encode(call: Call, groups: int) -> Any:
    """The number of every row's group, by the table in global memory that a call has left.

    A buffer of int32, -1 for rows of no group.
    """
    codes = call.buffer(4 * call.rows)
    if call.rows == 0:
        return codes
    args = call.args
    slots = args.table.slots + tuning.EXTRA_SLOTS
    entries = ctypes.c_void_p(call.allocate(_ENTRY_BYTES * slots).ptr)
    call.launch_over("entries", slots, args, ctypes.c_uint32(groups), entries)
    blocks = call.spread(call.rows, tuning.ENCODE_THREADS * call.query.unroll)
    target = ctypes.c_void_p(codes.ptr)
    call.launch("encode", blocks, tuning.ENCODE_THREADS, args, call.columns, entries, target)
    return codes


def encode_range(call: Call) -> tuple[list[Any], Any, int] | None:
    """Number every row's group by the range of the keys, in whose order the groups then are.

    Keys, codes and how many groups there are; None where the range is wide, or no row has a group.
    The keys fit one word, nulls form no groups, and there are no outputs.
    """
    blocks = call.spread(call.rows, tuning.ENCODE_THREADS, waves=4)
    bounds = call.allocate(ctypes.sizeof(Range)).ptr
    fill(bounds, 0xFF, 8, call.handle)
    fill(bounds + 8, 0, 8, call.handle)
    rows = call.args, call.columns
    call.launch("find_range", blocks, tuning.ENCODE_THREADS, *rows, ctypes.c_void_p(bounds))
    span = Range()
    read_back(bounds, span, call.handle)
    width = span.high - span.low + 1
    if not 0 < width <= _NARROW * call.rows:
        return None
    words = math.ceil(width / 32)
    marks = call.allocate(8 * words).ptr
    fill(marks, 0, 8 * words, call.handle)
    low, marked, count = ctypes.c_uint64(span.low), ctypes.c_void_p(marks), ctypes.c_uint32(words)
    call.launch("mark_keys", blocks, tuning.ENCODE_THREADS, *rows, low, marked)
    tiles = math.ceil(words / tuning.MARK_TILE)
    counts = call.allocate(4 * (tiles + 1)).ptr
    of_tiles, total = ctypes.c_void_p(counts), ctypes.c_void_p(counts + 4 * tiles)
    tile_blocks = math.ceil(tiles * 32 / tuning.SMALL_BLOCK)
    call.launch("count_marks", tile_blocks, tuning.SMALL_BLOCK, marked, count, of_tiles)
    call.launch("scan_tiles", 1, tuning.SCAN_THREADS, of_tiles, ctypes.c_uint32(tiles), total)
    groups = call.read_number(counts + 4 * tiles)
    ordered = ctypes.c_void_p(call.allocate(8 * groups).ptr)
    call.launch(
        "number_marks", tile_blocks, tuning.SMALL_BLOCK, marked, count, of_tiles, low, ordered
    )
    codes = call.buffer(4 * call.rows)
    operands = *rows, low, marked, ctypes.c_void_p(codes.ptr)
    call.launch("encode_range", blocks, tuning.ENCODE_THREADS, *operands)
    keys = [call.buffer(TYPE_BYTES[key.ctype] * groups) for key in call.query.keys]
    targets = (Target * len(keys))(*(Target(key.ptr, None) for key in keys))
    call.launch_over("write_range", groups, ordered, ctypes.c_uint32(groups), targets)
    return keys, codes, groups
