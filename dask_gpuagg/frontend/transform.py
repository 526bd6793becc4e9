"""``transform`` by the name of an aggregation: groups are aggregated, and looked up by the rows.

Dask shuffles all rows, so that each group is in one partition, and loses their order and the
divisions. Here the groups are aggregated as by ``.agg``, and each partition takes those of its rows
from the result: rows stay where they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
from dask._expr import Expr
from dask.dataframe.dask_expr._collection import new_collection

from dask_gpuagg.cache import OfObjects
from dask_gpuagg.dtypes import is_plain
from dask_gpuagg.engines.host.grouping import group, take
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
    if is_cudf(frame):
        result = import_module("dask_gpuagg.engines.device.tables").looked_up(groups, keys)
    else:
        table, places = _by_integer(groups, keys) or (groups, _places(groups.index, keys))
        columns = [table] if table.ndim == 1 else [table.iloc[:, i] for i in range(table.shape[1])]
        result = pd.DataFrame(
            {i: take(_array(column), places) for i, column in enumerate(columns)}, copy=False
        )
    result.index = frame.index
    if meta.ndim == 1:
        return result.iloc[:, 0].rename(meta.name)
    result.columns = meta.columns
    return result


def _places(index: pd.Index, keys: list[pd.Series]) -> Any:
    """The places of the rows' keys in an index of groups, each distinct one looked up once."""
    rows = group(keys, dropna=False)
    columns = {f"k{i}": key for i, key in enumerate(rows.keys)}
    return places_in(index, pd.DataFrame(columns)).take(rows.codes)


def _array(column: pd.Series) -> Any:
    return column.to_numpy() if is_plain(column.dtype) else column.array


def _by_integer(groups: Any, keys: list[pd.Series]) -> tuple[Any, Any] | None:
    """A table, and the rows' places in it, where the key is one of NumPy's integers."""
    dtype = groups.index.dtype
    plain = isinstance(dtype, np.dtype) and dtype.kind in "iu"
    if len(keys) > 1 or keys[0].dtype != dtype or not (plain and len(groups)):
        return None
    labels = keys[0].to_numpy()
    # the same table for all partitions
    low, places, table = _tables.of(groups, lambda: _table_of(groups))
    if isinstance(places, pd.Index):
        return groups, places.get_indexer(labels)
    rows = _slots(labels, low)
    # a label below the lowest one is beyond the last place
    if rows.view(np.uint64).max(initial=0) >= len(places):
        return None
    return (groups, places.take(rows)) if table is None else (table, rows)


def _table_of(groups: Any) -> tuple[int, Any, Any]:
    """The smallest label, the place of each from there on, and the groups by label.

    Distant labels are hashed. There is no table whose nulls would change a dtype.
    """
    labels = groups.index.to_numpy()
    low, high = int(labels.min()), int(labels.max())
    if high - low >= 4 * len(labels) + _CLOSE:
        # an index of its own, hashed before another thread sees it
        index = pd.Index(labels, copy=False)
        index.get_indexer(labels[:1])
        return low, index, None
    places = np.full(high - low + 1, -1)
    places[_slots(labels, low)] = np.arange(len(labels))
    table = groups.reset_index(drop=True).reindex(places)
    same = table.dtype == groups.dtype if table.ndim == 1 else table.dtypes.equals(groups.dtypes)
    return low, places, table if same else None


def _slots(labels: Any, low: int) -> Any:
    """Distances from the smallest label, which may be beyond the labels' own dtype."""
    wide = labels.dtype if labels.dtype.itemsize == 8 else np.int64
    return (labels.astype(wide, copy=False) - low).view(np.int64)


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
    if not (named and plain and stock.expr.need_to_shuffle):
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
