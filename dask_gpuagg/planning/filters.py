"""Filters below a group-by, which its tasks apply to the columns that they group.

Dask makes a frame of the rows that stay, and computes derived columns from such frames. Here they
are computed for all rows of a partition, and the others are left out as rows are grouped.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from dask.dataframe.dask_expr import _accessor as A
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Expr

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.planning.bucketing import dtypes_in
from dask_gpuagg.planning.chunks import GroupByQuery

# Steps that may be computed for rows that leave, and the kinds of their dtypes: they cost little,
# and no value makes them fail. Arrow's arrays check for overflow.
_NUMBERS, _COMPARED = "biuf", "biufmM"
_STEPS: dict[type, str] = {
    **dict.fromkeys((E.Add, E.Sub, E.Mul, E.Div, E.Mod, E.FloorDiv), _NUMBERS),
    **dict.fromkeys((E.Abs, E.Neg, E.Pos, E.Round, E.Clip), _NUMBERS),
    **dict.fromkeys((E.Fillna, E.Where, E.Mask), _NUMBERS),
    **dict.fromkeys((E.And, E.Or, E.XOr, E.Invert), "b"),
    **dict.fromkeys((E.LT, E.LE, E.GT, E.GE, E.EQ, E.NE), _COMPARED),
    **dict.fromkeys((E.Between, E.Isin, E.IsNa, E.NotNull), _COMPARED),
    **dict.fromkeys((A.PropertyMap, A.FunctionMap), "iM"),
}
_OF_TIMES = {"year", "month", "day", "hour", "minute", "second", "quarter", "weekday", "dayofweek"}
_OF_TIMES |= {"dayofyear", "floor"}
# these name columns of any dtype
_NAMING = (E.Projection, E.Assign, E.RenameFrame, E.RenameSeries, E.ColumnsSetter)

# an input without its filters, and the predicates of these, inner ones first
Moved = tuple[Expr, tuple[Expr, ...]]


def text_of(node: Any) -> str:
    """A predicate as pandas has it, with the labels of columns."""
    if isinstance(node, E.Projection):
        return str(node.columns[0])
    if isinstance(node, E.Binop):
        sides = (node.left, node.right)
        left, right = (f"({text_of(s)})" if isinstance(s, E.Binop) else text_of(s) for s in sides)
        return f"{left} {node._operator_repr} {right}"
    if isinstance(node, E.Unaryop):
        return f"{node._operator_repr}{text_of(node.frame)}"
    if not isinstance(node, Expr):
        return repr(node)
    return (
        f"{text_of(node.operands[0])}.{type(node).__name__.lower()}(…)" if _has_rows(node) else "…"
    )


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
    if not predicates or any(of_key != predicates for _, of_key in rest):
        return query
    keys = iter(rest)
    by = [next(keys)[0] if isinstance(b, Expr) else b for b in query.by]
    predicate: Any = reduce(E.And, predicates)
    return replace(query, frame=frame, by=by, predicate=predicate, rows=text_of(predicate))


def _moved(node: Any, done: dict[str, Moved]) -> Moved:
    if node._name not in done:
        done[node._name] = _filter(node, done) if isinstance(node, E.Filter) else _step(node, done)
    return done[node._name]


def _filter(node: Any, done: dict[str, Moved]) -> Moved:
    (frame, above), (rows, of_rows) = _moved(node.frame, done), _moved(node.predicate, done)
    # rows of another frame would be aligned by their labels
    same_rows = len(_sources(frame) | _sources(rows)) == 1
    if above != of_rows or not same_rows or dtype_class(rows._meta.dtype) != "bool":
        raise _StaysFiltered
    return frame, (*above, rows)


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
    return type(node)(*(operand for operand, _ in moved)), of_rows


def _has_rows(operand: Any) -> bool:
    return isinstance(operand, Expr) and getattr(operand, "ndim", 0) > 0


def _is_step(node: Any) -> bool:
    return type(node) in _STEPS or isinstance(node, _NAMING)


def _suits_all_rows(node: Any) -> bool:
    """Whether a step may be computed for rows that leave."""
    if isinstance(node, _NAMING):
        return True
    if isinstance(node, A.PropertyMap | A.FunctionMap) and (
        node.accessor != "dt" or node.attr not in _OF_TIMES
    ):
        return False
    # of integers a quotient by zero has another dtype
    if isinstance(node, E.Mod | E.FloorDiv) and (isinstance(node.right, Expr) or not node.right):
        return False
    dtypes = [d for n in (node, *node.operands) if _has_rows(n) for d in dtypes_in(n._meta)]
    return all(isinstance(d, np.dtype) and d.kind in _STEPS[type(node)] for d in dtypes)


def _sources(node: Any) -> frozenset[str]:
    """Names of the nodes whose rows, and labels, an input has."""
    if not _is_step(node):
        return frozenset((node._name,))
    return frozenset().union(*(_sources(op) for op in node.operands if _has_rows(op)))
