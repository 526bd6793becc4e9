"""Estimates of the number of groups, from what is known of an input before the query runs.

Metadata first: key dtypes that bound the groups, frames held in memory. Where that leaves the
number of groups open and there are many partitions, the distinct keys of three partitions are
computed, if that costs no more than reading them. Of a few partitions that this process holds
some rows are read.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import dask
import numpy as np
import pandas as pd
from dask._task_spec import DataNode
from dask.base import get_scheduler, tokenize
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Expr, Partitions, Projection
from dask.dataframe.dask_expr.io import IO, FromGraph, FromPandas
from dask.dataframe.dask_expr.io.io import FusedIO
from dask.utils import get_default_shuffle_method

from dask_gpuagg.cache import Cache
from dask_gpuagg.cluster import cluster_problem, current_client
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.engines.host.grouping import group
from dask_gpuagg.plan import Column, Plan, StateUse
from dask_gpuagg.planning.chunks import USER_FUNCTIONS, Chunks, chunk_task
from dask_gpuagg.planning.files import span_of_key
from dask_gpuagg.planning.nodes import GroupByPartial, GroupBySampled
from dask_gpuagg.planning.query import GroupByQuery
from dask_gpuagg.reporting.fallbacks import note_fallback
from dask_gpuagg.settings import settings
from dask_gpuagg.tasks.tasks import (
    KeySample,
    gpuagg_partial,
    gpuagg_sample,
    gpuagg_sample_partition,
)

# Dask's limit: up to this number of partitions it reduces by a tree
FEW_PARTITIONS = 15
# assumed of a key or value whose dtype does not say it
_TEXT_BYTES = 16
_BOOLEAN, _BYTE = 2, 256


@dataclass(frozen=True, slots=True)
class GroupEstimate:
    """Expected number of groups.

    Attributes
    ----------
    groups : int, optional
        ``None`` when nothing is known.
    bound : bool
        Whether ``groups`` is an upper bound rather than an estimate.
    how : str
        Where the number comes from, in words.
    rows : int, optional
        Rows of groups, about, where a sample of rows tells.
    pair_bytes : int, optional
        Bytes of the distinct pairs of key and value, about, of the column that has most.
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
    if not isinstance(numpy_dtype, np.dtype):
        return None
    if numpy_dtype.kind == "b":
        return _BOOLEAN + 1
    if numpy_dtype.kind in "iu" and numpy_dtype.itemsize == 1:
        return _BYTE + 1
    return None


def from_metadata(dtypes: Sequence[Any], rows: int | None) -> GroupEstimate:
    """Upper bound on the groups from the keys' dtypes and the number of rows."""
    bounds = [dtype_bound(dtype) for dtype in dtypes]
    product: int | None = 1
    for bound in bounds:
        product = None if bound is None or product is None else product * bound
    if product is not None and (rows is None or product <= rows):
        return GroupEstimate(product, True, "the keys' dtypes admit no more")
    if rows is not None:
        return GroupEstimate(rows, True, f"there are {rows:,} rows")
    return GroupEstimate(None, False, "the metadata does not bound the groups")


def from_samples(samples: Sequence[Sequence[pd.Series]], npartitions: int) -> GroupEstimate:
    """Estimate the number of groups from the distinct keys of some partitions.

    Notes
    -----
    Capture and recapture (Petersen 1896, Lincoln 1930): two partitions with ``a`` and ``b``
    distinct keys of which ``c`` are shared point to ``a * b / c`` keys in all. Without shared
    keys (sorted or clustered data) every partition is taken to bring keys of its own. The
    pair that points to most keys counts: too many expected groups cost an exchange, too few
    the memory of a worker.
    """
    counts, shared, groups = _overlaps(samples)
    how = f"sampled {len(samples)} of {npartitions} partitions"
    if len(samples) == npartitions:
        return GroupEstimate(groups, False, how)
    limit = round(sum(counts) / len(counts) * npartitions)
    return GroupEstimate(_recaptured(counts, shared, groups, limit), False, how)


