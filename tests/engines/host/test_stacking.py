"""Columns of frames by their labels, and many columns at a time: the answers of pandas."""

from unittest import mock

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.engines.host import stacking
from dask_gpuagg.engines.host.stacking import columns_of


@pytest.mark.parametrize("size", [3, 200])
def test_columns_are_those_of_the_labels(size: int) -> None:
    frame = pd.DataFrame({f"c{i}": np.arange(4) + i for i in range(size)})
    labels = [f"c{i}" for i in reversed(range(size))]
    for label, column in zip(labels, columns_of(frame, labels), strict=True):
        pd.testing.assert_series_equal(column, frame[label], check_names=False)


@pytest.mark.parametrize("size", [3, 200])
def test_a_label_that_is_not_there_raises(size: int) -> None:
    frame = pd.DataFrame({f"c{i}": [0] for i in range(size)})
    with pytest.raises(KeyError, match="missing"):
        columns_of(frame, [*frame.columns[1:], "missing"])


def test_a_users_function_gets_the_names_of_many_columns() -> None:
    frame = pd.DataFrame({"k": [0, 1, 0, 1], **{f"c{i}": np.arange(4.0) for i in range(40)}})
    names = set()

    def chunk(grouped):
        names.add(grouped.obj.name)
        return grouped.sum()

    total = dd.Aggregation("total", chunk, lambda sums: sums.sum())
    ddf = dd.from_pandas(frame, npartitions=2)
    with dask_gpuagg.enabled():
        result = ddf.groupby("k").agg(total).compute(scheduler="sync")
    assert names.issuperset(frame.columns[1:])
    assert result.index.tolist() == [0, 1]
    assert (result.to_numpy() == [[2.0], [4.0]]).all()


COLUMNS = 40
SPECS = ["sum", ["sum", "mean", "min", "max", "count"]]


def values(dtype: str, rows: int, rng: np.random.Generator) -> pd.Series:
    column = pd.Series(rng.integers(0, 100, rows)).astype(dtype)
    if dtype.startswith("float"):
        column[rng.random(rows) < 0.3] = np.nan
        column.iloc[rng.integers(0, rows, 2)] = np.inf, -np.inf
    return column


def frame(dtypes: list[str], rows: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    columns = {f"c{i}": values(dtypes[i % len(dtypes)], rows, rng) for i in range(COLUMNS)}
    keys = pd.Series(rng.integers(0, 7, rows)).where(rng.random(rows) < 0.9)
    # not in the order of the columns that are read
    return pd.DataFrame({"c7": columns["c7"], "k": keys} | columns)


def ours(data: pd.DataFrame, spec, partitions: int = 3, **options) -> pd.DataFrame:
    grouped = dd.from_pandas(data, npartitions=partitions).groupby("k", sort=True, **options)
    with dask_gpuagg.enabled():
        return grouped.agg(spec).compute(scheduler="sync")


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize(
    "dtypes",
    [
        *(["float64"], ["float32"], ["int64"], ["uint64"], ["int8"], ["Int64"]),
        *(["double[pyarrow]"], ["float64", "int64"], ["float64"] * 39 + ["Int64"]),
    ],
    ids=lambda dtypes: dtypes[-1],
)
def test_answers_are_those_of_pandas(dtypes: list[str], spec) -> None:
    data = frame(dtypes)
    for dropna in (True, False):
        expected = data.groupby("k", dropna=dropna).agg(spec)
        result = ours(data, spec, dropna=dropna)
        narrow = dtypes == ["float32"]  # whose means are float64 in Dask
        rtol = 1e-5 if narrow else 1e-12
        pd.testing.assert_frame_equal(result, expected, check_dtype=not narrow, rtol=rtol)


def test_plain_columns_are_reduced_by_a_call_for_each_partition() -> None:
    with mock.patch.object(stacking, "_reduce", wraps=stacking._reduce) as reduce:
        ours(frame(["float64"]), "sum")
    assert reduce.call_count == 3 + 1


def test_means_of_integers_whose_sums_wrap() -> None:
    data = frame(["int64"])
    data[data.columns[2:]] += 2**62
    expected = data.groupby("k").agg("mean")
    pd.testing.assert_frame_equal(ours(data, "mean"), expected)


def test_a_result_can_be_written_to() -> None:
    result = ours(frame(["float64"]), ["sum", "count"], partitions=1)
    result.iloc[0, 0] = 5.0
    assert result.iloc[0, 0] == 5.0
    assert result.iloc[0, 1] != 5.0
