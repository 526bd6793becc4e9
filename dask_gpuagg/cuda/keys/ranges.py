"""Keys as numbers of the values of their columns: by the ranges of these, or by steps in them."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.call import Call, Columns
from dask_gpuagg.cuda.choice.summary import BEYOND
from dask_gpuagg.cuda.keys.words import Keys
from dask_gpuagg.cuda.query.forms import HASHED, QUOTIENTS, RANGED, STEPPED, WIDE_RANGED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import ColumnStruct, Counters
from dask_gpuagg.cuda.runtime.driver import read_back

# Base and number of values of each key column.
Ranges = Sequence[tuple[int, int]]
Bounds = Sequence[tuple[int, int]]
# Combinations of values for each row up to which keys are numbered by them.
FILLING = 2
FLOATS = ("f32", "f64")
# Bits of a word.
WORD = 64
# No word of so few bits is mixed to the one that stands for an empty slot.
WORD_BITS = 59
# Bits that integers get beyond those of the sampled values: as many values again below them, and
# twice as many above.
_MARGIN = 2
# Values at either end of a near range that a sample may have missed, beside a share of the range.
_NEAR = 4


@dataclass
class Numbering(Keys):
    """Keys as numbers of the values of their columns, in ranges of these.

    ``steps`` are those by which the values of each column that have a number lie apart; none where
    all have one. Of floats so many lie between one integer and the next.
    """

    ranges: Ranges
    steps: Sequence[int] = ()

    @property
    def extra(self) -> list[ColumnStruct]:
        """The steps and ranges (kernels/key/ranged.cuh)."""
        divides = _parts if self.query.keys[0].ctype in FLOATS else _step
        ranges = (ColumnStruct(base % 2**64, 0, codes) for base, codes in self.ranges)
        return [*map(divides, self.steps), *ranges]

    @property
    def step(self) -> int:
        """The step of the only column."""
        (step,) = self.steps
        return step

    @property
    def step_text(self) -> str:
        """The step of the only column, for a decision."""
        if self.query.keys[0].ctype in FLOATS:
            return f"keys are multiples of 1/{self.step:,}" if self.step > 1 else "keys are whole"
        return f"keys lie {self.step:,} apart"

    def make(self, call: Call) -> None:
        """Words, or in the first range the flag that a row outside of the ranges raises."""
        super().make(call)
        if not self.query.form.made_words:
            for columns, _, _ in call.pieces:
                ranges = columns[len(columns) - len(self.ranges)]
                ranges.mask = call.args.counters + Counters.ambiguous.offset

    def wider(self, columns: Columns) -> Keys | None:
        """The keys in their own form; later calls get wider ranges."""
        own = replace(self.query, chosen=None)
        remember_out_of_range(own, columns.about)
        return Keys(own)


def _step(step: int) -> ColumnStruct:
    """``EveryStep`` of kernels/key/ranged.cuh."""
    power = (step & -step).bit_length() - 1
    return ColumnStruct(pow(step >> power, -1, 1 << WORD), power, step)


def _parts(parts: int) -> ColumnStruct:
    """``EveryQuotient`` of kernels/key/ranged.cuh."""
    (inverse,) = struct.unpack("<Q", struct.pack("<d", 1 / parts))
    return ColumnStruct(inverse, 0, parts)


# ---- ranges --------------------------------------------------------------------------------------


def range_of(least: int, greatest: int, margin: int = _MARGIN) -> tuple[int, int]:
    """Base and bits of integers, with room around those of a sample.

    Of no values the least is above the greatest. ``margin`` bits are added: a third of that room
    lies below the sampled values.
    """
    needed = (greatest - least + 1).bit_length() if greatest >= least else 0
    below = ((1 << margin) - 1 << needed) // 3
    return (least - below if greatest >= least else 0), needed + margin


def range_wide(least: int, greatest: int) -> tuple[int, int]:
    """Base and number of values, with room for four times the range of a sample."""
    base, bits = range_of(least, greatest)
    return base, 1 << bits


def range_near(least: int, greatest: int) -> tuple[int, int]:
    """Base and number of values, with little room around those of a sample, and a null."""
    span = max(0, greatest - least + 1)
    beyond = span // BEYOND + _NEAR
    return (least - beyond if span else 0), span + 2 * beyond + 1


def bounds_of(least: int, greatest: int) -> tuple[int, int]:
    """Least and greatest value, from how kernels/estimate/ranges.cuh keeps them."""
    half = 1 << 63
    return least - half, half - 1 - greatest


def combinations(ranges: Ranges) -> int:
    """Numbers of keys that may have any value of the ranges."""
    return math.prod(codes for _, codes in ranges)


def numbered(call: Call, slots: bool) -> Numbering | None:
    """Integers that exceed a word by the ranges of a sample, in one word or in two."""
    query = call.query
    if not query.is_integral:
        return None
    near = not is_out_of_range(query, call.about)
    rows = call.rows if slots and near else 0
    bounds = _bounds(call)
    if rows and (stepped := numbered_by_several_steps(call, bounds)):
        return stepped
    if ranges := packed_ranges(bounds, rows):
        return Numbering(replace(query, chosen=RANGED), ranges)
    if near and query.form == HASHED and (ranges := two_word_ranges(bounds)):
        return Numbering(replace(query, chosen=WIDE_RANGED), ranges)
    return None


def _bounds(call: Call) -> Bounds:
    columns = len(call.query.keys)
    seen = (ctypes.c_uint64 * (2 * columns))()
    call.summarise("ranges", seen)
    return [bounds_of(seen[2 * i], seen[2 * i + 1]) for i in range(columns)]


def packed_ranges(bounds: Bounds, rows: int = 0) -> Ranges | None:
    """The range of each column, with room around a sample; None beyond a word.

    There is little room where the ranges have so few combinations for each row that keys may be
    dense; ``rows`` is 0 where little room was too little for an earlier call.
    """
    near = [range_near(*each) for each in bounds]
    if combinations(near) <= FILLING * rows:
        return near
    wide = [range_wide(*each) for each in bounds]
    return wide if combinations(wide) <= 1 << WORD_BITS else None


def two_word_ranges(bounds: Bounds) -> Ranges | None:
    """Base and bits of each column, with room around a sample; None beyond two words."""
    for margin in (2, 1):
        ranges = [range_of(*each, margin) for each in bounds]
        bits = [bits for _, bits in ranges]
        if max(bits) < WORD and sum(bits) <= 2 * WORD:
            return ranges
    return None


def numbered_by_ranges(
    query: Query, seen: Bounds, rows: int, about: tuple[str, ...] = ()
) -> Numbering | None:
    """Keys that fit a word by the combinations of their values, if there are not too many."""
    if not query.may_fill or is_out_of_range(query, about):
        return None
    near = [range_near(*each) for each in seen]
    if combinations(near) > min(FILLING * rows, 1 << WORD_BITS):
        return None
    return Numbering(replace(query, chosen=RANGED), near)


# Queries with values outside of narrow ranges: they get wider ones.
_out_of_range: Cache[tuple[Query, tuple[str, ...]], bool] = Cache(256)


def remember_out_of_range(query: Query, about: tuple[str, ...]) -> None:
    """Remember that values of a query in its own form lay outside of the ranges of a sample."""
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
# Divisors of integers where floats are numbers of few decimals, and the greatest such integer.
_PARTS = (1, 10, 100, 1000)
_WHOLE = 1 << 53


def numbered_by_steps(
    query: Query, seen: Words, bounds: tuple[int, int], rows: int, about: tuple[str, ...] = ()
) -> Numbering | None:
    """Keys that lie whole steps apart as the numbers of the steps, if there are not too many.

    ``seen`` are the words of some distinct keys, ``bounds`` the least and the greatest of a sample.
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


