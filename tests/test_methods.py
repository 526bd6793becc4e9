"""Methods of group-bys that Dask refuses for some dtypes, or answers wrongly."""

from decimal import Decimal
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_gpuagg
from tests.comparison import assert_same, compare

pytestmark = pytest.mark.usefixtures("synchronous", "plugin")


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "k": rng.permutation(np.arange(40) % 13),
            "x": np.where(rng.random(40) < 0.1, np.nan, rng.random(40)),
            "y": rng.integers(0, 9, 40),
            "text": rng.choice(["a", "b"], 40),
            "time": pd.Timestamp("2020") + pd.to_timedelta(rng.integers(0, 9**9, 40), unit="s"),
            "took": pd.to_timedelta(rng.integers(0, 9**9, 40), unit="s"),
        },
        index=[f"row {i}" for i in range(40)],
    )


def lazily(data: pd.DataFrame, npartitions: int = 4) -> Any:
    return dd.from_pandas(data, npartitions=npartitions, sort=False)


@pytest.mark.parametrize("npartitions", [1, 4])
def test_each_output_of_medians_is_sorted_if_it_is_asked_for(npartitions):
    ddf, ordered = lazily(frame(), npartitions), npartitions == 1
    compare(lambda d: d.groupby("k", sort=True).x.median(), ddf, ordered=ordered)
    compare(lambda d: d.groupby(["k", "y"], sort=True)[["x"]].median(), ddf, ordered=ordered)
    compare(lambda d: d.groupby("k", sort=True).median(numeric_only=True), ddf, ordered=ordered)
    outputs = dask.compute(*ddf.groupby("k", sort=True).x.median().to_delayed())
    assert all(output.index.is_monotonic_increasing for output in outputs)


@pytest.mark.parametrize("name", ["idxmin", "idxmax"])
def test_labels_of_text_are_kept_with_numeric_only(name):
    data = frame()[["k", "y", "text"]]
    compare(lambda d: getattr(d.groupby("k"), name)(numeric_only=True), lazily(data))
    compare(lambda d: getattr(d.groupby("k")[["y"]], name)(numeric_only=True), lazily(data))


def test_means_of_datetimes_and_durations():
    compare(lambda d: d.groupby("k")[["time", "took", "x"]].mean(), lazily(frame()))
    compare(lambda d: d.groupby("k").time.mean(), lazily(frame()))
    compare(lambda d: d.took.groupby(d.k).mean(), lazily(frame()))


@pytest.mark.parametrize("name", ["cov", "corr"])
def test_matrices_of_no_column_are_stock_dasks(name):
    query = getattr(lazily(frame()[["k", "text"]]).groupby("k"), name)(numeric_only=True)
    with dask.config.set({"gpuagg.fallback": "silent"}):
        assert query.compute().shape == (0, 0)
    with pytest.raises(dask_gpuagg.UnsupportedGroupBy, match="no column"):
        query.compute()


@pytest.mark.parametrize("method", ["disk", "tasks"])
def test_a_shuffle_of_fewer_partitions_than_were_promised(method):
    # divisions would repeat: fewer partitions come than the repartitioning says it makes
    data = frame().reset_index(drop=True).head(6)
    ddf = dd.from_pandas(data, npartitions=3).repartition(npartitions=10)
    with dask.config.set({"dataframe.shuffle.method": method}):
        got = ddf.groupby("k").y.nunique(split_out=7).compute()
    assert_same(got, data.groupby("k").y.nunique())


KEYS_OF_DISTINCT = {
    "text": pd.Series(list("abc") * 4),
    "category": pd.Series(list("abc") * 4, dtype="category"),
    "decimal": pd.Series([Decimal(i) for i in "123"] * 4, dtype=pd.ArrowDtype(pa.decimal128(9, 2))),
    "arrow": pd.Series([1, 2, 3] * 4, dtype=pd.ArrowDtype(pa.int64())),
    "masked": pd.Series([1, 2, 3] * 4, dtype="Int64"),
}


@pytest.mark.parametrize("by", ["text", ["category"], ["decimal", "category"], ["arrow", "masked"]])
@pytest.mark.parametrize(
    ("column", "rows", "options"),
    [("x", 12, {}), ("named", 12, {"split_out": 2}), ("named", 0, {})],
)
def test_distinct_values_have_the_promised_dtypes(by, column, rows, options):
    data = pd.DataFrame(KEYS_OF_DISTINCT).assign(x=np.arange(12) % 5, named=list("pq") * 6)
    ddf = lazily(data)
    ddf = ddf if rows else ddf[ddf.x < 0]
    for observed in (True, False):
        query = ddf.groupby(by, observed=observed)[column].unique(**options)
        got = query.compute()
        assert_same(got, data.head(rows).groupby(by, observed=observed)[column].unique())
        assert got.dtype == query.dtype == object
        kinds = (r.index.to_frame().dtypes.astype(str).tolist() for r in (got, query._meta))
        assert next(kinds) == next(kinds)


@pytest.mark.parametrize("name", ["min", "sum", "count", "first", "prod", "mean", "var"])
@pytest.mark.parametrize("npartitions", [1, 3])
def test_equal_columns_of_a_result_are_written_to_apart(name: str, npartitions: int) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"k": rng.integers(0, 40_000, 200_000), "c": np.arange(200_000) / 2})
    with dask_gpuagg.enabled():
        grouped = dd.from_pandas(rows, npartitions=npartitions).groupby("k")
        result = grouped.agg(x=("c", name), y=("c", name)).compute()
    before = result.iloc[0, 1]
    result.iloc[0, 0] = before + 1
    assert result.iloc[0, 1] == before
