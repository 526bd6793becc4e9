"""Rows of host memory through the GPU, and more rows than a device or the host holds.

``python -m benchmarks.larger`` groups int64 keys and float64 values, 16 bytes a row, by the stream
(``gpuagg.engine: device``), for each number of possible keys: a frame in host memory, with RMM's
default resource, a pool, and pools that are limited; and ``--drawn-rows``, whose partitions are
drawn where a task would read files, and dropped when they are copied. A row is a hash of its
number; ``drawing`` has the seconds that it takes without grouping. Polars, DuckDB and our host
engine group the rows of the frame too, each in a process of its own with a time limit.

Results are written after every cell. Rates are of the median without the first repetition, which
may compile. In the last one each step of the stream is waited for: ``steps`` has their seconds, and
``rest`` those of planning, of waiting for rows that are drawn, and of pandas. Every result is
checked: the number of rows, and the rows and the sums of some keys.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import dask.dataframe as dd
import numba
import numpy as np
import pandas as pd
from dask._task_spec import Task
from dask.tokenize import normalize_token, tokenize

import dask_gpuagg
from benchmarks import machine
from benchmarks.gpu import at_most, report_head, resource, timed
from benchmarks.machine import number
from benchmarks.report import write
from dask_gpuagg.frontend import logical
from dask_gpuagg.planning.chunks import READERS_OF_A_TASK
from dask_gpuagg.streaming.stream import Stream
from dask_gpuagg.tasks.reading import Chunk
from dask_gpuagg.tasks.tasks import gpuagg_chunk_direct

ROW_BYTES = 16
PARTITION_ROWS = 1 << 24
PEERS = ("host", "polars", "duckdb")
AGGREGATIONS = ("sum", "count")
SETTINGS = {"gpuagg.compile": "wait", "gpuagg.fallback": "raise"}
_POOL_BYTES = 60 << 30
# of collections
_numbers = itertools.count()
# Their sums are checked.
_SOME_KEYS = 4
# Methods of a stream and of its device, by what they do. The time of one that calls another is the
# other's; that of _grouped is the time in which it waits for the copies of its rows.
_STEPS = {"_grouped": "copy", "_finish_parts": "concatenate"}
_DEVICE_STEPS = {
    "from_host": "copy",
    "partial": "group",
    "merged": "merge",
    "divided": "merge",
    "to_host": "write",
    "to_host_in_parts": "write",
}


@numba.njit(nogil=True)
def draw(keys: Any, values: Any, start: int, groups: int) -> Any:
    """Draw rows from ``start`` on by splitmix64; the rows and the sums of some of their keys."""
    counts, sums = np.zeros(_SOME_KEYS, np.int64), np.zeros(_SOME_KEYS)
    for i in range(len(keys)):
        z = np.uint64(start + i + 1) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        # the upper bits decide on the key
        key = np.int64(np.int64(z >> np.uint64(11)) * 2.0**-53 * groups)
        keys[i], values[i] = key, np.int64(z & np.uint64(0xFFFFFF)) * 2.0**-24
        if key < _SOME_KEYS:
            counts[key] += 1
            sums[key] += values[i]
    return counts, sums


class Rows:
    """So many rows and, at random, so many groups: in a frame, or not held and drawn again."""

    def __init__(self, rows: int, groups: int, held: bool = True) -> None:
        self.rows, self.groups = rows, groups
        self.starts = range(0, rows, PARTITION_ROWS)
        if held:
            self.keys, self.values = np.empty(rows, np.int64), np.empty(rows)
            self.frame = pd.DataFrame({"k": self.keys, "x": self.values}, copy=False)
        draw(np.empty(1, np.int64), np.empty(1), 0, 1)
        started = time.perf_counter()
        with ThreadPoolExecutor(None if held else READERS_OF_A_TASK) as pool:
            fill = self._fill if held else lambda start: self._drawn(start)[1]
            drawn = list(pool.map(fill, self.starts))
        self.seconds = time.perf_counter() - started
        self.counts, self.sums = (sum(each) for each in zip(*drawn, strict=True))

    def _fill(self, start: int) -> Any:
        stop = start + PARTITION_ROWS
        return draw(self.keys[start:stop], self.values[start:stop], start, self.groups)

    def _drawn(self, start: int) -> tuple[pd.DataFrame, Any]:
        size = min(PARTITION_ROWS, self.rows - start)
        keys, values = np.empty(size, np.int64), np.empty(size)
        some = draw(keys, values, start, self.groups)
        return pd.DataFrame({"k": keys, "x": values}, copy=False), some

    def part(self, start: int) -> pd.DataFrame:
        """Draw a partition."""
        return self._drawn(start)[0]

    def collection(self) -> Any:
        """The frame as ``persist`` has it: partitions that are views."""
        parts = [self.frame.iloc[start : start + PARTITION_ROWS] for start in self.starts]
        layer = {("rows", i): part for i, part in enumerate(parts)}
        with unhashed():
            divisions = (None,) * (len(parts) + 1)
            return dd.from_graph(layer, parts[0][:0], divisions, list(layer), "rows")

    def chunk(self) -> Chunk:
        """The input of a task that reads files, with tasks that draw rows in their place."""
        parts = []
        for start in self.starts:
            reading = Task(("rows", start), self.part, start)
            parts.append(((reading,), ((True, reading.key), (False, None), (False, "k"))))
        return Chunk(parts, {}, READERS_OF_A_TASK)

    def check(self, result: pd.DataFrame) -> None:
        """Whether a result has all rows, and those of some keys."""
        assert int(result["count"].sum()) == self.rows
        some = result[result.index < _SOME_KEYS].sort_index()
        present = np.flatnonzero(self.counts)
        assert some.index.tolist() == present.tolist()
        assert some["count"].tolist() == self.counts[present].tolist()
        np.testing.assert_allclose(some["sum"], self.sums[present], rtol=1e-9)


@contextmanager
def unhashed() -> Iterator[None]:
    """Collections that are made get a name without their rows being hashed."""
    tokenize(pd.DataFrame())  # Dask registers its own at first use
    usual, number = normalize_token.dispatch(pd.DataFrame), next(_numbers)
    normalize_token.register(pd.DataFrame, lambda frame: (number, id(frame)))
    try:
        yield
    finally:
        normalize_token.register(pd.DataFrame, usual)


def bandwidth(size: int = 1 << 30) -> float:
    """Bytes a second from pinned host memory to the device, in one copy."""
    import cupy as cp

    source = cp.cuda.alloc_pinned_memory(size)
    target = cp.cuda.alloc(size)
    times = timed({"copy": lambda: target.copy_from_host(source.ptr, size)}, 5)["copy"]
    return size / statistics.median(times) * 1e3


@contextmanager
def memory(limit: int | None) -> Iterator[Any]:
    """A pool of the device's memory, counted, of which so many bytes may be taken."""
    import rmm

    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=_POOL_BYTES)
    limited = nullcontext() if limit is None else at_most(limit)
    with resource(lambda _: rmm.mr.StatisticsResourceAdaptor(pool)) as counted, limited:
        yield counted


