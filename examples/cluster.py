"""Group-bys on a cluster of what this machine has: its GPUs, or else its cores.

Starts the cluster, checks that the package is on all of it, runs three queries while their tasks
are counted, and shows where the time went::

    python examples/cluster.py
    python examples/cluster.py --scheduler tcp://address:8786    # one that runs already
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

import dask_gpuagg
import machine

ROWS_OF_A_PARTITION = 1_000_000


def part(number: int, rows: int, gpu: bool) -> Any:
    """Readings of a thousand sensors; made on the worker, nothing is sent."""
    rng = np.random.default_rng(number)
    frame = pd.DataFrame(
        {
            "sensor": rng.integers(0, 1000, rows),
            "place": rng.integers(0, 200_000, rows),
            "value": rng.normal(20, 5, rows),
        }
    )
    if not gpu:
        return frame
    import cudf

    return cudf.from_pandas(frame)


def readings(rows: int, gpu: bool) -> dd.DataFrame:
    """All rows, in the memory of the workers."""
    parts = max(-(-rows // ROWS_OF_A_PARTITION), 2)
    sizes = [rows // parts + (i < rows % parts) for i in range(parts)]
    meta = part(0, 2, gpu).iloc[:0]
    return dd.from_map(part, range(parts), sizes, gpu=gpu, meta=meta).persist()


QUERIES = {
    "few groups: merged by a tree": lambda x: x.groupby("sensor").value.agg(
        ["mean", "std", "min", "max"]
    ),
    "many groups": lambda x: x.groupby("place").value.agg(["sum", "count"]),
    "whole groups: rows are exchanged": lambda x: x.groupby("sensor").agg(
        middle=("value", "median"), places=("place", "nunique")
    ),
}


@contextlib.contextmanager
def connected(scheduler: str | None, gpu: bool) -> Iterator[Client]:
    """A client of the cluster that is asked for, or of one of this machine."""
    if scheduler is not None:
        with Client(scheduler) as client:
            yield client
        return
    if gpu:
        from dask_cuda import LocalCUDACluster

        # a worker for each GPU
        with LocalCUDACluster() as cluster, Client(cluster) as client:
            client.register_plugin(dask_gpuagg.GpuWorker())
            yield client
        return
    workers = os.cpu_count() or 1
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def watched(client: Client, query: Any) -> Any:
    """Result of a query, which says every second how many of its tasks are done."""
    future = client.compute(query)
    while True:
        with contextlib.suppress(TimeoutError):
            return future.result(timeout=1)
        grouped = sum(
            worker["metrics"].get("group-by rows", 0)
            for worker in client.scheduler_info(n_workers=-1)["workers"].values()
        )
        print(f"  ... {grouped:,} rows grouped so far by all workers", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, help="1e7, with GPUs 1e8 for each, unless given")
    parser.add_argument("--cpu", action="store_true", help="cores, also where there are GPUs")
    parser.add_argument("--scheduler", help="address of a cluster that runs already")
    given = parser.parse_args()
    gpu = not given.cpu and machine.without_gpu() is None
    with connected(given.scheduler, gpu) as client:
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        print(f"{workers} workers on {'GPUs' if gpu else 'cores'}; {client.dashboard_link}")
        problem = dask_gpuagg.check_cluster(client)
        if problem is not None:
            # the queries would run by stock Dask, with this reason
            sys.exit(f"The plugin cannot run on this cluster: {problem}")
        try:
            print(f"what the workers do: {dask_gpuagg.group_by_page(client)}")
        except RuntimeError as error:
            print(f"no page of group-bys: {error}")
        rows = int(given.rows or (1e8 * workers if gpu else 1e7))
        print(f"making {rows:,} rows on the workers ...", flush=True)
        x = readings(rows, gpu)
        print(f"{len(x):,} rows in {x.npartitions} partitions")
        with dask_gpuagg.enabled():
            for title, build in QUERIES.items():
                print(f"\n=== {title} ===")
                query = build(x)
                print(dask_gpuagg.explain(query), flush=True)
                with dask_gpuagg.profile() as profile:
                    start = time.perf_counter()
                    result = watched(client, query)
                    seconds = time.perf_counter() - start
                print(f"{len(result):,} groups in {seconds:.2f} s\n{profile}")
        print(f"\n{dask_gpuagg.fallbacks()}")


if __name__ == "__main__":
    main()
