"""A reader of Parquet is named by its operands and its files, not by what was read of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pytest

import dask_gpuagg


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(3):
        frame = pd.DataFrame({"k": [i, 1], "v": [0.5, i], "s": ["a", f"b{i}"]})
        frame.to_parquet(tmp_path / f"{i}.parquet")
    return tmp_path


def name_of(folder: Path, **options: Any) -> str:
    with dask_gpuagg.enabled():
        return str(dd.read_parquet(folder, **options).expr._name)


def test_the_same_files_have_the_same_name(folder: Path) -> None:
    assert name_of(folder) == name_of(folder)


@pytest.mark.parametrize(
    "options",
    [{"columns": ["k"]}, {"filters": [("k", ">", 0)]}, {"index": "k"}, {"split_row_groups": 1}],
    ids=lambda given: next(iter(given)),
)
def test_other_operands_have_another_name(folder: Path, options: dict[str, Any]) -> None:
    assert name_of(folder, **options) != name_of(folder)


def test_a_file_that_changed_has_another_name(folder: Path) -> None:
    before = name_of(folder)
    os.utime(folder / "1.parquet", (1, 1))
    assert name_of(folder) != before
    (folder / "2.parquet").unlink()
    assert len({before, name_of(folder)}) == 2


def test_text_of_another_dtype_has_another_name(folder: Path) -> None:
    """A setting decides about it, which is no operand."""
    with dask.config.set({"dataframe.convert-string": False}):
        as_objects = name_of(folder)
    assert as_objects != name_of(folder)


def test_what_was_read_of_the_files_is_not_tokenized(folder: Path) -> None:
    class Large:
        """In the place of fragments and metadata."""

        def __dask_tokenize__(self) -> Any:
            raise AssertionError("it is tokenized")

    read = dd.read_parquet(folder)
    read.expr._dataset_info["large"] = Large()
    with pytest.raises(AssertionError, match="tokenized"):
        read.expr.substitute_parameters({"columns": ["s", "v"]})
    with dask_gpuagg.enabled():
        projected = read.expr.substitute_parameters({"columns": ["k", "v"]})
        whole = read.groupby("k").v.sum().compute()
    assert projected.columns == ["k", "v"]
    assert whole.sum() == 4.5


def test_without_the_plugin_the_name_is_dasks(folder: Path) -> None:
    before = dd.read_parquet(folder).expr._name
    ours = name_of(folder)
    assert dd.read_parquet(folder).expr._name == before != ours
