"""Words of wide keys, and narrower representations where the values allow them."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.call.call import Call, ColumnStruct, Counters
from dask_gpuagg.cuda.choice import summary
from dask_gpuagg.cuda.choice.decision import safe_slots
from dask_gpuagg.cuda.choice.summary import BEYOND
from dask_gpuagg.cuda.keys.codes import (
    WORD_BITS,
    Codes,
    bounds_of,
    codes_of_seen,
    range_of,
    seen_bytes,
)
from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import SHORT_STRING, SMALL_BLOCK
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import fill

Words = npt.NDArray[Any]

# Bits of a word.
WORD = 64
# Words of a slot of the index before the key's own, of a sector of memory, of the longest slots.
_HEAD = 2
_SECTOR = 4
_MOST_WORDS = 16
# Bytes of the index for each row that longer slots may take.
_INDEX_BYTES = 32
# Combinations of values for each row up to which keys are numbered by them.
_FILLING = 2
# Queries with values outside of narrow ranges: they get wider ones.
_out_of_range: Cache[tuple[Query, tuple[str, ...]], bool] = Cache(256)
# Values at either end of a near range that a sample may have missed, beside a share of the range.
_NEAR = 4
# Base and number of values of each key column.
Ranges = Sequence[tuple[int, int]]
# Distinct keys of which a common step is no chance.
_STEPPED_FROM = 16
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1
# What integers are divided by where floats are numbers of few decimals, and the greatest of them.
_PARTS = (1, 10, 100, 1000)
_WHOLE = 1 << 53
FLOATS = ("f32", "f64")


class Numbering(NamedTuple):
    """A query with its keys numbered by their ranges, and these.

    Attributes
    ----------
    query : Query
    ranges : sequence of (int, int)
    step : int
        By which values of the only column that have a number lie apart; 1 where all have one. Of
        floats so many lie between one integer and the next.
    """

    query: Query
    ranges: Ranges
    step: int = 1

    @property
    def said(self) -> str:
        """What is said of steps in a decision."""
        if self.query.keys[0].ctype in FLOATS:
            return f"keys are multiples of 1/{self.step:,}" if self.step > 1 else "keys are whole"
        return f"keys lie {self.step:,} apart"

    @property
    def columns(self) -> list[ColumnStruct]:
        """What kernels know of it (kernels/key/ranged.cuh)."""
        columns = range_columns(self.ranges)
        if not self.query.stepped:
            return columns
        if self.query.keys[0].ctype in FLOATS:
            (inverse,) = struct.unpack("<Q", struct.pack("<d", 1 / self.step))
            return [ColumnStruct(inverse, 0, self.step), *columns]
        power = (self.step & -self.step).bit_length() - 1
        inverse = pow(self.step >> power, -1, 1 << WORD)
        return [ColumnStruct(inverse, power, self.step), *columns]


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
        near, bounds = (query, call.about) not in _out_of_range, _bounds(call)
        ranges = packed_ranges(bounds, call.rows if slots and near else 0)
        if ranges is not None:
            return replace(query, ranged=True), range_columns(ranges), None
        bits = two_word_ranges(bounds) if near and query.family == "Hashed" else None
        if bits is not None:
            return replace(query, ranged=True, two_words=True), range_columns(bits), None
    elif query.may_be_coded:
        codes = codes_of_seen(query.keys, query.keep_nulls, seen_bytes(call))
        if codes is not None:
            return replace(query, coded=True), [], codes
    return shortened(call), [], None


def numbered_by_ranges(
    query: Query, seen: Sequence[tuple[int, int]], rows: int, about: tuple[str, ...] = ()
) -> Numbering | None:
    """Keys as the numbers of combinations of their values, if there are not too many of these.

    Parameters
    ----------
    query : Query
    seen : sequence of (int, int)
        Least and greatest value of each key column in a sample.
    rows : int
    about : tuple of str
        What is grouped by.

    Returns
    -------
    Numbering or None
    """
    if not query.may_fill or (query, about) in _out_of_range:
        return None
    near = [_range_near(least, greatest) for least, greatest in seen]
    numbers = math.prod(codes for _, codes in near)
    if numbers > _FILLING * rows or numbers > 1 << WORD_BITS:
        return None
    return Numbering(replace(query, ranged=True), near)


def numbered_by_steps(
    query: Query,
    seen: Words,
    bounds: tuple[int, int],
    rows: int,
    about: tuple[str, ...] = (),
) -> Numbering | None:
    """Keys that lie whole steps apart as the numbers of the steps, if there are not too many.

    Parameters
    ----------
    query : Query
    seen : array of int64
        The words of some distinct keys.
    bounds : tuple of (int, int)
        The least and the greatest word of a sample.
    rows : int
    about : tuple of str
        What is grouped by.

    Returns
    -------
    Numbering or None
    """
    if not query.may_be_stepped or (query, about) in _out_of_range or len(seen) < _STEPPED_FROM:
        return None
    if query.keys[0].ctype in FLOATS:
        return _by_quotients(query, seen, bounds, rows)
    least, greatest = bounds
    apart = seen.astype(np.uint64) - np.uint64(least % 2**64)
    step = math.gcd(int(np.gcd.reduce(apart)), greatest - least)
    if step < 2:
        return None
    base, codes = _range_near(0, (greatest - least) // step)
    base = least + base * step
    if codes > _FILLING * rows or base < _LEAST or base + codes * step > _GREATEST:
        return None
    return Numbering(replace(query, ranged=True, stepped=True), [(base, codes)], step)


def _by_quotients(
    query: Query, seen: Words, bounds: tuple[int, int], rows: int
) -> Numbering | None:
    """Floats that are quotients of integers and a power of ten, as the integers."""
    # words order as the values do where these are not negative
    if bounds[0] < 0 or bounds[1] >= float_word(query, math.inf):
        return None
    least, greatest = (float_of_word(query, word) for word in bounds)
    values = floats_of_words(query, seen)
    for parts in _PARTS:
        whole = np.rint(values.astype(np.float64) * parts)
        if whole.max() < _WHOLE and bool(((whole / parts).astype(values.dtype) == values).all()):
            base, codes = _range_near(round(least * parts), round(greatest * parts))
            if codes > _FILLING * rows:
                return None
            # of so few decimals that more would only make more numbers
            return Numbering(replace(query, ranged=True, stepped=True), [(base, codes)], parts)
    return None


def floats_of_words(query: Query, words: Words) -> Words:
    """Values of the only key, a float, by their words."""
    if query.keys[0].ctype == "f32":
        return words.astype(np.uint32).view(np.float32)
    return words.view(np.float64)


def float_of_word(query: Query, word: int) -> float:
    """The value of one word."""
    return float(floats_of_words(query, np.array([word], dtype=np.int64))[0])


def float_word(query: Query, value: float) -> int:
    """The word of one value that is not negative."""
    single = query.keys[0].ctype == "f32"
    bits = np.array([value], dtype=np.float32 if single else np.float64)
    return int(bits.view(np.uint32 if single else np.int64)[0])


def range_columns(ranges: Ranges) -> list[ColumnStruct]:
    """What kernels know of the ranges of key columns (kernels/key/ranged.cuh)."""
    return [ColumnStruct(base % 2**64, 0, codes) for base, codes in ranges]


def shortened(call: Call) -> Query:
    """The query with its strings as two words, if they are short enough, or the call's own."""
    query = call.query
    if query.may_be_short:
        most = SHORT_STRING * call.rows
        if call.columns[1].offset <= most and _longest(call) <= SHORT_STRING:
            return _short(query)
    return query


