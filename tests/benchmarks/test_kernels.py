"""The program for kernels on a GPU, without one: its cells, its rows, and what it writes."""

import json
import sys
from dataclasses import replace
from itertools import groupby
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks import kernel_inputs
from benchmarks.kernels import PARTS, SPECS
from tests.running import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "nvidia-h200"
# How many there are of earlier results.
NUMBERS = {"kernels": 30, "grid": 119, "tables": 196, "small": 6, "families": 50, "gathered": 44}
CELLS = {name: list(part.cells()) for name, part in PARTS.items()}


@pytest.fixture
def host_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy in the place of CuPy and pandas in that of cuDF."""
    cudf = ModuleType("cudf")
    cudf.Series, cudf.DataFrame = pd.Series, pd.DataFrame  # type: ignore[attr-defined]
    cudf.Decimal128Dtype = lambda *digits: "object"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setitem(sys.modules, "cudf", cudf)


def small(keys: Any) -> Any:
    """The same kind of keys, of so few groups that they are drawn at once."""
    numbers = [min(a, 100) if isinstance(a, int) and a > 100 else a for a in keys.args]
    return type(keys)(keys.func, *numbers)


@pytest.mark.parametrize("part", PARTS)
def test_cells_are_those_of_the_committed_results(part: str) -> None:
    """Each has a name of its own, labels name the same fields, and every earlier one is there."""
    cells = CELLS[part]
    assert len({cell.name for cell in cells}) == len(cells) == NUMBERS[part]
    assert {cell.query for cell in cells} <= SPECS.keys()
    inputs = [shared for shared, _ in groupby(cells, lambda cell: cell.input)]
    assert len(inputs) == len(set(inputs)), "cells of one input are side by side"
    earlier = json.loads((RESULTS / f"{part}.json").read_text())["cells"]
    labels = list(cells[0].labels)
    assert set(labels) <= set(earlier[0])
    values = {tuple(cell.labels[label] for label in labels) for cell in cells}
    assert {tuple(cell[label] for label in labels) for cell in earlier} <= values


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.usefixtures("host_arrays")
def test_rows_of_every_input_are_drawn(part: str) -> None:
    for drawn, of_input in groupby(CELLS[part], lambda cell: cell.input):
        cells = list(of_input)
        few = replace(drawn, keys=small(drawn.keys), rows=None)
        frame = few.draw(500)
        assert len(frame) == 500
        assert kernel_inputs.key_labels(frame)[0] == "k0"
        for cell in cells:
            assert SPECS[cell.query].keys() <= set(frame.columns)


@pytest.mark.usefixtures("host_arrays")
def test_skew_nulls_and_even_keys() -> None:
    cells = {cell.name: cell for cell in CELLS["grid"]}
    skewed = cells["grid/int64/16777216/5/0.0/1.5"].input.draw(10_000)
    assert skewed["k0"].value_counts().max() > 2_000
    even = kernel_inputs.evenly(skewed)
    assert set(even["k0"]) <= set(skewed["k0"])
    assert even["k0"].value_counts().max() < 100
    pd.testing.assert_series_equal(even["v"], skewed["v"])
    nulls = cells["grid/int64/1000/5/0.5/0.0"].input.draw(10_000)
    assert nulls[["v", "w", "x", "y"]].isna().mean().between(0.45, 0.55).all()
    three = cells["grid/int32+int32+int32/1000/1/0.0/0.0"].input.draw(20_000)
    assert len(three[["k0", "k1", "k2"]].drop_duplicates()) == 1_000
