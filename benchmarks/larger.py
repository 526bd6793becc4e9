"""Rows of host memory through the GPU, against the bandwidth of the link that they go through.

``python -m benchmarks.larger --gigabytes 20`` prints for each number of groups the seconds of our
stream (``gpuagg.engine: device``), of our host engine, of Polars and of DuckDB where these are
installed, and what share of the measured bandwidth from pinned memory the stream reaches. Medians
of alternating repetitions in one process; the collection is persisted before.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_gpuagg
from benchmarks.machine import provenance

ROW_BYTES = 16
PARTITION_ROWS = 1 << 24


def made(rows: int, groups: int) -> pd.DataFrame:
    """Int64 keys of so many values, and float64 values."""
    rng = np.random.default_rng(7)
    keys = rng.integers(0, groups, rows)
    return pd.DataFrame({"k": keys, "x": rng.random(rows)}, copy=False)


def bandwidth(size: int = 1 << 30) -> float:
    """Bytes a second from pinned host memory to the device, in one copy."""
    import cupy as cp

    source = cp.cuda.alloc_pinned_memory(size)
    target = cp.empty(size, dtype=cp.uint8)
    seconds = []
    for _ in range(5):
        cp.cuda.Device().synchronize()
        started = time.perf_counter()
        target.data.copy_from_host(source.ptr, size)
        cp.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - started)
    return size / statistics.median(seconds)


def arms(
    whole: pd.DataFrame, collection: Any, aggregations: list[str]
) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""

    def ours(engine: str) -> Callable[[], Any]:
        def run() -> Any:
            with dask_gpuagg.enabled(), dask.config.set({"gpuagg.engine": engine}):
                return collection.groupby("k").x.agg(aggregations).compute()

        return run

    found = {"stream": ours("device"), "host": ours("auto")}
    if importlib.util.find_spec("polars") is not None:
        import polars as pl

        rows = pl.DataFrame({"k": whole["k"].to_numpy(), "x": whole["x"].to_numpy()})
        asked = [getattr(pl.col("x"), name)().alias(name) for name in aggregations]
        found["polars"] = lambda: rows.group_by("k").agg(asked)
    if importlib.util.find_spec("duckdb") is not None:
        import duckdb

        outputs = ", ".join(f"{'avg' if a == 'mean' else a}(x) as {a}" for a in aggregations)
        found["duckdb"] = lambda: duckdb.sql(
            f"select k, {outputs} from whole group by k"
        ).fetchnumpy()
    return found


def measured(
    rows: int, groups: int, aggregations: list[str], repeats: int, wanted: list[str]
) -> dict[str, Any]:
    """Seconds of each arm, and what the stream reaches of the link's bandwidth."""
    whole = made(rows, groups)
    parts = max(1, rows // PARTITION_ROWS)
    collection = dd.from_pandas(whole, npartitions=parts, sort=False).persist()
    timed = {n: run for n, run in arms(whole, collection, aggregations).items() if n in wanted}
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    found: dict[str, int] = {}
    for _ in range(repeats + 1):
        for name, run in timed.items():
            gc.collect()
            started = time.perf_counter()
            result = run()
            seconds[name].append(time.perf_counter() - started)
            found[name] = len(result) if name != "duckdb" else len(result["k"])
            del result
    assert len(set(found.values())) == 1, found
    # the first of each may compile
    medians = {name: statistics.median(times[1:] or times) for name, times in seconds.items()}
    return {
        "rows": rows,
        "groups": next(iter(found.values())),
        "aggregations": aggregations,
        "gigabytes": rows * ROW_BYTES / 1e9,
        "seconds": medians,
        "first": {name: times[0] for name, times in seconds.items()},
    }


def main() -> None:
    """Measure and print; write the results where a file is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--groups", type=int, nargs="+", default=[1_000, 10_000_000])
    parser.add_argument("--aggregations", nargs="+", default=["sum", "count"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--arms", nargs="+", default=["stream", "host", "polars", "duckdb"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    link = bandwidth()
    print(f"link: {link / 1e9:.1f} GB/s from pinned memory")
    results = []
    for groups in given.groups:
        rows = int(given.gigabytes * 1e9 / ROW_BYTES)
        one = measured(rows, groups, given.aggregations, given.repeats, given.arms)
        one["link"] = link
        results.append(one)
        rate = {name: one["gigabytes"] / s for name, s in one["seconds"].items()}
        shown = ", ".join(f"{n} {s:.2f} s ({rate[n]:.1f} GB/s)" for n, s in one["seconds"].items())
        share = f"; {rate['stream'] * 1e9 / link:.0%} of the link" if "stream" in rate else ""
        print(f"{one['gigabytes']:.0f} GB by {one['groups']:,} groups: {shown}{share}", flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps({"provenance": provenance(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
