"""The program for kernels on a GPU, without one: its cells, its rows, and what it writes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from benchmarks import kernel_inputs, kernels
from benchmarks.kernels import PARTS, SPECS
from dask_gpuagg.cuda.choice.decision import Lphga
from tests.running import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "nvidia-h200"
CELLS = {name: list(part.cells()) for name, part in PARTS.items()}
# How many there are of earlier results.
NUMBERS = {"kernels": 30, "grid": 119, "tables": 152, "families": 50, "gathered": 44}


@pytest.fixture
def host_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy in the place of CuPy and pandas in that of cuDF."""
    cudf = ModuleType("cudf")
    cudf.Series, cudf.DataFrame = pd.Series, pd.DataFrame  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", np)
    monkeypatch.setitem(sys.modules, "cudf", cudf)


def small(keys: Any) -> Any:
    """The same kind of keys, of so few groups that they are drawn at once."""
    numbers = [min(a, 100) if isinstance(a, int) and a > 100 else a for a in keys.args]
    return type(keys)(keys.func, *numbers)


@pytest.mark.parametrize("part", PARTS)
def test_cells_have_names_of_their_own_and_known_queries(part: str) -> None:
    names = Counter(cell.name for cell in CELLS[part])
    assert len(names) == len(CELLS[part]) == NUMBERS[part]
    queries = {cell.query for cell in CELLS[part]}
    known = {"gathered": set(kernels.VALUE_SETS)}
    assert queries <= known.get(part, set(SPECS))


@pytest.mark.parametrize("part", PARTS)
def test_cells_of_one_input_are_side_by_side(part: str) -> None:
    inputs = [each for each, _ in groupby(CELLS[part], lambda cell: cell.input)]
    assert len(inputs) == len(set(inputs))


@pytest.mark.parametrize("part", PARTS)
def test_cells_are_those_of_the_committed_results(part: str) -> None:
    """Labels name the same fields, and every earlier cell is still there."""
    earlier = json.loads((RESULTS / f"{part}.json").read_text())["cells"]
    labels = list(CELLS[part][0].labels)
    assert set(labels) <= set(earlier[0])
    values = {tuple(cell.labels[label] for label in labels) for cell in CELLS[part]}
    assert {tuple(cell[label] for label in labels) for cell in earlier} <= values


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.usefixtures("host_arrays")
def test_rows_of_every_input_are_drawn(part: str) -> None:
    for cell, _ in groupby(CELLS[part], lambda cell: cell.input):
        keys, *others = cell.make.args
        frame = kernel_inputs.frame_of(small(keys), *others, 500)
        assert len(frame) == 500
        assert kernel_inputs.key_labels(frame)[0] == "k0"
        needed = {"families": "vw", "kernels": "vw", "gathered": "", "sorted": "vi"}
        assert set(needed.get(part, "vwx")) <= set(frame.columns)


@pytest.mark.usefixtures("host_arrays")
def test_skew_nulls_and_even_keys() -> None:
    cells = {cell.name: cell for cell in CELLS["grid"]}
    skewed = cells["grid/int64/16777216/5/0.0/1.5"].input.make(10_000)
    assert skewed["k0"].value_counts().max() > 2_000
    even = kernel_inputs.evenly(skewed)
    assert set(even["k0"]) <= set(skewed["k0"])
    assert even["k0"].value_counts().max() < 100
    pd.testing.assert_series_equal(even["v"], skewed["v"])
    nulls = cells["grid/int64/1000/5/0.5/0.0"].input.make(10_000)
    assert nulls[["v", "w", "x", "y"]].isna().mean().between(0.45, 0.55).all()
    three = cells["grid/int32+int32+int32/1000/1/0.0/0.0"].input.make(20_000)
    assert len(three[["k0", "k1", "k2"]].drop_duplicates()) == 1_000


