"""The cells of benchmarks/grid.py, and how several processes divide them."""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from benchmarks import grid
from benchmarks.grid import Cell, cells

ROOT = Path(__file__).parents[2]


def test_cells_of_one_input_are_side_by_side() -> None:
    inputs = [each for each, _ in groupby(cells(), lambda cell: cell.input)]
    assert len(inputs) == len(set(inputs))
    assert Cell("int64", 1_000, 20).input == Cell("int64", 1_000, 5).input


def test_parts_compile_every_cell_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skewed keys are drawn evenly too, as when they are measured."""
    ran: list[tuple[str, int, str]] = []

    def arms(frame: Any, aggregations: int) -> dict[str, Any]:
        return {
            name: lambda name=name: ran.append((frame, aggregations, name))
            for name in ("ours", "cudf", "ours frame", "cudf frame")
        }

    monkeypatch.setattr(grid, "prepare_to_fill", lambda: None)
    monkeypatch.setattr(grid, "frame_of", lambda cell, rows: f"{cell.input} {rows}")
    monkeypatch.setattr(grid, "evenly", lambda frame: f"{frame} evenly")
    monkeypatch.setattr(grid, "arms", arms)
    for part in range(3):
        monkeypatch.setattr(sys, "argv", ["grid", "--rows", "1e3", "--fill", f"{part}/3"])
        grid.main()
    assert len(ran) == len(set(ran))
    skewed = sum(cell.zipf > 0 for cell in cells())
    assert len(ran) == 2 * (len(list(cells())) + skewed)
    assert not any(name.startswith("cudf") for _, _, name in ran)


def test_the_table_of_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """DataFrames first, which is what a user gets, columns beside them."""
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    import result_tables

    ms = {"ours": 2.0, "cudf": 8.0, "ours frame": 2.5, "cudf frame": 9.0}
    cell = {
        "key": "int64", "aggregations": 1, "nulls": 0.0, "zipf": 0.0, "made": 1_000,
        "median_ms": ms, "ratio": 4.0, "ratio_frame": 3.6,
    }  # fmt: skip
    cells = [cell, cell | {"aggregations": 5, "ratio": 1.0}, cell | {"nulls": 0.5}]
    made = result_tables.grid(json.dumps({"cells": cells})).splitlines()
    assert made[0].startswith("| key | groups | 1 aggregation as DataFrames, ms, cuDF / ours |")
    assert "| int64 | 1,000 | 2.50, 3.6 | 2.00, 4.0 | 2.50, 3.6 | 2.00, 1.0 |" in made
    assert "| int64, 50% nulls | 1,000 | 2.50, 3.6 | 2.00, 4.0 |  |  |" in made
    assert made[-1] == (
        "Geometric mean of all 3 ratios: as DataFrames 3.6, the least 3.60; "
        "as columns 2.5, the least 1.00."
    )
    # results of before
    for each in cells:
        del each["ratio_frame"]
    made = result_tables.grid(json.dumps({"cells": cells})).splitlines()
    assert "| int64 | 1,000 | 2.00, 4.0 | 2.00, 1.0 |" in made
