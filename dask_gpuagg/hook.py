"""Activation: where Dask's expression optimizer meets our planner.

Four functions of Dask are wrapped while the plugin is enabled:

* ``Expr.lower_once``, through which every node passes on its way to a task graph: a logical
  group-by aggregation is offered to the planner there, and everything about the collection
  API, metadata, divisions and column projection stays Dask's own;
* ``_tune_down`` of the two logical base classes, where Dask chooses ``split_out``;
* ``GroupBy.aggregate``, only to catch the specifications that Dask refuses.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import dask
from dask._expr import Expr
from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._collection import new_collection

from dask_gpuagg import logical
from dask_gpuagg.distributed.preflight import cluster_problem
from dask_gpuagg.extended import extend
from dask_gpuagg.planner import choose_outputs, physical, route
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.report import note_fallback, tally

TESTED_DASK = ("2026.7.1", "2026.8.0")

_originals: dict[tuple[type, str], Any] = {}


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
    dask.config.set({"gpuagg.enabled": True})
    if _originals:
        return
    _check_contract()
    _wrap(Expr, "lower_once", _lower_once)
    _wrap(G.GroupByApplyConcatApply, "_tune_down", _tune_down)
    _wrap(G.GroupByReduction, "_tune_down", _tune_down)
    _wrap(G.GroupBy, "aggregate", _aggregate)


def disable() -> None:
    """Restore stock Dask."""
    dask.config.set({"gpuagg.enabled": False})
    for (owner, name), original in _originals.items():
        setattr(owner, name, original)
    _originals.clear()


def is_enabled() -> bool:
    """Whether group-bys are currently offered to our planner."""
    return bool(_originals) and bool(dask.config.get("gpuagg.enabled"))


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Context manager: the plugin on inside, as it was before outside."""
    before = is_enabled()
    enable()
    try:
        yield
    finally:
        if not before:
            disable()


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
    original = owner.__dict__[name]
    _originals[owner, name] = original

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not dask.config.get("gpuagg.enabled"):
            return original(self, *args, **kwargs)
        return wrapper(original, self, *args, **kwargs)

    wrapped.__name__ = name
    wrapped.__doc__ = original.__doc__
    setattr(owner, name, wrapped)


def _lower_once(original: Callable[..., Any], self: Any, lowered: dict[str, Any]) -> Any:
    if self._name not in lowered and logical.is_aggregation(self):
        planned = _planned(self)
        if planned is not None:
            return lowered.setdefault(self._name, planned.lower_once(lowered))
    return original(self, lowered)


def _planned(expr: Any) -> Expr | None:
    """The physical nodes of a logical group-by, or ``None`` for stock Dask."""
    try:
        problem = cluster_problem()
        if problem is not None:
            raise Unsupported(problem)
        query = logical.read(expr)
        planned = physical(query, route(query, expr))
    except Unsupported as refusal:
        note_fallback(expr._name, logical.describe(expr), refusal.reason)
        return None
    tally.planned.add(expr._name)
    return planned


def _tune_down(original: Callable[..., Any], self: Any) -> Any:
    if not logical.is_aggregation(self):
        return original(self)
    if self.operand("split_out") is not None:
        return None
    try:
        query = logical.read(self)
    except Unsupported:
        return original(self)
    return self.substitute_parameters({"split_out": choose_outputs(query)})


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
    try:
        return original(self, arg, **flags, **kwargs)
    except (ValueError, TypeError, NotImplementedError, AttributeError) as error:
        refused = error
    try:
        extended = extend(self, arg, flags, kwargs)
    except Unsupported as refusal:
        refused.add_note(f"dask_gpuagg cannot run it either: {refusal.reason}")
        raise refused from None
    return new_collection(extended)