def test_summary_tells_unseen_members_apart() -> None:
    cells = [
        {"family": "a", "query": "sum", "tuned": True, "ratio": 8.0},
        {"family": "a", "query": "sum", "tuned": False, "ratio": 2.0},
        {"family": "b", "query": "sum", "tuned": False, "ratio": 4.5},
    ]
    made = kernels.summary(cells)
    assert made["unseen"] == {"geometric_mean": pytest.approx(3.0), "least": 2.0}
    assert made["all"]["least"] == 2.0
    assert made["families"]["a: sum"] == {"geometric_mean": pytest.approx(4.0), "least": 2.0}


class Frame(str):
    """The name of rows that nobody draws."""

    def groupby(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(agg=lambda spec: [1, 2, 3])


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Arms, rows and queries that ran: their names, instead of what they compute."""
    calls: list[tuple[str, str, str]] = []
    decision = Lphga(why="simulated", estimate=None, global_slots=8)
    passed = SimpleNamespace(decision=decision, groups=3, spilled=0, restarted=False, seconds=1e-3)

    def both_arms(frame: Any, cell: Any) -> dict[str, Any]:
        def call(name: str) -> Any:
            calls.append((name, str(frame), cell.query))
            return [], [], passed

        names = ("ours", "cudf", "ours frame", "cudf frame")
        return {name: lambda stopwatch=None, name=name: call(name) for name in names}

    def frame_of(keys: Any, values: Any, nulls: float, values_first: bool, rows: int) -> Frame:
        return Frame(f"{keys.args} {list(values)} {nulls} {rows}")

    def timed(calls: Any, repeats: int) -> Any:
        for call in calls.values():
            call()
        return {name: [i + 1.0 for i in range(repeats)] for name in calls}

    monkeypatch.setattr(dask_gpuagg, "last_runs", lambda: [passed])
    monkeypatch.setattr(kernel_inputs, "frame_of", frame_of)
    head = {"commit": "abc", "kernels": ""}
    column = SimpleNamespace(device_buffer_size=lambda: 8)
    for name, stand_in in {
        "both_arms": both_arms,
        "engine_arm": lambda *_, **__: lambda: [1, 2, 3],
        "column": lambda *_: column,
        "key_labels": lambda frame: ["k0"],
        "evenly": lambda frame: Frame(f"{frame} evenly"),
        "prepare": lambda: None,
        "prepare_to_fill": lambda: None,
        "timed": timed,
        "device_time": lambda call, repeats: {"lphga": 0.5},
        "peak_bytes": lambda call: 1 << 20,
        "report_head": lambda at: head,
    }.items():
        monkeypatch.setattr(kernels, name, stand_in)
    monkeypatch.setitem(PARTS, "grid", replace(PARTS["grid"], arms=both_arms))
    return calls


@pytest.mark.parametrize("part", ["kernels", "grid", "tables"])
def test_a_file_has_what_earlier_ones_have(
    part: str, ran: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No field that a table of the documentation reads has gone."""
    given = ["--parts", part, "--rows", "1e3", "--repeats", "3", "--out", str(tmp_path)]
    assert kernels.main(given) == 0
    made = json.loads((tmp_path / f"{part}.json").read_text())
    earlier = json.loads((RESULTS / f"{part}.json").read_text())
    assert len(made["cells"]) == NUMBERS[part] == len(capsys.readouterr().out.splitlines())
    assert made["rows"] == 1_000
    fields = {name for cell in earlier["cells"] for name in cell}
    assert fields <= {name for cell in made["cells"] for name in cell}
    summaries = {"geometric_mean", "geometric_mean_frame", "summary"}
    assert summaries & earlier.keys() == summaries & made.keys()
    for cell in made["cells"]:
        ratios = [value for name, value in cell.items() if name.startswith("ratio")]
        assert ratios
        assert set(ratios) == {1.0}
    if part in ("kernels", "tables"):
        names = earlier["cells"][0]["median_ms"]
        assert list(made["cells"][0]["median_ms"]) == list(names)
