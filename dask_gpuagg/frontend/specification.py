"""Reading what a call asks for: which function of which column, under which label."""

import builtins
import contextlib
import difflib
import importlib
import sys
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from dask.dataframe.dask_expr._expr import Expr, Projection
from dask.utils import methodcaller
from pandas.core.groupby import DataFrameGroupBy, SeriesGroupBy

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.frontend.metadata import is_cudf, numeric_labels
from dask_gpuagg.plan import CustomFunctions, Requested, Unsupported

Parameters = tuple[tuple[str, Any], ...]

# arguments of methods that say how Dask runs them
FLAGS = frozenset(("split_every", "split_out", "shuffle_method"))
# arguments of pandas' methods that stock Dask ignores in .agg
_ARGUMENTS = {"min_count", "numeric_only"}.union(*(r.parameters for r in REGISTRY.values()))


# functions whose name is not that of the aggregation, or that mean something else than pandas'
# method of that name: NumPy divides a sum of squares by n, and its median of a NaN is NaN
_KNOWN_FUNCTIONS: dict[Any, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys((np.min, np.amin, np.nanmin), ("min", {})),
    **dict.fromkeys((np.max, np.amax, np.nanmax), ("max", {})),
    np.nansum: ("sum", {}),
    np.nanprod: ("prod", {}),
    np.nanmean: ("mean", {}),
    np.nanmedian: ("median", {}),
    np.nanquantile: ("quantile", {}),
    np.quantile: ("quantile", {"skipna": False}),
    np.median: ("median", {"skipna": False}),
    **dict.fromkeys((np.std, np.nanstd), ("std", {"ddof": 0})),
    **dict.fromkeys((np.var, np.nanvar), ("var", {"ddof": 0})),
    sum: ("sum", {"skipna": False}),
    len: ("size", {}),
}


@dataclass(frozen=True, slots=True)
class Guard:
    """An output that is null in the groups that have fewer than ``least`` values.

    ``output`` and ``count``, the number of its values, are positions. Where ``least`` is ``None``,
    a group needs as many values as it has rows, whose number follows ``count``.
    """

    output: int
    count: int
    least: int | None


@dataclass(frozen=True, slots=True)
class Specification:
    """A specification, read: a request for each column of the result, whose labels have levels.

    ``counted`` are those that only the guards read. A ``scalar`` one is one function of one column,
    whose result is a Series.
    """

    requested: tuple[Requested, ...]
    guards: tuple[Guard, ...] = ()
    counted: tuple[Requested, ...] = ()
    scalar: bool = False
    levels: int = 1


def read_specification(groupby: Any, arg: Any, named: dict[str, Any]) -> Specification:
    """Read the arguments of ``.agg``.

    Named ones are aggregations where ``arg`` is ``None``, and arguments of the functions otherwise.
    Raises ``Unsupported`` for what our plan cannot run, and ``KeyError`` for unknown columns.
    """
    if arg is None and not named:
        raise Unsupported("no aggregation was requested")
    # beside a dict pandas and Dask ignore them
    arguments = {} if arg is None or isinstance(arg, dict) else dict(named)
    numeric_only = arguments.pop("numeric_only", False)
    if numeric_only and isinstance(arg, list | tuple):
        raise Unsupported("numeric_only with several functions is not supported")
    entries, scalar, levels = _entries(groupby, arg, named, numeric_only)
    requested: list[Requested] = []
    guards: list[Guard] = []
    counted: list[Requested] = []
    functions: dict[Hashable, CustomFunctions | None] = {}
    for label, function, column in entries:
        name, parameters, custom = read_function(function)
        if custom is None and not (name in REGISTRY and REGISTRY[name].in_agg):
            raise Unsupported(_unknown(name), name, column)
        if custom is not None and arguments:
            text = f"a dd.Aggregation with arguments {sorted(arguments)}"
            raise Unsupported(f"{text} is not supported")
        # a dd.Aggregation may not take the label of another function, as Dask has it
        if functions.setdefault(label, custom) != custom:
            raise Unsupported(f"two different functions give the column {label!r}")
        # explicit arguments override the defaults of a function
        parameters, least = _needed(name, dict(parameters) | arguments)
        if least != 0:
            guards.append(Guard(len(requested), len(entries) + len(counted), least))
            counted.append(Requested(None, "count", column))
            if least is None:
                counted.append(Requested(None, "size", column))
        requested.append(Requested(label, name, column, parameters, custom))
    if is_cudf(groupby.obj._meta):
        if not requested:
            raise Unsupported("no aggregation was requested")
        if len({request.label for request in requested}) < len(requested):
            raise Unsupported("cuDF does not support two columns with one label")
        requested = list(map(exact_of, requested))
    return Specification(tuple(requested), tuple(guards), tuple(counted), scalar, levels)


