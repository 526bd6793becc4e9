"""Whole queries on a cluster: stock Dask, tuned, ours, and the floor.

``python -m benchmarks.end_to_end`` runs queries on rows persisted in a GPU cluster and on Parquet
files, the arms alternating in one process, and writes the results file after every cell.
``--engine host`` does the same with pandas. ``README.md`` says what is measured.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import end_to_end_cluster as cluster
from benchmarks import gpu, machine
from benchmarks.arms import list_of
from benchmarks.end_to_end_arms import (
    ARMS,
    EXACT,
    FLOOR,
    OURS,
    TUNED,
    DaskArm,
    Floor,
    Question,
    tuned,
)
from benchmarks.end_to_end_cluster import DEVICE, HOST, QUERIES, Files, Persisted, Session
from benchmarks.report import write

PERSISTED, PARQUET = "persisted", "parquet"


@dataclass(frozen=True, slots=True)
class Cell:
    """One query on one input."""

    input: str
    query: str
    rows: int
    groups: int
    partitions: int

    @property
    def name(self) -> str:
        """As ``--cells`` takes it."""
        rows = PARQUET if self.input == PARQUET else f"{self.input}-{self.partitions}"
        return f"{rows}/{self.query}/{short(self.groups)}"


def short(number: int) -> str:
    """A number of groups, as ``1k`` or ``50M``."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


@dataclass(slots=True)
class Bench:
    """One call of the program: its cluster, inputs, and what it has seen."""

    options: argparse.Namespace
    session: Session
    number: int
    end: float
    expected: dict[Any, dict[str, Any]] = field(default_factory=dict)
    source: Persisted | Files | None = None

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.end - time.perf_counter()

    def limit(self) -> float:
        """Seconds that the next run may take."""
        left = self.left()
        if left < 1:
            raise cluster.Stopped("the deadline has come")
        return float(min(self.options.budget, left))

    def question(self, cell: Cell) -> Question:
        """The query on its input, made if the last cell had another."""
        if cell.input == PARQUET:
            keys = tuple((f"k{groups}", groups) for groups in self.options.groups)
        else:
            keys = (("k", cell.groups),)
        rows = cluster.Rows(cell.rows, cell.partitions, keys, self.options.engine)
        if self.source is None or self.source.rows != rows:
            self.let_go()
            if cell.input == PARQUET:
                where, keep = self.options.parquet_dir, self.options.keep_files
                self.source = Files(self.session, rows, where, keep)
            else:
                self.source = Persisted(self.session, rows)
        key = next(label for label, groups in keys if groups == cell.groups)
        return Question(QUERIES[cell.query], key, cell.groups, self.source)

    def let_go(self) -> None:
        """Close the input."""
        if self.source is not None:
            self.source.close()
        self.source = None

    def answer(self, question: Question) -> dict[str, Any]:
        """The expected answer, made once for all queries of the same rows and key."""
        about = question.source.rows, question.key
        if about not in self.expected:
            self.expected[about] = self.session.expected(*about)
        return self.expected[about]


def measure(bench: Bench, cell: Cell, entry: dict[str, Any]) -> None:
    """Run the arms of a cell and fill its entry.

    First runs come first, then the search for stock Dask's tuning, then the repetitions, arms
    alternating.
    """
    question = bench.question(cell)
    right = bench.answer(question)
    entry["expected"] = {label: right[label] for label in ("groups", "v_sum")}
    records, arms = entry["arms"], {}
    for name in bench.options.arms:
        records[name] = {"run": bench.number, "first_ms": None, "times_ms": [], "median_ms": None}
        if name == FLOOR:
            attempt(bench, Floor(question), records[name], None)
        elif name != TUNED:
            arms[name] = DaskArm(question, name)
            first = attempt(bench, arms[name], records[name], right)
            records[name]["first_ms"] = first and first.seconds * 1e3
    if TUNED in records:
        arms[TUNED] = search(bench, question, records[TUNED])
    arms = {name: arms[name] for name in records if name in arms}
    repeat(bench, arms, records, right)
    entry["ratios"] = ratios(records)


