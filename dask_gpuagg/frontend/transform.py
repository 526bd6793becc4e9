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

from dask_gpuagg.cache import OfObjects
from dask_gpuagg.frontend.extended import GroupByCompleted, places_in
from dask_gpuagg.frontend.metadata import is_cudf
from dask_gpuagg.frontend.specification import on_own_labels
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.tasks.partials import key_of

# names that pandas' transform takes, of which each group has one value
_NAMES = frozenset(
    (
        *("sum", "prod", "mean", "count", "size", "min", "max", "first", "last"),
        *("var", "std", "sem", "nunique", "median", "any", "all"),
    )
)

# a table of labels has as many more places than groups
_CLOSE = 1 << 16


# tables of the latest groups: the tasks of a process have the same ones
_tables: OfObjects[Any] = OfObjects(2)


def gpuagg_lookup(frame: Any, groups: Any, meta: Any, *by: Any) -> Any:
    """Task: the groups of the rows of a partition; rows without a group get nulls."""
    keys = [key_of(frame, key) for key in by]
    places = _by_table(groups.index, keys)
    if places is None:
        columns = {f"k{i}": key.array for i, key in enumerate(keys)}
        places = places_in(groups.index, pd.DataFrame(columns))
    result = groups.set_axis(range(len(groups)), axis=0)
    result = result.reindex(places) if (places < 0).any() else result.take(places)
    result.index = frame.index
    if result.ndim == 1:
        return result.rename(meta.name)
    result.columns = meta.columns
    return result


def _by_table(index: pd.Index, keys: list[pd.Series]) -> Any:
    """The places of NumPy's integers that lie close together, by addresses; None for others."""
    rows = keys[0].to_numpy() if len(keys) == 1 and keys[0].dtype == index.dtype else None
    plain = isinstance(index.dtype, np.dtype) and index.dtype.kind in "iu"
    if rows is None or not plain or not len(rows) or not len(index):
        return None
    low, table = _tables.of(index, lambda: _table_of(index))
    # Python's integers do not overflow
    if table is None or int(rows.min()) < low or int(rows.max()) - low >= len(table):
        return None
    return table[rows - low]


def _table_of(index: pd.Index) -> tuple[int, Any]:
    """The smallest label, and the place of each one from there on; no table of distant ones."""
    low = int(index.min())
    length = int(index.max()) - low + 1
    if length > 4 * len(index) + _CLOSE:
        return low, None
    table = np.full(length, -1)
    table[index.to_numpy() - low] = np.arange(len(index))
    return low, table


class GroupByLookup(GroupByCompleted):
    """For each row of a partition the outputs of its group, which are all in one partition."""

    _parameters = ["frame", "groups", "meta"]
    operation = staticmethod(gpuagg_lookup)

    def _divisions(self) -> Any:
        return self.frame.divisions

    def _broadcast_dep(self, dep: Expr) -> bool:
        return bool(dep._name == self.groups._name)

    def _simplify_down(self) -> Any:
        if self.frame.ndim == 1:
            return None
        keys = [key for key in self.operands[3:] if not isinstance(key, Expr)]
        # where all keys are expressions, the labels of the rows are needed all the same
        columns = [c for c in self.frame.columns if c in keys] or list(self.frame.columns[:1])
        if columns == list(self.frame.columns):
            return None
        return type(self)(self.frame[columns], *self.operands[1:])


def one_output(npartitions: int) -> int:
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
        groups = aggregate(split_out=one_output)
    except (Unsupported, NotImplementedError, TypeError, ValueError):
        return stock
    if groups.ndim != stock.ndim:
        return stock
    node = GroupByLookup(self.obj.expr, groups.expr, stock._meta, *self.by)
    return new_collection(node)
