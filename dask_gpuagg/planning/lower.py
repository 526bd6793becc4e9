"""From a logical group-by to physical nodes: the decision and the expressions it leads to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import dask
import numpy as np
from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr._merge import BroadcastJoin, HashJoinP2P, Merge
from dask.dataframe.dask_expr._repartition import Repartition
from dask.dataframe.dask_expr._shuffle import Shuffle, ShuffleBase
from dask.utils import format_bytes, get_default_shuffle_method

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.engines.device.support import of_rows, one_pass
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.planning.bucketing import CHUNKS_OF_A_GPU, gpus
from dask_gpuagg.planning.chunks import Chunks
from dask_gpuagg.planning.groups import GroupEstimate, dtype_bound
from dask_gpuagg.planning.merge_size import (
    BYTES_ON_HOST,
    PIECES_OF_A_GPU,
    bytes_of_a_group,
    merge_size,
)
from dask_gpuagg.planning.narrowing import narrowed
from dask_gpuagg.planning.nodes import (
    GroupByChunkDirect,
    GroupByChunks,
    GroupByDirect,
    GroupByDivide,
    GroupByExchange,
    GroupByGather,
    GroupByMerge,
    GroupByPartial,
    GroupByPieces,
    GroupByTree,
    Promised,
)
from dask_gpuagg.planning.query import GroupByQuery, stays_on_host
from dask_gpuagg.planning.route import Route, Routing, decide
from dask_gpuagg.planning.samples import estimate_groups
from dask_gpuagg.settings import settings
from dask_gpuagg.tasks.tasks import PARTITION

# Tasks that merge distinct pairs where one would do: a few for each core of a laptop.
_PIECES_OF_PAIRS = 8


def choose_route(query: GroupByQuery, outputs: int) -> Routing:
    """Decide on tree or exchange where the user left ``split_out`` open.

    Parameters
    ----------
    query : GroupByQuery
    outputs : int
        As many as Dask announced.

    Returns
    -------
    Routing
    """
    chunks = query.chunks
    if chunks is not None and len(chunks) == 1:
        return Routing(Route.TREE, outputs, "one task takes all partitions")
    size = merge_size(query, None if chunks is None else chunks.workers)
    if chunks is None or engine_name(query.meta) != DEVICE:
        estimate = estimate_groups(query, size.groups)
    else:
        # few groups say nothing about partials of rows or distinct pairs
        if query.plan.rows or query.plan.pairs:
            estimate = GroupEstimate(None, False, "partials are as large as partitions")
        else:
            estimate = estimate_groups(query, size.groups, chunks)
        if estimate.groups is None:
            return _of_gpus(chunks.workers, estimate.how, outputs)
    decision = decide(estimate, query.frame.npartitions, size, outputs)
    if estimate.pair_bytes is None:
        return decision
    reason = f"{decision.reason}; about {format_bytes(estimate.pair_bytes)} of distinct pairs"
    return replace(decision, reason=reason, pair_bytes=estimate.pair_bytes)


def _of_gpus(number: int, how: str, outputs: int) -> Routing:
    """The decision for chunks of GPUs of which no more is known."""
    if number == 1:
        return Routing(Route.TREE, outputs, f"one GPU has all groups; {how}")
    return Routing(Route.EXCHANGE, outputs, f"a piece for each GPU; {how}", pieces=number)


def route(query: GroupByQuery, expr: Any) -> Routing:
    """Decide how the partials of a query reach the outputs that Dask announced.

    Parameters
    ----------
    query : GroupByQuery
    expr : Expr
        The logical node the query was read from.

    Returns
    -------
    Routing
    """
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
    return Routing(kind, outputs, f"split_out={split_out} was asked for")


def _aligned(decision: Routing) -> Routing:
    reason = f"the input is partitioned by the keys; {decision.reason}"
    return replace(decision, route=Route.ALIGNED, reason=reason)


def _is_partitioned(expr: Any, dropna: bool, outputs: int) -> bool:
    """Whether the rows of each key are in one partition of the input, which has enough of them.

    Dask takes the result of any merge for partitioned by the keys of both sides. But where it sends
    one side to all partitions of the other, these stay as they were, and rows without a partner
    have null keys in all partitions.
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


