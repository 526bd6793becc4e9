"""The compiled loops give what pandas gives, at any number of rows that they are asked for."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.engines.host import fused, loops, loops_sums, numbering, strings
from dask_gpuagg.engines.host.grouping import group
from dask_gpuagg.engines.host.reducer import Reducer
from dask_gpuagg.engines.host.update import update

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
    codes = fused.frozen(codes, np.int32)
    lanes = fused.lanes_of(codes, n) if lanes is None else lanes
    return fused.reduce(codes, n, values, wanted, skipna, lanes)


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


@pytest.mark.parametrize("dtype", INTEGERS)
@given(data=st.data())
def test_integers(dtype, data):
    codes, values = split(data.draw(rows_of(INTEGERS[dtype])), dtype)
    grouped = pd.Series(values).groupby(codes)
    present = np.unique(codes)
    wide = "uint64" if dtype.startswith("u") else "int64"
    fields = reduced(codes, values)
    # no rows, no smallest integer
    assert "min" not in fields
    assert fields["sum"].dtype == wide
    np.testing.assert_array_equal(fields["sum"][present], grouped.sum())
    dense = np.searchsorted(present, codes)
    fields = reduced(dense, values, n=len(present))
    for name in ("min", "max"):
        assert fields[name].dtype == dtype
        np.testing.assert_array_equal(fields[name], getattr(grouped, name)())
    m2 = pd.Series(values.astype("float64")).groupby(codes).var(ddof=0) * grouped.count()
    np.testing.assert_allclose(fields["m2"], m2, rtol=1e-9)


def test_integers_wrap():
    codes, values = np.zeros(3, np.int64), np.full(3, 2**63 - 1)
    assert reduced(codes, values, ("sum",), n=1)["sum"].tolist() == [2**63 - 3]


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("rows", [2, 3, 1000])
@pytest.mark.parametrize("value", [0.1, 1e9 + 0.1, 1e300, -3.0])
def test_a_constant_has_no_variance(value, rows, lanes):
    fields = reduced(np.arange(rows) % 3, np.full(rows, value), n=3, lanes=lanes)
    assert fields["m2"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("lanes", [1, 4])
def test_the_variance_of_far_values(lanes):
    rng = np.random.default_rng(0)
    codes, noise = rng.integers(0, 3, 30_000), rng.random(30_000)
    got = reduced(codes, noise + 1e9, ("m2",), n=3, lanes=lanes)["m2"]
    if lanes == 1:
        expected = pd.Series(noise + 1e9).groupby(codes).var(ddof=0)
        np.testing.assert_allclose(got / np.bincount(codes), expected, rtol=1e-12)
    exact = pd.Series((noise + 1e9) - 1e9).groupby(codes).var(ddof=0)
    np.testing.assert_allclose(got / np.bincount(codes), exact, rtol=1e-6)


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
    assert fused.lanes_of(codes, codes.max() + 1) == lanes


@pytest.mark.parametrize("layout", ["strided", "read-only", "byte-swapped", "long"])
def test_any_layout(layout):
    rows = 3 * fused._BLOCK + 7 if layout == "long" else 100
    values = np.arange(2 * rows, dtype="float32" if layout == "long" else "float64")[::2]
    if layout == "read-only":
        values = fused.frozen(values, values.dtype)
    if layout == "byte-swapped":
        values = values.astype(values.dtype.newbyteorder())
    codes = np.arange(rows) % 3
    expected = pd.Series(values.astype("float64")).groupby(codes).sum()
    np.testing.assert_allclose(reduced(codes, values, ("sum",), n=3)["sum"], expected)


def test_one_signature_per_loop(monkeypatch):
    monkeypatch.setattr(fused, "LEAST_ROWS", 1)
    for dtype in ("int8", "int64", "uint8", "uint64", "float32", "float64"):
        column = pd.Series(np.arange(9).astype(dtype))
        groups = group([column, column], dropna=True)
        for codes in (groups.codes, groups.codes.astype("int64")):
            for state in ("count", "min", "moments"):
                update(Reducer(codes, groups.n), state, [column], column.index)
    assert len(loops.reduce_floats.signatures) == 1
    fused.sums(fused.frozen(np.zeros(9), "int32"), 1, [np.ones(9)] * 4, True, True, 1)
    assert len(loops_sums.sum_columns.signatures) == 2
    assert len(loops.reduce_integers.signatures) == 2
    assert len(loops.number_integers.signatures) == 1
    assert len(loops.number_pairs.signatures) == 1


@pytest.mark.parametrize("dtype", INTEGERS)
@given(data=st.data())
def test_numbers_of_integers(dtype, data):
    low = data.draw(INTEGERS[dtype]) if dtype != "int8" else -128
    top = np.iinfo(dtype).max
    offsets = data.draw(st.lists(st.integers(0, min(99, top - low)), min_size=1))
    values = np.array([low + o for o in offsets], dtype)
    codes, present = numbering.number(values, low, 100)
    assert codes.tolist() == pd.factorize(np.array(offsets))[0].tolist()
    assert present[codes].tolist() == offsets


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1))
def test_numbers_of_pairs(pairs):
    left, right = (np.array(side) for side in zip(*pairs, strict=True))
    codes, present = numbering.number_pairs(left, right, 7, 28)
    assert present[codes].tolist() == (left * 7 + right).tolist()
    assert len(set(codes.tolist())) == len(set(pairs)) == len(present)


@pytest.mark.parametrize(
    "words", [["a", "b"], ["x1234567", "x1234568"], ["id0000000001", "id0000999999"]]
)
@pytest.mark.parametrize("cut", [0, 5])
def test_numbers_of_strings(words, cut):
    column = pd.Series(words * fused.LEAST_ROWS, dtype="str").iloc[cut:]
    packed = strings.pack(column)
    codes, present = packed.numbers()
    back = strings.unpack(present[codes], packed.packing, column.dtype)
    assert back.tolist() == column.tolist()
    assert codes.tolist() == pd.factorize(column)[0].tolist()


def test_strings_of_different_lengths_are_different_groups():
    column = pd.Series(["ab", "a", "abc"] * fused.LEAST_ROWS, dtype="str")
    assert strings.pack(column) is None


@pytest.mark.parametrize("keys", [1, 2, 3, 6])
def test_groups_of_several_keys(keys):
    rng = np.random.default_rng(keys)
    columns = [pd.Series(rng.integers(0, 40, fused.LEAST_ROWS)) for _ in range(keys)]
    columns[0] = columns[0].map(lambda i: f"id{i:03d}").astype("str")
    groups = group(columns, dropna=True)
    expected = pd.concat(columns, axis=1)
    got = pd.DataFrame(
        {i: pd.Series(k).take(groups.codes).array for i, k in enumerate(groups.keys)}
    )
    assert got.to_numpy().tolist() == expected.to_numpy().tolist()
    assert groups.n == len(expected.drop_duplicates())


def test_threads_may_compile_at_once():
    code = """
