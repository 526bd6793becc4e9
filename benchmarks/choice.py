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
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.grid import AGGREGATIONS
from dask_gpuagg.cuda import geometry
from dask_gpuagg.cuda.calibrate import plain
from dask_gpuagg.cuda.cardinality import Estimate
from dask_gpuagg.cuda.compiler import sources_hash
from dask_gpuagg.cuda.costs import shipped
from dask_gpuagg.cuda.driver import Device
from dask_gpuagg.cuda.fitting import Observation, fit
from dask_gpuagg.cuda.geometry import Decision
from dask_gpuagg.cuda.model import Costs
from dask_gpuagg.cuda.source import KeyPart, Query, State, ValuePart

TYPES = {"v": "f64", "w": "f32", "x": "i64", "y": "i32"}
DEVICES = {
    "NVIDIA H200": Device(0, "NVIDIA H200", "sm_90", 132, 232_448),
}
# Of these the model knows nothing: they cost the same whichever kernel is chosen.
_COMMON = ("make_words", "ranges", "longest", "verify", "index_groups", "count_keys")
MODELLED = ("hgb", "hgb_runs", "pgb", "lphga", "sp_ega")


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
    made: int | None = None

    @property
    def misjudged(self) -> bool:
        """Whether the estimate was so wrong that no model of it can be right."""
        estimates = [made.decision.estimate for made in self.kernels.values()]
        told = [estimate.groups for estimate in estimates if estimate is not None]
        return self.made is not None and any(not 0.5 <= n / self.made <= 2 for n in told)


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
            if name != "auto" and made.decision.kernel in MODELLED and holds(made.decision):
                kernels[name] = made
        label = " ".join(
            str(cell[k])
            for k in ("keys", "key", "groups", "query", "aggregations", "nulls", "zipf")
            if cell.get(k)
        )
        yield Case(
            label, query, int(cell.get("rows", report["rows"])), device, kernels, cell.get("made")
        )


def holds(decision: Decision) -> bool:
    """Whether tables in shared memory are as large as the sample asks for, or not the question."""
    if decision.kernel != "hgb" or decision.estimate is None:
        return True
    return decision.estimate.groups <= decision.slices * decision.shared_slots


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
            dense = cell.get("key", "int64") in ("int64", "int32") and cell.get("keys") != "random"
            if dense and "bounds" not in told:
                estimate = replace(estimate, bounds=(0, 2 * cell["groups"]))
            values[keyword.arg] = estimate
        else:
            values[keyword.arg] = ast.literal_eval(keyword.value)
    known = {f.name for f in fields(Decision)}
    return Decision(**{k: v for k, v in values.items() if k in known})


def observation(case: Case, measured: Measured) -> Observation:
    """What the model is fitted to."""
    laps = {plain(name): ms for name, ms in measured.laps.items()}
    tile = geometry.tile_of(case.query, case.device, measured.decision)
    return Observation(
        case.query, case.rows, measured.decision, case.device.multiprocessors, tile, laps
    )


def judged(case: Case, costs: Costs) -> tuple[str, float]:
    """The kernel that the model chooses of those measured, and its time over the best one's."""
    expected = {name: expected_ms(case, made, costs) for name, made in case.kernels.items()}
    estimate = next(iter(case.kernels.values())).decision.estimate
    chosen = geometry.decide(case.query, case.rows, estimate, case.device, costs=costs).kernel
    if chosen not in case.kernels:
        chosen = min(expected, key=expected.__getitem__)
    return chosen, case.kernels[chosen].ms / min(made.ms for made in case.kernels.values())


def expected_ms(case: Case, measured: Measured, costs: Costs) -> float:
    """What the model gives a measured kernel."""
    return geometry.expected_ms(case.query, case.rows, case.device, costs, measured.decision)


def fitted(found: list[Case], start: Costs) -> Costs:
    """Constants from all kernels that the model can explain: without skew, restarts and runs."""
    return fit(
        [
            observation(case, made)
            for case in found
            for made in case.kernels.values()
            if not made.redone
            and made.decision.kernel != "hgb_runs"
            and made.decision.estimate is not None
            and not made.decision.estimate.uneven
        ],
        start,
    )