@contextmanager
def steps(
    device: type, copied: Callable[[Any], None], done: Callable[[], None]
) -> Iterator[dict[str, float]]:
    """Seconds of the steps of streams, each of which is waited for.

    ``copied`` waits for the copies to a device, before its rows are grouped, and ``done`` for the
    kernels.
    """
    seconds: dict[str, float] = defaultdict(float)
    # of the steps that another one calls, of each that has begun
    inner = [0.0]

    def watched(method: Callable[..., Any], step: str) -> Callable[..., Any]:
        def run(owner: Any, *args: Any, **options: Any) -> Any:
            if step == "group":
                copied(owner)
            inner.append(0.0)
            started = time.perf_counter()
            try:
                result = method(owner, *args, **options)
                done()
                return result
            finally:
                taken = time.perf_counter() - started
                seconds[step] += taken - inner.pop()
                inner[-1] += taken

        return run

    with ExitStack() as stack:
        for owner, names in ((Stream, _STEPS), (device, _DEVICE_STEPS)):
            for name, step in names.items():
                method = watched(getattr(owner, name), step)
                stack.enter_context(patch.object(owner, name, method))
        yield seconds


def steps_on_gpu() -> Any:
    """The steps of the streams of this process."""
    from pylibcudf.utils import _get_stream

    from dask_gpuagg.streaming.gpu import Gpu

    return steps(Gpu, lambda gpu: gpu._copying.synchronize(), lambda: _get_stream().synchronize())


