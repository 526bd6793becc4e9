"""Quantiles of groups by brackets, on the host; ``dask_gpuagg.narrowing`` has the steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg.aggregations import Kind
from dask_gpuagg.engines.host import compiled
from dask_gpuagg.engines.host.grouping import Groups, group
from dask_gpuagg.engines.host.stacking import keys_of, places_among, stack
from dask_gpuagg.narrowing import (
    ERRORS,
    SPARE,
    Target,
    interpolation_of,
    share_inside,
    target_of,
    targets,
)
from dask_gpuagg.plan import Output, Plan

Array = npt.NDArray[Any]

# Where a row lies; those at the ends are counted and not kept: many equal ones cost nothing.
BELOW, AT_LOW, INSIDE, AT_HIGH, ABOVE = range(5)
SIDES = 5
# The rows of some partitions, counted by the sides of brackets: ``keys``, a DataFrame of their
# groups; ``counts``, for each target an int64 array of shape (groups, SIDES); and ``inside``, for
# each target the group and the value of each row inside. Plain, so that arrays travel as they are.
Counted = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Brackets:
    """Brackets by target: the two values between which a group's order statistics are searched.

    ``keys`` are those of the groups that have brackets; ``ends`` for each target the low and the
    high ends, arrays of 64-bit numbers of shape (groups,). ``others``: whether the brackets of all
    other groups are open, or shut. ``inside`` is the share of all rows expected between.
    """

    keys: pd.DataFrame
    ends: list[tuple[Array, Array]]
    others: bool
    inside: float = 0.0


def sample(run: Sequence[Any], plan: Plan, stride: int) -> pd.DataFrame:
    """One row of each ``stride``: columns ``k0``, ``k1`` and so on, and ``v`` with a position.

    ``run`` has parts with ``keys`` and ``columns`` as the plan names them, of equal dtypes.
    """
    sampled = []
    for part in run:
        rows = len(part.keys[0])
        # not at equal distances: rows may have a period
        places = np.arange(0, rows, stride)
        places += np.random.default_rng(rows).integers(0, stride, len(places))
        places = np.minimum(places, rows - 1)
        taken = {f"k{i}": key.array.take(places) for i, key in enumerate(part.keys)}
        taken |= {f"v{c}": part.columns[c].array.take(places) for c in plan.rows}
        sampled.append(pd.DataFrame(taken, copy=False))
    return stack(sampled)


def kept_rows(counted: Sequence[Counted]) -> int:
    """The number of rows inside of brackets."""
    return sum(len(values) for of_chunk in counted for _, values in of_chunk["inside"])


def aim(samples: Sequence[pd.DataFrame], plan: Plan) -> Brackets:
    """Brackets from the samples of all chunks."""
    stacked = stack(list(samples))
    groups = group(keys_of(stacked), plan.dropna and not plan.drops_late)
    ends = []
    for target in targets(plan):
        column = stacked[f"v{target.column}"]
        # values are compared by compiled loops of three signatures
        kind = plan.columns[target.column].dtype.kind
        wide = np.dtype({"i": np.int64, "u": np.uint64, "f": np.float64}[kind])
        values, codes = _plain(column, groups, wide)
        values = values.astype(wide, copy=False)
        valid = ~np.isnan(values)
        if not valid.all():
            values, codes = values[valid], codes[valid]
        ends.append(_aimed(codes, groups.n, values, target.q))
    inside = share_inside(np.bincount(groups.codes, minlength=groups.n))
    return Brackets(_key_table(groups), ends, others=True, inside=inside)


def _key_table(groups: Groups) -> pd.DataFrame:
    return pd.DataFrame({f"k{i}": key for i, key in enumerate(groups.keys)}, copy=False)


def _aimed(codes: Array, n: int, values: Array, q: float) -> tuple[Array, Array]:
    counts = np.bincount(codes, minlength=n)
    starts = np.cumsum(counts) - counts
    sorted_values = values[compiled.order_within(codes, n, values)]
    middle = q * counts - 0.5
    margin = ERRORS * np.sqrt(counts * q * (1.0 - q)) + SPARE
    low, high = np.floor(middle - margin).astype(np.int64), np.ceil(middle + margin).astype(int)
    lowest, highest = _extremes(values.dtype)
    lows, highs = np.full(n, lowest, values.dtype), np.full(n, highest, values.dtype)
    some = low >= 0
    lows[some] = sorted_values[(starts + low)[some]]
    some = high < counts
    highs[some] = sorted_values[(starts + high)[some]]
    return lows, highs


def _extremes(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def count(
    keys: Sequence[pd.Series], columns: Sequence[pd.Series], brackets: Brackets, plan: Plan
) -> Counted:
    """Count rows by the sides of their group's brackets, and keep those inside."""
    groups = group(keys, plan.dropna and not plan.drops_late)
    table = _key_table(groups)
    places = places_among(table, brackets.keys)
    counts, inside = [], []
    for target, ends in zip(targets(plan), brackets.ends, strict=True):
        values, codes = _plain(columns[target.column], groups, ends[0].dtype)
        lows, highs = _ends_of(places, ends, brackets.others)
        sides, *rows = count_by_bracket_position(codes, groups.n, values, lows, highs)
        counts.append(sides)
        inside.append(tuple(rows))
    return {"keys": table, "counts": counts, "inside": inside}


