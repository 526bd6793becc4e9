"""How partial results are merged: by a tree, by an exchange, or not at all."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._merge import BroadcastJoin, HashJoinP2P, Merge
from dask.dataframe.dask_expr._shuffle import ShuffleBase
from dask.utils import format_bytes, get_default_shuffle_method

from dask_gpuagg.cluster import protocol
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.planning.bucketing import bytes_of_a_row, gpus, size_of
from dask_gpuagg.planning.estimates import FEW_PARTITIONS, GroupEstimate, estimate_groups
from dask_gpuagg.planning.query import GroupByQuery, Route, Routing

# "Partitions of around 100 MB", Dask's best practices
BYTES_ON_HOST = 100_000_000
# Threads merge larger results faster in pieces, whose tables fit the caches of a core; two pieces
# gain nothing over one. Through p2p, which copies and serializes them, one is faster than several.
# The notebook has the figures.
MERGED_ON_HOST = 16 << 20
PIECES_ON_HOST = (4, 16)
# Pieces of a result that fill a GPU.
PIECES_OF_A_GPU = 32
# What one GPU receives from the others, and merges, in the time that the additional tasks of an
# exchange take: through the host, and directly. The notebook has the figures.
MOVED_TO_ONE_GPU = 64 << 20
MOVED_DIRECTLY = 1 << 30
_DIRECT = ("ucx", "ucxx")


@dataclass(frozen=True, slots=True)
class MergeSize:
    """The bytes that decide between merging in one task and an exchange.

    Those of one group in a result; of one piece of an exchange, at most; and of a result that one
    task merges: more are exchanged. An exchange has at least so many pieces, and no more than the
    other number that serve speed alone.
    """

    row_bytes: int
    piece_bytes: int
    merged: int
    max_pieces: int = 1
    min_pieces: int = 1

    @property
    def groups(self) -> int:
        """The most groups of a result that one task merges."""
        return min(self.merged, self.piece_bytes) // self.row_bytes

    def pieces_of(self, groups: int) -> int:
        """Number of tasks that merge a result of so many groups."""
        if groups <= self.groups:
            return 1
        nbytes = groups * self.row_bytes
        for_speed = min(math.ceil(nbytes / self.merged), self.max_pieces)
        return max(math.ceil(nbytes / self.piece_bytes), for_speed, self.min_pieces)


def merge_size(query: GroupByQuery, workers: int | None = None) -> MergeSize:
    """The sizes for a query."""
    row_bytes = bytes_of_a_group(query)
    if not query.on_device:
        min_pieces, max_pieces = PIECES_ON_HOST
        merged = BYTES_ON_HOST if get_default_shuffle_method() == "p2p" else MERGED_ON_HOST
        return MergeSize(row_bytes, BYTES_ON_HOST, merged, max_pieces, min_pieces)
    number, memory = gpus()
    number = number if workers is None else workers
    piece_bytes = memory // PIECES_OF_A_GPU or BYTES_ON_HOST
    if number <= 1:
        return MergeSize(row_bytes, piece_bytes, piece_bytes)
    moved = MOVED_DIRECTLY if protocol() in _DIRECT else MOVED_TO_ONE_GPU
    return MergeSize(row_bytes, piece_bytes, moved // (number - 1), number, number)


def bytes_of_a_group(query: GroupByQuery) -> int:
    """Bytes of one group in the result of a query: its keys and outputs, roughly."""
    keys = sum(size_of(key.dtype) for key in query.plan.keys)
    return max(keys + bytes_of_a_row(query.meta), 1)


def choose_route(query: GroupByQuery, outputs: int) -> Routing:
    """Decide on tree or exchange where the user left ``split_out`` open."""
    chunks = query.chunks
    if chunks is not None and len(chunks) == 1:
        return Routing(Route.TREE, outputs, "one task takes all partitions")
    size = merge_size(query, None if chunks is None else chunks.workers)
    of_gpus = chunks if query.on_device else None
    if of_gpus is not None and (query.plan.rows or query.plan.pairs):
        # few groups say nothing about partials of rows or distinct pairs
        estimate = GroupEstimate(None, False, "partials are as large as partitions")
    else:
        estimate = estimate_groups(query, size.groups, of_gpus)
    if of_gpus is not None and estimate.groups is None:
        number, how = of_gpus.workers, estimate.how
        if number == 1:
            return Routing(Route.TREE, outputs, f"one GPU has all groups; {how}")
        return Routing(Route.EXCHANGE, outputs, f"a piece for each GPU; {how}", pieces=number)
    decision = decide(estimate, query.frame.npartitions, size, outputs)
    if estimate.pair_bytes is None:
        return decision
    reason = f"{decision.reason}; about {format_bytes(estimate.pair_bytes)} of distinct pairs"
    return replace(decision, reason=reason, pair_bytes=estimate.pair_bytes)


def route(query: GroupByQuery, expr: Any) -> Routing:
    """Decide how the partials of a query, read from a logical node, reach its outputs."""
    npartitions = query.frame.npartitions
    if isinstance(expr, G.Median):
        # Dask fixes the number of outputs of .median() in the logical node, as 0 where split_every
        # is above the number of partitions
        outputs = max(expr.npartitions, 1)
        kind = Route.TREE if outputs == 1 and npartitions == 1 else Route.EXCHANGE
        decision = Routing(kind, outputs, "whole groups are brought together")
        is_aligned = outputs > 1 and _is_partitioned(expr, query.plan.dropna, outputs)
        return _aligned(decision) if is_aligned else decision
    if query.plan.sort:
        return Routing(Route.TREE, 1, "sort=True asks for one sorted output")
    split_out = expr.operand("split_out") if "split_out" in expr._parameters else None
    if split_out is None:
        return Routing(Route.TREE, 1, "lowered without Dask's tuning step")
    outputs = expr.split_out
    if outputs is not True and not (isinstance(outputs, int | np.integer) and outputs > 0):
        raise Unsupported(f"split_out={outputs!r} is no number of outputs")
    outputs = npartitions if outputs is True else int(outputs)
    if (outputs > 1 or split_out is True) and _is_partitioned(expr, query.plan.dropna, outputs):
        how = "Dask's own rule" if callable(split_out) else f"split_out={split_out} was asked for"
        return _aligned(Routing(Route.EXCHANGE, outputs, how))
    if callable(split_out):
        return choose_route(query, outputs)
    kind = Route.TREE if outputs == 1 and split_out is not True else Route.EXCHANGE
    if split_out is True and isinstance(expr, G.NUnique):
        return Routing(kind, outputs, "split_out=True, as Dask has it for nunique")
    return Routing(kind, outputs, f"split_out={split_out} was asked for")


def _aligned(decision: Routing) -> Routing:
    reason = f"the input is partitioned by the keys; {decision.reason}"
    return replace(decision, route=Route.ALIGNED, reason=reason)


def _is_partitioned(expr: Any, dropna: bool, outputs: int) -> bool:
    """Whether the rows of each key are in one partition of the input, which has enough of them.

    Dask takes any merge for partitioned by the keys of both sides. But where it sends one side to
    all partitions of the other, these stay; rows without a partner have null keys in all of them.
    """
    has_enough = expr.frame.npartitions >= outputs
    return has_enough and not expr.need_to_shuffle and not _is_scattered(expr.frame, dropna)


def _is_scattered(node: Any, dropna: bool) -> bool:
    if isinstance(node, BroadcastJoin):
        return True
    if isinstance(node, ShuffleBase | HashJoinP2P):
        return False
    if isinstance(node, Merge) and not node._is_single_partition_broadcast:
        without_partner = node.how not in ("inner", "leftsemi") and node.left_on != node.right_on
        return bool(node.is_broadcast_join or (without_partner and not dropna))
    return any(_is_scattered(below, dropna) for below in node.dependencies())


def decide(estimate: GroupEstimate, npartitions: int, size: MergeSize, outputs: int) -> Routing:
    """Choose tree or exchange for a query whose ``split_out`` the user left open."""
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
    nbytes, merged = format_bytes(groups * size.row_bytes), format_bytes(size.merged)
    reason = f"{bound} {groups:,} groups, {nbytes} ({estimate.how}); one task merges up to {merged}"
    return Routing(Route.EXCHANGE, outputs, reason, groups, estimate.bound, pieces=pieces)
