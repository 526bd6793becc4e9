"""Quantiles of few groups whose rows stay where they are: when; see ``narrowing``."""

from __future__ import annotations

from dataclasses import replace

from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr.io import FromGraph, FromPandas

from dask_gpuagg.cluster.preflight import current_client
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.narrowing import is_narrowed, rows_inside, stride_of, targets
from dask_gpuagg.planning.chunking import unprojected
from dask_gpuagg.planning.chunks import STREAMED_READERS, Chunks
from dask_gpuagg.planning.nodes import GroupByNarrowed, Promised
from dask_gpuagg.planning.query import GroupByQuery
from dask_gpuagg.planning.route import Routing
from dask_gpuagg.planning.samples import estimate_groups, holds_data
from dask_gpuagg.settings import settings

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


def narrowed(query: GroupByQuery, decision: Routing) -> Expr | None:
    """The node of a query whose rows need not be exchanged, or ``None``.

    Parameters
    ----------
    query : GroupByQuery
    decision : Routing

    Returns
    -------
    Expr or None
        With one partition.

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
    least = ROWS_FROM * (_OF_ONE_GPU if device and not between else share)
    if rows < max(least, ROWS_OF_A_GROUP * share * groups):
        return None
    stride = stride_of(rows, groups)
    inside = rows_inside(rows, groups, stride)
    travel = rows // stride + len(targets(query.plan)) * inside
    if travel > ROWS_OF_A_TASK[device] or (device and groups > GROUPS_OF_DEVICE):
        return None
    reason = f"about {groups:,} groups of {rows:,} rows, which are not moved"
    decision = replace(decision, reason=reason, groups=groups, bound=False)
    promised = Promised(query.meta, query.plan)
    most = max(MOST_INSIDE, 2 * inside / rows)
    return GroupByNarrowed(chunks, query.plan, promised, decision, stride, most)


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
