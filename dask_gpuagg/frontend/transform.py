"""``transform`` by the name of an aggregation: groups are aggregated, and looked up by the rows.

Dask shuffles all rows, so that each group is in one partition, and loses their order and the
divisions. Here the groups are aggregated as by ``.agg``, and each partition takes those of its rows
from the result: rows stay where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from dask._expr import Expr
from dask.dataframe.dask_expr._collection import new_collection
from dask.dataframe.dask_expr._expr import Blockwise

from dask_gpuagg.frontend.metadata import is_cudf
from dask_gpuagg.frontend.specification import on_own_labels
from dask_gpuagg.plan import Unsupported

# names that pandas' transform takes, of which each group has one value
_NAMES = frozenset(
    (
        *("sum", "prod", "mean", "count", "size", "min", "max", "first", "last"),
        *("var", "std", "sem", "nunique", "median", "any", "all"),
    )
)

# a table of labels has as many more places than groups
_CLOSE = 1 << 16


class GroupByLookup(Blockwise):
    """For each row of a partition the outputs of its group, which are all in one partition."""

    _parameters = ["frame", "groups", "meta"]

    @functools.cached_property
    def _meta(self) -> Any:
        return self.operand("meta")

    @functools.cached_property
    def _name(self) -> str:
        return f"gpuagg_lookup-{self.deterministic_token}"

    def _divisions(self) -> Any:
        return self.frame.divisions

    def _broadcast_dep(self, dep: Expr) -> bool:
        return bool(dep._name == self.groups._name)

    def _simplify_down(self) -> Any:
        keys = [key for key in self.operands[3:] if not isinstance(key, Expr)]
        if self.frame.ndim == 1:
            return None
        columns = [column for column in self.frame.columns if column in keys]
        # the labels of the rows are needed in any case
        columns = columns or list(self.frame.columns[:1])
        if columns == list(self.frame.columns):
            return None
        return type(self)(self.frame[columns], *self.operands[1:])

    @staticmethod
    def operation(frame: Any, groups: Any, meta: Any, *by: Any) -> Any:
        """Look up the groups of the rows; rows without a group get nulls."""
        keys = [_key(frame, key) for key in by]
        index = groups.index
        rows = pd.Index(keys[0]) if len(keys) == 1 else pd.MultiIndex.from_arrays(keys)
        if isinstance(index, pd.CategoricalIndex):
            rows = rows.astype(index.dtype)
        places = _places(index, rows)
        result = groups.reindex(rows) if places is None else groups.take(places)
        result.index = frame.index
        if result.ndim == 1:
            return result.rename(meta.name)
        result.columns = meta.columns
        return result


def _places(index: pd.Index, rows: pd.Index) -> Any:
    """The places of labels in an index of integers that lie close together; None for others."""
    if index.dtype.kind not in "iu" or rows.dtype != index.dtype or not len(index):
        return None
    low, length = index.min(), int(index.max()) - int(index.min()) + 1
    if length > 4 * len(index) + _CLOSE or rows.min() < low or rows.max() > index.max():
        return None
    table = np.full(length, -1)
    table[index.to_numpy() - low] = np.arange(len(index))
    places = table[rows.to_numpy() - low]
    return None if (places < 0).any() else places


def _key(frame: Any, key: Any) -> Any:
    """The values of a key in the rows of a partition: a column, an index level or a Series."""
    if isinstance(key, pd.Series):
        return key.array
    if callable(key):
        return frame.index.map(key)
    if frame.ndim == 2 and key in frame.columns:
        return frame[key].array
    return frame.index.get_level_values(key)


def _one_output(npartitions: int) -> int:
    """One output, by a rule as Dask has it: a number would say that the user asked for a tree."""
    return 1


def transform(original: Callable[..., Any], self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    """``transform`` of group-bys: a lookup of what ``.agg`` gives, or Dask's with a shuffle."""
    stock = original(self, func, *args, **kwargs)
    named = isinstance(func, str) and func in _NAMES
    plain = not args and kwargs.keys() <= {"meta"}
    if not (named and plain and stock.expr.need_to_shuffle) or is_cudf(self.obj._meta):
        return stock
    flags = {"sort": False, "observed": True, "dropna": self.dropna}
    groupby = on_own_labels(type(self)(self.obj, by=self.by, slice=self._slice, **flags))
    aggregate = groupby.size if func == "size" else functools.partial(groupby.agg, func)
    try:
        groups = aggregate(split_out=_one_output)
    except (Unsupported, NotImplementedError, TypeError, ValueError):
        return stock
    if groups.ndim != stock.ndim:
        return stock
    node = GroupByLookup(self.obj.expr, groups.expr, stock._meta, *self.by)
    return new_collection(node)
