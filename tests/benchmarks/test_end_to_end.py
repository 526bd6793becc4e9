"""The benchmark of whole queries: what is right, what is kept, and that it runs on the host."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks import end_to_end, end_to_end_arms, end_to_end_cluster
from benchmarks.end_to_end_arms import DaskArm, Question, tuned
from benchmarks.end_to_end_cluster import (
    HOST,
    QUERIES,
    Persisted,
    Rows,
    Session,
    Stopped,
    expected,
    judge,
    probes,
    seen_in,
    summary,
    together,
)

ROWS = Rows(10_007, 3, (("k", 40), ("many", 5_000)), HOST)


@pytest.fixture(scope="module")
def session() -> Any:
    with Session(HOST, 1, "tcp", "") as made:
        yield made


def drawn() -> pd.DataFrame:
    return pd.concat([ROWS.draw(i) for i in range(ROWS.partitions)])


@pytest.mark.parametrize("key", ["k", "many"])
@pytest.mark.parametrize("query", QUERIES.values(), ids=list(QUERIES))
def test_what_pandas_answers_is_right(key: str, query: Any):
    rows = drawn()
    assert len(rows) == ROWS.rows
    right = expected([seen_in([0], ROWS, key), seen_in([1, 2], ROWS, key)], key)
    assert right["groups"] == rows[key].nunique()
    wanted = probes(dict(ROWS.keys)[key])
    answer = query.build(rows, key)
    assert judge(summary(answer, query, key, wanted), right, query)["right"]
    halves = (answer.iloc[:17], answer.iloc[17:], answer.iloc[:0])
    in_parts = together(summary(part, query, key, wanted) for part in halves)
    assert judge(in_parts, right, query)["right"]


@pytest.mark.parametrize(
    ("column", "change", "problem"),
    [
        ("sum", lambda v: v * (1 + 1e-7), "v_sum is"),
        ("count", lambda v: v.where(v.index != 20, v + 1), "v_count is"),
        ("min", lambda v: v + 1e-12, "v_min is"),
        ("max", lambda v: v.where(v.index != 39, float("nan")), "v_max is nan"),
        ("mean", lambda v: v * 1.01, "w_mean is"),
        ("mean", lambda v: v * 1.01, "w_sum is"),
    ],
)
def test_wrong_values_are_told(column: str, change: Any, problem: str):
    right = expected([seen_in([0, 1, 2], ROWS, "k")], "k")
    query = QUERIES["five"]
    answer = query.build(drawn(), "k")
    label = ("w" if column == "mean" else "v", column)
    answer[label] = change(answer[label])
    judged = judge(summary(answer, query, "k", probes(40)), right, query)
    assert not judged["right"]
    assert any(problem in text for text in judged["problems"])


def test_runs_and_writes_what_it_measured(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[Any, ...]] = []

    def running(*about: Any) -> Session:
        asked.append(about)
        return session

    monkeypatch.setattr(end_to_end, "Session", running)
    for name in ("start", "close"):
        monkeypatch.setattr(Session, name, lambda _: None)
    monkeypatch.setattr(end_to_end_cluster, "SETTLE_S", 2.0)
    # one of the six
    monkeypatch.setattr(end_to_end_arms, "CANDIDATES", end_to_end_arms.CANDIDATES[1:2])
    out = tmp_path / "results.json"
    wanted = ["--engine", "host", "--out", str(out), "--parquet-dir", str(tmp_path)]
    wanted += ["--rows", "20000", "--parquet-rows", "20000", "--groups", "100,5000"]
    wanted += ["--partitions", "4", "--files", "2", "--repeats", "1"]
    cells = ["persisted-4/five/100", "parquet/median/5k"]
    wanted += ["--workers", "1", "--cells", ",".join(cells)]
    results = end_to_end.run(end_to_end.parse(wanted))
    assert json.loads(out.read_text()) == json.loads(json.dumps(results))
    assert [cell["name"] for cell in results["cells"]] == cells
    assert results["runs"][0]["versions"]["dask"] is not None
    for cell in results["cells"]:
        assert "error" not in cell
        for name in ("stock-tuned", "ours"):
            arm = cell["arms"][name]
            assert arm["answer"] == {"right": True, "problems": []}
            assert arm["first_ms"] > 0
            assert len(arm["times_ms"]) == 1
            assert sum(arm["steps_ms"].values()) == pytest.approx(arm["median_ms"])
        assert len(cell["arms"]["stock-tuned"]["candidates"]) == 1
        assert cell["arms"]["floor"]["median_ms"] > 0
        assert cell["ratios"].keys() == {"stock-tuned"}
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"], "files are deleted"

    again = end_to_end.run(end_to_end.parse([*wanted, "--append", "--deadline", "0"]))
    assert again["runs"][1]["left_out"] == cells
    assert json.loads(json.dumps(again["cells"])) == json.loads(json.dumps(results["cells"]))
    assert asked == [(HOST, 1, "tcp", "100GB", True)] * 2


def test_a_query_that_takes_too_long_is_stopped_and_forgotten(
    session: Session, monkeypatch: pytest.MonkeyPatch
):
    # two that are one expression, and another
    monkeypatch.setattr(end_to_end_arms, "CANDIDATES", end_to_end_arms.CANDIDATES[:3])
    source = Persisted(session, ROWS)
    question = Question(QUERIES["sum"], "k", 40, source)
    arm = DaskArm(question, "stock-tuned")
    with pytest.raises(Stopped):
        arm.run(0.0, False)
    assert session._settled()
    found = arm.run(20.0, True).found
    assert found is not None
    assert judge(found, session.expected(ROWS, "k"), question.query)["right"]
    best, seen = tuned(question, lambda: 0.0)
    assert best is None
    assert ["same_as" in entry for entry in seen] == [False, True, False]
    assert ["error" in entry for entry in seen] == [True, False, True]
    source.close()
    assert session.settle()


def cell_of(arms: dict[str, Any], **other: Any) -> dict[str, Any]:
    made = {"engine": HOST, "name": "persisted-4/sum/100", "input": "persisted", "query": "sum"}
    made |= {"rows": 1, "groups": 100, "partitions": 4, "workers": 1, "protocol": "tcp"}
    return made | {"arms": arms, "ratios": {}} | other


def arm_of(run: int, *times: float, **other: Any) -> dict[str, Any]:
    median = sorted(times)[len(times) // 2] if times else None
    return {"run": run, "first_ms": None, "times_ms": list(times), "median_ms": median} | other


def test_cells_measured_again_take_the_place_of_the_earlier_ones():
    results: dict[str, Any] = {"runs": [{}, {}], "cells": []}
    first = {"ours": arm_of(0, 1.0, 2.0), "stock-tuned": arm_of(0, 4.0, 6.0)}
    end_to_end.add(results, cell_of(first))
    assert end_to_end.ratios(first) == {"stock-tuned": 3.5}
    two, again = cell_of(first, workers=2), cell_of({"ours": arm_of(1, 9.0)})
    end_to_end.add(results, two)
    end_to_end.add(results, again)
    assert results["cells"] == [two, again]


@pytest.mark.parametrize("wrong", [["--cells", "persisted-4/sum/1k"], ["--arms", "theirs"]])
def test_unknown_names_are_refused(wrong: list[str]):
    with pytest.raises(SystemExit):
        end_to_end.parse(wrong)
