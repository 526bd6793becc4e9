"""Long names, thousands of columns, and none: columns, rows, partitions."""

import cProfile
import pstats
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.comparison import same

pytestmark = pytest.mark.usefixtures("plugin", "synchronous")

ROWS = 60
LONG = "n" * 10_000
DATA = pd.DataFrame({"k": np.arange(ROWS) % 7, "v": np.arange(ROWS) * 0.5})


def wide(columns: int) -> pd.DataFrame:
    values = np.random.default_rng(1).random((ROWS, columns))
    data = pd.DataFrame(values, columns=[f"c{i}" for i in range(columns)])
    data.insert(0, "k", DATA.k)
    return data


@pytest.mark.parametrize("name", ["k", "v"])
def test_names_of_10_kilobytes(name: str) -> None:
    data = DATA.rename(columns={name: LONG})
    key, value = data.columns
    spec = {value: ["sum", "nunique", "median"]}
    query = dd.from_pandas(data, npartitions=3).groupby(key).agg(spec)
    same(query.compute(), data.groupby(key).agg(spec))


@pytest.mark.parametrize(("how", "columns"), [("sum", 2000), ("median", 300), ("first", 300)])
def test_many_columns(how: str, columns: int) -> None:
    data = wide(columns)
    query = getattr(dd.from_pandas(data, npartitions=3).groupby("k"), how)()
    same(query.compute(), getattr(data.groupby("k"), how)())


def test_no_columns() -> None:
    data = DATA[["k"]]
    groups = dd.from_pandas(data, npartitions=3).groupby("k")
    assert sorted(groups.agg({}).compute().index) == list(range(7))
    same(groups.size().compute(), data.groupby("k").size())


@pytest.mark.parametrize("how", ["sum", "median", "nunique", "size", "first", "value_counts"])
@pytest.mark.parametrize("filtered", [False, True], ids=["empty", "filtered"])
def test_no_rows(how: str, filtered: bool) -> None:
    data = DATA if filtered else DATA.iloc[:0]
    rows = dd.from_pandas(data, npartitions=3)
    rows = rows[rows.v < -1] if filtered else rows
    expected = getattr(DATA.iloc[:0].groupby("k").v, how)()
    assert len(expected) == 0
    got = getattr(rows.groupby("k").v, how)().compute()
    assert got.index.nlevels == expected.index.nlevels
    assert (got.dtype, got.name, len(got)) == (expected.dtype, expected.name, 0)


@pytest.mark.parametrize("how", ["sum", "nunique", "first", "size"])
def test_an_input_without_partitions_is_stock_dasks(how: str) -> None:
    rows = dd.from_pandas(DATA, npartitions=3).partitions[0:0]
    query = getattr(rows.groupby("k").v, how)()
    with pytest.raises(dask_gpuagg.UnsupportedGroupBy, match="the input has no partitions"):
        query.compute()


@pytest.mark.parametrize("how", ["sum", "mean", "agg"])
def test_planning_and_finishing_are_linear_in_the_columns(how: str) -> None:
    """By function calls, which do not depend on the machine."""

    def calls(columns: int) -> tuple[int, int]:
        data = wide(columns)
        groups = dd.from_pandas(data, npartitions=3).groupby("k")
        query = groups.agg(dict.fromkeys(data.columns[1:], "sum")) if how == "agg" else None
        query = getattr(groups, how)() if query is None else query
        result: dict[str, Any] = {}
        plan, run = cProfile.Profile(), cProfile.Profile()
        plan.runcall(lambda: result.update(query=query.optimize()))
        run.runcall(lambda: result["query"].compute())
        return pstats.Stats(plan).total_calls, pstats.Stats(run).total_calls  # type: ignore[attr-defined]

    calls(3)  # imports
    few, many = calls(150), calls(600)
    assert many[0] < 5 * few[0], "planning"
    assert many[1] < 5 * few[1], "running"
