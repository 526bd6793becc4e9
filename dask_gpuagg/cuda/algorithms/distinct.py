"""Distinct values of few groups: rows divided by hash, and a table in shared memory for a part."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from dask_gpuagg.cuda.algorithms import sgb
from dask_gpuagg.cuda.algorithms.select import (
    GROUPS_AT_MOST,
    ROWS_FROM,
    Chunk,
    sample,
    selecting,
)
from dask_gpuagg.cuda.algorithms.sgb import array_of
from dask_gpuagg.cuda.call.call import Launcher
from dask_gpuagg.cuda.query.tuning import PARTS_BLOCKS, PARTS_THREADS, SCAN_THREADS, SMALL_BLOCK
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import fill, read_back

# Of distinct values: rows of a part, and one sampled row of so many.
PART_ROWS = 2048
PART_STRIDE = 64
# Values of fewer bytes are so few that their sort has few passes and some parts most of the rows.
DIVIDED_BYTES = 4
# Distinct values of so few bytes, in fewer groups, are sorted. One H200, 50 million int32: in one
# group 1.80 ms sorted and 3.36 in parts, in 1,000 groups 2.96 and 2.17.
NARROW_BYTES = 4
GROUPS_OF_NARROW = 100
# Bytes of the table of a part.
TABLE_BYTES = 64 << 10
# A part is one block's. Wider ones, as a share of all rows, would take longer than a sort.
WIDEST_PART = 1 / 16


def divides(rows: int, groups: int, width: int) -> bool:
    """Whether distinct values of ``width`` bytes are counted in parts."""
    fewest = GROUPS_OF_NARROW if width <= NARROW_BYTES else 1
    return fewest <= groups <= GROUPS_AT_MOST and rows >= ROWS_FROM and width >= DIVIDED_BYTES


class _Seen(ctypes.Structure):
    """Rows of the widest part, and whether a part had more values than its table holds."""

    _fields_ = [("widest", ctypes.c_uint32), ("full", ctypes.c_uint32)]


def count_distinct(sorts: Launcher, chunk: Chunk, ctype: str) -> Any:
    """How many different values each group has, int64; all NaN are one.

    Parameters
    ----------
    sorts : Launcher
        Of ``sorting.launcher``.
    chunk : Chunk
        Of at most ``sorting.ROWS_AT_MOST`` rows and at least one group.
    ctype : str
        A type of 4 or 8 bytes.

    Returns
    -------
    rmm.DeviceBuffer or None
        None where one value has so many of the rows that a sort is faster, or a part has more
        values than its table holds.
    """
    on, width, groups = selecting(sorts, ctype), TYPE_BYTES[ctype], chunk.groups
    firsts = _divided(on, chunk, width)
    parts = ctypes.c_uint32()
    read_back(firsts.buffer.ptr + 4 * groups, parts, on.handle)
    words, of_row = array_of(on, chunk.rows, width), array_of(on, chunk.rows, 4)
    blocks = on.spread(chunk.rows, SMALL_BLOCK)
    to = firsts.pointer, words.pointer, of_row.pointer
    on.launch("find_parts", blocks, SMALL_BLOCK, chunk, *to)
    of_row, words = sgb.radix_sort(sorts, of_row, words, chunk.rows, parts.value.bit_length())
    segments = sgb.segmented(sorts, words, of_row, chunk.rows, parts.value)
    del of_row, to
    seen = _Seen()
    told = array_of(on, 2, 4).buffer
    fill(told.ptr, 0, 8, on.handle)
    starts = ctypes.c_void_p(segments.starts.ptr)
    blocks = on.spread(parts.value, SMALL_BLOCK)
    on.launch("find_widest", blocks, SMALL_BLOCK, starts, parts, ctypes.c_void_p(told.ptr))
    read_back(told.ptr, seen, on.handle)
    if seen.widest > max(WIDEST_PART * chunk.rows, PART_ROWS):
        return None
    counts = array_of(on, parts.value, 4)
    full = ctypes.c_void_p(told.ptr + _Seen.full.offset)
    on.launch(
        "count_parts",
        *(min(parts.value, on.device.multiprocessors * PARTS_BLOCKS), PARTS_THREADS),
        *(words.pointer, starts, parts, ctypes.c_uint32(TABLE_BYTES // width)),
        *(counts.pointer, full),
        shared=TABLE_BYTES,
    )
    made = array_of(on, groups, 8).buffer
    arguments = counts.pointer, firsts.pointer, ctypes.c_uint32(groups), ctypes.c_void_p(made.ptr)
    on.launch("sum_parts", on.spread(groups, SMALL_BLOCK), SMALL_BLOCK, *arguments)
    read_back(told.ptr, seen, on.handle)
    return None if seen.full else made


def _divided(on: Launcher, chunk: Chunk, width: int) -> sgb.Words:
    """The first part of each group, and how many parts there are."""
    groups = ctypes.c_uint32(chunk.groups)
    samples = math.ceil(chunk.rows / PART_STRIDE)
    words, of_row = array_of(on, samples, width), array_of(on, samples, 4)
    sample(on, chunk, PART_STRIDE, samples, words.buffer.ptr, of_row.buffer.ptr)
    firsts = array_of(on, chunk.groups + 1, 4)
    fill(firsts.buffer.ptr, 0, 4 * (chunk.groups + 1), on.handle)
    on.launch(
        "count_sampled",
        *(on.spread(samples, SMALL_BLOCK), SMALL_BLOCK),
        *(of_row.pointer, ctypes.c_uint32(samples), groups, firsts.pointer),
    )
    each = ctypes.c_uint32(PART_ROWS // PART_STRIDE)
    blocks = on.spread(chunk.groups, SMALL_BLOCK)
    on.launch("divide_groups", blocks, SMALL_BLOCK, firsts.pointer, groups, each)
    total = ctypes.c_void_p(firsts.buffer.ptr + 4 * chunk.groups)
    on.launch("scan_groups", 1, SCAN_THREADS, firsts.pointer, groups, total)
    return firsts
