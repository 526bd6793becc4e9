"""Selection without a GPU: the steps of ``kernels/select`` in NumPy, and what decides on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_gpuagg.cuda.algorithms import distinct
from dask_gpuagg.cuda.algorithms import select as selection
from dask_gpuagg.cuda.algorithms.sgb import BETWEEN
from dask_gpuagg.cuda.query.tuning import SIDES

Array = np.ndarray[Any, Any]
BELOW, AT_LOW, INSIDE, AT_HIGH, ABOVE = range(SIDES)
NONE = -1
# the least and the greatest word
LEAST, GREATEST = 0, 2**64 - 1
CLOSED = (1, 0)


# ---- the algorithm, in NumPy ---------------------------------------------------------------------


def words_of(values: Array) -> Array:
    """Unsigned words that sort as the values: all NaN one behind infinity, both zeros one."""
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.nan, values + 0.0).astype(np.float64)
        bits = values.view(np.uint64)
        negative = bits >> np.uint64(63) == 1
        return bits ^ np.where(negative, np.uint64(GREATEST), np.uint64(1 << 63))
    if values.dtype.kind == "i":
        return values.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)
    return values.astype(np.uint64)


@dataclass
class Chunk:
    """Rows that take part: words and groups."""

    words: Array
    groups: Array

    def of(self, group: int) -> Array:
        return self.words[self.groups == group]


@dataclass
class Settled:
    """Of one group: the two words where they are known, and ranks among the candidates."""

    words: list[int]
    ranks: list[int]


def chunk_of(values: Array, codes: Array, valid: Array, skips_nan: bool) -> Chunk:
    part = (codes >= 0) & valid
    if skips_nan and values.dtype.kind == "f":
        part &= ~np.isnan(values)
    return Chunk(words_of(values)[part], codes[part])


def aim(sample: Chunk, groups: int, q: float, errors: float, spare: float) -> list[tuple[int, int]]:
    brackets = []
    for group in range(groups):
        words = np.sort(sample.of(group))
        middle = q * len(words) - 0.5
        margin = errors * math.sqrt(len(words) * q * (1.0 - q)) + spare
        low, high = math.floor(middle - margin), math.ceil(middle + margin)
        brackets.append(
            (
                int(words[low]) if low >= 0 else LEAST,
                int(words[high]) if high < len(words) else GREATEST,
            )
        )
    return brackets


def count(chunk: Chunk, brackets: Sequence[tuple[int, int]]) -> tuple[Array, Chunk]:
    """Counts by side and group, and the rows inside."""
    low = np.array([b[0] for b in brackets], np.uint64)[chunk.groups]
    high = np.array([b[1] for b in brackets], np.uint64)[chunk.groups]
    words = chunk.words
    side = np.select(
        [words < low, words == low, words < high, words == high],
        [BELOW, AT_LOW, INSIDE, AT_HIGH],
        ABOVE,
    )
    is_open = low <= high
    counts = np.zeros((SIDES, len(brackets)), np.int64)
    np.add.at(counts, (side[is_open], chunk.groups[is_open]), 1)
    kept = is_open & (side == INSIDE)
    return counts, Chunk(words[kept], chunk.groups[kept])


def ranks_of(q: float, n: int) -> tuple[int, int]:
    at = q * (n - 1)
    return math.floor(at), math.ceil(at)


def narrow(
    counts: Array, brackets: list[tuple[int, int]], q: float, sizes: Array
) -> dict[int, Settled]:
    """The groups that are settled; the brackets become those of a second count."""
    settled = {}
    for group, (low, high) in enumerate(brackets):
        if low > high:
            continue
        upto = np.cumsum(counts[:, group])
        sizes[group] = upto[-1]
        brackets[group] = CLOSED
        if upto[-1] == 0:
            continue
        wanted = ranks_of(q, int(upto[-1]))
        first, last = (int(np.searchsorted(upto, rank, side="right")) for rank in wanted)
        if first != BELOW and last != ABOVE:
            of = Settled([NONE, NONE], [NONE, NONE])
            for i, (rank, side) in enumerate(zip(wanted, (first, last), strict=True)):
                if side == INSIDE:
                    of.ranks[i] = rank - int(upto[AT_LOW])
                else:
                    of.words[i] = low if side == AT_LOW else high
            settled[group] = of
            continue
        brackets[group] = (
            LEAST if first == BELOW else high if first == ABOVE else low,
            GREATEST if last == ABOVE else low if last == BELOW else high,
        )
    return settled


def select(
    chunks: Sequence[Chunk], sample: Chunk, groups: int, q: float, errors: float, spare: float
) -> tuple[dict[int, tuple[int, int]], Array, int]:
    """The words on either side of each group's quantile, the groups' sizes, and how many counts."""
    brackets = aim(sample, groups, q, errors, spare)
    found: dict[int, tuple[int, int]] = {}
    sizes = np.zeros(groups, np.int64)
    counted = 0
    while any(low <= high for low, high in brackets):
        counted += 1
        each = [count(chunk, brackets) for chunk in chunks]
        settled = narrow(sum(c for c, _ in each), brackets, q, sizes)
        inside = Chunk(
            np.concatenate([k.words for _, k in each]), np.concatenate([k.groups for _, k in each])
        )
        for group, of in settled.items():
            words = np.sort(inside.of(group))
            low, high = (
                int(words[rank]) if rank != NONE else word
                for word, rank in zip(of.words, of.ranks, strict=True)
            )
            found[group] = (low, high)
    return found, sizes, counted


# ---- what it must be -----------------------------------------------------------------------------

SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, -5e-324, 1.5]
VALUES = {
    "float64": st.one_of(st.sampled_from(SPECIAL), st.floats(allow_nan=True)),
    "int64": st.one_of(st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)),
    "uint64": st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)),
}


@st.composite
def rows(draw: st.DrawFn) -> tuple[Array, Array, Array, int]:
    """Values, codes, validity and the number of groups."""
    dtype = draw(st.sampled_from(sorted(VALUES)))
    n = draw(st.integers(0, 60))
    groups = draw(st.integers(1, 4))
    values = draw(st.lists(VALUES[dtype], min_size=n, max_size=n))
    codes = draw(st.lists(st.integers(-1, groups - 1), min_size=n, max_size=n))
    valid = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return np.array(values, dtype), np.array(codes, np.int32), np.array(valid, bool), groups


@settings(max_examples=400, deadline=None)
@given(
    rows=rows(),
    q=st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 1.0)),
    stride=st.sampled_from([1, 2, 8, 64]),
    chunks=st.integers(1, 4),
    width=st.sampled_from([(0.0, 0.0), (0.3, 0.0), (selection.ERRORS, selection.SPARE)]),
    skips_nan=st.booleans(),
)
def test_selection_finds_the_words_of_the_ranks(
    rows: tuple[Array, Array, Array, int],
    q: float,
    stride: int,
    chunks: int,
    width: tuple[float, float],
    skips_nan: bool,
) -> None:
    """Whatever the sample says, in at most two counts, and however the rows are cut into chunks."""
    values, codes, valid, groups = rows
    whole = chunk_of(values, codes, valid, skips_nan)
    cuts = np.array_split(np.arange(len(whole.words)), chunks)
    parts = [Chunk(whole.words[c], whole.groups[c]) for c in cuts]
    sample = Chunk(whole.words[::stride], whole.groups[::stride])
    found, sizes, counted = select(parts, sample, groups, q, *width)
    assert counted <= 2
    for group in range(groups):
        words = np.sort(whole.of(group))
        assert sizes[group] == len(words)
        if len(words) == 0:
            assert group not in found
            continue
        lower, upper = ranks_of(q, len(words))
        assert found[group] == (words[lower], words[upper])


@settings(max_examples=200, deadline=None)
@given(rows=rows(), q=st.floats(0.0, 1.0), between=st.sampled_from(["lower", "higher"]))
def test_selected_words_are_the_quantiles_of_numpy_and_pandas(
    rows: tuple[Array, Array, Array, int], q: float, between: str
) -> None:
    values, codes, valid, groups = rows
    whole = chunk_of(values, codes, valid, skips_nan=True)
    sample = Chunk(whole.words[::2], whole.groups[::2])
    found, _, _ = select([whole], sample, groups, q, selection.ERRORS, selection.SPARE)
    part = (codes >= 0) & valid & ~pd.isna(values)
    side = BETWEEN.index(between) - 1
    for group in range(groups):
        of_group = values[part & (codes == group)]
        if len(of_group) == 0:
            continue
        expected = np.quantile(of_group, q, method=between)
        assert found[group][side] == words_of(np.array([expected], values.dtype))[0]
        series = pd.Series(of_group)
        if series.dtype.kind == "f" and np.isfinite(of_group).all():
            by_pandas = series.quantile(q, interpolation=between)
            assert found[group][side] == words_of(np.array([by_pandas]))[0]


def test_a_wrong_sample_costs_a_second_count() -> None:
    values = np.arange(1000.0)
    whole = chunk_of(values, np.zeros(1000, np.int32), np.ones(1000, bool), False)
    sample = Chunk(words_of(np.full(100, 999.0)), np.zeros(100, np.int32))
    found, _, counted = select([whole], sample, 1, 0.5, selection.ERRORS, selection.SPARE)
    assert counted == 2
    assert found[0] == tuple(words_of(np.array([499.0, 500.0])))


def test_equal_values_are_counted_and_not_kept() -> None:
    whole = chunk_of(np.full(5000, 7), np.zeros(5000, np.int32), np.ones(5000, bool), False)
    sample = Chunk(whole.words[::8], whole.groups[::8])
    brackets = aim(sample, 1, 0.5, selection.ERRORS, selection.SPARE)
    counts, kept = count(whole, brackets)
    assert counts[:, 0].tolist() == [0, 5000, 0, 0, 0]
    assert len(kept.words) == 0


@pytest.mark.parametrize("shape", ["normal", "uniform", "lognormal"])
@pytest.mark.parametrize("groups", [1, 10, 100])
def test_brackets_hold_what_is_expected(groups: int, shape: str) -> None:
    rng = np.random.default_rng(groups)
    n = 200_000
    values = getattr(rng, shape)(size=n)
    codes = rng.integers(0, groups, n).astype(np.int32)
    whole = chunk_of(values, codes, np.ones(n, bool), False)
    stride = selection.stride_of(n, groups)
    sample = Chunk(whole.words[::stride], whole.groups[::stride])
    brackets = aim(sample, groups, 0.5, selection.ERRORS, selection.SPARE)
    _, kept = count(whole, brackets)
    expected = n * selection.inside(n, groups, stride)
    assert 0.6 * expected < len(kept.words) < 1.15 * expected
    assert len(kept.words) < selection.room_of(n, groups, stride)


def test_skewed_groups_have_no_more_inside() -> None:
    n, groups = 300_000, 200
    rng = np.random.default_rng(3)
    codes = (rng.zipf(1.2, n) % groups).astype(np.int32)
    whole = chunk_of(rng.normal(size=n), codes, np.ones(n, bool), False)
    stride = selection.stride_of(n, groups)
    sample = Chunk(whole.words[::stride], whole.groups[::stride])
    _, kept = count(whole, aim(sample, groups, 0.5, selection.ERRORS, selection.SPARE))
    assert len(kept.words) < n * selection.inside(n, groups, stride)


# ---- the tuning ----------------------------------------------------------------------------------

SIZES = [(n, g) for n in (2**21, 5 * 10**7, 10**9) for g in (1, 100, 10_000, 65_536)]


@pytest.mark.parametrize(("rows_", "groups"), [s for s in SIZES if selection.selects(*s, 8)])
def test_the_stride_makes_least_work(rows_: int, groups: int) -> None:
    def work(stride: int) -> float:
        return 1 / stride + selection.inside(rows_, groups, stride)

    stride = selection.stride_of(rows_, groups)
    assert stride >= 2
    assert stride & (stride - 1) == 0
    # the spare ranks, which it leaves out, count where groups are small
    assert all(work(stride) <= 1.2 * work(other) for other in (2 ** np.arange(1, 16)).tolist())


@pytest.mark.parametrize(("rows_", "groups"), SIZES)
def test_selection_is_chosen_where_it_handles_few_rows(rows_: int, groups: int) -> None:
    if not selection.selects(rows_, groups, 8):
        assert 8 * rows_ < selection.BYTES_OF_A_GROUP * groups
        return
    stride = selection.stride_of(rows_, groups)
    assert 1 / stride + selection.inside(rows_, groups, stride) < 0.75
    # candidates with room, each in two arrays, take less than sorting all rows does
    assert selection.room_of(rows_, groups, stride) < 0.5 * rows_


def test_what_is_sorted() -> None:
    most = 10**9
    assert not selection.selects(most, 0, 8)
    assert not selection.selects(most, selection.GROUPS_AT_MOST + 1, 8)
    assert not selection.selects(selection.ROWS_FROM - 1, 1, 8)
    assert selection.selects(selection.ROWS_FROM, 1, 8)
    assert not distinct.divides(most, 0, 8)
    assert not distinct.divides(most, 1_000, 2)
    assert not distinct.divides(most, selection.GROUPS_AT_MOST + 1, 8)
    assert distinct.divides(most, selection.GROUPS_AT_MOST, 4)


# Milliseconds on one H200: selected or in parts, and sorted.
MEDIANS = [
    *((50_000_000, 1, 8, 1.51, 5.14), (50_000_000, 1_000, 8, 1.22, 6.21)),
    *((50_000_000, 10_000, 8, 2.21, 6.22), (50_000_000, 65_000, 8, 7.55, 6.36)),
    *((50_000_000, 1, 4, 1.18, 1.64), (50_000_000, 1_000, 4, 1.20, 2.56)),
    *((50_000_000, 10_000, 4, 1.79, 2.54), (50_000_000, 65_000, 4, 5.07, 2.58)),
    *((10**9, 1_000, 8, 8.29, 111.0), (10**9, 65_000, 8, 29.3, 112.0)),
]
DISTINCT = [
    *((50_000_000, 1, 8, 3.95, 6.48), (50_000_000, 1_000, 8, 2.60, 6.65)),
    *((50_000_000, 10_000, 8, 2.60, 6.52), (50_000_000, 65_000, 8, 2.89, 6.42)),
    *((50_000_000, 1, 4, 3.36, 1.80), (50_000_000, 1_000, 4, 2.17, 2.96)),
    *((50_000_000, 10_000, 4, 2.34, 2.75), (50_000_000, 65_000, 4, 2.51, 2.73)),
    *((10**9, 1_000, 4, 42.4, 51.5), (10**9, 65_000, 4, 44.0, 50.6)),
]


@pytest.mark.parametrize(("rows_", "groups", "width", "ours", "sort"), MEDIANS)
def test_medians_are_made_the_faster_way(
    rows_: int, groups: int, width: int, ours: float, sort: float
) -> None:
    assert selection.selects(rows_, groups, width) == (ours < sort)


@pytest.mark.parametrize(("rows_", "groups", "width", "ours", "sort"), DISTINCT)
def test_distinct_values_are_counted_the_faster_way(
    rows_: int, groups: int, width: int, ours: float, sort: float
) -> None:
    assert distinct.divides(rows_, groups, width) == (ours < sort)


@pytest.mark.parametrize("groups", [1, 3, 81, 82, 1000, 65_536])
def test_copies_of_counts(groups: int) -> None:
    copies = selection.copies_of(groups)
    assert 1 <= copies <= 32
    assert copies & (copies - 1) == 0
    assert copies == 1 or 4 * SIDES * groups * copies <= 32 << 10
