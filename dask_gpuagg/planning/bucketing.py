"""Partitions of a task, by the worker that holds them and by bytes; Parquet files of a read."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate, islice, pairwise
from typing import Any

import dask
import numpy as np
import pandas as pd
from dask._task_spec import Task
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr.io import IO, FromGraph
from dask.dataframe.dask_expr.io.io import FusedIO
from dask.dataframe.dask_expr.io.parquet import FusedParquetIO, ReadParquet, ReadParquetFSSpec
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
from dask_gpuagg.dtypes import NUMERIC, TEMPORAL, dtype_class
from dask_gpuagg.engines import dtypes_of
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
# assumed of a value whose dtype does not say it
_TEXT_BYTES = 16

# Places of recent collections, with the time at which the scheduler was asked; of none of them, the
# workers of the cluster. One query plans twice: before its inputs are lowered, and after.
_recent: Cache[tuple[Any, str, bool], tuple[float, Places]] = Cache(16)


def size_of(dtype: Any) -> int:
    """Bytes of a value, roughly."""
    if not is_fixed(dtype):
        return _TEXT_BYTES
    inner = getattr(dtype, "numpy_dtype", None)
    return int(dtype.itemsize) if inner is None else int(inner.itemsize) + 1


def is_fixed(dtype: Any) -> bool:
    """Whether all values are known to take as many bytes: numbers and times."""
    inner = getattr(dtype, "numpy_dtype", dtype)
    return isinstance(inner, np.dtype) and inner.kind != "O"


def dtypes_in(meta: Any) -> list[Any]:
    """The dtypes of a frame's columns, or of a Series."""
    return [meta.dtype] if meta.ndim == 1 else [dtype for _, dtype in dtypes_of(meta)]


def bytes_of_a_row(meta: Any) -> int:
    """Bytes of a row without its labels, roughly."""
    return sum(map(size_of, dtypes_in(meta)))


def located(nodes: Sequence[Expr], device: bool, columns: Any) -> Places | None:
    """Where partitions lie that a cluster, or this process, holds; ``None`` where any is computed.

    Bytes in this process are those of ``columns``, the metadata of what is read.
    """
    data: dict[Any, Any] = {}
    for node in nodes:
        if not isinstance(node, FromGraph) or len(node.operand("keys")) != node.npartitions:
            return None
        layer = dict(node.operand("layer"))
        data |= {key: layer.get(key) for key in node.operand("keys")}
    # what asks a future for its client binds it first
    if all(hasattr(type(value), "client") for value in data.values()):
        client = next(iter(data.values())).client
        if client is None or not _may_ask(client):
            return None
        return _asked(client, "".join(node._name for node in nodes), list(data), device)
    frames = all(isinstance(value, pd.DataFrame | pd.Series) for value in data.values())
    if device or not frames or current_client() is not None:
        return None
    nbytes = bytes_of_a_row(columns)
    of_key = {key: Place(HERE, len(frame) * nbytes) for key, frame in data.items()}
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
    held: list[Place | None] = []
    for i in range(npartitions):
        # a source of one partition is read with all of the others
        keys = [source.operand("keys") for source in sources]
        of_sources = [places.of_key.get(k[i] if len(k) == npartitions else k[0]) for k in keys]
        placed = [place for place in of_sources if place is not None]
        if len(placed) < len(of_sources):
            held.append(None)
        else:
            largest = max(placed, key=lambda place: place.nbytes)
            held.append(Place(largest.worker, sum(place.nbytes for place in placed)))
    return held


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
    # partitions with their bytes
    of_worker: dict[str, dict[int, int]] = {}
    for i, place in enumerate(held):
        if place is not None:
            of_worker.setdefault(place.worker, {})[i] = place.nbytes
    for worker, sizes in of_worker.items():
        max_bytes, min_chunks = _bounds(places, worker, device, streamed)
        runs: list[list[int]] = []
        for i in sizes:
            if runs and (runs[-1][-1] == i - 1 or not in_order):
                runs[-1].append(i)
            else:
                runs.append([i])
        for run in runs:
            buckets += _divided(run, sizes, max_bytes, min(min_chunks, len(run)))
    return tuple(sorted(map(tuple, buckets)))


