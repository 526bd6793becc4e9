"""Cost of the first calls of whole queries, beside stock dask-cudf's.

``python -m benchmarks.first_use`` measures parts, and writes its file after every query.

queries
    The first ``compute()`` of whole queries, and later ones. The last is a call of a warm process:
    nothing compiles any more.
files
    The first queries of a cluster of one GPU, from Parquet files in memory. Planning is timed
    apart: the first query imports cuDF and makes CUDA's context in the client. Only where
    ``--parts`` names it.

Arms, each in a process of its own: stock dask-cudf with the plugin off, the plugin with an empty
kernel cache, and the plugin with what that left there.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import machine
from benchmarks.report import write

Record = dict[str, Any]

STOCK, EMPTY, FILLED = "stock", "empty cache", "filled cache"
ARMS = (STOCK, EMPTY, FILLED)
SPECS: dict[str, dict[str, list[str]]] = {
    "one sum": {"v": ["sum"]},
    "five": {"v": ["sum", "count", "min", "max"], "w": ["mean"]},
}


def frame(dtype: str, groups: int, rows: int) -> Any:
    """Rows in device memory; keys are side by side, or text."""
    import cudf
    import cupy as cp

    numbers = cp.arange(rows, dtype="int64")
    keys = numbers * 2_654_435_761 % groups
    drawn = cudf.DataFrame({"k": keys})
    if dtype == "string":
        drawn["k"] = "key " + drawn["k"].astype(str)
    elif dtype == "int32":
        drawn["k"] = drawn["k"].astype(dtype)
    values = numbers % 97
    drawn["v"], drawn["w"] = values.astype("float64"), values.astype("float32")
    return drawn


def in_arms(call: Callable[..., Record], *about: str) -> Iterator[Record]:
    """The record of a query by each arm, each in a process that has done nothing else."""
    with tempfile.TemporaryDirectory() as cache:
        # the driver's own cache would make an empty one of ours look filled
        os.environ.update(CUDA_CACHE_DISABLE="1", DASK_GPUAGG__KERNEL_CACHE=cache)
        # in this order: the second arm fills the cache of the third
        for arm in ARMS:
            yield in_a_process(call, arm, *about)


def in_a_process(call: Callable[..., Record], *arguments: str | None) -> Record:
    """What a function returns in a process of its own."""
    record: Record | str = machine.in_a_process(call, *arguments)
    if isinstance(record, str):
        raise RuntimeError(record)
    return record


def settle() -> None:
    """Wait until all that has begun is compiled."""
    for thread in threading.enumerate():
        if thread.name == "gpuagg-compile":
            thread.join()


# ---- queries -------------------------------------------------------------------------------------

PARTITIONS = 2
# Calls between the second and the last: each may find that it needs another kernel.
BETWEEN = 4


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


def queries_records() -> Iterator[Record]:
    """A record of each query in each arm."""
    for key, keys in KEYS.items():
        for spec in keys.specs:
            yield from in_arms(first_query, key, spec)


def first_query(arm: str, key: str, spec: str) -> Record:
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
    dask.config.set(scheduler="sync")
    if arm != STOCK:
        import dask_gpuagg

        dask_gpuagg.enable()
    keys = KEYS[key]
    rows = dask_cudf.from_cudf(frame(keys.dtype, keys.groups, keys.rows), npartitions=PARTITIONS)
    cp.cuda.Device().synchronize()

    def call() -> float:
        start = time.perf_counter()
        rows.groupby("k").agg(SPECS[spec]).compute()
        cp.cuda.Device().synchronize()
        return time.perf_counter() - start

    first_s, second_s = call(), call()
    for _ in range(BETWEEN):
        settle()
        call()
    return {
        "query": f"{spec} by {key}",
        "rows": keys.rows,
        "arm": arm,
        "first_s": first_s,
        "second_s": second_s,
        "warm_s": call(),
        "import_cudf_s": importing,
        "cuda_context_s": context,
    }


# ---- files ---------------------------------------------------------------------------------------

FILE_ROWS, FILES = 200_000_000, 16
# How many groups each query of ``benchmarks.end_to_end`` is asked by.
ASKED = {"five": 1_000_000, "sum": 50_000_000}
LATER = 4


def files_records() -> Iterator[Record]:
    """A record of each query in each arm; the cache is that of the worker, another process."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for name in ASKED:
            yield from in_arms(first_files, name, folder)


def first_files(arm: str, name: str, folder: str) -> Record:
    """One query, several times, on a new cluster; the first call waits for nothing."""
    from distributed import wait

    from benchmarks.end_to_end_cluster import DEVICE, QUERIES, Files, Rows, Session

    groups = ASKED[name]
    keys = tuple((f"k{number}", number) for number in ASKED.values())
    with Session(DEVICE, 1, "tcp", "60GB", plugin=False) as session:
        files = Files(session, Rows(FILE_ROWS, FILES, keys, DEVICE), Path(folder))
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
        "rows": FILE_ROWS,
        "arm": arm,
        "planning_s": planning,
        "first_s": first,
        "second_s": second,
        "warm_s": statistics.median(later),
    }


# ---- the program ---------------------------------------------------------------------------------


def about(commit: str | None) -> Record:
    """The machine, by a process that may load cuDF."""
    from benchmarks.gpu import report_head

    return report_head(commit)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the parts."""
    parser = machine.arguments("first_use", __doc__, Path("first_use.json"))
    parser.add_argument("--parts", default="queries", help="of queries, files")
    args = parser.parse_args(argv)
    began = time.perf_counter()
    report = in_a_process(about, args.commit)
    for part, records in (("queries", queries_records), ("files", files_records)):
        for record in records() if part in args.parts.split(",") else ():
            report.setdefault(part, []).append(record)
            write(report, args.out)
            print(f"{time.perf_counter() - began:6.1f} s: {record}", flush=True)


if __name__ == "__main__":
    main()
