"""A logical expression for aggregations that Dask's ``.agg`` refuses.

Dask rejects ``nunique``, ``any``, ``sem`` and others, the same pair twice, and a
``dd.Aggregation`` beside ``median`` while it makes the metadata of its own node; it ignores the
functions' arguments. For such a specification the collection gets this node instead; nothing else
about the query changes. Where Dask accepts the specification all the same, the node keeps Dask's
expression for it, to be run wherever ours cannot.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dask.dataframe.dask_expr._collection import new_collection
from dask.dataframe.dask_expr._expr import Blockwise, ColumnsSetter, Expr
from dask.dataframe.dask_expr._groupby import GroupByApplyConcatApply, SeriesGroupBy

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.frontend.device_metadata import numeric_labels
from dask_gpuagg.frontend.fallback import Stock
from dask_gpuagg.frontend.functions import Parameters
from dask_gpuagg.frontend.result_metadata import matrix_meta, outputs_meta, shaped
from dask_gpuagg.frontend.specification import (
    Guard,
    Specification,
    read_specification,
    value_columns,
)
from dask_gpuagg.plan import Requested, Unsupported, short

# outputs that a printed expression names
_SHOWN = 4


class ExtendedAggregation(GroupByApplyConcatApply):
    """A group-by aggregation in terms of ``Requested`` outputs.

    Operands: the frame, the requested outputs (a tuple of ``Requested``), the empty result, the
    flags of Dask's own node, Dask's own expression for the same result if there is one, the
    guards and the empty outputs that they are applied to, then the keys.
    """

    _parameters = [
        "frame",
        "requested",
        "result_meta",
        "observed",
        "dropna",
        "split_every",
        "split_out",
        "sort",
        "shuffle_method",
        "_slice",
        "stock",
        "guards",
        "guarded_meta",
    ]
    _defaults = {
        "observed": None,
        "dropna": None,
        "split_every": 8,
        "split_out": None,
        "sort": None,
        "shuffle_method": None,
        "_slice": None,
        "stock": None,
        "guards": (),
        "guarded_meta": None,
    }

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

    def _asked(self) -> str:
        """The first outputs, in few words."""
        names = [f"{r.aggregation} of {short(r.column)}" for r in self.requested]
        more = [f"{len(names) - _SHOWN:,} more"] if len(names) > _SHOWN else []
        return ", ".join(names[:_SHOWN] + more)

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.frame}, {self._asked()}, by={self.by})"

    def _tree_repr_argument_construction(self, i: int, op: Any, header: str) -> str:
        # empty results, functions and Dask's own expression are long
        name = self._parameters[i] if i < len(self._parameters) else ""
        if name in ("result_meta", "stock", "guards", "guarded_meta"):
            return header
        if name == "requested":
            return f"{header} {self._asked()}"
        described: str = super()._tree_repr_argument_construction(i, op, header)  # type: ignore[no-untyped-call]
        return described

    def _lower(self) -> Any:
        if self.stock is not None:
            return self.stock.lowered(self.operand("split_out"), self.npartitions)
        names = ", ".join(dict.fromkeys(r.aggregation for r in self.requested))
        raise RuntimeError(
            f"this group-by ({names}) was built with dask_gpuagg enabled and stock Dask cannot "
            "run it: enable the plugin again, or write the aggregation in Dask's own terms"
        )


def gpuagg_guarded(outputs: Any, guards: Sequence[Guard], meta: Any) -> Any:
    """Task: outputs null where a group has too few values; the counts are left out.

    Parameters
    ----------
    outputs : DataFrame
        Those of the result, then what the guards read, labelled by their positions.
    guards : sequence of Guard
    meta : DataFrame or Series

    Returns
    -------
    DataFrame or Series
    """
    columns = {i: outputs[i] for i in range(1 if meta.ndim == 1 else meta.shape[1])}
    for guard in guards:
        least = guard.least if guard.rows is None else outputs[guard.rows]
        enough = outputs[guard.count] >= least
        columns[guard.output] = columns[guard.output].where(enough)
    if meta.ndim == 1:
        columns[0].name = meta.name
        return columns[0]
    result = type(outputs)(columns, index=outputs.index)
    result.columns = meta.columns.view()
    return result


class GroupByGuarded(Blockwise):
    """Outputs that are null in the groups that have too few values."""

    _parameters = ["frame", "guards", "meta"]

    operation = staticmethod(gpuagg_guarded)

    @functools.cached_property
    def _meta(self) -> Any:
        return self.operand("meta")

    @functools.cached_property
    def _name(self) -> str:
        return f"gpuagg_guarded-{self.deterministic_token}"


def extend(
    groupby: Any,
    arg: Any,
    flags: dict[str, Any],
    named: dict[str, Any],
    stock: Any | None = None,
) -> Any:
    """Expression for an ``.agg`` call.

    Parameters
    ----------
    groupby : dask.dataframe GroupBy
    arg : str, callable, list or dict, optional
    flags : dict
        ``split_every``, ``split_out`` and ``shuffle_method``.
    named : dict
        Named aggregations when ``arg`` is ``None``, else arguments of the functions.
    stock : collection, optional
        The same result by other means, for when the planner cannot be used after all.

    Returns
    -------
    ExtendedAggregation

    Raises
    ------
    Unsupported
        When our plan cannot run it either.
    KeyError
        For columns that the frame does not have.
    """
    spec = read_specification(groupby, arg, named)
    device = engine_name(groupby.obj._meta) == DEVICE
    if not spec.requested and (arg is None or device):
        raise Unsupported("no aggregation was asked for")
    labels = {r.label for r in spec.requested}
    if device and len(labels) < len(spec.requested):
        raise Unsupported("cuDF has no two columns of one label")
    if device:
        spec = replace(spec, requested=tuple(exact_of(request) for request in spec.requested))
    return _node(groupby, spec, flags, stock)


def exact_of(request: Requested) -> Requested:
    """The exact aggregation for an approximate one, which the device engine does not make."""
    record = REGISTRY.get(request.aggregation)
    exact = record.exact if record is not None else ""
    return replace(request, aggregation=exact) if exact else request


def extend_method(
    groupby: Any,
    name: str,
    parameters: Parameters,
    flags: dict[str, Any],
    numeric_only: bool = False,
    stock: Any | None = None,
) -> ExtendedAggregation:
    """Expression for a method of a group-by whose metadata stock Dask cannot make.

    Parameters
    ----------
    groupby : dask.dataframe GroupBy
    name : str
        Of the registry.
    parameters : tuple of (str, object)
        Of the aggregation.
    flags : dict
        ``split_every``, ``split_out`` and ``shuffle_method``.
    numeric_only : bool
    stock : collection, optional
        The same result by other means.

    Returns
    -------
    ExtendedAggregation
    """
    meta = groupby.obj._meta
    scalar = type(groupby._meta).__name__ == "SeriesGroupBy"
    if scalar:
        labels = [meta.name if meta.ndim == 1 else groupby._slice]
    else:
        labels = value_columns(groupby)
        if engine_name(meta) == DEVICE:  # cuDF leaves a key out even if it was chosen
            by = [b for b in groupby.by if not isinstance(b, Expr)]
            labels = [c for c in labels if c not in by]
        labels = numeric_labels(meta, labels) if numeric_only else labels
    if name == "size":
        labels, scalar = [labels[0] if scalar else None], True
    requested = tuple(
        Requested(label, name, None if name == "size" else label, parameters) for label in labels
    )
    if not requested:
        raise Unsupported(f"no column is left for {name}", name)
    levels = meta.columns.nlevels if meta.ndim == 2 else 1
    spec = Specification(requested, scalar=scalar, levels=levels)
    result = matrix_meta(groupby, labels) if name in ("cov", "corr") else None
    return _node(groupby, spec, flags, stock, result)


def _metadata(groupby: Any, spec: Specification) -> tuple[Any, Any]:
    """The empty outputs of a specification, and the result that is made of them."""
    outputs = outputs_meta(groupby, spec.requested + spec.counted)
    labels = [r.label for r in spec.requested]
    if spec.scalar and spec.requested[0].aggregation == "value_counts":
        labels = ["count"]  # pandas' name for it
    return outputs, shaped(outputs, labels, spec.scalar, spec.levels)


def _node(
    groupby: Any,
    spec: Specification,
    flags: dict[str, Any],
    stock: Any,
    result: Any = None,
) -> ExtendedAggregation:
    requested = spec.requested + spec.counted
    outputs = None
    if result is None:
        outputs, result = _metadata(groupby, spec)
    if stock is not None and stock.ndim > result.ndim:
        stock = stock[stock.columns[0]]  # Dask's median of one column is a frame
    elif stock is not None and result.ndim == 2 and isinstance(groupby, SeriesGroupBy):
        # beside others it has one level more, which Dask's metadata may not say
        stock = new_collection(ColumnsSetter(stock.expr, list(result.columns)))
    return ExtendedAggregation(
        groupby.obj.expr,
        requested,
        result,
        groupby.observed,
        groupby.dropna,
        flags["split_every"],
        flags["split_out"],
        groupby.sort,
        flags["shuffle_method"],
        groupby._slice,
        None if stock is None else Stock(stock.expr),
        spec.guards,
        outputs if spec.guards else None,
        *groupby.by,
    )
