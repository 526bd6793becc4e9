"""Aggregations that Dask's own ``.agg`` refuses, as a logical expression of ours.

Dask rejects ``nunique``, ``any``, ``sem`` and others, the same pair twice, and a
``dd.Aggregation`` beside ``median`` while it makes the metadata of its own node. For such a
specification the collection gets this node instead; nothing else about the query changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pandas as pd
from dask.dataframe.dask_expr._groupby import GroupByApplyConcatApply
from dask.dataframe.dispatch import make_meta, meta_nonempty

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.device_meta import (
    beside,
    empty_matrix,
    is_known,
    numeric_labels,
    on_host,
)
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.functions import read_function
from dask_gpuagg.plan import CustomFunctions, Requested, Unsupported

Spec = list[tuple[Hashable, Any, Hashable]]


class ExtendedAggregation(GroupByApplyConcatApply):
    """A group-by aggregation that only our plan can run.

    Operands: the frame, the requested outputs (a tuple of ``Requested``), the result's empty
    metadata, the flags of Dask's own node, then the keys.
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
    }

    @functools.cached_property
    def _meta(self) -> Any:
        return self.result_meta

    def _simplify_down(self) -> Any:
        if self.frame.ndim == 1:
            return None
        needed = {r.column for r in self.requested} | set(self._by_columns)
        columns = [c for c in self.frame.columns if c in needed]
        if columns == list(self.frame.columns):
            return None
        return type(self)(self.frame[columns], *self.operands[1:])

    def _lower(self) -> Any:
        if self.stock is not None:
            return self.stock.kept
        names = ", ".join(dict.fromkeys(r.aggregation for r in self.requested))
        raise RuntimeError(
            f"this group-by ({names}) was built with dask_gpuagg enabled and stock Dask cannot "
            "run it: enable the plugin again, or write the aggregation in Dask's own terms"
        )


class Stock:
    """Another expression for the same result, which is no part of the one it is kept in.

    Parameters
    ----------
    expr : Expr
    """

    def __init__(self, expr: Any) -> None:
        # not called `expr`: Dask takes whatever has that attribute for a collection, and would
        # make its expression an input of ours
        self.kept = expr

    def __dask_tokenize__(self) -> Any:
        return ("dask_gpuagg.Stock", self.kept._name)

    def __repr__(self) -> str:
        return f"Stock({self.kept._name})"


