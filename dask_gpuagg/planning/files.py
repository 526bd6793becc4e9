"""Parquet for the host engine: a task takes the files of which Dask would make one partition."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import pandas as pd
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr.io import IO
from dask.dataframe.dask_expr.io.io import FusedIO
from dask.dataframe.dask_expr.io.parquet import FusedParquetIO, ReadParquet

Buckets = tuple[tuple[int, ...], ...]


def by_file(
    frame: Expr, by: Sequence[Any], inside: Sequence[Expr]
) -> tuple[Expr, tuple[Any, ...], Buckets] | None:
    """An input that is read file by file.

    Parameters
    ----------
    frame : Expr
        Lowered.
    by : sequence
        Labels, callables, or lowered expressions.
    inside : sequence of Expr
        All nodes that the input and the keys are made of.

    Returns
    -------
    frame, by : Expr, tuple
        With a partition for each file.
    buckets : tuple of tuple of int
        Of these the ones that made a partition before.

    ``None`` where anything but one reader of Parquet is read, and where several files are read
    into one table, whose rows are numbered together.
    """
    sources = [node for node in inside if isinstance(node, IO)]
    if len(sources) != 1:
        return None
    (source,) = sources
    reader = source.operand("_expr") if isinstance(source, FusedIO) else source
    # pyarrow joins what it has decoded faster than it makes frames of small files
    if not isinstance(reader, ReadParquet) or isinstance(source, FusedParquetIO):
        return None
    if reader is source:
        return frame, tuple(by), tuple((i,) for i in range(source.npartitions))
    ends = accumulate(map(len, source._fusion_buckets), initial=0)
    buckets = tuple(tuple(range(a, b)) for a, b in pairwise(ends))
    keys = tuple(b.substitute(source, reader) if isinstance(b, Expr) else b for b in by)
    files: Any = frame.substitute(source, reader)
    return files, keys, buckets


def text_keys(frame: Expr, by: Sequence[Any], columns: Sequence[Any]) -> tuple[str, ...]:
    """Keys of a reader that may be read as dictionaries: text that nothing else reads.

    Parameters
    ----------
    frame : Expr
        As ``by_file`` gives it.
    by : sequence
        Labels, callables, or expressions.
    columns : sequence of labels
        Whose values are read, row by row.
    """
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
