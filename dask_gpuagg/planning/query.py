"""The input of the planner: a group-by as read from a logical expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask.dataframe.dask_expr._expr import Expr

from dask_gpuagg.plan import Plan


@dataclass(frozen=True, slots=True)
class GroupByQuery:
    """A logical group-by: its plan, its input and what the user asked of its outputs.

    Attributes
    ----------
    plan : Plan
    frame : Expr
        The input.
    by : list
        Labels, expressions or callables, one per key.
    meta : DataFrame or Series
        Of the result, empty.
    split_out : int, bool, callable or None
        As the user or Dask's tuning left it.
    split_every : int, False or None
    shuffle_method : str, optional
    shared : bool
        Whether another part of the same computation reads the input.
    """

    plan: Plan
    frame: Expr
    by: list[Any]
    meta: Any
    split_out: Any
    split_every: Any
    shuffle_method: str | None
    shared: bool = False