def exact_of(request: Requested) -> Requested:
    """The exact aggregation for an approximate one, which the device engine does not make."""
    record = REGISTRY.get(request.aggregation)
    exact = record.exact if record is not None else ""
    return replace(request, aggregation=exact) if exact else request


def read_method(
    groupby: Any, name: str, parameters: Parameters, numeric_only: bool = False
) -> Specification:
    """The specification of a method of a group-by, which has a name of the registry."""
    meta = groupby.obj._meta
    scalar = _of_column(groupby)
    if scalar:
        labels = [meta.name if meta.ndim == 1 else groupby._slice]
    else:
        labels = value_columns(groupby, numeric_only)
        if is_cudf(meta):  # which leaves a key out even if it was chosen
            by = [b for b in groupby.by if not isinstance(b, Expr)]
            labels = [c for c in labels if c not in by]
    if name == "size":
        labels, scalar = [labels[0] if scalar else None], True
    requested = tuple(
        Requested(label, name, None if name == "size" else label, parameters) for label in labels
    )
    if not requested:
        raise Unsupported(f"no column is left for {name}", name)
    levels = meta.columns.nlevels if meta.ndim == 2 else 1
    return Specification(requested, scalar=scalar, levels=levels)


def needs_extension(groupby: Any, spec: Specification, arg: Any, named: dict[str, Any]) -> bool:
    """Whether a specification has something that Dask refuses, ignores, or reads otherwise.

    Beside ``median`` it accepts any name, and takes metadata of another dtype. Where nothing is
    asked for, it loses the groups. Named aggregations of chosen columns get each other's names.
    """
    if isinstance(arg, str) and arg == "size":
        return False  # a method of frames: one column, whatever the arguments
    if spec.guards:
        return True
    if arg is None:
        differs = isinstance(groupby._slice, list | tuple) and len(named) > 1
    elif isinstance(arg, dict):
        differs = not any(arg.values())
    else:
        differs = not arg or not named.keys().isdisjoint(_ARGUMENTS)
    records = [REGISTRY[r.aggregation] for r in spec.requested if r.custom is None]
    return differs or any(not r.stock_agg or r.name == "median" for r in records)


def on_own_labels(groupby: Any) -> Any:
    """The group-by with labels for the keys that are columns of the frame itself.

    The key of ``d[["k", "x"]].groupby(d.k)`` is, and so no value column. pandas knows that by the
    memory, we by where both come from; Dask has it among the values.
    """
    if groupby.obj.ndim == 1 or not groupby.obj._meta.columns.is_unique:
        return groupby
    labels = [_own_label(groupby.obj, key) for key in groupby.by]
    if all(label is key for label, key in zip(labels, groupby.by, strict=True)):
        return groupby
    flags = {n: getattr(groupby, n) for n in ("group_keys", "sort", "observed", "dropna")}
    return type(groupby)(groupby.obj, by=labels, slice=groupby._slice, **flags)


