"""Group-bys from Parquet files on the CPU: the plugin, stock Dask, Polars and DuckDB.

All arms read the same files and run in one process, in another order each time. Wall and CPU
seconds of a run are kept, the CPU's because they vary less where other programs run too. Libraries
that are not installed are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import importlib.util
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

from benchmarks import machine, report

OURS, STOCK, POLARS, DUCKDB = "ours", "stock", "polars", "duckdb"
ARMS = (OURS, STOCK, POLARS, DUCKDB)
PEERS = (POLARS, DUCKDB)
OUT = Path("benchmarks/results/host_peers.json")

# pairs of column and function
Aggregations = Sequence[tuple[str, str]]

# integer keys and the number of their values, and keys of text
INTEGERS = {"few": 1_000, "many": 1_000_000, "most": 8_000_000}
TEXTS = {"name": 100_000, "kind": 100}


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """A query: its keys, and pairs of column and aggregation."""

    name: str
    title: str
    keys: tuple[str, ...]
    aggregations: tuple[tuple[str, str], ...]


_FIVE = (("v", "sum"), ("v", "count"), ("v", "min"), ("v", "max"), ("w", "mean"))
QUERIES = (
    Query("sum_few", "sum by 1,000 groups", ("few",), (("v", "sum"),)),
    Query("five_few", "five aggregations by 1,000", ("few",), _FIVE),
    Query("five_many", "five aggregations by 1,000,000", ("many",), _FIVE),
    Query("sum_most", "sum by 8,000,000", ("most",), (("v", "sum"),)),
    Query("sum_name", "sum by 100,000 strings", ("name",), (("v", "sum"),)),
    Query("two_keys", "mean and std by two keys", ("kind", "few"), (("v", "mean"), ("w", "std"))),
    Query("median", "median by 1,000", ("few",), (("v", "median"),)),
    Query("nunique", "distinct values by 1,000", ("few",), (("many", "nunique"),)),
)


def draw(rows: int, seed: int) -> pd.DataFrame:
    """The rows of one file."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {k: rng.integers(0, n, rows) for k, n in INTEGERS.items()}
    for label, number in TEXTS.items():
        columns[label] = np.char.add(label[0], rng.integers(0, number, rows).astype(str))
    return pd.DataFrame(columns | {"v": rng.random(rows), "w": rng.random(rows, dtype="f4")})


def write_files(folder: Path, rows: int, files: int) -> None:
    """Write the files that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        path = folder / f"{i:03d}.parquet"
        if not path.exists():
            # a name of its own until all is written
            part = path.with_suffix(".part")
            draw(rows // files, i).to_parquet(part, index=False, row_group_size=1 << 24)
            part.replace(path)


def with_dask(frame: Any, query: Query, on: bool) -> Any:
    """The query by Dask, with the plugin or without."""
    import dask_gpuagg

    spec: dict[str, list[str]] = {}
    for column, function in query.aggregations:
        spec.setdefault(column, []).append(function)
    grouped = frame.groupby(list(query.keys))
    with dask_gpuagg.enabled() if on else contextlib.nullcontext():
        ((column, functions),) = list(spec.items())[:1]
        if len(spec) == len(functions) == 1:  # stock Dask has the whole ones as methods alone
            return getattr(grouped[column], functions[0])().compute().to_frame()
        return grouped.agg(spec).compute()


def by_polars(
    files: str, keys: Sequence[str], aggregations: Aggregations, engine: Any = "streaming"
) -> Any:
    """A query by Polars' streaming engine, or another of its engines."""
    import polars as pl

    outputs = [
        getattr(pl.col(column), function.replace("nunique", "n_unique"))().alias(
            f"{column}_{function}"
        )
        for column, function in aggregations
    ]
    return pl.scan_parquet(files).group_by(*keys).agg(outputs).collect(engine=engine)


SQL = {"mean": "avg({})", "std": "stddev({})", "nunique": "count(distinct {})"}


def by_duckdb(files: str, keys: Sequence[str], aggregations: Aggregations) -> Any:
    """A query by DuckDB, to a table of its own: one thread would hand over the rows."""
    import duckdb

    outputs = ", ".join(
        f"{SQL.get(function, function + '({})').format(column)} as {column}_{function}"
        for column, function in aggregations
    )
    labels = ", ".join(keys)
    connection = duckdb.connect()
    connection.execute(
        f"create temp table answer as select {labels}, {outputs} "
        f"from read_parquet('{files}') group by {labels}"
    )
    return connection


