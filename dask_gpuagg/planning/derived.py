"""Reading the expressions below a group-by that one kernel computes; see ``expressions``."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from dask.dataframe.dask_expr import _accessor as A
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Expr

from dask_gpuagg.engines import dtypes_of
from dask_gpuagg.expressions import Derived, Read, Step, Tree, common_dtype, ticks
from dask_gpuagg.planning.chunks import GroupByQuery
from dask_gpuagg.planning.nodes import DerivedColumns

_BINARY: dict[type, str] = {
    kind: kind.__name__.lower()
    for kind in (
        *(E.Add, E.Sub, E.Mul, E.Div, E.Mod, E.FloorDiv, E.And, E.Or, E.XOr),
        *(E.LT, E.LE, E.GT, E.GE, E.EQ, E.NE),
    )
}
_UNARY: dict[type, str] = {
    kind: kind.__name__.lower() for kind in (E.Neg, E.Abs, E.Invert, E.IsNa, E.NotNull)
}
# all steps that are read
COMPUTED = {*_BINARY, *_UNARY, E.Between, E.Where, E.Mask, E.Fillna}
COMPUTED_OF_TIMES = "floor"
_COMPARED = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
_LOGICAL = frozenset(("and", "or", "xor", "invert"))
_ENDS = {"both": ("ge", "le"), "left": ("ge", "lt"), "right": ("gt", "le"), "neither": ("gt", "lt")}
# columns of computed keys
_KEY = "gpuagg key {}"
# Expressions of a query, at most: the text of a column that refers to itself doubles each time.
_MAX_EXPRESSIONS = 400


class _LeftToDask(Exception):
    """An expression, or a dtype, that the kernel does not compute."""


def with_derived(query: GroupByQuery) -> GroupByQuery:
    """The query on derived columns; those of the host are computed as fast by pandas."""
    return derived_at_once(query) if query.on_device else query


def derived_at_once(query: GroupByQuery) -> GroupByQuery:
    """The query on columns that are computed of each partition at once, with its filter.

    The query as it is where nothing is computed, and where Dask's own tasks have to.
    """
    plan = query.plan
    if query.frame.ndim != 2 or plan.reads_labels:
        return query
    reader = _Reader()
    columns: dict[str, Tree] = {}
    by: list[str] = []
    try:
        for i, key in enumerate(query.by):
            is_computed = isinstance(key, Expr)
            label = _KEY.format(i) if is_computed else key
            columns[label] = reader.series(key) if is_computed else reader.column(query.frame, key)
            by.append(label)
        for column in plan.columns:
            columns[_text(column.label)] = reader.column(query.frame, column.label)
        predicate = None if query.predicate is None else reader.series(query.predicate)
    except _LeftToDask:
        return query
    computes = any(isinstance(tree, Step) for tree in columns.values())
    if len(reader.sources) != 1 or not (computes or predicate is not None):
        return query
    if predicate is not None and predicate.dtype != "bool":
        return query
    (source,) = reader.sources.values()
    nullable = None
    if predicate is not None and plan.drops_at_once:
        nullable = next((label for label in by if columns[label].dtype), None)
    derived = Derived(tuple(columns.items()), predicate, nullable)
    return replace(query, frame=DerivedColumns(source, derived), by=by, predicate=None)


def _text(label: Any) -> str:
    if not isinstance(label, str):
        raise _LeftToDask
    return label


class _Reader:
    """Reads expressions, and collects the inputs whose columns they are of."""

    def __init__(self) -> None:
        self.sources: dict[str, Expr] = {}
        self._expressions = 0

    def column(self, frame: Any, label: Any) -> Tree:
        """A column of a frame."""
        if isinstance(frame, E.Projection) and frame.ndim == 2:
            return self.column(frame.frame, label)
        if isinstance(frame, E.Assign):
            values = dict(zip(frame.keys, frame.vals, strict=True))
            if label not in values:
                return self.column(frame.frame, label)
            return self.series(values[label])
        if frame.ndim != 2 or _text(label) not in frame.columns:
            raise _LeftToDask
        self.sources[frame._name] = frame
        dtype = dict(dtypes_of(frame._meta))[label]
        return Read(label, str(dtype) if _is_plain(dtype) else "")

    def series(self, node: Any) -> Tree:
        """A computed column."""
        self._expressions += 1
        if not isinstance(node, Expr) or node.ndim != 1 or self._expressions > _MAX_EXPRESSIONS:
            raise _LeftToDask
        if isinstance(node, E.Projection):
            return self.column(node.frame, node.columns[0])
        if isinstance(node, E.RenameSeries):
            return self.series(node.frame)
        if isinstance(node, E.Between):
            lower, upper = _ENDS[node.inclusive]
            ends = {lower: self._operand(node.left), upper: self._operand(node.right)}
            column = self.series(node.frame)
            sides = (_checked(name, "bool", column, end) for name, end in ends.items())
            return Step("and", "bool", tuple(sides))
        dtype = str(node._meta.dtype)
        if type(node) in _BINARY:
            operands = [self._operand(node.left), self._operand(node.right)]
            return _checked(_BINARY[type(node)], dtype, *operands)
        if type(node) in _UNARY:
            return _checked(_UNARY[type(node)], dtype, self.series(node.frame))
        if isinstance(node, E.Where | E.Mask):
            operands = [self.series(node.frame), self.series(node.cond), self._operand(node.other)]
            return _checked(type(node).__name__.lower(), dtype, *operands)
        if isinstance(node, E.Fillna):
            return _checked("fillna", dtype, self.series(node.frame), self._operand(node.value))
        if isinstance(node, A.FunctionMap) and node.attr == COMPUTED_OF_TIMES:
            if node.accessor != "dt" or node.kwargs or len(node.args) != 1:
                raise _LeftToDask
            return _checked("floor", dtype, self.series(node.frame), *node.args)
        raise _LeftToDask

    def _operand(self, operand: Any) -> Any:
        if isinstance(operand, Expr):
            return self.series(operand)
        if type(operand) in (int, float) and np.isfinite(operand):
            return operand
        if isinstance(operand, pd.Timestamp) and operand.tz is None and operand is not pd.NaT:
            return operand
        raise _LeftToDask


def _checked(name: str, dtype: str, *operands: Any) -> Step:
    """A step, if the kernel computes it as cuDF does for these dtypes."""
    step = Step(name, dtype, operands)
    trees = [operand for operand in operands if isinstance(operand, Read | Step)]
    try:
        for operand in operands:
            if isinstance(operand, pd.Timestamp | str):
                ticks(operand, trees[0].dtype)
        dtypes = [np.dtype(tree.dtype) for tree in trees if tree.dtype]
        suits = len(dtypes) == len(trees) and _suits(step, dtypes)
    except (TypeError, ValueError, OverflowError) as error:
        raise _LeftToDask from error
    if not suits:
        raise _LeftToDask
    return step


def _suits(step: Step, dtypes: list[np.dtype[Any]]) -> bool:
    """Whether the kernel's arithmetic is cuDF's: C++ promotes numbers otherwise than NumPy."""
    name, result, operands = step.operation, np.dtype(step.dtype), step.operands
    common, kinds = common_dtype(step), {of.kind for of in dtypes}
    if common.kind in "iu":
        bounds = np.iinfo(common)
        if not all(bounds.min <= op <= bounds.max for op in operands if type(op) is int):
            return False
    if name in _LOGICAL:
        return kinds == {"b"} and result.kind == "b" and common.kind == "b"
    if name in ("where", "mask"):
        value, rows, other = operands
        alike = other.dtype == value.dtype if isinstance(other, Read | Step) else True
        fits = result.kind == "f" or type(other) is not float
        return value.dtype == result and rows.dtype == "bool" and alike and fits
    if name == "floor":
        return kinds == {"M"} and result == dtypes[0]
    if name in _COMPARED:
        times = sum(isinstance(operand, pd.Timestamp) for operand in operands)
        if kinds == {"M"}:
            return len(set(dtypes)) == 1 and len(dtypes) + times == 2
        meet = len(kinds) == 1 or (kinds == {"i", "f"} and np.dtype("f8") in dtypes)
        return meet and not kinds - set("iuf") and not times
    if name in ("isna", "notnull"):
        return not kinds - set("iufb")
    if kinds - set("iuf") or result.kind not in "iuf":
        return False
    if name in ("mod", "floordiv"):
        divisor = operands[1]
        return result.kind in "iu" and dtypes == [result] and type(divisor) is int and divisor > 0
    if name == "div":
        return result.kind == "f" and (result in dtypes or kinds <= set("iu"))
    if name == "fillna":
        return result == dtypes[0] and result.kind == "f" and len(set(dtypes)) == 1
    if name in ("neg", "abs"):
        return dtypes == [result] and result.kind != "u"
    # a result of another type than its operands' may be rounded before, or later
    has_float = any(type(operand) is float for operand in operands)
    of_integers = has_float and result == np.float64 and not kinds - set("iu")
    return result == common and (
        of_integers or (result in dtypes and (len(kinds) == 1 or kinds == {"i", "f"}))
    )


def _is_plain(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in "biufM"
