"""From a decision to physical nodes, and their tasks and bytes in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import dask
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr._repartition import Repartition
from dask.dataframe.dask_expr._shuffle import Shuffle
from dask.dataframe.dask_expr.io import FromGraph, FromPandas
from dask.utils import get_default_shuffle_method

from dask_gpuagg.aggregations import Kind
from dask_gpuagg.cluster import current_client
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.engines.device.support import of_rows, one_pass
from dask_gpuagg.narrowing import is_narrowed, rows_inside, stride_of, targets
from dask_gpuagg.plan import Plan, StateUse
from dask_gpuagg.planning.bucketing import CHUNKS_OF_A_GPU, gpus
from dask_gpuagg.planning.chunks import STREAMED_READERS, Chunks, unprojected
from dask_gpuagg.planning.estimates import (
    dtype_bound,
    estimate_groups,
    holds_data,
    rows_of,
    size_of,
)
from dask_gpuagg.planning.nodes import (
    GroupByChunkDirect,
    GroupByChunks,
    GroupByDirect,
    GroupByDivide,
    GroupByExchange,
    GroupByGather,
    GroupByMerge,
    GroupByNarrowed,
    GroupByNode,
    GroupByPartial,
    GroupByPieces,
    GroupByTree,
    Promised,
)
from dask_gpuagg.planning.query import GroupByQuery, Route, Routing
from dask_gpuagg.planning.route import (
    BYTES_ON_HOST,
    PIECES_OF_A_GPU,
    bytes_of_a_group,
)
from dask_gpuagg.reporting.text import count_text
from dask_gpuagg.settings import settings
from dask_gpuagg.states import STATES
from dask_gpuagg.tasks.tasks import PARTITION

# Tasks that merge distinct pairs where one would do: a few for each core of a laptop.
_PIECES_OF_PAIRS = 8
# Groups of fewer rows have brackets that hold much of them, and few rows are exchanged as quickly
# between threads. Between processes a quarter of both is enough. In one process with a GPU an
# exchange of 100 million rows takes as long.
ROWS_OF_A_GROUP = 1 << 11
ROWS_FROM = 1 << 20
_OF_PROCESSES, _OF_ONE_GPU = 1 / 4, 128
# Rows inside of brackets and of samples that meet in one task, by whether it is the device's.
ROWS_OF_A_TASK = {False: 1 << 25, True: 1 << 28}
# A share of rows inside of brackets, by the sample, from which all are brought together at once: at
# most twice as many, and each is read once.
MOST_INSIDE = 1 / 2
# Of more groups the kernels sort rows, and do not count them by brackets.
GROUPS_OF_DEVICE = 1 << 16

# What costs little beside counting rows: it is done to a partition once for each pass.
_CHEAP = (
    *(E.Projection, E.Filter, E.Assign, E.Binop, E.Unaryop, E.Between, E.Isin, E.Fillna),
    *(E.RenameFrame, E.RenameSeries, E.Index, E.ToSeriesIndex, FromPandas),
)
# Bins of an exact sum, of values that differ by a factor of a million.
_BINS = 3


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


def narrowed(query: GroupByQuery, decision: Routing) -> Expr | None:
    """The node of a query whose rows need not be exchanged, or ``None``.

    Notes
    -----
    A ``shuffle_method``, which stock Dask wants for medians, says how rows are exchanged that are.

    The rows are read twice, so they have to be in memory. How many there are, and in how many
    groups, tells a sample of the keys.
    """
    if not is_narrowed(query.plan):
        return None
    device = engine_name(query.meta) == DEVICE
    if device and any(dtype_class(key.dtype) == "category" for key in query.plan.keys):
        return None  # chunks may number categories each in its own way
    if not device and settings().engine == "device":
        return None
    chunks = _held(query)
    if chunks is None or len(chunks) < 2:
        return None
    estimate = estimate_groups(query, 0, chunks)
    if estimate.groups is None or estimate.rows is None:
        return None
    rows, groups = estimate.rows, max(estimate.groups, 1)
    between = current_client() is not None
    share = _OF_PROCESSES if between else 1
    min_rows = ROWS_FROM * (_OF_ONE_GPU if device and not between else share)
    if rows < max(min_rows, ROWS_OF_A_GROUP * share * groups):
        return None
    stride = stride_of(rows, groups)
    inside = rows_inside(rows, groups, stride)
    travel = rows // stride + len(targets(query.plan)) * inside
    if travel > ROWS_OF_A_TASK[device] or (device and groups > GROUPS_OF_DEVICE):
        return None
    reason = f"about {groups:,} groups of {rows:,} rows, which are not moved"
    decision = replace(decision, reason=reason, groups=groups, bound=False)
    promised = Promised(query.meta, query.plan)
    max_inside = max(MOST_INSIDE, 2 * inside / rows)
    return GroupByNarrowed(chunks, query.plan, promised, decision, stride, max_inside)


def _held(query: GroupByQuery) -> Chunks | None:
    """The chunks of an input that is in memory; ``None`` where it is read or computed."""
    chunks = query.chunks
    if chunks is None:
        frame, by = unprojected(query.frame, query.by), tuple(query.by)
        buckets = tuple((i,) for i in range(int(frame.npartitions)))
        chunks = Chunks(frame, by, buckets, workers=0, inside=STREAMED_READERS)
    inside, outside = chunks.region
    cheap = all(isinstance(node, _CHEAP) for node in inside)
    # a frame of this process would be sent to workers once for each pass
    sent = current_client() is not None and any(isinstance(node, FromPandas) for node in inside)
    held = all(isinstance(node, FromGraph) and holds_data(node) for node in outside)
    return chunks if held and cheap and not (sent or chunks.readers) else None


@dataclass(frozen=True, slots=True)
class Physical:
    """A planned group-by in numbers: its route, tasks, and bytes that travel.

    Attributes
    ----------
    route : Route
        That of the nodes, which may be another than that of the decision.
    partitions : int
        Of the input.
    partials : int
        0 where one task makes the outputs.
    pieces : int
        Into how many outputs partials are exchanged; 0 without an exchange.
    outputs : int
    tasks : tuple of (str, int)
        The number of tasks by step. A partial's task also does what was to be done to its
        partitions before.
    chunks : str
        How many partitions a task takes; empty where each has a task of its own.
    workers : int
        On how many workers chunks are.
    rows : int or None
        At most, where that is known.
    nbytes : int or None
        Of all partials, roughly, where groups or rows are known.
    reason : str
        Why this route.
    """

    route: Route
    partitions: int
    partials: int
    pieces: int
    outputs: int
    tasks: tuple[tuple[str, int], ...]
    chunks: str = ""
    workers: int = 0
    rows: int | None = None
    nbytes: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        outputs = count_text(self.outputs, "output")
        if self.route is Route.DIRECT:
            return f"none: one task makes {outputs}"
        if self.route is Route.NARROWED:
            return f"quantiles narrowed in two passes into {outputs}"
        if self.route is Route.EXCHANGE:
            into = outputs
            if self.pieces != self.outputs:
                into = f"{self.pieces:,}, brought to {outputs}"
            return f"exchange of {count_text(self.partials, 'partial')} into {into}"
        return f"{self.route.value} into {outputs}"


def described(query: GroupByQuery, decision: Routing, planned: Expr) -> Physical:
    """Count the tasks and bytes of the physical nodes of a query.

    Parameters
    ----------
    query : GroupByQuery
        On lowered inputs.
    decision : Routing
    planned : Expr
        As ``lower.physical`` made it.

    Returns
    -------
    Physical
    """
    nodes = list(_nodes(planned, query))
    ours = [node for node in nodes if isinstance(node, GroupByNode)]
    ((merge, route),) = ((node, node.route) for node in ours if node.route is not None)
    chunks = next((node.chunks for node in ours if "chunks" in node._parameters), None)
    partitions = partials = int(query.frame.npartitions)
    if chunks is not None:
        # of files, which Dask would read several of as one partition, the tasks read each
        partitions, partials = sum(map(len, chunks.buckets)), len(chunks)
    if route in (Route.DIRECT, Route.NARROWED):
        partials = 0  # neither rows nor partials of the usual tables travel
    tasks: dict[str, int] = {}
    for node in reversed(nodes):
        for step, number in _steps_of(node).items():
            tasks[step] = tasks.get(step, 0) + number
    rows = rows_of(query.frame)
    return Physical(
        route,
        partitions,
        partials,
        merge.npartitions if route is Route.EXCHANGE else 0,
        int(planned.npartitions),
        tuple(tasks.items()),
        "" if chunks is None else str(chunks),
        0 if chunks is None else chunks.workers,
        rows,
        _bytes(query.plan, partials, decision.groups, rows) if partials else None,
        merge.decision.reason,
    )


def _nodes(planned: Expr, query: GroupByQuery) -> Iterator[Any]:
    """The nodes above the inputs of the query, each once."""
    inputs = {query.frame._name, *(by._name for by in query.by if isinstance(by, Expr))}
    stack, seen = [planned], set(inputs)
    while stack:
        node = stack.pop()
        if node._name not in seen:
            seen.add(node._name)
            yield node
            stack += node.dependencies()


def _steps_of(node: Any) -> dict[str, int]:
    if isinstance(node, GroupByNode):
        return node.steps()
    if isinstance(node, Repartition):
        return {"gather": node.npartitions}
    return {"exchange": 2 * node.npartitions}  # a shuffle sends and receives


def _bytes(plan: Plan, partials: int, groups: int | None, rows: int | None) -> int | None:
    """Bytes of all partials: of each table those of its rows, at most as many as there are."""
    keys = sum(size_of(key.dtype) for key in plan.keys)
    nbytes = 0
    for table in plan.tables:
        if table.kind is Kind.MERGEABLE:
            of_partials = None if groups is None else groups * partials
            bounds = [n for n in (rows, of_partials) if n is not None]
            if not bounds:
                return None
            fields = 0 if plan.states_from_rows else sum(map(_fields_of, plan.states))
            nbytes += min(bounds) * (keys + 8 * fields)
        elif rows is None:
            return None
        else:
            # an entry of a sketch has at most a float64 and a level
            values = sum(size_of(plan.columns[c].dtype) for c in table.columns)
            nbytes += rows * (keys + (9 if table.sketch else values))
    return nbytes


def _fields_of(use: StateUse) -> int:
    """Columns of a state in a partial, about."""
    record = STATES[use.state]
    return max(len(record.fields), 1) + _BINS * record.binned
