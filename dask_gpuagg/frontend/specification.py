"""Reading an ``.agg`` specification: which function of which column, under which label."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pandas as pd
from dask.dataframe.dask_expr._expr import Expr, Projection

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.frontend.device_metadata import numeric_labels
from dask_gpuagg.frontend.functions import (
    Parameters,
    WithArguments,
    label_of,
    read_function,
    refuse_several,
)
from dask_gpuagg.plan import CustomFunctions, Requested, Unsupported

# aggregations that pandas makes null where a group has fewer than ``min_count`` values
_WITH_MIN_COUNT = frozenset(("sum", "prod", "min", "max", "first", "last"))

# aggregations that are null with ``skipna=False`` where a value of the group is
_WITH_SKIPNA = frozenset(
    ("sum", "prod", "min", "max", "mean", "var", "std", "sem", "median", "quantile")
)

# arguments of pandas' methods that stock Dask ignores in .agg
ARGUMENTS = frozenset(p for record in REGISTRY.values() for p in record.parameters) | {
    "min_count",
    "numeric_only",
}


# what a named aggregation of a frame is given as
_PAIRS = (tuple, pd.NamedAgg)


@dataclass(frozen=True, slots=True)
class Guard:
    """An output that is null in the groups that have too few values.

    Attributes
    ----------
    output : int
        Position of the output.
    count : int
        Position of the number of its values.
    least : int or None
        How many values a group needs; ``None`` for as many as it has rows.
    rows : int or None
        Position of the number of rows, where that is what is needed.
    """

    output: int
    count: int
    least: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Specification:
    """A specification, read.

    Attributes
    ----------
    requested : tuple of Requested
        One per column of the result.
    guards : tuple of Guard
    counted : tuple of Requested
        What the guards read, beside the result's columns.
    scalar : bool
        Whether it is one function of one column, whose result is a Series.
    levels : int
        Of the result's columns.
    """

    requested: tuple[Requested, ...]
    guards: tuple[Guard, ...] = ()
    counted: tuple[Requested, ...] = ()
    scalar: bool = False
    levels: int = 1


def read_specification(groupby: Any, arg: Any, named: dict[str, Any]) -> Specification:
    """Read the arguments of ``.agg``.

    Parameters
    ----------
    groupby : dask.dataframe GroupBy
    arg : str, callable, list or dict, optional
    named : dict
        Named aggregations when ``arg`` is ``None``, else arguments of the functions.

    Returns
    -------
    Specification

    Raises
    ------
    Unsupported
        When our plan cannot run it.
    KeyError
        For columns that the frame does not have.
    """
    # beside a dict pandas and Dask ignore them
    arguments = {} if arg is None or isinstance(arg, dict) else dict(named)
    numeric_only = arguments.pop("numeric_only", False)
    if numeric_only and isinstance(arg, list | tuple):
        raise Unsupported("numeric_only beside several functions")
    entries, scalar, levels = _entries(groupby, arg, named, numeric_only)
    requested: list[Requested] = []
    needs: list[tuple[int, int]] = []
    for label, function, column in entries:
        name, parameters, custom = read_function(function)
        if custom is None and not (name in REGISTRY and REGISTRY[name].in_agg):
            raise Unsupported(f"the aggregation {name!r} is not supported in .agg", name, column)
        if custom is not None and arguments:
            raise Unsupported(f"arguments {sorted(arguments)} of a dd.Aggregation")
        # explicit arguments override the defaults of a function
        parameters, least = _needed(name, dict(parameters) | arguments)
        if least:
            needs.append((len(requested), least))
        requested.append(Requested(label, name, column, parameters, custom))
    _refuse_clashes(requested)
    guards: list[Guard] = []
    counted: list[Requested] = []
    for output, least in needs:
        column, position = requested[output].column, len(requested) + len(counted)
        counted.append(Requested(None, "count", column))
        if least == _ALL:
            counted.append(Requested(None, "size", column))
            guards.append(Guard(output, position, rows=position + 1))
        else:
            guards.append(Guard(output, position, least))
    return Specification(tuple(requested), tuple(guards), tuple(counted), scalar, levels)


# as many values as rows
_ALL = -1


def _needed(name: str, parameters: dict[str, Any]) -> tuple[Parameters, int]:
    """Parameters of an aggregation itself, and how many values a group needs (0: any number)."""
    least = 0
    if name in _WITH_MIN_COUNT:
        asked = parameters.pop("min_count", 0)
        if not isinstance(asked, int):
            raise Unsupported(f"min_count={asked!r} is not a number", name)
        least = max(asked, 0)
    if parameters.get("skipna") is True:  # what all of them do anyway
        del parameters["skipna"]
    if name in _WITH_SKIPNA and parameters.get("skipna") is False:
        if least:
            raise Unsupported(f"{name} with both min_count and skipna=False", name)
        del parameters["skipna"]
        least = _ALL
    refuse_several(name, parameters)
    n = parameters.get("n", 0)
    if name in REGISTRY and "n" in REGISTRY[name].parameters and not _is_count(n):
        raise Unsupported(f"n={n!r} is no number of values", name)
    return tuple(sorted(parameters.items())), least


def _is_count(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n >= 0


def needs_extension(groupby: Any, arg: Any, named: dict[str, Any]) -> bool:
    """Whether a specification has something that Dask refuses, ignores, or reads otherwise.

    Beside ``median`` Dask accepts any name, and takes pandas' result on two made-up rows of
    another dtype for the metadata. Where nothing is asked for, it loses the groups. Named
    aggregations of chosen columns come under each other's names.

    Parameters
    ----------
    groupby, arg, named
        As in ``read_specification``.

    Returns
    -------
    bool
    """
    if isinstance(arg, str) and arg == "size":
        return False  # a method of frames: one column, whatever the arguments
    if arg is None:
        if isinstance(groupby._slice, list | tuple) and len(named) > 1:
            return True
        functions = [_named(v)[0] if isinstance(v, _PAIRS) else v for v in named.values()]
    elif not isinstance(arg, dict) and not named.keys().isdisjoint(ARGUMENTS):
        return True
    else:
        specs = list(arg.values()) if isinstance(arg, dict) else [arg]
        functions = []
        for spec in specs:
            functions += list(spec) if isinstance(spec, list | tuple) else [spec]
        if not functions:
            return True
    names = []
    for function in functions:
        try:
            names.append(read_function(function)[0])
        except Unsupported:
            return False
    known = [REGISTRY[name] for name in names if name in REGISTRY]
    return any(not record.stock_agg or record.name == "median" for record in known)


def value_columns(groupby: Any) -> list[Hashable]:
    """The columns that pandas aggregates where none are named.

    Parameters
    ----------
    groupby : dask.dataframe GroupBy
        Of a frame.

    Returns
    -------
    list of hashable
        All but the keys; what was chosen with ``[...]`` may contain a key.
    """
    if groupby._slice is not None:
        chosen = groupby._slice
        return list(chosen) if isinstance(chosen, list | tuple) else [chosen]
    keys = [key for key in groupby.by if not isinstance(key, Expr)]
    return [c for c in groupby.obj._meta.columns if not any(c is k or c == k for k in keys)]


def on_own_labels(groupby: Any) -> Any:
    """The group-by with labels for the keys that are columns of the frame itself.

    The key of ``d[["k", "x"]].groupby(d.k)`` is, and so no value column. pandas knows that by the
    memory, we by where both come from; Dask has it among the values.

    Parameters
    ----------
    groupby : dask.dataframe GroupBy

    Returns
    -------
    dask.dataframe GroupBy
        The same one if there are no such keys.
    """
    if groupby.obj.ndim == 1 or not groupby.obj._meta.columns.is_unique:
        return groupby
    labels = [_own_label(groupby.obj, key) for key in groupby.by]
    if all(label is key for label, key in zip(labels, groupby.by, strict=True)):
        return groupby
    return type(groupby)(
        groupby.obj,
        by=labels,
        group_keys=groupby.group_keys,
        sort=groupby.sort,
        observed=groupby.observed,
        dropna=groupby.dropna,
        slice=groupby._slice,
    )


def _own_label(obj: Any, key: Any) -> Any:
    if (
        not isinstance(key, Projection)
        or key.ndim != 1
        or _whole(key)._name != _whole(obj.expr)._name
    ):
        return key
    label = key._meta.name
    return label if label in obj._meta.columns else key


def _whole(expr: Any) -> Any:
    """A frame before columns of it were chosen."""
    while isinstance(expr, Projection):
        expr = expr.frame
    return expr


def _entries(
    groupby: Any, arg: Any, named: dict[str, Any], numeric_only: bool
) -> tuple[list[tuple[Hashable, Any, Hashable]], bool, int]:
    """The specification as (label, function, column) triples.

    Returns
    -------
    list of triples
    bool
        Whether the result is a Series.
    int
        Levels of the result's columns.
    """
    meta = groupby.obj._meta
    # pandas' and cuDF's classes have this name
    if type(groupby._meta).__name__ == "SeriesGroupBy":
        column = meta.name if meta.ndim == 1 else groupby._slice
        if arg is None:
            return [(name, f, column) for name, f in named.items()], False, 1
        if isinstance(arg, dict):
            raise Unsupported("a dict for one column (nested renamer)")
        if not isinstance(arg, list | tuple):
            return [(column, arg, column)], True, 1
        return [(label_of(f), f, column) for f in arg], False, 1
    if arg is None:
        return [(name, *_named(value)) for name, value in named.items()], False, 1
    if not meta.columns.is_unique:
        raise Unsupported("the frame has duplicate column names")
    levels: int = meta.columns.nlevels
    if not isinstance(arg, dict):
        wanted = value_columns(groupby)
        wanted = numeric_labels(meta, wanted) if numeric_only else wanted
        arg = dict.fromkeys(wanted, arg)
    missing = [c for c in arg if c not in meta.columns]
    if missing:
        raise KeyError(f"Column(s) {missing} do not exist")
    if not any(isinstance(f, list | tuple | dict) for f in arg.values()):
        return [(column, f, column) for column, f in arg.items()], False, levels
    entries: list[tuple[Hashable, Any, Hashable]] = []
    for column, functions in arg.items():
        if not isinstance(functions, dict):
            several = functions if isinstance(functions, list | tuple) else [functions]
            functions = [(label_of(f), f) for f in several]
        else:
            functions = functions.items()
        above = column if levels > 1 else (column,)
        entries += [((*above, label), f, column) for label, f in functions]
    return entries, False, levels + 1


def _named(value: Any) -> tuple[Any, Hashable]:
    """Function and column of a named aggregation: a pair, or a pd.NamedAgg."""
    column, function, *rest = value
    args, kwargs = (*rest, (), {})[:2]
    if args:
        raise Unsupported(f"positional arguments {args} of a named aggregation")
    return (WithArguments(function, tuple(kwargs.items())) if kwargs else function), column


def _refuse_clashes(requested: list[Requested]) -> None:
    """A ``dd.Aggregation`` may not take the label of another function, as Dask has it."""
    by_label: dict[Hashable, CustomFunctions | None] = {}
    for request in requested:
        if by_label.setdefault(request.label, request.custom) != request.custom:
            raise Unsupported(f"two different functions give the column {request.label!r}")
