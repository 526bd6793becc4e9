"""The compiled loops give what pandas gives, at any number of rows that they are asked for."""

import math
import subprocess
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

import distributed.worker
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.engines.host import compiled, loops
from dask_gpuagg.engines.host.compiled import Reducer
from dask_gpuagg.engines.host.exchange import split as split_partial
from dask_gpuagg.engines.host.grouping import group
from dask_gpuagg.engines.host.states import update
from dask_gpuagg.plan import Column, Plan

GROUPS = 5
ALL = ("count", "sum", "min", "max", "m2")
FLOATS = st.sampled_from([0.0, 1.5, -2.25, 0.1, 1e9 + 1, 1e9 + 2, np.nan, np.inf, -np.inf])
INTEGERS = {
    "int8": st.integers(-128, 127),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.sampled_from([0, 2**62, -(2**62), 2**63 - 1, -(2**63)]),
    "uint16": st.integers(0, 2**16 - 1),
    "uint64": st.sampled_from([0, 1, 2**63, 2**64 - 1]),
}


def rows_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[int, Any]]]:
    """Rows of (group, value); the last group never has one."""
    return st.lists(st.tuples(st.integers(0, GROUPS - 2), values), min_size=1, max_size=40)


def reduced(
    codes: Any,
    values: Any,
    wanted: tuple[str, ...] = ALL,
    skipna: bool = True,
    n: int = GROUPS,
    lanes: int | None = None,
) -> dict[str, Any]:
    codes = compiled.read_only(codes, np.int32)
    lanes = compiled.lanes_of(codes, n) if lanes is None else lanes
    return compiled.reduce(codes, n, values, wanted, skipna, lanes)


def split(rows: list[tuple[int, Any]], dtype: str) -> tuple[Any, Any]:
    codes, values = zip(*rows, strict=True)
    return np.array(codes, np.int64), np.array(values, dtype)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@given(rows=rows_of(FLOATS))
def test_floats(dtype, lanes, rows):
    codes, values = split(rows, dtype)
    grouped = pd.Series(values.astype("float64")).groupby(codes)
    fields = reduced(codes, values, lanes=lanes)
    every = range(GROUPS)
    assert fields["count"].tolist() == grouped.count().reindex(every, fill_value=0).tolist()
    sums = grouped.sum().reindex(every, fill_value=0.0)
    np.testing.assert_allclose(fields["sum"], sums, rtol=1e-13, atol=1e-6)
    for name in ("min", "max"):
        assert fields[name].dtype == dtype
        np.testing.assert_array_equal(fields[name], getattr(grouped, name)().reindex(every))
    m2 = (grouped.var(ddof=0) * grouped.count()).reindex(every).fillna(0.0)
    finite = grouped.apply(lambda g: bool(np.isfinite(g.dropna()).all())).reindex(every)
    finite = finite.fillna(True).to_numpy(dtype=bool)
    assert np.isnan(fields["m2"][~finite]).all()
    # a mean near 1e9 is known to 1e-7
    np.testing.assert_allclose(fields["m2"][finite], m2[finite], rtol=1e-6)


@pytest.mark.parametrize("lanes", [1, 4])
@given(rows=rows_of(FLOATS))
def test_floats_whose_nan_is_no_null(lanes, rows):
    codes, values = split(rows, "float64")
    expected = pd.Series(values).groupby(codes).sum(skipna=False)
    got = reduced(codes, values, ("sum",), skipna=False, lanes=lanes)["sum"]
    np.testing.assert_allclose(got[expected.index], expected, rtol=1e-13, atol=1e-6)


@pytest.mark.parametrize("rows", [2, 3, 1000])
@pytest.mark.parametrize("value", [0.1, 1e9 + 0.1, 1e300, -3.0])
def test_a_constant_has_no_variance(value, rows):
    fields = reduced(np.arange(rows) % 3, np.full(rows, value), n=3)
    assert fields["m2"].tolist() == [0.0, 0.0, 0.0]


