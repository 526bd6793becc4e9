"""Parquet: which files are read in one call, on the host and on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate, islice, pairwise
from typing import Any

import pandas as pd
import pyarrow as pa
from dask._task_spec import Task
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr.io import IO
from dask.dataframe.dask_expr.io.io import FusedIO
from dask.dataframe.dask_expr.io.parquet import FusedParquetIO, ReadParquet, ReadParquetFSSpec

from dask_gpuagg.cache import Cache
from dask_gpuagg.dtypes import INTEGRAL, NUMERIC, TEMPORAL, dtype_class
from dask_gpuagg.engines import dtypes_of
from dask_gpuagg.planning.bucketing import bytes_of_a_row, dtypes_in

Buckets = tuple[tuple[int, ...], ...]

# Columns of one read, decoded. Fewer bytes do not keep a reader busy; more only take memory, for
# some reads are there at a time.
BYTES_OF_A_READ = 128 << 20

# dtypes of which the metadata of pandas in a file says no more than the file itself
_PLAIN = (*NUMERIC, *TEMPORAL, "string")
_WITH_LABELS = (E.Index, E.ResetIndex)
# nodes whose columns have no other values than those of their input
_KEEP_VALUES = (E.Projection, E.Filter)

# rows of the first file, by the checksum of all files
_rows: Cache[str, int] = Cache(64)
# values that a key may have, by the checksum of all files and the key
_spans: Cache[tuple[str, Any], int] = Cache(64)
_UNKNOWN = sys.maxsize


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
    max_files = max(BYTES_OF_A_READ // max(_bytes_of_a_file(reader), 1), 1)
    reads = [
        [b[i : i + max_files] for i in range(0, len(b), max_files)] for b in source._fusion_buckets
    ]
    calls = tuple(tuple(read) for of_partition in reads for read in of_partition)
    if len(calls) == len(reads):
        return as_they_are
    return *_read_by(SomeFiles(reader, calls, type(source)), source, frame, by), _numbered(reads)


def without_labels(frame: Expr, by: Sequence[Any], inside: Sequence[Expr]) -> bool:
    """Whether of plain columns of files only values are read, no row labels."""
    read = [node for node in inside if isinstance(node, IO)]
    done = [node for node in inside if not isinstance(node, IO)]
    if any(isinstance(n, _WITH_LABELS) or not isinstance(n, E.Elemwise | E.Filter) for n in done):
        return False
    if not all(isinstance(b, Expr) or (frame.ndim == 2 and b in frame.columns) for b in by):
        return False
    return all(_is_plain(dtype) for node in read for dtype in dtypes_in(node._meta))


def _is_plain(dtype: Any) -> bool:
    # the file itself has the instants of times in a zone, as UTC
    return dtype_class(dtype) in _PLAIN and not isinstance(dtype, pd.DatetimeTZDtype)


def _read_by(
    reader: Expr, source: Expr, frame: Expr, by: Sequence[Any]
) -> tuple[Expr, tuple[Any, ...]]:
    """An input and its keys, read by another node."""
    keys = tuple(b.substitute(source, reader) if isinstance(b, Expr) else b for b in by)
    files: Any = frame.substitute(source, reader)
    return files, keys


def _bytes_of_a_file(reader: Any) -> int:
    """Bytes of the columns that are read of the first file, 0 of none."""
    files = reader._dataset_info["ds"].get_fragments()
    rows = _rows.of(reader.checksum, lambda: sum(f.metadata.num_rows for f in islice(files, 1)))
    return rows * bytes_of_a_row(reader._meta)


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
    return *_read_by(reader, source, frame, by), _numbered(source._fusion_buckets)


def span_of_key(frame: Expr, by: Sequence[Any]) -> int | None:
    """How many values an integer key of Parquet files may have, by statistics of three files."""
    while isinstance(frame, _KEEP_VALUES) or type(frame).__name__ == "NoOp":  # of dask-cudf
        frame = frame.frame
    reader = frame.operand("_expr") if isinstance(frame, FusedIO) else frame
    if not isinstance(reader, ReadParquetFSSpec) or len(by) != 1 or reader.ndim != 2:
        return None
    (label,) = by
    integral = [name for name, dtype in dtypes_of(reader._meta) if dtype_class(dtype) in INTEGRAL]
    if not isinstance(label, str) or label not in integral:
        return None
    try:
        span = _spans.of((reader.checksum, label), lambda: _span(reader, label))
    except (OSError, pa.ArrowException):  # those who read the rows will say so
        return None
    return None if span == _UNKNOWN else span


def _span(reader: Any, label: str) -> int:
    files = list(reader._dataset_info["ds"].get_fragments())
    low, high = _UNKNOWN, -_UNKNOWN
    for i in sorted({0, len(files) // 2, len(files) - 1} if files else ()):
        groups = [files[i].metadata.row_group(g) for g in range(files[i].metadata.num_row_groups)]
        for group in groups:
            columns = map(group.column, range(group.num_columns))
            statistics = next((c.statistics for c in columns if c.path_in_schema == label), None)
            if statistics is None or not statistics.has_min_max:
                return _UNKNOWN
            low, high = min(low, statistics.min), max(high, statistics.max)
    return high - low + 1 if low <= high else _UNKNOWN


def text_keys(frame: Expr, by: Sequence[Any], columns: Sequence[Any]) -> tuple[str, ...]:
    """Keys of a reader that may be read as dictionaries: text that nothing else reads."""
    if not isinstance(frame, ReadParquet) or frame.ndim != 2:
        return ()
    if any(callable(b) or isinstance(b, Expr) for b in by):
        return ()
    promised = frame._meta.dtypes
    return tuple(
        b
        for b in by
        if isinstance(b, str)
        and b in promised.index
        and b not in columns
        and promised[b] == pd.StringDtype("pyarrow")
    )
