"""Which partitions a task takes: by the worker that holds them, and by their bytes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import dask
import pandas as pd
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr.io import FromGraph
from dask.system import CPU_COUNT

from dask_gpuagg.cache import Cache
from dask_gpuagg.cluster import (
    GOOD_FOR,
    HERE,
    Place,
    Places,
    WorkerSize,
    ask,
    cluster_problem,
    current_client,
    device_bytes,
    device_memory,
    is_checked,
)
from dask_gpuagg.settings import settings

# Chunks of the partitions that fill a GPU, at least: in addition to them the kernels' call for one
# chunk needs memory.
CHUNKS_OF_A_GPU = 4
# With this many bytes on the host, the overhead of a task is small against its work.
HOST_BYTES = 32 << 20

# Of a worker's memory limit for each of its threads: partitions, what is copied of them, partials.
HOST_SHARE = 8

# Most files that one task reads: a lost worker costs reading that many again.
PARTITIONS_OF_A_READER = 128

# Bytes of a chunk of data that this process holds: its columns are copied next to each other, and
# all that this saves are tasks of threads.
_HERE_BYTES = 4 << 20
_BYTES_OF_A_TEXT = 16

# Places of recent collections, with the time at which the scheduler was asked; of none of them, the
# workers of the cluster. One query plans twice: before its inputs are lowered, and after.
_recent: Cache[tuple[Any, str, bool], tuple[float, Places]] = Cache(16)


def located(nodes: Sequence[Expr], device: bool, columns: Any) -> Places | None:
    """Where partitions lie that a cluster, or this process, holds; ``None`` where any is computed.

    Bytes in this process are those of ``columns``, the metadata of what is read.
    """
    data: dict[Any, Any] = {}
    for node in nodes:
        keys = node.operand("keys") if isinstance(node, FromGraph) else []
        if len(keys) != node.npartitions:
            return None
        layer = dict(node.operand("layer"))
        data |= {key: layer.get(key) for key in keys}
    # what asks a future for its client binds it first
    if all(hasattr(type(value), "client") for value in data.values()):
        client = next(iter(data.values())).client
        if client is None or not _may_ask(client):
            return None
        return _asked(client, "".join(node._name for node in nodes), list(data), device)
    frames = all(isinstance(value, pd.DataFrame | pd.Series) for value in data.values())
    if device or not frames or current_client() is not None:
        return None
    dtypes = [columns.dtype] if columns.ndim == 1 else columns.dtypes
    row_bytes = sum(getattr(dtype, "itemsize", _BYTES_OF_A_TEXT) for dtype in dtypes)
    of_key = {key: Place(HERE, len(frame) * row_bytes) for key, frame in data.items()}
    threads = dask.config.get("num_workers", None) or CPU_COUNT
    return Places(of_key, {HERE: WorkerSize(threads, 0)})


def _asked(client: Any, of: str, keys: Sequence[Any], device: bool) -> Places:
    """Places of keys, as the scheduler knows them or knew them a moment ago."""
    name = (client.id, of, device)
    recent = _recent.get(name)
    if recent is not None and time.monotonic() - recent[0] < GOOD_FOR:
        return recent[1]
    places = ask(client, keys, device)
    if len(places.of_key) == len(set(keys)):  # otherwise the rest may be there the next time
        _recent.put(name, (time.monotonic(), places))
    return places


def held_by(sources: Sequence[Expr], places: Places, npartitions: int) -> list[Place | None]:
    """For each partition the worker that holds most of it, and its bytes; None if unknown."""
    placed = []
    for source in sources:
        of_source = [places.of_key.get(key) for key in source.operand("keys")]
        placed.append(of_source if len(of_source) == npartitions else of_source[:1] * npartitions)
    return placed[0] if len(placed) == 1 else list(map(_together, zip(*placed, strict=True)))


def _together(places: Sequence[Place | None]) -> Place | None:
    placed = [place for place in places if place is not None]
    if len(placed) < len(places):
        return None
    largest = max(placed, key=lambda place: place.nbytes)
    return Place(largest.worker, sum(place.nbytes for place in placed))


def buckets_of(
    held: Sequence[Place | None],
    places: Places,
    in_order: bool,
    device: bool,
    streamed: bool = False,
) -> tuple[tuple[int, ...], ...]:
    """Divide partitions into chunks, each of partitions that one worker holds.

    A partition without a place is a chunk by itself; ``in_order``, those of a chunk follow each
    other.
    """
    buckets: list[list[int]] = [[i] for i, place in enumerate(held) if place is None]
    of_worker: dict[str, list[int]] = {}
    for i, place in enumerate(held):
        if place is not None:
            of_worker.setdefault(place.worker, []).append(i)
    for worker, partitions in of_worker.items():
        sizes = {i: place.nbytes for i in partitions if (place := held[i]) is not None}
        max_bytes, min_chunks = _bounds(places, worker, device, streamed)
        runs = _runs(partitions) if in_order else [partitions]
        for run in runs:
            buckets += _divided(run, sizes, max_bytes, min(min_chunks, len(run)))
    return tuple(sorted(map(tuple, buckets)))


def _bounds(places: Places, worker: str, device: bool, streamed: bool) -> tuple[int, int]:
    """The most bytes of a chunk of a worker, and the least number of its chunks."""
    limit, size = settings().chunk, places.workers[worker]
    if limit.nbytes is not None:
        return limit.nbytes, 1
    if streamed:
        return sys.maxsize, 1
    if device:
        # one chunk keeps the whole GPU busy, however many threads a worker has
        return max(size.device_memory // CHUNKS_OF_A_GPU, 1), 1
    if worker == HERE:
        return _HERE_BYTES, size.threads
    share = size.memory // (HOST_SHARE * size.threads) or HOST_BYTES
    return min(HOST_BYTES, share), size.threads


def _runs(partitions: Sequence[int]) -> list[list[int]]:
    """Runs of partitions that follow each other."""
    runs: list[list[int]] = []
    for i in partitions:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def _divided(
    partitions: Sequence[int], sizes: dict[int, int], max_bytes: int, min_chunks: int
) -> list[list[int]]:
    """Partitions in chunks of about equal bytes, in their order."""
    most_partitions = settings().chunk.partitions
    if most_partitions is not None:
        starts = range(0, len(partitions), most_partitions)
        return [list(partitions[i : i + most_partitions]) for i in starts]
    total = sum(sizes[i] for i in partitions)
    number = min(max(min_chunks, math.ceil(total / max_bytes)), len(partitions))
    chunks: list[list[int]] = [[] for _ in range(number)]
    seen = 0
    for place, i in enumerate(partitions):
        # by the middle of the partition; by its number where none has bytes
        middle = (seen + sizes[i] / 2) / total if total else (place + 0.5) / len(partitions)
        chunks[min(int(middle * number), number - 1)].append(i)
        seen += sizes[i]
    return [chunk for chunk in chunks if chunk]


def workers_of(device: bool) -> Mapping[str, WorkerSize] | None:
    """The workers that a computation would use; ``None`` if there is no cluster, or none to ask."""
    client = current_client()
    if client is None or not _may_ask(client):
        return None
    return _asked(client, "", [], device).workers


def gpus() -> tuple[int, int]:
    """The number of workers, and the bytes of the smallest GPU, 0 where they cannot be asked.

    Without a cluster it is this process and its GPU.
    """
    client = current_client()
    if client is None:
        return 1, device_bytes()
    if not _may_ask(client):
        return 1, 0
    # planning asks for places before, and each request costs a round trip
    memory = device_memory(client)
    if not memory:
        ask(client, [], True)
        memory = device_memory(client)
    return max(len(memory), 1), min(memory, default=0)


def _may_ask(client: Any) -> bool:
    """Whether a scheduler can be asked for places: the package is installed there."""
    if client.asynchronous or client.status != "running":
        return False
    return is_checked(client) or cluster_problem(client) is None


def runs_of_partitions(npartitions: int, tasks: int) -> tuple[tuple[int, ...], ...]:
    """Runs of consecutive partitions, one for each task, none longer than a chunk may be."""
    max_partitions = settings().chunk.partitions or PARTITIONS_OF_A_READER
    number = min(max(tasks, math.ceil(npartitions / max_partitions)), npartitions)
    ends = [npartitions * (i + 1) // number for i in range(number)]
    return tuple(tuple(range(a, b)) for a, b in zip([0, *ends[:-1]], ends, strict=True))