def grouping(rows: Rows, held: bool, engine: str = "device") -> Callable[[], Any]:
    """A call that groups rows by an engine of ours."""

    @contextmanager
    def by_engine() -> Iterator[None]:
        with dask_gpuagg.enabled(), dask.config.set({"gpuagg.engine": engine}):
            yield

    few = rows.part(0).iloc[:2]
    collection = rows.collection() if held else dd.from_pandas(few, npartitions=1)

    def asked() -> Any:
        return collection.groupby("k").x.agg(list(AGGREGATIONS))

    def in_frame() -> Any:
        with by_engine():
            return asked().compute()

    if held:
        return in_frame
    with by_engine():
        query = logical.read(asked().expr)
    return lambda: gpuagg_chunk_direct(rows.chunk(), query.plan, query.meta)


def seconds_of(
    run: Callable[[], Any],
    repeats: int,
    check: Callable[[Any], None],
    last: Callable[[], Any] = nullcontext,
) -> tuple[list[float], Any]:
    """Seconds of each repetition; the last one's result is checked. And what it yields within."""
    seconds = []
    for i in range(repeats):
        gc.collect()
        with last() if i == repeats - 1 else nullcontext() as watched:
            started = time.perf_counter()
            result = run()
            seconds.append(time.perf_counter() - started)
        if i == repeats - 1:
            check(result)
        del result
    return seconds, watched


def streamed(
    rows: Rows, held: bool, repeats: int, pool: bool = True, limit: int | None = None
) -> dict[str, Any]:
    """A cell of the stream."""
    call = grouping(rows, held)
    groups = []

    def check(result: pd.DataFrame) -> None:
        groups.append(len(result))
        rows.check(result)

    with memory(limit) if pool else nullcontext() as counted:
        seconds, watched = seconds_of(call, repeats, check, steps_on_gpu)
        peak = None if counted is None else counted.allocation_counts.peak_bytes
    gigabytes = rows.rows * ROW_BYTES / 1e9
    return {
        "groups": rows.groups,
        "present": groups[0],
        "gigabytes": gigabytes,
        "drawing": None if held else rows.seconds,
        "resource": "pool" if pool else "default",
        "limit_bytes": limit,
        "peak_bytes": peak,
        "seconds": seconds,
        "steps": watched | {"rest": seconds[-1] - sum(watched.values())},
        "gigabytes_a_second": gigabytes / warm(seconds),
    }


def warm(seconds: list[float]) -> float:
    """The median of all repetitions but the first, where there are several."""
    return statistics.median(seconds[1:] or seconds)


def peer(name: str, rows: Rows) -> Callable[[], Any]:
    """A call of a peer, and its table."""
    if name == "host":
        return grouping(rows, True, "auto")
    if name == "polars":
        import polars as pl

        table = pl.DataFrame({"k": rows.keys, "x": rows.values})
        # where these are copies the rows are not held twice
        del rows.keys, rows.values, rows.frame
        asked = [getattr(pl.col("x"), name)().alias(name) for name in AGGREGATIONS]
        return lambda: table.group_by("k").agg(asked)
    import duckdb

    outputs = ", ".join(f"{name}(x) as {name}" for name in AGGREGATIONS)
    # to a table of its own: one thread would hand over the groups
    text = f"create or replace temp table answer as select k, {outputs} from frame group by k"
    database = duckdb.connect()
    database.register("frame", rows.frame)

    def run() -> Any:
        database.execute(text)
        return database.table("answer")

    return run


