"""What the first query of a shape costs: compiling its kernels, or loading them from the cache.

``python -m benchmarks.first_use`` runs the same queries in two processes, the first with an empty
kernel cache and the second with what the first one left there. Importing cuDF and making CUDA's
context are timed apart, and so is a first query of another shape, which finds out what cuDF itself
puts off until it is used. ``benchmarks.first_queries`` adds whole queries beside stock dask-cudf.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROWS = 4_000_000
FEW, MANY = 1_000, 1_000_000
USUAL = ["sum", "count", "min", "max", "mean"]
SPECS: dict[str, dict[str, list[str]]] = {
    "1 aggregation": {"a": ["sum"]},
    "5 aggregations": {"a": ["sum", "count", "min", "max"], "c": ["mean"]},
    "20 aggregations": {
        "a": USUAL,
        "b": ["sum", "min", "max", "var", "std"],
        "c": USUAL,
        "d": ["sum", "min", "max", "first", "last"],
    },
}
DTYPES = {"a": "float64", "b": "int64", "c": "float32", "d": "int32"}
KEYS = {"int64": FEW, "int32, many groups": MANY, "string": FEW}


def dtype_of(key: str) -> str:
    """Of the numbers that are the key, or that strings are made of."""
    return "int32" if key.startswith("int32") else "int64"


def data(key: str, groups: int) -> Any:
    import cudf
    import cupy as cp

    k = cp.arange(ROWS, dtype="int64") * 2_654_435_761 % groups
    frame = cudf.DataFrame({"k": k.astype(dtype_of(key))})
    if key == "string":
        frame["k"] = "key " + frame["k"].astype(str)
    for name, dtype in DTYPES.items():
        frame[name] = (cp.arange(ROWS, dtype="int64") % 97).astype(dtype)
    return frame


def plan_of(key: str, spec: dict[str, list[str]]) -> tuple[Any, Any]:
    import dask.dataframe as dd
    import pandas as pd

    from dask_gpuagg.worker.warmup import examples_of

    rows = pd.DataFrame({"k": pd.Series([], dtype="str" if key == "string" else dtype_of(key))})
    for name, dtype in DTYPES.items():
        rows[name] = pd.Series([], dtype=dtype)
    (example,) = examples_of(dd.from_pandas(rows, npartitions=1).groupby("k").agg(spec))
    return example.plan, example.meta


class Compilations:
    """Units compiled since they were last asked for."""

    def __init__(self) -> None:
        from dask_gpuagg.cuda.query.instantiations import TranslationUnit
        from dask_gpuagg.cuda.runtime import compiler
        from dask_gpuagg.cuda.runtime.compiler import Compiled

        self.compiled: list[float] = []
        original = compiler.compile_source

        def timed(unit: TranslationUnit, architecture: str, *more: str) -> Compiled:
            start = time.perf_counter()
            code = original(unit, architecture, *more)
            self.compiled.append(time.perf_counter() - start)
            return code

        compiler.compile_source = timed

    def taken(self) -> dict[str, Any]:
        """How many, and how long they took."""
        seen, self.compiled = self.compiled, []
        return {"units_compiled": len(seen), "compiling_s": sum(seen)}


def timed(call: Any) -> tuple[float, Any]:
    import cupy as cp

    start = time.perf_counter()
    result = call()
    cp.cuda.Device().synchronize()
    return time.perf_counter() - start, result


def steps(frame: Any, plan: Any, meta: Any) -> tuple[dict[str, float], list[str]]:
    """Seconds of the two steps of a query, and the kernels that ran."""
    from dask_gpuagg import last_runs
    from dask_gpuagg.engines.device import engine

    columns = [frame[c.label] for c in plan.columns]
    partial_s, partial = timed(lambda: engine.partial([frame["k"]], columns, None, plan))
    finalize_s, _ = timed(lambda: engine.finalize([partial, partial], plan, meta))
    kernels = [run.decision.kernel for run in last_runs()[-2:]]
    return {"partial_s": partial_s, "finalize_s": finalize_s}, kernels


def child(cache: str) -> dict[str, Any]:
    """All queries in this process."""
    start = time.perf_counter()
    import cudf

    importing = time.perf_counter() - start
    start = time.perf_counter()
    from cuda.bindings import runtime

    runtime.cudaFree(0)
    context = time.perf_counter() - start
    import dask
    import rmm

    import dask_gpuagg

    dask.config.set({"gpuagg.kernel-cache": cache, "gpuagg.fallback": "raise"})
    rmm.reinitialize(pool_allocator=True, initial_pool_size=8 << 30)
    from dask_gpuagg.cuda.runtime.compiler import sources_hash
    from dask_gpuagg.cuda.runtime.driver import current_device

    compilations = Compilations()
    frames = {key: data(key, groups) for key, groups in KEYS.items()}
    another = plan_of("int64", {"d": ["min", "first"], "b": ["var"]})
    first_s, _ = timed(lambda: steps(frames["int64"], *another))
    cells = []
    other = compilations.taken()
    for key, frame in frames.items():
        for name, spec in SPECS.items():
            plan, meta = plan_of(key, spec)
            first, kernels = steps(frame, plan, meta)
            compiled = compilations.taken()
            again, _ = steps(frame, plan, meta)
            cells.append(
                {
                    "query": f"{name} by {key}",
                    "kernels": kernels,
                    **compiled,
                    "first": first,
                    "again": again,
                    "extra_s": sum(first.values()) - sum(again.values()),
                }
            )
    return {
        "import_cudf_s": importing,
        "cuda_context_s": context,
        "another_query_first_s": first_s,
        "another_query": other,
        "gpu": current_device().name,
        "driver": runtime.cudaDriverGetVersion()[1],
        "cudf": cudf.__version__,
        "plugin": dask_gpuagg.__version__,
        "kernels": sources_hash(),
        "cells": cells,
    }


def in_a_process(cache: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_use", "--child", cache],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "CUDA_CACHE_DISABLE": "1"},
    )
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", metavar="CACHE", help="run the queries in this process")
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("first_use.json"))
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child)))
        return
    from benchmarks import first_queries
    from benchmarks.machine import commit, provenance
    from benchmarks.report import write

    with tempfile.TemporaryDirectory() as cache:
        processes = {"empty cache": in_a_process(cache), "filled cache": in_a_process(cache)}
    shared = ("gpu", "driver", "cudf", "kernels")
    of_all = {name: processes["empty cache"][name] for name in shared}
    for name, process in processes.items():
        for cell in process["cells"]:
            print(
                f"{name}: {cell['query']}: {'+'.join(cell['kernels'])} extra "
                f"{cell['extra_s'] * 1e3:.1f} ms, {cell['units_compiled']} units compiled in "
                f"{cell['compiling_s'] * 1e3:.0f} ms"
            )
    queries = first_queries.measured()
    print(*first_queries.lines(queries), sep="\n")
    report = {
        **provenance(),
        "commit": args.commit or commit(),
        **of_all,
        "rows": ROWS,
        "processes": processes,
        "queries": queries,
    }
    write(report, args.out)


if __name__ == "__main__":
    main()
