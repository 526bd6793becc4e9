"""The choice of kernel judged by measurements: how often the chosen kernel is the best one.

``python -m benchmarks.kernels --judge`` reads a results file of the part ``families``, all kernels
forced on the same inputs, and prints expected and measured milliseconds of every cell, how often
the choice is within 10 % of the best kernel, and how far from it it is at worst. The exit status is
1 where that is true of fewer than 90 % of the cells, or the choice takes more than 1.5 times the
best.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from dask_gpuagg.cuda.choice import choose
from dask_gpuagg.cuda.choice import decision as records
from dask_gpuagg.cuda.choice.costs import Costs, known, shipped
from dask_gpuagg.cuda.choice.decision import Decision, Hgb
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.query.forms import CODED, FORMS
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelOutput, KernelState, KeyPart, ValuePart
from dask_gpuagg.cuda.runtime.compiler import sources_hash
from dask_gpuagg.cuda.runtime.driver import Device

RESULT = Path(__file__).parent / "results/nvidia-h200/families.json"
# Of these the model knows nothing: they cost the same whichever kernel is chosen.
_COMMON = (
    *("make_words", "ranges", "longest", "count_keys"),
    *("bytes", "make_codes", "measure_texts", "scan_texts", "write_texts", "write_integers"),
)
_CLASSES: tuple[Any, ...] = (
    *(records.Lphga, records.SpEga, records.Sgb, records.Hgb),
    *(records.Direct, records.Pgb, records.PgbUr, records.PgbFold),
)
_RECORDS: dict[str, type[Decision]] = {"hgb_runs": Hgb} | {r.kernel: r for r in _CLASSES}
# Wanted: within NEAR times the best kernel in SHARE of the cells, within WORST in all of them.
NEAR, SHARE, WORST = 1.1, 0.9, 1.5
# Times the best kernel's time, within which others contend with it.
CONTENDING = 3.0


def expected(query: Query, rows: int, device: Device, decision: Decision) -> float | None:
    """Milliseconds that the model gives a decision; None for those that it does not describe."""
    if not is_modelled(decision):
        return None
    return choose.expected_ms(query, rows, device, known(device).costs, decision)


def is_modelled(decision: Decision) -> bool:
    """Whether the model describes a kernel: not runs, nor tables too small for their groups."""
    if isinstance(decision, Hgb) and decision.estimate is not None:
        return decision.estimate.groups <= decision.shared_slots
    return decision.kernel != "sgb"


def as_grouped(query: Query, laps: Collection[str]) -> Query:
    """The query with its keys in the form that they were grouped in."""
    return replace(query, chosen=CODED) if "make_codes" in laps else query


def query_fields(query: Query) -> dict[str, Any]:
    """A query's fields, and those of its parts, by name."""
    parts = ("keys", "inputs", "states", "outputs")
    of_parts = {p: [part._asdict() for part in getattr(query, p)] for p in parts}
    return asdict(query) | of_parts | {"chosen": query.chosen and query.chosen.name}


@dataclass(frozen=True)
class Measured:
    """One kernel on one input."""

    decision: Decision
    kernel_ms: dict[str, float]

    @property
    def ms(self) -> float:
        """Device time without the steps that every kernel needs: the choice decides on it."""
        return sum(ms for name, ms in self.kernel_ms.items() if name not in _COMMON)


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
    def estimates(self) -> list[KeySummary]:
        """Estimates of the groups that the kernels were chosen with."""
        found = [measured.decision.estimate for measured in self.kernels.values()]
        return [estimate for estimate in found if estimate is not None]

    @property
    def misjudged(self) -> bool:
        """Whether the estimate was so wrong that no model of it can be right."""
        return any(not 0.5 <= estimate.groups / self.made <= 2 for estimate in self.estimates)

    @property
    def contenders(self) -> dict[str, Measured]:
        """Kernels with a model that took at most three times the least time: no other can win."""
        least = min(measured.ms for measured in self.kernels.values())
        near = {n: m for n, m in self.kernels.items() if m.ms <= CONTENDING * least}
        return {n: m for n, m in near.items() if is_modelled(m.decision)}


@dataclass(frozen=True)
class Verdict:
    """How good the choices are: of how many cells, which share near the best, how far at worst."""

    cells: int
    near: float
    worst: float

    @property
    def good(self) -> bool:
        """Whether they are good enough."""
        return self.near >= SHARE and self.worst <= WORST

    def __str__(self) -> str:
        share = f"{self.near:.0%} of {self.cells} cells, at worst {self.worst:.2f} times it"
        return f"chosen within 10 % of the best kernel in {share}"