def table(found: list[Case], costs: Costs) -> str:
    """Expected and measured milliseconds of every kernel, as Markdown; the chosen one is bold."""
    lines = [
        "| keys, groups, aggregations | kernel | expected | measured |",
        "| --- | --- | --- | --- |",
    ]
    for case in found:
        chosen, _ = judged(case, costs)
        for name, made in sorted(case.kernels.items(), key=lambda told: told[1].ms):
            shown = f"**{name}**" if name == chosen else name
            expected = expected_ms(case, made, costs)
            lines.append(f"| {case.label} | {shown} | {expected:.2f} | {made.ms:.2f} |")
    return "\n".join(lines)


def side_by_side(found: list[Case], costs: Costs) -> str:
    """A line for each cell that several kernels were measured on, as Markdown, for the docs."""
    names = ("hgb", "pgb", "sp_ega", "lphga")
    lines = [f"| keys, groups, aggregations | {' | '.join(names)} |", "|" + " --- |" * 5]
    for case in found:
        if len(case.kernels) < 2 or case.misjudged:
            continue
        chosen, cells = judged(case, costs)[0], []
        for name in names:
            made = case.kernels.get(name)
            cell = "" if made is None else f"{expected_ms(case, made, costs):.3g}, {made.ms:.3g}"
            cells.append(f"**{cell}**" if name == chosen else cell)
        lines.append(f"| {case.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def kept(path: Path) -> Iterator[dict[str, Any]]:
    """The cells of a result file, with what is read here and no more."""
    report = json.loads(path.read_text())
    labels = ("keys", "key", "groups", "query", "aggregations", "nulls", "zipf", "made")
    for cell in report["cells"]:
        runs = cell.get("kernels") or {cell["kernel"]: cell}
        kernels = {}
        for name, run in runs.items():
            decision = decision_of(run["decision"], cell)
            if decision.estimate is not None and not decision.estimate.uneven:
                decision = replace(decision, estimate=replace(decision.estimate, hot=()))
            if name != "auto":
                laps = {lap: round(ms, 3) for lap, ms in run["kernels_ms"].items()}
                kernels[name] = {
                    "decision": repr(decision),
                    "kernels_ms": laps,
                    "restarted": run.get("restarted", False),
                }
        yield {k: cell[k] for k in labels if k in cell} | {
            "rows": report["rows"],
            "kernels": kernels,
        }


def main() -> None:
    """Print the table and how often the choice is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--fit", action="store_true", help="fit the constants to these results")
    parser.add_argument("--keep", type=Path, help="write what is read here, short, to this file")
    args = parser.parse_args()
    if args.keep:
        head = json.loads(args.results[0].read_text())
        cells = [cell for path in args.results for cell in kept(path)]
        made = json.dumps({name: head[name] for name in ("gpu", "kernels", "rows")})
        lines = ",\n".join(json.dumps(cell) for cell in cells)
        args.keep.write_text(f'{made[:-1]}, "cells": [\n{lines}\n]}}\n')
    read = [(path, list(cases(path))) for path in args.results]
    found = [case for _, of in read for case in of if case.kernels]
    costs = shipped(found[0].device).costs
    if args.fit:
        costs = fitted(found, costs)
        print(costs)
    print(table(found, costs))
    errors = [
        expected_ms(case, made, costs) / made.ms
        for case in found
        if not case.misjudged
        for made in case.kernels.values()
    ]
    within = statistics.mean(1 / 1.2 <= error <= 1.2 for error in errors)
    print(f"expected within 20 % of measured: {within:.0%} of {len(errors)} kernels")
    several = [case for case in found if len(case.kernels) > 1]
    judgeable = [case for case in several if not case.misjudged]
    if judgeable:
        ratios = [judged(case, costs)[1] for case in judgeable]
        near = statistics.mean(ratio <= 1.1 for ratio in ratios)
        print(f"chosen within 10 % of the best: {near:.0%} of {len(ratios)} cells")
        print(f"at worst {max(ratios):.2f} times the best")
    if len(several) > len(judgeable):
        print(f"{len(several) - len(judgeable)} cells left out: the sample misjudged their groups")
    for path, _ in read:
        if json.loads(path.read_text())["kernels"] != sources_hash():
            print(f"{path}: measured with other kernels than these")


if __name__ == "__main__":
    main()
