"""Words of wide keys, and narrower representations where the values allow them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dask_gpuagg.cuda.call import Call
from dask_gpuagg.cuda.choice import summary
from dask_gpuagg.cuda.choice.decision import safe_slots
from dask_gpuagg.cuda.keys.codes import bounds_of, codes_of_seen, seen_bytes
from dask_gpuagg.cuda.keys.ranges import (
    FILLING,
    is_out_of_range,
    numbered_by_several_steps,
    packed_ranges,
    range_columns,
    two_word_ranges,
)
from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.forms import CODED, HASHED, RANGED, WIDE_RANGED, Form
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import Codes, ColumnStruct, Counters, Index
from dask_gpuagg.cuda.query.tuning import SMALL_BLOCK
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import fill

# Words of a slot of the index before the key's own, of a sector of memory, of the longest slots.
_HEAD = 2
_SECTOR = 4
_MOST_WORDS = 16
# Bytes of the index for each row that longer slots may take.
_INDEX_BYTES = 32


class Keys(NamedTuple):
    """Keys in one form.

    Attributes
    ----------
    query : Query
    columns : sequence of ColumnStruct
        Base and number of values of every key column, where they are packed by their ranges.
    codes : Codes, optional
        Where they are numbered by the bytes that occur.
    """

    query: Query
    columns: Sequence[ColumnStruct] = ()
    codes: Codes | None = None


def narrowed(call: Call, slots: bool = True) -> Keys:
    """The keys in a narrower form, or in their own if no other serves.

    Parameters
    ----------
    call : Call
        Of a query with made words, nothing of it computed yet.
    slots : bool
        Whether dense keys may be addressed directly. If not, there is nothing to gain by ranges
        that are hardly wider than the sample's.

    Returns
    -------
    Keys
    """
    query = call.query
    near = not is_out_of_range(query, call.about)
    rows = call.rows if slots and near else 0
    if query.is_integral:
        bounds = _bounds(call)
        stepped = numbered_by_several_steps(call, bounds) if rows else None
        if stepped is not None:
            return Keys(stepped.query, stepped.columns)
        ranges = packed_ranges(bounds, rows)
        if ranges is not None:
            return Keys(replace(query, chosen=RANGED), range_columns(ranges))
        bits = two_word_ranges(bounds) if near and query.form == HASHED else None
        if bits is not None:
            return Keys(replace(query, chosen=WIDE_RANGED), range_columns(bits))
    elif query.may_be_coded:
        codes = codes_of_seen(query.keys, query.keep_nulls, seen_bytes(call), FILLING * rows)
        if codes is not None:
            return Keys(replace(query, chosen=CODED), codes=codes)
    return Keys(query)


def representations_of(query: Query) -> list[Query]:
    """The query, and those that ``narrowed`` or ``numbered_by_ranges`` may make of it."""
    forms: list[Form] = []
    if (query.form.made_words and query.is_integral) or query.may_fill:
        forms.append(RANGED)
        if query.form == HASHED:
            forms.append(WIDE_RANGED)
    if query.may_be_coded:
        forms.append(CODED)
    return [query, *(replace(query, chosen=form) for form in forms)]


def _bounds(call: Call) -> list[tuple[int, int]]:
    columns = len(call.query.keys)
    seen = (ctypes.c_uint64 * (2 * columns))()
    # as the kernel keeps them, all ones are the bounds of nothing
    call.summarised("ranges", summary.SEGMENTS, tuning.SEGMENT, seen, 0xFF)
    return [bounds_of(seen[2 * i], seen[2 * i + 1]) for i in range(columns)]


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
    words = query.form.made_words
    end = len(call.columns) - (query.extra_columns - words)
    for i in range(1, words + 1):
        call.columns[end - i].data = call.allocate(8 * call.rows).ptr
    blocks = call.spread(call.rows, SMALL_BLOCK)
    call.launch("make_words", blocks, SMALL_BLOCK, call.args, call.columns)
