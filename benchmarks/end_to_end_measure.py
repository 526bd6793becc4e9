"""One cell of ``benchmarks.end_to_end``: its arms, run in turn and judged."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.end_to_end_arms import (
    CUDF_POLARS,
    DUCKDB,
    FLOOR,
    OURS,
    POLARS,
    TUNED,
    DaskArm,
    Peer,
    Question,
    missing,
    tuned,
)
from benchmarks.end_to_end_cluster import Files, Persisted, Run, Session, Stopped, message_of
from benchmarks.end_to_end_floor import Floor
from benchmarks.end_to_end_queries import HOST, QUERIES, Rows, judge
from benchmarks.end_to_end_results import ratios

PERSISTED, PARQUET = "persisted", "parquet"
PEERS = (CUDF_POLARS, POLARS, DUCKDB)


@dataclass(frozen=True, slots=True)
class Cell:
    """One query on one input."""

    kind: str
    query: str
    rows: int
    groups: int
    partitions: int

    @property
    def name(self) -> str:
        """As ``--cells`` takes it."""
        kind = self.kind if self.kind == PARQUET else f"{self.kind}-{self.partitions}"
        return f"{kind}/{self.query}/{short(self.groups)}"


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
    warm: set[Any] = field(default_factory=set)
    source: Persisted | Files | None = None

    def left(self) -> float:
        """Seconds until the deadline."""
        return self.end - time.perf_counter()

    def limit(self) -> float:
        """Seconds that the next run may take."""
        left = self.left()
        if left < 1:
            raise Stopped("the deadline has come")
        return float(min(self.options.budget, left))

    def question(self, cell: Cell) -> Question:
        """The query on its input, made if the last cell had another."""
        if cell.kind == PARQUET:
            keys = tuple((f"k{groups}", groups) for groups in self.options.groups)
        else:
            keys = (("k", cell.groups),)
        rows = Rows(cell.rows, cell.partitions, keys, self.options.engine)
        if self.source is None or self.source.rows != rows:
            self.let_go()
            if cell.kind == PARQUET:
                folder = self.options.parquet_dir or folder_for(rows)
                self.source = Files(self.session, rows, folder)
            else:
                self.source = Persisted(self.session, rows)
        key = next(label for label, groups in keys if groups == cell.groups)
        return Question(QUERIES[cell.query], key, cell.groups, self.source)

    def let_go(self) -> None:
        """Close the input; files are deleted unless they are to be kept."""
        if isinstance(self.source, Files) and not self.options.keep_files:
            self.source.remove()
        elif isinstance(self.source, Persisted):
            self.source.close()
        self.source = None

    def answer(self, question: Question) -> dict[str, Any]:
        """The expected answer, made once for all queries of the same rows and key."""
        about = question.source.rows, question.key
        if about not in self.expected:
            self.expected[about] = self.session.expected(*about)
        return self.expected[about]


def folder_for(rows: Rows) -> Path:
    """The RAM disk where it has room for the files, else the folder for temporary files."""
    # random values do not shrink, keys take half their width or less
    needed = rows.rows * (4 * len(rows.keys) + 12) * 1.1
    for folder in (Path("/dev/shm"), Path(tempfile.gettempdir())):
        if folder.is_dir() and shutil.disk_usage(folder).free > needed:
            return folder
    raise OSError(f"no room for {needed / 1e9:.1f} GB of files; name a folder by --parquet-dir")


def measure(bench: Bench, cell: Cell, entry: dict[str, Any]) -> None:
    """Run the arms of a cell and fill its entry.

    First runs come first, then the search for stock Dask's tuning, then the repetitions, arms
    alternating; memory is measured in a separate run.
    """
    question = bench.question(cell)
    right = bench.answer(question)
    entry["expected"] = {label: right[label] for label in ("groups", "v_sum")}
    if isinstance(question.source, Files):
        entry["filesystem"] = question.source.filesystem()
    records, arms = entry["arms"], {}
    for name in bench.options.arms:
        if name in PEERS and cell.kind == PERSISTED:
            continue
        records[name] = {"run": bench.number, "first_ms": None, "times_ms": [], "median_ms": None}
        reason = missing(name)
        if name == CUDF_POLARS and bench.options.engine == HOST:
            reason = "it needs a GPU"
        if reason is not None:
            records[name] = {"run": bench.number, "skipped": reason}
        elif name == FLOOR:
            attempt(bench, Floor(question), records[name], None)
        elif name != TUNED:
            arms[name] = Peer(question, name) if name in PEERS else DaskArm(question, name)
            first_run(bench, arms[name], records[name], right)
            if name == OURS:
                first_warm_run(bench, arms[name], records[name])
    if TUNED in records:
        arms[TUNED] = search(bench, question, records[TUNED])
    arms = {name: arms[name] for name in records if name in arms}
    repeat(bench, arms, records, right)
    entry["ratios"] = ratios(records)
    for name, arm in arms.items():
        if isinstance(arm, DaskArm) and records[name]["times_ms"] and bench.options.memory:
            guarded(records[name], "peak", lambda arm=arm: arm.peak(bench.limit()), "peak_bytes")
    ours = arms.get(OURS)
    if isinstance(ours, DaskArm):
        guarded(entry, "plan", ours.plan)
        guarded(entry, "kernels", ours.ran)


def guarded(record: dict[str, Any], what: str, call: Any, label: str | None = None) -> None:
    """Keep what a call gives, or why it failed."""
    try:
        record[label or what] = call()
    except Exception as error:
        record[f"{what}_error"] = message_of(error)


def attempt(bench: Bench, arm: Any, record: dict[str, Any], right: Any) -> Run | None:
    """One run, its answer judged if ``right`` is given; an arm that fails runs no more here."""
    try:
        limit = bench.limit()
        done: Run = arm.run(limit, right is not None)
    except Stopped as stopped:
        record["stopped"] = str(stopped)
        if bench.left() >= 1:
            record["stopped_s"] = limit
    except Exception as error:
        record["error"] = message_of(error)
    else:
        if right is not None:
            record["answer"] = judge(done.found or {}, right, arm.question.query)
        if isinstance(arm, Floor):
            record["median_ms"] = done.seconds * 1e3
            record["steps_ms"] = {step: taken * 1e3 for step, taken in done.steps.items()}
        return done
    return None


def first_run(bench: Bench, arm: Any, record: dict[str, Any], right: dict[str, Any]) -> None:
    """The first run of an arm in a cell, cold if the cluster has not run it before."""
    about = (arm.name, bench.session.starts if isinstance(arm, DaskArm) else 0)
    record["cold"] = about not in bench.warm
    bench.warm.add(about)
    done = attempt(bench, arm, record, right)
    if done is not None:
        record["first_ms"] = done.seconds * 1e3


def first_warm_run(bench: Bench, arm: Any, record: dict[str, Any]) -> None:
    """The first run on data that the cluster has not seen, of a query whose kernels are there."""
    if {"error", "stopped"} & record.keys():
        return
    arm.question.source.renew()
    done = attempt(bench, arm, record, None)
    if done is not None:
        record["first_warm_ms"] = done.seconds * 1e3


def search(bench: Bench, question: Question, record: dict[str, Any]) -> DaskArm:
    """Stock Dask with the best of the candidates for its tuning."""
    tuning: dict[str, Any] | None = None
    try:
        tuning, record["candidates"] = tuned(question, bench.limit)
    except Stopped as stopped:
        record["stopped"] = str(stopped)
    else:
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