def representations_of(query: Query) -> list[Query]:
    """The query, and those that ``narrowed`` or ``numbered_by_ranges`` may make of it."""
    made = [query]
    if (query.made_words and query.integral) or query.may_fill:
        made.append(replace(query, ranged=True))
        if query.family == "Hashed":
            made.append(replace(query, ranged=True, two_words=True))
    if query.may_be_coded:
        made.append(replace(query, coded=True))
    if query.may_be_short:
        made.append(_short(query))
    return made


def _short(query: Query) -> Query:
    return replace(query, keys=(query.keys[0]._replace(short=True),))


def packed_ranges(bounds: Sequence[tuple[int, int]], rows: int = 0) -> Ranges | None:
    """Base and number of values of each column, with room around what a sample has seen.

    There is little room where the ranges have so few combinations for each row that keys may be
    dense; elsewhere there is room for four times the range.

    Parameters
    ----------
    bounds : sequence of (int, int)
        Least and greatest value of each column; of no values the least is above the greatest.
    rows : int
        0 where little room was too little for an earlier call.

    Returns
    -------
    list of (int, int) or None
        None if there are more combinations than a word can number.
    """
    near = [_range_near(least, greatest) for least, greatest in bounds]
    if math.prod(codes for _, codes in near) <= _FILLING * rows:
        return near
    wide = [(base, 1 << bits) for base, bits in (range_of(*each) for each in bounds)]
    return wide if math.prod(codes for _, codes in wide) <= 1 << WORD_BITS else None


def two_word_ranges(bounds: Sequence[tuple[int, int]]) -> Ranges | None:
    """Base and bits of each column, with room around what a sample has seen.

    Parameters
    ----------
    bounds : sequence of (int, int)
        As of ``packed_ranges``.

    Returns
    -------
    list of (int, int) or None
        None if a column or all together have more bits than words have.
    """
    for margin in (2, 1):
        ranges = [range_of(*each, margin) for each in bounds]
        each = [bits for _, bits in ranges]
        if max(each) < WORD and sum(each) <= 2 * WORD:
            return ranges
    return None


def remember_out_of_range(query: Query, about: tuple[str, ...]) -> None:
    """Remember that values lay outside of the ranges of a sample.

    Parameters
    ----------
    query : Query
        Without ranges.
    about : tuple of str
        What is grouped by.
    """
    _out_of_range.put((query, about), True)


def forget_out_of_range() -> None:
    """Use the ranges of samples again."""
    _out_of_range.clear()


def _range_near(least: int, greatest: int) -> tuple[int, int]:
    span = max(0, greatest - least + 1)
    beyond = span // BEYOND + _NEAR
    # one more for the null
    return (least - beyond if span else 0), span + 2 * beyond + 1


def _bounds(call: Call) -> list[tuple[int, int]]:
    columns = len(call.query.keys)
    seen = (ctypes.c_uint64 * (2 * columns))()
    # as the kernel keeps them, all ones are the bounds of nothing
    call.summarised("ranges", summary.SEGMENTS, tuning.SEGMENT, seen, 0xFF)
    return [bounds_of(seen[2 * i], seen[2 * i + 1]) for i in range(columns)]


def _longest(call: Call) -> int:
    """Bytes of the longest string of the first key column."""
    longest = ctypes.c_uint32()
    blocks = call.spread(call.rows, SMALL_BLOCK)
    call.summarised("longest", blocks, SMALL_BLOCK, longest, 0)
    return int(longest.value)


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
