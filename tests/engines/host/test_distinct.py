"""First rows of distinct pairs: those that Python's own equality of values finds."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.engines.host import distinct, fused
from tests.engines.host.test_grouping import DTYPES, keys, plain

# how the rows are looked up: by pandas, by one bit for each pair that may be, by hashing; and how
# many bits there may be
WAYS = {"pandas": 64, "bits": 1 << 16, "hash": 0}


def found(way: str, codes: Any, n: int, values: pd.Series) -> list[int]:
    least = fused.LEAST_ROWS if way == "pandas" else 1
    with (
        mock.patch.object(fused, "LEAST_ROWS", least),
        mock.patch.object(distinct, "_BITS_PER_ROW", WAYS[way]),
    ):
        return distinct.first_rows(codes, n, values).tolist()


def expected(codes: Any, values: pd.Series) -> list[int]:
    first: dict[Any, int] = {}
    for row, pair in enumerate(zip(codes.tolist(), plain(values), strict=True)):
        first.setdefault(pair, row)
    return list(first.values())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@given(data=st.data())
def test_any_values(dtype, way, data):
    rows = data.draw(st.integers(1, 20))
    values = data.draw(keys(dtype, rows))
    codes = np.array(data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)))
    assert found(way, codes, 3, values) == expected(codes, values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("way", WAYS)
def test_all_nan_are_one_value(way, dtype):
    values = np.array([np.nan, 1.0, -np.nan, np.nan, np.inf, -np.inf], dtype)
    values.view(f"int{values.itemsize * 8}")[3] += 1  # another pattern of the same
    assert np.isnan(values[3])
    rows = found(way, np.zeros(6, np.int64), 1, pd.Series(values))
    assert rows == [0, 1, 4, 5]


@pytest.mark.parametrize("dtype", ["Int64", "UInt64", "boolean", "int64[pyarrow]"])
@pytest.mark.parametrize("way", WAYS)
def test_a_null_is_no_zero_and_no_other_groups_null(way, dtype):
    values = pd.Series([0, None, 0, None, None, 1], dtype=dtype)
    codes = np.array([0, 0, 1, 1, 0, 2])
    assert found(way, codes, 3, values) == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("distinct_values", [1, 300, 1 << 60])
@pytest.mark.parametrize("kind", [np.int64, np.float64, "datetime64[ns]"])
def test_many_rows(way, distinct_values, kind):
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 50, 3000)
    values = pd.Series(rng.integers(0, distinct_values, 3000)).astype(kind)
    pairs = pd.DataFrame({"code": codes, "value": values})
    assert found(way, codes, 50, values) == pairs.drop_duplicates().index.tolist()


@pytest.mark.parametrize("way", WAYS)
def test_nulls_of_groups_whose_codes_have_few_bits(way):
    """A hundred categories: their codes fit int8, and twice as many numbers do not."""
    codes = np.tile(np.arange(100, dtype=np.int8), 20)
    values = pd.Series(np.arange(2000) % 700 // 100, dtype="Int64").where(np.arange(2000) % 3 > 0)
    pairs = pd.DataFrame({"code": codes, "value": values})
    assert found(way, codes, 100, values) == pairs.drop_duplicates().index.tolist()


@pytest.mark.parametrize("step", [1 << 20, 1 << 40, 1 << 52])
def test_values_that_differ_in_high_bits_only_do_not_collide(step):
    rows = 2 * fused.LEAST_ROWS
    values = pd.Series(np.arange(rows) % 2000 * step)
    codes = np.arange(rows) // 2000
    assert len(distinct.first_rows(codes, rows // 2000, values)) == rows


def test_codes_and_values_too_wide_for_one_integer():
    values = pd.Series([2**62, -(2**62), 2**62, 0])
    codes = np.array([0, 5, 0, 5])
    assert distinct.first_rows(codes, 6, values).tolist() == [0, 1, 3]


@pytest.mark.parametrize(("pairs", "least", "most"), [(10, 0.9, 1), (10**5, 0.3, 0.7)])
def test_repeated_pairs_are_told_from_a_sample(pairs, least, most):
    rng = np.random.default_rng(7)
    rows = 150_000
    codes, values = rng.integers(0, 5, rows), pd.Series(rng.integers(0, pairs // 5, rows))
    assert least < distinct.repeated(codes, values) <= most


def test_few_rows_and_pairs_of_their_own():
    own = pd.Series(np.arange(fused.LEAST_ROWS))
    codes = np.zeros(fused.LEAST_ROWS, np.int32)
    assert distinct.repeated(codes, own) == 0
    assert distinct.repeated(codes[:9], own[:9]) == 1
