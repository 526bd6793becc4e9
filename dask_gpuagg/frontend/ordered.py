"""Calls that depend on the order of the rows of a group: ``shift``, ``ffill``, ``rolling``, others.

Dask shuffles rows by key, and no shuffle keeps their order: here rows are numbered before it and
sorted by their numbers after it. For ``rolling`` Dask takes rows of the partition before, which may
have none of the group: here each partition gets the last rows of every group before it.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from dask._task_spec import Task, TaskRef
from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._expr import Blockwise, Expr
from dask.dataframe.dask_expr._shuffle import RearrangeByColumn

from dask_gpuagg.frontend.metadata import is_cudf

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


def lower_apply(original: Callable[..., Any], self: Any) -> Any:
    """Lower ``apply``, ``transform``, ``shift``, ``ffill`` or ``bfill``: Dask's, rows in order."""
    lowered = original(self)
    if isinstance(self, G.Median) or not self.need_to_shuffle or is_cudf(self.frame._meta):
        return lowered
    before = {node._name for node in self.walk()}
    shuffles = lowered.find_operations(RearrangeByColumn)
    (shuffle,) = (node for node in shuffles if node._name not in before)
    # rows are in order already: ``shift`` would sort them by their labels
    lowered = lowered.substitute_parameters({"dask_func": self._shuffle_grp_func(False)})
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
