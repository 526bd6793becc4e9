"""The plugin's host engine against stock Dask, on one machine.

Both arms run in one process on the same data, alternating; what is reported per query is the
median, over pairs of neighbouring runs, of stock time divided by plugin time. ``README.md`` says
what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask

from benchmarks import arms, datagen, machine, memory, table
from benchmarks.compare import compare
from benchmarks.queries import Query, Support, select
from benchmarks.report import write

SCHEDULERS = ("threads", "processes")
QUICK_ROWS = 100_000
QUICK_REPEATS = 2
OUT = Path("benchmarks/results/host.json")

MeasureMemory = Callable[[Query, str], dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Session:
    """One scheduler, ready to run queries."""

    name: str
    title: str
    frame: Any
    measure_memory: MeasureMemory


@contextlib.contextmanager
def threads(options: argparse.Namespace, folder: Path) -> Iterator[Session]:
    """Yield a session of the threaded scheduler, the data in this process."""

    def measure_memory(query: Query, arm: str) -> dict[str, Any]:
        return memory.measure_in_process(query, folder, options.partitions, options.threads, arm)

    with dask.config.set(scheduler="threads", num_workers=options.threads):
        frame = arms.load_local(folder, options.partitions)
        title = f"threads: {options.threads} threads in one process"
        yield Session("threads", title, frame, measure_memory)


@contextlib.contextmanager
def processes(options: argparse.Namespace, folder: Path) -> Iterator[Session]:
    """Yield a session of a local cluster, the data in its workers."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=options.workers,
            threads_per_worker=options.threads_per_worker,
            memory_limit=options.memory_limit,
            processes=True,
            dashboard_address=None,
            # The scheduler warns of the start and the end of every shuffle.
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        frame = arms.load_on_workers(folder)

        def measure_memory(query: Query, arm: str) -> dict[str, Any]:
            return memory.measure_on_workers(query, frame, client, arm)

        title = (
            f"processes: LocalCluster, {options.workers} workers x {options.threads_per_worker} "
            f"threads, memory_limit {options.memory_limit}"
        )
        yield Session("processes", title, frame, measure_memory)


SESSIONS = {"threads": threads, "processes": processes}


def measure(query: Query, session: Session, options: argparse.Namespace) -> dict[str, Any]:
    """Run one query in both arms, alternating, and return everything that was seen."""
    entry: dict[str, Any] = {
        "name": query.name,
        "title": query.title,
        "support": query.support.value,
        "target": query.target,
        "note": query.note,
        "arms": [
            {
                "arm": name,
                "cold": None,
                "warm": [],
                "median": None,
                "memory": [],
                "peak": None,
                "error": None,
            }
            for name in options.arms
        ],
        "ratios": [],
        "ratio": None,
        "answer": None,
    }
    start = time.perf_counter()
    first = [_record(one, query, session, "cold") for one in entry["arms"]]
    if all(done.error is None for done in first):
        entry["answer"] = dataclasses.asdict(compare(first[0].result, first[1].result))
    del first  # Results can be as large as the data: the timed runs do not carry them.

    # What is no aggregation runs in stock Dask in both arms: one pair shows that nothing broke.
    pairs = options.repeats if query.support is Support.PLAN else 1
    for pair in range(pairs):
        if pair and time.perf_counter() - start > options.budget:
            break
        if any(one["error"] for one in entry["arms"]):
            break
        for one in entry["arms"]:
            _record(one, query, session, "warm")
    left, right = entry["arms"]
    entry["ratios"] = [a / b for a, b in zip(left["warm"], right["warm"], strict=False)]
    if entry["ratios"]:
        entry["ratio"] = statistics.median(entry["ratios"])
    for one in entry["arms"]:
        if one["warm"]:
            one["median"] = statistics.median(one["warm"])
        if one["error"] is None:
            one["memory"] = [
                session.measure_memory(query, one["arm"]) for _ in range(options.memory_runs)
            ]
            one["peak"] = memory.median_peak(one["memory"])
    if arms.PLUGIN in options.arms:
        entry["plugin"] = arms.report(query, session.frame)
    return entry


def _record(one: dict[str, Any], query: Query, session: Session, kind: str) -> arms.Run:
    done = arms.run(query, session.frame, one["arm"])
    if done.error is not None:
        one["error"] = done.error
    elif kind == "cold":
        one["cold"] = done.seconds
    else:
        one["warm"].append(done.seconds)
    return done


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark and return its results, written to ``options.out`` after every query."""
    parameters = datagen.from_arguments(options)
    arms.prepare(options.arms)
    folder = datagen.write_parquet(parameters, options.partitions, options.data)
    results: dict[str, Any] = {
        "schema": 1,
        **machine.provenance(),
        "arms": list(options.arms),
        "data": {
            "name": parameters.name,
            **dataclasses.asdict(parameters),
            "partitions": options.partitions,
        },
        "repeats": options.repeats,
        "schedulers": {},
    }
    for scheduler in options.schedulers:
        with SESSIONS[scheduler](options, folder) as session:
            queries: dict[str, Any] = {}
            results["schedulers"][scheduler] = {"title": session.title, "queries": queries}
            for query in options.queries:
                if query.name == "multi_skew" and not parameters.zipf:
                    continue
                print(f"{scheduler} {query.name}: {query.title}", file=sys.stderr, flush=True)
                queries[query.name] = measure(query, session, options)
                write(results, options.out)
    return results


def list_of(allowed: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Return the type of an option that takes some of these names, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
        return names

    return parse


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options; ``queries`` becomes a tuple of records."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host", description=__doc__)
    datagen.add_arguments(parser)
    parser.add_argument("--queries", help="comma-separated names, or 'all'; default: all but a few")
    parser.add_argument("--schedulers", type=list_of(SCHEDULERS), default=SCHEDULERS)
    parser.add_argument(
        "--arms",
        type=list_of(arms.ARMS),
        default=arms.ARMS,
        help="two of them; 'stock,stock' shows how much the ratio of equal things varies",
    )
    parser.add_argument("--repeats", type=int, default=5, help="pairs of warm runs per query")
    parser.add_argument(
        "--budget", type=float, default=240.0, help="seconds after which a query gets no more pairs"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads-per-worker", type=int, default=1)
    parser.add_argument("--memory-limit", default="auto", help="per worker, as Dask takes it")
    parser.add_argument(
        "--memory-runs", type=int, default=1, help="runs per arm for peak memory; 0: not measured"
    )
    parser.add_argument("--out", type=Path, help=f"default: {OUT}; with --quick, in --data")
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_ROWS:,} rows, {QUICK_REPEATS} repeats, no memory: does it all run?",
    )
    parser.add_argument("--show", type=Path, help="print an earlier results file and stop")
    options = parser.parse_args(argv)
    if len(options.arms) != 2:
        parser.error("--arms takes two arms")
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    if options.quick:
        options.rows, options.repeats, options.memory_runs = QUICK_ROWS, QUICK_REPEATS, 0
    if options.out is None:
        # A trial does not overwrite the results that are kept.
        options.out = options.data / "quick.json" if options.quick else OUT
    try:
        options.queries = select(options.queries)
    except KeyError as error:
        parser.error(str(error.args[0]))
    return options


def main() -> None:
    """Run the benchmark, or show an earlier one."""
    options = parse()
    if options.show is not None:
        print(table.render(json.loads(options.show.read_text())))
        return
    # Dask warns that shuffled tasks carry a large graph, pandas of its future: not ours to fix.
    warnings.filterwarnings("ignore", category=FutureWarning)
    print(table.render(run(options)))


if __name__ == "__main__":
    main()
