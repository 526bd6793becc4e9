"""A logical expression for aggregations that Dask's ``.agg`` refuses.

Dask rejects ``nunique``, ``any``, ``sem`` and others, the same pair twice, and a ``dd.Aggregation``
beside ``median`` while it makes metadata for its own node; it ignores the functions' arguments. For
such a specification the collection gets this node instead. Where Dask accepts it all the same, the
node keeps Dask's expression for it, to be run wherever ours cannot.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from dask.dataframe.dask_expr._collection import new_collection
from dask.dataframe.dask_expr._expr import Blockwise, ColumnsSetter, Expr
from dask.dataframe.dask_expr._groupby import (
    GroupbyAggregation,
    GroupByApplyConcatApply,
    GroupByBase,
    SeriesGroupBy,
)
from dask.dataframe.dask_expr._repartition import Repartition

from dask_gpuagg.engines.host.stacking import places_among
from dask_gpuagg.frontend.metadata import (
    NamedByBytes,
    matrix_meta,
    outputs_meta,
    remembered,
    shaped,
)
from dask_gpuagg.frontend.specification import Guard, Specification
from dask_gpuagg.plan import Requested, listed, short

# outputs that a printed expression names
_SHOWN = 4

_FLAGS = ("observed", "dropna", "split_every", "split_out", "sort", "shuffle_method", "_slice")


class ExtendedAggregation(NamedByBytes, GroupByApplyConcatApply):
    """A group-by aggregation in terms of ``Requested`` outputs.

    Operands: the frame, the requested outputs (a tuple of ``Requested``), the empty result, the
    flags of Dask's own node, Dask's own expression for the same result if there is one, the
    guards and the empty outputs that they are applied to, then the keys.
    """

    _parameters = ["frame", "requested", "result_meta", *_FLAGS, "stock", "guards", "guarded_meta"]
    _defaults = {**dict.fromkeys(_FLAGS), "split_every": 8, "stock": None, "guards": ()}

    @functools.cached_property
    def _meta(self) -> Any:
        return self.result_meta

    @property
    def planned_meta(self) -> Any:
        """The empty result of the plan."""
        return self.guarded_meta if self.guards else self.result_meta

    def completed(self, planned: Expr) -> Expr:
        """The result, from the outputs of the plan."""
        return GroupByGuarded(planned, self.guards, self.result_meta) if self.guards else planned

    def _simplify_down(self) -> Any:
        if self.frame.ndim == 1:
            return None
        needed = {r.column for r in self.requested} | set(self._by_columns)
        columns = [c for c in self.frame.columns if c in needed]
        if columns == list(self.frame.columns) or not columns:
            return None
        return type(self)(self.frame[columns], *self.operands[1:])

    def _outputs_text(self) -> str:
        """The first outputs, in few words."""
        return listed([f"{r.aggregation} of {short(r.column)}" for r in self.requested], _SHOWN)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.frame}, {self._outputs_text()}, by={self.by})"

    def _tree_repr_argument_construction(self, i: int, op: Any, header: str) -> str:
        # empty results, functions and Dask's own expression are long
        name = self._parameters[i] if i < len(self._parameters) else ""
        if name in ("result_meta", "stock", "guards", "guarded_meta"):
            return header
        if name == "requested":
            return f"{header} {self._outputs_text()}"
        text: str = super()._tree_repr_argument_construction(i, op, header)  # type: ignore[no-untyped-call]
        return text

    def __dask_graph__(self) -> dict[Any, Any]:
        # older releases of Dask ask for it to see that this is one of its expressions
        return {}

    def _lower(self) -> Any:
        if self.stock is not None:
            return self.stock.lowered(self.operand("split_out"), self.npartitions)
        names = ", ".join(dict.fromkeys(r.aggregation for r in self.requested))
        raise RuntimeError(
            f"this group-by ({names}) was built with dask_gpuagg enabled and stock Dask cannot "
            "run it: enable the plugin again, or write the aggregation in Dask's own terms"
        )


class Stock:
    """Dask's own expression for the result of a node of ours, but no input of that node."""

    def __init__(self, expr: Any) -> None:
        # not called `expr`: Dask treats any object with that attribute as a collection, and would
        # make its expression an input of the node
        self.logical = expr

    def lowered(self, split_out: Any, npartitions: int) -> Any:
        """The expression with Dask's physical nodes, for the ``split_out`` of our node.

        It has as many partitions as the nodes above were built with.
        """
        # it was not part of the query when that was simplified
        expr: Any = self.logical.simplify()
        group_by: Any = next(n for n in expr.walk() if isinstance(n, GroupByBase))
        stock = group_by
        if "split_out" in group_by._parameters:
            stock = group_by.substitute_parameters({"split_out": split_out})
        # lowered at once, so that it is not offered to the planner again
        physical = stock._lower()
        expr = expr.substitute(group_by, stock if physical is None else physical)
        if expr.npartitions != npartitions:
            return Repartition(expr, new_partitions=npartitions)
        return expr

    def __dask_tokenize__(self) -> Any:
        return ("dask_gpuagg.Stock", self.logical._name)


def gpuagg_guarded(outputs: Any, guards: Sequence[Guard], meta: Any) -> Any:
    """Make outputs null in the groups that have too few values; they are labelled by positions."""
    columns = {i: outputs[i] for i in range(1 if meta.ndim == 1 else meta.shape[1])}
    for guard in guards:
        least = outputs[guard.count + 1] if guard.least is None else guard.least
        columns[guard.output] = columns[guard.output].where(outputs[guard.count] >= least)
    if meta.ndim == 1:
        columns[0].name = meta.name
        return columns[0]
    return _labelled(outputs, columns, meta)


