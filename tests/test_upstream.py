"""The run of Dask's own suites: what it counts, and when it fails."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.running import run_python

PLANNED = """
def test_planned():
    assert frame().groupby("k").x.sum().compute().tolist() == [3, 3]
"""
FALLS_BACK = """
def test_falls_back():
    assert frame().astype({"x": complex}).groupby("k").x.sum().compute().tolist() == [3, 3]
"""
FAILS = """
def test_fails_with_the_plugin_alone():
    assert not is_enabled()

def test_fails_in_any_case():
    assert is_enabled() and not is_enabled()
"""
HEADING = """
import dask.dataframe as dd
import pandas as pd
from dask_gpuagg import is_enabled

def frame():
    return dd.from_pandas(pd.DataFrame({"k": [0, 0, 1], "x": [1, 2, 3]}), npartitions=2)
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path / "test_suite.py"


def run(suite: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    suite.write_text(HEADING + text)
    outcome = ("--outcome", suite.parent / "outcome.json")
    plugins = ("-p", "tests.upstream.plugin", "-p", "no:cacheprovider", "-q")
    return run_python("-m", "pytest", *plugins, *outcome, *options, suite, cwd=suite.parent)


def outcome(suite: Path) -> dict[str, object]:
    return json.loads((suite.parent / "outcome.json").read_text())


@pytest.mark.parametrize("jobs", ["0", "2"])
def test_fails_where_too_little_is_planned(suite: Path, jobs: str):
    text = PLANNED + FALLS_BACK
    done = run(suite, text, "-n", jobs)
    assert "2 passed" in done.stdout
    assert "ran 1 of 2 group-by aggregations (50.0 %)" in done.stdout
    assert "FAILED: fewer than 99 % of them were planned" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(("text", "status"), [(FAILS, 1), (PLANNED, 0)])
def test_only_what_the_plugin_breaks_is_a_failure(suite: Path, text: str, status: int):
    suite.write_text(HEADING + PLANNED + text)
    done = run_python("-m", "tests.upstream", "-n", "0", suite, cwd=Path(__file__).parent.parent)
    assert done.returncode == status, done.stdout
    if status:
        assert "2 failed with the plugin on, 1 of them pass with it off" in done.stdout
        assert "plugin on alone: " in done.stdout
        assert "::test_fails_with_the_plugin_alone" in done.stdout
