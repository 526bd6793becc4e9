"""The wrappers: where Dask's expression optimizer meets our planner.

Some functions of Dask are wrapped while the plugin is enabled:

* ``Expr.lower_once``, through which every node passes on its way to a task graph: a logical
  group-by aggregation is offered to the planner there, and everything about the collection
  API, metadata, divisions and column projection stays Dask's own;
* ``_tune_down`` of the two logical base classes, where Dask chooses ``split_out``, and of
  partition-wise nodes, which make the group-bys that they combine choose alike;
* ``GroupBy.aggregate``, only to catch the specifications that Dask refuses.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
from dask._expr import Expr
from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._collection import new_collection

from dask_gpuagg import logical
from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.distributed.preflight import cluster_problem
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.extended import extend, extend_method, needs_extension
from dask_gpuagg.partners import PARTITION_WISE, decide_together, runs_beside_stock
from dask_gpuagg.patches import Hook, install_late
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.planner import choose_outputs, physical, route
from dask_gpuagg.report import UnsupportedGroupBy, looking, note_fallback, tally
from dask_gpuagg.settings import settings

# arguments of aggregations
_PARAMETERS = frozenset(p for record in REGISTRY.values() for p in record.parameters)

# methods of group-bys for whose metadata of cuDF frames Dask's own code is wrong, or slow to fail
_METHODS_OF_OURS = frozenset(("unique", "value_counts", "cov", "corr", "idxmin", "idxmax"))
_METHODS = _METHODS_OF_OURS | {
    "sum", "prod", "count", "size", "min", "max", "first", "last", "mean", "var", "std", "nunique",
    "median",
}  # fmt: skip

# key, in the cache of one lowering, of the names of group-bys that could be planned but for
# another one they are combined with, each with the error of ours that is behind it, if any; no
# node has such a name
_STOCK_ONLY = "dask_gpuagg: stock only"


def hooks() -> list[Hook]:
    """The functions of Dask that are wrapped, each with its wrapper."""
    found: list[Hook] = [
        (Expr, "lower_once", _lower_once),
        *((kind, "_tune_down", _tune_partition_wise) for kind in PARTITION_WISE),
        (G.GroupByApplyConcatApply, "_tune_down", _tune_down),
        (G.GroupByReduction, "_tune_down", _tune_down),
        (G.GroupBy, "aggregate", _aggregate),
        (G.GroupBy, "__init__", _init),
        (G.SeriesGroupBy, "__init__", _init),
    ]
    for owner in (G.GroupBy, G.SeriesGroupBy):
        for name in sorted(_METHODS & vars(owner).keys()):
            found.append((owner, name, functools.partial(_method, name)))
    return found


def _lower_once(original: Callable[..., Any], self: Any, lowered: dict[str, Any]) -> Any:
    if self._name in lowered:
        return original(self, lowered)
    # parents are lowered before their children: what they decide travels in Dask's own cache
    stock_only = lowered.setdefault(_STOCK_ONLY, {})
    stock_only.update(_stock_only(self))
    if logical.is_aggregation(self):
        planned = _planned(self, stock_only)
        if planned is not None:
            return lowered.setdefault(self._name, planned.lower_once(lowered))
    return original(self, lowered)


def _stock_only(node: Any) -> dict[str, Exception | None]:
    """Names of group-bys below a node that stock Dask has to run; the error that is the reason."""
    try:
        return dict.fromkeys(runs_beside_stock(node))
    except Exception as error:
        # which of them are combined is not known then: planning some could put groups elsewhere
        # than stock Dask does for the others
        return {below._name: error for below in node.walk() if logical.is_aggregation(below)}


def _planned(expr: Any, stock_only: dict[str, Exception | None]) -> Expr | None:
    """The physical nodes of a logical group-by, or ``None`` for stock Dask."""
    settings()  # what is wrong there is the user's to know, and no reason to fall back
    try:
        # a query that is only looked at goes to no cluster
        problem = None if looking.get() else cluster_problem()
        if problem is not None:
            raise Unsupported(problem)
        if expr._name in stock_only:
            raise stock_only[expr._name] or Unsupported(
                "it is combined with a group-by that stock Dask runs"
            )
        query = _with_objects(logical.read(expr))
        planned = physical(query, route(query, expr))
    except Unsupported as refusal:
        note_fallback(expr._name, logical.describe(expr), refusal.reason)
        return None
    except UnsupportedGroupBy:
        raise
    except Exception as error:
        # a bug of ours must not break the user's query; tests run under fallback: raise
        reason = f"the planner failed: {error!r}"
        note_fallback(expr._name, logical.describe(expr), reason, cause=error)
        return None
    if not looking.get():
        tally.planned.add(expr._name)
    return planned


def _with_objects(query: logical.Query) -> logical.Query:
    """The query with objects for results of objects.

    The objects that older releases of Dask make up for metadata are strings, and so are then what
    pandas infers for their sum, minimum or first.
    """
    plan, meta = query.plan, query.meta
    columns = [meta.dtype] if meta.ndim == 1 else list(meta.dtypes)
    of_columns = plan.shape == "groups" and len(columns) == len(plan.outputs)
    if not of_columns or engine_name(meta) == DEVICE:
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


def _tune_partition_wise(original: Callable[..., Any], self: Any) -> Any:
    decided = None
    try:
        decided = decide_together(self)
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
        decision = choose_outputs(logical.read(self))
    except Unsupported:
        # lowering meets the same obstacle, and records and reports it
        return original(self)
    except UnsupportedGroupBy:
        raise
    except Exception as error:
        _note_open(self, error)
        return original(self)
    return self.substitute_parameters({"split_out": decision})


def _note_open(expr: Any, error: Exception) -> None:
    """Report a bug of ours in the choice of outputs, which Dask's own rule makes then."""
    reason = f"the planner failed: {error!r}"
    how = "has the number of outputs that Dask chooses"
    note_fallback(expr._name, logical.describe(expr), reason, cause=error, how=how)


