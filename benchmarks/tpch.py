"""TPC-H's 22 queries, whole, by stock Dask and by the plugin, on one machine.

``python -m benchmarks.tpch --scale 0.5``. The arms run in one process on the same Parquet files, in
turns, and read them in every run; per query, the median over rounds of stock time divided by plugin
time, beside the same of stock Dask and itself. ``README.md`` says how to read it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import dask

from benchmarks import arms, host, machine, rounds, table
from benchmarks.compare import compare
from benchmarks.queries import Query, Support
from benchmarks.report import write
from benchmarks.tpch_data import read, write_parquet
from benchmarks.tpch_queries import QUERIES, WITHOUT_GROUPBY

OUT = Path("benchmarks/results/tpch.json")
QUICK_SCALE = 0.01
LINES = 6_000_000
"""About so many rows has the largest table at scale 1."""


def query(name: str) -> Query:
    """Return a query as the benchmark's tables know it."""
    build = QUERIES[name]
    title = (build.__doc__ or "").partition("\n")[0]
    aggregates = name not in WITHOUT_GROUPBY
    return Query(
        name,
        title,
        build,
        Support.PLAN if aggregates else Support.STOCK,
        target=1.0 if aggregates else None,
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark and return its results, written to ``options.out`` after every query."""
    arms.prepare(options.arms)
    folder = write_parquet(options.scale, options.parts, options.data)
    tables = read(folder, options.scale, options.filesystem, options.decimals)
    measured: dict[str, Any] = {}
    results: dict[str, Any] = {
        "schema": 1,
        **machine.provenance(),
        "arms": list(options.arms),
        "data": {
            "name": f"TPC-H SF {options.scale:g}, lineitem of about",
            "scale": options.scale,
            "rows": int(LINES * options.scale),
            "partitions": options.parts,
            "filesystem": options.filesystem,
            "decimals": options.decimals,
        },
        "repeats": options.repeats,
        "schedulers": {
            "threads": {
                "title": f"threads: {options.threads} threads in one process, reading included",
                "queries": measured,
            }
        },
    }
    with dask.config.set(scheduler="threads", num_workers=options.threads):
        for name in options.queries:
            one = query(name)
            print(f"{name}: {one.title}", file=sys.stderr, flush=True)
            measured[name] = measure(one, tables, options)
            write(results, options.out)
    return results


def measure(query: Query, tables: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Run one query in all arms, and return everything that was seen."""
    names = [*options.arms, *([arms.AGAIN] if arms.PLUGIN in options.arms else [])]
    start = time.perf_counter()
    cold = [arms.run(query, tables, name) for name in options.arms]
    failed = any(run.error for run in cold)
    answer = None if failed else dataclasses.asdict(compare(cold[0].result, cold[1].result))
    first = {name: (run.seconds, run.error) for name, run in zip(options.arms, cold, strict=True)}
    del cold  # results are not held while others are timed
    timed = rounds.rounds(
        names,
        lambda name: arms.run(query, tables, name),
        0 if failed else options.repeats,
        lambda: time.perf_counter() - start > options.budget,
    )
    entry = {
        "name": query.name,
        "title": query.title,
        "support": query.support.value,
        "target": query.target,
        "note": query.note,
        "arms": [_arm(one, *first.get(one.name, (None, None))) for one in timed],
        **rounds.compared(timed[0].wall, timed[1].wall),
        "answer": answer,
    }
    if len(timed) > 2:
        noise = rounds.compared(timed[0].wall, timed[2].wall)
        busy = rounds.compared(timed[0].cpu, timed[1].cpu)
        noise_of_cpu = rounds.compared(timed[0].cpu, timed[2].cpu)
        entry |= {
            "noise": noise,
            "cpu": {**busy, "noise": noise_of_cpu},
            "slower": {
                "wall": rounds.is_slower(entry, noise),
                "cpu": rounds.is_slower(busy, noise_of_cpu),
            },
            "plugin": arms.report(query, tables),
        }
    return entry


def _arm(one: rounds.Timed, cold: float | None, error: str | None) -> dict[str, Any]:
    return {
        "arm": one.name,
        "cold": cold,
        "warm": one.wall,
        "cpu": one.cpu,
        "median": statistics.median(one.wall) if one.wall else None,
        "memory": [],
        "peak": None,
        "error": error or one.error,
    }


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpch", description=__doc__)
    names = tuple(QUERIES)
    parser.add_argument("--scale", type=float, default=0.5, help="TPC-H's scale factor")
    parser.add_argument("--parts", type=int, default=8, help="files of a table")
    parser.add_argument("--data", type=Path, default=Path("data"), help="where Parquet is kept")
    parser.add_argument("--filesystem", choices=("fsspec", "arrow"), default="fsspec")
    parser.add_argument(
        "--decimals",
        action="store_true",
        help="leave money decimal, which stock Dask often fails on",
    )
    parser.add_argument("--queries", type=host.list_of(names), default=names)
    parser.add_argument(
        "--arms",
        type=host.list_of(arms.ARMS),
        default=arms.ARMS,
        help="two of them; beside the plugin, stock runs a second time in each round",
    )
    parser.add_argument("--repeats", type=int, default=11, help="rounds of warm runs per query")
    parser.add_argument(
        "--budget", type=float, default=180.0, help="seconds after which a query gets no more"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help=f"default: {OUT}; with --quick, in --data")
    parser.add_argument(
        "--quick", action="store_true", help=f"scale {QUICK_SCALE}, one round: does it all run?"
    )
    parser.add_argument("--show", type=Path, help="print an earlier results file and stop")
    options = parser.parse_args(argv)
    if len(options.arms) != 2:
        parser.error("--arms takes two arms")
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    if options.quick:
        options.scale, options.repeats = QUICK_SCALE, 1
    if options.out is None:
        # a trial does not overwrite the results that are kept
        options.out = options.data / "tpch-quick.json" if options.quick else OUT
    return options


def main() -> None:
    """Run the benchmark, or show an earlier one."""
    options = parse()
    if options.show is not None:
        print(table.render(json.loads(options.show.read_text())))
        return
    warnings.filterwarnings("ignore", category=FutureWarning)
    print(table.render(run(options)))


if __name__ == "__main__":
    main()
