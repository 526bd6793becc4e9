"""The expected number of groups, and the route of partials: a tree, an exchange, or none.

The number comes from metadata: key dtypes that bound the groups, frames held in memory. Where that
leaves it open and there are many partitions, the distinct keys of three partitions are computed, if
that costs no more than reading them. Of a few partitions in this process some rows are read.
"""

import math
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any

import dask
import numpy as np
import pandas as pd
from dask._task_spec import DataNode
from dask.base import get_scheduler, tokenize
from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._expr import Blockwise, Expr, Projection
from dask.dataframe.dask_expr._merge import BroadcastJoin, HashJoinP2P, Merge
from dask.dataframe.dask_expr._shuffle import ShuffleBase
from dask.dataframe.dask_expr.io import IO, FromGraph, FromPandas
from dask.dataframe.dask_expr.io.io import FusedIO
from dask.utils import format_bytes, get_default_shuffle_method

from dask_gpuagg.cache import Cache
from dask_gpuagg.cluster import cluster_problem, current_client, protocol
from dask_gpuagg.engines import engine_of
from dask_gpuagg.engines.host.grouping import group
from dask_gpuagg.plan import Column, Plan, StateUse, Unsupported
from dask_gpuagg.planning.bucketing import bytes_of_a_row, gpus, size_of, span_of_keys
from dask_gpuagg.planning.chunks import (
    USER_FUNCTIONS,
    Chunks,
    GroupByQuery,
    Route,
    Routing,
    expressions,
)
from dask_gpuagg.reporting.fallbacks import note_fallback
from dask_gpuagg.settings import settings
from dask_gpuagg.tasks.reading import frame_of
from dask_gpuagg.tasks.tasks import KeySample, gpuagg_chunk, gpuagg_sample

# Dask's limit: up to this number of partitions it reduces by a tree
FEW_PARTITIONS = 15


@dataclass(frozen=True, slots=True)
class GroupEstimate:
    """Expected number of groups, ``None`` when nothing is known, or a bound of it.

    ``how`` says where it comes from. A sample of rows tells about how many ``rows`` there are, and
    one of distinct pairs of key and value the bytes of the column that has most.
    """

    groups: int | None
    bound: bool
    how: str
    rows: int | None = None
    pair_bytes: int | None = None


def dtype_bound(dtype: Any) -> int | None:
    """Largest number of distinct keys (null included) that a dtype admits, if small."""
    if isinstance(dtype, pd.CategoricalDtype):
        unknown = "__UNKNOWN_CATEGORIES__" in map(str, dtype.categories[:1])
        return None if unknown else len(dtype.categories) + 1
    numpy_dtype = getattr(dtype, "numpy_dtype", dtype)
    if not isinstance(numpy_dtype, np.dtype) or numpy_dtype.itemsize != 1:
        return None
    return {"b": 2 + 1, "i": 256 + 1, "u": 256 + 1}.get(numpy_dtype.kind)


def from_metadata(dtypes: Sequence[Any], rows: int | None) -> GroupEstimate:
    """Upper bound on the groups from the keys' dtypes and the number of rows."""
    bounds = [bound for dtype in dtypes if (bound := dtype_bound(dtype)) is not None]
    if len(bounds) == len(dtypes) and (rows is None or math.prod(bounds) <= rows):
        return GroupEstimate(math.prod(bounds), True, "the keys' dtypes admit no more")
    if rows is not None:
        return GroupEstimate(rows, True, f"there are {rows:,} rows")
    return GroupEstimate(None, False, "the metadata does not bound the groups")


def from_samples(samples: Sequence[KeySample], npartitions: int) -> int:
    """Estimate the number of groups from the distinct keys of some rows of some partitions.

    By capture and recapture (Petersen 1896, Lincoln 1930) two partitions with ``a`` and ``b``
    distinct keys of which ``c`` are shared point to ``a * b / c`` keys in all. The pair that points
    to most keys counts: too many expected groups cost an exchange, too few the memory of a worker.
    Without shared keys (sorted or clustered data) every partition is taken to bring keys of its
    own. A partition has as many as the repetitions within its sample point to: of ``n`` keys, ``t``
    rows repeat about ``t * t / 2 n``. Of keys of which few have most rows, a sample that is not all
    rows finds too few.
    """
    counts = [len(sample.keys[0]) for sample in samples]
    columns = [
        pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
        for parts in zip(*(sample.keys for sample in samples), strict=True)
    ]
    groups = group(columns, dropna=False)
    seen = np.zeros((len(samples), groups.n), dtype=bool)
    seen[np.repeat(np.arange(len(samples)), counts), groups.codes] = True
    of_partitions = map(_keys_of_a_partition, counts, samples)
    limit = round(sum(of_partitions) / len(counts) * npartitions)
    pairs = []
    for a, b in combinations(range(len(samples)), 2):
        shared = int((seen[a] & seen[b]).sum())
        pairs.append(round(counts[a] * counts[b] / shared) if shared else limit)
    return max(min(limit, max(pairs, default=0)), groups.n)


