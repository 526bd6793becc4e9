"""Our kernels on one GPU, beside cuDF's group-by and beside each other.

``python -m benchmarks.kernels --parts grid,tables`` measures parts, each into a results file of its
name, which is written after every cell. The arms of a cell alternate in one process on one RMM
pool, outputs included.

kernels
    sums and five aggregations over the number of groups, as columns and as DataFrames
grid
    keys, aggregations, nulls and skew, as columns and as DataFrames
tables
    any key: families of keys as users have them, DataFrames in and out; of each family some members
    were used for tuning (``tuned``)
small
    DataFrames of 100,000 to 5 million rows
families
    every kernel forced over the number of groups: which one the decision should choose
gathered
    partitions of copies and partitions of row numbers forced, over columns, widths and nulls

``--judge families.json`` needs no GPU: it prints expected and measured times and how often the
choice of kernel is the best (``benchmarks.choice``).
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.choice import as_grouped, expected, judge, query_fields
from benchmarks.gpu import (
    aggregator_of,
    decision_fields,
    device_time,
    engine_arm,
    peak_bytes,
    prepare,
    report_head,
    timed,
)
from benchmarks.kernel_inputs import (
    ALIKE,
    FAMILIES,
    NARROW_VALUES,
    SMALL,
    TWO_VALUES,
    VALUES,
    Input,
    evenly,
    grouped,
    key_labels,
)
from benchmarks.report import write
from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.choice import choose
from dask_gpuagg.cuda.runtime.driver import current_device

Record = dict[str, Any]
Arms = dict[str, Callable[..., Any]]

_ALL = ["sum", "count", "min", "max", "mean"]
SPECS: dict[str, dict[str, list[str]]] = {
    "sum": {"v": ["sum"]},
    "five": {"v": _ALL[:4], "w": _ALL[4:]},
    "ten": dict.fromkeys("vx", _ALL),
    "twenty": dict.fromkeys("vwxy", _ALL),
    "mean and count": {"v": ["mean", "count"]},
    "nunique": {"x": ["nunique"]},
    "median": {"v": ["median"]},
    **{
        name: {f"v{i}": [aggregation] for i in range(number)}
        for name, (number, _, aggregation, _) in ALIKE.items()
    },
}
# how many aggregations they are
NUMBERS = {1: "sum", 5: "five", 20: "twenty"}


@dataclass(frozen=True)
class Cell:
    """One input and a query on it, with the fields that name it in the results file."""

    part: str
    input: Input
    query: str
    labels: Mapping[str, Any] = field(compare=False)

    @property
    def name(self) -> str:
        """As ``--cells`` takes it."""
        return "/".join([self.part, *map(str, self.labels.values())])


# ---- cells ---------------------------------------------------------------------------------------

FEW = (1, 4, 64, 128, 256, 1_000, 4_000, 8_000)
GRID_GROUPS = (1_000, 65_536, 1_048_576, 16_777_216)
GRID_KEYS = (
    *("int64", "int32", "int32+int32", "int64+int32", "int64+int64", "int32+int32+int32"),
    *("str10", "str40"),
)
EXPONENTS = (0.5, 0.75, 1.0, 1.25, 1.5)
FAMILY_GROUPS = tuple(1 << bits for bits in (4, 8, 12, 14, 16, 18, 20, 22, 24, 26))
GATHERED_GROUPS = (1 << 16, 1 << 20, 1 << 22, 1 << 24)


def kernels_cells() -> Iterator[Cell]:
    """Few groups one by one, and many by powers of four."""
    for groups in (*FEW, *(1 << bits for bits in range(14, 27, 2))):
        rows = Input(f"{groups}", partial(grouped, "int64", groups, 0.0), TWO_VALUES)
        for query in ("sum", "five"):
            yield Cell("kernels", rows, query, {"groups": groups, "query": query})


def grid_cells() -> Iterator[Cell]:
    """All keys by all groups; then nulls among the values; then skew."""
    for key in GRID_KEYS:
        for groups in GRID_GROUPS:
            for number in NUMBERS:
                yield _grid_cell(key, groups, number)
    for groups in GRID_GROUPS:
        for number in (5, 20):
            yield _grid_cell("int64", groups, number, nulls=0.5)
    for zipf in EXPONENTS:
        for number in NUMBERS:
            yield _grid_cell("int64", GRID_GROUPS[-1], number, zipf=zipf)


def _grid_cell(key: str, groups: int, number: int, nulls: float = 0.0, zipf: float = 0.0) -> Cell:
    name = f"{key} {groups} {nulls} {zipf}"
    rows = Input(name, partial(grouped, key, groups, zipf), VALUES, nulls)
    labels = {"key": key, "groups": groups, "aggregations": number, "nulls": nulls, "zipf": zipf}
    return Cell("grid", rows, NUMBERS[number], labels)


def tables_cells() -> Iterator[Cell]:
    """Every member of every family; every second one is left out of tuning."""
    for family, members in FAMILIES.items():
        whole = family == "nunique and median"
        for place, (member, keys) in enumerate(members.items()):
            rows = Input(f"{family}: {member}", keys, NARROW_VALUES, values_first=True)
            for query in ("nunique", "median") if whole else ("sum", "five", "ten"):
                labels = {"family": family, "member": member, "query": query}
                yield Cell("tables", rows, query, labels | {"tuned": place % 2 == 0})


def small_cells() -> Iterator[Cell]:
    """Few rows: most of the time is the host's."""
    for place, (name, (rows, keys, query)) in enumerate(SMALL.items()):
        labels = {"family": f"{rows:,} rows", "member": name, "query": query}
        few = Input(name, keys, NARROW_VALUES, rows=rows)
        yield Cell("small", few, query, labels | {"tuned": place % 2 == 0})