def as_frame(result: Any) -> pd.DataFrame:
    """The result of a peer, by key."""
    if isinstance(result, pd.DataFrame):
        return result
    columns = result.fetchnumpy() if hasattr(result, "fetchnumpy") else result
    arrays = {name: np.asarray(columns[name]) for name in ("k", *AGGREGATIONS)}
    return pd.DataFrame(arrays, copy=False).set_index("k")


def seconds_of_peer(name: str, count: int, groups: int, repeats: int) -> list[float]:
    """Seconds of a peer, which has loaded and compiled what it needs before."""
    dask.config.set(SETTINGS)
    peer(name, Rows(1 << 20, groups))()
    rows = Rows(count, groups)
    call = peer(name, rows)
    return seconds_of(call, repeats, lambda result: rows.check(as_frame(result)))[0]


def run(args: argparse.Namespace, note: Callable[[dict[str, Any]], None]) -> None:
    """All cells, one after the other."""
    end = time.perf_counter() + args.deadline
    pools = [(True, None), *((True, limit) for limit in args.limits)]
    # the whole memory first, where kernels are compiled; last where it takes most of the host's
    inputs = [(args.rows, groups, True, [(False, None), *pools]) for groups in args.groups]
    inputs += [(args.drawn_rows, groups, False, pools[::-1]) for groups in args.drawn_groups]
    for count, groups, held, memories in inputs:
        if not count or time.perf_counter() > end:
            continue
        rows, cells = Rows(count, groups, held), []
        for pool, limit in memories:
            if time.perf_counter() < end:
                cells.append(streamed(rows, held, args.repeats if held else 1, pool, limit))
                note(cells[-1])
        # a peer has the same rows, and all of the memory
        del rows
        gc.collect()
        for name in args.peers if held and len(cells) > 1 else ():
            seconds = machine.in_a_process(
                seconds_of_peer, name, count, groups, args.peer_repeats, limit=args.peer_seconds
            )
            cells[1].setdefault("peers", {})[name] = seconds
            ratios = cells[1].setdefault("peer_ratio", {})
            if isinstance(seconds, list):
                ratios[name] = warm(seconds) / warm(cells[1]["seconds"])
            note(cells[1])


def main() -> None:
    """Measure, print and write."""
    parser = machine.arguments("larger", __doc__, Path("larger.json"))
    parser.add_argument("--rows", type=number, default=10**9, help="of a frame; 0: none")
    parser.add_argument(
        "--groups", type=number, nargs="+", default=[10**7, 10**8, 10**9, 2 * 10**9]
    )
    parser.add_argument("--drawn-rows", type=number, default=6 * 10**9, help="0: none")
    parser.add_argument("--drawn-groups", type=number, nargs="+", default=[10**9, 2 * 10**9])
    parser.add_argument("--limits", type=number, nargs="*", default=[16 * 10**9, 8 * 10**9])
    parser.add_argument("--repeats", type=int, default=2, help="of a frame")
    parser.add_argument("--peers", choices=PEERS, nargs="*", default=PEERS[1:])
    parser.add_argument("--peer-repeats", type=int, default=1)
    parser.add_argument("--peer-seconds", type=float, default=90.0, help="of each peer")
    parser.add_argument("--deadline", type=float, default=1e9, help="seconds; then no cell begins")
    parser.add_argument(
        "--append", action="store_true", help="to the cells of a file of this commit and machine"
    )
    args = parser.parse_args()
    dask.config.set(SETTINGS)
    link = bandwidth()
    print(f"link: {link / 1e9:.1f} GB/s from pinned memory", flush=True)
    head = report_head(args.commit) | {"link": link, "row_bytes": ROW_BYTES}
    cells = json.loads(args.out.read_text())["cells"] if args.append else []

    def note(cell: dict[str, Any]) -> None:
        cell["share_of_link"] = cell["gigabytes_a_second"] * 1e9 / link
        if cell not in cells:
            cells.append(cell)
        print(cell, flush=True)
        write(head | {"cells": cells}, args.out)

    run(args, note)


if __name__ == "__main__":
    main()
