"""Many columns: the answers of pandas, whatever the columns hold."""

from __future__ import annotations

from unittest import mock

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.engines.host import stacking

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
