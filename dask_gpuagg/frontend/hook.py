"""The wrappers: Dask's expression optimizer calls our planner.

Some functions of Dask are wrapped while the plugin is enabled:

* ``Expr.lower_once``, through which every node passes on its way to a task graph: a logical
  group-by aggregation is offered to the planner there, and everything about the collection
  API, metadata, divisions, column projection and the number of output partitions stays Dask's own;
* the columns by which partitions of groups are divided, as merges read them (``placement.py``);
* ``GroupBy.aggregate`` and methods of group-bys, for what Dask refuses or reads otherwise than
  pandas (``calls.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
from dask._expr import Expr
from dask.dataframe.dask_expr import _groupby as G

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.cluster import cluster_problem
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.calls import aggregate, initialize, method
from dask_gpuagg.frontend.contract import MAPPING, RELABELLING
from dask_gpuagg.frontend.extended import ExtendedAggregation
from dask_gpuagg.frontend.metadata_cache import cached_meta
from dask_gpuagg.frontend.methods import ADDED, Added
from dask_gpuagg.frontend.patches import Hook
from dask_gpuagg.frontend.placement import Placement, mapping, placement_of, renamed_mapping
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.planning.lower import physical
from dask_gpuagg.planning.query import GroupByQuery
from dask_gpuagg.planning.route import route
from dask_gpuagg.reporting.events import Planned, Refused, emit, is_dry_run
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy, note_fallback
from dask_gpuagg.settings import settings

# keys in Dask's cache of one lowering, where no node has such a name: the first node that was
# lowered, the root of the query, and what its group-bys need to know of each other
_ROOT = "dask_gpuagg: root"
_PLACEMENT = "dask_gpuagg: placement"


# nodes whose metadata Dask makes by running them on made-up rows
_WITH_METADATA = (G.GroupByApplyConcatApply, G.GroupbyAggregation, G.GroupByReduction)


def hooks() -> list[Hook]:
    """The functions of Dask that are wrapped, each with its wrapper."""
    wrapped: list[Hook] = [
        (Expr, "lower_once", _lower_once),
        (G.GroupByApplyConcatApply, MAPPING, mapping),
        (G.GroupByReduction, MAPPING, mapping),
        *((kind, MAPPING, renamed_mapping) for kind in RELABELLING),
        *((kind, "_meta", cached_meta) for kind in _WITH_METADATA),
        (G.GroupBy, "aggregate", aggregate),
        (G.GroupBy, "__init__", initialize),
        (G.SeriesGroupBy, "__init__", initialize),
    ]
    for owner in (G.GroupBy, G.SeriesGroupBy):
        for name in sorted(REGISTRY.keys() & vars(owner).keys()):
            wrapped.append((owner, name, functools.partial(method, name)))
    for owner, methods in ADDED.items():
        for name, function in methods.items():
            if not hasattr(owner, name):
                wrapped.append((owner, name, Added(function)))
    return wrapped


def _lower_once(original: Callable[..., Any], self: Any, lowered: dict[str, Any]) -> Any:
    if self._name in lowered:
        return original(self, lowered)
    root = lowered.setdefault(_ROOT, self)
    if root is self:
        lowered[_PLACEMENT] = placement_of(root)
    planned: Expr | None = None
    if logical.is_aggregation(self):
        planned = _planned(self, lowered[_PLACEMENT], lowered, root)
    if planned is not None:
        return lowered.setdefault(self._name, planned.lower_once(lowered))
    return original(self, lowered)


def _planned(expr: Any, placement: Placement, lowered: dict[str, Any], root: Expr) -> Expr | None:
    """The physical nodes of a logical group-by, or ``None`` for stock Dask."""
    settings()  # an invalid setting is an error for the user, not a reason to fall back
    try:
        # a query that is only explained is not sent to a cluster
        problem = None if is_dry_run() else cluster_problem()
        if problem is not None:
            raise Unsupported(problem)
        if expr._name in placement.stock_only:
            raise placement.stock_only[expr._name]
        query = _with_objects(logical.read(expr))
        if query.frame.npartitions == 0:
            raise Unsupported("the input has no partitions")
        decision = route(query, expr)
        if expr._name in placement.in_order:
            # after the decision: each output is sorted by itself
            query = replace(query, plan=replace(query.plan, sort=True))
        query = _on_lowered(query, lowered)
        if _is_shared(expr, root):
            query = replace(query, shared=True)
        if query.frame.npartitions == 0:
            raise Unsupported("no partitions are left of the input")
        planned = physical(query, decision)
        if planned.npartitions != decision.outputs:
            raise AssertionError(f"{planned.npartitions} outputs, {decision.outputs} announced")
    except Unsupported as refusal:
        _fall_back(expr, refusal.reason)
        return None
    except UnsupportedGroupBy:
        raise
    except Exception as error:
        # a bug of ours must not break the user's query; tests run under fallback: raise
        reason = f"the planner failed: {error!r}"
        _fall_back(expr, reason, cause=error)
        return None
    emit(Planned(expr, query, decision, planned))
    return expr.completed(planned) if isinstance(expr, ExtendedAggregation) else planned


def _on_lowered(query: GroupByQuery, lowered: dict[str, Any]) -> GroupByQuery:
    """The query on physical inputs, with their number of partitions.

    A logical node may have more: ``repartition`` drops repeated divisions, and narrow Parquet files
    are read several at a time.
    """
    frame = _lower_completely(query.frame, lowered)
    by = [_lower_completely(b, lowered) if isinstance(b, Expr) else b for b in query.by]
    if frame is query.frame and all(new is old for new, old in zip(by, query.by, strict=True)):
        return query  # with the chunks that it knows
    return replace(query, frame=frame, by=by)


def _is_shared(expr: Expr, root: Expr) -> bool:
    """Whether other nodes read the inputs of a group-by too."""
    below = {node._name for input_ in expr.dependencies() for node in input_.walk()}
    others = (node for node in root.walk() if node._name not in below and node._name != expr._name)
    return any(input_._name in below for node in others for input_ in node.dependencies())


def _lower_completely(expr: Any, lowered: dict[str, Any]) -> Any:
    """As Dask does, with the cache of the lowering in progress."""
    while True:
        once = expr.lower_once(lowered)
        if once._name == expr._name:
            return expr
        expr = once


def _fall_back(expr: Any, reason: str, cause: Exception | None = None) -> None:
    """Record that stock Dask runs a group-by; raise where stock Dask cannot either."""
    emit(Refused(expr, reason))
    what = logical.describe(expr)
    if isinstance(expr, ExtendedAggregation) and expr.stock is None:
        raise UnsupportedGroupBy(f"group-by {what} cannot run: {reason}") from cause
    note_fallback(expr._name, what, reason, cause=cause)


def _with_objects(query: GroupByQuery) -> GroupByQuery:
    """The query with dtype object for results of object columns.

    Older releases of Dask use strings as sample values of object columns, so pandas infers strings
    for their sum, minimum or first.
    """
    plan, meta = query.plan, query.meta
    if engine_name(meta) == DEVICE or plan.shape != "groups":
        return query
    if not any(column.dtype == object for column in plan.columns):
        return query
    dtypes = [meta.dtype] if meta.ndim == 1 else list(meta.dtypes)
    if len(dtypes) != len(plan.outputs):
        return query
    inferred = [
        i
        for i, (dtype, output) in enumerate(zip(dtypes, plan.outputs, strict=True))
        if isinstance(dtype, pd.StringDtype)
        and output.custom is None
        and output.column is not None
        and plan.columns[output.column].dtype == object
    ]
    if not inferred:
        return query
    if meta.ndim == 1:
        return replace(query, meta=meta.astype(object))
    meta = meta.copy()
    for i in inferred:
        meta.isetitem(i, meta.iloc[:, i].astype(object))
    return replace(query, meta=meta)
