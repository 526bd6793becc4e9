"""Cost of ``gpuagg.deterministic``: exact sums beside ordinary ones.

``python -m benchmarks.deterministic --rows 2e7`` sums a float64 column of host partitions, and with
``--engine device`` one of cuDF, by integer keys: dense ones, and the same times a large prime. Both
settings alternate in one process, on persisted partitions. Answers are compared with each other.
What is under way is printed, with the seconds that it took. The file is written after every cell.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np

import dask_gpuagg
from benchmarks.machine import commit, provenance
from benchmarks.report import write
from dask_gpuagg.reporting.runs import forget

GROUPS = (10, 1_000, 4_000, 1_000_000)
# Distances that no table's slots follow.
FAR = 7_000_000_003
KEYS = {"dense": 1, "far": FAR}
# A standard normal has values that differ by a factor of 10**9; the others hold a few digits.
VALUES = ("normal", "cents")


def host_data(rows: int, groups: int, keys: str, values: str, partitions: int) -> Any:
    """A collection of pandas."""
    import dask.dataframe as dd
    import pandas as pd

    rng = np.random.default_rng(1)
    key = rng.integers(0, groups, rows) * KEYS[keys]
    x = rng.normal(size=rows) if values == "normal" else rng.integers(0, 10**6, rows) / 100
    return dd.from_pandas(pd.DataFrame({"k": key, "x": x}), npartitions=partitions, sort=False)


def device_data(rows: int, groups: int, keys: str, values: str, partitions: int) -> Any:
    """A collection of cuDF, drawn on the device: no row is copied or hashed."""
    import cudf
    import cupy as cp
    import dask.dataframe as dd

    def draw(part: int) -> Any:
        # its newer generators are compiled first, which takes longer than all of this
        cp.random.seed(part + 1)
        count = rows // partitions

        def below(most: int) -> Any:
            return (cp.random.random_sample(count) * most).astype("int64")

        key = below(groups) * KEYS[keys]
        x = cp.random.standard_normal(count) if values == "normal" else below(10**6) / 100
        return cudf.DataFrame({"k": key, "x": x})

    meta = cudf.DataFrame({"k": cp.empty(0, "int64"), "x": cp.empty(0)})
    return dd.from_map(draw, range(partitions), meta=meta, enforce_metadata=False).persist()


def timed(
    collection: Any, repeats: int, wait: Callable[[], None]
) -> tuple[dict[bool, list[float]], dict[bool, Any]]:
    """Seconds of each repetition and the last result, by setting; the first is not counted.

    ``wait`` is for what the device has still to do.
    """
    seconds: dict[bool, list[float]] = {False: [], True: []}
    results = {}
    for repetition in range(repeats + 1):
        for exact in (False, True):
            forget()
            with dask.config.set({"gpuagg.deterministic": exact}):
                started = time.perf_counter()
                made = collection.groupby("k").x.sum().compute()
                wait()
                took = time.perf_counter() - started
            results[exact] = made.sort_index().to_numpy()
            if repetition:
                seconds[exact].append(took)
            else:
                print(f"  first {'exact' if exact else 'ordinary'} sum: {took:.1f} s", flush=True)
    return seconds, results


def device_times(frame: Any, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each kernel, by arm."""
    from benchmarks.gpu import aggregator_of, device_time

    k, x = (frame[c].to_pylibcudf()[0] for c in "kx")

    def run(name: str, stopwatch: Any = None) -> Any:
        return aggregator_of([k], [(x, [name])]).run(stopwatch=stopwatch)

    arms = {"ordinary": "float_sum", "exact": "exact_total"}
    return {arm: device_time(partial(run, name), repeats) for arm, name in arms.items()}


def kernels() -> list[str]:
    """Which kernels ran last, the one of most rows first."""
    runs = sorted(dask_gpuagg.last_runs(), key=lambda run: -run.rows)
    return [run.decision.kernel for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=2e7)
    parser.add_argument("--engine", choices=("host", "device"), default="host")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--groups", default=",".join(map(str, GROUPS)))
    parser.add_argument("--keys", default=",".join(KEYS))
    parser.add_argument("--values", default=",".join(VALUES))
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("deterministic.json"))
    args = parser.parse_args()
    dask.config.set({"scheduler": "synchronous", "gpuagg.fallback": "raise"})
    dask.config.set({"gpuagg.compile": "wait"})
    dask_gpuagg.enable()
    data = host_data if args.engine == "host" else device_data
    wait: Callable[[], None] = lambda: None  # noqa: E731
    head: dict[str, Any] = {**provenance(), "commit": args.commit or commit()}
    if args.engine == "device":
        from benchmarks.gpu import prepare, report_head

        prepare()
        import cupy as cp

        wait = cp.cuda.Device().synchronize
        head = report_head(args.commit)
    head |= {"engine": args.engine, "rows": int(args.rows), "partitions": args.partitions}
    head["repeats"] = args.repeats
    numbers = [int(float(text)) for text in args.groups.split(",")]
    cells: list[dict[str, Any]] = []
    for groups, keys, values in itertools.product(
        numbers, args.keys.split(","), args.values.split(",")
    ):
        print(f"{groups:,} groups, {keys} keys, {values}", flush=True)
        collection = data(int(args.rows), groups, keys, values, args.partitions)
        wait()
        seconds, results = timed(collection, args.repeats, wait)
        error = np.abs(results[True] - results[False]).max()
        assert error <= 1e-9 * np.abs(results[True]).max() + 1e-6, error
        median = {exact: statistics.median(s) * 1e3 for exact, s in seconds.items()}
        cells.append({
            "groups": groups, "keys": keys, "values": values,
            "ordinary_ms": round(median[False], 3), "exact_ms": round(median[True], 3),
            "ratio": round(median[True] / median[False], 2), "kernels": kernels(),
        })  # fmt: skip
        write({**head, "cells": cells}, args.out)
        if args.engine == "device":
            cells[-1]["device_ms"] = device_times(collection.compute(), args.repeats)
            write({**head, "cells": cells}, args.out)
        print(cells[-1], flush=True)
        del collection, results


if __name__ == "__main__":
    main()