def families_cells() -> Iterator[Cell]:
    """Dense integers, as many of 64 random bits, skewed ones, strings of ten bytes."""
    kinds = [("dense", "int64", groups, 0.0) for groups in FAMILY_GROUPS]
    kinds += [("random", "int64", groups, 0.0) for groups in FAMILY_GROUPS]
    kinds += [("zipf", "int64", 1 << 24, zipf) for zipf in (0.75, 1.0, 1.25)]
    kinds += [("strings", "str10", groups, 0.0) for groups in (100_000, 10_000_000)]
    for kind, key, groups, zipf in kinds:
        drawn = "random" if kind == "random" else key
        rows = Input(f"{kind} {groups} {zipf}", partial(grouped, drawn, groups, zipf), TWO_VALUES)
        for number in (1, 5):
            labels = {"keys": kind, "key": key, "groups": groups, "aggregations": number}
            labels |= {"nulls": 0.0, "zipf": zipf}
            yield Cell("families", rows, NUMBERS[number], labels)


def gathered_cells() -> Iterator[Cell]:
    """Sets of values by the number of groups."""
    for groups in GATHERED_GROUPS:
        keys = partial(grouped, "int64", groups, 0.0)
        for name, query in {"5 aggs": "five", "20 aggs": "twenty"}.items():
            rows = Input(f"{groups} {name}", keys, VALUES)
            yield Cell("gathered", rows, query, {"groups": groups, "set": name})
        for name, (number, dtype, _, nulls) in ALIKE.items():
            rows = Input(f"{groups} {name}", keys, {f"v{i}": dtype for i in range(number)}, nulls)
            yield Cell("gathered", rows, name, {"groups": groups, "set": name})


# ---- arms ----------------------------------------------------------------------------------------


def column(frame: Any, label: str) -> Any:
    """A column for pylibcudf."""
    return frame[label].to_pylibcudf()[0]


def both_arms(frame: Any, cell: Cell) -> Arms:
    """Ours and libcudf's group-by on columns, ours and cuDF's on DataFrames."""
    import pylibcudf as plc

    spec, labels = SPECS[cell.query], key_labels(frame)
    keys = [column(frame, label) for label in labels]
    values = {label: column(frame, label) for label in spec}

    def ours(stopwatch: Any = None) -> Any:
        of_values = [(values[label], names) for label, names in spec.items()]
        return aggregator_of(keys, of_values).run("auto", stopwatch)

    def theirs() -> Any:
        requests = [
            plc.groupby.GroupByRequest(
                values[label], [getattr(plc.aggregation, name)() for name in names]
            )
            for label, names in spec.items()
        ]
        return plc.groupby.GroupBy(plc.Table(keys)).aggregate(requests)

    return {
        "ours": ours,
        "cudf": theirs,
        "ours frame": engine_arm(frame, spec, labels),
        "cudf frame": lambda: frame.groupby(labels).agg(spec),
    }


@contextmanager
def forgotten() -> Iterator[None]:
    """Repeat no decision inside; those before stay for afterwards."""
    from dask_gpuagg.cuda.sampling import repeat

    before = repeat._known, repeat._refused
    repeat._known, repeat._refused = Cache(64), Cache(64)
    try:
        yield
    finally:
        repeat._known, repeat._refused = before


