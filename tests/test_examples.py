"""The examples run, on few rows, and say what is missing."""

import importlib
import importlib.util
import json
import time
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client

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


def test_a_file_has_the_answers_of_db_benchmark(tmp_path: Path) -> None:
    options = ["--cpu", "--rows", "2e4", "--questions", "q4,q5,q10", "--no-stock"]
    out = tmp_path / "results.json"
    done = run_python("-m", "benchmarks.db_benchmark", *options, "--out", str(out), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text())
    assert report["arguments"] == options
    totals = {record["question"]: record["totals"] for record in report["queries"]}
    assert totals == {"q4": None, "q5": True, "q10": True}


def test_an_answer_of_db_benchmark_without_some_rows_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("db_benchmark")
    values, totals = np.array([[1.0, 2.0], [3.0, 4.0]]), {"v3": 4.0, "rows": 6}
    for keys in (None, np.arange(2)):
        answer = example.Answer(2, keys, values.sum(axis=0) if keys is None else values)
        for rows, is_right in ((6, True), (7, False)):
            agreed = example.has_totals(answer, ("v3", "rows"), totals | {"rows": rows})
            assert agreed is is_right
            assert example.is_right({"totals": agreed}) is is_right


def test_db_benchmark_gives_up_stock_dask_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """On workers; those of pandas have no device memory to count."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    running = importlib.import_module("running")
    for name in ("_count", "_reset"):
        monkeypatch.setattr(running, name, int)
    monkeypatch.setattr(running, "_peak", lambda: 7)
    x = dd.from_map(lambda i: pd.DataFrame({"k": [i], "v": [1.0]}), range(3))
    slow = x.map_partitions(lambda part: time.sleep(1) or part, meta=x._meta)
    with Client(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as client:
        workers = running.Workers(client)
        ran = workers.run(workers.ready(x.persist()).groupby("k").sum())
        assert (len(ran.answer), ran.peak) == (3, 7)
        with pytest.raises(TimeoutError):
            workers.run(slow, limit=0.1)
        assert not any(client.processing().values())
        failing = x.map_partitions(lambda part: 1 / 0, meta=x._meta)
        with pytest.raises(ZeroDivisionError):
            workers.run(failing)


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
