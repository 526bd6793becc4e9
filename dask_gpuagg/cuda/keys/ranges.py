"""Keys as numbers of what their columns hold: the ranges of the values, and steps in them."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.keys.codes import WORD_BITS, range_near, range_of
from dask_gpuagg.cuda.query.forms import RANGED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import ColumnStruct

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
    near = [range_near(least, greatest) for least, greatest in bounds]
    if math.prod(codes for _, codes in near) <= FILLING * rows:
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


def is_out_of_range(query: Query, about: tuple[str, ...]) -> bool:
    """Whether that is remembered."""
    return (query, about) in _out_of_range


def forget_out_of_range() -> None:
    """Use the ranges of samples again."""
    _out_of_range.clear()
