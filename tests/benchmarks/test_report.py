"""Result files: their form, and what every committed one must say."""

import importlib
import json
import os
import pkgutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import benchmarks
from benchmarks import machine, papers, report
from benchmarks.kernels import PARTS

ROOT = Path(benchmarks.__file__).parent
RESULTS = sorted((ROOT / "results").rglob("*.json"))
# the extra ``bench`` brings it
OPTIONAL = {"matplotlib"}


def test_a_cell_is_a_line(tmp_path: Path) -> None:
    cells = [{"groups": g, "kernels_ms": {"a": [1.5, None], "b": "x" * 100}} for g in (1, 2)]
    made: dict[str, Any] = {"commit": "abc", "arms": ["ours", "stock"], "cells": cells}
    path = tmp_path / "new" / "made.json"
    report.write(made, path)
    assert json.loads(path.read_text()) == made
    lines = path.read_text().splitlines()
    assert lines[0] == "{"
    assert lines[2] == ' "arms": ["ours", "stock"],'
    assert [json.loads(line.strip().rstrip(",")) for line in lines[4:6]] == cells
    assert len(lines) == 8
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("value", [{}, {"cells": []}, {"cells": {}}, {"a": [[1] * 60, {}]}])
def test_any_report_is_read_again(value: dict[str, Any]) -> None:
    assert json.loads(report.text(value)) == value


@pytest.mark.parametrize("path", RESULTS, ids=[path.stem for path in RESULTS])
def test_committed_results(path: Path) -> None:
    made = json.loads(path.read_text())
    assert path.read_text() == report.text(made)
    for part in made.get("runs", [made]):
        assert part["commit"]
    assert '"hot"' not in path.read_text()


# of programs that earlier commits have
SETTLED = {"counts", "deterministic", "engines", "probes", "sorted", "sorts"}


def test_one_file_for_each_benchmark() -> None:
    scripts = {path.stem for path in ROOT.glob("*.py")}
    parts = {"first_files", "host_parts", "host_peers", "tpch_decimals", "tpch_rounds"}
    parts |= {"larger_keys", *PARTS, *papers.PARTS}
    assert {path.stem for path in RESULTS} <= scripts | parts | SETTLED


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules([str(ROOT)])])
def test_every_script_is_imported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    try:
        importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        if error.name not in OPTIONAL:
            raise
        pytest.skip(f"{error.name} is not installed")


def test_a_process_gives_its_result_or_says_why_not() -> None:
    assert machine.in_a_process(max, 2, 3) == 3
    assert machine.in_a_process(max, 2, "a").startswith("failed: TypeError: ")
    assert machine.in_a_process(os._exit, 7) == "failed: exit code 7"
    assert machine.in_a_process(time.sleep, 60, limit=0.5).startswith("no result within 0.5 s")
