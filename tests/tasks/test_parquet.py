"""A reader of Parquet whose columns stay where they were decoded makes the frames of Dask's."""

import copy
import datetime as dt
import sys
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dask._task_spec import Task
from dask.dataframe.dask_expr.io import ReadParquet
from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine

import dask_gpuagg
from dask_gpuagg.tasks.reading import _in_dictionaries, as_read
from tests.comparison import equal, same


def same_as_stock(query: Any) -> None:
    expected = query.compute()
    with dask_gpuagg.enabled():
        same(query.compute(), expected)


def of_every_kind(rows: int = 50) -> pd.DataFrame:
    numbers = np.arange(rows)
    null = [None if i % 7 == 0 else i for i in range(rows)]
    return pd.DataFrame(
        {
            "int": numbers,
            "small": numbers.astype("i2"),
            "unsigned": numbers.astype("u8"),
            "float": numbers / 3,
            "single": (numbers / 3).astype("f4"),
            "int with null": pd.array(null, dtype="Int64"),
            "float with nan": np.where(numbers % 5, numbers / 3, np.nan),
            "bool": numbers % 2 == 0,
            "bool with null": pd.array([None, True] * (rows // 2), dtype="boolean"),
            "text": [f"é{i}" if i % 3 else None for i in range(rows)],
            "category": pd.Categorical([f"c{i % 4}" for i in range(rows)]),
            "time": pd.date_range("2020", periods=rows, freq="s"),
            "zoned": pd.date_range("2020", periods=rows, freq="s", tz="Europe/Paris"),
            "duration": pd.to_timedelta(numbers, "s"),
            "date": [dt.date(2020, 1, 1 + i % 28) for i in range(rows)],
            "decimal": [Decimal(i) / 4 for i in range(rows)],
            "bytes": [bytes([i]) for i in range(rows)],
            "list": [[i, i + 1] for i in range(rows)],
        }
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "an index": {"index": "int"},
    "no index": {"index": False},
    "columns": {"columns": ["text", "float"]},
    "filters": {"filters": [("int", ">", 5)]},
    "nullable": {"dtype_backend": "numpy_nullable"},
    "Arrow": {"dtype_backend": "pyarrow"},
    "to_pandas": {"arrow_to_pandas": {"types_mapper": {pa.int64(): pd.Int64Dtype()}.get}},
    "row groups": {"split_row_groups": 3},
}


@pytest.mark.parametrize("filesystem", ["fsspec", "arrow"])
@pytest.mark.parametrize("named", [False, True], ids=["numbered", "named index"])
@pytest.mark.parametrize("options", OPTIONS)
def test_a_partition_is_as_dask_makes_it(
    tmp_path: Path, filesystem: str, named: bool, options: str
) -> None:
    if options == "row groups" and filesystem == "arrow":
        pytest.skip("Dask does not split files there")
    data = of_every_kind()
    if named:
        data = data.set_index(pd.Index([f"r{i}" for i in range(len(data))], name="label"))
    data.to_parquet(tmp_path / "0.parquet", row_group_size=9)
    # Dask adds to the arguments that it is given
    settings = copy.deepcopy(OPTIONS[options])
    ddf = dd.read_parquet(tmp_path, filesystem=filesystem, **settings)
    expr = ddf.optimize(fuse=False).expr
    for i in range(expr.npartitions):
        task = expr._task((expr._name, i), i)
        assert (as_read(task) is task) == (options == "to_pandas")
        pd.testing.assert_frame_equal(as_read(task)(), task())


@pytest.mark.parametrize("filesystem", ["fsspec", "arrow"])
def test_columns_stay_where_they_were_read(tmp_path: Path, filesystem: str) -> None:
    rows = 100_000
    data = pd.DataFrame({"k": np.arange(rows), "v": np.random.default_rng(0).random(rows)})
    data.to_parquet(tmp_path / "0.parquet")
    expr = dd.read_parquet(tmp_path, filesystem=filesystem).optimize(fuse=False).expr
    task = expr._task((expr._name, 0), 0)
    before = pa.total_allocated_bytes()
    remaining = as_read(task)()
    assert pa.total_allocated_bytes() - before >= 2 * 8 * rows
    pd.testing.assert_frame_equal(remaining, data)


@pytest.mark.parametrize("options", ["nothing", "columns", "row groups", "filters", "no index"])
def test_text_keys_are_dictionaries(tmp_path: Path, options: str) -> None:
    rows = 9000
    data = pd.DataFrame(
        {
            "int": np.arange(rows),
            "text": np.where(np.arange(rows) % 5, np.arange(rows) % 30, -1).astype(str),
            "float": np.arange(rows) / 7,
        }
    )
    data.loc[::11, "text"] = None
    data.to_parquet(tmp_path / "0.parquet", row_group_size=3000)
    ddf = dd.read_parquet(tmp_path, **copy.deepcopy(OPTIONS[options]))
    expr = ddf.optimize(fuse=False).expr
    for i in range(expr.npartitions):
        task = expr._task((expr._name, i), i)
        got = as_read(task, ["text"])()
        numbered = isinstance(got["text"].dtype, pd.ArrowDtype)
        assert numbered == (options != "filters")
        if numbered:
            assert pa.types.is_dictionary(got["text"].dtype.pyarrow_dtype)
        plain = task()
        got["text"] = got["text"].astype(plain["text"].dtype)
        pd.testing.assert_frame_equal(got, plain)


def test_only_columns_that_a_file_has_in_a_dictionary(tmp_path: Path) -> None:
    rows = 2000
    table = pa.table(
        {
            "few": [f"long text {i % 3}" for i in range(rows)],
            "own": [f"{i}" for i in range(rows)],
            "late": [f"{0 if i < rows // 2 else i}" for i in range(rows)],
        }
    )
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=rows // 2)
    metadata = pq.read_metadata(tmp_path / "0.parquet")
    assert _in_dictionaries(metadata, ["few", "own", "late"]) == ["few"]


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_text_of_which_a_file_has_the_differences(tmp_path: Path, encoding: str) -> None:
    """It is as short as a dictionary, but pyarrow does not read it into one."""
    table = pa.table({"s": ["a", "b"] * 1000, "x": np.arange(2000)})
    for i in range(2):
        path = tmp_path / f"{i}.parquet"
        pq.write_table(table, path, use_dictionary=False, column_encoding={"s": encoding})
    with dask_gpuagg.enabled():
        result = dd.read_parquet(tmp_path).groupby("s").x.sum().compute()
    assert result.to_dict() == {"a": 2 * 999_000, "b": 2 * 1_000_000}


@pytest.mark.parametrize("files", [[0], [0, 1], [1, 0, 0, 1]])
def test_files_without_row_groups(tmp_path: Path, files: list[int]) -> None:
    table = pa.table({"s": ["a", "b"] * 1000, "x": np.arange(2000)})
    for i, row_groups in enumerate(files):
        with pq.ParquetWriter(tmp_path / f"{i}.parquet", table.schema) as writer:
            for _ in range(row_groups):
                writer.write_table(table)
    with dask_gpuagg.enabled():
        result = dd.read_parquet(tmp_path).groupby("s").x.count().compute()
    assert result.to_dict() == {s: 1000 * sum(files) for s in "ab" if any(files)}


@pytest.mark.parametrize("options", [{"split_row_groups": 2}, {"blocksize": "250KB"}])
def test_files_with_and_without_dictionaries_in_one_partition(
    options: dict[str, Any], tmp_path: Path
) -> None:
    for i in range(6):
        rng = np.random.default_rng(i)
        frame = pd.DataFrame({"s": rng.choice(["a", "bb", "c"], 3000), "x": rng.random(3000)})
        frame.to_parquet(tmp_path / f"{i}.parquet", use_dictionary=bool(i % 2), row_group_size=1000)
    same_as_stock(dd.read_parquet(tmp_path, aggregate_files=True, **options).groupby("s").x.sum())


@pytest.mark.parametrize("options", [{"split_row_groups": 4}, {"blocksize": "40KB"}])
def test_rows_of_several_pieces_are_numbered_together(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """Dask reads them into one table, whose row labels keys may be made of."""
    for i in range(6):
        frame = pd.DataFrame({"x": np.random.default_rng(i).random(300)})
        frame.to_parquet(tmp_path / f"{i}.parquet", index=False, row_group_size=100)
    rows = dd.read_parquet(tmp_path, aggregate_files=True, **options)
    for key in (lambda label: label % 7, rows.index % 7):
        same_as_stock(rows.groupby(key).x.sum())


@pytest.mark.parametrize("columns", [["int", "float"], "float"])
def test_files_of_cudf_are_read_by_the_engine_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: Any
) -> None:
    class CudfEngine(ArrowDatasetEngine):
        """In the place of dask-cudf's."""

    class ReadOnStreams(CudfEngine):
        """In the place of ours."""

    CudfEngine.__module__ = "dask_cudf._legacy.io.parquet"
    ours = ModuleType("files")
    ours.ReadOnStreams = ReadOnStreams  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dask_gpuagg.engines.device.files", ours)
    of_every_kind().rename_axis(columns="column").to_parquet(tmp_path / "0.parquet")
    read = dd.read_parquet(tmp_path, engine=CudfEngine)[columns]
    (node,) = read.expr.simplify().find_operations(ReadParquet)
    task = node._task((node._name, 0), 0)
    result = as_read(task)
    assert ReadOnStreams in [part.func.engine for part in readers_in(result)]
    assert CudfEngine in [part.func.engine for part in readers_in(task)]
    assert result.key == task.key
    equal(result({}), task({}))
    (ours_reads,) = [part.func for part in readers_in(result)]
    assert not len(ours_reads.meta.columns), "cuDF's metadata would travel to the worker"


def readers_in(task: Any) -> list[Any]:
    parts = [part for part in task.args if isinstance(part, Task)]
    return [task] if hasattr(task.func, "engine") else [r for p in parts for r in readers_in(p)]
