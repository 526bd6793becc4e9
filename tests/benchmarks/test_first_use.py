"""The parts of ``benchmarks.first_use`` that need no GPU: processes, caches, units and lines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import first_use
from benchmarks.first_use import ARMS, KEYS


@pytest.mark.parametrize("dtype", sorted({keys.dtype for keys in KEYS.values()}))
def test_rows_of_every_kind_of_keys(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cudf = ModuleType("cudf")
    cudf.DataFrame = pd.DataFrame  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setitem(sys.modules, "cudf", cudf)
    rows = first_use.frame(dtype, 10, 1_000)
    assert rows["k"].nunique() == 10
    assert rows[["v", "w"]].dtypes.astype(str).tolist() == ["float64", "float32"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The arguments and caches of the processes, none of which is started."""
    made: list[tuple[str, ...]] = []

    def in_a_process(part: str, *arguments: str, **variables: str) -> Iterator[dict[str, Any]]:
        assert variables.pop("CUDA_CACHE_DISABLE") == "1"
        arm = arguments[0]
        cache = arguments[3] if part == "queries" else variables["DASK_GPUAGG__KERNEL_CACHE"]
        assert os.listdir(cache) == (["entry"] if arm == "filled cache" else [])
        if arm == "empty cache":
            Path(cache, "entry").touch()
        made.append((*arguments[:3], cache))
        yield {"query": arguments[1], "arm": arm}

    monkeypatch.setattr(first_use, "in_a_process", in_a_process)
    return made


def test_each_arm_of_each_query_has_its_process(calls: list[tuple[str, ...]]) -> None:
    records = list(first_use.queries_records())
    queries = [(key, spec) for key, keys in KEYS.items() for spec in keys.specs]
    assert [call[:3] for call in calls] == [(arm, *query) for query in queries for arm in ARMS]
    assert len(records) == len(calls)
    # one cache for the arms of a query, and none of them is left
    caches = [{call[3] for call in calls if call[1:3] == query} for query in queries]
    assert all(len(found) == 1 for found in caches)
    assert len(set.union(*caches)) == len(caches)
    assert not any(os.path.exists(path) for path in set.union(*caches))


def test_the_file_is_written_after_each_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is cut leaves what was measured before."""
    path = tmp_path / "made.json"
    times = {"planning_s": 2.5, "first_s": 0.4, "second_s": 0.3, "warm_s": 0.25}
    record = {"query": "a sum", "rows": 10, "arm": "stock", "kernels": ["libcudf"], **times}

    def cut() -> Iterator[dict[str, Any]]:
        yield record
        raise KeyboardInterrupt

    head = {"gpu": "a GPU", "commit": "of the process"}
    monkeypatch.setattr(first_use, "in_a_process", lambda *_: iter([head]))
    monkeypatch.setattr(first_use, "queries_records", cut)
    with pytest.raises(KeyboardInterrupt):
        first_use.main(["--commit", "abc", "--out", str(path)])
    made = json.loads(path.read_text())
    assert made == {"gpu": "a GPU", "commit": "abc", "queries": [record]}
    assert (
        capsys.readouterr()
        .out.strip()
        .endswith(
            "a sum, 10 rows, stock: planning 2500.0 ms, first 400.0 ms, second 300.0 ms, "
            "warm 250.0 ms, first by libcudf"
        )
    )
