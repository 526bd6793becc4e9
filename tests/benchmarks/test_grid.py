"""The cells of benchmarks/grid.py, and how several processes divide them."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import Any

import pytest

from benchmarks import grid
from benchmarks.grid import Cell, cells


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
