"""The first queries of a cluster of one GPU, from Parquet files in memory.

Each arm has a process, a cluster and a kernel cache of its own, but for the last, which has what
the one before it left; nothing is set but the plugin. Planning is timed apart: the first query
imports cuDF and makes CUDA's context in the client. ``benchmarks.first_use`` runs them.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.end_to_end_cluster import Files, Session
from benchmarks.end_to_end_queries import DEVICE, QUERIES, Rows
from benchmarks.first_queries import ARMS, STOCK, in_a_process

ROWS, FILES = 200_000_000, 16
# How many groups each query is asked by.
ASKED = {"five": 1_000_000, "sum": 50_000_000}
LATER = 4
# Of the configuration of the worker, which is another process.
CACHE = "DASK_GPUAGG__KERNEL_CACHE"


def measured() -> Iterator[dict[str, Any]]:
    """A record of each query in each arm."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for name in ASKED:
            with tempfile.TemporaryDirectory() as cache:
                # in this order: the second arm fills the cache of the third
                for arm in ARMS:
                    of_worker = {CACHE: cache}
                    yield in_a_process("benchmarks.first_files", arm, name, folder, **of_worker)


def child(arm: str, name: str, folder: str) -> dict[str, Any]:
    """One query, several times, on a new cluster; the first call waits for nothing."""
    from distributed import wait

    groups = ASKED[name]
    keys = tuple((f"k{number}", number) for number in ASKED.values())
    with Session(DEVICE, 1, "tcp", "60GB", plugin=False) as session:
        files = Files(session, Rows(ROWS, FILES, keys, DEVICE), Path(folder))
        if arm != STOCK:
            import dask_gpuagg

            session.client.register_plugin(dask_gpuagg.GpuWorker())
            dask_gpuagg.enable()

        def call() -> tuple[float, float]:
            start = time.perf_counter()
            result = QUERIES[name].build(files.frame(), f"k{groups}").persist()
            planned = time.perf_counter()
            wait(result)
            done = time.perf_counter()
            del result
            session.settle()
            return planned - start, done - planned

        planning, first = call()
        _, second = call()
        # what has begun is compiled meanwhile
        time.sleep(3)
        later = [call()[1] for _ in range(LATER)]
    return {
        "query": f"{QUERIES[name].title} by {groups:,} groups",
        "rows": ROWS,
        "arm": arm,
        "planning_s": planning,
        "first_s": first,
        "second_s": second,
        "warm_s": statistics.median(later),
    }


def line(record: dict[str, Any]) -> str:
    """One record as a line, milliseconds."""
    steps = ("planning", "first", "second", "warm")
    planning, first, second, warm = (record[f"{step}_s"] * 1e3 for step in steps)
    return (
        f"{record['query']}, from files, {record['arm']}: planned in {planning:.0f} ms, first call "
        f"{first:.0f} ms, second {second:.0f} ms, warm {warm:.0f} ms"
    )


if __name__ == "__main__":
    print(json.dumps(child(*sys.argv[1:4])))
