"""The first and the second ``compute()`` of whole queries, each arm in a process of its own.

Arms: stock dask-cudf with the plugin off, the plugin with an empty kernel cache, and the plugin
with what that left there. ``benchmarks.first_use`` runs them and keeps what they say.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

ROWS = 4_000_000
PARTITIONS = 2
DTYPES = {"a": "float64", "c": "float32"}
SPECS: dict[str, dict[str, list[str]]] = {
    "one sum": {"a": ["sum"]},
    "five": {"a": ["sum", "count", "min", "max"], "c": ["mean"]},
}
# Each with its number of groups.
KEYS = {"int64": 1_000, "int32": 1_000_000, "string": 1_000}
STOCK, EMPTY, FILLED = "stock", "empty cache", "filled cache"
ARMS = (STOCK, EMPTY, FILLED)


def queries() -> Iterator[tuple[str, str]]:
    """Kind of the keys and name of the aggregations of each query."""
    return ((key, spec) for key in KEYS for spec in SPECS)


def measured() -> list[dict[str, Any]]:
    """A record of each query in each arm."""
    records = []
    for key, spec in queries():
        with tempfile.TemporaryDirectory() as cache:
            # in this order: the second arm fills the cache of the third
            records += [in_a_process(arm, key, spec, cache) for arm in ARMS]
    return records


def in_a_process(arm: str, key: str, spec: str, cache: str) -> dict[str, Any]:
    """What ``child`` says in a process that has done nothing else."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_queries", arm, key, spec, cache],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        # the driver's own cache would make an empty one of ours look filled
        env={**os.environ, "CUDA_CACHE_DISABLE": "1"},
    )
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def child(arm: str, key: str, spec: str, cache: str) -> dict[str, Any]:
    """One query, twice; importing cuDF and making CUDA's context are timed apart."""
    start = time.perf_counter()
    import cudf  # noqa: F401
    import dask_cudf

    importing = time.perf_counter() - start
    start = time.perf_counter()
    import cupy as cp
    import dask
    import rmm

    cp.cuda.Device().synchronize()
    rmm.reinitialize(pool_allocator=True, initial_pool_size=8 << 30)
    context = time.perf_counter() - start
    dask.config.set({"scheduler": "sync", "gpuagg.kernel-cache": cache})
    if arm != STOCK:
        import dask_gpuagg

        dask_gpuagg.enable()
    rows = dask_cudf.from_cudf(frame(key), npartitions=PARTITIONS)
    cp.cuda.Device().synchronize()
    seconds, kernels = [], []
    for _ in range(2):
        start = time.perf_counter()
        rows.groupby("k").agg(SPECS[spec]).compute()
        cp.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - start)
        kernels.append(ran() if arm != STOCK else [])
    return {
        "query": f"{spec} by {key}",
        "arm": arm,
        "first_s": seconds[0],
        "second_s": seconds[1],
        "kernels": kernels,
        "import_cudf_s": importing,
        "cuda_context_s": context,
    }


def ran() -> list[str]:
    """The kernels of this process's passes so far."""
    from dask_gpuagg import last_runs

    return [run.decision.kernel for run in last_runs()]


def frame(key: str) -> Any:
    """Rows of one kind of key, in device memory."""
    import cudf
    import cupy as cp

    numbers = cp.arange(ROWS, dtype="int64") * 2_654_435_761 % KEYS[key]
    made = cudf.DataFrame({"k": numbers.astype("int32" if key == "int32" else "int64")})
    if key == "string":
        made["k"] = "key " + made["k"].astype(str)
    for name, dtype in DTYPES.items():
        made[name] = (cp.arange(ROWS, dtype="int64") % 97).astype(dtype)
    return made


def lines(records: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each query: milliseconds of the first call of each arm beside stock's."""
    for key, spec in queries():
        query = f"{spec} by {key}"
        first = {r["arm"]: r["first_s"] * 1e3 for r in records if r["query"] == query}
        rest = ", ".join(
            f"{arm} {first[arm]:.0f} ms ({first[arm] - first[STOCK]:+.0f})" for arm in ARMS[1:]
        )
        yield f"first call of {query}: {STOCK} {first[STOCK]:.0f} ms, {rest}"


if __name__ == "__main__":
    print(json.dumps(child(*sys.argv[1:5])))