def _init(
    original: Callable[..., Any], self: Any, obj: Any, by: Any, *args: Any, **kwargs: Any
) -> None:
    # importing dask_cudf would take seconds and a GPU: its classes are met when they are used
    for owner in type(self).__mro__:
        if owner.__module__.startswith("dask_cudf.") and "aggregate" in vars(owner):
            install_late(owner, "aggregate", functools.partial(_aggregate_cudf, owner))
    if kwargs.get("observed") is False and engine_name(obj._meta) == DEVICE:
        # cuDF's own group-by refuses it, even for the metadata
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
    """Keys that are computed, which cuDF's own group-by takes for labels: made without them."""
    labels = [key for key in keys if not isinstance(key, Expr)]
    original(self, obj, labels or [obj.columns[0]], *args, **kwargs)
    self.by = keys
    flags = {name: kwargs[name] for name in ("sort", "dropna") if kwargs.get(name) is not None}
    by = [key._meta if isinstance(key, Expr) else key for key in keys]
    self._meta = self.obj._meta.groupby(by, **flags)
    if self._slice is not None:
        self._meta = self._meta[self._slice]


def _aggregate_cudf(
    owner: type, original: Callable[..., Any], self: Any, arg: Any = None, **kwargs: Any
) -> Any:
    """``aggregate`` of dask_cudf's group-bys: our own node, with dask_cudf's for a fallback.

    Dask's own node would make its metadata by running its algorithm on made-up cuDF frames, at
    each step of the optimization.
    """
    names = ("split_every", "split_out", "shuffle_method")
    flags = {"split_every": 8, "split_out": None, "shuffle_method": None}
    flags |= {name: kwargs[name] for name in names if name in kwargs}
    functions = {k: v for k, v in kwargs.items() if k not in (*names, "fused")}
    stock = None
    if arg is not None and self.observed:
        with contextlib.suppress(Exception):  # what dask_cudf refuses may still be ours
            stock = original(self, arg, **kwargs)
    try:
        extended = extend(self, _as_list(arg), flags, functions, stock)
        refused = logical.refusals(extended)
    except Unsupported as refusal:
        refused = [refusal]
    if not refused:
        return new_collection(extended)
    if arg is None or not self.observed:
        raise UnsupportedGroupBy(refused[0].reason)
    # lowering will say why it runs stock; or dask_cudf's own error surfaces
    return stock if stock is not None else original(self, arg, **kwargs)


