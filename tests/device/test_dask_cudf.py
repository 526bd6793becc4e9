"""dask-cudf collections with the plugin on: against stock dask-cudf, and against cuDF."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.comparison import same
from tests.device.frames import on_device

ROWS = 20_000


pytestmark = pytest.mark.usefixtures("raising")


def frame() -> Any:
    import cudf

    rng = np.random.default_rng(3)
    pdf = pd.DataFrame(
        {
            "k": rng.integers(0, 50, ROWS),
            "f": rng.normal(1.0, 1.0, ROWS),
            "i": rng.integers(-100, 100, ROWS).astype("int8"),
            "v": pd.Series(rng.integers(0, 9, ROWS)).astype("Int32").mask(rng.random(ROWS) < 0.3),
        }
    )
    return cudf.DataFrame(pdf)


def host(result: Any) -> Any:
    return result.to_pandas() if hasattr(result, "to_pandas") else result


def assert_same(ours: Any, theirs: Any) -> None:
    ours, theirs = host(ours), host(theirs)
    assert type(ours) is type(theirs)
    same(ours, theirs, rtol=1e-9, check_index_type=False)


def test_what_dask_cudf_refuses() -> None:
    gdf = frame()
    ddf = on_device(gdf, 5)
    named = ddf.groupby("k").agg(total=("f", "sum"), n=("v", "nunique")).compute()
    assert_same(named["total"], gdf.groupby("k").f.sum().rename("total"))
    assert_same(named["n"], gdf.groupby("k").v.nunique().rename("n"))
    by_expression = ddf.groupby(ddf.k % 3).agg({"f": "sum"}).compute()
    assert_same(by_expression, gdf.groupby(gdf.k % 3).agg({"f": "sum"}))
    renamed = gdf[["k", "f"]].rename(columns={"k": 0, "f": 1})
    assert_same(on_device(renamed, 5).groupby(0).agg({1: "var"}).compute(),
                renamed.groupby(0).agg({1: "var"}))  # fmt: skip
    odd = gdf[["k", "f"]].rename(columns={"f": "a___b"})
    assert_same(on_device(odd, 5).groupby("k").agg({"a___b": ["sum", "mean"]}).compute(),
                odd.groupby("k").agg({"a___b": ["sum", "mean"]}))  # fmt: skip


def test_empty_partitions() -> None:
    gdf = frame()
    ddf = on_device(gdf, 5)
    ours = ddf[ddf.k > 40].groupby("k").agg({"f": ["sum", "var"]}).compute()
    assert_same(ours, gdf[gdf.k > 40].groupby("k").agg({"f": ["sum", "var"]}))
    none = ddf[ddf.k > 1_000].groupby("k").agg({"f": ["sum", "var"]}).compute()
    assert len(none) == 0


def test_explain_and_runs() -> None:
    query = on_device(frame(), 5).groupby("k").agg({"f": ["sum", "mean"]})
    assert "device" in str(dask_gpuagg.explain(query))
    query.compute()
    run = dask_gpuagg.last_runs()[-1]
    assert run.groups == 50


def test_approximate_aggregations_are_exact_here() -> None:
    lazy = on_device(frame(), 5)
    spec = {"f": ["quantile_approx"], "i": ["nunique_approx"]}
    found = lazy.groupby("k").agg(spec).compute()
    wanted = lazy.groupby("k").agg({"f": ["quantile"], "i": ["nunique"]}).compute()
    assert list(found.columns) == [("f", "quantile_approx"), ("i", "nunique_approx")]
    wanted.columns = found.columns
    assert_same(found, wanted)


UNLIKE_PANDAS = ["bool", "uint8", "uint32", "uint64", "UInt8", "Float32", "float32"]
OF_ARROW = [f"{name}[pyarrow]" for name in ("bool", "int8", "uint16", "uint64", "float")]


@pytest.mark.parametrize("dtype", [*UNLIKE_PANDAS, *OF_ARROW])
def test_sums_and_means_have_cudfs_dtypes(dtype: str) -> None:
    import cudf

    values = pd.Series([1, 0, 1, 1]).astype(dtype)
    rows = cudf.from_pandas(pd.DataFrame({"k": [1, 2, 1, 2], "v": values}))
    lazy = on_device(rows, 2).groupby("k")
    asked = {
        "sum": (lazy.v.sum(), rows.groupby("k").v.sum()),
        "mean": (lazy.v.mean(), rows.groupby("k").v.mean()),
        "agg": (lazy.agg({"v": ["sum", "mean"]}), rows.groupby("k").agg({"v": ["sum", "mean"]})),
    }
    for ours, theirs in asked.values():
        wanted = [theirs.dtype] if theirs.ndim == 1 else list(theirs.dtypes)
        made = ours.compute()
        assert ([made.dtype] if made.ndim == 1 else list(made.dtypes)) == wanted
