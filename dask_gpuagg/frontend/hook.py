"""The wrappers: Dask's expression optimizer calls our planner.

Some functions of Dask are wrapped while the plugin is enabled:

* ``Expr.lower_once``, through which every node passes on its way to a task graph: a logical
  group-by aggregation is offered to the planner there, and everything about the collection
  API, metadata, divisions and column projection stays Dask's own;
* ``_tune_down`` of the two logical base classes, where Dask chooses ``split_out``, and of
  partition-wise nodes, which make the group-bys that they combine choose the same;
* the columns by which partitions of groups are divided, as merges read them (``_mapping`` and
  ``partitioned_by.py``);
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
from dask.dataframe.dask_expr._collection import DataFrame, FrameBase, Series
from dask.dataframe.dask_expr._expr import Partitions
from dask.dataframe.dask_expr._merge import Merge

from dask_gpuagg.cluster.preflight import cluster_problem
from dask_gpuagg.engines import DEVICE, HOST, engine_name
from dask_gpuagg.engines.host.buckets import hashed_by_dask
from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.alignment import PARTITION_WISE, decide_together, runs_beside_stock
from dask_gpuagg.frontend.by_labels import COMBINING, by_labels, own_hash
from dask_gpuagg.frontend.calls import METHODS, aggregate, aggregate_cudf, method
from dask_gpuagg.frontend.contract import MAPPING
from dask_gpuagg.frontend.extended import ExtendedAggregation
from dask_gpuagg.frontend.first_rows import NOT_OURS, ROWS, call_of, rows
from dask_gpuagg.frontend.partitioned_by import RELABELLING, carried
from dask_gpuagg.frontend.patches import Hook, install_late
from dask_gpuagg.frontend.promised_outputs import (
    LOOPS,
    decide_by_promise,
    on_decided,
    on_one,
    persist,
    postpersist,
    with_decided_inputs,
)
from dask_gpuagg.frontend.row_order import by_position, in_order
from dask_gpuagg.frontend.sorted_outputs import SortedOutputs, with_outputs
from dask_gpuagg.frontend.staying import stay_right
from dask_gpuagg.frontend.stock import asked
from dask_gpuagg.frontend.watching import Planned, seen
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.planning.lower import choose_outputs, physical, route
from dask_gpuagg.planning.query import GroupByQuery
from dask_gpuagg.planning.ranges import GroupByDivided, ranges_for
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy, looking, note_fallback, tally
from dask_gpuagg.settings import settings

# Key in the cache of one lowering; no node has such a name. Its value: the names of group-bys that
# run stock because they are combined with one that does, each with the planner's error, if any.
_STOCK_ONLY = "dask_gpuagg: stock only"
# key in the same cache of the first node that was lowered: the root of the query
_ROOT = "dask_gpuagg: root"
# key in the same cache of the names of group-bys whose groups cuDF takes by position
_IN_ORDER = "dask_gpuagg: in order"


def hooks() -> list[Hook]:
    """The functions of Dask that are wrapped, each with its wrapper."""
    found: list[Hook] = [
        (Expr, "lower_once", _lower_once),
        *((kind, "_tune_down", _tune_several) for kind in (*PARTITION_WISE, Partitions, Merge)),
        (FrameBase, "persist", persist),
        *((owner, "__dask_postpersist__", postpersist) for owner in (DataFrame, Series)),
        *((owner, name, on_decided) for owner, name in LOOPS),
        *((owner, "median", on_one) for owner in (DataFrame, Series)),
        (G.GroupByApplyConcatApply, "_tune_down", _tune_down),
        (G.GroupByReduction, "_tune_down", _tune_down),
        (G.GroupByApplyConcatApply, MAPPING, _mapping),
        (G.GroupByReduction, MAPPING, _mapping),
        *((kind, MAPPING, carried) for kind in RELABELLING),
        (G.GroupBy, "aggregate", with_outputs(aggregate)),
        (G.GroupBy, "__init__", _init),
        (G.SeriesGroupBy, "__init__", _init),
    ]
    found += [(G.GroupBy, name, functools.partial(rows, name)) for name in ROWS]
    for owner in (G.GroupBy, G.SeriesGroupBy):
        for name in sorted(METHODS & vars(owner).keys()):
            found.append((owner, name, with_outputs(functools.partial(method, name))))
    return found


def _lower_once(original: Callable[..., Any], self: Any, lowered: dict[str, Any]) -> Any:
    if self._name in lowered:
        return original(self, lowered)
    # parents are lowered before their children and pass decisions on in Dask's cache
    root = lowered.setdefault(_ROOT, self)
    if root is self:
        lowered[_IN_ORDER] = _in_order(self)
    stock_only = lowered.setdefault(_STOCK_ONLY, {})
    stock_only.update(_stock_only(self))
    made: Expr | None = None
    if logical.is_aggregation(self):
        made = _planned(self, stock_only, lowered, root)
    elif isinstance(self, SortedOutputs):
        made = _divided(self, lowered, root)
    elif isinstance(self, COMBINING):
        made = by_labels(self, stock_only)
    elif isinstance(self, G.Head):
        note_fallback(self._name, call_of(self), NOT_OURS)
    if made is not None:
        return lowered.setdefault(self._name, made.lower_once(lowered))
    return original(self, lowered)


def _divided(node: SortedOutputs, lowered: dict[str, Any], root: Expr) -> Expr | None:
    """The outputs of a sorted result; ``None`` where only Dask's own nodes may be used."""
    if logical.is_aggregation(node.frame):
        return _planned(node.frame, {}, lowered, root, node.outputs)
    if not looking.get() and cluster_problem() is not None:
        return None
    return GroupByDivided(node.frame, node.outputs) if node.frame.npartitions == 1 else None


