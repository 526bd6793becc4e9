"""Calls that depend on the order of rows: as in pandas, however groups lie in partitions."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.comparison import equal

ROWS = 300


def frame(by_time: bool = False) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    times = pd.date_range("2024-01-01", periods=ROWS, freq="7min")
    return pd.DataFrame(
        {
            "k": rng.integers(0, 6, ROWS),
            "j": np.where(rng.random(ROWS) < 0.2, np.nan, rng.integers(0, 3, ROWS)),
            "x": rng.random(ROWS).round(3),
            "y": np.where(rng.random(ROWS) < 0.4, np.nan, rng.random(ROWS)),
        },
        index=times if by_time else None,
    )


def of_floats(data):
    """Metadata of a result, which pandas takes for an argument of its own."""
    return {"meta": ("x", "f8")} if isinstance(data, dd.DataFrame | dd.Series) else {}


SHUFFLED = {
    "ffill": lambda d: d.groupby("k").y.ffill(),
    "bfill of a frame": lambda d: d.groupby(["k", "j"])[["x", "y"]].bfill(),
    "shift": lambda d: d.groupby("k").x.shift(-2, **of_floats(d)),
    "shift of a Series": lambda d: d.x.groupby(d.k % 2).shift(1, **of_floats(d)),
    "cumsum": lambda d: d.groupby("k").x.transform("cumsum", **of_floats(d)),
    "computed key": lambda d: d.groupby(d.k % 2).x.transform("cummax", **of_floats(d)),
    "apply": lambda d: d.groupby("k").apply(lambda g: g.x.iloc[0] - g.x.iloc[-1], **of_floats(d)),
}
WINDOWS = {
    "two rows": lambda d: d.groupby("k").x.rolling(2).sum(),
    "more than a partition has": lambda d: d.groupby("k").x.rolling(40, min_periods=3).std(),
    "one row": lambda d: d.groupby("k").x.rolling(1).max(),
    "columns": lambda d: d.groupby("k")[["x", "y"]].rolling(5, min_periods=1).mean(),
    "keys with nulls": lambda d: d.groupby(["k", "j"]).x.rolling(3).max(),
    "null keys too": lambda d: d.groupby("j", dropna=False).x.rolling(3).max(),
    "several": lambda d: d.groupby("k").x.rolling(3).agg(["sum", "max"]),
    "a function": lambda d: d.groupby("k").x.rolling(3).apply(np.ptp, raw=True),
}
WINDOWS_OF_TIME = {
    "hours": lambda d: d.groupby("k").x.rolling("3h").sum(),
    "a day": lambda d: d.groupby("k")[["x"]].rolling(pd.Timedelta("1D"), min_periods=2).mean(),
}


def check(query, data, partitions):
    with dask_gpuagg.enabled():
        result = query(dd.from_pandas(data, npartitions=partitions)).compute().sort_index()
    expected = query(data).sort_index()
    equal(result, expected, check_names=expected.ndim == 2)


@pytest.mark.parametrize("partitions", [1, 3, 17])
@pytest.mark.parametrize("query", SHUFFLED.values(), ids=SHUFFLED)
def test_rows_of_a_group_stay_in_order_after_a_shuffle(query, partitions):
    check(query, frame(), partitions)


@pytest.mark.parametrize("partitions", [1, 3, 17])
@pytest.mark.parametrize("query", WINDOWS.values(), ids=WINDOWS)
def test_windows_begin_in_the_partitions_before(query, partitions):
    check(query, frame(), partitions)


@pytest.mark.parametrize("query", WINDOWS_OF_TIME.values(), ids=WINDOWS_OF_TIME)
def test_windows_of_time_begin_in_the_partitions_before(query):
    check(query, frame(by_time=True), 17)


def test_partitions_without_rows_of_a_group():
    data = frame().sort_values("k", kind="stable", ignore_index=True)
    check(WINDOWS["two rows"], data, 17)
    empty = dd.from_pandas(data, npartitions=5).map_partitions(lambda part: part[part.k > 2])
    with dask_gpuagg.enabled():
        result = empty.groupby("k").x.rolling(2).sum().compute().sort_index()
    expected = data[data.k > 2].groupby("k").x.rolling(2).sum()
    pd.testing.assert_series_equal(result, expected.sort_index())


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("first", [True, False])
def test_a_partition_of_null_keys(window, first):
    data = frame().assign(k=lambda d: d.k.where((d.index >= 100) == first))
    check(lambda d: d.groupby("k").x.rolling(window, min_periods=1).sum(), data, 6)


@pytest.mark.parametrize("query", ["shift", "ffill", "cumsum"])
def test_labels_in_no_order(query):
    data = frame()
    data.index = np.random.default_rng(3).permutation(ROWS)
    parts = dd.from_map(lambda part: part, [data[:90], data[90:200], data[200:]], meta=data[:0])
    with dask_gpuagg.enabled():
        result = SHUFFLED[query](parts).compute().sort_index()
    expected = SHUFFLED[query](data).sort_index()
    pd.testing.assert_series_equal(result, expected, check_names=False)


@pytest.mark.parametrize("partitions", [1, 4, 8])
@pytest.mark.parametrize(
    "query",
    [
        lambda d: d.groupby("k").x.ffill(),
        lambda d: d.groupby("k")[["x"]].ffill(),
        lambda d: d.groupby(["k", "j"]).x.bfill(),
        lambda d: d.x.groupby(d.k).ffill(),
        lambda d: d.groupby("k", dropna=False).x.ffill(),
        lambda d: d.groupby("k").x.transform(lambda s: s - s.mean(), **of_floats(d)),
    ],
)
def test_rows_of_null_keys_stay(query, partitions):
    """After the shuffle a partition may have no others."""
    pdf = pd.DataFrame({"k": [1.0, np.nan, 2, 3], "x": [1.0, 2, 3, 4], "j": [1, 2, 1, np.nan]})
    pdf = pd.concat([pdf, pdf], ignore_index=True)
    with dask_gpuagg.enabled():
        got = query(dd.from_pandas(pdf, npartitions=partitions)).compute()
    equal(got.sort_index(), query(pdf))


def test_a_centered_window_is_left_to_dask():
    data = frame()
    with dask_gpuagg.enabled():
        result = dd.from_pandas(data, npartitions=1).groupby("k").x.rolling(3, center=True).sum()
        names = {type(node).__name__ for node in result.optimize(fuse=False).expr.walk()}
        assert "GroupByRolling" not in names
        expected = data.groupby("k").x.rolling(3, center=True).sum()
        pd.testing.assert_series_equal(result.compute().sort_index(), expected.sort_index())


def test_rows_are_numbered_only_below_the_call():
    # a shuffle of the user's stays as it is
    data = frame()
    with dask_gpuagg.enabled():
        shuffled = dd.from_pandas(data, npartitions=4).shuffle("j")
        result = shuffled.groupby("k").x.shift(1, meta=("x", "f8"))
        nodes = [type(node).__name__ for node in result.expr.lower_once({}).walk()]
        assert nodes.count("RowsInOrder") == 1
        assert len(result.compute()) == ROWS