def _keys_of_a_partition(distinct: int, sample: KeySample) -> int:
    taken, repeated = sample.taken, sample.taken - distinct
    if sample.rows == taken or repeated >= distinct:
        return distinct
    return min(sample.rows, taken * taken // (2 * repeated)) if repeated else sample.rows


# estimates of recent queries; a query is usually explained, optimized and computed in a row
_recent: Cache[tuple[str, ...], GroupEstimate] = Cache(256)


class _InputFailed(Exception):
    """The partitions of a sample could not be computed; the cause says why."""


def estimate_groups(
    query: GroupByQuery, enough: int, chunks: Chunks | None = None
) -> GroupEstimate:
    """How many groups a query will have, as far as this is known before it runs."""
    query = _unfused(query)
    bound = from_metadata([k.dtype for k in query.plan.keys], rows_of(query.frame))
    # columns whose distinct pairs decide whether one task merges them, or several
    may_gather = not (query.on_device or query.frame.ndim == 1 or query.shuffle_method is not None)
    pairs = query.plan.pairs if may_gather and get_default_shuffle_method() == "p2p" else ()
    # a bound beyond the limit says nothing about how many groups there are
    if bound.groups is None or bound.groups > enough:
        if chunks is not None and chunks.readers and settings().sample != "never":
            span = span_of_keys(chunks.frame, chunks.by, chunks.region[0])
            if span is not None and span <= enough:
                return GroupEstimate(span, False, "statistics of two files")
        return _of_sample(query, chunks, pairs, bound.how)
    if not pairs:
        return bound
    return replace(bound, pair_bytes=_of_sample(query, chunks, pairs, bound.how).pair_bytes)


def estimate_rows(query: GroupByQuery) -> GroupEstimate:
    """How many groups and rows a query has, from rows of three partitions, which may be files."""
    return _of_sample(_unfused(query), query.chunks if query.on_device else None, (), "", read=True)


def _unfused(query: GroupByQuery) -> GroupByQuery:
    """The query on single files, where Dask reads several narrow ones as one partition."""
    # other nodes and sources have as many partitions as the inputs had when they were fused
    if not all(
        isinstance(node, FusedIO) or (isinstance(node, Blockwise) and not isinstance(node, IO))
        for node in _nodes_of(query)
    ):
        return query
    roots = [query.frame, *query.by]
    for i, root in enumerate(roots):
        for node in root.find_operations(FusedIO) if isinstance(root, Expr) else ():
            roots[i] = roots[i].substitute(node, node.operand("_expr"))
    return replace(query, frame=roots[0], by=roots[1:])


def _of_sample(
    query: GroupByQuery,
    chunks: Chunks | None,
    pairs: Sequence[int],
    how: str,
    read: bool = False,
) -> GroupEstimate:
    """Estimate from a sample, where one is taken; ``how`` says what is known without one.

    With ``read`` it is one of rows, and is taken though keys have to be read from files.
    """
    if read and chunks is not None and chunks.readers:
        chunks = None
    few = chunks is None and (read or query.frame.npartitions <= FEW_PARTITIONS)
    if few and not read:
        # whether the input, as it is grouped, is already in this process's memory
        here = (isinstance(n, Projection) or _rows_held(n) is not None for n in _nodes_of(query))
        if query.frame.npartitions == 1 or not all(here):
            return GroupEstimate(None, False, how)
    if settings().sample == "never":
        return GroupEstimate(None, False, "gpuagg.sample is 'never'")
    if chunks is not None and chunks.readers:
        return GroupEstimate(None, False, "reading keys costs more than an exchange")
    # the schema is part of the identity: masked and plain arrays of equal values share a token
    kind = "rows" if few or chunks is not None else "partitions"
    plan = query.plan
    by = (b._name if isinstance(b, Expr) else repr(b) for b in (query.predicate, *query.by))
    keys = (f"dropna={plan.dropna}", *(str(k) for k in plan.keys), *by)
    name = (kind, query.frame._name, *keys, *(repr(plan.columns[c].label) for c in pairs))
    estimate = _recent.get(name)
    if estimate is None:
        # it asks the scheduler, which an estimate that is there needs not
        obstacle = _obstacle(query)
        if obstacle is not None:
            return GroupEstimate(None, False, obstacle)
        try:
            if few:
                chunks = _lowered(_of_keys(query) if read else query.frame, query.by)
            estimate = _sample(query, pairs) if chunks is None else _sample_rows(query, chunks)
        except _InputFailed as failure:
            # the query itself will raise the same error
            return GroupEstimate(None, False, f"sampling failed: {failure.__cause__!r}")
        except Exception as error:
            reason = f"sampling failed: {error!r}"
            call = f"by {', '.join(str(key.label) for key in plan.keys)}"
            how = "is planned without an estimate of its groups"
            note_fallback("-".join(name), call, reason, cause=error, how=how)
            return GroupEstimate(None, False, reason)
        _recent.put(name, estimate)
    return estimate


def rows_of(frame: Expr) -> int | None:
    """Rows of an input at most, where it is a filter or projection of a frame held in memory."""
    nodes = list(frame.walk())
    if not all(map(_is_plain, nodes)):
        return None
    rows = [_rows_held(node) for node in nodes if isinstance(node, IO)]
    numbers = [number for number in rows if number is not None]
    return max(numbers) if numbers and len(numbers) == len(rows) else None


def _is_plain(node: Any) -> bool:
    return isinstance(node, Blockwise | IO) and not isinstance(node, USER_FUNCTIONS)


def _rows_held(source: Expr) -> int | None:
    """Rows of a source whose data this process holds."""
    if isinstance(source, FromPandas):
        return len(source.frame)
    if not isinstance(source, FromGraph):
        return None
    data = [v.value if isinstance(v, DataNode) else v for v in source.operand("layer").values()]
    return sum(map(len, data)) if data and all(hasattr(type(v), "dtypes") for v in data) else None


def _nodes_of(query: GroupByQuery) -> list[Any]:
    return [node for root in (query.frame, *expressions(query.by)) for node in root.walk()]


def _obstacle(query: GroupByQuery) -> str | None:
    """Why the input cannot be sampled cheaply; ``None`` if it can."""
    if any(callable(b) and not isinstance(b, Expr) for b in query.by):
        return "a key is a function"
    for node in _nodes_of(query):
        if isinstance(node, FromGraph) and not holds_data(node):
            return "the input is a graph of unknown cost"
        if not _is_plain(node):
            return f"the input is computed by {type(node).__name__}"
    client = current_client()
    if client is not None and client.asynchronous:
        return "the client is asynchronous"
    problem = cluster_problem()  # such a worker would let the sample hang as well
    if problem is not None:
        return problem
    state = getattr(sys.modules.get("distributed.worker"), "thread_state", None)
    if getattr(state, "execution_state", None):
        return "the planner runs inside a task"
    return None


def holds_data(node: FromGraph) -> bool:
    """Whether a graph is the data of a persisted collection: futures, or values."""
    layer = node.operand("layer")
    future = getattr(sys.modules.get("distributed.client"), "Future", None)
    kinds = (DataNode,) if future is None else (DataNode, future)
    return all(isinstance(v, kinds) or hasattr(type(v), "dtypes") for v in dict(layer).values())


def _sample(query: GroupByQuery, pairs: Sequence[int]) -> GroupEstimate:
    """Estimate from all keys of three partitions, and the pairs from rows of them."""
    plan = query.plan
    values = [plan.columns[c] for c in pairs]
    frame = _of_keys(query, [c.label for c in values])
    steps: list[Step] = [(gpuagg_chunk, _keys_only(query), ())]
    steps += [(gpuagg_sample, _keys_only(query, value), (value.label,)) for value in values]
    partials, *of_pairs = _of_three(_lowered(frame, query.by), *steps)
    npartitions = int(frame.npartitions)
    samples = []
    for partial in partials:
        columns_of_keys = [partial["groups"][f"k{i}"] for i in range(len(plan.keys))]
        keys = [engine_of(column).sampled(column, 1) for column in columns_of_keys]
        samples.append(KeySample(keys, len(keys[0]), len(keys[0])))
    nbytes = [
        from_samples(of_value, npartitions) * sum(size_of(c.dtype) for c in (*plan.keys, value))
        for value, of_value in zip(values, of_pairs, strict=True)
    ]
    how = f"sampled {len(samples)} of {npartitions} partitions"
    groups = from_samples(samples, npartitions)
    return GroupEstimate(groups, False, how, pair_bytes=max(nbytes, default=None))


def _of_keys(query: GroupByQuery, further: Sequence[Any] = ()) -> Expr:
    """The columns of the keys, and further ones."""
    frame = query.frame
    if frame.ndim == 1:
        return frame
    labels = [*(b for b in query.by if not isinstance(b, Expr)), *further]
    columns = [c for c in frame.columns if c in labels] or list(frame.columns[:1])
    return Projection(frame, columns)


def _sample_rows(query: GroupByQuery, chunks: Chunks) -> GroupEstimate:
    """Estimate from some rows of three partitions."""
    npartitions = int(query.frame.npartitions)
    (samples,) = _of_three(chunks, (gpuagg_sample, _keys_only(query), ()))
    how = f"sampled rows of {len(samples)} of {npartitions} partitions"
    rows = round(sum(sample.rows for sample in samples) / len(samples) * npartitions)
    return GroupEstimate(from_samples(samples, npartitions), False, how, rows)


def _lowered(frame: Expr, by: Sequence[Any]) -> Chunks:
    """An input for ``_of_three``; what reads it runs in tasks of its own.

    It is not tuned: that would fuse the chosen partitions with their neighbours.
    """
    lowered: Any = frame.simplify().lower_completely()
    keys = (b.simplify().lower_completely() if isinstance(b, Expr) else b for b in by)
    return Chunks(lowered, tuple(keys), (), workers=0, inside=())


# A task, its plan, and the keys that it has besides.
Step = tuple[Any, Plan, tuple[Any, ...]]


def _of_three(chunks: Chunks, *steps: Step) -> list[list[Any]]:
    """The results of each step for three partitions, which are read once for all of them."""
    npartitions = int(chunks.frame.npartitions)
    three = sorted({0, npartitions // 2, npartitions - 1})
    graph: dict[Any, Any] = {}
    keys = []
    for node in chunks.region[1]:
        if isinstance(node, Blockwise):
            for i in three if node.npartitions > 1 else [0]:
                graph[node._name, i] = node._task((node._name, i), i)
    for run, plan, by in steps:
        buckets = tuple((i,) for i in three)
        of_step = replace(chunks, by=(*chunks.by, *by), buckets=buckets, readers=0)
        name = f"{run.__name__}-{tokenize(of_step, plan)}"
        graph |= of_step.layer(name, run, plan=plan)
        keys += [(name, i) for i in range(len(three))]
    results = iter(_computed(graph, keys))
    return [list(islice(results, len(three))) for _ in steps]


def _keys_only(query: GroupByQuery, *further: Column) -> Plan:
    size = (StateUse("size", ()),)
    return Plan((*query.plan.keys, *further), (), size, (), dropna=query.plan.dropna)


def _computed(graph: Any, keys: list[Any]) -> list[Any]:
    """The results of tasks; ``_InputFailed`` where the input fails, not a task of ours."""
    get = get_scheduler() or dask.threaded.get
    try:
        results: list[Any] = get(graph, keys)
    except Exception as error:
        # by name: errors of a worker come with a copy of their traceback
        names = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
        ours = {gpuagg_chunk.__name__, gpuagg_sample.__name__}
        # the steps of the input run inside of a task of ours, by ``frame_of``
        if not names.isdisjoint(ours) and frame_of.__name__ not in names:
            raise
        raise _InputFailed from error
    return results


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
        raise Unsupported(f"split_out={outputs!r} is not a number of outputs")
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


def in_one_output(decision: Routing) -> Routing:
    """The decision where all outputs would be brought together at once."""
    if decision.route is Route.ALIGNED:
        return decision
    return replace(decision, outputs=1, pieces=max(decision.pieces, decision.outputs))


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