def _method(name: str, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """A method of a group-by of cuDF frames as our own node, where theirs has no metadata."""
    # there are no matrices of one column; Dask says so
    matrix = name in ("cov", "corr") and isinstance(self, G.SeriesGroupBy)
    if matrix or engine_name(self.obj._meta) != DEVICE:
        return original(self, *args, **kwargs)
    stock: Any = None
    error: Exception = UnsupportedGroupBy(f"{name} with observed=False")
    if self.observed:
        try:
            stock = original(self, *args, **kwargs)
        except Exception as refused_by_stock:
            # what it raises has many types: cuDF's of its metadata code among them
            error = refused_by_stock
        if stock is not None and name not in _METHODS_OF_OURS:
            return stock
    try:
        return new_collection(_extended_method(name, original, stock, self, *args, **kwargs))
    except Unsupported as refusal:
        if stock is not None:
            return stock  # lowering will say why
        error.add_note(f"dask_gpuagg cannot run it either: {refusal.reason}")
        raise error from None


def _extended_method(
    name: str, original: Callable[..., Any], stock: Any, self: Any, *args: Any, **kwargs: Any
) -> Any:
    bound = inspect.signature(original).bind(self, *args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    given |= given.pop("kwargs", {})
    if given.get("min_count"):
        raise Unsupported(f"{name} with min_count", name)
    flags = {n: given.get(n) for n in ("split_every", "split_out", "shuffle_method")}
    flags["split_every"] = 8 if flags["split_every"] is None else flags["split_every"]
    parameters = tuple((n, given[n]) for n in REGISTRY[name].parameters if n in given)
    numeric_only = bool(given.get("numeric_only"))
    extended = extend_method(self, name, parameters, flags, numeric_only, stock)
    for refusal in logical.refusals(extended):
        raise refusal
    return extended


def _as_list(arg: Any) -> Any:
    """dask_cudf's other name for ``list``."""
    if isinstance(arg, dict):
        return {k: _as_list(v) for k, v in arg.items()}
    if isinstance(arg, list):
        return [_as_list(v) for v in arg]
    return "list" if isinstance(arg, str) and arg == "collect" else arg


def _aggregate(
    original: Callable[..., Any],
    self: Any,
    arg: Any = None,
    split_every: Any = 8,
    split_out: Any = None,
    shuffle_method: Any = None,
    **kwargs: Any,
) -> Any:
    flags = {"split_every": split_every, "split_out": split_out, "shuffle_method": shuffle_method}
    # Dask ignores whatever keywords it does not know; pandas passes the functions' own on to them
    if arg is not None and not kwargs.keys().isdisjoint(_PARAMETERS):
        return new_collection(extend(self, arg, flags, kwargs))
    if needs_extension(arg, kwargs):
        with contextlib.suppress(Unsupported):
            return new_collection(extend(self, arg, flags, kwargs))
    try:
        return original(self, arg, **flags, **kwargs)
    except Exception as error:
        # what Dask raises here has many types: its metadata code meets what it never expected
        refused = error
    try:
        extended = extend(self, arg, flags, kwargs)
    except Unsupported as refusal:
        refused.add_note(f"dask_gpuagg cannot run it either: {refusal.reason}")
        raise refused from None
    return new_collection(extended)
