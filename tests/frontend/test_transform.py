"""``transform`` by the name of an aggregation: a lookup, and no shuffle."""

import re
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.frontend.ordered import _NAMES, GroupByLookup, gpuagg_lookup
from tests.comparison import equal

ROWS = 600


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    data = pd.DataFrame(
        {
            "k": rng.integers(-9, 9, ROWS),
            "j": pd.Series(rng.integers(0, 5, ROWS)).where(rng.random(ROWS) < 0.9),
            "c": pd.Categorical(rng.choice(list("abc"), ROWS), categories=list("abcd")),
            "far": rng.integers(0, 9, ROWS) << 40,
            "x": pd.Series(rng.random(ROWS)).where(rng.random(ROWS) < 0.9),
            "i": rng.integers(0, 9, ROWS),
            "b": rng.random(ROWS) < 0.5,
        }
    )
    return data.set_index(np.arange(ROWS) * 3)


def compare(query: Any, data: pd.DataFrame) -> None:
    """Compare rows in their order, labels, dtypes and divisions with pandas and the input."""
    want = query(data)
    ddf = dd.from_pandas(data, npartitions=4)
    with dask_gpuagg.enabled(), dask.config.set({"scheduler": "sync", "gpuagg.fallback": "raise"}):
        lazy = query(ddf, meta=want.iloc[:0])
        assert isinstance(lazy.expr, GroupByLookup)
        assert lazy.divisions == ddf.divisions
        got = lazy.compute()
    equal(got, want)


@pytest.mark.parametrize("name", sorted(_NAMES))
def test_every_name(name: str) -> None:
    for columns in ("x", "i", *([] if name == "size" else [["x", "i"]])):
        compare(lambda f, c=columns, **meta: f.groupby("k")[c].transform(name, **meta), frame())


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("by", [["j"], ["c"], ["far"], ["k", "j"], ["c", "k"]], ids="-".join)
def test_keys(by: list[str], dropna: bool) -> None:
    flags = {"dropna": dropna, "observed": True}
    compare(lambda f, **meta: f.groupby(by, **flags).x.transform("sum", **meta), frame())
    compare(lambda f, **meta: f.groupby(by, **flags)[["b", "i"]].transform("max", **meta), frame())


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("dtype", ["Int64", "UInt8", "int64[pyarrow]", "Float64", "boolean", "str"])
def test_null_keys_of_nullable_dtypes(dtype: str, dropna: bool) -> None:
    data = frame()
    key = (data.k % 2 == 0) if dtype == "boolean" else data.k.abs()
    data["k"] = key.astype(dtype).where(np.arange(ROWS) % 7 != 0)
    compare(lambda f, **meta: f.groupby("k", dropna=dropna).x.transform("sum", **meta), data)


@pytest.mark.parametrize("column", ["x", "i"])
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64"])
def test_distances_beyond_the_dtype_of_the_keys(dtype: str, column: str) -> None:
    ends = np.iinfo(dtype)
    keys = list(range(-100, 100, 3)) if dtype == "int8" else [ends.min, ends.max, 7]
    data = frame().assign(k=np.resize(np.array(keys, dtype), ROWS))
    compare(lambda f, **meta: f.groupby("k")[column].transform("sum", **meta), data)


@pytest.mark.parametrize("columns", ["x", "i", ["i", "x"]])
def test_rows_beyond_the_groups_are_null(columns: Any) -> None:
    data, rows = frame(), pd.DataFrame({"k": [-100, -9, 0, 1, 100]})
    groups = data[data.k != 0].groupby("k")[columns].max()
    got = gpuagg_lookup(rows, groups, groups.iloc[:0], "k")
    want = groups.reindex(rows.k).set_axis(rows.index, axis=0)
    equal(got, want)
    inside = gpuagg_lookup(rows[1:4], groups, groups.iloc[:0], "k")
    assert inside.isna().to_numpy().tolist() == want[1:4].isna().to_numpy().tolist()


def test_a_partition_whose_keys_are_objects() -> None:
    rows = pd.DataFrame({"k": [1.0, 2.0], "v": [1, 2]})
    nulls = rows.assign(k=pd.Series([None, None], dtype=object))
    with dask_gpuagg.enabled():
        lazy = dd.from_map(lambda part: part, [rows, nulls], meta=rows[:0]).groupby("k").v
        found = lazy.transform("sum", meta=("v", "f8")).compute()
    equal(found, pd.concat([rows, nulls]).groupby("k").v.transform("sum"), check_dtype=False)


def test_keys_that_are_expressions() -> None:
    compare(lambda f, **meta: f.groupby(f.k % 3).x.transform("mean", **meta), frame())
    compare(lambda f, **meta: f.x.groupby(f.k).transform("count", **meta), frame())


def test_results_join_the_input_and_outlive_the_switch() -> None:
    data = frame()
    ddf = dd.from_pandas(data, npartitions=4)
    with dask_gpuagg.enabled():
        means = ddf.groupby("k").i.transform("mean", meta=("i", "f8"))
        wide = ddf.assign(mean=means)
        above = ddf[ddf.i > means]
    want = data.groupby("k").i.transform("mean")
    with dask.config.set(scheduler="sync"):
        pd.testing.assert_series_equal(means.compute(), want)
        pd.testing.assert_frame_equal(wide.compute(), data.assign(mean=want))
        pd.testing.assert_frame_equal(above.compute(), data[data.i > want])


@pytest.mark.parametrize(
    "take",
    [lambda f, r: f.assign(t=r), lambda f, r: f[r > 2], lambda f, r: f.x + r],
    ids=["assign", "filter", "add"],
)
def test_rows_of_files_without_an_index_meet_their_own_groups(take: Any, tmp_path: Path) -> None:
    """Their labels repeat from file to file: an alignment by labels would mix them."""
    data = pd.DataFrame({"k": [1, 2, 1, 2, 3, 1, 2, 3], "x": range(8)})
    for i in range(4):
        data[2 * i : 2 * i + 2].reset_index(drop=True).to_parquet(tmp_path / f"{i}.parquet")
    with dask_gpuagg.enabled():
        ddf = dd.read_parquet(tmp_path)
        got = take(ddf, ddf.groupby("k").x.transform("count", meta=("x", "int64"))).compute()
    want = take(data, data.groupby("k").x.transform("count"))
    equal(got.reset_index(drop=True), want.reset_index(drop=True))


@pytest.mark.parametrize("function", [lambda x: x - x.mean(), "cumsum", "rank"])
def test_other_functions_are_left_to_dask(function: Any) -> None:
    ddf = dd.from_pandas(frame(), npartitions=4)
    with dask_gpuagg.enabled():
        lazy = ddf.groupby("k").x.transform(function, meta=("x", "f8"))
    assert not isinstance(lazy.expr, GroupByLookup)


def test_the_documentation_has_every_name() -> None:
    text = (Path(__file__).parents[2] / "docs" / "support.md").read_text()
    (paragraph,) = (p for p in text.split("\n\n") if p.startswith("Supported by the name"))
    assert set(re.findall('"([a-z]+)"', paragraph)) == _NAMES
