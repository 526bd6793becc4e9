"""Quantiles of groups by brackets, on the host; ``dask_gpuagg.narrowing`` has the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg.aggregations import Kind
from dask_gpuagg.engines.host import compiled
from dask_gpuagg.engines.host.grouping import Groups, group
from dask_gpuagg.engines.host.stacking import keys_of, stack, stack_series
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


@dataclass(frozen=True, slots=True)
class Brackets:
    """For each target the two values between which a group's order statistics are looked for.

    Attributes
    ----------
    keys : DataFrame
        Of the groups that have brackets.
    ends : list of (ndarray, ndarray), each of shape (groups,)
        For each target the low and the high ends, as ``_wide`` values.
    others : bool
        Whether the brackets of all other groups are open, or shut.
    inside : float
        The share of all rows that is expected between, by the sample.
    """

    keys: pd.DataFrame
    ends: list[tuple[Array, Array]]
    others: bool
    inside: float = 0.0


# The rows of some partitions, counted by the sides of brackets: ``keys``, a DataFrame of their
# groups; ``counts``, for each target an int64 array of shape (groups, SIDES); and ``kept``, for
# each target the group and the value of each row inside. Plain, so that arrays travel as they are.
Counted = dict[str, Any]


def sample(run: Sequence[Any], plan: Plan, stride: int) -> pd.DataFrame:
    """One row of each ``stride``: keys, and the columns of the targets.

    Parameters
    ----------
    run : sequence of parts
        With ``keys`` and ``columns`` as the plan names them, of equal dtypes.
    plan : Plan
    stride : int

    Returns
    -------
    DataFrame
        Columns ``k0``, ``k1`` and so on, and ``v`` with the position of each column.
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


def is_ready() -> bool:
    """Whether rows can be counted by brackets."""
    return True


def kept_rows(counted: Counted) -> int:
    """How many rows were kept."""
    return sum(len(values) for _, values in counted["kept"])


def aim(samples: Sequence[pd.DataFrame], plan: Plan) -> Brackets:
    """Brackets from the samples of all chunks."""
    stacked = stack(list(samples))
    dropna = plan.dropna and not plan.drops_late
    groups = group(keys_of(stacked), dropna)
    table = _key_table(groups)
    ends = []
    for target in targets(plan):
        dtype = plan.columns[target.column].dtype
        column, wide = stacked[f"v{target.column}"], _wide(dtype)
        values, codes = _plain(column, groups.kept, groups.codes, wide)
        values = values.astype(wide, copy=False)
        if values.dtype.kind == "f":
            valid = ~np.isnan(values)
            values, codes = values[valid], codes[valid]
        ends.append(_aimed(codes, groups.n, values, target.q))
    inside = share_inside(np.bincount(groups.codes, minlength=groups.n))
    return Brackets(table, ends, others=True, inside=inside)


def _key_table(groups: Groups) -> pd.DataFrame:
    return pd.DataFrame({f"k{i}": key for i, key in enumerate(groups.keys)}, copy=False)


def _aimed(codes: Array, n: int, values: Array, q: float) -> tuple[Array, Array]:
    counts = np.bincount(codes, minlength=n)
    starts = np.cumsum(counts) - counts
    sorted_values = values[compiled.order_within(codes, n, values)]
    middle = q * counts - 0.5
    margin = ERRORS * np.sqrt(counts * q * (1.0 - q)) + SPARE
    low, high = np.floor(middle - margin).astype(np.int64), np.ceil(middle + margin).astype(int)
    least, greatest = _extremes(values.dtype)
    lows, highs = np.full(n, least, values.dtype), np.full(n, greatest, values.dtype)
    some = low >= 0
    lows[some] = sorted_values[(starts + low)[some]]
    some = high < counts
    highs[some] = sorted_values[(starts + high)[some]]
    return lows, highs


def _wide(dtype: Any) -> np.dtype[Any]:
    """The dtype in which values are compared, by compiled loops of three signatures."""
    return np.dtype({"i": np.int64, "u": np.uint64, "f": np.float64}[dtype.kind])