import threading, numpy as np, pandas as pd
from dask_gpuagg.engines.host.update import update
from dask_gpuagg.engines.host.reducer import Reducer
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
from dask_gpuagg.engines.host.update import update
from dask_gpuagg.engines.host.reducer import Reducer
column = pd.Series(["id1", "id2"] * 1000, dtype="str"); groups = group([column], dropna=True)
update(Reducer(groups.codes, groups.n), "count", [column], column.index)
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_many_columns_make_up_for_few_rows():
    few = fused.LEAST_ROWS // 4
    assert not fused.usable(few, columns=3)
    assert fused.usable(few, columns=4)
    assert not fused.usable(1000, columns=1000)


def test_wide_partitions_are_reduced_by_the_loops():
    rng = np.random.default_rng(0)
    rows = fused.LEAST_ROWS // 4
    columns = [pd.Series(rng.random(rows)) for _ in range(6)]
    codes = rng.integers(0, 9, rows)
    reducer = Reducer(codes, 9)
    for column in columns:
        reducer.expect("fsum", column)
    with mock.patch.object(fused, "sums", wraps=fused.sums) as together:
        sums = [update(reducer, "fsum", [c], c.index)["sum"] for c in columns]
    assert [len(call.args[2]) for call in together.call_args_list] == [4, 1, 1]
    expected = [c.groupby(codes).sum().to_numpy() for c in columns]
    np.testing.assert_allclose(sums, expected, rtol=1e-14)


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("skipna", [False, True])
@pytest.mark.parametrize("lanes", [1, 4])
@given(rows=st.lists(st.tuples(st.integers(0, GROUPS - 2), *[FLOATS] * 4), min_size=1, max_size=40))
def test_columns_summed_together_are_those_of_one_by_one(counts, skipna, lanes, rows):
    codes, *columns = (np.array(column) for column in zip(*rows, strict=True))
    columns = [column.astype(np.float64) for column in columns]
    codes = fused.frozen(codes, np.int32)
    wanted = ("sum", "count") if counts else ("sum",)
    together = fused.sums(codes, GROUPS, columns, counts, skipna, lanes)
    for column, made in zip(columns, together, strict=True):
        one = fused.reduce(codes, GROUPS, column, wanted, skipna, lanes)
        assert made.keys() == one.keys()
        for field in wanted:
            assert made[field].dtype == one[field].dtype
            np.testing.assert_array_equal(made[field], one[field])


