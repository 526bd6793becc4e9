"""Rows in the order of their groups: medians are pandas', and divided tables keep their rows."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.engines.host import fused, ordered
from dask_gpuagg.engines.host.exchange import split
from dask_gpuagg.engines.host.reducer import Reducer
from dask_gpuagg.plan import Column, Plan

VALUES = st.sampled_from([0.0, -0.0, 1.5, 2.5, -3.0, np.inf, -np.inf, np.nan, 1e308, 5e-324])
ROWS = st.lists(st.tuples(st.integers(0, 5), VALUES), max_size=60)


@pytest.mark.parametrize("least", [0, 1 << 40], ids=["numpy", "loop"])
@given(rows=ROWS)
def test_medians_are_those_of_pandas(least, rows):
    codes = np.array([code for code, _ in rows], np.int32)
    values = np.array([value for _, value in rows], np.float64)
    with mock.patch.object(ordered, "_NUMPY_ROWS", least):
        found = ordered.medians(codes, 7, values)
    expected = pd.Series(values).groupby(codes).median().reindex(range(7)).to_numpy()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("pattern", ["sorted", "backwards", "equal", "organ pipe", "random"])
@pytest.mark.parametrize("rows", [4999, 5000])
def test_medians_of_many_rows_in_any_order(pattern, rows):
    made = {
        "sorted": np.arange(rows),
        "backwards": np.arange(rows)[::-1],
        "equal": np.full(rows, 3),
        "organ pipe": np.minimum(np.arange(rows), np.arange(rows)[::-1]),
        "random": np.random.default_rng(0).permutation(rows),
    }
    values = made[pattern].astype(np.float64)
    for codes in (np.zeros(rows, np.int32), np.arange(rows, dtype=np.int32) % 3):
        found = ordered.medians(codes, 3, values)
        expected = [np.median(v) if len(v := values[codes == g]) else np.nan for g in range(3)]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "float32", "Float64", "int32"])
def test_the_reducer_takes_numbers_of_64_bits(dtype):
    rows = fused.LEAST_ROWS
    codes = np.arange(rows, dtype=np.int32) % 11
    values = pd.Series(np.random.default_rng(1).integers(0, 2**62, rows)).astype(dtype)
    reducer = Reducer(codes, 11)
    found = reducer.medians(values)
    assert (found is not None) == (dtype in ("float64", "int64", "uint64"))
    if found is not None:
        expected = values.groupby(codes).median()
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()
    assert Reducer(codes[:100], 11).medians(values[:100]) is None


@pytest.mark.parametrize("buckets", [1, 3, 16])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "float32", "float64"])
def test_tables_of_plain_numbers_are_divided_as_others_are(dtype, buckets):
    rows = fused.LEAST_ROWS
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"k0": rng.integers(0, 50, rows), "v0": np.arange(rows).astype(dtype)})
    plan = Plan((Column("k", table["k0"].dtype),), (), (), ())
    assert ordered.takes(table)
    fast = split({"rows": table}, plan, buckets)
    with mock.patch.object(ordered, "takes", return_value=False):
        slow = split({"rows": table}, plan, buckets)
    assert len(fast) == len(slow) == buckets
    for got, expected in zip(fast, slow, strict=True):
        pd.testing.assert_frame_equal(got["rows"], expected["rows"].reset_index(drop=True))


def test_other_tables_are_not_taken():
    rows = fused.LEAST_ROWS
    whole = pd.DataFrame({"k0": np.arange(rows)})
    assert ordered.takes(whole)
    assert not ordered.takes(whole[:100])
    assert not ordered.takes(whole.assign(v0="text"))
    assert not ordered.takes(whole.assign(v0=np.zeros(rows, "i2")))
    assert not ordered.takes(whole.assign(v0=pd.array(np.arange(rows), "Int64")))


@given(rows=ROWS, stride=st.sampled_from([1, 70_000]), narrow=st.sampled_from(["i1", "i2", "i4"]))
def test_rows_are_ordered_within_their_groups(rows, stride, narrow):
    # codes of booleans and of categories have as few bits as hold them
    codes = np.array([code * stride for code, _ in rows], narrow if stride == 1 else np.int64)
    values = np.array([value for _, value in rows], np.float64)
    order = ordered.order_within(codes, 5 * stride + 1, values)
    expected = np.lexsort((values, codes))
    assert sorted(order) == list(range(len(rows)))
    np.testing.assert_array_equal(codes[order], codes[expected])
    np.testing.assert_array_equal(values[order], values[expected])
