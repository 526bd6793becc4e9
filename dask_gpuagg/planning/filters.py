"""Filters below a group-by, which its tasks apply to the columns that they group.

Dask makes a frame of the rows that stay, and computes derived columns from such frames. Here they
are computed for all rows of a partition, and the others are left out as rows are grouped. Rows that
leave may make no step fail that Dask would not, and change no dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pandas as pd
from dask.dataframe.dask_expr import _accessor as A
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Expr
from pandas.api.types import is_scalar

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import HOST, engine_name
from dask_gpuagg.planning.chunks import GroupByQuery
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
