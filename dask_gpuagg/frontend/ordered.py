"""Calls that give each row a value: ``shift``, ``ffill``, ``rolling``, ``transform``.

Dask shuffles rows by key, and no shuffle keeps their order: here rows are numbered before it and
sorted by their numbers after it. For ``rolling`` Dask takes rows of the partition before, which may
have none of the group: here each partition gets the last rows of every group before it.
"""

import functools
from collections.abc import Callable
from importlib import import_module
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from dask._task_spec import Task, TaskRef
from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._collection import new_collection
from dask.dataframe.dask_expr._expr import Blockwise, Expr
from dask.dataframe.dask_expr._shuffle import RearrangeByColumn

from dask_gpuagg.cache import OfObjects
from dask_gpuagg.dtypes import is_plain
from dask_gpuagg.engines.host.grouping import group, take
from dask_gpuagg.frontend.extended import GroupByCompleted, places_in
from dask_gpuagg.frontend.metadata import is_cudf
from dask_gpuagg.frontend.specification import on_own_labels
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.tasks.partials import key_of

_NUMBER = "gpuagg row number"
# more rows than a partition has
_ROWS_OF_A_PARTITION = 1 << 40


def number_rows(frame: Any, first: int = 0) -> Any:
    """Task: a partition with a column of row numbers."""
    return frame.assign(**{_NUMBER: np.arange(first, first + len(frame))})


def in_order(frame: Any) -> Any:
    """Task: the rows of a partition by their numbers, which are left out."""
    return frame.sort_values(_NUMBER).drop(columns=_NUMBER)


class NumberedRows(Blockwise):
    """A frame with a column of row numbers."""

    _parameters = ["frame"]
    operation = staticmethod(number_rows)

    def _task(self, name: Any, index: int) -> Task:
        frame = self._blockwise_arg(self.frame, index)
        return Task(name, number_rows, frame, index * _ROWS_OF_A_PARTITION)


class RowsInOrder(Blockwise):
    """A shuffled frame of numbered rows as it was before, partition by partition."""

    _parameters = ["frame"]
    operation = staticmethod(in_order)


def transformed(frame: Any, by: list[Any], *, func: Any, meta: Any, **kwargs: Any) -> Any:
    """Task: what Dask's function makes of a partition; nulls for rows of null keys alone.

    Of these pandas gives no row, or raises.
    """
    if kwargs.get("dropna") is not False and len(frame):
        nulls = [key_of(frame, b).isna() for b in by]
        if np.logical_or.reduce(nulls).all():
            return meta.reindex(frame.index)
    return func(frame, by, **kwargs)


def lower_apply(original: Callable[..., Any], self: Any) -> Any:
    """Lower ``apply``, ``transform``, ``shift``, ``ffill`` or ``bfill``: Dask's, rows in order."""
    lowered = original(self)
    if isinstance(self, G.Median) or not self.need_to_shuffle or is_cudf(self.frame._meta):
        return lowered
    before = {node._name for node in self.walk()}
    shuffles = lowered.find_operations(RearrangeByColumn)
    (shuffle,) = (node for node in shuffles if node._name not in before)
    # rows are in order already: ``shift`` would sort them by their labels
    func = self._shuffle_grp_func(False)
    if isinstance(self, G.GroupByTransform):
        func = functools.partial(transformed, func=func, meta=self._meta)
    lowered = lowered.substitute_parameters({"dask_func": func})
    numbered = RearrangeByColumn(NumberedRows(shuffle.frame), *shuffle.operands[1:])
    return lowered.substitute(shuffle, RowsInOrder(numbered))


class _Rolling(NamedTuple):
    """Arguments of a group-by's windows, by the names of Dask's operands."""

    groupby_kwargs: dict[str, Any]
    groupby_slice: Any
    window: Any
    kwargs: dict[str, Any]
    how: str
    how_args: Any
    how_kwargs: Any


