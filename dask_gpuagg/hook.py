"""Activation: where Dask's expression optimizer meets our planner.

Some functions of Dask are wrapped while the plugin is enabled:

* ``Expr.lower_once``, through which every node passes on its way to a task graph: a logical
  group-by aggregation is offered to the planner there, and everything about the collection
  API, metadata, divisions and column projection stays Dask's own;
* ``_tune_down`` of the two logical base classes, where Dask chooses ``split_out``, and of
  partition-wise nodes, which make the group-bys that they combine choose alike;
* ``GroupBy.aggregate`` and methods of group-bys, for what Dask refuses or reads otherwise than
  pandas (``calls.py``).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import dask
from dask._expr import Expr
from dask.dataframe.dask_expr import _groupby as G

from dask_gpuagg import logical
from dask_gpuagg.calls import METHODS, aggregate, aggregate_cudf, method
from dask_gpuagg.distributed.preflight import cluster_problem
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.extended import ExtendedAggregation
from dask_gpuagg.partners import PARTITION_WISE, decide_together, runs_beside_stock
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.planner import choose_outputs, physical, route
from dask_gpuagg.report import UnsupportedGroupBy, note_fallback, tally

TESTED_DASK = ("2026.7.1", "2026.8.0")

# what each wrapped attribute was; None where the class inherited it
_originals: dict[tuple[type, str], Any] = {}

# key, in the cache of one lowering, of the names of group-bys that could be planned but for
# another one they are combined with, each with the error of ours that is behind it, if any; no
# node has such a name
_STOCK_ONLY = "dask_gpuagg: stock only"


def enable() -> None:
    """Run group-by aggregations of Dask DataFrame through our plan, from now on.

    Raises
    ------
    RuntimeError
        When the installed Dask is not one of the versions this release was tested on, or its
        internals are not as expected.
    """
    if dask.__version__ not in TESTED_DASK:
        tested = ", ".join(TESTED_DASK)
        raise RuntimeError(
            f"dask_gpuagg was tested on Dask {tested}, and hooks into its internals; "
            f"Dask {dask.__version__} is installed. Nothing was changed."
        )
    if not _originals:
        _check_contract()
        _wrap(Expr, "lower_once", _lower_once)
        for kind in PARTITION_WISE:
            _wrap(kind, "_tune_down", _tune_partition_wise)
        _wrap(G.GroupByApplyConcatApply, "_tune_down", _tune_down)
        _wrap(G.GroupByReduction, "_tune_down", _tune_down)
        _wrap(G.GroupBy, "aggregate", aggregate)
        _wrap(G.GroupBy, "__init__", _init)
        _wrap(G.SeriesGroupBy, "__init__", _init)
        for owner in (G.GroupBy, G.SeriesGroupBy):
            for name in sorted(METHODS & vars(owner).keys()):
                _wrap(owner, name, functools.partial(method, name))
    dask.config.set({"gpuagg.enabled": True})


def disable() -> None:
    """Restore stock Dask."""
    dask.config.set({"gpuagg.enabled": False})
    for (owner, name), original in _originals.items():
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    _originals.clear()


def is_enabled() -> bool:
    """Whether group-bys are currently offered to our planner."""
    return bool(_originals) and bool(dask.config.get("gpuagg.enabled"))


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Context manager: the plugin on inside, as it was before outside."""
    installed, flag = bool(_originals), dask.config.get("gpuagg.enabled")
    enable()
    try:
        yield
    finally:
        if not installed:
            disable()
        dask.config.set({"gpuagg.enabled": flag})


def _check_contract() -> None:
    """Refuse to patch internals that do not look as this release expects them."""
    signature = list(inspect.signature(Expr.lower_once).parameters)
    expected = ["frame", "arg", "observed", "dropna", "split_every", "split_out", "sort"]
    if signature != ["self", "lowered"] or G.GroupbyAggregationBase._parameters[:7] != expected:
        raise RuntimeError(
            f"the internals of Dask {dask.__version__} differ from those dask_gpuagg was "
            "tested on. Nothing was changed."
        )


