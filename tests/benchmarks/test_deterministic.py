"""What benchmarks/deterministic.py keeps, and the table that is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("gpu", [False, True])
def test_the_table_has_the_results_that_there_are(
    gpu: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    import result_tables

    cells = [{"groups": g, "ratio": ratio} for g, ratio in ((10, 1.5), (10, 1.62), (4_000, 2.0))]
    made = {"rows": 10**7, "machine": {"usable_cores": 2}, "cells": cells}
    (tmp_path / "deterministic.json").write_text(json.dumps(made))
    if gpu:
        made |= {"gpu": "NVIDIA H200", "rows": 10**9, "cells": cells[:1]}
        (tmp_path / "nvidia-h200").mkdir()
        (tmp_path / "nvidia-h200" / "deterministic.json").write_text(json.dumps(made))
    lines = result_tables.exact_sums(tmp_path).splitlines()
    of_gpu = [" NVIDIA H200, 1,000,000,000 rows |", " 1.5 |", "  |"] if gpu else ["", "", ""]
    assert lines[0] == "| groups | 2 cores, 10,000,000 rows |" + of_gpu[0]
    assert lines[2:] == [
        "| 10 | 1.5 to 1.6 |" + of_gpu[1],
        "| 4,000 | 2.0 |" + of_gpu[2],
    ]