def _plain(column: pd.Series, groups: Groups, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """The values of rows that have a group, without a mask, and their groups.

    A column that holds nothing may have a mask where the metadata promises integers.
    """
    array = column.array if groups.has_group is None else column.array[groups.has_group]
    if isinstance(column.dtype, np.dtype):
        return array.to_numpy(), groups.codes
    valid = ~np.asarray(array.isna())
    return array[valid].to_numpy(dtype), groups.codes[valid]


def _ends_of(places: Array, ends: tuple[Array, Array], others: bool) -> tuple[Array, Array]:
    """The ends of the brackets of groups; nothing lies between those of a bracket that is shut."""
    lowest, highest = _extremes(ends[0].dtype)
    lows = np.full(len(places), lowest if others else highest, ends[0].dtype)
    highs = np.full(len(places), highest, ends[0].dtype)
    some = places >= 0
    lows[some], highs[some] = ends[0][places[some]], ends[1][places[some]]
    return lows, highs


def count_by_bracket_position(
    codes: Array, n: int, values: Array, lows: Array, highs: Array
) -> tuple[Array, Array, Array]:
    """Counts of each group's sides; group and value of each row inside."""
    counts = np.zeros((n, SIDES), np.int64)
    codes = compiled.read_only(codes, np.int32)
    # memory that is not written to takes no room; a row that is not kept is overwritten
    of_row, inside = np.empty(len(codes) + 1, np.int32), np.empty(len(codes) + 1, lows.dtype)
    ends = compiled.read_only(lows, lows.dtype), compiled.read_only(highs, lows.dtype)
    loops, at = compiled.import_loops(), 0
    for start, block in compiled.blocks(values, lows.dtype):
        of_block = codes[start : start + len(block)]
        at = loops.count_sides(of_block, block, *ends, counts, of_row, inside, at)
    return counts, of_row[:at].copy(), inside[:at].copy()


class _Ranked(NamedTuple):
    """Ranks on either side of a quantile, and their places, by group.

    ``rows`` are the values of each group, ``before`` those below the ones inside. ``ranks`` has the
    upper and the lower ones, ``sides`` those of both. ``missed`` are groups whose brackets do not
    hold their ranks.
    """

    rows: Array
    before: Array
    ranks: Array
    sides: Array
    missed: Array


class _Together:
    """The counts of all chunks, whose groups are numbered, and the brackets of these groups."""

    def __init__(self, counted: Sequence[Counted], brackets: Brackets) -> None:
        groups = group(keys_of(stack([of_chunk["keys"] for of_chunk in counted])), dropna=False)
        rows = np.cumsum([len(of_chunk["keys"]) for of_chunk in counted])[:-1]
        self.keys = _key_table(groups)
        self._codes = np.split(groups.codes, rows)
        self._counted = counted
        self._brackets = brackets
        self._places = places_among(self.keys, brackets.keys)

    def ends(self, target: int) -> tuple[Array, Array]:
        """The ends of each group's bracket."""
        return _ends_of(self._places, self._brackets.ends[target], self._brackets.others)

    def ranked(self, target: int, q: float) -> _Ranked:
        """The ranks of a quantile by the counts of all chunks."""
        counts = np.zeros((len(self.keys), SIDES), np.int64)
        for codes, of_chunk in zip(self._codes, self._counted, strict=True):
            counts[codes] += of_chunk["counts"][target]  # each group once in each
        # side by side: of many groups a sum of five is slow in each row
        upto = np.cumsum(np.ascontiguousarray(counts.T), axis=0)
        rows = upto[-1]
        place = q * np.maximum(rows - 1, 0)
        lower = place.astype(np.int64)
        ranks = np.stack([lower + (place % 1 > 0), lower])
        sides = np.stack([(rank >= upto).sum(axis=0) for rank in ranks])
        missed = ((sides[1] == BELOW) | (sides[0] == ABOVE)) & (rows > 0)
        return _Ranked(rows, upto[AT_LOW], ranks, sides, missed)

    def inside(self, target: int) -> tuple[Array, Array]:
        """Group and value of all rows that were kept."""
        pairs = [of_chunk["inside"][target] for of_chunk in self._counted]
        of = [codes.take(group) for codes, (group, _) in zip(self._codes, pairs, strict=True)]
        return np.concatenate(of), np.concatenate([values for _, values in pairs])


def widened(brackets: Brackets, counted: Sequence[Counted], plan: Plan) -> Brackets | None:
    """Brackets that surely hold the ranks which others missed; ``None`` where none did."""
    together = _Together(counted, brackets)
    ends, of_any = [], np.zeros(len(together.keys), bool)
    for i, target in enumerate(targets(plan)):
        lows, highs = together.ends(i)
        ranked = together.ranked(i, target.q)
        missed, (high, low) = ranked.missed, ranked.sides
        lowest, highest = _extremes(lows.dtype)
        wider_low = np.where(low == BELOW, lowest, np.where(low == ABOVE, highs, lows))
        wider_high = np.where(high == ABOVE, highest, np.where(high == BELOW, lows, highs))
        shut = np.where(missed, wider_low, highest), np.where(missed, wider_high, highest)
        ends.append((shut[0].astype(lows.dtype), shut[1].astype(lows.dtype)))
        of_any |= missed
    if not of_any.any():
        return None
    missed_ends = [(low[of_any], high[of_any]) for low, high in ends]
    return Brackets(together.keys[of_any].reset_index(drop=True), missed_ends, others=False)


def picked(
    brackets: Brackets,
    counted: Sequence[Counted],
    wider: Brackets | None,
    again: Sequence[Counted],
    plan: Plan,
) -> pd.DataFrame:
    """One row of each group: columns ``k0``, ``k1`` and so on, and ``o`` with an output's position.

    ``again`` are the counts by the brackets ``wider``, where some were missed.
    """
    first = _Together(counted, brackets)
    second = None if wider is None else _Together(again, wider)
    place = None if second is None else places_among(first.keys, second.keys)
    statistics: dict[Target, tuple[_Ranked, Array]] = {}
    for i, target in enumerate(targets(plan)):
        ranked, values = _statistics(first, i, target.q)
        if second is not None and place is not None:
            missed = ranked.missed
            values[:, missed] = _statistics(second, i, target.q)[1][:, place[missed]]
        statistics[target] = ranked, values
    outputs = {}
    for i, output in enumerate(plan.outputs):
        if output.kind is Kind.WHOLE:
            target = target_of(output)
            ranked, (high, low) = statistics[target]
            dtype = plan.columns[target.column].dtype
            outputs[f"o{i}"] = interpolated(output, dtype, ranked.rows, low, high)
    return first.keys.assign(**outputs)


def _statistics(together: _Together, target: int, q: float) -> tuple[_Ranked, Array]:
    """The upper and lower order statistics of the groups whose brackets hold them, or any value."""
    lows, highs = together.ends(target)
    ranked = together.ranked(target, q)
    inside = (ranked.sides == INSIDE) & (ranked.rows > 0) & ~ranked.missed
    values = np.where(ranked.sides == AT_HIGH, highs, lows)
    codes, candidates = together.inside(target)
    counts = np.bincount(codes, minlength=len(ranked.rows))
    ranks = np.where(inside, ranked.ranks - ranked.before, -1)
    compiled.select(candidates, compiled.read_only(codes, np.int32), counts, ranks, values)
    return ranked, values


def interpolated(output: Output, dtype: Any, rows: Array, low: Array, high: Array) -> Array:
    """An output by the order statistics on either side of it, to the last bit as pandas has it.

    NaN of groups without ``rows``, of which ``low`` and ``high`` may be any value.
    """
    share = target_of(output).q * np.maximum(rows - 1, 0) % 1
    with np.errstate(invalid="ignore", over="ignore"):
        # pandas' loop takes float64 of any number: sums and gaps of integers do not overflow
        low, high = low.astype(np.float64), high.astype(np.float64)
        middle = output.aggregation == "median" or interpolation_of(output) == "midpoint"
        between = (low + high) / 2.0 if middle else low + (high - low) * share
        result = np.where(share > 0, between, low)
    if output.aggregation != "median" or dtype != np.float32:
        return np.where(rows > 0, result, np.nan)
    # pandas' dtype depends on the values
    ends = np.where(rows > 0, (low, high), np.nan).astype(np.float32).ravel()
    medians: Array = pd.Series(ends).groupby(np.tile(np.arange(len(low)), 2)).median().to_numpy()
    return medians
