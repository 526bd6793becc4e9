"""Columns of frames, by their labels."""

from __future__ import annotations

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
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
