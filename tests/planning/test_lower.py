"""Decisions made before the inputs of a group-by are lowered."""

from __future__ import annotations

from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_gpuagg

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