def frame_of(result: Any, query: Query) -> pd.DataFrame:
    """An arm's answer, ordered by key, as plain numbers."""
    if isinstance(result, pd.DataFrame):
        found = result.reset_index()
    elif hasattr(result, "to_dict"):
        found = pd.DataFrame({name: column.to_numpy() for name, column in result.to_dict().items()})
    else:
        found = pd.DataFrame(result.execute("select * from answer").fetchnumpy())
    found.columns = pd.Index([*query.keys, *range(len(query.aggregations))])
    for key in query.keys:
        found[key] = found[key].astype("str" if key in TEXTS else "int64")
    return found.sort_values(list(query.keys), ignore_index=True).astype(
        dict.fromkeys(range(len(query.aggregations)), "float64")
    )


def arms_of(folder: Path, query: Query) -> dict[str, Callable[[], Any]]:
    """Calls that run the query, by arm; Dask's collection of the files is made once, before."""
    frame, files = dd.read_parquet(folder), f"{folder}/*.parquet"
    made: dict[str, Callable[[], Any]] = {
        OURS: lambda: with_dask(frame, query, True),
        STOCK: lambda: with_dask(frame, query, False),
        POLARS: lambda: by_polars(files, query.keys, query.aggregations),
        DUCKDB: lambda: by_duckdb(files, query.keys, query.aggregations),
    }
    return {
        name: run
        for name, run in made.items()
        if name not in PEERS or importlib.util.find_spec(name) is not None
    }


def equal(found: pd.DataFrame, expected: pd.DataFrame) -> bool:
    """Whether two answers are equal but for the rounding of float32 sums."""
    try:
        pd.testing.assert_frame_equal(found, expected, rtol=1e-4)
    except AssertionError:
        return False
    return True


def measure(folder: Path, query: Query, repeats: int) -> dict[str, Any]:
    """Run one query in all arms, and return what was seen."""
    runs = arms_of(folder, query)
    answers = {name: frame_of(run(), query) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    order = random.Random(0)
    for _ in range(repeats):
        for name in order.sample(list(runs), len(runs)):
            gc.collect()
            wall, used = time.perf_counter(), time.process_time()
            runs[name]()
            seconds[name].append(round(time.perf_counter() - wall, 4))
            cpu[name].append(round(time.process_time() - used, 4))
    median = {name: statistics.median(times) for name, times in seconds.items()}
    best = min((median[name] for name in PEERS if name in median), default=None)
    return {
        "name": query.name,
        "title": query.title,
        "median": median,
        "median_cpu": {name: statistics.median(times) for name, times in cpu.items()},
        "to_best": None if best is None else round(median[OURS] / best, 2),
        "to_stock": round(median[OURS] / median[STOCK], 2),
        "equal": {name: equal(answer, answers[OURS]) for name, answer in answers.items()},
        "seconds": seconds,
        "cpu": cpu,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Write the files, measure, write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_peers", description=__doc__)
    parser.add_argument("--rows", type=float, default=2e7)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--queries", default=",".join(query.name for query in QUERIES))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--append", action="store_true", help="keep what --out has of other queries"
    )
    options = parser.parse_args(argv)
    rows, wanted = int(options.rows), options.queries.split(",")
    folder = options.data / f"host_peers_{rows}_{options.files}"
    write_files(folder, rows, options.files)
    made = machine.provenance()
    results = made | {
        "versions": made["versions"] | machine.installed(PEERS),
        "rows": rows,
        "files": options.files,
        "repeats": options.repeats,
        "cells": [],
    }
    if options.append and options.out.exists():
        earlier = json.loads(options.out.read_text())["cells"]
        results["cells"] = [cell for cell in earlier if cell["name"] not in wanted]
    order = [query.name for query in QUERIES]
    with dask.config.set(scheduler="threads"):
        for query in QUERIES:
            if query.name in wanted:
                cell = measure(folder, query, options.repeats) | {"commit": made["commit"]}
                results["cells"].append(cell)
                results["cells"].sort(key=lambda cell: order.index(cell["name"]))
                report.write(results, options.out)
                shown = {name: cell[name] for name in ("name", "median", "to_best", "equal")}
                print(shown, flush=True)


if __name__ == "__main__":
    main()