def gpuagg_with_stock(outputs: Any, stock: Any, positions: Sequence[int], meta: Any) -> Any:
    """Join planned outputs with stock Dask's columns, which have ``positions`` in the result."""
    places = places_in(stock.index, keys_of(outputs.index))
    if not len(stock) == len(outputs) == len(places) or (places < 0).any():
        raise RuntimeError(f"{len(outputs)} planned groups, {len(stock)} of stock Dask")
    stock = stock.take(places).set_axis(outputs.index, axis=0)
    by_stock = {i: stock.iloc[:, n] for n, i in enumerate(positions)}
    planned = (outputs.iloc[:, n] for n in range(outputs.shape[1]))
    columns = {i: by_stock[i] if i in by_stock else next(planned) for i in range(meta.shape[1])}
    return _labelled(outputs, columns, meta)


def keys_of(index: pd.Index) -> pd.DataFrame:
    """The levels of an index of groups as columns ``k0``, ``k1``, ...; names may be equal."""
    names = [f"k{i}" for i in range(index.nlevels)]
    return index.to_frame(index=False, name=names if index.nlevels > 1 else names[0])


def places_in(index: pd.Index, keys: pd.DataFrame) -> Any:
    """The place in an index of groups of each row of keys, or -1; nulls are equal.

    The index itself may hold null in two ways, if it has several levels, and finds wrong groups.
    """
    groups = keys_of(index)
    # ordered categories that are numbered otherwise do not unite
    return places_among(keys.astype(groups.select_dtypes("category").dtypes), groups)


def _labelled(outputs: Any, columns: dict[int, Any], meta: Any) -> Any:
    result = type(outputs)(columns, index=outputs.index)
    result.columns = meta.columns.view()
    return result


class GroupByCompleted(Blockwise):
    """The result of a group-by, with the metadata that its collection announced."""

    @functools.cached_property
    def _meta(self) -> Any:
        return self.operand("meta")


class GroupByGuarded(GroupByCompleted):
    """Outputs that are null in the groups that have too few values."""

    _parameters = ["frame", "guards", "meta"]
    operation = staticmethod(gpuagg_guarded)


class GroupByWithStock(GroupByCompleted):
    """The planned outputs of a group-by, and those of stock Dask, each in one partition."""

    _parameters = ["frame", "stock", "positions", "meta"]
    operation = staticmethod(gpuagg_with_stock)


def joined(expr: Any, planned: Expr, by_stock: Mapping[int, Requested]) -> Expr:
    """The planned outputs of a logical group-by, joined with those that stock Dask runs."""
    columns = list(dict.fromkeys(request.column for request in by_stock.values()))
    # in the order of stock Dask's result
    positions = sorted(by_stock, key=lambda i: columns.index(by_stock[i].column))
    spec: Any = {c: [r.aggregation for r in by_stock.values() if r.column == c] for c in columns}
    frame = expr.frame
    if frame.ndim == 1:
        spec = spec[frame._meta.name]
    else:
        read = {*spec, *expr._by_columns}
        frame = frame[[column for column in frame.columns if column in read]]
    meta = expr.planned_meta if isinstance(expr, ExtendedAggregation) else expr._meta
    flags = [expr.operand(name) for name in _FLAGS[:-1]]
    stock = GroupbyAggregation(frame, spec, *flags, None, *expr.by)
    # lowered at once, so that it is not offered to the planner again
    return GroupByWithStock(planned, stock._lower(), positions, meta)


def _metadata(groupby: Any, spec: Specification) -> tuple[Any, Any]:
    """The empty outputs of a specification, if it has any, and the result that is made of them."""
    labels = [request.label for request in spec.requested]
    name = spec.requested[0].aggregation if spec.requested else ""
    if name in ("cov", "corr"):
        return None, matrix_meta(groupby, labels)
    outputs = outputs_meta(groupby, spec.requested + spec.counted)
    if spec.scalar and name == "value_counts":
        labels = ["count"]  # pandas' name for it
    return outputs, shaped(outputs, labels, spec.scalar, spec.levels)


def extended(
    groupby: Any, spec: Specification, flags: dict[str, Any], stock: Any | None = None
) -> ExtendedAggregation:
    """The node of a specification, with ``split_every``, ``split_out`` and ``shuffle_method``.

    Where the planner cannot be used after all, the ``stock`` collection has the result.
    """
    flags_of_meta = (groupby.observed, groupby.dropna, groupby.sort, groupby._slice)
    depends_on = (groupby.obj.expr, list(groupby.by), flags_of_meta, spec)
    outputs, result = remembered(depends_on, lambda: _metadata(groupby, spec))
    if stock is not None and stock.ndim > result.ndim:
        stock = stock[stock.columns[0]]  # Dask's median of one column is a frame
    elif stock is not None and result.ndim == 2 and isinstance(groupby, SeriesGroupBy):
        # beside others it has one level more, which Dask's metadata may not say
        stock = new_collection(ColumnsSetter(stock.expr, list(result.columns)))
    flags = flags | {name: getattr(groupby, name) for name in _FLAGS if name not in flags}
    return ExtendedAggregation(
        groupby.obj.expr,
        spec.requested + spec.counted,
        result,
        *(flags[name] for name in _FLAGS),
        None if stock is None else Stock(stock.expr),
        spec.guards,
        outputs if spec.guards else None,
        *groupby.by,
    )
