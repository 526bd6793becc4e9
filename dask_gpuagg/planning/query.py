"""The input of the planner, a group-by as read from a logical expression, and its decision."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from dask.dataframe.dask_expr._expr import Expr

from dask_gpuagg.cluster import current_client
from dask_gpuagg.engines import DEVICE, HOST, engine_name
from dask_gpuagg.plan import Plan
from dask_gpuagg.planning.chunks import Chunks, chunked
from dask_gpuagg.settings import settings
from dask_gpuagg.streaming import choice


class Route(enum.Enum):
    """The way partials take to the partition that finalizes them; ``DIRECT`` without partials.

    ``NARROWED`` where rows stay, and brackets of quantiles are narrowed in two passes.
    """

    TREE = "tree"
    EXCHANGE = "exchange"
    ALIGNED = "aligned"
    DIRECT = "direct"
    NARROWED = "narrowed"


@dataclass(frozen=True, slots=True)
class Routing:
    """Route of the partials to the outputs that Dask announced, with the reason.

    Attributes
    ----------
    route : Route
    outputs : int
        Number of output partitions, as Dask announced it.
    reason : str
        Why, for ``explain()``.
    groups : int, optional
        Expected number of groups, where anything is known about it.
    bound : bool
        Whether there are at most that many.
    pair_bytes : int, optional
        Bytes of the distinct pairs that are merged, where a sample tells.
    pieces : int
        Tasks that merge the groups of an exchange, before their results are gathered in the
        outputs; never fewer than those.
    """

    route: Route
    outputs: int
    reason: str
    groups: int | None = None
    bound: bool = False
    pair_bytes: int | None = None
    pieces: int = 1

    def __dask_tokenize__(self) -> str:
        return repr(self)

    def __str__(self) -> str:
        noun = "output" if self.outputs == 1 else "outputs"
        return f"{self.route.value} into {self.outputs} {noun}: {self.reason}"


@dataclass(frozen=True)
class GroupByQuery:
    """A logical group-by: its plan, its input and what the user asked of its merging.

    A key is a label, an expression or a callable; ``meta`` is the empty result. ``shared`` says
    whether another part of the same computation reads the input.
    """

    plan: Plan
    frame: Expr
    by: list[Any]
    meta: Any
    split_every: Any
    shuffle_method: str | None
    shared: bool = False

    @property
    def on_device(self) -> bool:
        """Whether partitions are grouped by the device engine, as partitions of cuDF."""
        return engine_name(self.meta) == DEVICE

    @property
    def chunks(self) -> Chunks | None:
        """The chunks in which the partitions are reduced, if there are any."""
        # in Python 3.11 a cached property would let all threads wait for one that asks a scheduler
        attributes = vars(self)
        if "_chunks" not in attributes:
            attributes["_chunks"] = self._chunks_now()
        chunks: Chunks | None = attributes["_chunks"]
        return chunks

    def _chunks_now(self) -> Chunks | None:
        plan, device = self.plan, self.on_device
        # row labels are Dask's, and users' functions may write to what they are given
        as_dask = any(use.state in ("idxmin", "idxmax", "custom") for use in plan.states)
        columns = None if as_dask else [column.label for column in plan.columns]
        apart = not plan.is_one_table
        if columns is not None and (apart or plan.shape == "values"):
            columns += [key.label for key in plan.keys]  # keys of rows, not of groups
        return chunked(
            self.frame,
            self.by,
            in_order=plan.order_sensitive,
            device=device,
            shared=self.shared,
            columns=columns,
            apart=apart,
            streamed=not device and settings().engine == "device" and stays_on_host(plan) is None,
        )


def stays_on_host(plan: Plan) -> str | None:
    """Why host partitions stay on the host; of a cluster's GPUs its workers know."""
    return choice.refusal(plan) or (choice.obstacle() if current_client() is None else None)


def where_it_runs(query: GroupByQuery) -> str | None:
    """The engine of a query, as ``explain()`` names it."""
    if query.on_device or settings().engine != "device":
        return engine_name(query.meta)
    reason = stays_on_host(query.plan)
    return f"{HOST}: {reason}" if reason else f"{DEVICE}, host partitions are streamed through it"
