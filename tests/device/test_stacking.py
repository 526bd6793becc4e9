"""Columns of several partitions, by copies or by libcudf: those of cuDF's concatenation."""

from typing import Any

import numpy as np
import pytest

ROWS = 200_000
DTYPES = ["int8", "bool", "int32", "float32", "int64", "float64", "M8[us]"]


def partition(rows: int, seed: int, nulls: bool) -> Any:
    import cudf

    draws = np.random.default_rng(seed).integers(0, 100, rows)
    frame = cudf.DataFrame({dtype: cudf.Series(draws).astype(dtype) for dtype in DTYPES})
    frame["text"] = cudf.Series(draws).astype("str")
    frame["decimal"] = cudf.Series(draws).astype(cudf.Decimal128Dtype(38, 2))
    if nulls:
        frame["float64"] = frame["float64"].mask(frame["int64"] < 10)
        frame["int32"] = frame["int32"].mask(frame["int64"] == 11)
    return frame


# from sizes at which libcudf concatenates every column to those at which wide ones are copied
@pytest.mark.parametrize("rows", [10, ROWS, 8 * ROWS])
@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("sliced", [False, True])
def test_like_concat(rows: int, nulls: bool, sliced: bool) -> None:
    import cudf

    from dask_gpuagg.engines.device.tables import stacked

    # one of the partitions is empty, and only one has nulls
    frames = [partition(n, i, nulls and i == 1) for i, n in enumerate([rows, rows // 2, 0, rows])]
    if sliced:
        frames = [frame.iloc[3:-1] for frame in frames]
    expected = cudf.concat(frames, ignore_index=True)
    made = stacked([[frame[name] for name in frame.columns] for frame in frames])
    for column, name in zip(made, expected.columns, strict=True):
        assert column.dtype == expected[name].dtype
        assert column.null_count == expected[name].null_count
        assert column.to_arrow().equals(expected[name].to_arrow())


def test_one_partition_is_itself() -> None:
    from dask_gpuagg.engines.device.tables import stacked

    frame = partition(ROWS, 0, False)
    (made,) = stacked([[frame["int64"]]])
    assert made.to_arrow().equals(frame["int64"].to_arrow())


def test_bytes_of_columns() -> None:
    """Text without rows has neither children nor a size of its own."""
    import cudf
    import pandas as pd
    import pylibcudf as plc

    from dask_gpuagg.engines.device.columns import view
    from dask_gpuagg.engines.device.tables import bytes_of

    text = cudf.Series(pd.Series(["a", "bb", None], dtype="str"))
    category = text.astype("category")
    for rows in (3, 0):
        columns = [s.iloc[:rows] for s in (text, category, cudf.Series([1, 2, 3]))]
        columns += [cudf.Series(pd.Series([], dtype="str"))]
        size = bytes_of(columns)
        assert size >= 8 * rows
        assert bytes_of([columns[2]]) == 8 * rows
    # slices of one column have its bytes together: the characters, and offsets of 4 or 8 bytes
    long = cudf.Series(pd.Series(["some text"] * 160, dtype="str"))
    width = plc.types.size_of(view(long).child(0).type())
    parts = [bytes_of([long.iloc[i : i + 10]]) for i in range(0, 160, 10)]
    assert 160 * 9 <= sum(parts) <= bytes_of([long]) <= 160 * (9 + width) + width
