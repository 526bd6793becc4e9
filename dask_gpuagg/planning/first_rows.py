"""The physical nodes of ``head`` and ``tail`` of groups: a tree of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask._task_spec import Task
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr._reductions import TreeReduce

from dask_gpuagg.plan import Column, Plan, StateUse
from dask_gpuagg.planning.nodes import GroupByPartial
from dask_gpuagg.tasks.first_rows import gpuagg_rows, gpuagg_rows_combine, gpuagg_rows_finish


class GroupByRows(GroupByPartial):
    """The first or last rows of each group of every partition; the last operands are the keys."""

    _parameters = ["frame", "plan", "n", "last", "columns"]
    operation = staticmethod(gpuagg_rows)

    def _task(self, name: Any, index: int) -> Task:
        args = [self._blockwise_arg(op, index) for op in self._args]
        given = {"plan": self.plan, "n": self.n, "last": self.last}
        return Task(name, gpuagg_rows, *args, columns=self.operand("columns"), **given)


def rows_of_groups(
    frame: Expr,
    by: Sequence[Any],
    keys: Sequence[Column],
    meta: Any,
    *,
    n: int,
    last: bool,
    dropna: bool,
    columns: Any,
    split_every: Any,
) -> Expr:
    """The nodes of one ``head`` or ``tail``.

    Parameters
    ----------
    frame : Expr
    by : sequence
        Labels, expressions or callables, one per key.
    keys : sequence of Column
        Their labels and dtypes.
    meta : DataFrame or Series
        Of the result, empty.
    n : int
    last : bool
    dropna : bool
    columns : label, list of labels, or None
    split_every : int, False or None
    """
    plan = Plan(tuple(keys), (), (StateUse("size", ()),), (), dropna=dropna)
    rows = GroupByRows(frame, plan, n, last, columns, *by)
    given = {"plan": plan, "n": n, "last": last}
    steps = (gpuagg_rows_combine, gpuagg_rows_finish, given, given)
    return TreeReduce(rows, GroupByRows, meta, *steps, split_every)
