"""Columns of Parquet that are read on streams of their own are those of dask-cudf's reader."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytestmark = pytest.mark.usefixtures("raising")

ROWS = 6_000


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(4)
    return pd.DataFrame(
        {
            "k": rng.integers(0, 50, ROWS),
            "small": rng.integers(-9, 9, ROWS).astype("i2"),
            "v": np.where(rng.random(ROWS) < 0.2, np.nan, rng.random(ROWS)),
            "b": rng.random(ROWS) < 0.5,
            "s": rng.choice(["a", "bb", "é", None], ROWS),
            "t": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 99, ROWS), unit="s"),
        }
    )


@pytest.mark.parametrize("columns", [["s", "v", "k"], list(frame().columns)])
@pytest.mark.parametrize("row_groups", [None, 1])
def test_as_dask_cudf_reads_them(tmp_path: Path, columns: list[str], row_groups: Any) -> None:
    import cudf
    import dask_cudf
    from dask.dataframe.dask_expr.io import ReadParquet

    from dask_gpuagg.engines.device.files import ReadOnStreams
    from dask_gpuagg.tasks.reading import as_read

    frame().to_parquet(tmp_path / "0.parquet", row_group_size=ROWS // 3)
    given = {} if row_groups is None else {"split_row_groups": row_groups}
    read = dask_cudf.read_parquet(tmp_path, blocksize=None, **given)[columns]
    (node,) = read.expr.simplify().find_operations(ReadParquet)
    for i in range(node.npartitions):
        task = node._task((node._name, i), i)
        ours = as_read(task)
        assert ours.func.engine is ReadOnStreams
        got = ours({}).reset_index(drop=True)
        cudf.testing.assert_frame_equal(got, task({}).reset_index(drop=True))


def test_times_in_a_zone_are_those_of_a_plain_read(tmp_path: Path) -> None:
    """The metadata of pandas in the file may have it, which the reader on streams does not read."""
    import dask_cudf

    whole = frame()[["k", "t"]]
    whole["z"] = whole["t"].dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")
    for i in range(4):
        whole.iloc[i::4].to_parquet(tmp_path / f"{i}.parquet")
    read = dask_cudf.read_parquet(tmp_path, blocksize=None)
    rows = read.compute()
    found = read.groupby("k").agg({"z": "max", "t": "min"}).compute().sort_index()
    assert found.dtypes["z"] == read.dtypes["z"] == rows.dtypes["z"]
    expected = rows.to_pandas().groupby("k").agg({"z": "max", "t": "min"})
    for column in expected:  # times in a zone equal none without
        assert found[column].to_pandas().tolist() == expected[column].tolist()