def kernels_arms(frame: Any, cell: Cell) -> Arms:
    """Both arms, and ours as if no rows like these had been grouped before."""
    calls = both_arms(frame, cell)
    spec = {c: names if len(names) > 1 else names[0] for c, names in SPECS[cell.query].items()}

    def first() -> Any:
        with forgotten():
            return calls["ours"]()

    calls["ours first"], calls["cudf columns"] = first, calls.pop("cudf")
    calls["cudf frame"] = lambda: frame.groupby("k0").agg(spec)
    return calls


def frame_arms(frame: Any, cell: Cell) -> Arms:
    """Ours and cuDF's on DataFrames."""
    spec, labels = SPECS[cell.query], key_labels(frame)
    return {
        "ours": engine_arm(frame, spec, labels),
        "cudf": lambda: frame.groupby(labels, observed=True).agg(spec),
    }


def pass_of(frame: Any, spec: Mapping[str, list[str]]) -> Any:
    """Our pass over the columns of a frame."""
    keys = [column(frame, label) for label in key_labels(frame)]
    return aggregator_of(keys, [(column(frame, label), names) for label, names in spec.items()])


def forced_arms(frame: Any, cell: Cell) -> Arms:
    """Ours by the kernel that the decision chooses."""
    return {"ours": pass_of(frame, SPECS[cell.query]).run}


# ---- measuring a cell ------------------------------------------------------------------


def walls(calls: Arms, repeats: int, **ratios: tuple[str, str]) -> Record:
    """Median and least times of the arms, and ratios of medians by name."""
    times = timed(calls, repeats)
    median = {name: statistics.median(t) for name, t in times.items()}
    least = {name: min(t) for name, t in times.items()}
    quotients = {name: median[theirs] / median[ours] for name, (theirs, ours) in ratios.items()}
    return {"median_ms": median, "least_ms": least} | quotients


def laps(call: Callable[..., Any], repeats: int) -> Record:
    """Device time, kernel by kernel and in all."""
    kernels = device_time(call, repeats)
    return {"device_ms": sum(kernels.values()), "kernels_ms": kernels}


def run_fields(run: Any) -> Record:
    """Decision and outcome of a pass."""
    return {
        "kernel": run.decision.kernel,
        "decision": decision_fields(run.decision),
        "made": run.groups,
        "spilled": run.spilled,
        "restarted": run.restarted,
    }


def measure_columns(cell: Cell, frame: Any, options: argparse.Namespace) -> Record:
    """Calls on columns and DataFrames; of skewed keys also the device time of even ones."""
    calls, repeats = PARTS[cell.part].arms(frame, cell), options.repeats
    if cell.part == "kernels":
        ratios = {"ratio_columns": ("cudf columns", "ours")}
    else:
        ratios = {"ratio": ("cudf", "ours")}
    ratios["ratio_frame"] = ("cudf frame", "ours frame")
    record = run_fields(calls["ours"]()[2]) | walls(calls, repeats, **ratios)
    record |= laps(calls["ours"], repeats)
    # before other rows are grouped, for which a call would make room first
    record["peak_bytes"] = {name: peak_bytes(call) for name, call in calls.items()}
    if cell.labels.get("zipf"):
        record["even_ms"] = laps(both_arms(evenly(frame), cell)["ours"], repeats)["device_ms"]
    return record


def measure_tables(cell: Cell, frame: Any, options: argparse.Namespace) -> Record:
    """DataFrames in and out; the groups of both arms must be as many."""
    from dask_gpuagg import last_runs

    calls = frame_arms(frame, cell)
    groups = {name: len(call()) for name, call in calls.items()}
    if groups["ours"] != groups["cudf"]:
        raise AssertionError(f"{cell.name}: groups {groups}")
    times = walls(calls, options.repeats, ratio=("cudf", "ours"))
    run = last_runs()[-1]
    return {
        "groups": groups["ours"],
        "kernel": run.decision.kernel,
        "why": run.decision.why,
        "call_ms": run.seconds * 1e3,
        **times,
    }


def measure_forced(cell: Cell, frame: Any, options: argparse.Namespace) -> Record:
    """Times, memory and decision of each kernel that admits the input."""
    device, rows = current_device(), len(frame)
    aggregator = pass_of(frame, SPECS[cell.query])
    run = aggregator.run("auto")[2]
    runs, left_out = {}, {}
    # which kernels admit the input depends on the form that the keys are grouped in
    query = as_grouped(aggregator.query, device_time(partial(aggregator.run, "auto"), 1))
    for name in options.kernels or PARTS[cell.part].kernels:
        decision = choose.decide(query, rows, run.decision.estimate, device, name)
        if name != "auto" and decision.kernel.removesuffix("_runs") != name:
            left_out[name] = f"not for this input: {decision.why}"
        elif name != "auto" and (expected(query, rows, device, decision) or 0) > options.limit:
            left_out[name] = f"more than {options.limit:.0f} ms expected"
        else:
            runs[name] = aggregator.run(name)[2]
    calls = {name: partial(aggregator.run, name) for name in runs}
    times = timed(calls, options.repeats)
    record: Record = {"made": run.groups, "left_out": left_out, "kernels": {}}
    for name, call in calls.items():
        decision = runs[name].decision
        lapped = laps(call, options.repeats)
        query = as_grouped(aggregator.query, lapped["kernels_ms"])
        record["query"] = query_fields(query)
        record["kernels"][name] = {
            "decision": decision_fields(decision),
            "expected_ms": expected(query, rows, device, decision),
            "median_ms": statistics.median(times[name]),
            **lapped,
            "peak_bytes": peak_bytes(call),
            "spilled": runs[name].spilled,
            "restarted": runs[name].restarted,
        }
    return record


