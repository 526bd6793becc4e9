"""The input of the planner: a group-by as read from a logical expression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.dataframe.dask_expr._expr import Expr

from dask_gpuagg.cluster.preflight import current_client
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.plan import Column, Plan, Unsupported
from dask_gpuagg.planning.chunking import chunked
from dask_gpuagg.planning.chunks import Chunks
from dask_gpuagg.settings import settings
from dask_gpuagg.states import STATES
from dask_gpuagg.streaming import choice
from dask_gpuagg.streaming.support import refusal

_CHUNKS = "_chunks"


@dataclass(frozen=True)
class GroupByQuery:
    """A logical group-by: its plan, its input and what the user asked of its merging.

    Attributes
    ----------
    plan : Plan
    frame : Expr
        The input.
    by : list
        Labels, expressions or callables, one per key.
    meta : DataFrame or Series
        Of the result, empty.
    split_every : int, False or None
    shuffle_method : str, optional
    shared : bool
        Whether another part of the same computation reads the input.
    finest : Plan, optional
        Of the groups by all of ``by``, whose states are folded to those of ``plan``.
    kept : tuple of int
        Which of its keys are those of ``plan``, in their order; none where ``plan`` has one group.
    """

    plan: Plan
    frame: Expr
    by: list[Any]
    meta: Any
    split_every: Any
    shuffle_method: str | None
    shared: bool = False
    finest: Plan | None = None
    kept: tuple[int, ...] = ()

    @property
    def chunks(self) -> Chunks | None:
        """The chunks in which the partitions are reduced, if there are any."""
        # in Python 3.11 a cached property would let all threads wait for one that asks a scheduler
        kept = vars(self)
        if _CHUNKS not in kept:
            kept[_CHUNKS] = self._chunks_now()
        made: Chunks | None = kept[_CHUNKS]
        return made

    def _chunks_now(self) -> Chunks | None:
        plan = self.plan
        # row labels are Dask's, and users' functions may write to what they are given
        as_dask = any(use.state in ("idxmin", "idxmax", "custom") for use in plan.states)
        columns = None if as_dask else [column.label for column in plan.columns]
        apart = plan.tables != ("groups",)
        if columns is not None and (apart or plan.shape == "values"):
            columns += [key.label for key in plan.keys]  # keys of rows, not of groups
        device = engine_name(self.meta) == DEVICE
        ordered, shared = plan.order_sensitive, self.shared
        streamed = not device and _is_streamed(plan)
        return chunked(self.frame, self.by, ordered, device, shared, columns, apart, streamed)


def folded(query: GroupByQuery, kept: tuple[int, ...]) -> GroupByQuery:
    """The query for groups by some of its keys, made of the states of its groups.

    Raises
    ------
    Unsupported
        For aggregations of which the states depend on the order of rows.
    """
    plan = query.plan
    for output in plan.outputs:
        if any(STATES[plan.states[i].state].order_sensitive for i in output.states):
            name = output.custom.name if output.custom else output.aggregation
            text = f"{name} may depend on the order of rows, which groups do not have"
            raise Unsupported(text, output.aggregation)
    if plan.shape != "groups" or not plan.observed:
        raise Unsupported("grouping sets are of groups that rows have")
    keys = tuple(plan.keys[i] for i in kept) or (Column("all rows", np.dtype("int8")),)
    # a row with a null key belongs to groups by its other keys
    finest = replace(plan, dropna=False, sort=False)
    return replace(query, plan=replace(plan, keys=keys), finest=finest, kept=kept)


def _is_streamed(plan: Plan) -> bool:
    """Whether the host partitions of a plan are streamed through a GPU."""
    return settings().engine == "device" and stays_on_host(plan) is None


def stays_on_host(plan: Plan) -> str | None:
    """Why host partitions stay on the host; of a cluster's GPUs its workers know."""
    return refusal(plan) or (choice.obstacle() if current_client() is None else None)
