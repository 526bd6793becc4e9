"""Methods of pandas' group-bys that those of Dask lack, while the plugin is on.

Most are another way to write ``.agg``. ``nlargest`` and ``nsmallest`` move only those rows of a
partition that can be in the result.
"""

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from dask._expr import Expr
from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dispatch import concat as concat_of_library
from dask.dataframe.dispatch import meta_nonempty

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.frontend.metadata import is_cudf
from dask_gpuagg.frontend.patches import is_enabled
from dask_gpuagg.frontend.specification import WithArguments, value_columns
from dask_gpuagg.reporting.events import is_dry_run

# columns with the place of a row among all, and its label
_ROW, _LABEL = "gpuagg row", "gpuagg label"
# dtypes whose description is one of numbers
_NUMBERS = ("int", "uint", "float")


class Added:
    """A method that a class has while the plugin is on, and lacks otherwise."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, groupby: Any, owner: type) -> Any:
        if groupby is None:
            return self
        if not (is_dry_run() or is_enabled()):
            # Python then asks __getattr__, as where there is no such method
            raise AttributeError(self._function.__name__)
        return functools.update_wrapper(functools.partial(self._function, groupby), self._function)


def quantile(
    groupby: Any,
    q: float | Sequence[float] = 0.5,
    interpolation: str = "linear",
    numeric_only: bool = False,
    **flags: Any,
) -> Any:
    """Quantiles of each group; of several ``q`` one row for each."""
    if isinstance(q, int | float):
        arguments = {"q": q, "interpolation": interpolation, "numeric_only": numeric_only}
        return groupby.aggregate("quantile", **arguments, **flags)
    functions = {
        f"q{i}": WithArguments("quantile", (("interpolation", interpolation), ("q", level)))
        for i, level in enumerate(q)
    }
    wide, columns = _several(groupby, functions, numeric_only, flags)
    is_series = isinstance(groupby, G.SeriesGroupBy)
    stack = functools.partial(_stack, quantiles=list(q), columns=columns, is_series=is_series)
    return wide.map_partitions(stack, meta=stack(wide._meta), enforce_metadata=False)


def _stack(wide: Any, quantiles: list[float], columns: list[Hashable], is_series: bool) -> Any:
    """One row per group and quantile, from one row per group with a column for each quantile."""
    names, number = list(wide.index.names), len(quantiles)
    levels = wide.index.to_frame(index=False)
    levels.columns = [f"k{i}" for i in range(len(names))]
    pieces = []
    for i, level in enumerate(quantiles):
        labels = [f"q{i}"] if is_series else [(c, f"q{i}") for c in columns]
        piece = wide[labels].reset_index(drop=True)
        piece.columns = [f"v{j}" for j in range(len(columns))]
        for name in levels.columns:
            piece[name] = levels[name]
        piece["q"] = np.full(len(piece), level, dtype=np.float64)
        piece["place"] = np.arange(len(piece)) * number + i
        pieces.append(piece)
    rows = concat_of_library(pieces).sort_values("place")
    result = rows.set_index([*levels.columns, "q"])[[f"v{j}" for j in range(len(columns))]]
    result.index.names = [*names, None]
    if is_series:
        return result["v0"].rename(columns[0])
    result.columns = wide.columns[:0].droplevel(-1).append(pd.Index(columns, tupleize_cols=False))
    return result


def any_(groupby: Any, skipna: bool = True, **flags: Any) -> Any:
    """Whether any value of a group is true."""
    return groupby.aggregate("any", skipna=skipna, **flags)


def all_(groupby: Any, skipna: bool = True, **flags: Any) -> Any:
    """Whether all values of a group are true."""
    return groupby.aggregate("all", skipna=skipna, **flags)


def sem(groupby: Any, ddof: int = 1, numeric_only: bool = False, **flags: Any) -> Any:
    """Standard error of the mean of each group."""
    return groupby.aggregate("sem", ddof=ddof, numeric_only=numeric_only, **flags)


def nunique(groupby: Any, dropna: bool = True, **flags: Any) -> Any:
    """Number of distinct values of each group and column."""
    arguments = {} if dropna is True else {"dropna": dropna}
    return groupby.aggregate("nunique", **arguments, **flags)


def describe(groupby: Any, percentiles: Sequence[float] | None = None, **flags: Any) -> Any:
    """Count, mean, standard deviation, extremes and quantiles of the numbers of each group."""
    quantiles = (0.25, 0.5, 0.75) if percentiles is None else sorted({*percentiles})
    functions: dict[str, Any] = {name: name for name in ("count", "mean", "std", "min")}
    for q in quantiles:
        functions[f"{100 * q:.6g}%"] = WithArguments("quantile", (("q", q),))
    functions["max"] = "max"
    result, columns = _several(groupby, functions, True, flags)
    meta = groupby.obj._meta
    for c in columns:
        dtype = meta.dtype if meta.ndim == 1 else meta[c].dtype
        if dtype_class(dtype) not in _NUMBERS:
            raise NotImplementedError(f"describe of {c!r}, which has dtype {dtype}: no numbers")
    return result.map_partitions(_as_means, meta=_as_means(result._meta), enforce_metadata=False)


def _as_means(described: Any) -> Any:
    """Counts and extremes in the dtype of their column's mean, as pandas' description has them."""
    dtypes = dict(described.dtypes)
    # the rows, and the metadata, belong to the aggregation
    described = described.copy(deep=False)
    for label in dtypes:
        mean = (*label[:-1], "mean") if isinstance(label, tuple) else "mean"
        described[label] = described[label].astype(dtypes[mean])
    return described


def _several(
    groupby: Any, functions: dict[str, Any], numeric_only: bool, flags: dict[str, Any]
) -> tuple[Any, list[Hashable]]:
    """Several functions of each column, under labels; and the columns."""
    meta = groupby.obj._meta
    if isinstance(groupby, G.SeriesGroupBy):
        columns = [meta.name if meta.ndim == 1 else groupby._slice]
        return groupby.aggregate(None, **functions, **flags), columns
    columns = value_columns(groupby, numeric_only)
    return groupby.aggregate(dict.fromkeys(columns, functions), **flags), columns


def nlargest(groupby: Any, n: int = 5, keep: str = "first") -> Any:
    """The ``n`` largest values of each group, with the labels of their rows."""
    return _most(groupby, "nlargest", n, keep)


def nsmallest(groupby: Any, n: int = 5, keep: str = "first") -> Any:
    """The ``n`` smallest values of each group, with the labels of their rows."""
    return _most(groupby, "nsmallest", n, keep)


def _most(groupby: Any, name: str, n: int, keep: str) -> Any:
    by, frame = list(groupby.by), groupby.obj
    if frame.ndim == 1 or any(isinstance(key, Expr) or callable(key) for key in by):
        raise NotImplementedError(f"{name} by keys that are no columns of the frame")
    if keep not in ("first", "last", "all"):
        raise ValueError('keep must be either "first", "last" or "all"')
    options: dict[str, Any] = {
        "by": by, "column": groupby._slice, "name": name, "n": n, "keep": keep,
        "dropna": groupby.dropna is not False,
    }  # fmt: skip
    # the first ones of equal values count, and a shuffle loses their order
    numbered = frame.assign(**{_ROW: frame.map_partitions(_ones, meta=_ones(frame._meta)).cumsum()})
    find = functools.partial(_candidates, **options)
    last = functools.partial(_most_of_groups, **options)
    meta = _most_of_groups(meta_nonempty(numbered._meta), **options).iloc[:0]
    candidates = numbered.map_partitions(find, meta=numbered._meta)
    return candidates.shuffle(by).map_partitions(last, meta=meta, enforce_metadata=False)


def _ones(frame: Any) -> Any:
    """The number one for each row."""
    return frame.assign(**{_ROW: 1})[_ROW]


def _candidates(
    frame: Any, by: list[Hashable], column: Hashable, name: str, n: int, keep: str, dropna: bool
) -> Any:
    """The rows of a partition that can be among the first of their group."""
    ties = {"first": "first", "last": "first", "all": "min"}[keep]
    rows = frame.iloc[::-1] if keep == "last" else frame
    ascending = name == "nsmallest"
    groups = rows.groupby(by, sort=False, dropna=dropna)[column]
    rank = groups.rank(method=ties, ascending=ascending, na_option="bottom")
    chosen = rows[rank <= n]
    return chosen.iloc[::-1] if keep == "last" else chosen


def _most_of_groups(
    frame: Any, by: list[Hashable], column: Hashable, name: str, n: int, keep: str, dropna: bool
) -> Any:
    """The result for whole groups, as pandas has it."""
    frame = frame.sort_values(_ROW)
    if not is_cudf(frame):
        groups = frame.groupby(by, dropna=dropna, observed=True)
        return getattr(groups[column], name)(n, keep=keep)
    # cuDF has no such method
    rows = _candidates(frame, by, column, name, n, keep, dropna)
    labels = [*rows.index.names]
    rows = rows.assign(**{_LABEL: rows.index})
    ascending = [True] * len(by) + [name == "nsmallest", keep != "last"]
    rows = rows.sort_values([*by, column, _ROW], ascending=ascending)
    result = rows.set_index([*by, _LABEL])[column]
    result.index.names = [*by, *labels]
    return result


# by class of Dask; those that a class has already are wrapped instead
ADDED: dict[type, dict[str, Callable[..., Any]]] = {
    G.GroupBy: {f.__name__.strip("_"): f for f in (quantile, any_, all_, sem, nunique, describe)},
    G.SeriesGroupBy: {"nlargest": nlargest, "nsmallest": nsmallest},
}