def _bounds(places: Places, worker: str, device: bool, streamed: bool) -> tuple[int, int]:
    """Bytes of a chunk of a worker, at most, and the number of its chunks, at least."""
    max_bytes, size = settings().chunk.nbytes, places.workers[worker]
    if max_bytes is not None:
        return max_bytes, 1
    if streamed:
        return sys.maxsize, 1
    if device:
        # one chunk keeps the whole GPU busy, however many threads a worker has
        return max(size.device_memory // CHUNKS_OF_A_GPU, 1), 1
    if worker == HERE:
        return _HERE_BYTES, size.threads
    share = size.memory // (HOST_SHARE * size.threads) or HOST_BYTES
    return min(HOST_BYTES, share), size.threads


def _divided(
    partitions: Sequence[int], sizes: dict[int, int], max_bytes: int, min_chunks: int
) -> list[list[int]]:
    """Partitions in chunks of about equal bytes, in their order."""
    max_partitions = settings().chunk.partitions
    if max_partitions is not None:
        starts = range(0, len(partitions), max_partitions)
        return [list(partitions[i : i + max_partitions]) for i in starts]
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
    if not device_memory(client):
        ask(client, [], True)
    memory = device_memory(client)
    return max(len(memory), 1), min(memory, default=0)


def _may_ask(client: Any) -> bool:
    """Whether a scheduler can be asked for places: the package is installed there."""
    if client.asynchronous or client.status != "running":
        return False
    return is_checked(client) or cluster_problem(client) is None


def partitions_of_tasks(npartitions: int, tasks: int) -> tuple[tuple[int, ...], ...]:
    """Runs of consecutive partitions, one for each task, none longer than a chunk may be."""
    max_partitions = settings().chunk.partitions or PARTITIONS_OF_A_READER
    number = min(max(tasks, math.ceil(npartitions / max_partitions)), npartitions)
    return in_even_parts(range(npartitions), number)


def in_even_parts(partitions: Sequence[int], number: int) -> tuple[tuple[int, ...], ...]:
    """Partitions cut into so many runs of about equal length."""
    ends = [len(partitions) * i // number for i in range(number + 1)]
    return tuple(tuple(partitions[a:b]) for a, b in pairwise(ends))


Buckets = tuple[tuple[int, ...], ...]

# Columns of one read, decoded. Fewer bytes do not keep a reader busy; more only take memory, for
# some reads are there at a time.
BYTES_OF_A_READ = 128 << 20

# dtypes of which the metadata of pandas in a file says no more than the file itself
_PLAIN = (*NUMERIC, *TEMPORAL, "string")
_WITH_LABELS = (E.Index, E.ResetIndex)
# tables that have columns of text as they were read
_WITH_TEXT = (ReadParquet, E.Projection, E.Assign, E.Filter)

# rows of the first file, by the checksum of all files
_rows: Cache[str, int] = Cache(64)
# possible values of columns, by the checksum of all files and the names of the columns
_spans: Cache[tuple[str, ...], int | None] = Cache(64)


class SomeFiles(FusedIO):
    """Some of the files that Dask reads in one call, in a call of their own.

    Operands: the reader, the numbers of its partitions for each call, and the class of the node
    that reads several.
    """

    _parameters = ["_expr", "buckets", "kind"]

    @property
    def _fusion_buckets(self) -> list[list[int]]:
        return [list(bucket) for bucket in self.operand("buckets")]

    def _task(self, name: Any, index: int) -> Task:
        task: Task = self.operand("kind")._task(self, name, index)
        return task


def _only_reader(inside: Sequence[Expr]) -> tuple[Any, Any]:
    """The only node that reads, and its reader of single files; twice ``None`` of several."""
    sources = [node for node in inside if isinstance(node, IO)]
    if len(sources) != 1:
        return None, None
    (source,) = sources
    return source, source.operand("_expr") if isinstance(source, FusedIO) else source


def _numbered(joined: Sequence[Sequence[Any]]) -> Buckets:
    """The numbers of single reads, by the partition that several of them were."""
    ends = accumulate(map(len, joined), initial=0)
    return tuple(tuple(range(a, b)) for a, b in pairwise(ends))


def by_size(
    frame: Expr, by: Sequence[Any], inside: Sequence[Expr]
) -> tuple[Expr, tuple[Any, ...], Buckets]:
    """An input of which each read takes as many files as keep a reader busy, and no more.

    dask-cudf reads up to a thirty-second of a GPU's memory in one call. Several such calls at a
    time take as many times more, and few calls leave readers without work at the end.
    """
    as_they_are = frame, tuple(by), tuple((i,) for i in range(int(frame.npartitions)))
    source, reader = _only_reader(inside)
    # the reader of pyarrow's file systems is asked for smaller partitions
    if not isinstance(reader, ReadParquetFSSpec) or reader is source:
        return as_they_are
    files = reader._dataset_info["ds"].get_fragments()
    # of the first file
    rows = _rows.of(reader.checksum, lambda: sum(f.metadata.num_rows for f in islice(files, 1)))
    max_files = max(BYTES_OF_A_READ // max(rows * bytes_of_a_row(reader._meta), 1), 1)
    reads = [
        [b[i : i + max_files] for i in range(0, len(b), max_files)] for b in source._fusion_buckets
    ]
    calls = tuple(tuple(read) for of_partition in reads for read in of_partition)
    if len(calls) == len(reads):
        return as_they_are
    return *read_by(SomeFiles(reader, calls, type(source)), source, frame, by), _numbered(reads)


def span_of_keys(frame: Expr, by: Sequence[Any], inside: Sequence[Expr]) -> int | None:
    """Number of keys from the smallest to the largest, which are integers of Parquet files.

    By the statistics of the first file and of the last: keys may count up through all files.
    """
    source, reader = _only_reader(inside)
    # dask-cudf has every reader inside of such a node, by which it chooses how to read
    while isinstance(frame, E.Projection | E.Filter) or type(frame).__name__ == "NoOp":
        frame = frame.frame
    if not isinstance(reader, ReadParquetFSSpec) or frame._name != source._name:
        return None
    if any(isinstance(b, Expr) or b not in frame.columns for b in by):
        return None
    if not all(pd.api.types.is_integer_dtype(frame._meta[label].dtype) for label in by):
        return None
    files = reader._dataset_info["ds"].get_fragments
    return _spans.of((reader.checksum, *by), lambda: _span(list(files()), by))


def _span(files: Sequence[Any], labels: Sequence[str]) -> int | None:
    """Number of possible values of some columns, ``None`` where a row group does not bound them."""
    ends: dict[str, list[Any]] = {label: [] for label in labels}
    for footer in (files[0].metadata, files[-1].metadata):
        for group in map(footer.row_group, range(footer.num_row_groups)):
            for column in map(group.column, range(group.num_columns)):
                if column.path_in_schema in ends:
                    bounds = column.statistics
                    known = bounds is not None and bounds.has_min_max
                    ends[column.path_in_schema] += (bounds.min, bounds.max) if known else (None,)
    if not all(of and all(isinstance(end, int) for end in of) for of in ends.values()):
        return None
    span: int = math.prod(max(of) - min(of) + 1 for of in ends.values())
    return span


def without_labels(frame: Expr, by: Sequence[Any], inside: Sequence[Expr]) -> bool:
    """Whether of plain columns of files only values are read, no row labels."""
    read = [node for node in inside if isinstance(node, IO)]
    done = [node for node in inside if not isinstance(node, IO)]
    if any(isinstance(n, _WITH_LABELS) or not isinstance(n, E.Elemwise | E.Filter) for n in done):
        return False
    if not all(isinstance(b, Expr) or (frame.ndim == 2 and b in frame.columns) for b in by):
        return False
    dtypes = [dtype for node in read for dtype in dtypes_in(node._meta)]
    # the file itself has the instants of times in a zone, as UTC
    in_zones = any(isinstance(dtype, pd.DatetimeTZDtype) for dtype in dtypes)
    return not in_zones and all(dtype_class(dtype) in _PLAIN for dtype in dtypes)


def read_by(
    reader: Expr, source: Expr, frame: Expr, by: Sequence[Any]
) -> tuple[Expr, tuple[Any, ...]]:
    """An input and its keys, read by another node."""
    keys = tuple(b.substitute(source, reader) if isinstance(b, Expr) else b for b in by)
    files: Any = frame.substitute(source, reader)
    return files, keys


def by_file(
    frame: Expr, by: Sequence[Any], inside: Sequence[Expr]
) -> tuple[Expr, tuple[Any, ...], Buckets] | None:
    """An input that is read file by file, and of its partitions those that were one before."""
    source, reader = _only_reader(inside)
    # pyarrow joins what it has decoded faster than it makes frames of small files
    if not isinstance(reader, ReadParquet) or isinstance(source, FusedParquetIO):
        return None
    if reader is source:
        return frame, tuple(by), tuple((i,) for i in range(source.npartitions))
    return *read_by(reader, source, frame, by), _numbered(source._fusion_buckets)


def text_keys(frame: Expr, by: Sequence[Any], columns: Sequence[Any]) -> tuple[str, ...]:
    """Keys of a reader that may be read as dictionaries: text that nothing else reads.

    ``by`` may have other expressions than keys, and ``None``.
    """
    roots = [frame, *(b for b in by if isinstance(b, Expr))]
    nodes = [node for root in roots for node in root.walk()]
    readers = {node._name: node for node in nodes if isinstance(node, ReadParquet)}
    tables = [node for node in nodes if getattr(node, "ndim", 0) == 2]
    if len(readers) != 1 or not all(isinstance(node, _WITH_TEXT) for node in tables):
        return ()
    (reader,) = readers.values()
    promised = reader._meta.dtypes if reader.ndim == 2 else pd.Series()
    changed = {key for node in tables if isinstance(node, E.Assign) for key in node.keys}
    alone = {n.operand("columns") for n in nodes if isinstance(n, E.Projection) and n.ndim == 1}
    return tuple(
        b
        for b in by
        if isinstance(b, str)
        and b in promised.index
        and b not in {*columns, *changed, *alone}
        and promised[b] == pd.StringDtype("pyarrow")
    )
