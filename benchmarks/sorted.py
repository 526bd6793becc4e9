"""Outputs of whole groups, ours against cuDF, on one GPU: medians, distinct values, lists, order.

``python -m benchmarks.sorted --rows 1e8`` alternates the arms in one process on one RMM pool,
outputs included, and writes medians and the device times of our kernels to JSON.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.kernels import device_time, peak_bytes, timed
from benchmarks.report import write

GROUPS = (1_000, 64_000, 1_000_000, 16_000_000)
QUERIES = (
    "median",
    "median of ints",
    "nunique",
    "nunique of floats",
    "list",
    "sum in order",
    "sum of sorted",
)


def data(rows: int, groups: int, seed: int = 1) -> Any:
    """Uniform int64 keys from 0 to ``groups``, a float64 and an int32 column."""
    import cudf
    import cupy as cp

    rng = cp.random.default_rng(seed)
    return cudf.DataFrame(
        {
            "k": rng.integers(0, groups, rows, dtype="int64"),
            "v": rng.random(rows),
            "i": rng.integers(0, 10_000, rows, dtype="int32"),
        }
    )


def encoded_arm(key: Any, make: Callable[[Any], Any], how: str = "auto") -> Callable[..., Any]:
    """Ours from the key column on: codes, then what ``make`` makes of the rows."""
    from dask_gpuagg.engines.device.aggregator import Aggregator
    from dask_gpuagg.engines.device.groups import SortedRows

    def run(stopwatch: Any = None) -> Any:
        aggregator = Aggregator([key], False)
        aggregator.encode()
        (keys,), _, _ = aggregator.run(stopwatch=stopwatch)
        return keys, make(SortedRows(aggregator.codes, keys.size(), stopwatch, how))

    return run


def sum_arm(key: Any, value: Any, kernel: str) -> Callable[..., Any]:
    from dask_gpuagg.engines.device.aggregator import Aggregator

    def run(stopwatch: Any = None) -> Any:
        aggregator = Aggregator([key], False)
        aggregator.sum(value)
        return aggregator.run(kernel, stopwatch=stopwatch)

    return run


def pairs_arm(key: Any, value: Any) -> Callable[..., Any]:
    """Distinct values without a sort: distinct pairs, then a count."""
    from dask_gpuagg.engines.device.aggregator import Aggregator

    def run(stopwatch: Any = None) -> Any:
        pairs = Aggregator([key, value], True)
        (keys, values), _, _ = pairs.run(stopwatch=stopwatch)
        counts = Aggregator([keys], True)
        counts.count(values)
        return counts.run(stopwatch=stopwatch)

    return run


def frame_arm(frame: Any) -> Callable[[], Any]:
    """The device engine on a DataFrame, groups in order."""
    import dask_cudf

    from dask_gpuagg import enabled
    from dask_gpuagg.engines.device.engine import shape_of
    from dask_gpuagg.frontend import logical
    from dask_gpuagg.tasks.tasks import gpuagg_direct

    with enabled():
        lazy = dask_cudf.from_cudf(frame.head(10), npartitions=1)
        read = logical.read(lazy.groupby("k", sort=True).agg({"v": "sum"}).expr)
    shape = shape_of(read.meta)
    return lambda: gpuagg_direct(frame, "k", plan=read.plan, shape=shape)


def arms(frame: Any, query: str) -> dict[str, Callable[..., Any]]:
    """The calls to compare, ours and cuDF's first."""
    import pylibcudf as plc

    from dask_gpuagg.engines.device.columns import gather_columns

    k, v, i = (frame[c].to_pylibcudf()[0] for c in "kvi")

    def cudf_arm(value: Any, aggregation: Any, keys: Any = k, **of_keys: Any) -> Any:
        request = plc.groupby.GroupByRequest(value, [aggregation])
        return lambda: plc.groupby.GroupBy(plc.Table([keys]), **of_keys).aggregate([request])

    agg = plc.aggregation
    if query.startswith("median"):
        column = i if query == "median of ints" else v

        def median(rows: Any) -> Any:
            return rows.quantile(column, 0.5, "linear")

        return {
            "ours": encoded_arm(k, median),
            "cudf": cudf_arm(column, agg.median()),
            "sorted": encoded_arm(k, median, "sort"),
        }
    if query.startswith("nunique"):
        column = v if query == "nunique of floats" else i

        def nunique(rows: Any) -> Any:
            return rows.nunique(column)

        return {
            "ours": encoded_arm(k, nunique),
            "cudf": cudf_arm(column, agg.nunique()),
            "sorted": encoded_arm(k, nunique, "sort"),
            "pairs": pairs_arm(k, column),
        }
    if query == "list":
        ours = encoded_arm(k, lambda rows: rows.list(v))
        return {"ours": ours, "cudf": cudf_arm(v, agg.collect_list())}
    if query == "sum in order":
        by_cudf = lambda: frame.groupby("k", sort=True).agg({"v": "sum"})  # noqa: E731
        return {"ours": frame_arm(frame[["k", "v"]]), "cudf": by_cudf}
    ascending = [plc.types.Order.ASCENDING]
    after = [plc.types.NullOrder.AFTER]
    order = plc.sorting.stable_sorted_order(plc.Table([k]), ascending, after)
    (in_order,) = gather_columns([k], order)
    return {
        "ours": sum_arm(in_order, v, "auto"),
        "cudf": cudf_arm(v, agg.sum(), in_order),
        "cudf told": cudf_arm(v, agg.sum(), in_order, keys_are_sorted=plc.types.Sorted.YES),
        "pgb": sum_arm(in_order, v, "pgb"),
        "lphga": sum_arm(in_order, v, "lphga"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--groups", default=",".join(map(str, GROUPS)))
    parser.add_argument("--queries", default=",".join(QUERIES))
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("sorted.json"))
    args = parser.parse_args()
    import cudf
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator

    rmm.reinitialize(pool_allocator=True, initial_pool_size=60 << 30)
    import cupy as cp

    cp.cuda.set_allocator(rmm_cupy_allocator)
    from cuda.bindings import runtime

    from benchmarks.machine import commit, provenance
    from dask_gpuagg.cuda.runtime.compiler import sources_hash
    from dask_gpuagg.cuda.runtime.driver import current_device

    cells = []
    for groups in (int(float(g)) for g in args.groups.split(",")):
        frame = data(int(args.rows), groups)
        for query in args.queries.split(","):
            calls = arms(frame, query)
            times = timed(calls, args.repeats)
            median = {name: statistics.median(t) for name, t in times.items()}
            laps = {} if query == "sum in order" else device_time(calls["ours"], args.repeats)
            cell = {
                "groups": groups,
                "query": query,
                "median_ms": median,
                "least_ms": {name: min(t) for name, t in times.items()},
                "peak_bytes": {name: peak_bytes(call) for name, call in calls.items()},
                "device_ms": sum(laps.values()) if laps else None,
                "kernels_ms": laps,
                "ratio": median["cudf"] / median["ours"],
            }
            cells.append(cell)
            print(
                f"{query} g={groups:,} "
                + " ".join(f"{name} {t:.2f}" for name, t in median.items())
                + f" ratio {cell['ratio']:.1f} | "
                + " ".join(f"{n} {t:.3f}" for n, t in laps.items())
                + " | peak "
                + " ".join(f"{b / 2**20:.0f}" for b in cell["peak_bytes"].values())
                + " MiB",
                flush=True,
            )
            del calls
        del frame
    device = current_device()
    report = {
        **provenance(),
        "commit": args.commit or commit(),
        "gpu": device.name,
        "driver": runtime.cudaDriverGetVersion()[1],
        "rows": int(args.rows),
        "cudf": cudf.__version__,
        "kernels": sources_hash(),
        "cells": cells,
    }
    write(report, args.out)


if __name__ == "__main__":
    main()