def _wrap(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    _originals[owner, name] = owner.__dict__.get(name)
    original = getattr(owner, name)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not dask.config.get("gpuagg.enabled"):
            return original(self, *args, **kwargs)
        return wrapper(original, self, *args, **kwargs)

    wrapped.__name__ = name
    wrapped.__doc__ = original.__doc__
    setattr(owner, name, wrapped)


def _lower_once(original: Callable[..., Any], self: Any, lowered: dict[str, Any]) -> Any:
    if self._name in lowered:
        return original(self, lowered)
    # parents are lowered before their children: what they decide travels in Dask's own cache
    stock_only = lowered.setdefault(_STOCK_ONLY, {})
    stock_only.update(_stock_only(self))
    if logical.is_aggregation(self):
        planned = _planned(self, stock_only, lowered)
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


def _planned(
    expr: Any, stock_only: dict[str, Exception | None], lowered: dict[str, Any]
) -> Expr | None:
    """The physical nodes of a logical group-by, or ``None`` for stock Dask."""
    try:
        problem = cluster_problem()
        if problem is not None:
            raise Unsupported(problem)
        if expr._name in stock_only:
            raise stock_only[expr._name] or Unsupported(
                "it is combined with a group-by that stock Dask runs"
            )
        query = logical.read(expr)
        decision = route(query, expr)
        planned = physical(_on_lowered(query, lowered), decision)
    except Unsupported as refusal:
        _fall_back(expr, refusal.reason)
        return None
    except Exception as error:
        # a bug of ours must not break the user's query; tests run under fallback: raise
        _fall_back(expr, f"the planner failed: {error!r}", cause=error)
        return None
    tally.planned.add(expr._name)
    return expr.completed(planned) if isinstance(expr, ExtendedAggregation) else planned


def _on_lowered(query: logical.Query, lowered: dict[str, Any]) -> logical.Query:
    """The query on physical inputs, whose number of partitions is what they give.

    A logical node may promise more: ``repartition`` gives fewer where divisions would repeat, and
    narrow Parquet files are read several at a time.
    """
    by = [_lower_completely(b, lowered) if isinstance(b, Expr) else b for b in query.by]
    return replace(query, frame=_lower_completely(query.frame, lowered), by=by)


def _lower_completely(expr: Any, lowered: dict[str, Any]) -> Any:
    """As Dask does, with the cache of the lowering in progress."""
    while True:
        once = expr.lower_once(lowered)
        if once._name == expr._name:
            return expr
        expr = once


def _fall_back(expr: Any, reason: str, cause: Exception | None = None) -> None:
    """Note that stock Dask runs a group-by, or say why nobody can."""
    what = logical.describe(expr)
    if isinstance(expr, ExtendedAggregation) and expr.stock is None:
        raise UnsupportedGroupBy(f"group-by {what} cannot run: {reason}") from cause
    note_fallback(expr._name, what, reason, cause=cause)


def _tune_partition_wise(original: Callable[..., Any], self: Any) -> Any:
    decided = decide_together(self)
    return original(self) if decided is None else decided


def _tune_down(original: Callable[..., Any], self: Any) -> Any:
    if not logical.is_aggregation(self):
        return original(self)
    if self.operand("split_out") is not None:
        return None
    try:
        decision = choose_outputs(logical.read(self))
    except Exception:
        # lowering meets the same obstacle, and records and reports it
        return original(self)
    return self.substitute_parameters({"split_out": decision})


def _init(
    original: Callable[..., Any], self: Any, obj: Any, by: Any, *args: Any, **kwargs: Any
) -> None:
    # importing dask_cudf would take seconds and a GPU: its classes are met when they are used
    for owner in type(self).__mro__:
        ours = (owner, "aggregate") in _originals
        if owner.__module__.startswith("dask_cudf.") and "aggregate" in vars(owner) and not ours:
            _wrap(owner, "aggregate", functools.partial(aggregate_cudf, owner))
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
