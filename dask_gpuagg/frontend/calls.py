"""Calls of group-bys, of ``.agg`` and of methods: Dask's own collection, or one of ours.

While the plugin is enabled these functions wrap Dask's (``hook.py``), which are passed as
``original``. Our node is made where Dask refuses, ignores or answers wrongly a call that pandas
accepts; it keeps Dask's collection for the same call where there is one.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pandas as pd
from dask._expr import Expr
from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._collection import new_collection

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.bins import with_bins
from dask_gpuagg.frontend.extended import extended
from dask_gpuagg.frontend.metadata import NoResult, is_cudf
from dask_gpuagg.frontend.patches import install_late
from dask_gpuagg.frontend.specification import (
    FLAGS,
    needs_extension,
    on_own_labels,
    read_method,
    read_specification,
)
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy, note_fallback

# methods for which Dask's metadata of cuDF frames is wrong, or slow to fail
_METHODS_OF_OURS = frozenset(("unique", "value_counts", "cov", "corr", "idxmin", "idxmax"))


def _chooses_otherwise(groupby: Any, arguments: dict[str, Any]) -> bool:
    """Whether columns are chosen in another order than the frame's, or a key is among them."""
    chosen = groupby._slice if isinstance(groupby._slice, list) else [groupby._slice]
    labels = [] if groupby._slice is None else chosen
    keys = [key for key in groupby.by if not isinstance(key, Expr)]
    in_order = [c for c in groupby.obj._meta.columns if c in labels] if labels else []
    return in_order != labels or any(key in labels for key in keys)


# methods of pandas collections that Dask refuses for some dtypes and columns, or answers wrongly
# when these say so: its metadata of distinct values loses the dtypes of several keys, labels that
# are text are lost with numeric_only, and chosen columns come in the frame's order without the keys
_HOST_METHODS: dict[str, Callable[[Any, dict[str, Any]], bool]] = {
    **dict.fromkeys(("mean", "var", "std", "nunique", "value_counts"), _chooses_otherwise),
    # where one column of the result is read, Dask would compute that column's variance alone
    **dict.fromkeys(("cov", "corr"), lambda groupby, arguments: True),
    "unique": lambda groupby, arguments: len(groupby.by) > 1,
    **dict.fromkeys(
        ("idxmin", "idxmax"), lambda groupby, arguments: bool(arguments.get("numeric_only"))
    ),
}


def initialize(
    original: Callable[..., Any], self: Any, obj: Any, by: Any, *args: Any, **kwargs: Any
) -> None:
    """``__init__`` of group-bys, for what those of cuDF and of categorical indexes refuse."""
    obj, by = with_bins(self, obj, by, kwargs.get("dropna"))
    # importing dask_cudf takes seconds and needs a GPU: its classes are wrapped at first use
    for owner in type(self).__mro__:
        if owner.__module__.startswith("dask_cudf.") and "aggregate" in vars(owner):
            install_late(owner, "aggregate", aggregate_cudf)
    # pandas maps the values of a categorical index, by an expression too
    is_mapped = obj.ndim == 2 and isinstance(obj._meta.index, pd.CategoricalIndex)
    if not (is_cudf(obj._meta) or is_mapped):
        original(self, obj, by, *args, **kwargs)
        return
    # cuDF's group-by refuses observed=False, even for metadata
    observed = kwargs.get("observed")
    kwargs |= {"observed": True} if observed is False and not is_mapped else {}
    keys = by if isinstance(by, list | tuple) else [by]
    if obj.ndim == 2:
        keys = [G._clean_by_expr(obj, key) for key in keys]
    if obj.ndim == 1 or not any(isinstance(key, Expr) for key in keys):
        original(self, obj, by, *args, **kwargs)
    else:
        # the library would take computed keys for labels or functions
        labels = [key for key in keys if not isinstance(key, Expr)]
        original(self, obj, labels or [obj.columns[0]], *args, **kwargs)
        self.by = keys
        flags = {name: kwargs[name] for name in ("sort", "dropna") if kwargs.get(name) is not None}
        by = [key._meta if isinstance(key, Expr) else key for key in keys]
        self._meta = self.obj._meta.groupby(by, **flags)
        if self._slice is not None:
            self._meta = self._meta[self._slice]
    if observed is False:
        self.observed = False


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
    stock, refused = _by_dask(original, self, arg, **flags, **kwargs)

    def ours() -> Any:
        spec = read_specification(self, arg, kwargs)
        if stock is not None and not needs_extension(self, spec, arg, kwargs):
            return None
        return extended(self, spec, flags, stock)

    return _collection_of(ours, stock, refused)


def _by_dask(call: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Exception | None]:
    """Dask's collection of a call, or its error; metadata code raises any type."""
    try:
        return call(*args, **kwargs), None
    except Exception as error:
        return None, error


