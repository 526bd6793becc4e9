"""What a user meets of a query on a cluster: stock Dask, tuned, ours, peers, and the floor.

``python -m benchmarks.end_to_end`` runs queries on rows persisted in a GPU cluster and on Parquet
files, the arms alternating in one process, and writes the results file after every cell.
``--engine host`` does the same with pandas. ``README.md`` says what is measured.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import end_to_end_results as results_file
from benchmarks import machine
from benchmarks.end_to_end_arms import (
    ARMS,
    CUDF_POLARS,
    DEFAULT,
    DUCKDB,
    FLOOR,
    OURS,
    POLARS,
    TUNED,
)
from benchmarks.end_to_end_cluster import Session, without_frames
from benchmarks.end_to_end_measure import PARQUET, PERSISTED, Bench, Cell, measure
from benchmarks.end_to_end_queries import DEVICE, HOST, QUERIES
from benchmarks.host import list_of
from benchmarks.report import write

OUT = {
    DEVICE: Path("benchmarks/results/nvidia-h200/end_to_end.json"),
    HOST: Path("benchmarks/results/end_to_end_host.json"),
}
DEFAULTS: dict[str, dict[str, Any]] = {
    DEVICE: {
        "rows": 1e9,
        "parquet_rows": 4e8,
        "groups": "1e3,1e6,5e7",
        "partitions": "32,1024",
        "files": 32,
        "repeats": 5,
        "workers": 1,
        "arms": (DEFAULT, TUNED, OURS, FLOOR, CUDF_POLARS),
    },
    HOST: {
        "rows": 2e7,
        "parquet_rows": 2e7,
        "groups": "1e3,1e6,8e6",
        "partitions": "16",
        "files": 16,
        "repeats": 3,
        "workers": os.cpu_count() or 1,
        "arms": (DEFAULT, TUNED, OURS, FLOOR, POLARS, DUCKDB),
    },
}
QUICK = {
    "rows": 20_000,
    "parquet_rows": 20_000,
    "groups": "100,5000",
    "partitions": "4",
    "files": 2,
    "repeats": 1,
}


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
    results = results_file.load(options.out, options.append)
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
                "input": cell.kind,
                "query": cell.query,
                "rows": cell.rows,
                "groups": cell.groups,
                "partitions": cell.partitions,
                "workers": options.workers,
                "protocol": options.protocol,
                "arms": {},
                "ratios": {},
            }
            try:
                measure(bench, cell, entry)
            except Exception as error:
                entry["error"] = str(without_frames(error))
            if "error" in entry:
                session.recover()
            results_file.add(results, entry)
            write(results, options.out)
            print(results_file.line(entry), flush=True)
        bench.let_go()
    write(results, options.out)
    left_out = results["runs"][-1]["left_out"]
    if left_out:
        print(f"left out at the deadline: {', '.join(left_out)}")
    return results


def about_this(options: argparse.Namespace, session: Session) -> dict[str, Any]:
    """Where and how the cells of this call were measured."""
    about = machine.provenance()
    about["commit"] = options.commit or about["commit"]
    about["versions"] |= results_file.versions()
    gpus = sorted(session.client.run(gpu).values()) if options.engine == DEVICE else []
    names = ("engine", "workers", "protocol", "pool", "repeats", "budget", "arms")
    return about | {
        "gpus": gpus,
        "arguments": {name: getattr(options, name) for name in names},
        "left_out": [],
    }


def gpu() -> str:
    """A worker's GPU, and the newest CUDA that its driver has."""
    from cuda.bindings import runtime

    from dask_gpuagg.cuda.runtime.driver import current_device

    return f"{current_device().name}, CUDA {runtime.cudaDriverGetVersion()[1]}"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options; ``chosen`` are the cells."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.end_to_end", description=__doc__)
    parser.add_argument("--engine", choices=(DEVICE, HOST), default=DEVICE)
    parser.add_argument("--cells", default="*", help="patterns of names, by commas; see --list")
    parser.add_argument("--arms", type=list_of(ARMS), help=f"of {', '.join(ARMS)}")
    parser.add_argument("--rows", type=float, help="persisted, in all partitions together")
    parser.add_argument("--parquet-rows", type=float, help="in all files together")
    parser.add_argument("--groups", help="numbers, by commas")
    parser.add_argument("--partitions", help="of the persisted rows: numbers, by commas")
    parser.add_argument("--files", type=int, help="how many Parquet files")
    parser.add_argument("--parquet-dir", type=Path, help="default: the RAM disk, if it has room")
    parser.add_argument("--keep-files", action="store_true", help="for the next call")
    parser.add_argument("--workers", type=int, help="GPUs, or processes of the host engine")
    parser.add_argument("--protocol", default="tcp", help="tcp or ucx")
    parser.add_argument("--pool", default="100GB", help="device memory of each worker's RMM pool")
    parser.add_argument("--repeats", type=int, help="after the first run of each arm")
    parser.add_argument("--budget", type=float, default=20, help="seconds of an arm in a cell")
    parser.add_argument(
        "--deadline", type=float, default=1e6, help="seconds after which no run is begun"
    )
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, help="results file")
    parser.add_argument("--append", action="store_true", help="add to the results file")
    parser.add_argument("--quick", action="store_true", help="tiny: does it all run?")
    parser.add_argument("--list", action="store_true", help="print the names of the cells and stop")
    options = parser.parse_args(argv)
    defaults = DEFAULTS[options.engine] | (QUICK if options.quick else {})
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.rows, options.parquet_rows = int(options.rows), int(options.parquet_rows)
    options.groups = [int(float(text)) for text in options.groups.split(",")]
    options.partitions = [int(float(text)) for text in options.partitions.split(",")]
    if options.out is None:
        # A trial does not overwrite the results that are kept.
        quick = Path("data/end_to_end-quick.json")
        options.out = quick if options.quick else OUT[options.engine]
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
