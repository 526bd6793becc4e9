"""Our kernels against cuDF's group-by on one GPU: columns and DataFrames.

``python -m benchmarks.kernels --rows 1e8`` alternates the arms in one process on one RMM pool,
outputs included, and writes medians, device times of our kernels and the memory floor to JSON.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.report import write

CARDINALITIES = (1, 4, 64, 128, 256, 1_000, 4_000, 8_000)


def data(rows: int, groups: int, key: str, spread: bool = False, seed: int = 1) -> Any:
    """Uniform keys from 0 to ``groups``, or, spread, as many keys from all 64 bits."""
    import cudf
    import cupy as cp

    rng = cp.random.default_rng(seed)
    k = rng.integers(0, groups, rows, dtype="int64").astype(key)
    if spread:
        k = rng.integers(-(2**63), 2**63 - 1, groups, dtype="int64")[k]
    v = rng.random(rows)
    w = rng.random(rows, dtype="float32")
    return cudf.DataFrame({"k": k, "v": v, "w": w})


def arms(frame: Any, query: str) -> dict[str, Callable[[], Any]]:
    import pylibcudf as plc

    from dask_gpuagg.cuda.sampling.repeat import forgotten
    from dask_gpuagg.engines.device.calibrate import aggregator_of

    k, v, w = (frame[c].to_pylibcudf()[0] for c in "kvw")

    def ours(stopwatch: Any = None) -> Any:
        return aggregator_of((k, v, w), query == "five").run(stopwatch=stopwatch)

    def columns() -> Any:
        agg = plc.aggregation
        requests = [plc.groupby.GroupByRequest(v, [agg.sum()])]
        if query == "five":
            of_v = [agg.sum(), agg.count(), agg.min(), agg.max()]
            requests = [
                plc.groupby.GroupByRequest(v, of_v),
                plc.groupby.GroupByRequest(w, [agg.mean()]),
            ]
        return plc.groupby.GroupBy(plc.Table([k])).aggregate(requests)

    def frames() -> Any:
        if query == "sum":
            return frame.groupby("k").agg({"v": "sum"})
        return frame.groupby("k").agg({"v": ["sum", "count", "min", "max"], "w": "mean"})

    def first() -> Any:
        """As if no rows like these had been grouped before."""
        with forgotten():
            return ours()

    return {
        "ours": ours,
        "ours frame": engine_arm(frame, spec_of(query), ["k"]),
        "ours first": first,
        "cudf columns": columns,
        "cudf frame": frames,
    }


def spec_of(query: str) -> dict[str, list[str]]:
    """A query by the name that this benchmark has for it."""
    if query == "five":
        return {"v": ["sum", "count", "min", "max"], "w": ["mean"]}
    return {"v": ["sum"]}


def engine_arm(frame: Any, spec: dict[str, list[str]], keys: list[str]) -> Callable[[], Any]:
    """The device engine on a DataFrame: what one partition costs inside a Dask task."""
    import dask_cudf

    from dask_gpuagg import enabled
    from dask_gpuagg.engines.device.engine import shape_of
    from dask_gpuagg.frontend import logical
    from dask_gpuagg.tasks.tasks import gpuagg_direct

    with enabled():
        lazy = dask_cudf.from_cudf(frame.head(10), npartitions=1)
        read = logical.read(lazy.groupby(keys, observed=True).agg(spec).expr)
    shape = shape_of(read.meta)
    return lambda: gpuagg_direct(frame, *keys, plan=read.plan, shape=shape)


def timed(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    import cupy as cp

    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    cp.cuda.Device().synchronize()
    order, shuffled = list(calls.items()), random.Random(1)
    for _ in range(repeats):
        # what runs before an arm is chance
        shuffled.shuffle(order)
        for name, call in order:
            start = time.perf_counter()
            result = call()
            cp.cuda.Device().synchronize()
            times[name].append((time.perf_counter() - start) * 1e3)
            del result
    return times


def device_time(ours: Callable[..., Any], repeats: int) -> dict[str, float]:
    from dask_gpuagg.cuda.runtime.driver import Stopwatch

    laps: list[dict[str, float]] = []
    for _ in range(repeats):
        stopwatch = Stopwatch()
        ours(stopwatch)
        laps.append(stopwatch.milliseconds())
    # a call like one before it may leave out a step
    names = dict.fromkeys(name for lap in laps for name in lap)
    return {name: statistics.median(lap.get(name, 0.0) for lap in laps) for name in names}


def decision_fields(decision: Any) -> dict[str, Any]:
    """A decision as JSON, without the hot keys: up to 384, in it and in its estimate."""

    def without_hot(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: without_hot(part) for name, part in value.items() if name != "hot"}

    made: dict[str, Any] = without_hot(asdict(decision))
    return made


def peak_bytes(call: Callable[[], Any]) -> int:
    """Device memory that a call takes at most beyond its input and its result."""
    import rmm

    before = rmm.mr.get_current_device_resource()
    counted = rmm.mr.StatisticsResourceAdaptor(before)
    rmm.mr.set_current_device_resource(counted)
    try:
        result = call()
        counts = counted.allocation_counts
        peak = int(counts.peak_bytes - counts.current_bytes)
        del result
    finally:
        rmm.mr.set_current_device_resource(before)
    return peak


def prepare() -> None:
    """One RMM pool for both arms, and for CuPy, and one CPU core.

    Where the scheduler moves a process from core to core between two calls, its own time grows,
    and how often it does is chance.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import dask
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator

    dask.config.set({"gpuagg.compile": "wait"})
    rmm.reinitialize(pool_allocator=True, initial_pool_size=60 << 30)
    import cupy as cp

    cp.cuda.set_allocator(rmm_cupy_allocator)


