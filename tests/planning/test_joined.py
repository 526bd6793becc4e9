"""Partials of many partitions are joined before they are exchanged: tasks grow with the inputs."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg

pytestmark = pytest.mark.usefixtures("synchronous", "plugin")


def frame(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame({"k": rng.integers(0, 50, rows), "v": rng.integers(0, 9, rows)})


def tasks_of(query: Any) -> int:
    return len(query.optimize().__dask_graph__())


@pytest.mark.parametrize("name", ["median", "nunique"])
def test_tasks_are_few_for_each_partition(name: str) -> None:
    data = frame(1_200)
    many = dd.from_pandas(data, npartitions=300).groupby("k").agg({"v": [name]})
    assert tasks_of(many) < 30 * 300
    expected = data.groupby("k").agg({"v": [name]})
    pd.testing.assert_frame_equal(many.compute().sort_index(), expected, check_dtype=False)


def test_explain_counts_the_joined_ones() -> None:
    many = dd.from_pandas(frame(1_200), npartitions=300).groupby("k").v.median()
    (one,) = dask_gpuagg.explain(many).groupbys
    assert dict(one.physical.tasks)["combine"] == 13


def test_partials_of_few_partitions_are_not_joined() -> None:
    few = dd.from_pandas(frame(1_200), npartitions=40).groupby("k").v.median()
    (one,) = dask_gpuagg.explain(few).groupbys
    assert "combine" not in dict(one.physical.tasks)
