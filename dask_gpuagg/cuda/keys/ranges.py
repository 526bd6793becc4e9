"""Keys as numbers of what their columns hold: the ranges of the values, and steps in them."""

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
from dask_gpuagg.cuda.call import Call
from dask_gpuagg.cuda.keys.codes import WORD_BITS, range_near, range_of
from dask_gpuagg.cuda.query.forms import QUOTIENTS, RANGED, STEPPED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import ColumnStruct
from dask_gpuagg.cuda.runtime.driver import read_back

# Base and number of values of each key column.
Ranges = Sequence[tuple[int, int]]
# Combinations of values for each row up to which keys are numbered by them.
FILLING = 2
# Queries with values outside of narrow ranges: they get wider ones.
_out_of_range: Cache[tuple[Query, tuple[str, ...]], bool] = Cache(256)
FLOATS = ("f32", "f64")
# Bits of a word.
WORD = 64


class Numbering(NamedTuple):
    """A query with its keys numbered by their ranges, and these.

    Attributes
    ----------
    query : Query
    ranges : sequence of (int, int)
    steps : sequence of int
        By which the values of each column that have a number lie apart; none where all have one.
        Of floats so many lie between one integer and the next.
    """

    query: Query
    ranges: Ranges
    steps: Sequence[int] = ()

    @property
    def step(self) -> int:
        """Of the only column."""
        (step,) = self.steps
        return step

    @property
    def said(self) -> str:
        """What is said of the steps of the only column in a decision."""
        if self.query.keys[0].ctype in FLOATS:
            return f"keys are multiples of 1/{self.step:,}" if self.step > 1 else "keys are whole"
        return f"keys lie {self.step:,} apart"

    @property
    def columns(self) -> list[ColumnStruct]:
        """What kernels know of it (kernels/key/ranged.cuh)."""
        divides = _parts if self.query.keys[0].ctype in FLOATS else _step
        return [*map(divides, self.steps), *range_columns(self.ranges)]


def _step(step: int) -> ColumnStruct:
    """``EveryStep`` of kernels/key/ranged.cuh."""
    power = (step & -step).bit_length() - 1
    return ColumnStruct(pow(step >> power, -1, 1 << WORD), power, step)


def _parts(parts: int) -> ColumnStruct:
    """``EveryQuotient`` of kernels/key/ranged.cuh."""
    (inverse,) = struct.unpack("<Q", struct.pack("<d", 1 / parts))
    return ColumnStruct(inverse, 0, parts)


def range_columns(ranges: Ranges) -> list[ColumnStruct]:
    """What kernels know of the ranges of key columns (kernels/key/ranged.cuh)."""
    return [ColumnStruct(base % 2**64, 0, codes) for base, codes in ranges]


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
    if not query.may_fill or is_out_of_range(query, about):
        return None
    near = [range_near(least, greatest) for least, greatest in seen]
    numbers = math.prod(codes for _, codes in near)
    if numbers > FILLING * rows or numbers > 1 << WORD_BITS:
        return None
    return Numbering(replace(query, chosen=RANGED), near)


def packed_ranges(bounds: Sequence[tuple[int, int]], rows: int = 0) -> Ranges | None:
    """Base and number of values of each column, with room around what a sample has seen.

    There is little room where the ranges have so few combinations for each row that keys may be
    dense; elsewhere there is room for four times the range.
    None if there are more combinations than a word can number. ``rows`` is 0 where little room was
    too little for an earlier call.
    """
    near = [range_near(least, greatest) for least, greatest in bounds]
    if math.prod(codes for _, codes in near) <= FILLING * rows:
        return near
    wide = [(base, 1 << bits) for base, bits in (range_of(*each) for each in bounds)]
    return wide if math.prod(codes for _, codes in wide) <= 1 << WORD_BITS else None


def two_word_ranges(bounds: Sequence[tuple[int, int]]) -> Ranges | None:
    """Base and bits of each column, with room around what a sample has seen; None without room."""
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


def is_out_of_range(query: Query, about: tuple[str, ...]) -> bool:
    """Whether that is remembered."""
    return (query, about) in _out_of_range


def forget_out_of_range() -> None:
    """Use the ranges of samples again."""
    _out_of_range.clear()


# ---- steps ---------------------------------------------------------------------------------------

