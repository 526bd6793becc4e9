"""Aggregations that Dask refuses: dtypes of cuDF's results, decided without cuDF."""

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_gpuagg
from dask_gpuagg import UnsupportedGroupBy
from dask_gpuagg.frontend import calls, hook
from dask_gpuagg.frontend.metadata import cudf_dtype
from dask_gpuagg.frontend.specification import exact_of
from dask_gpuagg.plan import Requested
from tests.comparison import assert_same

RAISE = {"gpuagg.fallback": "raise"}


def test_the_device_is_asked_for_exact_answers() -> None:
    q = (("q", 0.9),)
    approximate = Requested("a", "quantile_approx", "x", q)
    assert exact_of(approximate) == Requested("a", "quantile", "x", q)
    assert exact_of(Requested("b", "nunique_approx", "x")) == Requested("b", "nunique", "x")
    for exact in (Requested("c", "sum", "x"), Requested("d", "custom", "x")):
        assert exact_of(exact) is exact


@pytest.mark.parametrize(
    ("name", "dtype", "wide"),
    [
        ("sum", np.dtype("int8"), "int64"),
        ("sum", np.dtype("uint64"), "int64"),
        ("sum", pd.UInt64Dtype(), "Int64"),
        ("prod", pd.ArrowDtype(pa.uint8()), "int64[pyarrow]"),
        ("prod", np.dtype("bool"), "int64"),
        ("sum", np.dtype("int64"), None),
        ("sum", np.dtype("float32"), None),
        ("mean", np.dtype("float32"), "float64"),
        ("mean", pd.Float32Dtype(), "Float64"),
        ("sem", pd.ArrowDtype(pa.float32()), "double[pyarrow]"),
        ("mean", np.dtype("float64"), None),
        ("min", np.dtype("int8"), None),
    ],
)
def test_dtypes_are_those_of_cudf(name: str, dtype: object, wide: str | None) -> None:
    assert cudf_dtype(Requested("v", name, "v"), dtype) == wide


class Decimal64Dtype:
    """Stands for cuDF's, which cannot be imported here."""

    MAX_PRECISION = 18

    def __init__(self, precision: int, scale: int) -> None:
        self.precision, self.scale = precision, scale


Decimal64Dtype.__module__ = "cudf.core.dtypes"


def test_dtypes_of_decimals() -> None:
    source = Decimal64Dtype(9, 2)
    dtypes = {n: cudf_dtype(Requested("v", n, "v"), None, source) for n in ("min", "mean", "first")}
    assert all(dtype is source for dtype in dtypes.values())
    total = cudf_dtype(Requested("v", "sum", "v"), None, source)
    assert (total.precision, total.scale) == (18, 2)
    assert cudf_dtype(Requested("v", "var", "v"), None, source) == "float64"
    assert cudf_dtype(Requested("v", "count", "v"), np.dtype("int64"), source) is None


def test_quantiles_of_bools_are_floats() -> None:
    assert cudf_dtype(Requested("v", "quantile", "v"), None, np.dtype("bool")) == "float64"


def values() -> pd.DataFrame:
    rows = range(6)
    frame = pd.DataFrame({"k": [1, 2, 1, 2, 1, 2], "x": [1.0, None, 3.0, 4.0, 5.0, 6.0]})
    frame["period"] = pd.period_range("2020-01", periods=6, freq="M")
    frame["complex"] = np.arange(6) * 1j
    frame["decimal"] = pd.array([Decimal(i) for i in rows], pd.ArrowDtype(pa.decimal128(10, 2)))
    return frame


# what our plans do not run, and stock Dask does
FALLING_BACK: dict[str, Callable[[Any], Any]] = {
    "median beside complex numbers": lambda g: g.agg({"x": "median", "complex": "sum"}),
    "median of periods": lambda g: g.agg({"period": "median"}),
    "median of complex numbers": lambda g: g.agg({"complex": "median", "x": "sum"}),
    "median of one column": lambda g: g.period.agg("median"),
    "several of one column": lambda g: g.period.agg(["median", "max"]),
    "median of decimals": lambda g: g.agg({"decimal": "median"}),
    "named": lambda g: g.agg(b=("x", "median"), a=("complex", "sum")),
    "several outputs": lambda g: g.agg({"x": "median", "complex": "sum"}, split_out=2),
    "an argument": lambda g: g.x.agg("first", skipna=False),
}