def attempt(bench: Bench, arm: Any, record: dict[str, Any], right: Any) -> cluster.Run | None:
    """One run, its answer judged if ``right`` is given; an arm that fails runs no more here."""
    try:
        done: cluster.Run = arm.run(bench.limit(), right is not None)
    except cluster.Stopped as stopped:
        record["stopped"] = str(stopped)
    except Exception as error:
        record["error"] = cluster.message_of(error)
    else:
        if right is not None:
            record["answer"] = cluster.judge(done.found or {}, right, arm.question.query)
        if isinstance(arm, Floor):
            record["median_ms"] = done.seconds * 1e3
            record["steps_ms"] = {step: taken * 1e3 for step, taken in done.steps.items()}
        return done
    return None


def search(bench: Bench, question: Question, record: dict[str, Any]) -> DaskArm:
    """Stock Dask with the best of the candidates for its tuning."""
    tuning, record["candidates"] = tuned(question, bench.limit)
    if tuning is None:
        record["error"] = "no candidate finished"
    else:
        record["tuning"] = tuning
        best = next(c for c in record["candidates"] if tuning.items() <= c.items())
        record["first_ms"] = best["times_ms"][0]
    return DaskArm(question, TUNED, tuning or {})


def repeat(
    bench: Bench, arms: dict[str, Any], records: dict[str, Any], right: dict[str, Any]
) -> None:
    """Run the arms in turn; one that has spent its budget, or failed, runs no more."""
    spent = {name: (records[name]["first_ms"] or 0) / 1e3 for name in arms}
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    for _ in range(bench.options.repeats):
        for name, arm in arms.items():
            record = records[name]
            over = spent[name] > bench.options.budget
            if over or {"error", "stopped"} & record.keys():
                continue
            look = None if "answer" in record else right
            done = attempt(bench, arm, record, look)
            if done is not None:
                spent[name] += done.seconds
                record["times_ms"].append(done.seconds * 1e3)
                steps[name].append(done.steps)
    for name, record in records.items():
        if record.get("times_ms"):
            record["median_ms"] = statistics.median(record["times_ms"])
            taken = steps[name]
            record["steps_ms"] = {
                step: statistics.median(one[step] for one in taken) * 1e3 for step in taken[0]
            }


# ---- the results file ----------------------------------------------------------------------------

IDENTITY = ("engine", "name", "rows", "groups", "partitions", "workers", "protocol")
"""Fields that identify a cell: measured again, it replaces the earlier one."""


def load(path: Path, append: bool) -> dict[str, Any]:
    """An earlier file to add to, or a new one."""
    if append and path.exists():
        results: dict[str, Any] = json.loads(path.read_text())
        return results
    return {"schema": 1, "runs": [], "cells": []}


def add(results: dict[str, Any], entry: dict[str, Any]) -> None:
    """Add a cell; one that was measured before is replaced."""
    others = (c for c in results["cells"] if any(c[label] != entry[label] for label in IDENTITY))
    results["cells"] = [*others, entry]


