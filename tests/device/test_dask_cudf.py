"""dask-cudf collections with the plugin on: against stock dask-cudf, and against cuDF."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg

ROWS = 20_000


@pytest.fixture(autouse=True)
def raising() -> Iterator[None]:
    """Synchronous, and a fallback is an error."""
    import dask

    with (
        dask.config.set({"scheduler": "synchronous", "gpuagg.fallback": "raise"}),
        dask_gpuagg.enabled(),
    ):
        yield


def frame() -> Any:
    import cudf

    rng = np.random.default_rng(3)
    pdf = pd.DataFrame(
        {
            "k": rng.integers(0, 50, ROWS),
            "s": rng.choice(["one", "two", "three"], ROWS),
            "n": pd.Series(rng.integers(0, 5, ROWS)).astype("Int64").mask(rng.random(ROWS) < 0.2),
            "f": rng.normal(1.0, 1.0, ROWS),
            "h": rng.normal(1.0, 1.0, ROWS).astype("float32"),
            "i": rng.integers(-100, 100, ROWS).astype("int8"),
            "b": rng.random(ROWS) < 0.5,
            "t": np.datetime64("2026-01-01", "ns") + rng.integers(0, 10**15, ROWS),
            "v": pd.Series(rng.integers(0, 9, ROWS)).astype("Int32").mask(rng.random(ROWS) < 0.3),
        }
    )
    return cudf.DataFrame(pdf)


def collection(gdf: Any, npartitions: int = 5) -> Any:
    import dask_cudf

    return dask_cudf.from_cudf(gdf, npartitions=npartitions)


def host(result: Any) -> Any:
    made = result.to_pandas() if hasattr(result, "to_pandas") else result
    return made.sort_index()


def assert_same(ours: Any, theirs: Any, dtypes: bool = True) -> None:
    ours, theirs = host(ours), host(theirs)
    assert type(ours) is type(theirs)
    kind = pd.testing.assert_frame_equal if ours.ndim == 2 else pd.testing.assert_series_equal
    kind(ours, theirs, check_dtype=dtypes, rtol=1e-9, check_index_type=False)


SPECS: list[Any] = [
    "sum",
    {"f": "sum"},
    {"f": ["sum", "count", "min", "max", "mean", "var", "std"], "i": ["sum", "mean"]},
    {"v": ["sum", "count", "mean", "min", "max"], "h": ["mean", "min"]},
    {"t": ["min", "max", "count"], "b": ["sum", "count"]},
    {"v": ["first", "last"], "s": "count"},
]


@pytest.mark.parametrize("keys", [["k"], ["s"], ["k", "s"], ["n"], ["n", "s"]], ids="+".join)
@pytest.mark.parametrize("spec", SPECS[1:], ids=str)
def test_agg_equals_cudf(spec: Any, keys: list[str]) -> None:
    gdf = frame()
    gdf = gdf if "s" not in keys else gdf.assign(s2=gdf.s)
    # cuDF accumulates float32 in float32, the kernels in float64
    exact = gdf.assign(h=gdf.h.astype("float64"))
    theirs = exact.groupby(keys).agg(spec if "s" not in keys else _renamed(spec))
    ours = collection(gdf).groupby(keys).agg(spec if "s" not in keys else _renamed(spec))
    made = ours.compute()
    if ("h", "min") in theirs.columns:
        assert made[("h", "min")].dtype == "float32"
        made[("h", "min")] = made[("h", "min")].astype("float64")
    assert_same(made, theirs)


def _renamed(spec: dict[str, Any]) -> dict[str, Any]:
    return {("s2" if k == "s" else k): v for k, v in spec.items()}


METHODS = ["sum", "count", "min", "max", "mean", "var", "std", "first", "last", "size"]


@pytest.mark.parametrize("name", METHODS)
def test_methods_equal_cudf(name: str) -> None:
    columns = ["k", "f", "i", "v"]
    # stock Dask cannot make the metadata of var and std of nullable columns of cuDF
    gdf = frame()[columns[:3] if name in ("var", "std") else columns]
    ours = getattr(collection(gdf).groupby("k"), name)().compute()
    assert_same(ours, getattr(gdf.groupby("k"), name)())


@pytest.mark.parametrize("split_out", [1, 3])
@pytest.mark.parametrize("npartitions", [1, 2, 20])
def test_plans_agree(npartitions: int, split_out: int) -> None:
    gdf = frame()
    spec = {"f": ["sum", "var", "first", "last"], "v": ["count", "min"]}
    ours = collection(gdf, npartitions).groupby(["k", "n"]).agg(spec, split_out=split_out)
    assert_same(ours.compute(), gdf.groupby(["k", "n"]).agg(spec))


def test_sorted() -> None:
    gdf = frame()
    ours = collection(gdf).groupby("k", sort=True).agg({"f": "sum"}).compute()
    assert ours.index.to_pandas().is_monotonic_increasing


@pytest.mark.parametrize("dropna", [True, False])
def test_null_keys(dropna: bool) -> None:
    gdf = frame()
    gdf["g"] = gdf["f"].where(gdf["f"] > 0, None)
    gdf["g"] = gdf["g"].round()
    for key in ("n", "g"):
        ours = collection(gdf).groupby(key, dropna=dropna).agg({"i": ["sum", "count"]}).compute()
        theirs = gdf.groupby(key, dropna=dropna).agg({"i": ["sum", "count"]})
        assert len(ours) == len(theirs)
        by_value = ("i", "sum")
        ours, theirs = (x.reset_index(drop=True) for x in (ours, theirs))
        assert_same(
            ours.sort_values(by_value, ignore_index=True),
            theirs.sort_values(by_value, ignore_index=True),
        )


def test_what_dask_cudf_refuses() -> None:
    gdf = frame()
    ddf = collection(gdf)
    named = ddf.groupby("k").agg(total=("f", "sum"), n=("v", "nunique")).compute()
    assert_same(named["total"], gdf.groupby("k").f.sum().rename("total"))
    assert_same(named["n"], gdf.groupby("k").v.nunique().rename("n"))
    by_expression = ddf.groupby(ddf.k % 3).agg({"f": "sum"}).compute()
    assert_same(by_expression, gdf.groupby(gdf.k % 3).agg({"f": "sum"}))
    renamed = gdf[["k", "f"]].rename(columns={"k": 0, "f": 1})
    assert_same(collection(renamed).groupby(0).agg({1: "var"}).compute(),
                renamed.groupby(0).agg({1: "var"}))  # fmt: skip
    odd = gdf[["k", "f"]].rename(columns={"f": "a___b"})
    assert_same(collection(odd).groupby("k").agg({"a___b": ["sum", "mean"]}).compute(),
                odd.groupby("k").agg({"a___b": ["sum", "mean"]}))  # fmt: skip


def test_the_input_is_left_alone() -> None:
    gdf = frame()
    ddf = collection(gdf, 1).persist()
    before = list(ddf.compute().columns)
    ddf.groupby("k").agg({"f": ["var", "std"]}).compute()
    assert list(ddf.compute().columns) == before


def test_variance_far_from_zero() -> None:
    import cudf

    rng = np.random.default_rng(4)
    near = rng.normal(0.0, 1.0, ROWS) + 1e9
    k = rng.integers(0, 7, ROWS)
    gdf = cudf.DataFrame({"k": k, "f": near})
    ours = collection(gdf).groupby("k").f.var().compute()
    exact = pd.Series(near - 1e9).groupby(k).var()
    # partials hold their mean in float64, which at 1e9 has a spacing of 1.2e-7
    np.testing.assert_allclose(ours.sort_index().to_numpy(), exact.to_numpy(), rtol=1e-8)


@pytest.mark.parametrize("name", ["median", "nunique"])
def test_whole_groups(name: str) -> None:
    gdf = frame()
    ours = getattr(collection(gdf).groupby("k").v, name)().compute()
    assert_same(ours, getattr(gdf.groupby("k").v, name)(), dtypes=False)


def test_mixed_kinds() -> None:
    gdf = frame()
    spec = {"f": ["sum", "median"], "v": ["nunique", "count"]}
    ours = collection(gdf).groupby("k").agg(spec).compute()
    assert_same(ours, gdf.groupby("k").agg(spec), dtypes=False)


def test_categorical_keys() -> None:
    gdf = frame()
    gdf["c"] = gdf["s"].astype("category")
    ours = collection(gdf).groupby("c").agg({"f": "sum"}).compute()
    theirs = gdf.groupby("s").agg({"f": "sum"}).to_pandas().sort_index()
    ours = ours.to_pandas()
    ours.index = ours.index.astype(str)
    np.testing.assert_allclose(ours.sort_index()["f"], theirs["f"])


def test_empty_partitions() -> None:
    gdf = frame()
    ddf = collection(gdf)
    ours = ddf[ddf.k > 40].groupby("k").agg({"f": ["sum", "var"]}).compute()
    assert_same(ours, gdf[gdf.k > 40].groupby("k").agg({"f": ["sum", "var"]}))
    none = ddf[ddf.k > 1_000].groupby("k").agg({"f": ["sum", "var"]}).compute()
    assert len(none) == 0


def test_explain_and_runs() -> None:
    query = collection(frame()).groupby("k").agg({"f": ["sum", "mean"]})
    assert "device" in str(dask_gpuagg.explain(query))
    query.compute()
    run = dask_gpuagg.last_runs()[-1]
    assert run.groups == 50


def test_approximate_aggregations_are_exact_here() -> None:
    lazy = collection(frame())
    spec = {"f": ["quantile_approx"], "i": ["nunique_approx"]}
    found = lazy.groupby("k").agg(spec).compute()
    wanted = lazy.groupby("k").agg({"f": ["quantile"], "i": ["nunique"]}).compute()
    assert list(found.columns) == [("f", "quantile_approx"), ("i", "nunique_approx")]
    wanted.columns = found.columns
    pd.testing.assert_frame_equal(host(found), host(wanted))


UNLIKE_PANDAS = ["bool", "uint8", "uint32", "uint64", "UInt8", "Float32", "float32"]
OF_ARROW = [
    "bool[pyarrow]",
    "int8[pyarrow]",
    "uint16[pyarrow]",
    "uint64[pyarrow]",
    "float[pyarrow]",
]


@pytest.mark.parametrize("dtype", [*UNLIKE_PANDAS, *OF_ARROW])
def test_sums_and_means_have_cudfs_dtypes(dtype: str) -> None:
    import cudf
    import dask_cudf

    values = pd.Series([1, 0, 1, 1]).astype(dtype)
    rows = cudf.from_pandas(pd.DataFrame({"k": [1, 2, 1, 2], "v": values}))
    lazy = dask_cudf.from_cudf(rows, npartitions=2).groupby("k")
    asked = {
        "sum": (lazy.v.sum(), rows.groupby("k").v.sum()),
        "mean": (lazy.v.mean(), rows.groupby("k").v.mean()),
        "agg": (lazy.agg({"v": ["sum", "mean"]}), rows.groupby("k").agg({"v": ["sum", "mean"]})),
    }
    for ours, theirs in asked.values():
        wanted = [theirs.dtype] if theirs.ndim == 1 else list(theirs.dtypes)
        made = ours.compute()
        assert ([made.dtype] if made.ndim == 1 else list(made.dtypes)) == wanted