def _collection_of(ours: Callable[[], Any], stock: Any, refused: Exception | None) -> Any:
    """The collection of our node, or of Dask where ours is ``None`` or cannot be made.

    Without either Dask's error is raised, if there is one.
    """
    try:
        node = ours()
        if node is not None and stock is None:
            logical.read_some(node)
    except Unsupported as refusal:
        if stock is not None:
            return stock  # lowering will say why
        if refused is None:
            raise UnsupportedGroupBy(refusal.reason) from None
        # so Dask says of each aggregation that it does not have, which is no reason
        if str(refused).startswith("unknown aggregate"):
            raise type(refused)(f"{refused}: {refusal.reason}") from None
        refused.add_note(f"dask_gpuagg cannot run it either: {refusal.reason}")
        raise refused from None
    except Exception as failure:
        error = failure.error if isinstance(failure, NoResult) else None
        if stock is None:
            raise (error or failure) from None
        reason = str(failure) if error else f"the planner failed: {failure!r}"
        cause = None if error else failure
        note_fallback(stock.expr._name, logical.call_text(stock.expr), reason, cause=cause)
        return stock
    return stock if node is None else new_collection(node)


def aggregate_cudf(original: Callable[..., Any], self: Any, arg: Any = None, **kwargs: Any) -> Any:
    """``aggregate`` of dask_cudf's group-bys: our node, with dask_cudf's as a fallback.

    Dask's node would make its metadata by running its algorithm on made-up cuDF frames at each
    step of the optimization.
    """
    self = on_own_labels(self)
    flags = {"split_every": 8, "split_out": None, "shuffle_method": None}
    flags |= {name: kwargs[name] for name in flags if name in kwargs}
    functions = {k: v for k, v in kwargs.items() if k not in (*flags, "fused")}
    stock, refused = None, None
    if arg is not None and self.observed:
        stock, refused = _by_dask(original, self, arg, **kwargs)

    def ours() -> Any:
        node = extended(self, read_specification(self, arg, functions), flags, stock)
        logical.read(node)
        return node

    return _collection_of(ours, stock, refused)


def method(name: str, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """A method of a group-by as our node, where Dask's has no metadata or a wrong answer."""
    self = on_own_labels(self)
    if name == "value_counts" and kwargs.pop("normalize", False):
        counts = method(name, original, self, *args, **kwargs)
        return counts.map_partitions(_shares, meta=_shares(counts._meta))
    if name == "median":
        bound = inspect.signature(original).bind(self, *args, **kwargs)
        every = bound.arguments.pop("split_every", None)
        if every:
            # Dask announces fewer partitions by it than divisions, or none
            outputs = max(self.obj.npartitions // every, 1)
            result = method(name, original, *bound.args, **bound.kwargs)
            asked = bound.arguments.get("split_out", True) is not True
            return result if asked else result.repartition(npartitions=outputs)
    device = is_cudf(self.obj._meta)
    # there are no matrices of one column; Dask says so
    matrix = name in ("cov", "corr") and isinstance(self, G.SeriesGroupBy)
    if matrix or not (device or name in _HOST_METHODS):
        return original(self, *args, **kwargs)
    stock, refused = None, None
    if self.observed or not device:
        stock, refused = _by_dask(original, self, *args, **kwargs)

    def ours() -> Any:
        bound = inspect.signature(original).bind(self, *args, **kwargs)
        if refused is not None and not FLAGS.issuperset(bound.arguments.get("kwargs", {})):
            raise refused
        bound.apply_defaults()
        arguments = {**bound.arguments, **bound.arguments.get("kwargs", {})}
        methods = _METHODS_OF_OURS if device else _HOST_METHODS
        is_ours = name in methods and (device or _HOST_METHODS[name](self, arguments))
        if stock is not None and not is_ours:
            return None
        if arguments.get("min_count"):
            raise Unsupported(f"{name} with min_count is not supported", name)
        flags = {n: arguments.get(n) for n in FLAGS}
        flags["split_every"] = 8 if flags["split_every"] is None else flags["split_every"]
        parameters = tuple((n, arguments[n]) for n in REGISTRY[name].parameters if n in arguments)
        spec = read_method(self, name, parameters, bool(arguments.get("numeric_only")))
        try:
            node = extended(self, spec, flags, stock)
            logical.read(node)
        except Exception as failure:
            if refused is None:
                raise
            # the error is Dask's
            raise Unsupported(str(failure)) from failure
        return node

    return _collection_of(ours, stock, refused)


def _shares(counts: Any) -> Any:
    """Counts of values as shares of their group, all of whose values are in one partition."""
    keys = list(range(counts.index.nlevels - 1))
    rows = counts.groupby(level=keys, dropna=False).transform("sum")
    # a category without rows has no shares
    return (counts / rows).fillna(0.0).rename("proportion")