def cases(path: Path) -> list[Case]:
    """The cells of a result file."""
    report = json.loads(path.read_text())
    device = Device(**report["device"])
    cells = []
    for cell in report["cells"]:
        kernels = {}
        for name, run in cell["kernels"].items():
            if name != "auto":
                decision = decision_of(run["decision"])
                kernels[decision.kernel] = Measured(decision, run["kernels_ms"])
        label = f"{cell['keys']} {cell['groups']:,} {cell['aggregations']}"
        label += f" zipf {cell['zipf']}" if cell["zipf"] else ""
        launched = {name for run in cell["kernels"].values() for name in run["kernels_ms"]}
        query = as_grouped(query_of(cell["query"]), launched)
        cells.append(Case(label, query, report["rows"], device, kernels, cell["made"]))
    return cells


def query_of(saved: dict[str, Any]) -> Query:
    """A query from its fields."""

    def parts(kind: Any, name: str) -> tuple[Any, ...]:
        fields_of = [
            {k: tuple(v) if isinstance(v, list) else v for k, v in part.items()}
            for part in saved[name]
        ]
        return tuple(kind(**values) for values in fields_of)

    return Query(
        **known_fields(Query, saved)
        | {
            "keys": parts(KeyPart, "keys"),
            "inputs": parts(ValuePart, "inputs"),
            "states": parts(KernelState, "states"),
            "outputs": parts(KernelOutput, "outputs"),
            "chosen": saved["chosen"] and FORMS[saved["chosen"]],
        }
    )


def decision_of(saved: dict[str, Any]) -> Decision:
    """A decision from its fields, which may be those of an earlier version."""
    record = _RECORDS[saved["kernel"]]
    fields_of = known_fields(record, saved)
    if saved["estimate"] is not None:
        estimate = known_fields(KeySummary, saved["estimate"])
        estimate["bounds"] = tuple(estimate["bounds"])
        fields_of["estimate"] = KeySummary(**estimate)
    return record(**fields_of)


def known_fields(of: Any, saved: dict[str, Any]) -> dict[str, Any]:
    """The saved fields that a dataclass has."""
    return {field.name: saved[field.name] for field in fields(of) if field.name in saved}


def expected_ms(case: Case, measured: Measured, costs: Costs) -> float:
    """Milliseconds that the model expects of a measured kernel."""
    return choose.expected_ms(case.query, case.rows, case.device, costs, measured.decision)


def chosen(case: Case, costs: Costs) -> str:
    """The kernel that the decision chooses with these constants."""
    # the estimate of auto: it alone counts the keys where the sample misleads
    estimate = max(case.estimates, key=lambda estimate: estimate.groups, default=None)
    name = choose.decide(case.query, case.rows, estimate, case.device, costs=costs).kernel
    if name in case.kernels:
        return name
    modelled = {n: m for n, m in case.kernels.items() if is_modelled(m.decision)}
    return min(modelled, key=lambda n: expected_ms(case, modelled[n], costs))


def verdict(cells: Sequence[Case], costs: Costs) -> Verdict:
    """All cells whose groups the sample did not misjudge."""
    ratios = [
        case.kernels[chosen(case, costs)].ms / min(each.ms for each in case.kernels.values())
        for case in cells
        if not case.misjudged
    ]
    return Verdict(len(ratios), statistics.mean(r <= NEAR for r in ratios), max(ratios))


def side_by_side(cells: Sequence[Case], costs: Costs) -> str:
    """Expected and measured milliseconds as Markdown, a line for each cell, the choice in bold."""
    names = [n for n in choose.KERNELS if any(n in case.kernels for case in cells)]
    lines = [f"| keys, groups, aggregations | {' | '.join(names)} |"]
    lines.append("|" + " --- |" * (1 + len(names)))
    for case in cells:
        if case.misjudged:
            continue
        best, shown = chosen(case, costs), []
        for name in names:
            measured = case.kernels.get(name)
            text = "" if measured is None else f"{measured.ms:.3g}"
            if measured is not None and is_modelled(measured.decision):
                text = f"{expected_ms(case, measured, costs):.3g}, {text}"
            shown.append(f"**{text}**" if name == best else text)
        lines.append(f"| {case.label} | {' | '.join(shown)} |")
    return "\n".join(lines)


def judge(path: Path) -> int:
    """Print the table and how often the choice is right; the exit status."""
    cells = cases(path)
    costs = shipped(cells[0].device).costs
    print(side_by_side(cells, costs))
    errors = [
        expected_ms(case, measured, costs) / measured.ms
        for case in cells
        if not case.misjudged
        for measured in case.contenders.values()
    ]
    within = statistics.mean(1 / 1.2 <= error <= 1.2 for error in errors)
    print(f"expected within 20 % of measured: {within:.0%} of {len(errors)} kernels that contend")
    judged = verdict(cells, costs)
    print(judged)
    print(f"{len(cells) - judged.cells} cells left out: the sample misjudged their groups")
    if json.loads(path.read_text())["kernels"] != sources_hash():
        print(f"{path}: measured with other kernels than these")
    return 0 if judged.good else 1