@pytest.mark.parametrize("name", FALLING_BACK)
def test_stock_dask_runs_what_it_accepts(name: str) -> None:
    grouped = dd.from_pandas(values(), npartitions=3).groupby("k")
    want = FALLING_BACK[name](grouped).compute(scheduler="synchronous")
    with dask_gpuagg.enabled():
        query = FALLING_BACK[name](grouped)
        with pytest.warns(dask_gpuagg.FallbackWarning, match="not supported|understand"):
            got = query.compute(scheduler="synchronous")
        with dask.config.set(RAISE), pytest.raises(UnsupportedGroupBy):
            query.compute()
    if name == "median of one column":
        want = want["period"]  # Dask makes a frame of it
    if name == "several of one column":
        want = want["period"]  # Dask gives their names a level more
        assert_same(query["max"].compute(scheduler="synchronous"), want["max"])
    assert_same(got, want)


def numbers() -> pd.DataFrame:
    return values()[["k", "x"]]


# what our plans run, and stock Dask in its way
BOTH: dict[str, Callable[[Any], Any]] = {
    "median": lambda g: g.agg({"x": "median"}),
    "several outputs": lambda g: g.agg({"x": ["median", "sum"]}, split_out=2),
    "named": lambda g: g.agg(a=("x", "median")),
    "several of one column": lambda g: g.x.agg(["median", "sum"]),
    "method": lambda g: g[["k"]].idxmin(numeric_only=True),
    "an argument": lambda g: g.x.agg("sum", min_count=1),
}


@pytest.mark.parametrize("name", BOTH)
def test_a_query_outlives_the_plugin(name: str) -> None:
    frame = dd.from_pandas(numbers(), npartitions=3)
    with dask_gpuagg.enabled(), dask.config.set(RAISE):
        query = BOTH[name](frame.groupby("k", sort=name == "method"))
        want = query.compute(scheduler="synchronous")
        partitions = query.optimize().npartitions
    assert_same(query.compute(scheduler="synchronous"), want)
    assert query.optimize().npartitions == partitions


@pytest.mark.parametrize("name", BOTH)
def test_stock_dask_runs_where_workers_lack_the_package(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "cluster_problem", lambda: "a worker cannot import dask_gpuagg")
    frame = dd.from_pandas(numbers(), npartitions=20)
    with dask_gpuagg.enabled(), dask.config.set(scheduler="synchronous"):
        query = BOTH[name](frame.groupby("k"))
        with pytest.warns(dask_gpuagg.FallbackWarning, match="cannot import"):
            got = query.compute()
        # nothing of ours is left, and what is built upon it fits
        lowered = (query + query).optimize(fuse=False).expr
    assert not [n for n in lowered.walk() if type(n).__module__.startswith("dask_gpuagg")]
    assert_same(got, BOTH[name](numbers().groupby("k")))


def test_what_stock_dask_refuses_says_why_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = dd.from_pandas(numbers(), npartitions=2)
    with dask_gpuagg.enabled():
        query = frame.groupby("k").agg("nunique")
        monkeypatch.setattr(hook, "cluster_problem", lambda: "a worker is of another release")
        with pytest.raises(UnsupportedGroupBy, match="a worker is of another release"):
            query.compute()


@pytest.mark.parametrize("name", ["median", "named", "method"])
def test_a_bug_in_making_ours_costs_no_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(calls, "extended", broken)
    grouped = dd.from_pandas(numbers(), npartitions=2).groupby("k", sort=True)
    with dask_gpuagg.enabled(), dask.config.set(scheduler="synchronous"):
        with pytest.warns(dask_gpuagg.FallbackWarning, match="a bug"):
            query = BOTH[name](grouped)
        with dask.config.set(RAISE), pytest.raises(UnsupportedGroupBy, match="a bug"):
            BOTH[name](grouped)
        assert_same(query.compute(), BOTH[name](numbers().groupby("k")))