def ratios(arms: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Median over the repetitions of each arm's time divided by ours, above 1 if ours is faster."""
    found = {}
    for name in arms.keys() - {OURS, FLOOR}:
        both = zip(arms[name]["times_ms"], arms.get(OURS, {}).get("times_ms", ()), strict=False)
        if quotients := [other / ours for other, ours in both]:
            found[name] = statistics.median(quotients)
    return found


def line(entry: dict[str, Any]) -> str:
    """A cell as one line: milliseconds of each arm, and what went wrong."""
    said = [f"{entry['name']} {entry['workers']} worker(s) {entry['protocol']}"]
    said += [entry["error"]] if "error" in entry else []
    for name, arm in entry["arms"].items():
        times = {label: arm.get(label) for label in ("median_ms", "first_ms")}
        shown = [f"{label} {ms:,.1f}" for label, ms in times.items() if ms is not None]
        shown += [arm[label] for label in ("stopped", "error") if label in arm]
        said.append(" ".join([name, *shown, *arm.get("answer", {}).get("problems", [])]))
    return " | ".join(said)


# ---- the program ---------------------------------------------------------------------------------

OUT = Path("benchmarks/results/nvidia-h100/end_to_end.json")
# pandas on the CPU does not overwrite the results that are kept
TRIAL = Path("data/end_to_end-trial.json")


def catalogue(options: argparse.Namespace) -> Iterator[Cell]:
    """All cells of the options, those of the same rows side by side."""
    for partitions in options.partitions:
        for groups in options.groups:
            for query in QUERIES:
                yield Cell(PERSISTED, query, options.rows, groups, partitions)
    for groups in options.groups:
        for query in QUERIES:
            yield Cell(PARQUET, query, options.parquet_rows, groups, options.files)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the cells; the file is written after each of them."""
    results = load(options.out, options.append)
    session = Session(
        options.engine, options.workers, options.protocol, options.pool, OURS in options.arms
    )
    with session:
        results["runs"].append(about_this(options, session))
        end = time.perf_counter() + options.deadline
        bench = Bench(options, session, len(results["runs"]) - 1, end)
        for cell in options.chosen:
            if bench.left() < 1:
                results["runs"][-1]["left_out"].append(cell.name)
                continue
            entry = {
                "engine": options.engine,
                "name": cell.name,
                **asdict(cell),
                "workers": options.workers,
                "protocol": options.protocol,
                "arms": {},
                "ratios": {},
            }
            try:
                measure(bench, cell, entry)
            except Exception as error:
                entry["error"] = str(cluster.without_frames(error))
            if "error" in entry:
                session.recover()
            add(results, entry)
            write(results, options.out)
            print(line(entry), flush=True)
        bench.let_go()
    write(results, options.out)
    left_out = results["runs"][-1]["left_out"]
    if left_out:
        print(f"left out at the deadline: {', '.join(left_out)}")
    return results


def about_this(options: argparse.Namespace, session: Session) -> dict[str, Any]:
    """Where and how the cells of this call were measured."""
    gpus = sorted(session.client.run(gpu.name).values()) if options.engine == DEVICE else []
    names = ("engine", "workers", "protocol", "pool", "repeats", "budget", "arms")
    return machine.provenance(options.commit) | {
        "gpus": gpus,
        "arguments": {name: getattr(options, name) for name in names},
        "left_out": [],
    }


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options; ``chosen`` are the cells."""
    parser = machine.arguments("end_to_end", __doc__)
    usual = tuple(arm for arm in ARMS if arm != EXACT)
    parser.add_argument("--engine", choices=(DEVICE, HOST), default=DEVICE)
    parser.add_argument("--cells", default="*", help="patterns of names, by commas; see --list")
    parser.add_argument("--arms", type=list_of(ARMS), default=usual, help=f"of {', '.join(ARMS)}")
    parser.add_argument(
        "--rows", type=machine.number, default=10**9, help="persisted, in all partitions"
    )
    parser.add_argument(
        "--parquet-rows", type=machine.number, default=4 * 10**8, help="in all files"
    )
    parser.add_argument("--groups", default="1e3,1e6,5e7", help="numbers, by commas")
    parser.add_argument("--partitions", default="32,1024", help="persisted: numbers, by commas")
    parser.add_argument("--files", type=int, default=32, help="how many Parquet files")
    parser.add_argument("--parquet-dir", type=Path, default=Path("/dev/shm"), help="the RAM disk")
    parser.add_argument("--keep-files", action="store_true", help="for the next call")
    parser.add_argument("--workers", type=int, default=1, help="GPUs, or the host's processes")
    parser.add_argument("--protocol", default="tcp", help="tcp or ucx")
    parser.add_argument("--pool", default="100GB", help="device memory of each worker's RMM pool")
    parser.add_argument("--repeats", type=int, default=5, help="after the first run of each arm")
    parser.add_argument("--budget", type=float, default=20, help="seconds of an arm in a cell")
    parser.add_argument(
        "--deadline", type=float, default=1e6, help="seconds after which no run is begun"
    )
    parser.add_argument("--append", action="store_true", help="add to the results file")
    parser.add_argument("--list", action="store_true", help="print the names of the cells and stop")
    options = parser.parse_args(argv)
    for name in ("groups", "partitions"):
        numbers = list(map(machine.number, getattr(options, name).split(",")))
        setattr(options, name, numbers)
    if options.out is None:
        options.out = TRIAL if options.engine == HOST else OUT
    patterns = options.cells.split(",")
    options.chosen = [
        cell
        for cell in catalogue(options)
        if any(fnmatch.fnmatch(cell.name, pattern) for pattern in patterns)
    ]
    if not options.chosen:
        parser.error(f"no cell is named {options.cells}; see --list")
    return options


def main() -> None:
    """Measure, or list what there is to measure."""
    options = parse()
    if options.list:
        print("\n".join(cell.name for cell in options.chosen))
        return
    # Dask warns of large graphs, pandas of its own future: neither is ours to fix
    warnings.filterwarnings("ignore")
    print(f"{len(options.chosen)} cells, {', '.join(options.arms)}", file=sys.stderr)
    run(options)


if __name__ == "__main__":
    main()
