"""The benchmark of TPC-H: what it compares, and that it runs."""

import json
from pathlib import Path

import pandas as pd

from benchmarks import arms as benchmark_arms
from benchmarks import tpch
from benchmarks.compare import compare

ROWS = pd.DataFrame({"name": ["a", "b", "c"], "n": [1, 2, 2], "revenue": [1.5, 2.5, 3.5]})


def test_rows_without_keys_are_compared_in_any_order():
    assert compare(ROWS, ROWS.iloc[::-1]).equal
    assert not compare(ROWS, ROWS.assign(name=["a", "b", "d"])).equal
    assert not compare(ROWS, ROWS.assign(n=[1, 2, 3])).equal
    assert not compare(ROWS, ROWS.assign(revenue=[1.5, 2.5, 3.6])).equal
    assert not compare(ROWS, ROWS.head(2)).equal


def test_runs_and_writes_what_it_measured(tmp_path: Path):
    arms = ["--arms", "stock,plugin"]
    results = tpch.run(
        tpch.parse(["--quick", "--data", str(tmp_path), "--queries", "q4,q6", *arms])
    )
    assert json.loads((tmp_path / "tpch-quick.json").read_text()) == json.loads(json.dumps(results))
    assert results["versions"]["dask"] is not None
    measured = results["schedulers"]["threads"]["queries"]
    assert list(measured) == ["q4", "q6"]
    for entry in measured.values():
        assert entry["answer"]["equal"]
        assert len(entry["ratios"]) == 1
        assert all(one["error"] is None for one in entry["arms"])
        assert benchmark_arms.line(entry).startswith(f"{entry['name']}: stock ")
        assert [one["arm"] for one in entry["arms"]] == ["stock", "plugin", "stock again"]
        assert all(len(one["cpu"]) == 1 for one in entry["arms"])
        assert len(entry["noise"]["ratios"]) == len(entry["cpu"]["noise"]["ratios"]) == 1
    assert measured["q4"]["plugin"]["by_plan"] is True
    assert set(measured["q4"]["slower"]) == {"wall", "cpu"}
