"""Calls of ``.agg`` and of methods of group-bys: Dask's own collection, or one of ours.

While the plugin is enabled these functions wrap Dask's (``hook.py``), which are passed as
``original``. Our node is made where Dask refuses, ignores or answers wrongly a call that pandas
accepts; it keeps Dask's collection for the same call where there is one.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._collection import new_collection

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.extended import extend, extend_method
from dask_gpuagg.frontend.result_metadata import NoResult
from dask_gpuagg.frontend.specification import needs_extension, on_own_labels
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy, note_fallback

# methods for which Dask's metadata of cuDF frames is wrong, or slow to fail
_METHODS_OF_OURS = frozenset(("unique", "value_counts", "cov", "corr", "idxmin", "idxmax"))
# methods that are wrapped, if Dask has them
METHODS = frozenset(REGISTRY)

# methods of pandas collections that Dask refuses for some dtypes, or answers wrongly when these
# say so: its metadata of distinct values loses the dtypes of several keys, and labels that are text
# are lost with numeric_only
_HOST_METHODS: dict[str, Callable[[Any, dict[str, Any]], bool]] = {
    "mean": lambda groupby, given: False,
    "unique": lambda groupby, given: len(groupby.by) > 1,
    "idxmin": lambda groupby, given: bool(given.get("numeric_only")),
    "idxmax": lambda groupby, given: bool(given.get("numeric_only")),
}


def aggregate_cudf(
    owner: type, original: Callable[..., Any], self: Any, arg: Any = None, **kwargs: Any
) -> Any:
    """``aggregate`` of dask_cudf's group-bys: our node, with dask_cudf's as a fallback.

    Dask's node would make its metadata by running its algorithm on made-up cuDF frames at each
    step of the optimization.
    """
    self = on_own_labels(self)
    names = ("split_every", "split_out", "shuffle_method")
    flags = {"split_every": 8, "split_out": None, "shuffle_method": None}
    flags |= {name: kwargs[name] for name in names if name in kwargs}
    functions = {k: v for k, v in kwargs.items() if k not in (*names, "fused")}
    stock = None
    if arg is not None and self.observed:
        with contextlib.suppress(Exception):  # it may still be ours
            stock = original(self, arg, **kwargs)
    try:
        extended = extend(self, _as_list(arg), flags, functions, stock)
        refused = logical.refusals(extended)
    except Unsupported as refusal:
        refused = [refusal]
    except Exception as failure:
        if stock is None:
            raise _error_of(failure) from None
        return _stock_after(failure, stock)
    if not refused:
        return new_collection(extended)
    if arg is None or not self.observed:
        raise UnsupportedGroupBy(refused[0].reason)
    # lowering reports why it runs stock; otherwise dask_cudf raises its own error
    return stock if stock is not None else original(self, arg, **kwargs)


def method(name: str, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """A method of a group-by as our node, where Dask's has no metadata or a wrong answer."""
    self = on_own_labels(self)
    device = engine_name(self.obj._meta) == DEVICE
    # there are no matrices of one column; Dask says so
    matrix = name in ("cov", "corr") and isinstance(self, G.SeriesGroupBy)
    if matrix or not (device or name in _HOST_METHODS):
        return original(self, *args, **kwargs)
    stock: Any = None
    error: Exception = UnsupportedGroupBy(f"{name} with observed=False")
    if self.observed or not device:
        try:
            stock = original(self, *args, **kwargs)
        except Exception as refused_by_stock:
            # any type: cuDF's metadata code raises several
            error = refused_by_stock
            if not device and not isinstance(error, NotImplementedError):
                raise
        ours = False
        if name in _HOST_METHODS:
            given = _arguments(original, self, *args, **kwargs) if stock is not None else {}
            ours = _HOST_METHODS[name](self, given)
        if stock is not None and not (ours or (device and name in _METHODS_OF_OURS)):
            return stock
    try:
        return new_collection(_extended_method(name, original, stock, self, *args, **kwargs))
    except Unsupported as refusal:
        if stock is not None:
            return stock  # lowering will say why
        error.add_note(f"dask_gpuagg cannot run it either: {refusal.reason}")
        raise error from None
    except Exception as failure:
        if stock is not None:
            return _stock_after(failure, stock)
        error.add_note(f"dask_gpuagg cannot run it either: {failure}")
        raise error from failure


def _arguments(
    original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any
) -> dict[str, Any]:
    """The arguments of a method call, by name."""
    bound = inspect.signature(original).bind(self, *args, **kwargs)
    bound.apply_defaults()
    given: dict[str, Any] = dict(bound.arguments)
    further: dict[str, Any] = given.pop("kwargs", {})
    return given | further


def _extended_method(
    name: str,
    original: Callable[..., Any],
    stock: Any,
    self: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Our node for a method; ``stock`` is Dask's collection, if it has one."""
    given = _arguments(original, self, *args, **kwargs)
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


def aggregate(
    original: Callable[..., Any],
    self: Any,
    arg: Any = None,
    split_every: Any = 8,
    split_out: Any = None,
    shuffle_method: Any = None,
    **kwargs: Any,
) -> Any:
    """``aggregate`` of group-bys: Dask's, or our node with Dask's as a fallback."""
    self = on_own_labels(self)
    flags = {"split_every": split_every, "split_out": split_out, "shuffle_method": shuffle_method}
    stock: Any = None
    refused: Any = None
    try:
        stock = original(self, arg, **flags, **kwargs)
    except Exception as error:
        # any type: Dask's metadata code was not written for such specifications
        refused = error
    if stock is not None and not needs_extension(self, arg, kwargs):
        return stock
    try:
        extended = extend(self, arg, flags, kwargs, stock)
        if stock is None:
            for refusal in logical.refusals(extended):
                raise refusal
    except Unsupported as refusal:
        if stock is not None:
            return stock
        refused.add_note(f"dask_gpuagg cannot run it either: {refusal.reason}")
        raise refused from None
    except Exception as failure:
        if stock is None:
            raise _error_of(failure) from None
        return _stock_after(failure, stock)
    return new_collection(extended)


def _error_of(failure: Exception) -> Exception:
    """Pandas' own error, where it is pandas that has no such result."""
    return failure.error if isinstance(failure, NoResult) else failure


def _stock_after(failure: Exception, stock: Any) -> Any:
    """Dask's collection, after ours failed; the reason is reported."""
    refused = isinstance(failure, NoResult)
    reason = str(failure) if refused else f"the planner failed: {failure!r}"
    cause = None if refused else failure
    note_fallback(stock.expr._name, logical.describe(stock.expr), reason, cause=cause)
    return stock
