"""The parts of ``benchmarks.first_files`` that need no GPU: processes, caches and lines."""

from __future__ import annotations

import json
import os
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import first_files
from benchmarks.first_files import ASKED, CACHE
from benchmarks.first_queries import ARMS


def test_each_arm_of_each_query_has_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, ...]] = []

    def run(command: list[str], env: dict[str, str], **_: Any) -> SimpleNamespace:
        arm, name, folder = command[-3:]
        assert command[1:3] == ["-m", "benchmarks.first_files"]
        assert env["CUDA_CACHE_DISABLE"] == "1"
        assert os.path.isdir(folder)
        assert os.listdir(env[CACHE]) == (["entry"] if arm == "filled cache" else [])
        if arm == "empty cache":
            open(os.path.join(env[CACHE], "entry"), "w").close()
        made.append((arm, name, folder, env[CACHE]))
        return SimpleNamespace(stdout=f"a warning\n{json.dumps({'query': name, 'arm': arm})}\n")

    monkeypatch.setattr(subprocess, "run", run)
    records = list(first_files.measured())
    assert [call[:2] for call in made] == [(arm, name) for name in ASKED for arm in ARMS]
    assert [(record["arm"], record["query"]) for record in records] == [c[:2] for c in made]
    # the files are those of all queries, a cache that of one
    assert len({call[2] for call in made}) == 1
    assert len({call[3] for call in made}) == len(ASKED)
    assert not any(os.path.exists(path) for call in made for path in call[2:])


def test_a_line_has_planning_apart() -> None:
    record = {"query": "a sum", "arm": "stock", "planning_s": 2.5, "first_s": 0.4}
    said = first_files.line({**record, "second_s": 0.3, "warm_s": 0.25})
    assert said == (
        "a sum, from files, stock: planned in 2500 ms, first call 400 ms, second 300 ms, "
        "warm 250 ms"
    )
