"""The run of Dask's own suites: what it counts, and when it fails."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.running import run_python
from tests.upstream import __main__ as upstream

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
    plugins = ("-p", "tests.upstream.plugin", "-p", "no:cacheprovider", "-q")
    file = ("--outcome", suite.parent / "outcome.json")
    return run_python("-m", "pytest", *plugins, *file, *options, suite, cwd=suite.parent)


def outcome(suite: Path) -> dict[str, Any]:
    return json.loads((suite.parent / "outcome.json").read_text())


def test_fails_where_too_little_is_planned(suite: Path):
    """Test processes report their counts to pytest, and the file has their sum."""
    ran = run(suite, PLANNED + FALLS_BACK, "-n", "2")
    assert "2 passed" in ran.stdout
    assert "ran 1 of 2 group-by aggregations (50.0 %)" in ran.stdout
    assert "FAILED: fewer than 99 % of them were planned" in ran.stdout
    assert ran.returncode == 1
    counts = outcome(suite)
    assert (counts["planned"], list(counts["fallbacks"].values())) == (1, [1])


def test_only_what_the_plugin_breaks_is_a_failure(suite: Path):
    suite.write_text(HEADING + PLANNED + FAILS)
    ran = run_python("-m", "tests.upstream", "-n", "0", suite, cwd=Path(__file__).parent.parent)
    assert ran.returncode == 1, ran.stdout
    assert "ran 1 of 1 group-by aggregations (100.0 %)" in ran.stdout
    assert "2 failed with the plugin on, 1 of them pass with it off" in ran.stdout
    assert "plugin on alone: " in ran.stdout
    assert "::test_fails_with_the_plugin_alone" in ran.stdout


@pytest.mark.parametrize(
    ("runs", "status"),
    [
        ([(0, [], 99)], 0),
        ([(4, [], 0)], 4),
        ([(1, ["a"], 99), (1, ["a"], 0)], 0),
        ([(1, ["a"], 98), (1, ["a"], 0)], 1),
    ],
    ids=["all pass", "pytest fails", "Dask's own failure", "too few planned"],
)
def test_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, runs: list[tuple[int, list[str], int]], status: int
):
    """Each run of pytest has an exit status, failed tests and a number of planned group-bys."""
    remaining = iter(runs)

    def pytest_run(suites: Sequence[str], jobs: str, *options: str | Path) -> int:
        exit_status, failed, planned = next(remaining)
        counts = {"planned": planned, "fallbacks": {"a reason": 1}, "failed": failed}
        Path(options[options.index("--outcome") + 1]).write_text(json.dumps(counts))
        return exit_status

    monkeypatch.setattr(upstream, "pytest_run", pytest_run)
    monkeypatch.setattr(sys, "argv", ["upstream"])
    with pytest.raises(SystemExit) as ended:
        upstream.main()
    assert ended.value.code == status
    assert next(remaining, None) is None