def prepare_to_fill() -> None:
    """Of one of several processes that compile kernels: they share the GPU's memory."""
    import cupy as cp
    import dask
    from rmm.allocators.cupy import rmm_cupy_allocator

    dask.config.set({"gpuagg.compile": "wait"})
    cp.cuda.set_allocator(rmm_cupy_allocator)


def report_head(at: str | None) -> dict[str, Any]:
    """Where a result was made: machine, commit, GPU, versions, hash of the kernels."""
    import cudf
    from cuda.bindings import runtime

    from benchmarks.machine import commit, provenance
    from dask_gpuagg.cuda.runtime.compiler import sources_hash
    from dask_gpuagg.cuda.runtime.driver import current_device

    return {
        **provenance(),
        "commit": at or commit(),
        "gpu": current_device().name,
        "driver": runtime.cudaDriverGetVersion()[1],
        "cudf": cudf.__version__,
        "kernels": sources_hash(),
        "cores": len(os.sched_getaffinity(0)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--groups", default=",".join(map(str, CARDINALITIES)))
    parser.add_argument("--queries", default="sum,five")
    parser.add_argument("--key", default="int64")
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--spread", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("kernels.json"))
    args = parser.parse_args()
    prepare()
    cells = []
    for groups in (int(float(g)) for g in args.groups.split(",")):
        frame = data(int(args.rows), groups, args.key, args.spread)
        for query in args.queries.split(","):
            calls = arms(frame, query)
            run = calls["ours"]()[2]
            times = timed(calls, args.repeats)
            laps = device_time(calls["ours"], args.repeats)
            median = {name: statistics.median(t) for name, t in times.items()}
            cell = {
                "groups": groups,
                "query": query,
                "kernel": run.decision.kernel,
                "decision": decision_fields(run.decision),
                "spilled": run.spilled,
                "median_ms": median,
                "least_ms": {name: min(t) for name, t in times.items()},
                "peak_bytes": {name: peak_bytes(call) for name, call in calls.items()},
                "device_ms": sum(laps.values()),
                "kernels_ms": laps,
                "ratio_columns": median["cudf columns"] / median["ours"],
                "ratio_frame": median["cudf frame"] / median["ours frame"],
            }
            cells.append(cell)
            shown = " ".join(f"{n} {t:.3f}" for n, t in laps.items())
            print(
                f"{query} g={groups:>9,} {run.decision.kernel} "
                f"R={getattr(run.decision, 'replicas', 1)} "
                f"ours {median['ours']:.3f} (device {cell['device_ms']:.3f}: {shown}) "
                f"first {median['ours first']:.3f} as frame {median['ours frame']:.3f} "
                f"columns {median['cudf columns']:.2f} "
                f"frame {median['cudf frame']:.2f} "
                f"ratio {cell['ratio_columns']:.1f} | {cell['ratio_frame']:.1f} peak "
                + " ".join(f"{b / 2**20:.0f}" for b in cell["peak_bytes"].values())
                + " MiB",
                flush=True,
            )
        del frame
    report = {
        **report_head(args.commit),
        "rows": int(args.rows),
        "key": args.key,
        "spread": args.spread,
        "cells": cells,
    }
    write(report, args.out)


if __name__ == "__main__":
    main()
