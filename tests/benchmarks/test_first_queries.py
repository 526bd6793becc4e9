"""The parts of ``benchmarks.first_queries`` that need no GPU: processes, caches and lines."""

from __future__ import annotations

import json
import os
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import first_queries
from benchmarks.first_queries import ARMS, KEYS


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
    records = list(first_queries.measured())
    assert len(records) == len(calls) == len(list(first_queries.queries())) * len(ARMS)
    assert {key for key, _ in first_queries.queries()} == set(KEYS)
    assert len({call[:3] for call in calls}) == len(calls)
    # one cache for the arms of a query, and none of them is left
    caches = [
        {call[3] for call in calls if call[1:3] == query} for query in first_queries.queries()
    ]
    assert all(len(found) == 1 for found in caches)
    assert len(set.union(*caches)) == len(caches)
    assert not any(os.path.exists(path) for path in set.union(*caches))


@pytest.mark.parametrize(
    ("kernels", "said"), [(["libcudf", "libcudf"], ", by libcudf"), (["direct", "lphga"], "")]
)
def test_a_line_names_what_served(kernels: list[str], said: str) -> None:
    record = {
        "query": "five by 1,000 int64",
        "arm": "empty cache",
        "first_s": 0.25,
        "second_s": 0.05,
        "warm_s": 0.0041,
        "kernels": kernels,
    }
    assert first_queries.line(record) == (
        f"five by 1,000 int64, empty cache: first call 250 ms{said}, second 50 ms, "
        "in a warm process 4.1 ms"
    )