def numbered_by_several_steps(call: Call, bounds: Bounds) -> Numbering | None:
    """Columns of which some lie in steps as combinations of these, if there are not too many."""
    most = FILLING * call.rows
    # without rows, or dense as they are
    dense = combinations([range_near(*each) for each in bounds]) <= most
    if dense or call.rows < STEPPED_ROWS or any(a > b for a, b in bounds):
        return None
    key = call.query, call.about
    steps = _steps.of(key, lambda: [_step_of(call, i, each) for i, each in enumerate(bounds)])
    ranges = [
        numbers for each in zip(bounds, steps, strict=True) if (numbers := _range_of_steps(*each))
    ]
    if max(steps) == 1 or len(ranges) < len(bounds) or combinations(ranges) > most:
        return None
    return Numbering(replace(call.query, chosen=STEPPED), ranges, steps)


def _step_of(call: Call, column: int, bounds: tuple[int, int]) -> int:
    """The step between a column's values, by some rows; 1 for values of a narrow range."""
    if call.query.keys[column].ctype != "i64" or bounds[1] - bounds[0] < call.rows:
        return 1
    values = call.columns[column]
    # the bytes of a null may be anything
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
    """Base and number of steps of a column; None if they leave the range of 64 bits."""
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
    least, greatest = floats_of_words(query, np.array(bounds, dtype=np.int64)).tolist()
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


def float_word(query: Query, value: float) -> int:
    """The word of one value that is not negative."""
    single = query.keys[0].ctype == "f32"
    bits = np.array([value], dtype=np.float32 if single else np.float64)
    return int(bits.view(np.uint32 if single else np.int64)[0])


def forget_steps() -> None:
    """Look for steps again."""
    _steps.clear()