def test_the_variance_of_far_values():
    rng = np.random.default_rng(0)
    codes, noise = rng.integers(0, 3, 30_000), rng.random(30_000)
    got = reduced(codes, noise + 1e9, ("m2",), n=3)["m2"]
    expected = pd.Series(noise + 1e9).groupby(codes).var(ddof=0)
    np.testing.assert_allclose(got / np.bincount(codes), expected, rtol=1e-12)
    exact = pd.Series((noise + 1e9) - 1e9).groupby(codes).var(ddof=0)
    np.testing.assert_allclose(got / np.bincount(codes), exact, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int8"])
def test_rows_by_runs_of_groups_give_the_same_bits(dtype, monkeypatch):
    rng = np.random.default_rng(2)
    n = 3 << compiled._BITS_OF_A_RUN
    codes = compiled.read_only(rng.integers(0, n, 6 * n), np.int32)
    values = rng.normal(0, 40, 6 * n).astype(dtype)
    everything = ("count", "sum", "min", "max", "m2")
    fields = compiled.reduce(codes, n, values, everything, True, 1)
    monkeypatch.setattr(compiled, "_CACHED", 0)
    by_runs = compiled.reduce(codes, n, values, everything, True, 1)
    for name, of_field in fields.items():
        np.testing.assert_array_equal(by_runs[name], of_field, strict=True)


@pytest.mark.parametrize("lanes", [1, 4])
def test_sums_are_compensated(lanes):
    values = np.random.default_rng(0).random(100_000) * 1e9
    total = reduced(np.zeros(len(values), np.int64), values, ("sum",), n=1, lanes=lanes)["sum"]
    # to one rounding, however many rows there are
    assert abs(total[0] - math.fsum(values)) <= np.spacing(total[0])


@pytest.mark.parametrize(
    ("codes", "lanes"),
    [
        (np.zeros(1000, int), 4),
        (np.arange(1000) // 200, 4),
        (np.arange(1000) // 10, 1),  # too many groups
        (np.arange(1000) % 5, 1),
    ],
)
def test_lanes(codes, lanes):
    assert compiled.lanes_of(codes, codes.max() + 1) == lanes


@pytest.mark.parametrize("layout", ["strided", "read-only", "byte-swapped", "long"])
def test_any_layout(layout):
    rows = 3 * compiled.BLOCK + 7 if layout == "long" else 100
    values = np.arange(2 * rows, dtype="float32" if layout == "long" else "float64")[::2]
    if layout == "read-only":
        values = compiled.read_only(values, values.dtype)
    if layout == "byte-swapped":
        values = values.astype(values.dtype.newbyteorder())
    codes = np.arange(rows) % 3
    expected = pd.Series(values.astype("float64")).groupby(codes).sum()
    np.testing.assert_allclose(reduced(codes, values, ("sum",), n=3)["sum"], expected)


def test_one_signature_per_loop(monkeypatch):
    monkeypatch.setattr(compiled, "LEAST_ROWS", 1)
    for dtype in ("int8", "int64", "uint8", "uint64", "float32", "float64"):
        column = pd.Series(np.arange(9).astype(dtype))
        groups = group([column, column], dropna=True)
        for codes in (groups.codes, groups.codes.astype("int64")):
            for state in ("count", "min", "moments"):
                update(Reducer(codes, groups.n), state, [column], column.index)
    assert len(loops.reduce_floats.signatures) == 1
    assert len(loops.reduce_integers.signatures) == 2
    assert len(loops.number_integers.signatures) == 1


@pytest.mark.parametrize("dtype", INTEGERS)
@given(data=st.data())
def test_numbers_of_integers(dtype, data):
    low = data.draw(INTEGERS[dtype]) if dtype != "int8" else -128
    top = np.iinfo(dtype).max
    offsets = data.draw(st.lists(st.integers(0, min(99, top - low)), min_size=1))
    values = np.array([low + o for o in offsets], dtype)
    codes, present = compiled.number(values, low, 100)
    assert codes.tolist() == pd.factorize(np.array(offsets))[0].tolist()
    assert present[codes].tolist() == offsets


def test_threads_may_compile_at_once():
    code = """
import threading, numpy as np, pandas as pd
from dask_gpuagg.engines.host.states import update
from dask_gpuagg.engines.host.compiled import Reducer
values = pd.Series(np.ones(60_000)); codes = np.arange(60_000) % 7; sums = []
def work():
    sums.append(update(Reducer(codes, 7), "fsum", [values], values.index)["sum"].sum())
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
assert sums == [60_000.0] * 4, sums
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_few_rows_need_no_numba():
    code = """
import sys, pandas as pd
from dask_gpuagg.engines.host.grouping import group
from dask_gpuagg.engines.host.states import update
from dask_gpuagg.engines.host.compiled import Reducer
column = pd.Series(["id1", "id2"] * 1000, dtype="str"); groups = group([column], dropna=True)
update(Reducer(groups.codes, groups.n), "count", [column], column.index)
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_many_columns_make_up_for_few_rows():
    few = compiled.LEAST_ROWS // 4
    assert not compiled.should_run(few, columns=3)
    assert compiled.should_run(few, columns=4)
    assert not compiled.should_run(1000, columns=1000)


def test_a_cache_that_cannot_be_written(monkeypatch):
    def njit(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'f': no locator available")
        return lambda function: function

    monkeypatch.setattr(loops.numba, "njit", njit)
    assert loops.compiled(abs) is abs


@pytest.mark.parametrize("lanes", [1, 4])
def test_sums_beyond_the_largest_number(lanes):
    codes, values = np.zeros(9, np.int64), np.full(9, 0.3 * np.finfo(np.float64).max)
    assert reduced(codes, values, ("sum",), lanes=lanes)["sum"][0] == np.inf
    assert reduced(codes, -values, ("sum",), lanes=lanes)["sum"][0] == -np.inf


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2), min_size=1, max_size=50))
def test_numbers_and_integers(values):
    array = np.array(values, np.int64)
    expected, uniques = pd.factorize(array)
    for step in (None, 1, 3):
        codes, present = compiled.number_hashed(array, step)
        assert codes.tolist() == expected.tolist()
        assert present.tolist() == uniques.tolist()


VALUES = st.sampled_from([0.0, -0.0, 1.5, 2.5, -3.0, np.inf, -np.inf, np.nan, 1e308, 5e-324])
ROWS = st.lists(st.tuples(st.integers(0, 5), VALUES), max_size=60)


@given(rows=ROWS)
def test_medians_are_those_of_pandas(rows):
    codes = np.array([code for code, _ in rows], np.int32)
    values = np.array([value for _, value in rows], np.float64)
    got = compiled.medians(codes, 7, values)
    expected = pd.Series(values).groupby(codes).median().reindex(range(7)).to_numpy()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("pattern", ["sorted", "backwards", "equal", "organ pipe", "random"])
@pytest.mark.parametrize("rows", [4999, 5000])
def test_medians_of_many_rows_in_any_order(pattern, rows):
    result = {
        "sorted": np.arange(rows),
        "backwards": np.arange(rows)[::-1],
        "equal": np.full(rows, 3),
        "organ pipe": np.minimum(np.arange(rows), np.arange(rows)[::-1]),
        "random": np.random.default_rng(0).permutation(rows),
    }
    values = result[pattern].astype(np.float64)
    for codes in (np.zeros(rows, np.int32), np.arange(rows, dtype=np.int32) % 3):
        got = compiled.medians(codes, 3, values)
        expected = [np.median(v) if len(v := values[codes == g]) else np.nan for g in range(3)]
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("buckets", [1, 3, 16])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int32", "float32", "float64"])
def test_tables_of_plain_numbers_are_divided_as_others_are(dtype, buckets):
    rows = compiled.LEAST_ROWS
    rng = np.random.default_rng(2)
    table = pd.DataFrame({"k0": rng.integers(0, 50, rows), "v0": np.arange(rows).astype(dtype)})
    plan = Plan((Column("k", table["k0"].dtype),), (), (), ())
    assert compiled.can_order(table)
    fast = split_partial({"rows": table}, plan, buckets)
    with mock.patch.object(compiled, "can_order", return_value=False):
        slow = split_partial({"rows": table}, plan, buckets)
    assert len(fast) == len(slow) == buckets
    for got, expected in zip(fast, slow, strict=True):
        pd.testing.assert_frame_equal(got["rows"], expected["rows"].reset_index(drop=True))


@given(rows=ROWS, stride=st.sampled_from([1, 70_000]), narrow=st.sampled_from(["i1", "i2", "i4"]))
def test_rows_are_ordered_within_their_groups(rows, stride, narrow):
    # codes of booleans and of categories have as few bits as hold them
    codes = np.array([code * stride for code, _ in rows], narrow if stride == 1 else np.int64)
    values = np.array([value for _, value in rows], np.float64)
    order = compiled.order_within(codes, 5 * stride + 1, values)
    expected = np.lexsort((values, codes))
    assert sorted(order) == list(range(len(rows)))
    np.testing.assert_array_equal(codes[order], codes[expected])
    np.testing.assert_array_equal(values[order], values[expected])


@pytest.mark.parametrize(("mebibytes", "runs"), [(400, False), (600, True), (None, True)])
def test_a_small_worker_does_not_load_the_libraries(mebibytes, runs, monkeypatch):
    limit = None if mebibytes is None else mebibytes << 20
    worker = SimpleNamespace(memory_manager=SimpleNamespace(memory_limit=limit))
    monkeypatch.setattr(distributed.worker, "get_worker", lambda: worker)
    assert compiled.should_run(compiled.LEAST_ROWS) is runs