def extend(
    groupby: Any,
    arg: Any,
    flags: dict[str, Any],
    named: dict[str, Any],
    stock: Any | None = None,
) -> Any:
    """Expression for an ``.agg`` call that Dask refused.

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
    spec, scalar = _read_spec(groupby, arg, named)
    requested = []
    if not spec:
        raise Unsupported("no aggregation was asked for")
    # with a specification, keywords are arguments of the functions
    arguments = tuple(sorted(named.items())) if arg is not None else ()
    for label, function, column in spec:
        name, parameters, custom = read_function(function)
        parameters += arguments
        if custom is None and not (name in REGISTRY and REGISTRY[name].in_agg):
            raise Unsupported(f"the aggregation {name!r} is not supported in .agg", name, column)
        requested.append(Requested(label, name, column, parameters, custom))
    _refuse_clashes(requested)
    result_meta = _result_meta(groupby, requested, scalar)
    return _node(groupby, requested, result_meta, flags, stock)


def extend_method(
    groupby: Any,
    name: str,
    parameters: tuple[tuple[str, Any], ...],
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
        by = [b for b in groupby.by if not hasattr(b, "_meta")]
        wanted = groupby._slice if groupby._slice is not None else meta.columns
        labels = [c for c in wanted if c not in by]
        labels = numeric_labels(meta, labels) if numeric_only else labels
    if name == "size":
        labels, scalar = [labels[0] if scalar else None], True
    requested = [
        Requested(label, name, None if name == "size" else label, parameters) for label in labels
    ]
    if not requested:
        raise Unsupported(f"no column is left for {name}", name)
    if name in ("cov", "corr"):
        frame, keys = _made_up(groupby)
        made = empty_matrix(frame, keys, labels)
        result_meta = beside(meta, made, [Requested(c, "mean", c) for c in labels])
    else:
        result_meta = _result_meta(groupby, requested, scalar)
    return _node(groupby, requested, result_meta, flags, stock)


def _node(
    groupby: Any, requested: Sequence[Requested], meta: Any, flags: dict[str, Any], stock: Any
) -> ExtendedAggregation:
    return ExtendedAggregation(
        groupby.obj.expr,
        tuple(requested),
        meta,
        groupby.observed,
        groupby.dropna,
        flags["split_every"],
        flags["split_out"],
        groupby.sort,
        flags["shuffle_method"],
        groupby._slice,
        None if stock is None else Stock(stock.expr),
        *groupby.by,
    )


def needs_extension(arg: Any, named: dict[str, Any]) -> bool:
    """Whether a specification has something that Dask refuses, or makes wrong metadata for.

    Beside ``median`` Dask accepts any name, and takes pandas' result on two made-up rows of
    another dtype for the metadata.
    """
    if arg is None:
        functions = [
            _named(value)[0] if isinstance(value, tuple) else value for value in named.values()
        ]
    else:
        specs = list(arg.values()) if isinstance(arg, dict) else [arg]
        functions = []
        for spec in specs:
            functions += list(spec) if isinstance(spec, list | tuple) else [spec]
    names = []
    for function in functions:
        try:
            names.append(read_function(function)[0])
        except Unsupported:
            return False
    known = [REGISTRY[name] for name in names if name in REGISTRY]
    return any(not record.stock_agg or record.name == "median" for record in known)


def _refuse_clashes(requested: Sequence[Requested]) -> None:
    """The same pair may be asked for twice; two functions may not share one label."""
    by_label: dict[Hashable, Requested] = {}
    for request in requested:
        if by_label.setdefault(request.label, request) != request:
            raise Unsupported(f"two different functions give the column {request.label!r}")


def _read_spec(groupby: Any, arg: Any, named: dict[str, Any]) -> tuple[Spec, bool]:
    """Read the specification as (label, function, column) triples.

    The flag tells whether it is one function of one column, whose result is a Series.
    """
    meta = groupby.obj._meta
    by = [b for b in groupby.by if not hasattr(b, "_meta")]
    # pandas' and cuDF's classes have this name
    if type(groupby._meta).__name__ == "SeriesGroupBy":
        column = meta.name if meta.ndim == 1 else groupby._slice
        if arg is None:
            return [(name, f, column) for name, f in named.items()], False
        if isinstance(arg, dict):
            raise Unsupported("a dict for one column (nested renamer)")
        if not isinstance(arg, list | tuple):
            return [(column, arg, column)], True
        return [(_function_label(f), f, column) for f in arg], False
    if arg is None:
        return [(name, *_named(value)) for name, value in named.items()], False
    if not isinstance(arg, dict):
        wanted = groupby._slice if groupby._slice is not None else meta.columns
        arg = {c: arg for c in wanted if c not in by or groupby._slice is not None}
    missing = [c for c in arg if c not in meta.columns]
    if missing:
        raise KeyError(f"Column(s) {missing} do not exist")
    nested = any(isinstance(f, list | tuple | dict) for f in arg.values())
    spec: Spec = []
    for column, functions in arg.items():
        if isinstance(functions, dict):
            spec += [((column, label), f, column) for label, f in functions.items()]
            continue
        for f in functions if isinstance(functions, list | tuple) else [functions]:
            spec.append(((column, _function_label(f)) if nested else column, f, column))
    return spec, False


def _named(value: Any) -> tuple[Any, Hashable]:
    """Function and column of a named aggregation: a pair, or a pd.NamedAgg."""
    column, function, *rest = value
    args, kwargs = (*rest, (), {})[:2]
    if args:
        raise Unsupported(f"positional arguments {args} of a named aggregation")
    return (functools.partial(function, **kwargs) if kwargs else function), column


def _function_label(function: Any) -> str:
    name, _, custom = read_function(function)
    return custom.name if custom else name


def _result_meta(groupby: Any, requested: Sequence[Requested], scalar: bool) -> Any:
    """Empty result: dtypes by pandas on non-empty metadata, labels as pandas gives them."""
    frame, keys = _made_up(groupby)
    dropna = True if groupby.dropna is None else groupby.dropna
    columns = []
    for request in requested:
        # a tuple is a label here, which indexing a group-by would take for several
        if frame.ndim == 2:
            # rows are counted alike whatever the column
            column = frame.iloc[:, 0] if request.column is None else frame[request.column]
        else:
            column = frame
        one = column.groupby(keys[0] if len(keys) == 1 else keys, observed=True, dropna=dropna)
        if is_known(groupby.obj._meta, request):
            columns.append(one.size().iloc[:0])
        else:
            columns.append(_meta_of(one, request))
    labels = [r.label for r in requested]
    if scalar:
        # the counts of values have a name of their own
        own_name = requested[0].aggregation == "value_counts"
        named = columns[0] if own_name else columns[0].rename(labels[0])
        return make_meta(beside(groupby.obj._meta, named, requested))
    result = pd.concat(columns, axis=1)
    if all(isinstance(label, tuple) for label in labels):
        result.columns = pd.MultiIndex.from_tuples(labels)
    else:
        result.columns = pd.Index(labels)
    return beside(groupby.obj._meta, result.iloc[:0], requested)


def _made_up(groupby: Any) -> tuple[Any, list[Any]]:
    """A row of pandas' of the frame's dtypes, and its keys."""
    # one row: the second one of nullable dtypes is null
    frame = on_host(meta_nonempty(groupby.obj._meta)).iloc[:1]
    by = [on_host(meta_nonempty(b._meta))[:1] if hasattr(b, "_meta") else b for b in groupby.by]
    by = [b.to_series(index=frame.index) if isinstance(b, pd.Index) else b for b in by]
    return frame, [frame[b] if frame.ndim == 2 and _is_column(b, frame) else b for b in by]


def _is_column(by: Any, frame: pd.DataFrame) -> bool:
    return isinstance(by, Hashable) and by in frame.columns


def _meta_of(grouped: Any, request: Requested) -> pd.Series:
    if request.custom is not None:
        return _meta_of_custom(grouped, request.custom)
    parameters = dict(request.parameters)
    if grouped.obj.dtype == object and request.aggregation in ("sum", "min", "max"):
        # the objects of Dask's non-empty metadata can be neither added nor compared
        return grouped.first().iloc[:0]
    if request.aggregation == "list":
        # lists of any dtype are Python objects, as in stock Dask; pandas 3.0 cannot make those of
        # categories
        made = grouped.size().astype(object)
    elif dtype_class(grouped.obj.dtype) == "decimal" and _keeps_moments(request.aggregation):
        # what pandas 3.1 says; pandas 3.0 refuses std and sem, and types var by the values
        made = grouped.size().astype("double[pyarrow]")
    else:
        method: Callable[..., pd.Series] = getattr(grouped, request.aggregation)
        made = method(**parameters)
    return made.iloc[:0]


def _keeps_moments(aggregation: str) -> bool:
    return REGISTRY[aggregation].states.get("decimal") == ("moments",)


def _meta_of_custom(grouped: Any, functions: CustomFunctions) -> pd.Series:
    chunk = functions.chunk(grouped)
    parts = chunk if isinstance(chunk, tuple) else (chunk,)
    levels = list(range(parts[0].index.nlevels))
    merged = functions.agg(*(p.groupby(level=levels) for p in parts))
    merged = merged if isinstance(merged, tuple) else (merged,)
    made: pd.Series = functions.finalize(*merged) if functions.finalize else merged[0]
    return made.iloc[:0]
