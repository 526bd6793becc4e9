"""Tasks of a planned group-by: functions of partitions and partials.

Their names are the prefixes of the task keys that a dashboard shows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import engine_name, engine_of
from dask_gpuagg.plan import Partial, Plan
from dask_gpuagg.reporting.runs import Task, task
from dask_gpuagg.tasks.merging import (
    DTYPES,
    bytes_of,
    combined,
    finalized,
    labelled,
    tables_of,
)
from dask_gpuagg.tasks.partials import (
    Inputs,
    engine_for,
    finished_of,
    inputs_of,
    inputs_there,
    partials_of,
    partials_of_stream,
    rows_of,
)
from dask_gpuagg.tasks.reading import Chunk, reading, show_progress

# rows that show all of a few groups; two samples of millions share some dozens
ROWS_OF_A_SAMPLE = 1 << 15
# columns of a table of pieces: the output a piece belongs to, the partition it comes from, bytes
PARTITION, ORDER, PIECE = "_partitions", "order", "piece"


def gpuagg_partial(frame: Any, *by: Any, plan: Plan) -> Partial:
    """Task: one partition to one partial."""
    show_progress()
    part = inputs_of(frame, by, plan)
    with task(plan, "partial") as done:
        partial = combined(partials_of([part], plan), plan, owned=True)
        read(done, [part], plan)
        done.groups = rows_of(partial)
        return partial


def gpuagg_direct(frame: Any, *by: Any, plan: Plan, shape: Any) -> Any:
    """Task: the only partition to the output."""
    with task(plan, "direct") as done:
        engine = engine_of(frame)
        direct = engine.direct_of_frame(frame, by, plan, shape)
        if direct is not None:
            output, nbytes = direct
            done.saw(engine.NAME, len(frame), len(output), nbytes)
            return output
        part = inputs_of(frame, by, plan)
        output = finished_of([part], plan, shape)
        read(done, [part], plan)
        done.groups = len(output)
        return output


def gpuagg_chunk(chunk: Chunk, plan: Plan, pieces: int | None = None) -> Partial | list[Partial]:
    """Task: several partitions to one partial, or to so many pieces of it by key hash."""
    show_progress()

    def merged(partials: list[Partial]) -> Partial:
        return combined(partials, plan, owned=True)

    with task(plan, "chunk") as done:
        partial = _reduced(
            chunk, plan, done, lambda inputs: merged(partials_of(inputs, plan)), merged
        )
        done.groups = rows_of(partial)
    return gpuagg_split(partial, plan, pieces) if pieces else partial


def gpuagg_chunk_direct(chunk: Chunk, plan: Plan, meta: Any, outputs: int) -> Any:
    """Task: all partitions to the output, or to a list of several by key hash."""
    show_progress()

    def merged(partials: list[Partial]) -> Any:
        return finalized(partials, plan, meta, owned=True)

    with task(plan, "direct") as done:
        output = _reduced(chunk, plan, done, lambda inputs: finished_of(inputs, plan, meta), merged)
        done.groups = len(output)
    return gpuagg_divide(output, plan, outputs) if outputs > 1 else output


def _reduced(
    chunk: Chunk,
    plan: Plan,
    done: Task,
    at_once: Callable[[list[Inputs]], Any],
    merged: Callable[[list[Partial]], Any],
) -> Any:
    """A chunk's partitions reduced at once where they are there, or merged as they are read."""
    if chunk.readers:
        with reading(chunk.parts, chunk.readers) as frames:
            return merged(partials_of_stream(frames, plan, done.saw))
    inputs = inputs_there(chunk, plan)
    result = at_once(inputs)
    read(done, inputs, plan)
    return result


def gpuagg_combine(partials: Sequence[Partial], plan: Plan) -> Partial:
    """Task: several partials to one."""
    with task(plan, "combine") as done:
        partial = combined(partials, plan)
        done.saw(engine_name(partials[0]), sum(map(rows_of, partials)), rows_of(partial))
        return partial