N = 6
REFUSED_BY_PANDAS: dict[str, tuple[pd.Series, Any, str]] = {
    "decimals": (
        pd.Series([Decimal(i) for i in range(N)], dtype=pd.ArrowDtype(pa.decimal128(9, 2))),
        [np.median, any],
        "pandas refuses any of decimal128",
    ),
    "categories": (pd.Series([3, 1, 2] * 2, dtype="category"), np.median, "median of category"),
    "sparse": (pd.Series(pd.arrays.SparseArray([0.0, 1.0] * 3)), np.median, "of Sparse"),
    "arguments": (pd.Series(range(N)), "max", "unexpected keyword argument 'ddof'"),
}


@pytest.mark.parametrize("name", REFUSED_BY_PANDAS)
def test_what_pandas_has_no_result_of_is_a_reason(name: str) -> None:
    column, functions, reason = REFUSED_BY_PANDAS[name]
    frame = pd.DataFrame({"k": [0, 1] * 3, "x": column})
    grouped = dd.from_pandas(frame, npartitions=2, sort=False).groupby("k")
    arguments = {"ddof": 0} if name == "arguments" else {}
    refused = pytest.raises(UnsupportedGroupBy, match=reason)
    with dask.config.set(RAISE), dask_gpuagg.enabled(), refused as raised:
        grouped.agg(functions, **arguments)
    assert "planner failed" not in str(raised.value)


def test_where_stock_dask_refuses_too_the_error_is_that_of_pandas() -> None:
    grouped = dd.from_pandas(numbers(), npartitions=2).groupby("k")
    with dask_gpuagg.enabled(), pytest.raises(TypeError, match="unexpected keyword argument 'q'"):
        grouped.agg(["nunique", "sum"], q=0.5)


def test_several_quantiles_beside_a_median_are_a_reason() -> None:
    several = partial(pd.Series.quantile, q=[0.1, 0.2])
    with dask_gpuagg.enabled(), dask.config.set(RAISE):
        query = dd.from_pandas(numbers(), npartitions=2).groupby("k").agg([several, "median"])
        with pytest.raises(UnsupportedGroupBy, match="several quantiles at once"):
            query.optimize()


@pytest.mark.parametrize("split_out", [0, -1, "x", 1.5])
def test_what_is_no_number_of_outputs_is_a_reason(split_out: Any) -> None:
    query = dd.from_pandas(numbers(), npartitions=2).groupby("k").sum(split_out=split_out)
    refused = pytest.raises(UnsupportedGroupBy, match="is not a number of outputs")
    with dask.config.set(RAISE), dask_gpuagg.enabled(), refused:
        query.optimize()


def test_a_printed_expression_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.DataFrame({"k": [1, 2], **{f"v{i}": [1.0, 2.0] for i in range(9)}})
    values = [name for name in frame if name != "k"]
    rows = dd.from_pandas(frame, npartitions=2)
    with dask_gpuagg.enabled():
        query = rows.groupby("k").agg({v: ["nunique", "median"] for v in values})
    outputs = "nunique of v0, median of v0, nunique of v1, median of v1 and 14 more"
    query.pprint()
    (line,) = (x for x in capsys.readouterr().out.splitlines() if "ExtendedAggregation" in x)
    assert outputs in line
    assert str(query.expr) == f"ExtendedAggregation(df, {outputs}, by=['k'])"
    assert max(map(len, [line, *repr(query).splitlines()])) < 200


def test_stock_dask_reads_no_more_columns_than_ours(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "cluster_problem", lambda: "a worker cannot import dask_gpuagg")
    numbers().assign(y=0).to_parquet(tmp_path / "a")
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "silent"}):
        query = dd.read_parquet(tmp_path / "a").groupby("k").agg({"x": "median"})
        lowered = query.optimize(fuse=False).expr
    reads = [n.columns for n in lowered.walk() if type(n).__name__.startswith("ReadParquet")]
    assert [sorted(columns) for columns in reads] == [["k", "x"]]


