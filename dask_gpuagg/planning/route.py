"""How partial results are merged: by a tree, by an exchange, or not at all."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from dask.utils import format_bytes

from dask_gpuagg.planning.groups import GroupEstimate
from dask_gpuagg.planning.output_size import OutputSize

# Dask's limit: up to this number of partitions it reduces by a tree
FEW_PARTITIONS = 15


class Route(enum.Enum):
    """The way partials take to the partition that finalizes them; ``DIRECT`` without partials.

    ``NARROWED`` where rows stay, and brackets of quantiles are narrowed in two passes.
    """

    TREE = "tree"
    EXCHANGE = "exchange"
    RANGES = "ranges"
    ALIGNED = "aligned"
    DIRECT = "direct"
    NARROWED = "narrowed"


@dataclass(frozen=True, slots=True)
class Routing:
    """Route and number of outputs, with the reason.

    It can be used as ``split_out`` of Dask: calling it returns the number of outputs.

    Attributes
    ----------
    route : Route
    outputs : int
        Number of output partitions.
    reason : str
        Why, for ``explain()``.
    groups : int, optional
        Expected number of groups, where anything is known about it.
    bound : bool
        Whether there are at most that many.
    pair_bytes : int, optional
        Bytes of the distinct pairs that are merged, where a sample tells.
    """

    route: Route
    outputs: int
    reason: str
    groups: int | None = None
    bound: bool = False
    pair_bytes: int | None = None

    def __call__(self, npartitions: int) -> int:
        """The number of outputs, as Dask asks a callable ``split_out`` for it."""
        return self.outputs

    def __dask_tokenize__(self) -> str:
        return repr(self)

    def __str__(self) -> str:
        noun = "output" if self.outputs == 1 else "outputs"
        return f"{self.route.value} into {self.outputs} {noun}: {self.reason}"


def decide(estimate: GroupEstimate, npartitions: int, size: OutputSize) -> Routing:
    """Choose tree or exchange for a query whose ``split_out`` the user left open.

    Parameters
    ----------
    estimate : GroupEstimate
        What is known about the number of groups.
    npartitions : int
        Input partitions.
    size : OutputSize

    Returns
    -------
    Routing
    """
    groups = estimate.groups
    if npartitions == 1:
        return Routing(Route.TREE, 1, "one input partition", groups, estimate.bound)
    if groups is None:
        if npartitions <= FEW_PARTITIONS:
            reason = f"{npartitions} partitions are few; {estimate.how}"
            return Routing(Route.TREE, 1, reason)
        outputs = math.ceil(npartitions / FEW_PARTITIONS)
        return Routing(Route.EXCHANGE, outputs, f"many partitions; {estimate.how}")
    outputs = min(npartitions, size.outputs(groups))
    bound = "at most" if estimate.bound else "about"
    if outputs <= 1:
        reason = f"{bound} {groups:,} groups ({estimate.how})"
        return Routing(Route.TREE, 1, reason, groups, estimate.bound)
    nbytes, most = format_bytes(groups * size.row_bytes), format_bytes(size.most)
    reason = f"{bound} {groups:,} groups, {nbytes} ({estimate.how}); an output has at most {most}"
    return Routing(Route.EXCHANGE, outputs, reason, groups, estimate.bound)
