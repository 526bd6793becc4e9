"""The parts of ``benchmarks.first_queries`` that need no GPU: processes, caches and lines."""

from __future__ import annotations

import json
import os
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import first_queries
from benchmarks.first_queries import ARMS, KEYS, SPECS


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The arguments of the processes, none of which is started."""
    made: list[tuple[str, ...]] = []

    def run(command: list[str], env: dict[str, str], **_: Any) -> SimpleNamespace:
        arm, key, spec, cache = command[-4:]
        assert command[1:3] == ["-m", "benchmarks.first_queries"]
        assert env["CUDA_CACHE_DISABLE"] == "1"
        assert os.path.isdir(cache)
        if arm != "filled cache":
            assert os.listdir(cache) == []
        if arm == "empty cache":
            open(os.path.join(cache, "entry"), "w").close()
        if arm == "filled cache":
            assert os.listdir(cache) == ["entry"]
        made.append((arm, key, spec, cache))
        seconds = {"stock": 0.25, "empty cache": 1.5, "filled cache": 0.2}[arm]
        record = {"query": f"{spec} by {key}", "arm": arm, "first_s": seconds}
        return SimpleNamespace(stdout=f"a warning\n{json.dumps(record)}\n")

    monkeypatch.setattr(subprocess, "run", run)
    return made


def test_each_arm_of_each_query_has_its_process(calls: list[tuple[str, ...]]) -> None:
    records = first_queries.measured()
    assert len(records) == len(calls) == len(KEYS) * len(SPECS) * len(ARMS)
    assert len({call[:3] for call in calls}) == len(calls)
    # one cache for the arms of a query, and none of them is left
    caches = [
        {call[3] for call in calls if call[1:3] == query} for query in first_queries.queries()
    ]
    assert all(len(found) == 1 for found in caches)
    assert len(set.union(*caches)) == len(caches)
    assert not any(os.path.exists(path) for path in set.union(*caches))


def test_lines_compare_with_stock(calls: list[tuple[str, ...]]) -> None:
    said = list(first_queries.lines(first_queries.measured()))
    assert len(said) == len(KEYS) * len(SPECS)
    assert said[0] == (
        "first call of one sum by int64: stock 250 ms, empty cache 1500 ms (+1250), "
        "filled cache 200 ms (-50)"
    )