def _stock_only(node: Any) -> dict[str, Exception | None]:
    """Names of group-bys below a node that stock Dask has to run; the error that is the reason."""
    try:
        return dict.fromkeys(runs_beside_stock(node, by_position(node)))
    except Exception as error:
        # it is unknown which of them are combined, and the planner may place groups in other
        # outputs than stock Dask does
        return {below._name: error for below in node.walk() if logical.is_aggregation(below)}


def _in_order(root: Expr) -> set[str]:
    try:
        return in_order(root)
    except Exception:
        # all of them: an order costs time alone, and reading a group-by again tells the error
        return {below._name for below in root.walk() if logical.is_aggregation(below)}


def _planned(
    expr: Any,
    stock_only: dict[str, Exception | None],
    lowered: dict[str, Any],
    root: Expr,
    outputs: int = 0,
) -> Expr | None:
    """The physical nodes of a logical group-by, or ``None`` for stock Dask.

    With ``outputs`` of a sorted result each has a range of the keys.
    """
    settings()  # an invalid setting is an error for the user, not a reason to fall back
    try:
        # a query that is only explained is not sent to a cluster
        problem = None if looking.get() else cluster_problem()
        if problem is not None:
            raise Unsupported(problem)
        if expr._name in stock_only:
            raise stock_only[expr._name] or Unsupported(
                "it is combined with a group-by that stock Dask runs"
            )
        query = _with_objects(logical.read(expr))
        decision = ranges_for(outputs) if outputs else route(query, expr)
        if expr._name in lowered.get(_IN_ORDER, ()):
            # after the decision: each output is sorted by itself
            query = replace(query, plan=replace(query.plan, sort=True))
        query = _on_lowered(query, lowered)
        if _is_shared(expr, root):
            query = replace(query, shared=True)
        if query.frame.npartitions == 0:
            raise Unsupported("the input has no partitions")
        planned = physical(query, decision)
        if planned.npartitions > 1 and own_hash(query.plan.keys):
            stay_right()
    except Unsupported as refusal:
        seen(expr, refusal.reason)
        _fall_back(expr, refusal.reason)
        return None
    except UnsupportedGroupBy:
        raise
    except Exception as error:
        # a bug of ours must not break the user's query; tests run under fallback: raise
        reason = f"the planner failed: {error!r}"
        seen(expr, reason)
        _fall_back(expr, reason, cause=error)
        return None
    if not looking.get():
        tally.plan(expr._name, functools.partial(asked, expr, query))
    seen(expr, Planned(query, decision, planned))
    return expr.completed(planned) if isinstance(expr, ExtendedAggregation) else planned