def test_columns_of_which_more_is_wanted_are_reduced_apart():
    rng = np.random.default_rng(0)
    columns = [pd.Series(rng.random(fused.LEAST_ROWS)) for _ in range(10)]
    codes = rng.integers(0, 9, fused.LEAST_ROWS)
    reducer = Reducer(codes, 9)
    for i, column in enumerate(columns):
        reducer.expect("fsum", column)
        if i < 5:
            reducer.expect("count", column)
    reducer.expect("min", columns[9])
    with mock.patch.object(fused, "sums", wraps=fused.sums) as together:
        sums = [update(reducer, "fsum", [c], c.index)["sum"] for c in columns]
    # the fifth that is counted, and the one with an extreme, are alone
    calls = [call.args[2:4] for call in together.call_args_list]
    assert [counts for read, counts in calls if len(read) == 4] == [True, False]
    expected = [c.groupby(codes).sum().to_numpy() for c in columns]
    np.testing.assert_allclose(sums, expected, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("groups", [3, 700, 5000])
def test_rows_from_memory_have_many_accumulators(groups, dtype):
    rows = fused._ROWS_FROM_MEMORY
    rng = np.random.default_rng(groups)
    values = rng.normal(1e6, 1.0, rows).astype(dtype)
    values[::7] = np.nan
    codes = rng.integers(0, groups, rows)
    with mock.patch.object(fused, "_folded", wraps=fused._folded) as folded:
        made = reduced(codes, values, ("sum", "count", "min", "max"), n=groups, lanes=1)
        alone = reduced(codes, values, ("sum",), n=groups, lanes=1)
        few = reduced(codes[:-1], values[:-1], ("sum",), n=groups, lanes=1)
    assert folded.call_count == (2 if groups < 5000 else 0)
    grouped = pd.Series(values.astype("float64")).groupby(codes)
    np.testing.assert_allclose(made["sum"], grouped.sum(), rtol=1e-15)
    np.testing.assert_allclose(alone["sum"], grouped.sum(), rtol=1e-15)
    np.testing.assert_array_equal(made["count"], grouped.count())
    np.testing.assert_array_equal(made["min"], grouped.min())
    np.testing.assert_array_equal(made["max"], grouped.max())
    last = np.arange(groups) == codes[-1]
    np.testing.assert_allclose(few["sum"][~last], alone["sum"][~last], rtol=1e-15)


def test_many_groups_are_summed_column_by_column():
    rows = fused.LEAST_ROWS
    assert fused.sums_pay(rows, rows // 16)
    assert not fused.sums_pay(rows, rows // 8)
    columns = [pd.Series(np.ones(rows)) for _ in range(4)]
    codes = np.arange(rows) % (rows // 8)
    reducer = Reducer(codes, rows // 8)
    for column in columns:
        reducer.expect("fsum", column)
    with mock.patch.object(fused, "sums", wraps=fused.sums) as together:
        sums = [update(reducer, "fsum", [c], c.index)["sum"] for c in columns]
    assert [len(call.args[2]) for call in together.call_args_list] == [1] * 4
    assert all((s == 8.0).all() for s in sums)


def test_without_the_compiler_pandas_reduces(monkeypatch):
    import numba

    assert fused.usable(fused.LEAST_ROWS)
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    assert not fused.usable(fused.LEAST_ROWS)
    values = pd.Series(np.ones(fused.LEAST_ROWS))
    fields = update(Reducer(np.zeros(len(values), int), 1), "moments", [values], values.index)
    assert fields["m2"].tolist() == [0.0]


def test_a_cache_that_cannot_be_written(monkeypatch):
    def njit(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'f': no locator available")
        return lambda function: function

    monkeypatch.setattr(loops.numba, "njit", njit)
    assert loops.compiled(abs) is abs


def test_another_error_of_the_compiler_is_raised(monkeypatch):
    def njit(**options: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(loops.numba, "njit", njit)
    with pytest.raises(RuntimeError, match="no memory"):
        loops.compiled(abs)


@pytest.mark.parametrize("lanes", [1, 4])
def test_sums_beyond_the_largest_number(lanes):
    codes, values = np.zeros(9, np.int64), np.full(9, 0.3 * np.finfo(np.float64).max)
    assert reduced(codes, values, ("sum",), lanes=lanes)["sum"][0] == np.inf
    assert reduced(codes, -values, ("sum",), lanes=lanes)["sum"][0] == -np.inf