Words = npt.NDArray[Any]
# Distinct keys of which a common step is no chance.
_STEPPED_FROM = 16
# Rows of a call, at least: of fewer some keys take longer to look at than slots save.
STEPPED_ROWS = 1 << 22
# Rows side by side that are looked at, and in how many places.
_SOME_ROWS, _SOME_PLACES = 128, 32
# The steps of keys of several columns: looked for once, for a row that is in none calls them off.
_steps: Cache[tuple[Query, tuple[str, ...]], list[int]] = Cache(256)
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1
# What integers are divided by where floats are numbers of few decimals, and the greatest of them.
_PARTS = (1, 10, 100, 1000)
_WHOLE = 1 << 53


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
    if not query.may_be_stepped or is_out_of_range(query, about) or len(seen) < _STEPPED_FROM:
        return None
    if query.keys[0].ctype in FLOATS:
        return _by_quotients(query, seen, bounds, rows)
    step = _common_step(seen, bounds)
    numbers = _range_of_steps(bounds, step)
    if step == 1 or numbers is None or numbers[1] > FILLING * rows:
        return None
    return Numbering(replace(query, chosen=STEPPED), [numbers], [step])


def numbered_by_several_steps(call: Call, bounds: Sequence[tuple[int, int]]) -> Numbering | None:
    """Columns of which some lie in steps as combinations of these, if there are not too many."""
    query, most = call.query, FILLING * call.rows
    near = math.prod(codes for _, codes in (range_near(*each) for each in bounds))
    # without rows, or dense as they are
    if call.rows < STEPPED_ROWS or any(a > b for a, b in bounds) or near <= most:
        return None
    key = query, call.about
    steps = _steps.of(key, lambda: [_step_of(call, i, each) for i, each in enumerate(bounds)])
    ranges = [_range_of_steps(*each) for each in zip(bounds, steps, strict=True)]
    if max(steps) == 1 or None in ranges or math.prod(c for _, c in filter(None, ranges)) > most:
        return None
    query = replace(query, chosen=STEPPED)
    return Numbering(query, [each for each in ranges if each], steps)


def _step_of(call: Call, column: int, bounds: tuple[int, int]) -> int:
    """By which a column's values lie apart, as some rows show; 1 for those of a narrow range."""
    if call.query.keys[column].ctype != "i64" or bounds[1] - bounds[0] < call.rows:
        return 1
    values = call.columns[column]
    # what lies where a value is null may be anything
    if values.mask:
        return 1
    rows = (ctypes.c_int64 * _SOME_ROWS)()
    seen: list[int] = []
    for first in range(0, call.rows - _SOME_ROWS, call.rows // _SOME_PLACES):
        read_back(values.data + 8 * (values.offset + first), rows, call.handle)
        seen += rows
    return _common_step(np.unique(np.array(seen, dtype=np.int64)), bounds)


def _common_step(seen: Words, bounds: tuple[int, int]) -> int:
    """The greatest step by which distinct values lie apart; 1 where they are few."""
    if len(seen) < _STEPPED_FROM:
        return 1
    above = seen.astype(np.uint64) - np.uint64(bounds[0] % 2**64)
    # another sample may have seen lesser values
    apart = np.minimum(above, np.uint64(0) - above)
    return math.gcd(int(np.gcd.reduce(apart)), bounds[1] - bounds[0])


def _range_of_steps(bounds: tuple[int, int], step: int) -> tuple[int, int] | None:
    """Base and number of steps of a column; None if they leave what 64 bits hold."""
    least, greatest = bounds
    base, codes = range_near(0, (greatest - least) // step)
    base = least + base * step
    return (base, codes) if _LEAST <= base <= base + codes * step <= _GREATEST else None


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
        if greatest * parts >= _WHOLE:
            return None
        integers = np.rint(values.astype(np.float64) * parts)
        if bool(((integers / parts).astype(values.dtype) == values).all()):
            base, codes = range_near(round(least * parts), round(greatest * parts))
            if codes > FILLING * rows:
                return None
            # of so few decimals that more would only make more numbers
            return Numbering(replace(query, chosen=QUOTIENTS), [(base, codes)], [parts])
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


def forget_steps() -> None:
    """Look for steps again."""
    _steps.clear()
