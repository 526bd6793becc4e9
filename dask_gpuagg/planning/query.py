"""The input of the planner: a group-by as read from a logical expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dask.dataframe.dask_expr._expr import Expr

from dask_gpuagg.cluster.preflight import current_client
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.plan import Plan
from dask_gpuagg.planning.chunking import chunked
from dask_gpuagg.planning.chunks import Chunks
from dask_gpuagg.settings import settings
from dask_gpuagg.streaming import choice
from dask_gpuagg.streaming.choice import refusal

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
    """

    plan: Plan
    frame: Expr
    by: list[Any]
    meta: Any
    split_every: Any
    shuffle_method: str | None
    shared: bool = False

    @property
    def chunks(self) -> Chunks | None:
        """The chunks in which the partitions are reduced, if there are any."""
        # in Python 3.11 a cached property would let all threads wait for one that asks a scheduler
        attributes = vars(self)
        if _CHUNKS not in attributes:
            attributes[_CHUNKS] = self._chunks_now()
        chunks: Chunks | None = attributes[_CHUNKS]
        return chunks

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
        streamed = not device and settings().engine == "device" and stays_on_host(plan) is None
        return chunked(self.frame, self.by, ordered, device, shared, columns, apart, streamed)


def stays_on_host(plan: Plan) -> str | None:
    """Why host partitions stay on the host; of a cluster's GPUs its workers know."""
    return refusal(plan) or (choice.obstacle() if current_client() is None else None)
