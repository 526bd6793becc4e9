"""Row groups of Parquet files that a filter below a group-by excludes: they are not read.

Comparisons of a column with a constant go to the reader, which compares the statistics of a file.
The predicate stays in the plan, so no answer depends on statistics.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from dask._task_spec import Task
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr.io.io import FusedIO
from dask.dataframe.dask_expr.io.parquet import ReadParquetFSSpec, ReadParquetPyarrowFS
from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine
from dask.dataframe.io.parquet.core import ParquetFunctionWrapper

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.planning.bucketing import dtypes_in, read_by
from dask_gpuagg.planning.chunks import GroupByQuery, constant, expressions
from dask_gpuagg.planning.filters import Blanked, sources_of
from dask_gpuagg.tasks.reading import BOUNDS, Bounds, ColumnsAsRead, Range, SomeRowGroups

# comparisons of which the constant is the smallest value, the largest one, and outside
_LOW, _HIGH, _OPEN = (E.EQ, E.GE, E.GT), (E.EQ, E.LE, E.LT), (E.GT, E.LT)
# integers beside nulls are floats in pandas, which are rounded from here on
_EXACT = 2**53
# constants as statistics have them
_COMPARED = (int, float, str, date)
# columns whose values or dtype depend on which rows are read
_BY_ROWS = ("category", "object", "other")
# constants of ``isin``, at most: each task takes them once more
_MAX_LISTED = 1000


class BoundedFSSpec(ReadParquetFSSpec):
    """Dask's reader, of row groups that may have rows within bounds."""

    _parameters = ["bounds", *ReadParquetFSSpec._parameters]

    @property
    def _io_func(self) -> Any:
        reader: Any = super()._io_func
        reader.engine = ColumnsAsRead
        reader.common_kwargs = reader.common_kwargs | {BOUNDS: self.operand("bounds")}
        return reader


class BoundedPyarrowFS(ReadParquetPyarrowFS):
    """The same for file systems of pyarrow."""

    _parameters = ["bounds", *ReadParquetPyarrowFS._parameters]

    @cached_property
    def _fusion_compression_factor(self) -> Any:
        return super()._fusion_compression_factor  # which is computed again for each partition

    def _filtered_task(self, name: Any, index: int) -> Task:
        task = super()._filtered_task(name, index)
        (read,) = task.args
        some = SomeRowGroups(read.kwargs["fragment_wrapper"], self.operand("bounds"))
        read = Task(None, read.func, **(read.kwargs | {"fragment_wrapper": some}))
        return Task(name, task.func, read, _data_producer=True, **task.kwargs)


def within_bounds(query: GroupByQuery) -> GroupByQuery:
    """The query on row groups that may have rows for which its predicate is true.

    As it is where labels are read, which number rows, or where others read these files too.
    """
    sources = sources_of(expressions((query.frame, query.predicate, *query.by)))
    if query.predicate is None or query.shared or query.plan.reads_labels or len(sources) != 1:
        return query
    (source,) = sources.values()
    reader = source.operand("_expr") if isinstance(source, FusedIO) else source
    bounded = _bounded(reader)
    keys = {b for b in query.by if not isinstance(b, Expr)}
    by_rows = any(dtype_class(dtype) in _BY_ROWS for dtype in dtypes_in(source._meta))
    if bounded is None or by_rows or not keys <= set(query.frame.columns):
        return query
    bounds = _bounds(query.predicate, source._name, reader._dataset_info["schema"])
    if not bounds:
        return query
    some = bounded(bounds, *reader.operands)
    some = some if reader is source else type(source)(some)
    frame, (predicate, *by) = read_by(some, source, query.frame, (query.predicate, *query.by))
    return replace(query, frame=frame, by=by, predicate=predicate)


def _bounded(reader: Any) -> Any:
    """The class that takes the place of a reader of the host, or ``None``."""
    if type(reader) is ReadParquetPyarrowFS:
        return None if reader.arrow_to_pandas else BoundedPyarrowFS
    if type(reader) is not ReadParquetFSSpec or reader.engine is not ArrowDatasetEngine:
        return None
    read = reader._io_func  # of no files it is another function
    is_usual = isinstance(read, ParquetFunctionWrapper)
    return BoundedFSSpec if is_usual and "arrow_to_pandas" not in read.common_kwargs else None


def _bounds(node: Any, source: str, schema: pa.Schema) -> Bounds:
    """Ranges of columns that have the values of all rows for which a predicate is true."""
    if isinstance(node, E.And):
        return _bounds(node.left, source, schema) + _bounds(node.right, source, schema)
    ranges: list[Range] = []
    if isinstance(node, (*_LOW, *_HIGH)):
        low, high = (node.right if isinstance(node, side) else None for side in (_LOW, _HIGH))
        ranges = [(low, high, isinstance(node, _OPEN))]
    elif isinstance(node, E.Between):
        ranges = [(node.left, node.right, node.inclusive == "neither")]
    elif isinstance(node, E.Isin) and (listed := constant(node.operand("values"))) is not None:
        ranges = [(value, value, False) for value in listed.value]
    name: Any = None
    if 0 < len(ranges) <= _MAX_LISTED:
        name = _name_in_file(node.operands[0], source)
    if name not in schema.names:
        return ()
    dtype = schema.field(name).type
    of_file = tuple((_in_type(a, dtype), _in_type(b, dtype), is_open) for a, b, is_open in ranges)
    is_bounded = all(low is not None or high is not None for low, high, _ in of_file)
    return ((name, dtype, of_file),) if is_bounded else ()


def _name_in_file(column: Any, source: str) -> Any:
    """The name of a column that is as it was read, or ``None``."""
    frame = column = column.frame if isinstance(column, Blanked) else column
    while isinstance(frame, E.Projection):
        frame = frame.frame
    is_column = column is not frame and column.ndim == 1 and frame._name == source
    return column.columns[0] if is_column else None


def _in_type(value: Any, dtype: pa.DataType) -> Any:
    """A constant as statistics have it; ``None`` where pandas may compare another one."""
    if pa.types.is_timestamp(dtype) and isinstance(value, str | np.datetime64):
        value = pd.Timestamp(value)
    is_exact = isinstance(value, int | np.integer) and abs(int(value)) < _EXACT
    if dtype in (pa.uint64(), pa.float16()) or (pa.types.is_integer(dtype) and not is_exact):
        return None
    try:
        in_file = pa.scalar(value, dtype).as_py()
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return in_file if isinstance(in_file, _COMPARED) and in_file == value else None
