"""How partial results are merged: by a tree, by an exchange, or not at all."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dask.utils import format_bytes

from dask_gpuagg.planning.groups import GroupEstimate
from dask_gpuagg.planning.merge_size import MergeSize

# Dask's limit: up to this number of partitions it reduces by a tree
FEW_PARTITIONS = 15


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


def decide(estimate: GroupEstimate, npartitions: int, size: MergeSize, outputs: int) -> Routing:
    """Choose tree or exchange for a query whose ``split_out`` the user left open.

    Parameters
    ----------
    estimate : GroupEstimate
        What is known about the number of groups.
    npartitions : int
        Input partitions.
    size : MergeSize
    outputs : int
        As many as Dask announced.

    Returns
    -------
    Routing
    """
    groups = estimate.groups
    if npartitions == 1:
        return Routing(Route.TREE, outputs, "one input partition", groups, estimate.bound)
    if groups is None:
        if npartitions <= FEW_PARTITIONS:
            reason = f"{npartitions} partitions are few; {estimate.how}"
            return Routing(Route.TREE, outputs, reason)
        return Routing(Route.EXCHANGE, outputs, f"many partitions; {estimate.how}")
    pieces = min(npartitions, size.pieces_of(groups))
    bound = "at most" if estimate.bound else "about"
    if pieces <= 1:
        reason = f"{bound} {groups:,} groups ({estimate.how})"
        return Routing(Route.TREE, outputs, reason, groups, estimate.bound)
    nbytes, most = format_bytes(groups * size.row_bytes), format_bytes(size.merged)
    reason = f"{bound} {groups:,} groups, {nbytes} ({estimate.how}); one task merges up to {most}"
    return Routing(Route.EXCHANGE, outputs, reason, groups, estimate.bound, pieces=pieces)