def _own_label(obj: Any, key: Any) -> Any:
    if not isinstance(key, Projection) or key.ndim != 1 or _source(key) != _source(obj.expr):
        return key
    label = key._meta.name
    return label if label in obj._meta.columns else key


def _source(expr: Any) -> Any:
    """The name of a frame before columns of it were chosen."""
    while isinstance(expr, Projection):
        expr = expr.frame
    return expr._name


def _of_column(groupby: Any) -> bool:
    """Whether one column is grouped; pandas' and cuDF's classes have this name."""
    return type(groupby._meta).__name__ == "SeriesGroupBy"


def value_columns(groupby: Any, numeric_only: bool = False) -> list[Hashable]:
    """All columns but the keys, or the numbers among them; ``[...]`` may choose a key."""
    meta, chosen = groupby.obj._meta, groupby._slice
    if chosen is None:
        keys = [key for key in groupby.by if not isinstance(key, Expr)]
        labels = [c for c in meta.columns if not any(c is k or c == k for k in keys)]
    else:
        labels = list(chosen) if isinstance(chosen, list | tuple) else [chosen]
    return numeric_labels(meta, labels) if numeric_only else labels


def _entries(
    groupby: Any, arg: Any, named: dict[str, Any], numeric_only: bool
) -> tuple[list[tuple[Hashable, Any, Hashable]], bool, int]:
    """The specification as (label, function, column) triples.

    And whether the result is a Series, and the levels of its columns.
    """
    meta = groupby.obj._meta
    if _of_column(groupby):
        column = meta.name if meta.ndim == 1 else groupby._slice
        if arg is None:
            return [(name, f, column) for name, f in named.items()], False, 1
        if isinstance(arg, dict):
            raise Unsupported("a dict for one column (nested renamer) is not supported")
        if not isinstance(arg, list | tuple):
            return [(column, arg, column)], True, 1
        return [(label_of(f), f, column) for f in arg], False, 1
    if arg is None:
        return [(name, *_pair_of(value)) for name, value in named.items()], False, 1
    if not meta.columns.is_unique:
        raise Unsupported("the frame has duplicate column names")
    levels: int = meta.columns.nlevels
    if not isinstance(arg, dict):
        arg = dict.fromkeys(value_columns(groupby, numeric_only), arg)
    if missing := [c for c in arg if c not in meta.columns]:
        raise KeyError(f"Column(s) {missing} do not exist")
    if not any(isinstance(f, list | tuple | dict) for f in arg.values()):
        return [(column, f, column) for column, f in arg.items()], False, levels
    entries: list[tuple[Hashable, Any, Hashable]] = []
    for column, functions in arg.items():
        above = column if levels > 1 else (column,)
        if isinstance(functions, dict):
            labelled = list(functions.items())
        else:
            several = functions if isinstance(functions, list | tuple) else [functions]
            labelled = [(label_of(f), f) for f in several]
        entries += [((*above, label), f, column) for label, f in labelled]
    return entries, False, levels + 1


def _pair_of(value: Any) -> tuple[Any, Hashable]:
    """Function and column of a named aggregation: a pair, or a pd.NamedAgg."""
    column, function, *rest = value
    args, kwargs = (*rest, (), {})[:2]
    if args:
        raise Unsupported(f"a named aggregation with positional arguments {args} is not supported")
    return (WithArguments(function, tuple(kwargs.items())) if kwargs else function), column


def _needed(name: str, parameters: dict[str, Any]) -> tuple[Parameters, int | None]:
    """Parameters of an aggregation itself, and how many values a group needs; ``None``: all."""
    least: int | None = 0
    record = REGISTRY.get(name)
    if record and record.has_min_count:
        min_count = parameters.pop("min_count", 0)
        if not isinstance(min_count, int):
            raise Unsupported(f"min_count={min_count!r} is not a number", name)
        least = max(min_count, 0)
    if parameters.get("skipna") is True:  # all of them do anyway
        del parameters["skipna"]
    if record and record.has_skipna and parameters.get("skipna") is False:
        if least:
            raise Unsupported(f"{name} with both min_count and skipna=False is not supported", name)
        del parameters["skipna"]
        least = None
    refuse_several(name, parameters)
    n = parameters.get("n", 0)
    is_count = isinstance(n, int) and not isinstance(n, bool) and n >= 0
    if record and "n" in record.parameters and not is_count:
        raise Unsupported(f"n={n!r} is not a number of values", name)
    return _sorted(parameters), least