def gpuagg_finalize(
    partials: Sequence[Partial],
    plan: Plan,
    meta: Any,
    bucket: tuple[int, int] | None = None,
    after: Sequence[None] = (),
) -> Any:
    """Task: the last partials to an output, ``after`` others that give nothing."""
    with task(plan, "finalize") as done:
        output = finalized(partials, plan, meta, bucket)
        done.saw(engine_name(partials[0]), sum(map(rows_of, partials)), len(output))
        return output


def gpuagg_split(partial: Partial, plan: Plan, buckets: int) -> list[Partial]:
    """Split a partial into one piece per output, by the hash of the keys."""
    with task(plan, "exchange") as done:
        tables, engine, rows = tables_of(partial), engine_of(partial), rows_of(partial)
        pieces = engine.within_memory(
            "splitting a partial", lambda: engine.split(tables, plan, buckets)
        )
        done.saw(engine.NAME, rows, rows, bytes_of(partial, engine))
        return [labelled(piece, partial.get(DTYPES)) for piece in pieces]


def gpuagg_barrier(pieces: Sequence[Partial]) -> None:
    """Task: run after all pieces of a partial exist; return None."""


def gpuagg_pieces(partial: Partial, plan: Plan, buckets: int, order: int) -> pd.DataFrame:
    """Task: one partial as a table of pieces, one row for each output that gets any.

    Dask's shuffles move rows of a table that has one dtype a column everywhere, through Arrow,
    files and other processes; a partial may have others than were promised, Python objects among
    them. So a piece travels as bytes.
    """
    pieces = gpuagg_split(partial, plan, buckets)
    every = _wants_categories(plan)
    filled = [
        i for i, piece in enumerate(pieces) if every or any(map(len, tables_of(piece).values()))
    ]
    data = [pickle.dumps(pieces[i], protocol=pickle.HIGHEST_PROTOCOL) for i in filled]
    return pieces_table(np.array(filled, np.int64), np.full(len(filled), order), data)


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
    with task(plan, "gather") as done:
        rows, engine = sum(map(len, outputs)), engine_of(outputs[0])
        done.saw(engine.NAME, rows, rows)
        return engine.within_memory(
            "gathering outputs", lambda: engine.concatenated_outputs(outputs, plan, meta)
        )


def gpuagg_divide(output: Any, plan: Plan, outputs: int) -> list[Any]:
    """Task: one finished output to several, by key hash."""
    with task(plan, "divide") as done:
        engine = engine_of(output)
        done.saw(engine.NAME, len(output), len(output))
        return engine.within_memory(
            "dividing an output", lambda: engine.divided_outputs(output, plan, outputs)
        )


def read(done: Task, parts: Sequence[Inputs], plan: Plan) -> None:
    """Say what a task read."""
    nbytes = sum(part.nbytes for part in parts)
    done.saw(engine_for(parts[0].keys[0], plan), sum(map(len, parts)), nbytes=nbytes)


def _wants_categories(plan: Plan) -> bool:
    """Whether an output needs the categories of pieces without rows.

    Of its keys, to add groups that no row has, or to sort by an order that all outputs share;
    of the values, where they are counted.
    """
    if plan.shape == "values" or not plan.observed:
        return True
    return plan.sort and any(dtype_class(key.dtype) == "category" for key in plan.keys)


@dataclass(frozen=True, slots=True)
class KeySample:
    """Distinct keys of some rows, a Series of pandas for each key column.

    ``taken`` rows of the sample belong to a group, and about ``rows`` of the partition.
    """

    keys: list[pd.Series]
    taken: int
    rows: int


def gpuagg_sample(chunk: Chunk, plan: Plan) -> KeySample:
    """Task: the distinct keys of rows at equal distances of the chunk's only partition.

    Of sorted rows their distance shows every long run of equal keys.
    """
    (inputs,) = inputs_there(chunk, plan)
    step = max(-(-len(inputs) // ROWS_OF_A_SAMPLE), 1)
    columns = [engine_of(key).sampled(key, step).array for key in inputs.keys]
    table = pd.DataFrame(dict(enumerate(columns)))
    of_groups = table.dropna() if plan.dropna else table
    distinct = of_groups.drop_duplicates(ignore_index=True)
    rows = len(inputs) * len(of_groups) // max(len(table), 1)
    return KeySample([distinct[i] for i in distinct], len(of_groups), rows)
