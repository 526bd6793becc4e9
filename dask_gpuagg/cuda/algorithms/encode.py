"""Number the groups of rows: a dictionary encoding of their keys."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from dask_gpuagg.cuda.call.call import Call
from dask_gpuagg.cuda.query.forms import PACKED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import Range, Target
from dask_gpuagg.cuda.query.tuning import (
    ENCODE_THREADS,
    EXTRA_SLOTS,
    MARK_TILE,
    SCAN_THREADS,
    SMALL_BLOCK,
)
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import fill, read_back

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
    """The same from the range of the keys, in whose order the groups then are.

    Parameters
    ----------
    call : Call
        Its keys fit one word, nulls form no groups, and it has no outputs.

    Returns
    -------
    keys : list of rmm.DeviceBuffer
    codes : rmm.DeviceBuffer
    groups : int

    or None where the range is wide, or no row has a group.
    """
    import rmm

    blocks = call.spread(call.rows, ENCODE_THREADS, waves=4)
    found = call.allocate(ctypes.sizeof(Range)).ptr
    fill(found, 0xFF, 8, call.handle)
    fill(found + 8, 0, 8, call.handle)
    rows = call.args, call.columns
    call.launch("find_range", blocks, ENCODE_THREADS, *rows, ctypes.c_void_p(found))
    span = Range()
    read_back(found, span, call.handle)
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