COMPLEX = pd.DataFrame(
    {
        "k": np.arange(60) % 7,
        "j": pd.Series(np.arange(60) % 3).where(np.arange(60) % 5 > 0),
        "c": pd.Categorical(np.array(list("abc"))[np.arange(60) % 3], categories=list("abcd")),
        "x": np.arange(60) * 0.5,
        "z": np.arange(60) * (1 + 2j),
    }
)


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("by", "spec", "flags"),
    [
        ("k", {"z": ["sum", "count"], "x": ["sum", "var"]}, {}),
        ("k", {"x": ["nunique", "quantile"], "z": "sum"}, {}),
        (["k", "j"], {"x": "sum", "z": "sum"}, {"dropna": False}),
        ("c", {"z": "sum", "x": "mean"}, {"observed": False}),
        ("k", {"x": partial(pd.Series.sum, min_count=9), "z": "sum"}, {"sort": True}),
    ],
    ids=["several", "refused by Dask", "null keys", "categories", "guarded"],
)
def test_stock_dask_runs_what_is_refused_beside_the_rest(by, spec, flags) -> None:
    with dask.config.set({"gpuagg.fallback": "silent", "scheduler": "sync"}):
        query = dd.from_pandas(COMPLEX, npartitions=4).groupby(by, **flags).agg(spec)
        (explained,) = dask_gpuagg.explain(query).groupbys
        got = query.compute().sort_index()
    expected = COMPLEX.groupby(by, **flags).agg(spec)
    assert explained.engine == "host"
    assert {reason.column for reason in explained.reasons} == {"z"}
    pd.testing.assert_index_equal(got.index, expected.index)
    assert list(got.columns) == list(expected.columns)
    for i in range(got.shape[1]):
        np.testing.assert_allclose(got.iloc[:, i], expected.iloc[:, i])


@pytest.mark.usefixtures("plugin")
def test_what_is_refused_beside_the_rest_is_named() -> None:
    query = dd.from_pandas(COMPLEX, npartitions=4).groupby("k").agg({"x": "sum", "z": "sum"})
    reason = "sum of dtype complex128 is not supported"
    assert [str(r) for r in dask_gpuagg.why_not(query)] == [f"sum of 'z': {reason}"]
    refused = pytest.raises(UnsupportedGroupBy, match=f"sum of 'z', runs .*{reason}")
    with dask.config.set(RAISE), refused:
        query.compute()


@pytest.mark.usefixtures("plugin")
def test_results_of_several_outputs_are_not_joined() -> None:
    frame = dd.from_pandas(COMPLEX, npartitions=4)
    query = frame.groupby("k").agg({"x": "sum", "z": "sum"}, split_out=2)
    (explained,) = dask_gpuagg.explain(query).groupbys
    assert explained.engine == "stock Dask"


@pytest.mark.parametrize("observed", [True, False])
@pytest.mark.parametrize("by", [["p", "c"], ["s", "c"], ["c", "n"], ["s", "c", "n"]], ids="-".join)
def test_null_keys_find_their_groups_in_the_result_of_stock_dask(by, observed) -> None:
    """An index of several levels with nulls and unobserved categories finds wrong places."""
    frame = pd.DataFrame(
        {
            "p": pd.array([1, None, 2, 1, None, 2], dtype="Int64"),
            "s": ["a", None, "b", "a", None, "b"],
            "n": [1.0, np.nan, 2.0, 1.0, np.nan, 2.0],
            "c": pd.Categorical(list("xyxyxy"), categories=list("xyz")),
            "v": range(6),
            "z": np.arange(1, 7) * 1j,
        }
    )
    query = dd.from_pandas(frame, npartitions=3).groupby(by, observed=observed, dropna=False)
    query = query.agg({"z": "sum", "v": "sum"})
    with dask.config.set({"gpuagg.fallback": "silent", "scheduler": "sync"}):
        stock = query.compute()
        with dask_gpuagg.enabled():
            ours = query.compute()
    groups = [
        {tuple(map(str, key)): (z, v) for key, z, v in zip(r.index, r.z, r.v, strict=True)}
        for r in (ours, stock)
    ]
    assert groups[0] == groups[1]


def test_beside_a_median_stock_dask_runs_all() -> None:
    """It has whole groups there, and makes deviations of complex numbers and times of them."""
    frame = pd.DataFrame({"k": [1, 2] * 4, "v": np.arange(8.0), "z": np.arange(8) * 1j})
    query = dd.from_pandas(frame, npartitions=2).groupby("k").agg({"z": "std", "v": "median"})
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "silent"}):
        (explained,) = dask_gpuagg.explain(query).groupbys
        got = query.compute().sort_index()
    assert explained.engine == "stock Dask"
    want = frame.groupby("k").agg({"z": "std", "v": "median"})
    np.testing.assert_allclose(got.z, want.z)
