"""The decision judged by measurements: how often the kernel that it chooses is the best one.

``python -m benchmarks.choice`` reads what ``benchmarks.families`` wrote, all kernels forced on the
same inputs, and prints expected and measured milliseconds of every cell, how often the choice is
within 10 % of the best kernel, and how far from it it is at worst. The exit status is 1 where that
is true of fewer than 90 % of the cells, or the choice takes more than 1.5 times the best.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.families import as_grouped, holds
from dask_gpuagg.cuda.choice import choose, partitions
from dask_gpuagg.cuda.choice.cost_model import Observation, fit, plain
from dask_gpuagg.cuda.choice.costs import Costs, shipped
from dask_gpuagg.cuda.choice.decision import RECORDS, Decision, Direct
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelOutput, KernelState, KeyPart, ValuePart
from dask_gpuagg.cuda.runtime.compiler import sources_hash
from dask_gpuagg.cuda.runtime.driver import Device

RESULT = Path(__file__).parent / "results/nvidia-h200/families.json"
# Of these the model knows nothing: they cost the same whichever kernel is chosen.
_COMMON = (
    *("make_words", "ranges", "longest", "verify", "index_groups", "count_keys"),
    *("bytes", "make_codes", "measure_texts", "scan_texts", "write_texts", "write_integers"),
)
# Wanted: within NEAR times the best kernel in SHARE of the cells, within WORST in all of them.
NEAR, SHARE, WORST = 1.1, 0.9, 1.5
# Times the best kernel's time, within which others contend with it.
CONTENDING = 3.0


@dataclass(frozen=True)
class Measured:
    """One kernel on one input."""

    decision: Decision
    kernel_ms: dict[str, float]
    redone: bool

    @property
    def ms(self) -> float:
        """What the choice decides on: device time without what every kernel needs."""
        return sum(ms for name, ms in self.kernel_ms.items() if name not in _COMMON)

    @property
    def modelled(self) -> bool:
        """Whether the model describes what ran."""
        return self.decision.kernel != "sgb" and holds(self.decision)


@dataclass(frozen=True)
class Case:
    """One input and query, and the kernels that were measured on it, by the names they have."""

    label: str
    query: Query
    rows: int
    device: Device
    kernels: dict[str, Measured]
    made: int

    @property
    def misjudged(self) -> bool:
        """Whether the estimate was so wrong that no model of it can be right."""
        estimates = [made.decision.estimate for made in self.kernels.values()]
        groups = [estimate.groups for estimate in estimates if estimate is not None]
        return any(not 0.5 <= n / self.made <= 2 for n in groups)

    @property
    def contenders(self) -> dict[str, Measured]:
        """Kernels with a model that took at most three times the least time.

        The others cannot win: few groups in partitions, say, whose contention the model leaves
        out.
        """
        least = min(made.ms for made in self.kernels.values())
        made = self.kernels.items()
        return {name: m for name, m in made if m.modelled and m.ms <= CONTENDING * least}


@dataclass(frozen=True)
class Verdict:
    """How good the choices are: of how many cells, which share near the best, how far at worst."""

    cells: int
    near: float
    worst: float

    @property
    def good(self) -> bool:
        """Whether they are as good as they are to be."""
        return self.near >= SHARE and self.worst <= WORST

    def __str__(self) -> str:
        """One line."""
        share = f"{self.near:.0%} of {self.cells} cells"
        return f"chosen within 10 % of the best kernel: {share}; at worst {self.worst:.2f} times it"


def cases(path: Path) -> list[Case]:
    """The cells of a result file."""
    report = json.loads(path.read_text())
    device = Device(**report["device"])
    found = []
    for cell in report["cells"]:
        kernels = {}
        for name, run in cell["kernels"].items():
            if name != "auto":
                decision = decision_of(run["decision"])
                kernels[decision.kernel] = Measured(decision, run["kernels_ms"], run["restarted"])
        label = f"{cell['keys']} {cell['groups']:,} {cell['aggregations']}"
        label += f" zipf {cell['zipf']}" if cell["zipf"] else ""
        launched = {name for run in cell["kernels"].values() for name in run["kernels_ms"]}
        query = as_grouped(query_of(cell["query"]), launched)
        found.append(Case(label, query, report["rows"], device, kernels, cell["made"]))
    return found


def query_of(saved: dict[str, Any]) -> Query:
    """A query from its fields, which may be those of an earlier version."""
    made = saved | {
        "keys": tuple(KeyPart(*(key[name] for name in KeyPart._fields)) for key in saved["keys"]),
        "inputs": tuple(ValuePart(**value) for value in saved["inputs"]),
        "states": tuple(KernelState(**s | {"inputs": tuple(s["inputs"])}) for s in saved["states"]),
        "outputs": tuple(KernelOutput(**output) for output in saved["outputs"]),
    }
    return Query(**made)


def decision_of(saved: dict[str, Any]) -> Decision:
    """A decision from its fields, which may be those of an earlier version."""
    record = RECORDS[saved["kernel"]]
    made = known_fields(record, saved)
    if record is Direct:
        # results of earlier versions have the slots of both tables instead
        made.setdefault("keys", saved.get("global_slots", 0) >> saved["shift"])
        made.setdefault("in_shared", bool(saved.get("shared_slots")))
    if saved["estimate"] is not None:
        estimate = known_fields(KeySummary, saved["estimate"])
        # results of earlier versions have it by this name
        estimate.setdefault("skewed", saved["estimate"].get("uneven", False))
        estimate["bounds"] = tuple(estimate["bounds"])
        made["estimate"] = KeySummary(**estimate)
    return record(**made)


def known_fields(of: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """Those that a dataclass has."""
    names = {field.name for field in fields(of)}
    return {name: value for name, value in saved.items() if name in names}


def observation(case: Case, measured: Measured) -> Observation:
    """What the model is fitted to."""
    kernel_ms = {plain(name): ms for name, ms in measured.kernel_ms.items()}
    tile = partitions.tile_of(case.query, case.device, measured.decision)
    return Observation(
        case.query, case.rows, measured.decision, case.device.multiprocessors, tile, kernel_ms
    )


def expected_ms(case: Case, measured: Measured, costs: Costs) -> float:
    """What the model gives a measured kernel."""
    return choose.expected_ms(case.query, case.rows, case.device, costs, measured.decision)


def chosen(case: Case, costs: Costs) -> str:
    """The kernel that the decision chooses with these constants."""
    # the estimate of auto: it alone counts the keys where the sample misleads
    estimates = [made.decision.estimate for made in case.kernels.values()]
    known = [estimate for estimate in estimates if estimate is not None]
    estimate = max(known, key=lambda estimate: estimate.groups, default=None)
    name = choose.decide(case.query, case.rows, estimate, case.device, costs=costs).kernel
    if name in case.kernels:
        return name
    modelled = {n: expected_ms(case, m, costs) for n, m in case.kernels.items() if m.modelled}
    return min(modelled, key=modelled.__getitem__)


def judged(case: Case, costs: Costs) -> tuple[str, float]:
    """The kernel that the decision chooses, and its time over that of the best one."""
    name = chosen(case, costs)
    return name, case.kernels[name].ms / min(made.ms for made in case.kernels.values())


def verdict(found: Sequence[Case], costs: Costs) -> Verdict:
    """All cells whose groups the sample did not misjudge."""
    ratios = [judged(case, costs)[1] for case in found if not case.misjudged]
    return Verdict(len(ratios), statistics.mean(r <= NEAR for r in ratios), max(ratios))


def fitted(found: Sequence[Case], start: Costs) -> Costs:
    """Constants from all kernels that the model can explain: without skew, restarts and runs."""
    return fit(
        [
            observation(case, made)
            for case in found
            for made in case.contenders.values()
            if not made.redone
            and made.decision.kernel != "hgb_runs"
            and made.decision.estimate is not None
            and not made.decision.estimate.skewed
        ],
        start,
    )


def side_by_side(found: Sequence[Case], costs: Costs) -> str:
    """Expected and measured milliseconds as Markdown, a line for each cell, the choice in bold."""
    names = [n for n in choose.KERNELS if any(n in case.kernels for case in found)]
    lines = [f"| keys, groups, aggregations | {' | '.join(names)} |"]
    lines.append("|" + " --- |" * (1 + len(names)))
    for case in found:
        if case.misjudged:
            continue
        best, shown = chosen(case, costs), []
        for name in names:
            made = case.kernels.get(name)
            text = "" if made is None else f"{made.ms:.3g}"
            if made is not None and made.modelled:
                text = f"{expected_ms(case, made, costs):.3g}, {text}"
            shown.append(f"**{text}**" if name == best else text)
        lines.append(f"| {case.label} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> int:
    """Print the table and how often the choice is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, nargs="?", default=RESULT)
    parser.add_argument("--fit", action="store_true", help="fit the constants to the result")
    args = parser.parse_args()
    found = cases(args.result)
    costs = shipped(found[0].device).costs
    if args.fit:
        costs = fitted(found, costs)
        print(costs)
    print(side_by_side(found, costs))
    errors = [
        expected_ms(case, made, costs) / made.ms
        for case in found
        if not case.misjudged
        for made in case.contenders.values()
    ]
    within = statistics.mean(1 / 1.2 <= error <= 1.2 for error in errors)
    print(f"expected within 20 % of measured: {within:.0%} of {len(errors)} kernels that contend")
    judgement = verdict(found, costs)
    print(judgement)
    if judgement.cells < len(found):
        left = len(found) - judgement.cells
        print(f"{left} cells left out: the sample misjudged their groups")
    if json.loads(args.result.read_text())["kernels"] != sources_hash():
        print(f"{args.result}: measured with other kernels than these")
    return 0 if judgement.good else 1


if __name__ == "__main__":
    sys.exit(main())
