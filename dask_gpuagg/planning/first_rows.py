"""The physical nodes of ``head`` and ``tail`` of groups: a tree of rows."""

from __future__ import annotations

from typing import Any

from dask._task_spec import Task
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr._reductions import TreeReduce

from dask_gpuagg.planning.nodes import GroupByPartial
from dask_gpuagg.planning.query import GroupByQuery
from dask_gpuagg.tasks.first_rows import gpuagg_rows, gpuagg_rows_combine, gpuagg_rows_finish


class GroupByRows(GroupByPartial):
    """The first or last rows of each group of every partition; the last operands are the keys."""

    _parameters = ["frame", "plan", "n", "last", "columns"]
    operation = staticmethod(gpuagg_rows)

    def _task(self, name: Any, index: int) -> Task:
        args = [self._blockwise_arg(op, index) for op in self._args]
        given = {"plan": self.plan, "n": self.n, "last": self.last}
        return Task(name, gpuagg_rows, *args, columns=self.operand("columns"), **given)


def rows_of_groups(query: GroupByQuery, n: int, last: bool, columns: Any) -> Expr:
    """The nodes of one ``head`` or ``tail``.

    Parameters
    ----------
    query : GroupByQuery
        Its plan has the keys alone.
    n : int
    last : bool
    columns : label, list of labels, or None
    """
    rows = GroupByRows(query.frame, query.plan, n, last, columns, *query.by)
    given = {"plan": query.plan, "n": n, "last": last}
    steps = (gpuagg_rows_combine, gpuagg_rows_finish, given, given)
    return TreeReduce(rows, GroupByRows, query.meta, *steps, query.split_every)
