"""The parts of ``benchmarks.first_use`` that need no GPU: processes, caches, units and lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import first_use
from benchmarks.first_use import ARMS, ASKED, CHILDREN, DTYPES, KEYS, LINES, Compilations, Compiled
from dask_gpuagg.cuda.runtime import background, compiler
from tests.cuda.runtime.test_compiler import TINY
from tests.running import ROOT


def test_needed_units_are_told_from_guesses() -> None:
    class Source:
        def __init__(self, *kernels: str) -> None:
            self.kernels = kernels

    core, fold = Source("clear", "write"), Source("fold")
    compiled = [Compiled(fold, 100.25, 101.0), Compiled(core, 100.125, 100.25)]
    made = first_use.compiling_record(compiled, {core}, 100.0, 100.5)
    assert made == {
        "needed_s": 0.25,
        "all_s": 1.0,
        "served_s": 0.5,
        "of_one_core_s": 0.125,
        "units": [["clear write", 0.125, 0.25, True], ["fold", 0.25, 1.0, False]],
    }
    cell = {"query": "one sum by int64", "groups": 1000, "kernel": "direct", **made}
    assert first_use.compiling_line(cell) == (
        "compiling one sum by int64, 1,000 groups, direct: 0.25 s, 1 of 2 units needed, "
        "0.12 s of one core"
    )
    assert first_use.compiling_record(compiled, set(), 100.0, None)["needed_s"] is None


def test_compilations_are_those_of_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compile_source", lambda unit, architecture: unit.kernels)
    found = Compilations()
    go_on = threading.Event()
    background.submit(lambda: go_on.wait(20) and compiler.compile_source(TINY, "sm_90"))
    threading.Timer(0.05, go_on.set).start()
    (one,) = found.taken()
    assert one.source.kernels == tuple(TINY.kernels)
    assert one.end >= one.begin
    assert found.taken() == []


def test_a_process_forgets_what_it_compiled() -> None:
    """Everything that is forgotten has a place in the package."""
    first_use.forget()
    assert first_use.loaded() == set()


@pytest.mark.parametrize("dtype", sorted({*DTYPES, *(keys.dtype for keys in KEYS.values())}))
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


def test_each_arm_of_each_query_of_files_has_its_process(calls: list[tuple[str, ...]]) -> None:
    list(first_use.files_records())
    assert [call[:2] for call in calls] == [(arm, name) for name in ASKED for arm in ARMS]
    # the files are those of all queries, a cache that of one
    assert len({call[2] for call in calls}) == 1
    assert len({call[3] for call in calls}) == len(ASKED)
    assert not any(os.path.exists(path) for call in calls for path in call[2:])


def test_a_process_prints_records(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert CHILDREN.keys() == LINES.keys()
    for part in CHILDREN:
        monkeypatch.setitem(CHILDREN, part, lambda *given: iter([{"query": given}]))
        first_use.main(["--child", part, "an arm", "a name"])
        assert json.loads(capsys.readouterr().out) == {"query": ["an arm", "a name"]}


def test_a_process_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, sys; print('a warning'); print('{\"query\": \"%s\"}' % sys.argv[1:]);"
        "raise SystemExit(int(os.environ['STATUS']))"
    )
    started = subprocess.Popen

    def start(command: list[str], **more: Any) -> Any:
        assert command[1:4] == ["-m", "benchmarks.first_use", "--child"]
        return started([sys.executable, "-c", code, *command[4:]], **more)

    monkeypatch.setattr(subprocess, "Popen", start)
    assert list(first_use.in_a_process("files", "arm", STATUS="0")) == [
        {"query": "['files', 'arm']"}
    ]
    found = first_use.in_a_process("files", "arm", STATUS="3")
    assert next(found)
    with pytest.raises(subprocess.CalledProcessError):
        next(found)


def test_the_file_is_written_after_each_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run that is cut leaves what was measured before."""
    path = tmp_path / "made.json"
    head = {"gpu": "a GPU", "driver": 1, "cudf": "26.1", "kernels": "abc", "cores": 16}
    unserved = first_use.compiling_record([], set(), 0.0, None)
    cell = {"query": "five by string", "groups": 1000, "kernel": "libcudf", **unserved}

    def cut(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(first_use, "in_a_process", lambda *_: iter([head, cell]))
    monkeypatch.setattr(first_use, "queries_records", cut)
    with pytest.raises(KeyboardInterrupt):
        first_use.main(["--commit", "abc", "--out", str(path)])
    made = json.loads(path.read_text())
    assert made["compiling"] == [cell]
    assert (made["commit"], made["gpu"], made["kernels"]) == ("abc", "a GPU", "abc")


@pytest.mark.parametrize(
    ("kernels", "said"), [(["libcudf", "libcudf"], ", first by libcudf"), (["direct", "lphga"], "")]
)
def test_a_line_names_what_served(kernels: list[str], said: str) -> None:
    record = {
        "query": "five by 1,000 int64",
        "rows": 4_000_000,
        "arm": "empty cache",
        "first_s": 0.25,
        "second_s": 0.05,
        "warm_s": 0.0041,
        "kernels": kernels,
    }
    assert first_use.calls_line(record) == (
        "five by 1,000 int64, 4,000,000 rows, empty cache: "
        f"first 250.0 ms, second 50.0 ms, warm 4.1 ms{said}"
    )


def test_a_line_has_planning_apart() -> None:
    record = {"query": "a sum", "rows": 10, "arm": "stock", "planning_s": 2.5, "first_s": 0.4}
    said = first_use.calls_line({**record, "second_s": 0.3, "warm_s": 0.25})
    assert said.endswith(
        "stock: planning 2500.0 ms, first 400.0 ms, second 300.0 ms, warm 250.0 ms"
    )


def test_the_tables_of_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    import result_tables

    arms = {"stock": 0.25, "empty cache": 0.5, "filled cache": 0.3}
    queries = [
        {"query": "five by 1M int32", "arm": arm, "first_s": first, "warm_s": first / 10}
        for arm, first in arms.items()
    ]
    compiling = [
        {"query": "one sum by string", "groups": groups, "needed_s": 0.416, "of_one_core_s": 1.25}
        for groups in (1_000, 50_000_000)
    ]
    report = {"machine": {"usable_cores": 16}, "queries": queries, "compiling": compiling}
    made = result_tables.first_use(json.dumps(report)).splitlines()
    assert "| five by 1M int32 | 250 | 500 | 300 | 25 | 30 |" in made
    assert "| query | 1,000 groups | 50,000,000 groups |" in made
    assert "| one sum by string | 0.42 (1.2) | 0.42 (1.2) |" in made
    assert any("by 16 cores" in each for each in made)
    files = result_tables.first_files(json.dumps({"files": queries})).splitlines()
    assert files[-1] == "| five by 1M int32 | 250 | 500 | 300 | 25 | 30 |"
    del queries[2]
    made = result_tables.first_use(json.dumps(report)).splitlines()
    assert "| five by 1M int32 | 250 | 500 |  | 25 |  |" in made
