"""The parts of ``benchmarks.first_compiling`` that need no GPU: processes, units and lines."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_compiling, first_queries, first_use
from benchmarks.first_compiling import Compilations, Compiled, line, record
from dask_gpuagg.cuda.runtime import background, compiler
from tests.cuda.runtime.test_compiler import TINY

ROOT = Path(__file__).parents[2]


def test_needed_units_are_told_from_guesses() -> None:
    class Source:
        def __init__(self, *kernels: str) -> None:
            self.kernels = kernels

    core, fold = Source("clear", "write"), Source("fold")
    compiled = [Compiled(fold, 100.25, 101.0), Compiled(core, 100.125, 100.25)]
    made = record(compiled, {core}, 100.0, 100.5)
    assert made == {
        "needed_s": 0.25,
        "all_s": 1.0,
        "served_s": 0.5,
        "of_one_core_s": 0.125,
        "units": [["clear write", 0.125, 0.25, True], ["fold", 0.25, 1.0, False]],
    }
    cell = {"query": "one sum by int64", "groups": 1000, "kernel": "direct", **made}
    assert line(cell) == (
        "compiling one sum by int64, 1,000 groups, direct: 0.25 s, 1 of 2 units needed, "
        "0.12 s of one core"
    )
    assert record(compiled, set(), 100.0, None)["needed_s"] is None


def test_compilations_are_those_of_the_background(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiler, "compile_source", lambda unit, architecture: unit.kernels)
    found = Compilations()
    go_on = threading.Event()
    background.submit(lambda: go_on.wait(20) and compiler.compile_source(TINY, "sm_90"))
    threading.Timer(0.05, go_on.set).start()
    (one,) = found.taken()
    assert one.source.kernels == tuple(TINY.kernels)
    assert one.end >= one.begin
    assert found.taken() == []


def test_the_file_is_written_after_each_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run that is cut leaves what was measured before."""
    path = tmp_path / "made.json"
    head = {"gpu": "a GPU", "driver": 1, "cudf": "26.1", "kernels": "abc", "cores": 16}
    unserved = record([], set(), 0.0, None)
    cell = {"query": "five by string", "groups": 1000, "kernel": "libcudf", **unserved}

    def cut(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(first_compiling, "records", lambda rows: iter([head, cell]))
    monkeypatch.setattr(first_queries, "measured", cut)
    monkeypatch.setattr(sys, "argv", ["first_use", "--commit", "abc", "--out", str(path)])
    with pytest.raises(KeyboardInterrupt):
        first_use.main()
    made = json.loads(path.read_text())
    assert made["compiling"] == [cell]
    assert (made["commit"], made["gpu"], made["kernels"]) == ("abc", "a GPU", "abc")


def test_a_child_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print('a warning'); print('{\"query\": 1}'); raise SystemExit(3)"
    monkeypatch.setattr(first_compiling, "COMMAND", (sys.executable, "-c", code))
    found = first_compiling.records()
    assert next(found) == {"query": 1}
    with pytest.raises(subprocess.CalledProcessError):
        next(found)


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
