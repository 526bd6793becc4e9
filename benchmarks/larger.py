"""Rows of host memory through the GPU, against the bandwidth of the link that they go through.

``python -m benchmarks.larger`` makes a frame of int64 keys and float64 values, 16 bytes a row, for
each number of groups, and streams it (``gpuagg.engine: device``): with RMM's default resource and
with a pool, also rows of twice the device's memory, and with a pool limited to a part of the
frame's size. The stream and its peers (our host engine, Polars, DuckDB) group fewer rows too, each
peer in a process of its own with a time limit. The results are written after every cell. Rates are
of the median without the first repetition, which may compile; of twice the memory there is one.

Partitions are views of one frame. Rows beyond it are the same views again: each is copied as often
as it is named, so the link sees all rows, and the groups are those of the frame with so many times
the rows. Every result is checked: the number of rows, and the rows and the sums of some keys.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.tokenize import normalize_token, tokenize

import dask_gpuagg
from benchmarks.report import write

ROW_BYTES = 16
PARTITION_ROWS = 1 << 24
PEERS = ("host", "polars", "duckdb")
AGGREGATIONS = ("sum", "count")
_POOL_BYTES = 60 << 30
# of collections
_numbers = itertools.count()
# Their sums are checked.
_SOME_KEYS = 4


class Rows:
    """A frame of so many rows and, at random, so many groups."""

    def __init__(self, rows: int, groups: int) -> None:
        self.groups = groups
        self.keys, self.values = np.empty(rows, np.int64), np.empty(rows)
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(self._fill, range(0, rows, PARTITION_ROWS)))
        self.counts, self.sums = (sum(each) for each in zip(*found, strict=True))
        self.frame = pd.DataFrame({"k": self.keys, "x": self.values}, copy=False)

    def _fill(self, start: int) -> tuple[Any, Any]:
        """Make the rows of a partition; the rows and the sums of some of their keys."""
        rng, stop = np.random.default_rng(start), min(start + PARTITION_ROWS, len(self.keys))
        keys, values = self.keys[start:stop], self.values[start:stop]
        keys[:] = rng.integers(0, self.groups, stop - start)
        rng.random(out=values)
        few = np.flatnonzero(keys < _SOME_KEYS)
        counts = np.bincount(keys[few], minlength=_SOME_KEYS)
        return counts, np.bincount(keys[few], values[few], minlength=_SOME_KEYS)

    def __len__(self) -> int:
        return len(self.keys)

    def collection(self, passes: int = 1) -> Any:
        """Its rows so many times, in memory as ``persist`` has them."""
        starts = range(0, len(self), PARTITION_ROWS)
        parts = [self.frame.iloc[start : start + PARTITION_ROWS] for start in starts] * passes
        layer = {("rows", i): part for i, part in enumerate(parts)}
        with unhashed():
            divisions = (None,) * (len(parts) + 1)
            return dd.from_graph(layer, parts[0][:0], divisions, list(layer), "rows")

    def check(self, result: pd.DataFrame, passes: int = 1) -> None:
        """Whether a result has all rows, and those of some keys."""
        assert int(result["count"].sum()) == passes * len(self)
        some = result[result.index < _SOME_KEYS].sort_index()
        present = np.flatnonzero(self.counts)
        assert some.index.tolist() == present.tolist()
        assert some["count"].tolist() == (passes * self.counts[present]).tolist()
        np.testing.assert_allclose(some["sum"], passes * self.sums[present], rtol=1e-9)


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
    seconds = []
    for _ in range(5):
        cp.cuda.Device().synchronize()
        started = time.perf_counter()
        target.copy_from_host(source.ptr, size)
        cp.cuda.Device().synchronize()
        seconds.append(time.perf_counter() - started)
    return size / statistics.median(seconds)


@contextmanager
def memory(limit: int | None) -> Iterator[Any]:
    """A pool of the device's memory, counted, of which so many bytes may be taken."""
    import rmm

    before = rmm.mr.get_current_device_resource()
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=_POOL_BYTES)
    counted = made = rmm.mr.StatisticsResourceAdaptor(pool)
    if limit is not None:
        made = rmm.mr.LimitingResourceAdaptor(counted, limit)
    rmm.mr.set_current_device_resource(made)
    try:
        yield counted
    finally:
        rmm.mr.set_current_device_resource(before)


def grouped(collection: Any, engine: str) -> Any:
    """The groups of a collection by an engine of ours."""
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.engine": engine}):
        return collection.groupby("k").x.agg(list(AGGREGATIONS)).compute()


def seconds_of(run: Callable[[], Any], repeats: int, check: Callable[[Any], None]) -> list[float]:
    """Seconds of each repetition; the result of the last one is checked."""
    seconds = []
    for i in range(repeats):
        gc.collect()
        started = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - started)
        if i == repeats - 1:
            check(result)
        del result
    return seconds


def streamed(
    rows: Rows, repeats: int, passes: int = 1, pool: bool = True, limit: int | None = None
) -> dict[str, Any]:
    """A cell of the stream."""
    collection = rows.collection(passes)
    with memory(limit) if pool else nullcontext() as counted:
        seconds = seconds_of(
            lambda: grouped(collection, "device"), repeats, lambda made: rows.check(made, passes)
        )
        peak = None if counted is None else counted.allocation_counts.peak_bytes
        assert any(run.decision.kernel != "host" for run in dask_gpuagg.last_runs())
    gigabytes = passes * len(rows) * ROW_BYTES / 1e9
    return {
        "groups": rows.groups,
        "gigabytes": gigabytes,
        "passes": passes,
        "resource": "pool" if pool else "default",
        "limit_bytes": limit,
        "peak_bytes": peak,
        "seconds": seconds,
        "gigabytes_a_second": gigabytes / warm(seconds),
    }


