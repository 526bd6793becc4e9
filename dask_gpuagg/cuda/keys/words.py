"""Words of wide keys, and narrower representations where the values allow them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import replace

from dask_gpuagg.cuda.call.call import Call, ColumnStruct, Counters
from dask_gpuagg.cuda.choice import summary
from dask_gpuagg.cuda.choice.decision import safe_slots
from dask_gpuagg.cuda.keys.codes import (
    Codes,
    bounds_of,
    codes_of_seen,
    seen_bytes,
)
from dask_gpuagg.cuda.keys.ranges import (
    FILLING,
    is_out_of_range,
    packed_ranges,
    range_columns,
    two_word_ranges,
)
from dask_gpuagg.cuda.keys.steps import numbered_by_several_steps
from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import SMALL_BLOCK
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import fill

# Words of a slot of the index before the key's own, of a sector of memory, of the longest slots.
_HEAD = 2
_SECTOR = 4
_MOST_WORDS = 16
# Bytes of the index for each row that longer slots may take.
_INDEX_BYTES = 32


def narrowed(call: Call, slots: bool = True) -> tuple[Query, list[ColumnStruct], Codes | None]:
    """The query with a narrower representation of its keys, and what this adds.

    Parameters
    ----------
    call : Call
        Of a query with made words, nothing of it computed yet.
    slots : bool
        Whether dense keys may be addressed directly. If not, there is nothing to gain by ranges
        that are hardly wider than the sample's.

    Returns
    -------
    query : Query
        The call's own, if no other representation serves.
    columns : list of ColumnStruct
        Base and number of values of every key column, where they are packed by their ranges.
    codes : Codes or None
        Where they are numbered by the bytes that occur.
    """
    query = call.query
    if query.integral:
        near, bounds = not is_out_of_range(query, call.about), _bounds(call)
        stepped = numbered_by_several_steps(call, bounds) if slots and near else None
        if stepped is not None:
            return stepped.query, stepped.columns, None
        ranges = packed_ranges(bounds, call.rows if slots and near else 0)
        if ranges is not None:
            return replace(query, ranged=True), range_columns(ranges), None
        bits = two_word_ranges(bounds) if near and query.family == "Hashed" else None
        if bits is not None:
            return replace(query, ranged=True, two_words=True), range_columns(bits), None
    elif query.may_be_coded:
        near = slots and not is_out_of_range(query, call.about)
        dense = FILLING * call.rows if near else 0
        codes = codes_of_seen(query.keys, query.keep_nulls, seen_bytes(call), dense)
        if codes is not None:
            return replace(query, coded=True), [], codes
    return query, [], None


def representations_of(query: Query) -> list[Query]:
    """The query, and those that ``narrowed`` or ``numbered_by_ranges`` may make of it."""
    made = [query]
    if (query.made_words and query.integral) or query.may_fill:
        made.append(replace(query, ranged=True))
        if query.family == "Hashed":
            made.append(replace(query, ranged=True, two_words=True))
    if query.may_be_coded:
        made.append(replace(query, coded=True))
    return made


def _bounds(call: Call) -> list[tuple[int, int]]:
    columns = len(call.query.keys)
    seen = (ctypes.c_uint64 * (2 * columns))()
    # as the kernel keeps them, all ones are the bounds of nothing
    call.summarised("ranges", summary.SEGMENTS, tuning.SEGMENT, seen, 0xFF)
    return [bounds_of(seen[2 * i], seen[2 * i + 1]) for i in range(columns)]


class Index(ctypes.Structure):
    """``Index`` of kernels/key/verify.cuh."""

    _fields_ = [
        ("at", ctypes.c_void_p),
        ("slots", ctypes.c_uint32),
        ("stride", ctypes.c_uint32),
    ]


def verified(call: Call, counters: Counters) -> Counters:
    """The counters after every row was compared with the key of its group."""
    groups = counters.total
    slots = safe_slots(groups)
    stride = slot_words(call.query, _mean_bytes(call))
    if 8 * stride * slots > _INDEX_BYTES * call.rows:
        stride = _HEAD
    size = 8 * stride * slots
    index = Index(call.allocate(size).ptr, slots, stride)
    fill(index.at, 0xFF, size, call.handle)
    call.args.groups = groups
    blocks = call.spread(max(groups, 1), SMALL_BLOCK)
    call.launch("index_groups", blocks, SMALL_BLOCK, call.args, call.columns, index)
    blocks = call.spread(call.rows, SMALL_BLOCK)
    call.launch("verify", blocks, SMALL_BLOCK, call.args, call.columns, index)
    return call.counters()


def slot_words(query: Query, mean_bytes: Sequence[float]) -> int:
    """Words of a slot of the index that most keys fit: whole sectors of memory.

    Parameters
    ----------
    query : Query
    mean_bytes : sequence of float
        Of the strings of each string column.

    Returns
    -------
    int
        ``_HEAD`` if slots would be too long; rows are then compared with rows.
    """
    words = _HEAD
    for key in query.keys:
        # a null takes another word in columns of fixed width
        words += 1 if key.string else math.ceil(TYPE_BYTES[key.ctype] / 8) + key.nullable
    for mean in mean_bytes:
        # where lengths vary some are longer
        words += math.ceil((mean if mean.is_integer() else 1.25 * mean) / 8)
    words = math.ceil(words / _SECTOR) * _SECTOR
    return words if words <= _MOST_WORDS else _HEAD


def _mean_bytes(call: Call) -> list[float]:
    """Of the strings of each string column, those of a slice as those of the whole column."""
    means, column = [], 0
    for key in call.query.keys:
        if key.string:
            means.append(call.columns[column + 1].offset / max(call.rows, 1))
        column += 2 if key.string else 1
    return means


def make_words(call: Call) -> None:
    """Fill the columns behind the inputs: the witnesses, the words."""
    query = call.query
    end = len(call.columns) - (len(query.keys) if query.ranged else 0)
    for i in range(1, query.made_words + 1):
        call.columns[end - i].data = call.allocate(8 * call.rows).ptr
    blocks = call.spread(call.rows, SMALL_BLOCK)
    call.launch("make_words", blocks, SMALL_BLOCK, call.args, call.columns)
