"""Filters below a group-by, which its tasks apply to the columns that they group.

Dask makes a frame of the rows that stay, and computes derived columns from such frames. Here they
are computed for all rows of a partition, and the others are left out as rows are grouped. Rows that
leave may make no step fail that Dask would not, and change no dtype.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from dask.dataframe.dask_expr import _accessor as A
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr.io.io import FusedIO
from dask.dataframe.dask_expr.io.parquet import ReadParquetFSSpec
from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine
from dask.dataframe.io.parquet.core import ParquetFunctionWrapper
from pandas.api.types import is_scalar

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import HOST, engine_name
from dask_gpuagg.planning.bucketing import dtypes_in, read_by
from dask_gpuagg.planning.chunks import GroupByQuery, constant, expressions
from dask_gpuagg.tasks.reading import BOUNDS, Bounds, ColumnsAsRead, Range
from dask_gpuagg.tasks.tasks import blanked

# Steps that may be computed for rows that leave, and the kinds of their dtypes: they cost little,
# and no value makes them fail. Arrow's arrays check for overflow.
_NUMBERS, _COMPARED = "biuf", "biufmM"
STEPS: dict[type, str] = {
    **dict.fromkeys((E.Add, E.Sub, E.Mul, E.Div, E.Mod, E.FloorDiv), _NUMBERS),
    **dict.fromkeys((E.Abs, E.Neg, E.Pos, E.Round, E.Clip), _NUMBERS),
    **dict.fromkeys((E.Fillna, E.Where, E.Mask), _NUMBERS),
    **dict.fromkeys((E.And, E.Or, E.XOr, E.Invert), "b"),
    **dict.fromkeys((E.LT, E.LE, E.GT, E.GE, E.EQ, E.NE), _COMPARED),
    **dict.fromkeys((E.Between, E.Isin, E.IsNa, E.NotNull), _COMPARED),
    **dict.fromkeys((A.PropertyMap, A.FunctionMap), "iM"),
}
_OF_COLUMNS = (A.PropertyMap, A.FunctionMap)
# operands that take the place of values
_REPLACING: dict[type, tuple[str, ...]] = {
    E.Fillna: ("value",),
    E.Where: ("other",),
    E.Mask: ("other",),
    E.Clip: ("lower", "upper"),
}
METHODS_OF_TIMES = {
    *("year", "month", "day", "hour", "minute", "second", "quarter"),
    *("weekday", "dayofweek", "dayofyear", "floor"),
}
# these name columns of any dtype
_NAMING = (E.Projection, E.Assign, E.RenameFrame, E.RenameSeries, E.ColumnsSetter)

# an input without its filters, and the names of the predicates of these, inner ones first
Moved = tuple[Expr, tuple[str, ...]]


class Blanked(E.Elemwise):
    """A column that has harmless values in rows that leave, where a step might fail on others.

    Operands: the column, which rows stay, and the kinds of dtypes that are changed.
    """

    _parameters = ["frame", "mask", "kinds"]
    operation = staticmethod(blanked)


def text_of(node: Any) -> str:
    """A predicate as pandas has it, with the labels of columns."""
    if not isinstance(node, Expr):
        return repr(node)
    if isinstance(node, Blanked):
        return text_of(node.frame)
    if isinstance(node, E.Binop):
        sides = (node.left, node.right)
        left, right = (f"({text_of(s)})" if isinstance(s, E.Binop) else text_of(s) for s in sides)
        return f"{left} {node._operator_repr} {right}"
    if isinstance(node, E.Unaryop):
        inner = text_of(node.frame)
        bracketed = f"({inner})" if isinstance(node.frame, E.Binop) else inner
        return f"{node._operator_repr}{bracketed}"
    if isinstance(node, _OF_COLUMNS):
        return f"{text_of(node.frame)}.{node.accessor}.{node.attr}"
    if type(node) in STEPS:
        return f"{text_of(node.operands[0])}.{type(node).__name__.lower()}(…)"
    return str(node.columns[0]) if _has_rows(node) else "…"


class _StaysFiltered(Exception):
    """Dask has to filter: other rows, or steps, are above the filter."""


def without_filters(query: GroupByQuery) -> GroupByQuery:
    """The query on unfiltered rows, of which ``predicate`` tells those that stay.

    The input is lowered. It is returned as it is without a filter, and where other steps than
    those of this module are above one.
    """
    roots = [query.frame, *(b for b in query.by if isinstance(b, Expr))]
    done: dict[str, Moved] = {}
    try:
        moved = [_moved(root, done) for root in roots]
    except _StaysFiltered:
        return query
    (frame, predicates), *rest = moved
    # a function of labels may fail on those of rows that leave
    fails = any(callable(b) and not isinstance(b, Expr) for b in query.by)
    if not predicates or fails or any(of_key != predicates for _, of_key in rest):
        return query
    keys = iter(rest)
    by = [next(keys)[0] if isinstance(b, Expr) else b for b in query.by]
    predicate = _conjunction(predicates, done)
    return replace(query, frame=frame, by=by, predicate=predicate, rows=text_of(predicate))


def _conjunction(predicates: tuple[str, ...], done: dict[str, Moved]) -> Expr:
    """The rows for which all predicates are true."""
    return reduce(E.And, (done[name][0] for name in predicates))


def _moved(node: Any, done: dict[str, Moved]) -> Moved:
    if node._name not in done:
        done[node._name] = _filter(node, done) if isinstance(node, E.Filter) else _step(node, done)
    return done[node._name]


def _filter(node: Any, done: dict[str, Moved]) -> Moved:
    (frame, above), (rows, of_rows) = _moved(node.frame, done), _moved(node.predicate, done)
    # rows of another frame would be aligned by their labels
    same_rows = len(sources_of([frame, rows])) == 1
    is_column = rows.ndim == 1 and dtype_class(rows._meta.dtype) == "bool"
    if above != of_rows or not same_rows or not is_column:
        raise _StaysFiltered
    # a masked array of pandas' does not combine with one of Arrow's
    masks = [rows, *(done[name][0] for name in above)]
    if len({mask._meta.dtype for mask in masks} - {np.dtype(bool)}) > 1:
        raise _StaysFiltered
    return frame, (*above, node.predicate._name)


def _step(node: Any, done: dict[str, Moved]) -> Moved:
    if not _is_step(node):
        return node, ()
    moved = [_moved(op, done) if _has_rows(op) else (op, None) for op in node.operands]
    predicates = {of_rows for _, of_rows in moved if of_rows is not None}
    if predicates == {()}:
        return node, ()
    if len(predicates) > 1 or not _suits_all_rows(node):
        raise _StaysFiltered
    (of_rows,) = predicates
    operands = [operand for operand, _ in moved]
    if not isinstance(node, _NAMING):
        mask = _conjunction(of_rows, done)
        operands = [_blanked(op, mask, node) if _has_rows(op) else op for op in operands]
    return type(node)(*operands), of_rows


def _blanked(column: Any, mask: Expr, step: Any) -> Any:
    """A column as a step takes it: files and functions break promises of numbers by objects.

    Of times those out of range would fail, and a null makes floats of the numbers of all.
    """
    if engine_name(column._meta) != HOST:
        return column
    if isinstance(step, _OF_COLUMNS):
        return Blanked(column, mask, "MO")
    return column if type(column) in STEPS else Blanked(column, mask, "O")


def _has_rows(operand: Any) -> bool:
    return isinstance(operand, Expr) and getattr(operand, "ndim", 0) > 0


def _is_step(node: Any) -> bool:
    if isinstance(node, E.RenameSeries):
        return bool(is_scalar(node.operand("index")))  # others rename rows
    return type(node) in STEPS or isinstance(node, (*_NAMING, Blanked))


def _suits_all_rows(node: Any) -> bool:
    """Whether a step may be computed for rows that leave."""
    if isinstance(node, _NAMING):
        return True
    columns = [n for n in (node, *node.operands) if _has_rows(n)]
    dtypes = [column._meta.dtype for column in columns if column.ndim == 1]
    if len(dtypes) < len(columns):
        return False
    if not all(isinstance(d, np.dtype) and d.kind in STEPS[type(node)] for d in dtypes):
        return False
    if isinstance(node, _OF_COLUMNS):
        return bool(node.accessor == "dt" and node.attr in METHODS_OF_TIMES)
    # of integers a quotient by zero has another dtype
    if isinstance(node, E.Mod | E.FloorDiv):
        return not isinstance(node.right, Expr) and bool(node.right)
    replacing = _REPLACING.get(type(node), ())
    return all(_holds(dtypes[0], node.operand(name)) for name in replacing)


def _holds(dtype: np.dtype[Any], value: Any) -> bool:
    """Whether a column stays of a dtype with such a value, or with those of another column."""
    if isinstance(value, Expr):
        other = getattr(value._meta, "dtype", None)
        return other == dtype or (dtype == np.float64 and getattr(other, "kind", "O") in "iuf")
    if not is_scalar(value):
        return False
    row = pd.Series(np.zeros(1, dtype))
    return value is None or bool(row.where([False], value).dtype == dtype)


def sources_of(roots: Sequence[Any]) -> dict[str, Any]:
    """The nodes whose rows, and labels, some inputs have, by their names."""
    nodes: dict[str, Any] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node._name not in nodes:  # each column of a chain refers to the frame before
            nodes[node._name] = node
            stack += filter(_has_rows, node.operands) if _is_step(node) else ()
    return {name: node for name, node in nodes.items() if not _is_step(node)}


# Row groups of Parquet files that a filter excludes are not read: comparisons of a column with a
# constant go to the reader, which compares the statistics of a file. The predicate stays in the
# plan, so no answer depends on statistics.

# comparisons of which the constant is the smallest value, the largest one, and outside
_LOW, _HIGH, _OPEN = (E.EQ, E.GE, E.GT), (E.EQ, E.LE, E.LT), (E.GT, E.LT)
# integers beside nulls are floats in pandas, which are rounded from here on
_EXACT = 2**53
# constants as statistics have them
_OF_STATISTICS = (int, float, str, date)
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


def within_bounds(query: GroupByQuery) -> GroupByQuery:
    """The query on row groups that may have rows for which its predicate is true.

    As it is where labels are read, which number rows, or where others read these files too.
    """
    sources = sources_of(expressions((query.frame, query.predicate, *query.by)))
    if query.predicate is None or query.shared or query.plan.reads_labels or len(sources) != 1:
        return query
    (source,) = sources.values()
    reader = source.operand("_expr") if isinstance(source, FusedIO) else source
    keys = {b for b in query.by if not isinstance(b, Expr)}
    by_rows = any(dtype_class(dtype) in _BY_ROWS for dtype in dtypes_in(source._meta))
    if by_rows or not _is_usual(reader) or not keys <= set(query.frame.columns):
        return query
    bounds = _bounds(query.predicate, source._name, reader._dataset_info["schema"])
    if not bounds:
        return query
    some: Any = BoundedFSSpec(bounds, *reader.operands)
    some = some if reader is source else type(source)(some)
    frame, (predicate, *by) = read_by(some, source, query.frame, (query.predicate, *query.by))
    return replace(query, frame=frame, by=by, predicate=predicate)


def _is_usual(reader: Any) -> bool:
    """Whether a reader is Dask's of the host, with its usual conversion to pandas."""
    if type(reader) is not ReadParquetFSSpec or reader.engine is not ArrowDatasetEngine:
        return False
    read = reader._io_func  # of no files it is another function
    is_usual = isinstance(read, ParquetFunctionWrapper)
    return is_usual and "arrow_to_pandas" not in read.common_kwargs


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
    return in_file if isinstance(in_file, _OF_STATISTICS) and in_file == value else None
