"""What decides on selection: its brackets, its stride and where it is faster than a sort."""

import math
from typing import Any

import numpy as np
import pytest

from dask_gpuagg import narrowing
from dask_gpuagg.cuda.algorithms import select as selection

Array = np.ndarray[Any, Any]


def test_brackets_are_as_wide_as_their_rows_are_expected_for() -> None:
    assert (selection.ERRORS, selection.SPARE) == (narrowing.ERRORS, narrowing.SPARE)


def rows_between(values: Array, codes: Array, groups: int, stride: int) -> int:
    """Count the rows inside of the brackets of medians (``aim`` of kernels/select/narrow.cuh)."""
    rows = 0
    for group in range(groups):
        of_group = values[codes == group]
        sample = np.sort(values[::stride][codes[::stride] == group])
        middle = 0.5 * len(sample) - 0.5
        margin = selection.ERRORS * math.sqrt(len(sample) * 0.25) + selection.SPARE
        low, high = math.floor(middle - margin), math.ceil(middle + margin)
        first = sample[low] if low >= 0 else -np.inf
        last = sample[high] if high < len(sample) else np.inf
        rows += int(((of_group > first) & (of_group < last)).sum())
    return rows


@pytest.mark.parametrize("shape", ["normal", "uniform", "lognormal"])
@pytest.mark.parametrize("groups", [1, 10, 100])
def test_brackets_hold_what_is_expected(groups: int, shape: str) -> None:
    rng = np.random.default_rng(groups)
    n = 200_000
    values = getattr(rng, shape)(size=n)
    codes = rng.integers(0, groups, n).astype(np.int32)
    stride = narrowing.stride_of(n, groups)
    rows = rows_between(values, codes, groups, stride)
    expected = narrowing.rows_inside(n, groups, stride)
    assert 0.6 * expected < rows < 1.15 * expected
    assert rows < selection.room_of(n, expected)


def test_skewed_groups_have_no_more_inside() -> None:
    n, groups = 300_000, 200
    rng = np.random.default_rng(3)
    codes = (rng.zipf(1.2, n) % groups).astype(np.int32)
    stride = narrowing.stride_of(n, groups)
    rows = rows_between(rng.normal(size=n), codes, groups, stride)
    assert rows < narrowing.rows_inside(n, groups, stride)


# ---- the tuning ----------------------------------------------------------------------------------

SIZES = [(n, g) for n in (2**21, 5 * 10**7, 10**9) for g in (1, 100, 10_000, 65_536)]


@pytest.mark.parametrize(("rows_", "groups"), [s for s in SIZES if selection.selects(*s, 8)])
def test_the_stride_makes_least_work(rows_: int, groups: int) -> None:
    def work(stride: int) -> float:
        return 1 / stride + narrowing.rows_inside(rows_, groups, stride) / rows_

    stride = narrowing.stride_of(rows_, groups)
    assert stride >= 2
    assert stride & (stride - 1) == 0
    # the spare ranks, which it leaves out, count where groups are small
    assert all(work(stride) <= 1.2 * work(other) for other in (2 ** np.arange(1, 16)).tolist())


@pytest.mark.parametrize(("rows_", "groups"), SIZES)
def test_selection_is_chosen_where_it_handles_few_rows(rows_: int, groups: int) -> None:
    if not selection.selects(rows_, groups, 8):
        assert 8 * rows_ < selection.BYTES_OF_A_GROUP * groups
        return
    stride = narrowing.stride_of(rows_, groups)
    inside = narrowing.rows_inside(rows_, groups, stride)
    assert 1 / stride + inside / rows_ < 0.75
    # candidates with room, each in two arrays, take less than sorting all rows does
    assert selection.room_of(rows_, inside) < 0.5 * rows_


def test_what_is_sorted() -> None:
    most = 10**9
    assert not selection.selects(most, 0, 8)
    assert not selection.selects(most, selection.GROUPS_AT_MOST + 1, 8)
    assert not selection.selects(selection.ROWS_FROM - 1, 1, 8)
    assert selection.selects(selection.ROWS_FROM, 1, 8)
    assert not selection.divides(most, 0, 8)
    assert not selection.divides(most, 1_000, 2)
    assert not selection.divides(most, selection.GROUPS_AT_MOST + 1, 8)
    assert selection.divides(most, selection.GROUPS_AT_MOST, 4)


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
    assert selection.divides(rows_, groups, width) == (ours < sort)
