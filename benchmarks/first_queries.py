"""The first ``compute()`` of whole queries, and later ones, each arm in a process of its own.

Arms: stock dask-cudf with the plugin off, the plugin with an empty kernel cache, and the plugin
with what that left there. The last call is one of a warm process: nothing compiles any more.
``benchmarks.first_use`` runs them and keeps what they say.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks.first_compiling import settle

PARTITIONS = 2
DTYPES = {"a": "float64", "c": "float32"}
SPECS: dict[str, dict[str, list[str]]] = {
    "one sum": {"a": ["sum"]},
    "five": {"a": ["sum", "count", "min", "max"], "c": ["mean"]},
}


class Keys(NamedTuple):
    """Keys of some rows: their type, how many they are, and which queries group by them."""

    dtype: str
    groups: int
    rows: int = 4_000_000
    specs: tuple[str, ...] = tuple(SPECS)


KEYS = {
    "1,000 int64": Keys("int64", 1_000),
    "1M int32": Keys("int32", 1_000_000),
    "1,000 strings": Keys("string", 1_000),
    "50M int64": Keys("int64", 50_000_000, 50_000_000, ("one sum",)),
}
STOCK, EMPTY, FILLED = "stock", "empty cache", "filled cache"
ARMS = (STOCK, EMPTY, FILLED)
# Calls between the second and the last: each may find that it needs another kernel.
BETWEEN = 4


def queries() -> Iterator[tuple[str, str]]:
    """Name of the keys and of the aggregations of each query."""
    return ((key, spec) for key, keys in KEYS.items() for spec in keys.specs)


def measured() -> Iterator[dict[str, Any]]:
    """A record of each query in each arm."""
    for key, spec in queries():
        with tempfile.TemporaryDirectory() as cache:
            # in this order: the second arm fills the cache of the third
            for arm in ARMS:
                yield in_a_process("benchmarks.first_queries", arm, key, spec, cache)


def in_a_process(module: str, *arguments: str, **variables: str) -> dict[str, Any]:
    """The record that a module prints in a process that has done nothing else."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        # the driver's own cache would make an empty one of ours look filled
        env={**os.environ, "CUDA_CACHE_DISABLE": "1", **variables},
    )
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def child(arm: str, key: str, spec: str, cache: str) -> dict[str, Any]:
    """One query, several times; importing cuDF and making CUDA's context are timed apart."""
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

    def call() -> tuple[float, list[str]]:
        start = time.perf_counter()
        rows.groupby("k").agg(SPECS[spec]).compute()
        cp.cuda.Device().synchronize()
        return time.perf_counter() - start, [] if arm == STOCK else ran()

    first_s, first_kernels = call()
    second_s, _ = call()
    for _ in range(BETWEEN):
        settle()
        call()
    warm_s, warm_kernels = call()
    return {
        "query": f"{spec} by {key}",
        "rows": KEYS[key].rows,
        "arm": arm,
        "first_s": first_s,
        "second_s": second_s,
        "warm_s": warm_s,
        "kernels": first_kernels,
        "warm_kernels": warm_kernels,
        "import_cudf_s": importing,
        "cuda_context_s": context,
    }


def ran() -> list[str]:
    """The kernels of this process's passes since it was last asked."""
    from dask_gpuagg import last_runs
    from dask_gpuagg.reporting.runs import forget

    kernels = [run.decision.kernel for run in last_runs()]
    forget()
    return kernels


def frame(key: str) -> Any:
    """Rows of one kind of key, in device memory."""
    import cudf
    import cupy as cp

    keys = KEYS[key]
    rows = cp.arange(keys.rows, dtype="int64")
    made = cudf.DataFrame({"k": rows * 2_654_435_761 % keys.groups})
    if keys.dtype == "string":
        made["k"] = "key " + made["k"].astype(str)
    else:
        made["k"] = made["k"].astype(keys.dtype)
    for name, dtype in DTYPES.items():
        made[name] = (rows % 97).astype(dtype)
    return made


def line(record: dict[str, Any]) -> str:
    """One record as a line, milliseconds."""
    first, second, warm = (record[f"{which}_s"] * 1e3 for which in ("first", "second", "warm"))
    served = ", by libcudf" if "libcudf" in record["kernels"] else ""
    return (
        f"{record['query']}, {record['arm']}: first call {first:.0f} ms{served}, second "
        f"{second:.0f} ms, in a warm process {warm:.1f} ms"
    )


if __name__ == "__main__":
    print(json.dumps(child(*sys.argv[1:5])))
