"""The cost model beside measurements: what each kernel was expected to take, and which is chosen.

``python -m benchmarks.choice RESULT.json ...`` reads what ``benchmarks.kernels``, ``.grid`` and
``.families`` wrote, prints expected and measured milliseconds of every cell, and, where several
kernels were measured, how often the model's choice is the best one or close to it.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.grid import AGGREGATIONS
from dask_gpuagg.cuda import geometry
from dask_gpuagg.cuda.driver import Device
from dask_gpuagg.cuda.fitting import Observation
from dask_gpuagg.cuda.geometry import Decision, Estimate
from dask_gpuagg.cuda.source import KeyPart, Query, State, ValuePart

TYPES = {"v": "f64", "w": "f32", "x": "i64", "y": "i32"}
DEVICES = {
    "NVIDIA H200": Device(0, "NVIDIA H200", "sm_90", 132, 232_448),
}
# Of these the model knows nothing: they cost the same whichever kernel is chosen.
_COMMON = ("make_words", "ranges", "longest", "verify", "index_groups", "count_keys")
MODELLED = ("hgb", "hgb_runs", "pgb", "lphga")


@dataclass(frozen=True)
class Measured:
    """One kernel on one input."""

    decision: Decision
    laps: dict[str, float]
    redone: bool

    @property
    def ms(self) -> float:
        """What the choice decides on: device time without what every kernel needs."""
        return sum(ms for name, ms in self.laps.items() if name not in _COMMON)


@dataclass(frozen=True)
class Case:
    """One input and query, and the kernels that were measured on it."""

    label: str
    query: Query
    rows: int
    device: Device
    kernels: dict[str, Measured]


def cases(path: Path) -> Iterator[Case]:
    """The cells of a result file."""
    report = json.loads(path.read_text())
    device = DEVICES[report["gpu"]]
    for cell in report["cells"]:
        runs = cell.get("kernels") or {cell["kernel"]: cell}
        query = query_of(cell, runs)
        kernels = {}
        for name, run in runs.items():
            made = Measured(
                decision_of(run["decision"], cell), run["kernels_ms"], run.get("restarted", False)
            )
            if name != "auto" and made.decision.kernel in MODELLED:
                kernels[name] = made
        label = " ".join(
            str(cell[k])
            for k in ("keys", "key", "groups", "query", "aggregations", "nulls", "zipf")
            if cell.get(k)
        )
        yield Case(label, query, int(report["rows"]), device, kernels)


def query_of(cell: dict[str, Any], runs: dict[str, Any]) -> Query:
    """The query of a cell, its keys in the form that they were grouped in."""
    masked = bool(cell.get("nulls"))
    number = cell.get("aggregations") or {"sum": 1, "five": 5}[cell["query"]]
    spec = AGGREGATIONS[number]
    inputs = [ValuePart(TYPES[column], masked) for column in spec]
    states: list[State] = []
    for i, names in enumerate(spec.values()):
        ctype = inputs[i].ctype
        count = State("Count", (i,)) if masked else State("Size")
        exact = State("FloatSum" if ctype[0] == "f" else "IntegerSum", (i,))
        made = {
            "sum": [exact, *([count] if masked else [])],
            "count": [count],
            "min": [State("Min", (i,), ctype)],
            "max": [State("Max", (i,), ctype)],
            "mean": [State("FloatSum", (i,)), count],
        }
        states += [state for name in names for state in made[name] if state not in states]
    ran = {name for run in runs.values() for name in run["kernels_ms"]}
    key = cell.get("key", "int64")
    if key.startswith("str"):
        keys = (KeyPart("i32", False, string=True, short="verify" not in ran),)
    else:
        keys = tuple(KeyPart(name.replace("int", "i"), False) for name in key.split("+"))
    unique = tuple(dict.fromkeys(states))
    return Query(keys, False, tuple(inputs), unique, (), ranged="ranges" in ran)


def decision_of(text: str, cell: dict[str, Any]) -> Decision:
    """A decision from its ``repr``, which may be that of an earlier version."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    values: dict[str, Any] = {}
    for keyword in call.keywords:
        assert keyword.arg is not None
        if isinstance(keyword.value, ast.Call):
            told = {k.arg: ast.literal_eval(k.value) for k in keyword.value.keywords}
            known = {f.name for f in fields(Estimate)}
            estimate = Estimate(**{k: v for k, v in told.items() if k in known})
            if "bounds" not in told and cell.get("key", "int64") in ("int64", "int32"):
                if cell.get("keys") != "random":
                    estimate = replace(estimate, bounds=(0, 2 * cell["groups"]))
            values[keyword.arg] = estimate
        else:
            values[keyword.arg] = ast.literal_eval(keyword.value)
    known = {f.name for f in fields(Decision)}
    return Decision(**{k: v for k, v in values.items() if k in known})


def observation(case: Case, measured: Measured) -> Observation:
    """What the model is fitted to."""
    laps: dict[str, float] = {}
    for name, ms in measured.laps.items():
        laps[name.partition("_")[0] if name != "clear_target" else name] = ms
    tile = geometry.tile_of(case.query, case.device, measured.decision)
    return Observation(
        case.query, case.rows, measured.decision, case.device.multiprocessors, tile, laps
    )