def _unknown(name: str) -> str:
    """Say that ``.agg`` has no aggregation of a name, and which one may have been meant."""
    near = difflib.get_close_matches(name, [n for n, r in REGISTRY.items() if r.in_agg], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"the aggregation {name!r} is not supported in .agg{hint}"


def refuse_several(name: str, parameters: dict[str, Any]) -> None:
    """Raise ``Unsupported`` for several quantiles at once."""
    q = parameters.get("q", 0.5)
    if name in ("quantile", "quantile_approx") and not isinstance(q, int | float):
        reason = f"several quantiles at once, q={q!r}, are not supported: a group has one row"
        raise Unsupported(reason, name)


@dataclass(frozen=True, slots=True)
class WithArguments:
    """A function of a named aggregation, or its name, with the arguments of ``pd.NamedAgg``."""

    function: Any
    arguments: Parameters


def read_function(function: Any) -> tuple[str, Parameters, CustomFunctions | None]:
    """Name, keyword arguments and user-defined functions of one entry of an ``.agg`` spec.

    A ``dd.Aggregation`` has the name ``custom``. Raises ``Unsupported`` for positional arguments in
    a partial, and functions of the user's own.
    """
    if all(hasattr(function, part) for part in ("chunk", "agg", "finalize", "__name__")):
        functions = CustomFunctions(
            function.__name__, function.chunk, function.agg, function.finalize
        )
        return "custom", (), functions
    arguments: dict[str, Any] = {}
    if isinstance(function, WithArguments):
        arguments, function = dict(function.arguments), function.function
    if isinstance(function, partial):
        if function.args:
            text = f"a partial function with positional arguments {function.args}"
            raise Unsupported(f"{text} is not supported")
        arguments = function.keywords | arguments
        function = function.func
    if isinstance(function, str):
        return function, _sorted(arguments), None
    name, meant = _library_function(function)
    return name, _sorted(meant | arguments), None


def label_of(function: Any) -> str:
    """The column label that pandas gives to the result of a function."""
    while isinstance(function, partial | WithArguments):
        function = function.func if isinstance(function, partial) else function.function
    if isinstance(function, str):
        return function
    return str(getattr(function, "__name__", None) or read_function(function)[0])


def _sorted(arguments: dict[str, Any]) -> Parameters:
    return tuple(sorted(arguments.items()))


def _library_function(function: Any) -> tuple[str, dict[str, Any]]:
    """The aggregation that a function of pandas, NumPy or Python stands for."""
    if isinstance(function, methodcaller):  # dask.utils.M.sum
        return function.method, {}
    with contextlib.suppress(TypeError):  # it may not be hashable
        if function in _KNOWN_FUNCTIONS:
            return _KNOWN_FUNCTIONS[function]
    name = getattr(function, "__name__", None)
    if not callable(function) or not isinstance(name, str):
        raise Unsupported(f"{function!r} is not an aggregation")
    if name not in REGISTRY:
        raise Unsupported(_unknown(name), name)
    # a user's function may have the same name
    owners = [builtins, np, pd.Series, pd.DataFrame, SeriesGroupBy, DataFrameGroupBy]
    if "cudf" in sys.modules:
        cudf = importlib.import_module("cudf")
        owners += [cudf.Series, cudf.DataFrame]
    if not any(getattr(owner, name, None) is function for owner in owners):
        raise Unsupported(f"{name} is a function of your own, not one of pandas", name)
    return name, {}