def physical(query: GroupByQuery, decision: Routing) -> Expr:
    """Build the physical nodes.

    Parameters
    ----------
    query : GroupByQuery
    decision : Routing

    Returns
    -------
    Expr
        With ``decision.outputs`` partitions.
    """
    plan, outputs, promised = query.plan, decision.outputs, Promised(query.meta, query.plan)
    at_once = _must_complete_at_once(query)
    if decision.route is Route.ALIGNED and not at_once:
        aligned = GroupByMerge(_partials(query, None), plan, promised, decision)
        few = outputs < aligned.npartitions
        return Repartition(aligned, new_partitions=outputs) if few else aligned
    chunks = query.chunks
    if chunks is not None and len(chunks) == 1 and query.shuffle_method is None:
        return GroupByChunkDirect(chunks, plan, promised, outputs, decision)
    alone = query.frame.npartitions == outputs == 1
    if alone and engine_name(query.meta) == DEVICE and (one_pass(plan) or of_rows(plan)):
        return GroupByDirect(query.frame, plan, promised, decision, *query.by)
    spread = query.frame.npartitions > 1 and (plan.rows or _spreads_pairs(query, decision))
    one: Expr | None = narrowed(query, decision)
    if one is None and (at_once or (decision.route is Route.TREE and not spread)):
        partials = _partials(query, chunks)
        one = GroupByTree.build(partials, plan, promised, query.split_every, decision)
    if one is not None:
        return one if outputs == 1 else GroupByDivide(one, plan, promised, outputs)
    # rows of whole groups are not gathered: they are exchanged, finished, and the results gathered
    buckets = max(outputs, decision.pieces)
    if spread:
        buckets = max(buckets, _pieces_of_rows(query, decision, chunks))
    if plan.sort and outputs == 1:
        unsorted = replace(query, plan=replace(plan, gathered=True))
        exchanged = _exchange(unsorted, promised, decision, chunks, buckets)
        return GroupByGather(exchanged, plan, promised, 1)
    # each output is of as many buckets, whose numbers are its own modulo the number of outputs
    buckets = outputs * math.ceil(buckets / outputs)
    exchanged = _exchange(query, promised, decision, chunks, buckets)
    return exchanged if buckets == outputs else GroupByGather(exchanged, plan, promised, outputs)


def _must_complete_at_once(query: GroupByQuery) -> bool:
    """Whether unobserved combinations of categories are only found from all groups together.

    With ``observed=False`` an output adds the missing combinations that hash to it. For that it
    has to know every level of every key: the metadata must tell the categories of all of them.
    """
    keys = query.plan.keys
    if query.plan.observed or not any(dtype_class(k.dtype) == "category" for k in keys):
        return False
    if engine_name(query.meta) == DEVICE:  # its engine completes one whole result
        return True
    if not query.plan.dropna:  # null is a level where it occurs, which no output knows alone
        return True
    return any(dtype_bound(k.dtype) is None or not hasattr(k.dtype, "categories") for k in keys)


def where_it_runs(query: GroupByQuery) -> str | None:
    """The engine of a query, as ``explain()`` names it."""
    engine = engine_name(query.meta)
    if engine == DEVICE or settings().engine != "device":
        return engine
    reason = stays_on_host(query.plan)
    return f"{engine}: {reason}" if reason else f"{DEVICE}, host partitions are streamed through it"


def _partials(query: GroupByQuery, chunks: Chunks | None, pieces: int | None = None) -> Expr:
    """Partials of partitions, or of chunks; those of chunks in pieces where that is asked for."""
    if chunks is None:
        return GroupByPartial(query.frame, query.plan, *query.by)
    return GroupByChunks(chunks, query.plan, pieces)


def _spreads_pairs(query: GroupByQuery, decision: Routing) -> bool:
    """Whether distinct pairs are exchanged, though few groups make a tree: no task merges all.

    Threads of one process exchange them without a copy. To other processes each pair is sent once
    either way, and a tree costs less as long as all fit one output.
    """
    if not query.plan.pairs or engine_name(query.meta) == DEVICE or query.shuffle_method:
        return False
    return get_default_shuffle_method() != "p2p" or (decision.pair_bytes or 0) > BYTES_ON_HOST


def _pieces_of_rows(query: GroupByQuery, decision: Routing, chunks: Chunks | None) -> int:
    """The number of outputs of whole rows or pairs: sorting one takes several times its memory."""
    if chunks is None:
        pieces = int(query.frame.npartitions)
    else:
        pieces = len(chunks) * (CHUNKS_OF_A_GPU if engine_name(query.meta) == DEVICE else 1)
    if query.plan.rows:
        return pieces
    fit_outputs = math.ceil((decision.pair_bytes or 0) / BYTES_ON_HOST)
    return min(pieces, max(_PIECES_OF_PAIRS, fit_outputs))


def _smaller(query: GroupByQuery, decision: Routing, chunks: Chunks) -> Chunks:
    """Chunks that leave room for their partials, where all groups exceed a chunk's memory.

    Then a partial has about as many groups as its chunk has rows, and merging several partitions
    gains nothing: a task takes so many as make about one output.
    """
    memory = gpus()[1]
    expected = (decision.groups or 0) * bytes_of_a_group(query)
    if not memory or expected <= memory // CHUNKS_OF_A_GPU:
        return chunks
    return chunks.divided(expected * PIECES_OF_A_GPU // memory)


def _exchange(
    query: GroupByQuery,
    promised: Promised,
    decision: Routing,
    chunks: Chunks | None,
    buckets: int,
) -> Expr:
    plan = query.plan
    method = query.shuffle_method or dask.config.get("dataframe.shuffle.method", None)
    device = engine_name(query.meta) == DEVICE
    if method is None and not device and get_default_shuffle_method() == "p2p":
        method = "p2p"
    if method is None:
        # here Dask would shuffle through the disk: partials are small, and our exchange keeps
        # them in memory; p2p would take partials of the device through the host
        if chunks is not None and device:
            chunks = _smaller(query, decision, chunks)
        partials = _partials(query, chunks, buckets)
        return GroupByExchange(partials, plan, promised, buckets, decision)
    shuffled = Shuffle(
        GroupByPieces(_partials(query, chunks), plan, buckets),
        PARTITION,
        buckets,
        ignore_index=True,
        method=method,
        original_partitioning_index=[PARTITION],
    )
    return GroupByMerge(shuffled, plan, promised, decision)
