"""The floor of ``benchmarks.end_to_end``: what takes no less, whoever plans the query."""

from __future__ import annotations

import collections
import concurrent.futures
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.end_to_end_arms import FLOOR, Question
from benchmarks.end_to_end_cluster import Files, Run, Stopped, without_frames
from benchmarks.end_to_end_queries import DEVICE, HOST, Query, arrays

READERS = 4
REPEATS = 5
COPIED = {HOST: 1 << 27, DEVICE: 1 << 32}


@dataclass(slots=True)
class Floor:
    """Reading the columns, and the kernels alone.

    For persisted rows each worker at once groups its own, stacked to one table, in one
    task, and measures its memory; on the host it only reads. For files, each worker at once reads
    its share of them by several threads. Bringing results together is left out.
    """

    question: Question
    name: str = FLOOR

    def run(self, limit: float, look: bool) -> Run:
        """``seconds``: the slowest worker's median, of the kernels where there are some."""
        asked = self.question
        calls = self._read() if isinstance(asked.source, Files) else self._group()
        found, failure = [], None
        try:
            found = _gathered(calls, limit)
        except Exception as error:
            asked.session.client.cancel(calls)
            failure = without_frames(error)
        calls.clear()
        asked.session.recover()
        if failure is not None:
            raise failure
        slowest = {step: max(one[step] for one in found) for step in found[0]}
        return Run(slowest.get("kernels", slowest["read"]), slowest)

    def _read(self) -> list[Any]:
        asked = self.question
        assert isinstance(asked.source, Files)
        columns, workers = [asked.key, *asked.query.values], asked.session.addresses()
        return [
            asked.session.client.submit(
                read,
                asked.source.paths[i :: len(workers)],
                columns,
                asked.session.engine,
                workers=[address],
                pure=False,
            )
            for i, address in enumerate(workers)
        ]

    def _group(self) -> list[Any]:
        from distributed import futures_of

        asked = self.question
        client, futures = asked.session.client, futures_of(asked.source.frame())
        where, parts = client.who_has(futures), collections.defaultdict(list)
        for future in futures:
            parts[where[future.key][0]].append(future)
        return [
            client.submit(
                group,
                held,
                asked.query,
                asked.key,
                asked.session.engine,
                workers=[address],
                pure=False,
            )
            for address, held in parts.items()
        ]


def _gathered(calls: list[Any], limit: float) -> list[dict[str, float]]:
    end = time.perf_counter() + limit
    try:
        return [call.result(timeout=max(0.1, end - time.perf_counter())) for call in calls]
    except TimeoutError:
        raise Stopped(f"more than {limit:.0f} s") from None


def read(paths: Sequence[str], columns: list[str], engine: str) -> dict[str, float]:
    """Read columns of files by several threads; what was read is dropped."""
    if engine == HOST:
        from pyarrow import parquet

        def one(path: str) -> int:
            return int(parquet.read_table(path, columns=columns, use_threads=False).num_rows)
    else:
        import cudf

        def one(path: str) -> int:
            return len(cudf.read_parquet(path, columns=columns))

    def all_of_them() -> None:
        with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
            list(pool.map(one, paths))

    return {"read": median_seconds(all_of_them, engine)}


def group(parts: Sequence[Any], query: Query, key: str, engine: str) -> dict[str, float]:
    """Read the columns at the bandwidth of a copy; on a device, the kernels on one table too."""
    rows = sum(map(len, parts))
    found = {"read": rows * query.row_bytes / bandwidth(engine)}
    kernels = {"sum", "count", "min", "max", "mean"}
    if engine == DEVICE and {function for _, function in query.aggregations} <= kernels:
        import cudf

        from dask_gpuagg.engines.device.aggregator import Aggregator

        columns = [key, *query.values]
        table = cudf.concat([part[columns] for part in parts], ignore_index=True)
        column = {label: table[label].to_pylibcudf()[0] for label in columns}

        def kernel() -> Any:
            aggregator = Aggregator([column[key]], False)
            for label, function in query.aggregations:
                getattr(aggregator, function)(column[label])
            return aggregator.run(about=(key,))

        found["kernels"] = median_seconds(kernel, engine)
    return found


def bandwidth(engine: str) -> float:
    """Bytes a second that a copy reads and writes."""
    xp = arrays(engine)
    source = xp.ones(COPIED[engine], dtype="uint8")
    target = xp.empty_like(source)

    def copy() -> None:
        target[...] = source

    return float(2 * COPIED[engine] / median_seconds(copy, engine))


def median_seconds(call: Callable[[], Any], engine: str) -> float:
    """Median of some calls after a first one."""
    times = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        result = call()
        if engine == DEVICE:
            import cupy

            cupy.cuda.Device().synchronize()
        times.append(time.perf_counter() - start)
        del result
    return statistics.median(times[1:])