# ---- parts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A results file: its cells, how they are measured, and ``kernels`` that are forced."""

    cells: Callable[[], Iterator[Cell]]
    arms: Callable[[Any, Cell], Arms]
    measure: Callable[[Cell, Any, argparse.Namespace], Record]
    rows: int = 10**8
    repeats: int = 3
    kernels: Sequence[str] = ()


PARTS = {
    "kernels": Part(kernels_cells, kernels_arms, measure_columns, repeats=7),
    "grid": Part(grid_cells, both_arms, measure_columns),
    "tables": Part(tables_cells, frame_arms, measure_tables, rows=5 * 10**7, repeats=5),
    "small": Part(small_cells, frame_arms, measure_tables, rows=10**6, repeats=101),
    "families": Part(
        families_cells, forced_arms, measure_forced, kernels=("auto", *choose.KERNELS)
    ),
    "gathered": Part(gathered_cells, forced_arms, measure_forced, kernels=("pgb", "pgb_ur")),
}


# ---- the program ---------------------------------------------------------------------------------


def chosen(part: str, patterns: Sequence[str]) -> list[Cell]:
    """The cells of a part whose names match."""
    return [
        cell
        for cell in PARTS[part].cells()
        if any(fnmatch.fnmatchcase(cell.name, pattern) for pattern in patterns)
    ]


def run(name: str, cells: list[Cell], options: argparse.Namespace) -> list[Record]:
    """Measure the cells of a part; its file is written after each of them."""
    part = PARTS[name]
    rows = options.rows or part.rows
    options = argparse.Namespace(**vars(options) | {"repeats": options.repeats or part.repeats})
    done: list[Record] = []
    frame, held = None, None
    for cell in cells:
        if held != cell.input:
            # the memory of the last input is given back first
            frame = None
            frame, held = cell.input.draw(rows), cell.input
        done.append({**cell.labels, **part.measure(cell, frame, options)})
        print(cell.name, shown(done[-1]), flush=True)
        device = {"device": asdict(current_device())} if name == "families" else {}
        head = report_head(options.commit) | device | {"rows": rows}
        write(head | {"cells": done}, options.out / f"{name}.json")
    return done


def shown(record: Record) -> Record:
    """The fields of a cell that are printed: medians, ratios and device time."""
    if "kernels" in record:
        return {name: forced["median_ms"] for name, forced in record["kernels"].items()}
    fields = ("kernel", "median_ms", "device_ms", "ratio", "ratio_columns", "ratio_frame")
    return {name: record[name] for name in fields if name in record}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = machine.arguments("kernels", __doc__, Path("."), "folder of the results files")
    parser.add_argument("--parts", default=",".join(PARTS), help="by commas; default: all")
    parser.add_argument("--cells", nargs="+", default=["*"], help="patterns of names; see --list")
    parser.add_argument("--rows", type=machine.number, help="other than the part's")
    parser.add_argument("--repeats", type=int, help="other than the part's")
    parser.add_argument("--kernels", type=lambda text: text.split(","), help="that are forced")
    parser.add_argument("--limit", type=float, default=100.0, help="ms expected of a forced kernel")
    parser.add_argument("--list", action="store_true", help="print the names of the cells and stop")
    parser.add_argument("--judge", type=Path, help="a file of the part families: judge the choice")
    options = parser.parse_args(argv)
    options.parts = options.parts.split(",")
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part named {', '.join(unknown)}; there are {', '.join(PARTS)}")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, list or judge; the exit status is 1 where the choice is not good enough."""
    options = parse(argv)
    if options.judge:
        return judge(options.judge)
    cells = {part: chosen(part, options.cells) for part in options.parts}
    if options.list:
        print("\n".join(cell.name for some in cells.values() for cell in some))
        return 0
    prepare()
    for part, some in cells.items():
        run(part, some, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