def last_rows(frame: Any, before: Any, rolling: _Rolling) -> Any:
    """Task: of the rows of some partitions those that windows of later rows may have."""
    frame = frame if before is None else pd.concat([before, frame])
    if isinstance(rolling.window, Integral):
        return frame.groupby(**rolling.groupby_kwargs).tail(int(rolling.window) - 1)
    return frame[frame.index > frame.index.max() - pd.Timedelta(rolling.window)]


def rolled(frame: Any, before: Any, rolling: Any) -> Any:
    """Task: the windows of a partition, which begin in the last rows before it."""
    skipped = 0 if before is None else len(before)
    rows_of_all = pd.concat([before, frame]) if skipped else frame
    grouped = rows_of_all.groupby(**rolling.groupby_kwargs)
    if not grouped.indices:  # of null keys alone, for which pandas raises
        grouped, skipped = rows_of_all[:0].groupby(**rolling.groupby_kwargs), 0
    # the order in which pandas gives windows
    rows = np.concatenate([np.empty(0, np.int64), *grouped.indices.values()])
    grouped = grouped[rolling.groupby_slice] if rolling.groupby_slice else grouped
    windows = grouped.rolling(rolling.window, **rolling.kwargs)
    result = getattr(windows, rolling.how)(*rolling.how_args, **(rolling.how_kwargs or {}))
    return result[rows >= skipped].sort_index(level=-1)


class GroupByRolling(Expr):
    """Windows of the rows of groups; each partition has the last rows of those before it."""

    _parameters = ["frame", "rolling", "meta"]

    @property
    def _meta(self) -> Any:
        return self.meta

    def _divisions(self) -> Any:
        return self.frame.divisions

    def _layer(self) -> dict[Any, Task]:
        layer: dict[Any, Task] = {}
        before: TaskRef | None = None
        for i in range(self.npartitions):
            frame = TaskRef((self.frame._name, i))
            layer[self._name, i] = Task((self._name, i), rolled, frame, before, self.rolling)
            if i + 1 < self.npartitions:
                carry = (f"last_rows-{self.deterministic_token}", i)
                layer[carry] = Task(carry, last_rows, frame, before, self.rolling)
                before = TaskRef(carry)
        return layer


def lower_rolling(original: Callable[..., Any], self: Any) -> Any:
    """Lower ``rolling`` of a group-by, with the rows of each group that lie before a partition."""
    by = (self.groupby_kwargs or {}).get("by", ())
    plain = by and all(not isinstance(b, Expr) and b in self.frame.columns for b in by)
    if not plain or self.kwargs.get("center") or self.how == "cov" or is_cudf(self.frame._meta):
        return original(self)
    rolling = _Rolling(*(getattr(self, name) for name in _Rolling._fields))
    # pandas takes Dask's None for False
    flags = {name: flag for name, flag in self.groupby_kwargs.items() if flag is not None}
    return GroupByRolling(self.frame, rolling._replace(groupby_kwargs=flags), self._meta)


# ``transform`` by the name of an aggregation. Dask shuffles all rows, so that each group is in one
# partition, and loses their order and the divisions. Here the groups are aggregated as by ``.agg``,
# and each partition takes those of its rows from the result: rows stay where they are.

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
        arrays = (c.to_numpy() if is_plain(c.dtype) else c.array for c in columns)
        taken = {i: take(array, places) for i, array in enumerate(arrays)}
        result = pd.DataFrame(taken, copy=False)
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


def all_groups(groups: Any) -> Any:
    """Task: the groups of all rows, as they are."""
    return groups


class AllGroups(Blockwise):
    """Groups in one partition, as if they were a scalar: a lookup is aligned with its rows."""

    _parameters = ["frame"]
    _meta = None
    operation = staticmethod(all_groups)


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
    node = GroupByLookup(self.obj.expr, AllGroups(groups.expr), stock._meta, *self.by)
    return new_collection(node)
