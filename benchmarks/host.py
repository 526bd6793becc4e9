"""The plugin's host engine against stock Dask, on one machine.

Both arms run in one process on the same data, alternating; what is reported per query is the
median, over pairs of neighbouring runs, of stock time divided by plugin time. ``README.md`` says
what is measured and how to read it.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dask

from benchmarks import arms, machine
from benchmarks.arms import Query
from benchmarks.end_to_end_cluster import HOST
from benchmarks.end_to_end_cluster import Session as Cluster
from benchmarks.queries import EXAMPLE, QUERIES, draw
from benchmarks.report import write

SCHEDULERS = ("threads", "processes")
OUT = Path("benchmarks/results/host.json")
QUICK = {"rows": 100_000, "repeats": 2, "memory_runs": 0}
# Enough for the plugin's compiled loops, which small partitions do without.
WARM_UP_ROWS = 200_000
TIME_LIMIT = 3600


# title, data, and how the memory of a query is measured by an arm's name
Session = tuple[str, Any, Callable[[Query, str], dict[str, Any]]]


@contextlib.contextmanager
def threads(options: argparse.Namespace) -> Iterator[Session]:
    """Yield a session of the threaded scheduler, the data in this process."""

    def memory(query: Query, arm: str) -> dict[str, Any]:
        asked = query.name, arm, options.rows, options.partitions, options.threads
        found = machine.in_a_process(memory_here, *asked, limit=TIME_LIMIT)
        return found if isinstance(found, dict) else {"error": found}

    with dask.config.set(scheduler="threads", num_workers=options.threads):
        title = f"threads: {options.threads} threads in one process"
        yield title, draw(options.rows, options.partitions), memory


@contextlib.contextmanager
def processes(options: argparse.Namespace) -> Iterator[Session]:
    """Yield a session of a local cluster, the data in its workers."""
    with Cluster(HOST, options.workers, "tcp", "") as cluster:
        frame = draw(options.rows, options.partitions)
        title = f"processes: LocalCluster, {options.workers} workers x 1 threads"
        yield title, frame, partial(memory_on_workers, frame, cluster.client)


SESSIONS = {"threads": threads, "processes": processes}


def memory_here(name: str, arm: str, rows: int, partitions: int, threads: int) -> dict[str, Any]:
    """Draw the data and measure one query with the threaded scheduler in this process.

    ``baseline_bytes`` are resident with the data drawn, ``peak_bytes`` the most above that.
    """
    arms.prepare([arm])
    query = QUERIES[name]
    with dask.config.set(scheduler="threads", num_workers=threads):
        # Code that is loaded at first use is no part of the query's memory.
        arms.run(query, draw(WARM_UP_ROWS, 2), arm)
        frame = draw(rows, partitions)
        baseline = machine.reset_peak()
        done = arms.run(query, frame, arm)
        peak = machine.peak() - baseline
    return {"baseline_bytes": baseline, "peak_bytes": peak, "error": done.error}


def memory_on_workers(frame: Any, client: Any, query: Query, name: str) -> dict[str, Any]:
    """Measure one query on a cluster that holds the data, summed over the workers.

    The client's copy of the result is not counted. A worker that was restarted on the way has no
    peak to read, so a failed query has none.
    """
    before = client.run(machine.reset_peak)
    done = arms.run(query, frame, name)
    after = client.run(machine.peak)
    if done.error is not None or set(before) != set(after):
        return {"error": done.error or "a worker was restarted"}
    growth = [after[worker] - before[worker] for worker in before]
    return {
        "baseline_bytes": sum(before.values()),
        "peak_bytes": sum(growth),
        "error": None,
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark and return its results, written to ``options.out`` after every query."""
    arms.prepare(options.arms)
    data = {"rows": options.rows, "groups": EXAMPLE.GROUPS, "partitions": options.partitions}
    results = arms.results_of(options, data)
    for scheduler in options.schedulers:
        with SESSIONS[scheduler](options) as (title, frame, memory):
            queries: dict[str, Any] = {}
            results["schedulers"][scheduler] = {"title": title, "queries": queries}
            for name in options.queries:
                query = QUERIES[name]
                print(f"{scheduler} {name}: {query.title}", file=sys.stderr, flush=True)
                queries[name] = arms.measure(query, frame, options, memory=memory)
                write(results, options.out)
    return results


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = machine.arguments("host", __doc__)
    parser.add_argument("--rows", type=machine.number, default=10**7, help="1e7 is understood")
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--data", type=Path, default=Path("data"), help="where a trial is written")
    arms.add_arguments(parser, 5, 240.0)
    parser.add_argument("--queries", type=arms.list_of(tuple(QUERIES)), default=tuple(QUERIES))
    parser.add_argument("--schedulers", type=arms.list_of(SCHEDULERS), default=SCHEDULERS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--memory-runs", type=int, default=1, help="runs per arm for peak memory; 0: not measured"
    )
    return arms.parsed(parser, argv, OUT, "quick.json", **QUICK)


if __name__ == "__main__":
    arms.run_and_print(parse(), run)
