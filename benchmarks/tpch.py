"""TPC-H's 22 queries, whole, by stock Dask and by the plugin, on one machine.

``python -m benchmarks.tpch --scale 0.5``. Both arms run in one process on the same Parquet files,
alternating, and read them in every run; per query, the median over pairs of neighbouring runs of
stock time divided by plugin time. ``README.md`` says how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import dask

from benchmarks import arms, host, machine, table
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
        session = host.Session("threads", "", tables, _no_memory)
        for name in options.queries:
            one = query(name)
            print(f"{name}: {one.title}", file=sys.stderr, flush=True)
            measured[name] = host.measure(one, session, options)
            write(results, options.out)
    return results


def _no_memory(query: Query, arm: str) -> dict[str, Any]:
    raise NotImplementedError("peak memory is measured by benchmarks.host")


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
        help="two of them; 'stock,stock' shows how much the ratio of equal things varies",
    )
    parser.add_argument("--repeats", type=int, default=5, help="pairs of warm runs per query")
    parser.add_argument(
        "--budget", type=float, default=120.0, help="seconds after which a query gets no more pairs"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help=f"default: {OUT}; with --quick, in --data")
    parser.add_argument(
        "--quick", action="store_true", help=f"scale {QUICK_SCALE}, one pair: does it all run?"
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
    options.memory_runs = 0
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