def warm(seconds: list[float]) -> float:
    """The median of all repetitions but the first, where there are several."""
    return statistics.median(seconds[1:] or seconds)


def peer(name: str, rows: Rows) -> Callable[[], Any]:
    """A call of a peer, and its table."""
    if name == "host":
        collection = rows.collection()
        return lambda: grouped(collection, "auto")
    if name == "polars":
        import polars as pl

        table = pl.DataFrame({"k": rows.keys, "x": rows.values})
        asked = [getattr(pl.col("x"), name)().alias(name) for name in AGGREGATIONS]
        return lambda: table.group_by("k").agg(asked)
    import duckdb

    outputs = ", ".join(f"{name}(x) as {name}" for name in AGGREGATIONS)
    text = f"select k, {outputs} from frame group by k"
    database = duckdb.connect()
    database.register("frame", rows.frame)
    return lambda: database.sql(text).fetchnumpy()


def as_frame(made: Any) -> pd.DataFrame:
    """The result of a peer, by key."""
    if isinstance(made, pd.DataFrame):
        return made
    columns = {name: np.asarray(made[name]) for name in ("k", *AGGREGATIONS)}
    return pd.DataFrame(columns, copy=False).set_index("k")


def seconds_of_peer(name: str, rows: int, groups: int, repeats: int, limit: float) -> Any:
    """Seconds of a peer in a process of its own, or why there are none."""
    if name != "host" and importlib.util.find_spec(name) is None:
        return "not installed"
    given = ["--peer", name, "--peer-rows", rows, "--groups", groups, "--repeats", repeats]
    command = [sys.executable, "-m", "benchmarks.larger", *map(str, given)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"not finished within {limit:g} s, start and data included"
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1]}"
    return json.loads(done.stdout.splitlines()[-1])


def beside_peers(rows: int, groups: int, repeats: int, limit: float) -> dict[str, Any]:
    """A cell of the stream and its peers on the same rows."""
    cell = streamed(Rows(rows, groups), repeats)
    # the first repetition may load what it needs
    peers = {name: seconds_of_peer(name, rows, groups, 2, limit) for name in PEERS}
    ours = warm(cell["seconds"])
    ratios = {name: warm(found) / ours for name, found in peers.items() if isinstance(found, list)}
    return cell | {"peers": peers, "peer_ratio": ratios}


def run(args: argparse.Namespace, note: Callable[[dict[str, Any]], None]) -> None:
    """All cells, one after the other."""
    import cupy as cp

    total, repeats = int(cp.cuda.Device().mem_info[1]), args.repeats
    count = int(args.gigabytes * 1e9 / ROW_BYTES)
    for groups in args.groups if count else ():
        rows = Rows(count, groups)
        note(streamed(rows, repeats, pool=False))
        note(streamed(rows, repeats))
        for pool in (False, True):
            note(streamed(rows, 1, passes=-(-2 * total // (count * ROW_BYTES)), pool=pool))
        del rows
    for groups in args.groups if count and args.shares else ():
        rows = Rows(count, groups)
        for share in args.shares:
            note(streamed(rows, repeats, limit=int(share * count * ROW_BYTES)))
        del rows
    for groups in args.groups if args.peer_rows else ():
        note(beside_peers(args.peer_rows, groups, repeats, args.peer_seconds))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=17.2, help="of a frame; 0: peers only")
    parser.add_argument("--groups", type=int, nargs="+", default=[10_000_000, 100_000_000])
    parser.add_argument("--shares", type=float, nargs="*", default=[1 / 2, 1 / 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer-rows", type=int, default=1 << 27)
    parser.add_argument("--peer-seconds", type=float, default=30.0, help="of each peer")
    parser.add_argument("--peer", choices=PEERS, help="one peer alone, which prints its seconds")
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("larger.json"))
    args = parser.parse_args()
    dask.config.set({"gpuagg.compile": "wait", "gpuagg.fallback": "raise"})
    if args.peer is not None:
        # loads and compiles what it needs
        peer(args.peer, Rows(1 << 20, args.groups[0]))()
        rows = Rows(args.peer_rows, args.groups[0])
        call = peer(args.peer, rows)
        print(json.dumps(seconds_of(call, args.repeats, lambda made: rows.check(as_frame(made)))))
        return
    from benchmarks.gpu import report_head

    link = bandwidth()
    print(f"link: {link / 1e9:.1f} GB/s from pinned memory", flush=True)
    head = report_head(args.commit) | {"link": link, "row_bytes": ROW_BYTES}
    cells: list[dict[str, Any]] = []

    def note(cell: dict[str, Any]) -> None:
        cell["share_of_link"] = cell["gigabytes_a_second"] * 1e9 / link
        cells.append(cell)
        print({k: v for k, v in cell.items() if k != "seconds"}, flush=True)
        write(head | {"cells": cells}, args.out)

    run(args, note)


if __name__ == "__main__":
    main()
