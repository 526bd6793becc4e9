"""How an input is divided into chunks: by where its partitions lie, or by what its tasks read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask.dataframe.dask_expr._expr import Expr, Projection
from dask.dataframe.dask_expr.io import FromGraph

from dask_gpuagg.cluster.places import Places
from dask_gpuagg.planning.bucketing import (
    buckets_of,
    held_by,
    held_here,
    persisted,
    places_of,
    runs_of_partitions,
    workers_of,
)
from dask_gpuagg.planning.chunks import READERS, STREAMED_READERS, Chunks, expressions, region_of
from dask_gpuagg.planning.files import Buckets, by_file, by_size, text_keys, without_labels
from dask_gpuagg.settings import settings

# Readers that a task keeps busy: one does not fill a GPU with work, and more decode no faster.
READERS_OF_A_TASK = 4
# Most files of which each is a task where partials are exchanged: tasks times outputs.
MOST_APART = 32


def chunked(
    frame: Expr,
    by: Sequence[Any],
    in_order: bool,
    device: bool,
    shared: bool,
    columns: Sequence[Any] | None = None,
    apart: bool = False,
    streamed: bool = False,
) -> Chunks | None:
    """The chunks of an input, or ``None`` where each partition is a task by itself.

    Parameters
    ----------
    frame : Expr
        Lowered.
    by : sequence
        Labels, callables, or lowered expressions.
    in_order : bool
        Whether a chunk may only have partitions that follow each other.
    device : bool
        Whether the partitions are cuDF's.
    shared : bool
        Whether another part of the query reads the same input: it is not read twice.
    columns : sequence of labels, optional
        Whose values are read, row by row; ``None`` where partitions must be as Dask makes them.
    apart : bool
        Whether partials are as large as partitions: they hold rows, or distinct pairs.
    streamed : bool
        Whether partitions of the host are streamed through a GPU.

    Returns
    -------
    Chunks or None
    """
    if settings().chunk.partitions == 1 or frame.npartitions == 1:
        return None
    read = frame._meta
    frame = unprojected(frame, by)
    roots = [frame, *expressions(by)]
    readers = STREAMED_READERS if streamed else READERS
    inside, outside = region_of(roots, readers)
    if not outside:
        if shared:
            return None
        if device or streamed or settings().chunk.partitions is not None:
            return _of_readers(frame, by, inside, device, streamed, columns is None)
        # readers keep all cores of the host busy as it is: a task takes what it took
        return None if columns is None else _of_files(frame, by, inside, columns, apart)
    found = _places(outside, device, read)
    if found is None:
        return None
    sources, places = found
    held = held_by(sources, places, int(frame.npartitions))
    buckets = buckets_of(held, places, in_order, device, streamed)
    if len(buckets) == len(held):
        return None
    workers = {place.worker for place in held if place is not None}
    return Chunks(frame, tuple(by), buckets, len(workers), inside=readers)


def _places(
    outside: Sequence[Expr], device: bool, read: Any
) -> tuple[list[FromGraph], Places] | None:
    """The persisted collections that an input is made of, and where their partitions lie."""
    sources = persisted(outside)
    if sources is None:
        return None if device else held_here(outside, read)
    places = places_of(sources, device)
    return None if places is None else (sources, places)


def _of_readers(
    frame: Expr,
    by: Sequence[Any],
    inside: Sequence[Expr],
    device: bool,
    streamed: bool,
    as_dask: bool,
) -> Chunks | None:
    """The chunks of an input that is read by the tasks that group it."""
    kinds = STREAMED_READERS if streamed else READERS
    if not any(isinstance(node, kinds) for node in inside):
        return None
    workers = workers_of(device)
    number = 1 if workers is None else len(workers)
    if device and workers is not None:
        number = sum(size.device_memory > 0 for size in workers.values()) or number
    files = any(isinstance(node, READERS) for node in inside)
    readers = READERS_OF_A_TASK if files and (device or streamed) else 1
    given = int(frame.npartitions)
    reads: Buckets = tuple((i,) for i in range(given))
    if readers > 1 and not as_dask:
        frame, by, reads = by_size(frame, by, inside)
    if settings().chunk.partitions is None:
        buckets = runs_of_partitions(int(frame.npartitions), number)
    else:
        # of Dask's partitions
        runs = runs_of_partitions(given, number)
        buckets = tuple(tuple(i for part in run for i in reads[part]) for run in runs)
    if len(buckets) == frame.npartitions:
        return None
    # partitions of the host are as Dask makes them: they are streamed
    texts = () if device and not as_dask and without_labels(frame, by, inside) else None
    return Chunks(frame, tuple(by), buckets, number, readers, texts, kinds)


def _of_files(
    frame: Expr,
    by: Sequence[Any],
    inside: Sequence[Expr],
    columns: Sequence[Any],
    apart: bool,
) -> Chunks | None:
    """The files of each partition, which the host groups one after the other.

    Few files are taken one by one, where the partials of several would have to be joined
    (``apart``).
    """
    found = by_file(frame, by, inside)
    if found is None:
        return None
    files, keys, buckets = found
    if apart and sum(map(len, buckets)) <= MOST_APART:
        buckets = tuple((i,) for bucket in buckets for i in bucket)
    texts = text_keys(files, by, columns)
    return Chunks(files, keys, buckets, workers=0, readers=1, text_keys=texts)


def unprojected(frame: Expr, by: Sequence[Any]) -> Expr:
    """The frame without its projections, each of which costs a frame for every partition."""
    while (
        isinstance(frame, Projection)
        and frame.ndim == frame.frame.ndim == 2
        and frame.frame._meta.columns.is_unique
        and all(isinstance(b, Expr) or _is_among(b, frame._meta.columns) for b in by)
    ):
        frame = frame.frame
    return frame


def _is_among(by: Any, columns: Any) -> bool:
    return not callable(by) and by in columns
