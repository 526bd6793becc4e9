"""Keys as numbers of the values of their columns: by the ranges of these, or by steps in them."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.call import Call, Columns
from dask_gpuagg.cuda.choice.summary import BEYOND
from dask_gpuagg.cuda.keys.words import Keys
from dask_gpuagg.cuda.query.forms import HASHED, RANGED, STEPPED, WIDE_RANGED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import ColumnStruct, Counters

# Base and number of values of each key column.
Ranges = Sequence[tuple[int, int]]
Bounds = Sequence[tuple[int, int]]
# Combinations of values for each row up to which keys are numbered by them.
FILLING = 2
# Bits of a word.
WORD_BITS = 64
# No word of so few bits is mixed to the one that stands for an empty slot.
SAFE_BITS = 59
# Bits that integers get beyond those of the sampled values: as many values again below them, and
# twice as many above.
_MARGIN = 2
# Values at either end of a near range that a sample may have missed, beside a share of the range.
_VALUES_BEYOND = 4


@dataclass
class RangedKeys(Keys):
    """Keys as numbers of the values of their columns, in ranges of these.

    ``step`` is the distance of the only column's values; 0 where all values have a number.
    """

    ranges: Ranges
    step: int = 0

    @property
    def extra(self) -> list[ColumnStruct]:
        """The step and the ranges (kernels/key/ranged.cuh)."""
        columns = [_step_column(self.step)] if self.step else []
        return columns + [ColumnStruct(base % 2**64, 0, codes) for base, codes in self.ranges]

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
        remember_out_of_range(own, columns.key_labels)
        return Keys(own)


def _step_column(step: int) -> ColumnStruct:
    """Encode a step as ``EveryStep`` of kernels/key/ranged.cuh reads it."""
    power = (step & -step).bit_length() - 1
    return ColumnStruct(pow(step >> power, -1, 1 << WORD_BITS), power, step)


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
    beyond = span // BEYOND + _VALUES_BEYOND
    return (least - beyond if span else 0), span + 2 * beyond + 1


def bounds_of(least: int, greatest: int) -> tuple[int, int]:
    """Least and greatest value, from how kernels/estimate/ranges.cuh keeps them."""
    half = 1 << 63
    return least - half, half - 1 - greatest


def combinations(ranges: Ranges) -> int:
    """Numbers of keys that may have any value of the ranges."""
    return math.prod(codes for _, codes in ranges)


def ranged(call: Call, slots: bool) -> RangedKeys | None:
    """Integers that exceed a word by the ranges of a sample, in one word or in two."""
    query = call.query
    if not query.is_integral:
        return None
    near = not is_out_of_range(query, call.key_labels)
    rows = call.rows if slots and near else 0
    bounds = _bounds(call)
    if ranges := packed_ranges(bounds, rows):
        return RangedKeys(replace(query, chosen=RANGED), ranges)
    if near and query.form == HASHED and (ranges := two_word_ranges(bounds)):
        return RangedKeys(replace(query, chosen=WIDE_RANGED), ranges)
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
    near = [range_near(*ends) for ends in bounds]
    if combinations(near) <= FILLING * rows:
        return near
    wide = [range_wide(*ends) for ends in bounds]
    return wide if combinations(wide) <= 1 << SAFE_BITS else None


def two_word_ranges(bounds: Bounds) -> Ranges | None:
    """Base and bits of each column, with room around a sample; None beyond two words."""
    for margin in (2, 1):
        ranges = [range_of(*ends, margin) for ends in bounds]
        bits = [bits for _, bits in ranges]
        if max(bits) < WORD_BITS and sum(bits) <= 2 * WORD_BITS:
            return ranges
    return None


def numbered_by_ranges(
    query: Query, bounds: Bounds, rows: int, key_labels: tuple[str, ...] = ()
) -> RangedKeys | None:
    """Keys that fit a word by the combinations of their values, if there are not too many."""
    if not query.may_fill or is_out_of_range(query, key_labels):
        return None
    near = [range_near(*ends) for ends in bounds]
    if combinations(near) > min(FILLING * rows, 1 << SAFE_BITS):
        return None
    return RangedKeys(replace(query, chosen=RANGED), near)


# Queries with values outside of narrow ranges: they get wider ones.
_out_of_range: Cache[tuple[Query, tuple[str, ...]], bool] = Cache(256)


def remember_out_of_range(query: Query, key_labels: tuple[str, ...]) -> None:
    """Remember that values of a query in its own form lay outside of the ranges of a sample."""
    _out_of_range.put((query, key_labels), True)


def is_out_of_range(query: Query, key_labels: tuple[str, ...]) -> bool:
    """Whether that is remembered."""
    return (query, key_labels) in _out_of_range


def forget_out_of_range() -> None:
    """Use the ranges of samples again."""
    _out_of_range.clear()


# ---- steps ---------------------------------------------------------------------------------------

# Distinct keys from which on a common step is unlikely to be chance.
_STEPPED_FROM = 16
# Rows of a call, at least: of fewer some keys take longer to look at than slots save.
STEPPED_ROWS = 1 << 22
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


def numbered_by_steps(
    query: Query,
    words: npt.NDArray[np.int64],
    bounds: tuple[int, int],
    rows: int,
    key_labels: tuple[str, ...] = (),
) -> RangedKeys | None:
    """Keys that lie a multiple of a step apart as the multiples, if there are not too many.

    ``words`` are those of some distinct keys, ``bounds`` the least and the greatest of a sample.
    """
    if not query.may_be_stepped or is_out_of_range(query, key_labels) or len(words) < _STEPPED_FROM:
        return None
    least, greatest = bounds
    above = words.astype(np.uint64) - np.uint64(least % 2**64)
    # another sample may have lesser values
    distances = np.minimum(above, np.uint64(0) - above)
    step = math.gcd(int(np.gcd.reduce(distances)), greatest - least)
    first, codes = range_near(0, (greatest - least) // step)
    base = least + first * step
    is_within = _LEAST <= base <= base + codes * step <= _GREATEST
    if step == 1 or codes > FILLING * rows or not is_within:
        return None
    return RangedKeys(replace(query, chosen=STEPPED), [(base, codes)], step)