def _on_lowered(query: GroupByQuery, lowered: dict[str, Any]) -> GroupByQuery:
    """The query on physical inputs, with their number of partitions.

    A logical node may have more: ``repartition`` drops repeated divisions, and narrow Parquet files
    are read several at a time.
    """
    frame = _lower_completely(query.frame, lowered)
    by = [_lower_completely(b, lowered) if isinstance(b, Expr) else b for b in query.by]
    if frame is query.frame and all(b is given for b, given in zip(by, query.by, strict=True)):
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
    columns = [meta.dtype] if meta.ndim == 1 else list(meta.dtypes)
    if len(columns) != len(plan.outputs):
        return query
    wrong = [
        i
        for i, (dtype, output) in enumerate(zip(columns, plan.outputs, strict=True))
        if isinstance(dtype, pd.StringDtype)
        and output.custom is None
        and output.column is not None
        and plan.columns[output.column].dtype == object
    ]
    if not wrong:
        return query
    if meta.ndim == 1:
        return replace(query, meta=meta.astype(object))
    meta = meta.copy()
    for i in wrong:
        meta.isetitem(i, meta.iloc[:, i].astype(object))
    return replace(query, meta=meta)


def _mapping(original: Callable[..., Any], self: Any) -> Any:
    """Columns by which the output is partitioned as by Dask, so that merges need no shuffle.

    For some dtypes Dask hashes the representation in a partition, and our plan hashes the value.
    """
    claimed = original(self)
    if not claimed or not logical.is_aggregation(self) or not self.need_to_shuffle:
        return claimed
    meta = self.frame._meta
    if engine_name(meta) != HOST:
        return claimed
    try:
        keys = [logical.key_column(by, meta) for by in self.by]
    except Unsupported:  # stock Dask runs it
        return claimed
    return claimed if all(hashed_by_dask(key.dtype) for key in keys) else set()


def _tune_several(original: Callable[..., Any], self: Any) -> Any:
    decided = None
    try:
        decided = decide_by_promise(self)
        decided = decide_together(self) if decided is None else decided
    except UnsupportedGroupBy:
        raise
    except Exception as error:
        for below in self.walk():
            if logical.is_aggregation(below):
                _note_open(below, error)
    return original(self) if decided is None else decided


def _tune_down(original: Callable[..., Any], self: Any) -> Any:
    if not logical.is_aggregation(self):
        return original(self)
    if self.operand("split_out") is not None:
        return None
    settings()
    try:
        expr = with_decided_inputs(self)
        query = logical.read(expr)
        decided = expr.substitute_parameters({"split_out": choose_outputs(query)})
        logical.keep(decided, expr, query)
    except Unsupported:
        # lowering is refused for the same reason, and reports it
        return original(self)
    except UnsupportedGroupBy:
        raise
    except Exception as error:
        _note_open(self, error)
        return original(self)
    return decided


def _note_open(expr: Any, error: Exception) -> None:
    """Report an error of the planner; Dask's rule chooses the number of outputs instead."""
    reason = f"the planner failed: {error!r}"
    how = "has the number of outputs that Dask chooses"
    note_fallback(expr._name, logical.describe(expr), reason, cause=error, how=how)


def _init(
    original: Callable[..., Any], self: Any, obj: Any, by: Any, *args: Any, **kwargs: Any
) -> None:
    # importing dask_cudf takes seconds and needs a GPU: its classes are wrapped at first use
    for owner in type(self).__mro__:
        if owner.__module__.startswith("dask_cudf.") and "aggregate" in vars(owner):
            wrapper = with_outputs(functools.partial(aggregate_cudf, owner))
            install_late(owner, "aggregate", wrapper)
    if kwargs.get("observed") is False and engine_name(obj._meta) == DEVICE:
        # cuDF's group-by refuses it, even for metadata
        _init(original, self, obj, by, *args, **(kwargs | {"observed": True}))
        self.observed = False
        return
    keys = by if isinstance(by, list | tuple) else [by]
    if obj.ndim == 2 and engine_name(obj._meta) == DEVICE:
        cleaned = [G._clean_by_expr(obj, key) for key in keys]
        if any(isinstance(key, Expr) for key in cleaned):
            _init_by_expressions(original, self, obj, cleaned, *args, **kwargs)
            return
    original(self, obj, by, *args, **kwargs)


def _init_by_expressions(
    original: Callable[..., Any], self: Any, obj: Any, keys: list[Any], *args: Any, **kwargs: Any
) -> None:
    """Initialize with computed keys, which cuDF's group-by would treat as labels."""
    labels = [key for key in keys if not isinstance(key, Expr)]
    original(self, obj, labels or [obj.columns[0]], *args, **kwargs)
    self.by = keys
    flags = {name: kwargs[name] for name in ("sort", "dropna") if kwargs.get(name) is not None}
    by = [key._meta if isinstance(key, Expr) else key for key in keys]
    self._meta = self.obj._meta.groupby(by, **flags)
    if self._slice is not None:
        self._meta = self._meta[self._slice]
