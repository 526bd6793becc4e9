"""Physical nodes: few partitions make a tree, partials of many are joined before an exchange."""

from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg

pytestmark = pytest.mark.usefixtures("synchronous", "plugin")


def frame(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame({"k": rng.integers(0, 50, rows), "v": rng.integers(0, 9, rows)})


@pytest.mark.parametrize("name", ["median", "nunique"])
def test_tasks_are_few_for_each_partition(name: str) -> None:
    data = frame(1_200)
    many = dd.from_pandas(data, npartitions=300).groupby("k").agg({"v": [name]})
    assert number_of_tasks(many) < 30 * 300
    expected = data.groupby("k").agg({"v": [name]})
    pd.testing.assert_frame_equal(many.compute().sort_index(), expected, check_dtype=False)


@pytest.mark.parametrize(("npartitions", "joined"), [(300, 13), (40, None)])
def test_explain_counts_the_joined_ones(npartitions: int, joined: int | None) -> None:
    query = dd.from_pandas(frame(1_200), npartitions=npartitions).groupby("k").v.median()
    (one,) = dask_gpuagg.explain(query).groupbys
    assert dict(one.physical.tasks).get("combine") == joined


FILES = 20


def test_narrow_files_that_are_read_together_are_few_partitions(tmp_path: Path) -> None:
    rows = pd.DataFrame({"k": np.arange(400) % 40, "v": np.arange(400.0)})
    wide = rows.assign(**{f"c{i}": np.arange(400.0) for i in range(10)})
    for i in range(FILES):
        wide.to_parquet(tmp_path / f"{i:02}.parquet")
    keys = pd.DataFrame({"k": np.arange(0, 40, 2), "name": np.arange(20)})
    with dask.config.set({"scheduler": "synchronous"}), dask_gpuagg.enabled():
        read = dd.read_parquet(tmp_path)
        joined = read.merge(dd.from_pandas(keys, npartitions=1), on="k")
        assert joined.npartitions == FILES
        query = joined.groupby("name").v.sum()
        assert "partitions are few" in str(dask_gpuagg.explain(query))
        got = query.compute().sort_index()
    want = rows.merge(keys, on="k").groupby("name").v.sum() * FILES
    pd.testing.assert_series_equal(got, want)


@pytest.mark.parametrize("partitions", [1, 2, 8, 40, 130])
def test_no_query_has_more_tasks_than_with_stock_dask(partitions: int) -> None:
    rows = pd.DataFrame({"k": np.arange(4000) % 50, "j": np.arange(4000) % 3, "v": np.arange(4000)})
    grouped = dd.from_pandas(rows, npartitions=partitions).groupby("k")
    queries = {
        "sum": lambda: grouped.v.sum(),
        "several": lambda: grouped.agg({"v": ["sum", "mean", "var"], "j": ["min", "count"]}),
        "split_out": lambda: grouped.agg({"v": ["sum", "mean"]}, split_out=8),
        "nunique": lambda: grouped.j.nunique(),
        "median": lambda: grouped.v.median(),
        "median in agg": lambda: grouped.agg({"v": "median"}),
        "list": lambda: grouped.agg({"v": list}),
        "first": lambda: grouped.v.first(),
        "value_counts": lambda: grouped.j.value_counts(),
        "unique": lambda: grouped.j.unique(),
        "idxmin": lambda: grouped.v.idxmin(),
    }
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        stock = {name: number_of_tasks(query()) for name, query in queries.items()}
        with dask_gpuagg.enabled():
            ours = {name: number_of_tasks(query()) for name, query in queries.items()}
    assert {name: n for name, n in ours.items() if n > stock[name]} == {}


def number_of_tasks(query: Any) -> int:
    return len(dict(query.optimize().__dask_graph__()))


@pytest.mark.parametrize("rows", [4_000, 2_000_000])
def test_rows_of_whole_groups_meet_in_few_tasks(rows: int) -> None:
    """Those that one task merges quickly are not exchanged; others in a few pieces."""
    frame = pd.DataFrame({"k": np.arange(rows) % 50, "v": np.arange(rows)})
    with dask_gpuagg.enabled(), dask.config.set(scheduler="synchronous"):
        query = dd.from_pandas(frame, npartitions=100).groupby("k").agg({"v": list}, split_out=1)
        (explained,) = dask_gpuagg.explain(query).groupbys
        assert explained.physical.pieces == (0 if rows == 4_000 else 8)
        got = query.compute().sort_index()
    assert got.equals(frame.groupby("k").agg({"v": list}))
