"""The examples run, on few rows, and say what is missing."""

from __future__ import annotations

import importlib.util

import pytest

from dask_gpuagg.cuda.runtime import driver
from tests.running import ROOT, run_python

EXAMPLES = ROOT / "examples"
GPU = driver.unavailable() is None and importlib.util.find_spec("dask_cudf") is not None


def test_db_benchmark_answers_every_question_as_stock_dask_does() -> None:
    done = run_python(EXAMPLES / "db_benchmark.py", "--rows", "2e4", "--cpu", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = {line.split()[0]: line for line in done.stdout.splitlines() if line.startswith("q")}
    assert list(answers) == [f"q{i}" for i in range(1, 11)]
    assert all(line.endswith("rows equal") for line in answers.values()), done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--questions", "q1,q11"], "no question q11"),
        (["--rows", "0"], "at least 1"),
    ],
)
def test_db_benchmark_refuses_what_it_cannot_do(arguments: list[str], message: str) -> None:
    done = run_python(EXAMPLES / "db_benchmark.py", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_cluster_runs_by_the_plan() -> None:
    done = run_python(EXAMPLES / "cluster.py", "--rows", "2e5", "--cpu", timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 group-bys planned, 0 fallbacks" in done.stdout
    assert done.stdout.count(" groups in ") == 3
    assert "1,000 groups" in done.stdout


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_gpu_quickstart_explains_a_missing_gpu() -> None:
    done = run_python(EXAMPLES / "gpu_quickstart.py")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("This example needs a GPU")
    assert "make quickstart" in done.stderr