def from_key_samples(samples: Sequence[KeySample], npartitions: int) -> GroupEstimate:
    """Estimate the number of groups from the distinct keys of some rows of some partitions.

    Notes
    -----
    Capture and recapture, as in ``from_samples``. Where samples share no keys, a partition has as
    many as the repetitions within its sample point to: of ``n`` keys, ``t`` rows repeat about
    ``t * t / 2 n``. Of keys of which few have most rows, all this finds too few.
    """
    counts, shared, groups = _overlaps([sample.keys for sample in samples])
    of_partitions = map(_keys_of_a_partition, counts, samples)
    limit = round(sum(of_partitions) / len(counts) * npartitions)
    how = f"sampled rows of {len(samples)} of {npartitions} partitions"
    rows = round(sum(sample.rows for sample in samples) / len(samples) * npartitions)
    return GroupEstimate(_recaptured(counts, shared, groups, limit), False, how, rows)


def _keys_of_a_partition(distinct: int, sample: KeySample) -> int:
    taken, repeated = sample.taken, sample.taken - distinct
    if sample.rows == taken or repeated >= distinct:
        return distinct
    return min(sample.rows, taken * taken // (2 * repeated)) if repeated else sample.rows


def _recaptured(
    counts: list[int], shared: dict[tuple[int, int], int], groups: int, limit: int
) -> int:
    """The most keys to which a pair of samples points, but no more than ``most``."""
    pairs = (
        round(counts[a] * counts[b] / both) if both else limit for (a, b), both in shared.items()
    )
    return max(min(limit, max(pairs, default=0)), groups)


def _overlaps(
    samples: Sequence[Sequence[pd.Series]],
) -> tuple[list[int], dict[tuple[int, int], int], int]:
    """Distinct keys of each sample, of which each pair shares how many, and those of all."""
    counts = [len(sample[0]) for sample in samples]
    columns = [
        pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
        for parts in zip(*samples, strict=True)
    ]
    groups = group(columns, dropna=False)
    seen = np.zeros((len(samples), groups.n), dtype=bool)
    sample_of_row = np.repeat(np.arange(len(samples)), counts)
    seen[sample_of_row, groups.codes] = True
    pairs = combinations(range(len(samples)), 2)
    return counts, {(a, b): int((seen[a] & seen[b]).sum()) for a, b in pairs}, groups.n


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
    pairs = _pairs_to_count(query)
    if bound.groups is None:
        span = span_of_key(query.frame, query.by)
        if span is not None and span <= enough:
            bound = GroupEstimate(span, False, "by the statistics of three files")
    # a bound beyond the limit says nothing about how many groups there are
    if bound.groups is None or bound.groups > enough:
        return _of_sample(query, chunks, pairs, bound.how)
    if not pairs:
        return bound
    return replace(bound, pair_bytes=_of_sample(query, chunks, pairs, bound.how).pair_bytes)


def _unfused(query: GroupByQuery) -> GroupByQuery:
    """The query on single files, where Dask reads several narrow ones as one partition."""
    roots = [query.frame, *query.by]
    nodes = [node for root in roots if isinstance(root, Expr) for node in root.walk()]
    # other nodes and sources have as many partitions as the inputs had when they were fused
    sources = [node for node in nodes if isinstance(node, IO)]
    if not all(isinstance(node, E.Blockwise) for node in nodes):
        return query
    if not all(isinstance(source, FusedIO) for source in sources):
        return query
    for i, root in enumerate(roots):
        for node in root.find_operations(FusedIO) if isinstance(root, Expr) else ():
            roots[i] = roots[i].substitute(node, node.operand("_expr"))
    return replace(query, frame=roots[0], by=roots[1:])


def _of_sample(
    query: GroupByQuery, chunks: Chunks | None, pairs: Sequence[int], how: str
) -> GroupEstimate:
    """Estimate from a sample, where one is taken; ``how`` says what is known without one."""
    npartitions = query.frame.npartitions
    few = npartitions <= FEW_PARTITIONS and chunks is None
    if few and not (npartitions > 1 and _in_memory(query)):
        return GroupEstimate(None, False, how)
    if settings().sample == "never":
        return GroupEstimate(None, False, "gpuagg.sample is 'never'")
    if chunks is not None and chunks.readers:
        return GroupEstimate(None, False, "reading keys costs more than an exchange")
    # the schema is part of the identity: masked and plain arrays of equal values share a token
    kind = "rows" if few or chunks is not None else "partitions"
    plan = query.plan
    by = (b._name if isinstance(b, Expr) else repr(b) for b in query.by)
    keys = (f"dropna={plan.dropna}", *(str(k) for k in plan.keys), *by)
    name = (kind, query.frame._name, *keys, *(repr(plan.columns[c].label) for c in pairs))
    estimate = _recent.get(name)
    if estimate is None:
        # it asks the scheduler, which an estimate that is there needs not
        obstacle = _obstacle(query)
        if obstacle is not None:
            return GroupEstimate(None, False, obstacle)
        try:
            if chunks is not None:
                estimate = _sample_rows(query, chunks)
            else:
                estimate = _sample_rows_here(query) if few else _sample(query, pairs)
        except _InputFailed as failure:
            # the query itself will raise the same error
            return GroupEstimate(None, False, f"sampling failed: {failure.__cause__!r}")
        except Exception as error:
            reason = f"sampling failed: {error!r}"
            what = f"by {', '.join(str(key.label) for key in query.plan.keys)}"
            how = "is planned without an estimate of its groups"
            note_fallback("-".join(name), what, reason, cause=error, how=how)
            return GroupEstimate(None, False, reason)
        _recent.put(name, estimate)
    return estimate


def rows_of(frame: Expr) -> int | None:
    """Rows of an input at most, where it is a filter or projection of a frame held in memory."""
    sources = [node for node in frame.walk() if isinstance(node, IO)]
    plain = all(
        isinstance(n, E.Blockwise | IO) and not isinstance(n, USER_FUNCTIONS) for n in frame.walk()
    )
    rows = list(map(_rows_held, sources))
    numbers = [n for n in rows if n is not None]
    return max(numbers) if plain and numbers and len(numbers) == len(rows) else None


def _rows_held(source: Expr) -> int | None:
    """Rows of a source whose data this process holds."""
    if isinstance(source, FromPandas):
        return len(source.frame)
    if not isinstance(source, FromGraph):
        return None
    data = [v.value if isinstance(v, DataNode) else v for v in source.operand("layer").values()]
    return sum(map(len, data)) if data and all(hasattr(type(v), "dtypes") for v in data) else None


def _in_memory(query: GroupByQuery) -> bool:
    """Whether the input, as it is grouped, is already in this process's memory."""
    roots = [query.frame, *(b for b in query.by if isinstance(b, Expr))]
    nodes = [node for root in roots for node in root.walk()]
    plain = all(isinstance(node, IO | Projection) for node in nodes)
    sources = [node for node in nodes if isinstance(node, IO)]
    return plain and all(_rows_held(source) is not None for source in sources)


def _obstacle(query: GroupByQuery) -> str | None:
    """Why the input cannot be sampled cheaply; ``None`` if it can."""
    if any(callable(b) and not isinstance(b, Expr) for b in query.by):
        return "a key is a function"
    for root in [query.frame, *(b for b in query.by if isinstance(b, Expr))]:
        for node in root.walk():
            if isinstance(node, FromGraph) and not holds_data(node):
                return "the input is a graph of unknown cost"
            if isinstance(node, USER_FUNCTIONS) or not isinstance(node, E.Blockwise | IO):
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


def _pairs_to_count(query: GroupByQuery) -> tuple[int, ...]:
    """Columns whose distinct pairs decide whether one task merges them, or several."""
    host = engine_name(query.meta) != DEVICE and query.frame.ndim == 2
    sent = query.shuffle_method is None and get_default_shuffle_method() == "p2p"
    return query.plan.pairs if host and sent else ()


def _sample(query: GroupByQuery, pairs: Sequence[int]) -> GroupEstimate:
    frame, plan = query.frame, query.plan
    values = [plan.columns[c] for c in pairs]
    labels = [b for b in query.by if not isinstance(b, Expr)] + [c.label for c in values]
    if frame.ndim == 2:
        columns = [c for c in frame.columns if c in labels] or list(frame.columns[:1])
        frame = Projection(frame, columns)
    sampled = [GroupBySampled(frame, _keys_only(query, v), *query.by, v.label) for v in values]
    partials, *of_pairs = _of_three(GroupByPartial(frame, _keys_only(query), *query.by), *sampled)
    nbytes = []
    for value, samples in zip(values, of_pairs, strict=True):
        pairs_of_value = from_key_samples(samples, frame.npartitions).groups or 0
        nbytes.append(pairs_of_value * sum(size_of(c.dtype) for c in (*plan.keys, value)))
    keys = [
        [_on_host(partial["groups"][f"k{i}"]) for i in range(len(plan.keys))]
        for partial in partials
    ]
    return replace(from_samples(keys, frame.npartitions), pair_bytes=max(nbytes, default=None))


def _of_three(*nodes: Expr) -> list[list[Any]]:
    """The results of each node for three of its partitions."""
    # not tuned: that would fuse the chosen partitions with their neighbours
    chosen = [Partitions(node, _three(node.npartitions)) for node in nodes]
    lowered = [node.simplify().lower_completely() for node in chosen]
    graph = {key: task for node in lowered for key, task in node.__dask_graph__().items()}
    results = _computed(graph, [key for node in lowered for key in node.__dask_keys__()])
    taken = len(results) // len(nodes)
    return [results[i : i + taken] for i in range(0, len(results), taken)]


def _sample_rows_here(query: GroupByQuery) -> GroupEstimate:
    (samples,) = _of_three(GroupBySampled(query.frame, _keys_only(query), *query.by))
    return from_key_samples(samples, query.frame.npartitions)


def _sample_rows(query: GroupByQuery, chunks: Chunks) -> GroupEstimate:
    npartitions, plan = int(query.frame.npartitions), _keys_only(query)
    alone = replace(chunks, buckets=tuple((i,) for i in _three(npartitions)))
    name = f"gpuagg_sample-{tokenize(alone, plan)}"
    keys = [(name, i) for i in range(len(alone))]
    graph = {key: chunk_task(key, gpuagg_sample, alone, i, plan=plan) for i, key in enumerate(keys)}
    needed = {key for task in graph.values() for key in task.dependencies}
    futures = {key: future for key, future in alone.futures().items() if key in needed}
    return from_key_samples(_computed({**graph, **futures}, keys), npartitions)


def _three(npartitions: int) -> list[int]:
    return sorted({0, npartitions // 2, npartitions - 1})


def _keys_only(query: GroupByQuery, *further: Column) -> Plan:
    size = (StateUse("size", ()),)
    return Plan((*query.plan.keys, *further), (), size, (), dropna=query.plan.dropna)


def _computed(graph: Any, keys: list[Any]) -> list[Any]:
    """The results of tasks; ``_InputFailed`` where the input fails, not a task of ours."""
    get = get_scheduler() or dask.threaded.get
    try:
        results: list[Any] = get(graph, keys)
    except Exception as error:
        if _in_task_of_ours(error):
            raise
        raise _InputFailed from error
    return results


def _in_task_of_ours(error: Exception) -> bool:
    # by name: errors of a worker come with a copy of their traceback
    frames = traceback.walk_tb(error.__traceback__)
    tasks = (gpuagg_partial, gpuagg_sample, gpuagg_sample_partition)
    ours = [task.__name__ for task in tasks]
    return any(frame.f_code.co_name in ours for frame, _ in frames)


def _on_host(keys: Any) -> Any:
    return keys.to_pandas() if hasattr(keys, "to_pandas") else keys


def size_of(dtype: Any) -> int:
    """Bytes of a value, roughly."""
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return int(dtype.itemsize)
    inner = getattr(dtype, "numpy_dtype", None)
    fixed = isinstance(inner, np.dtype) and inner.kind != "O"
    return int(inner.itemsize) + 1 if fixed and inner is not None else _TEXT_BYTES
