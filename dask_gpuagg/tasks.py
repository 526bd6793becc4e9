"""What the tasks of a planned group-by do: functions of partitions and partials.

Their names are the prefixes of the task keys that a dashboard shows.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from dask.dataframe.groupby import _groupby_raise_unaligned, _is_aligned
from dask.dataframe.utils import is_index_like, is_series_like

from dask_gpuagg.engines import column_of, engine_of
from dask_gpuagg.engines.unify import DTYPES, differing, unify
from dask_gpuagg.plan import Plan
from dask_gpuagg.runs import task

Partial = dict[str, Any]

# columns of a table of pieces: the output a piece belongs to, the partition it comes from, bytes
PARTITION, ORDER, PIECE = "_partitions", "order", "piece"


def gpuagg_partial(frame: Any, *by: Any, plan: Plan) -> Partial:
    """Task: one partition to one partial.

    Parameters
    ----------
    frame : DataFrame or Series
    *by : labels, Series, Index or callables
        As the user gave them, per partition.
    plan : Plan

    Raises
    ------
    ValueError
        When a key Series is not aligned with the frame.
    """
    keys, columns = _inputs_of(frame, by, plan)
    engine = engine_of(frame)
    columns, dtypes = differing(columns, plan, engine)
    with task(plan, "partial"):
        own = plan if dtypes is None else plan.retyped(dtypes)
        return _labelled(engine.partial(keys, columns, frame.index, own), dtypes)


def gpuagg_direct(frame: Any, *by: Any, plan: Plan, shape: Any) -> Any:
    """Task: the only partition to the output."""
    keys, columns = _inputs_of(frame, by, plan)
    engine = engine_of(frame)
    columns, dtypes = differing(columns, plan, engine)
    with task(plan, "direct"):
        if dtypes is None:
            return engine.direct(keys, columns, plan, shape)
        own = plan.retyped(dtypes)
        partial = engine.partial(keys, columns, frame.index, own)
        return engine.finalize([partial], own, shape)


def gpuagg_combine(partials: Sequence[Partial], plan: Plan) -> Partial:
    """Task: several partials to one."""
    with task(plan, "combine"):
        engine = engine_of(partials[0])
        tables, together, dtypes = unify(partials, plan, engine)
        return _labelled(engine.combine(tables, together), dtypes)


def gpuagg_finalize(
    partials: Sequence[Partial],
    plan: Plan,
    meta: Any,
    bucket: tuple[int, int] | None = None,
) -> Any:
    """Task: the last partials to an output."""
    with task(plan, "finalize"):
        engine = engine_of(partials[0])
        tables, together, _ = unify(partials, plan, engine)
        return engine.finalize(tables, together, meta, bucket)


def gpuagg_split(partial: Partial, plan: Plan, buckets: int) -> list[Partial]:
    """Task: one partial to one piece per output, by key hash."""
    tables = {name: table for name, table in partial.items() if name != DTYPES}
    pieces = engine_of(partial).split(tables, plan, buckets)
    return [_labelled(piece, partial.get(DTYPES)) for piece in pieces]


def gpuagg_pieces(partial: Partial, plan: Plan, buckets: int, order: int) -> pd.DataFrame:
    """Task: one partial as a table of pieces, one row for each output that gets any.

    Dask's shuffles move rows of a table that has one dtype a column everywhere, through Arrow,
    files and other processes; a partial may have others than were promised, Python objects among
    them. So a piece travels as bytes.
    """
    pieces = gpuagg_split(partial, plan, buckets)
    # a piece without rows still tells the categories of its keys
    kept = [i for i, piece in enumerate(pieces) if not plan.observed or _has_rows(piece)]
    data = [pickle.dumps(pieces[i], protocol=pickle.HIGHEST_PROTOCOL) for i in kept]
    return pieces_table(np.array(kept, np.int64), np.full(len(kept), order), data)


def pieces_table(outputs: Any, order: Any, data: Sequence[bytes]) -> pd.DataFrame:
    """A table of pieces, as ``gpuagg_pieces`` makes it."""
    piece = pd.Series(data, dtype=pd.ArrowDtype(pa.large_binary()))
    return pd.DataFrame({PARTITION: outputs, ORDER: order, PIECE: piece})


def gpuagg_merge(table: Any, plan: Plan, meta: Any, bucket: tuple[int, int]) -> Any:
    """Task: the pieces of one output, or one whole partial, to that output."""
    if isinstance(table, dict):
        return gpuagg_finalize([table], plan, meta, bucket)
    if len(table) == 0:
        return meta
    ordered = table.sort_values(ORDER, kind="stable")
    pieces = [pickle.loads(data) for data in ordered[PIECE]]
    return gpuagg_finalize(pieces, plan, meta, bucket)


def gpuagg_gather(outputs: Sequence[Any], plan: Plan, meta: Any) -> Any:
    """Task: finished outputs to one, sorted by key if the plan says so."""
    return engine_of(outputs[0]).gather(outputs, plan, meta)


def gpuagg_select(whole: Any, plan: Plan, bucket: tuple[int, int]) -> Any:
    """Task: the groups of a finished output that belong to one of several outputs."""
    return engine_of(whole).select(whole, plan, bucket)


def _labelled(tables: Partial, dtypes: tuple[Any, ...] | None) -> Partial:
    return tables if dtypes is None else tables | {DTYPES: dtypes}


def _has_rows(piece: Partial) -> bool:
    return any(len(table) for name, table in piece.items() if name != DTYPES)


def _inputs_of(frame: Any, by: Sequence[Any], plan: Plan) -> tuple[list[Any], list[Any]]:
    """The key and value columns of a partition."""
    if not all(_is_aligned(frame, key) for key in by):
        _groupby_raise_unaligned(frame, by=list(by))
    keys = [_resolve(frame, b) for b in by]
    columns = [frame if frame.ndim == 1 else column_of(frame, c.label) for c in plan.columns]
    return keys, columns


def _resolve(frame: Any, by: Any) -> Any:
    """Values of one key of a partition."""
    if is_series_like(by):
        return by
    if is_index_like(by):
        return by.to_series()
    if callable(by):
        return frame.index.map(by).to_series()
    # asking the frame itself: cuDF would make a pandas index of its labels first
    if frame.ndim == 2 and by in frame:
        return column_of(frame, by)
    return frame.index.get_level_values(by).to_series()