def _extremes(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def count(
    keys: Sequence[pd.Series], columns: Sequence[pd.Series], brackets: Brackets, plan: Plan
) -> Counted:
    """Count rows by the sides of their group's brackets, and keep those inside.

    Parameters
    ----------
    keys, columns : sequence of Series
        Of the rows, as the plan names them.
    brackets : Brackets
    plan : Plan

    Returns
    -------
    Counted
    """
    groups = group(keys, plan.dropna and not plan.drops_late)
    table = _key_table(groups)
    places = _places(table, brackets.keys)
    counts, kept = [], []
    for target, ends in zip(targets(plan), brackets.ends, strict=True):
        column, wide = columns[target.column], ends[0].dtype
        values, codes = _plain(column, groups.kept, groups.codes, wide)
        lows, highs = _ends_of(places, ends, brackets.others)
        sides, *inside = _counted(codes, groups.n, values, lows, highs)
        counts.append(sides)
        kept.append(tuple(inside))
    return {"keys": table, "counts": counts, "kept": kept}


def _plain(
    column: pd.Series, kept: Array | None, codes: Array, dtype: np.dtype[Any]
) -> tuple[Array, Array]:
    """The values of rows that have a group, without a mask, and their groups.

    A column that holds nothing may have a mask where the metadata promises integers.
    """
    array = column.array if kept is None else column.array[kept]
    if isinstance(column.dtype, np.dtype):
        return array.to_numpy(), codes
    valid = ~np.asarray(array.isna())
    return array[valid].to_numpy(dtype), codes[valid]


def _places(table: pd.DataFrame, among: pd.DataFrame) -> Array:
    """The row of each group of a table among others, -1 for none."""
    pairs = zip(keys_of(among), keys_of(table), strict=True)
    together = group([stack_series(pair) for pair in pairs], dropna=False)
    of_other, of_group = np.split(together.codes, [len(among)])
    places: Array = np.full(together.n, -1)
    places[of_other] = np.arange(len(among))
    return np.asarray(places[of_group])


def _ends_of(places: Array, ends: tuple[Array, Array], others: bool) -> tuple[Array, Array]:
    """The ends of the brackets of groups; nothing lies between those of a bracket that is shut."""
    least, greatest = _extremes(ends[0].dtype)
    lows = np.full(len(places), least if others else greatest, ends[0].dtype)
    highs = np.full(len(places), greatest, ends[0].dtype)
    some = places >= 0
    lows[some], highs[some] = ends[0][places[some]], ends[1][places[some]]
    return lows, highs


def _counted(
    codes: Array, n: int, values: Array, lows: Array, highs: Array
) -> tuple[Array, Array, Array]:
    """Counts of each group's sides; group and value of each row inside."""
    counts = np.zeros((n, SIDES), np.int64)
    if not compiled.should_run(len(codes), n):
        values = values.astype(lows.dtype, copy=False)
        if values.dtype.kind == "f":
            valid = ~np.isnan(values)
            codes, values = codes[valid], values[valid]
        low, high = lows[codes], highs[codes]
        beyond = values > low
        sides = (values >= low).astype(np.int64) + beyond
        sides += (beyond & (values >= high)).astype(np.int64) + (beyond & (values > high))
        np.add.at(counts, (codes, sides), 1)
        inside = sides == INSIDE
        return counts, codes[inside], values[inside]
    codes = compiled.read_only(codes, np.int32)
    # memory that is not written to takes no room; a row that is not kept is overwritten
    of_row, kept = np.empty(len(codes) + 1, np.int32), np.empty(len(codes) + 1, lows.dtype)
    ends = compiled.read_only(lows, lows.dtype), compiled.read_only(highs, lows.dtype)
    at = 0
    for start, block in compiled.blocks(values, lows.dtype):
        of_block = codes[start : start + len(block)]
        at = compiled.import_loops().count_sides(of_block, block, *ends, counts, of_row, kept, at)
    return counts, of_row[:at].copy(), kept[:at].copy()


@dataclass(frozen=True, slots=True)
class _Ranked:
    """For each group the ranks on either side of a quantile, and where they lie.

    ``rows`` are the values of each group, ``before`` those below the ones inside. ``ranks`` has the
    upper and the lower ones, ``sides`` those of both.
    """

    rows: Array
    before: Array
    ranks: Array
    sides: Array

    @classmethod
    def of(cls, counts: Array, q: float) -> _Ranked:
        # side by side: of many groups a sum of five is slow in each row
        upto = np.cumsum(np.ascontiguousarray(counts.T), axis=0)
        place = q * np.maximum(upto[-1] - 1, 0)
        lower = place.astype(np.int64)
        ranks = np.stack([lower + (place % 1 > 0), lower])
        sides = np.stack([(rank >= upto).sum(axis=0) for rank in ranks])
        return cls(upto[-1], upto[AT_LOW], ranks, sides)

    @property
    def missed(self) -> Any:
        """Groups whose brackets do not hold their ranks."""
        return ((self.sides[1] == BELOW) | (self.sides[0] == ABOVE)) & (self.rows > 0)


@dataclass(frozen=True, slots=True)
class _Together:
    """The counts of all chunks; their groups are numbered."""

    keys: pd.DataFrame
    codes: list[Array]
    counted: Sequence[Counted]
    brackets: Brackets
    places: Array

    @classmethod
    def of(cls, counted: Sequence[Counted], brackets: Brackets) -> _Together:
        groups = group(keys_of(stack([one["keys"] for one in counted])), dropna=False)
        table = _key_table(groups)
        rows = np.cumsum([len(one["keys"]) for one in counted])[:-1]
        places = _places(table, brackets.keys)
        return cls(table, np.split(groups.codes, rows), counted, brackets, places)

    def ends(self, target: int) -> tuple[Array, Array]:
        """The ends of each group's bracket."""
        return _ends_of(self.places, self.brackets.ends[target], self.brackets.others)

    def counts(self, target: int) -> Array:
        """Sums over all chunks."""
        sums = np.zeros((len(self.keys), SIDES), np.int64)
        for codes, one in zip(self.codes, self.counted, strict=True):
            sums[codes] += one["counts"][target]  # each group once in each
        return sums

    def kept(self, target: int) -> tuple[Array, Array]:
        """Group and value of all rows that were kept."""
        pairs = [one["kept"][target] for one in self.counted]
        of = [codes.take(group) for codes, (group, _) in zip(self.codes, pairs, strict=True)]
        return np.concatenate(of), np.concatenate([values for _, values in pairs])


def widened(brackets: Brackets, counted: Sequence[Counted], plan: Plan) -> Brackets | None:
    """Brackets that surely hold the ranks which others missed; ``None`` where none did."""
    together = _Together.of(counted, brackets)
    ends, of_any = [], np.zeros(len(together.keys), bool)
    for i, target in enumerate(targets(plan)):
        lows, highs = together.ends(i)
        ranked = _Ranked.of(together.counts(i), target.q)
        missed, (high, low) = ranked.missed, ranked.sides
        least, greatest = _extremes(lows.dtype)
        wider_low = np.where(low == BELOW, least, np.where(low == ABOVE, highs, lows))
        wider_high = np.where(high == ABOVE, greatest, np.where(high == BELOW, lows, highs))
        shut = np.where(missed, wider_low, greatest), np.where(missed, wider_high, greatest)
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
    """One row of each group, with its outputs of whole groups.

    Parameters
    ----------
    brackets, wider : Brackets
        Those that were counted by, and those that were counted by again.
    counted, again : sequence of Counted
        Of all chunks.
    plan : Plan

    Returns
    -------
    DataFrame
        Columns ``k0``, ``k1`` and so on, and ``o`` with the position of each output.
    """
    first = _Together.of(counted, brackets)
    second = None if wider is None else _Together.of(again, wider)
    place = None if second is None else _places(first.keys, second.keys)
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
    ranked = _Ranked.of(together.counts(target), q)
    inside = (ranked.sides == INSIDE) & (ranked.rows > 0) & ~ranked.missed
    values = np.where(ranked.sides == AT_HIGH, highs, lows)
    codes, kept = together.kept(target)
    counts = np.bincount(codes, minlength=len(ranked.rows))
    ranks = np.where(inside, ranked.ranks - ranked.before, -1)
    if compiled.should_run(len(codes)):
        compiled.select(kept, compiled.read_only(codes, np.int32), counts, ranks, values)
    else:
        by_group = kept[compiled.order_within(codes, len(counts), kept)]
        values[inside] = by_group[(np.cumsum(counts) - counts + ranks)[inside]]
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
