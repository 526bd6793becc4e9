"""From a decision to physical nodes, and their tasks and bytes in numbers."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import dask
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr._repartition import Repartition
from dask.dataframe.dask_expr._shuffle import Shuffle
from dask.dataframe.dask_expr.io import FromGraph, FromPandas
from dask.system import CPU_COUNT
from dask.utils import get_default_shuffle_method

from dask_gpuagg.aggregations import Kind
from dask_gpuagg.cluster import current_client
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.device.support import of_rows, one_pass
from dask_gpuagg.narrowing import is_narrowed, rows_inside, stride_of, targets
from dask_gpuagg.plan import short
from dask_gpuagg.planning import nodes
from dask_gpuagg.planning.bucketing import CHUNKS_OF_A_GPU, gpus, in_even_parts, size_of
from dask_gpuagg.planning.chunks import (
    STREAMED_READERS,
    Chunks,
    GroupByQuery,
    Route,
    Routing,
    unprojected,
)
from dask_gpuagg.planning.filters import Blanked
from dask_gpuagg.planning.route import (
    BYTES_ON_HOST,
    MERGED_ON_HOST,
    PIECES_OF_A_GPU,
    bytes_of_a_group,
    dtype_bound,
    estimate_groups,
    holds_data,
    rows_of,
)
from dask_gpuagg.reporting.text import count_text
from dask_gpuagg.settings import settings
from dask_gpuagg.states import STATES
from dask_gpuagg.tasks.tasks import PARTITION

# Pieces of an exchange, as many tasks, that cost less than joining partials before; and how many
# are joined where their size is not known.
_FEW_PIECES, _JOINED = 4096, 8
# Tasks that merge rows, or distinct pairs, where one would do: a few for each core of a laptop.
_PIECES_OF_ROWS = 8
# Groups of fewer rows have brackets that hold much of them, and few rows are exchanged as quickly
# between threads. Between processes a quarter of both is enough.
ROWS_OF_A_GROUP = 1 << 11
ROWS_FROM = 1 << 20
_OF_PROCESSES = 1 / 4
# Rows inside of brackets and of samples that meet in one task.
ROWS_OF_A_TASK = 1 << 25
# A share of rows inside of brackets, by the sample, from which all are brought together at once: at
# most twice as many, and each is read once.
MOST_INSIDE = 1 / 2

# What costs little beside counting rows: it is done to a partition once for each pass.
_CHEAP = (
    *(E.Projection, E.Filter, E.Assign, E.Binop, E.Unaryop, E.Between, E.Isin, E.Fillna),
    *(E.RenameFrame, E.RenameSeries, E.Index, E.ToSeriesIndex, FromPandas),
    *(Blanked, nodes.DerivedColumns),
)
# Rows of a group in a partition, below which one task takes several partitions.
_FEW_ROWS = 2
# Bins of an exact sum, of values that differ by a factor of a million.
_BINS = 3


def physical(query: GroupByQuery, decision: Routing) -> Expr:
    """Build the physical nodes of a query, with ``decision.outputs`` partitions."""
    plan, outputs, promised = query.plan, decision.outputs, nodes.Promised(query.meta, query.plan)
    at_once = _must_complete_at_once(query)
    if decision.route is Route.ALIGNED and not at_once:
        aligned = nodes.GroupByMerge(partials_of(query, None), plan, promised, decision)
        few = outputs < aligned.npartitions
        return Repartition(aligned, new_partitions=outputs) if few else aligned
    chunks = query.chunks or _of_many_groups(query, decision)
    alone = query.frame.npartitions == outputs == 1 and not query.reduced
    if alone and query.on_device and (one_pass(plan) or of_rows(plan)):
        return nodes.GroupByDirect(
            query.frame, plan, promised, decision, query.predicate, *query.by
        )
    spread = _is_spread(query, decision)
    merged: Expr | None
    if chunks is not None and len(chunks) == 1 and query.shuffle_method is None:
        merged = nodes.GroupByChunkDirect(chunks, plan, promised, decision)
    else:
        merged = narrow(query, decision)
    if merged is None and (at_once or (decision.route is Route.TREE and not spread)):
        partials = partials_of(query, chunks)
        merged = nodes.GroupByTree(partials, plan, promised, decision, query.split_every)
    if merged is not None:
        return merged
    # rows of whole groups are not gathered: they are exchanged, finished, and the results gathered
    buckets = max(outputs, decision.pieces)
    if spread:
        buckets = max(buckets, _pieces_of_rows(query, decision, chunks))
    # each output is of as many buckets, whose numbers are its own modulo the number of outputs
    buckets = outputs * math.ceil(buckets / outputs)
    sorts = plan.sort and outputs == 1
    if sorts:
        query = replace(query, plan=replace(plan, gathered=True))
    exchanged = _exchange(query, promised, decision, chunks, buckets)
    if buckets == outputs and not sorts:
        return exchanged
    return nodes.GroupByGather(exchanged, plan, promised, outputs)


def _must_complete_at_once(query: GroupByQuery) -> bool:
    """Whether unobserved combinations of categories are only found from all groups together.

    With ``observed=False`` an output adds the missing combinations that hash to it. For that it
    has to know every level of every key: the metadata must tell the categories of all of them.
    """
    keys = query.plan.keys
    if query.plan.observed or not any(dtype_class(k.dtype) == "category" for k in keys):
        return False
    if query.on_device:  # its engine completes one whole result
        return True
    if not query.plan.dropna:  # null is a level where it occurs, which no output knows alone
        return True
    return any(dtype_bound(k.dtype) is None or not hasattr(k.dtype, "categories") for k in keys)


def _of_many_groups(query: GroupByQuery, decision: Routing) -> Chunks | None:
    """Chunks of a frame of this process, whose partitions have few rows of each group.

    Their partials would be about as large as they are, and take as long to merge as to make.
    """
    nbytes, npartitions = _bytes_of_rows(query) or 0, int(query.frame.npartitions)
    row_bytes = sum(size_of(column.dtype) for column in (*query.plan.keys, *query.plan.columns))
    groups = 0 if decision.bound else decision.groups or 0
    few = nbytes < _FEW_ROWS * groups * npartitions * row_bytes
    threads = dask.config.get("num_workers", None) or CPU_COUNT
    tasks = max(threads, math.ceil(nbytes / BYTES_ON_HOST))
    in_place = query.reduced or settings().chunk.partitions is not None
    if not (nbytes and few and query.plan.is_one_table) or in_place or 2 * tasks > npartitions:
        return None
    chunks = _held(query) if decision.route is Route.TREE else None
    return chunks and replace(chunks, buckets=in_even_parts(range(npartitions), tasks))


def partials_of(query: GroupByQuery, chunks: Chunks | None, pieces: int | None = None) -> Expr:
    """Partials of partitions, or of chunks; those of chunks in pieces where that is asked for."""
    if query.reduced:
        return query.frame
    if chunks is None:
        return nodes.GroupByPartial(query.frame, query.plan, query.predicate, *query.by)
    return nodes.GroupByChunks(chunks, query.plan, pieces)


def _is_spread(query: GroupByQuery, decision: Routing) -> bool:
    """Whether rows or distinct pairs are exchanged, though few groups may make a tree.

    No task merges all rows, but few ones. Threads of one process exchange pairs without a copy. To
    others each pair is sent once either way, and a tree costs less as long as all fit one output.
    """
    if query.frame.npartitions == 1:
        return False
    if query.plan.rows:
        nbytes = _bytes_of_rows(query)
        return nbytes is None or nbytes > MERGED_ON_HOST
    if not query.plan.pairs or query.on_device or query.shuffle_method:
        return False
    return get_default_shuffle_method() != "p2p" or (decision.pair_bytes or 0) > BYTES_ON_HOST


def _pieces_of_rows(query: GroupByQuery, decision: Routing, chunks: Chunks | None) -> int:
    """The number of outputs of whole rows or pairs: sorting one takes several times its memory."""
    if chunks is None:
        pieces = int(query.frame.npartitions)
    else:
        pieces = len(chunks) * (CHUNKS_OF_A_GPU if query.on_device else 1)
    nbytes = _bytes_of_rows(query) if query.plan.rows else decision.pair_bytes or 0
    fit_outputs = pieces if nbytes is None else math.ceil(nbytes / BYTES_ON_HOST)
    return min(pieces, max(_PIECES_OF_ROWS, fit_outputs))


def _exchange(
    query: GroupByQuery,
    promised: nodes.Promised,
    decision: Routing,
    chunks: Chunks | None,
    buckets: int,
) -> Expr:
    plan = query.plan
    method = query.shuffle_method or dask.config.get("dataframe.shuffle.method", None)
    if method is None and not query.on_device and get_default_shuffle_method() == "p2p":
        method = "p2p"
    if method is None or (method == "tasks" and query.on_device):
        # here Dask would shuffle through the disk: partials are small, and our exchange keeps
        # them in memory; Dask's own would take partials of the device through the host
        if chunks is not None and query.on_device and (memory := gpus()[1]):
            # Of more groups than a chunk has room for, its partial has about as many as it has
            # rows, and merging several partitions gains nothing: a task makes about one output.
            expected = (decision.groups or 0) * bytes_of_a_group(query)
            if expected > memory // CHUNKS_OF_A_GPU:
                chunks = chunks.divided(expected * PIECES_OF_A_GPU // memory)
        partials = partials_of(query, chunks, buckets)
        number = _joined(query, buckets) if chunks is None else partials.npartitions
        if number < partials.npartitions:
            partials = nodes.GroupByJoined(partials, plan, number)
        return nodes.GroupByExchange(partials, plan, promised, buckets, decision)
    pieces = nodes.GroupByPieces(partials_of(query, chunks), plan, buckets)
    order: dict[str, Any] = {"ignore_index": True, "original_partitioning_index": [PARTITION]}
    shuffled = Shuffle(pieces, PARTITION, buckets, method=method, **order)
    return nodes.GroupByMerge(shuffled, plan, promised, decision)


def _joined(query: GroupByQuery, buckets: int) -> int:
    """The number of partials that are split, of which each has a task for each bucket.

    Joined ones are at most as large as an output, where the rows of the input are known.
    """
    inputs = int(query.frame.npartitions)
    if query.on_device or inputs * buckets <= _FEW_PIECES:
        return inputs
    nbytes = _bytes_of_rows(query)
    smallest = math.ceil(inputs / _JOINED if nbytes is None else nbytes / BYTES_ON_HOST)
    return min(inputs, max(_FEW_PIECES // buckets, smallest, 1))


def _bytes_of_rows(query: GroupByQuery) -> int | None:
    """Bytes of the columns that a query reads, where this process holds the rows on the host."""
    rows = None if query.on_device else rows_of(query.frame)
    columns = (*query.plan.keys, *query.plan.columns)
    return None if rows is None else rows * sum(size_of(column.dtype) for column in columns)


def narrow(query: GroupByQuery, decision: Routing) -> Expr | None:
    """The node of a query whose rows need not be exchanged, or ``None``.

    They are read twice, so they have to be in memory; how many there are, and in how many groups,
    tells a sample of the keys. A ``shuffle_method``, which stock Dask wants for medians, says how
    rows are exchanged that are.
    """
    if not is_narrowed(query.plan) or query.on_device or settings().engine == "device":
        return None
    chunks = _held(query)
    if chunks is None or len(chunks) < 2:
        return None
    estimate = estimate_groups(query, 0, chunks)
    if estimate.groups is None or estimate.rows is None:
        return None
    rows, groups = estimate.rows, max(estimate.groups, 1)
    share = _OF_PROCESSES if current_client() is not None else 1
    if rows < share * max(ROWS_FROM, ROWS_OF_A_GROUP * groups):
        return None
    stride = stride_of(rows, groups)
    inside = rows_inside(rows, groups, stride)
    travel = rows // stride + len(targets(query.plan)) * inside
    if travel > ROWS_OF_A_TASK:
        return None
    reason = f"about {groups:,} groups of {rows:,} rows, which are not moved"
    decision = replace(decision, reason=reason, groups=groups, bound=False)
    promised = nodes.Promised(query.meta, query.plan)
    max_inside = max(MOST_INSIDE, 2 * inside / rows)
    return nodes.GroupByNarrowed(chunks, query.plan, promised, decision, stride, max_inside)


def _held(query: GroupByQuery) -> Chunks | None:
    """The chunks of an input that is in memory; ``None`` where it is read or computed."""
    chunks = query.chunks
    if chunks is None:
        frame, by = unprojected(query.frame, query.by), tuple(query.by)
        buckets = tuple((i,) for i in range(int(frame.npartitions)))
        chunks = Chunks(frame, by, buckets, 0, inside=STREAMED_READERS, predicate=query.predicate)
    inside, outside = chunks.region
    cheap = all(isinstance(node, _CHEAP) for node in inside)
    # a frame of this process would be sent to workers once for each pass
    sent = current_client() is not None and any(isinstance(node, FromPandas) for node in inside)
    held = all(isinstance(node, FromGraph) and holds_data(node) for node in outside)
    return chunks if held and cheap and not (sent or chunks.readers) else None


@dataclass(frozen=True, slots=True)
class Physical:
    """A planned group-by in numbers: its route, tasks, and bytes that travel."""

    #: that of the nodes, which may be another than that of the decision
    route: Route
    #: of the input
    partitions: int
    #: 0 where one task makes the outputs
    partials: int
    #: into how many outputs partials are exchanged; 0 without an exchange
    pieces: int
    outputs: int
    #: the number of tasks by step. A partial's task also does what was to be done to its partitions
    #: before
    tasks: tuple[tuple[str, int], ...]
    #: how many partitions a task takes; empty where each has a task of its own
    chunks: str = ""
    #: of all partials, roughly, where groups or rows are known
    nbytes: int | None = None
    #: why this route
    reason: str = ""
    #: which rows are grouped, where the group-by filters them; empty where it does not
    predicate: str = ""
    #: for each merge below the group-by whose rows are reduced before: by what, and why
    joins: tuple[str, ...] = ()

    def __str__(self) -> str:
        outputs = count_text(self.outputs, "output")
        if self.route is Route.DIRECT:
            return f"none: a single task makes {outputs}"
        if self.route is Route.NARROWED:
            return f"quantiles narrowed in two passes into {outputs}"
        if self.route is Route.EXCHANGE:
            into = outputs
            if self.pieces != self.outputs:
                into = f"{count_text(self.pieces, 'piece')}, gathered into {outputs}"
            return f"exchange of {count_text(self.partials, 'partial')} into {into}"
        return f"{self.route.value} into {outputs}"


def described(query: GroupByQuery, decision: Routing, planned: Expr) -> Physical:
    """Count the tasks and bytes of the physical nodes of a query, whose inputs are lowered."""
    chain = [planned]
    # down to the source
    while "frame" in chain[-1]._parameters and not isinstance(chain[-1], nodes.GroupByPartial):
        chain.append(chain[-1].frame)
    (merge,) = (node for node in chain if getattr(node, "route", None) is not None)
    route, source = merge.route, chain[-1]
    chunks = source.chunks if "chunks" in source._parameters else None
    partitions = partials = int(query.frame.npartitions)
    if chunks is not None:
        # of files, which Dask would read several of as one partition, the tasks read each
        partitions, partials = sum(map(len, chunks.buckets)), len(chunks)
    if query.reduced:
        partitions = partitions if chunks is not None else int(source.frame.npartitions)
        partials = int(query.frame.npartitions)
    if route in (Route.DIRECT, Route.NARROWED):
        partials = 0  # neither rows nor partials of the usual tables travel
    tasks: Counter[str] = Counter()
    for node in reversed(chain):
        if isinstance(node, nodes.GroupByNode):
            tasks.update(node.steps())
        elif isinstance(node, Repartition):
            tasks["gather"] += node.npartitions
        else:  # a shuffle sends and receives
            tasks["exchange"] += 2 * node.npartitions
    return Physical(
        route,
        partitions,
        partials,
        merge.npartitions if route is Route.EXCHANGE else 0,
        int(planned.npartitions),
        tuple(tasks.items()),
        "" if chunks is None else str(chunks),
        _bytes(query, partials, decision.groups) if partials else None,
        merge.decision.reason,
        short(query.rows),
        tuple(node.reason for node in chain if isinstance(node, nodes.GroupByJoinSide)),
    )


def _bytes(query: GroupByQuery, partials: int, groups: int | None) -> int | None:
    """Bytes of all partials, roughly: of each table those of its rows, at most as many as known."""
    plan, rows = query.plan, rows_of(query.frame)
    keys = sum(size_of(key.dtype) for key in plan.keys)
    nbytes = 0
    for table in plan.tables:
        number = rows
        if table.kind is Kind.MERGEABLE:
            if groups is not None:
                number = groups * partials if rows is None else min(rows, groups * partials)
            records = [] if plan.states_from_rows else [STATES[use.state] for use in plan.states]
            values = sum(8 * (max(len(r.fields), 1) + _BINS * r.binned) for r in records)
        elif table.sketch:
            values = 9  # at most: a float64 and a level
        else:
            values = sum(size_of(plan.columns[c].dtype) for c in table.columns)
        if number is None:
            return None
        nbytes += number * (keys + values)
    return nbytes
