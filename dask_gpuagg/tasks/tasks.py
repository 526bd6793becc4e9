"""Tasks of a planned group-by: functions of partitions and partials.

Their names are the prefixes of the task keys that a dashboard shows. Some find quantiles without
moving rows (``dask_gpuagg.narrowing``): values are compared in the dtype that all partitions have
together; where that is no plain number, all rows are brought together.
"""

import functools
import operator
import pickle
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from dask.dataframe.multi import merge_chunk

from dask_gpuagg.aggregations import Kind
from dask_gpuagg.decomposition import retyped
from dask_gpuagg.dtypes import INTEGRAL, dtype_class
from dask_gpuagg.engines import DEVICE, HOST, Engine, engine_name, engine_of
from dask_gpuagg.engines.host import narrowed
from dask_gpuagg.engines.host.compiled import LEAST_ROWS, should_run
from dask_gpuagg.expressions import Derived
from dask_gpuagg.narrowing import is_narrowed
from dask_gpuagg.plan import Partial, Plan
from dask_gpuagg.reporting.runs import Task, task
from dask_gpuagg.tasks.partials import (
    DTYPES,
    Inputs,
    bytes_of,
    combined,
    common_dtypes,
    engine_for,
    finalized,
    finished_of,
    inputs_of,
    inputs_there,
    labelled,
    partials_of,
    partials_of_stream,
    rows_of,
    stackable,
    stacked,
    tables_of,
    unify,
)
from dask_gpuagg.tasks.reading import Chunk, reading, show_progress

# rows that show all of a few groups; two samples of millions share some dozens
ROWS_OF_A_SAMPLE = 1 << 15
# times between which pandas fails with no property of times
_YEARS = ("1700", "2200")
# columns of a table of pieces: the output a piece belongs to, the partition it comes from, bytes
PARTITION, ORDER, PIECE = "_partitions", "order", "piece"


def gpuagg_derived(frame: Any, derived: Derived) -> Any:
    """Task: the columns and rows of a partition that a group-by reads."""
    return engine_of(frame).derived(frame, derived)


def gpuagg_partial(frame: Any, mask: Any, *by: Any, plan: Plan) -> Partial:
    """Task: one partition to one partial."""
    show_progress()
    part = inputs_of(frame, by, plan, mask)
    with task(plan, "partial") as done:
        partial = combined(partials_of([part], plan), plan, owned=True)
        read(done, [part], plan)
        done.groups = rows_of(partial)
        return partial


def blanked(column: Any, mask: Any, kinds: str) -> Any:
    """Task: a column of such a kind of dtype with ones for the rows that are to leave.

    One whose times are all near ours stays as it is. Among bools held as objects these are true.
    """
    dtype = column.dtype
    if not isinstance(dtype, np.dtype) or dtype.kind not in kinds:
        return column
    values = column.to_numpy()
    if dtype.kind == "M":
        # the ticks of a null are the lowest
        first, last = (np.datetime64(year).astype(dtype).view("i8") for year in _YEARS)
        ticks = values.view("i8")
        if first <= ticks.min(initial=last) and ticks.max(initial=first) <= last:
            return column
    stays = mask.array.to_numpy(bool, na_value=False)
    one = np.ones(1, dtype)
    if dtype.kind == "O" and pd.api.types.infer_dtype(values[stays]) in ("boolean", "empty"):
        one[0] = True
    of_all = np.where(stays, values, one)
    return pd.Series(of_all, column.index, dtype, column.name)


def gpuagg_direct(frame: Any, mask: Any, *by: Any, plan: Plan, shape: Any) -> Any:
    """Task: the only partition to the output."""
    with task(plan, "direct") as done:
        engine = engine_of(frame)
        direct = engine.direct_of_frame(frame, by, plan, shape) if mask is None else None
        if direct is not None:
            output, nbytes = direct
            done.saw(engine.NAME, len(frame), len(output), nbytes)
            return output
        part = inputs_of(frame, by, plan, mask)
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


def gpuagg_chunk_direct(chunk: Chunk, plan: Plan, meta: Any) -> Any:
    """Task: all partitions to the output."""
    show_progress()

    def merged(partials: list[Partial]) -> Any:
        return finalized(partials, plan, meta, owned=True)

    with task(plan, "direct") as done:
        output = _reduced(chunk, plan, done, lambda inputs: finished_of(inputs, plan, meta), merged)
        done.groups = len(output)
        return output


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
    # the categories of pieces without rows are counted, or are groups, or make the order
    is_ordered = plan.sort and any(dtype_class(key.dtype) == "category" for key in plan.keys)
    every = plan.shape == "values" or not plan.observed or is_ordered
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


# The first result of a chunk: ``samples``, a list of tables; ``dtypes`` and ``rows`` of each of its
# partitions; and whether its rows can be counted, ``ready``.
Sampled = dict[str, Any]
# The second result of a chunk: ``counted``, a list of its partitions' counts, empty without
# brackets; and ``partial``, that of the other outputs, or of all without brackets.
Counted = dict[str, Any]


class Aim(NamedTuple):
    """Brackets by which rows are counted.

    ``dtypes`` are those of the columns of all partitions, where they are not as the plan has them.
    """

    brackets: Any
    dtypes: tuple[Any, ...] | None

    def plan(self, promised: Plan) -> Plan:
        """The plan for the dtypes that were found."""
        return promised if self.dtypes is None else retyped(promised, self.dtypes)


def gpuagg_sample_rows(chunk: Chunk, plan: Plan, stride: int) -> Sampled:
    """Task: some rows of each partition."""
    with task(plan, "sample") as done:
        inputs = inputs_there(chunk, plan)
        runs = stackable(inputs, plan, engine_of(inputs[0].keys[0]))
        samples = [narrowed.sample(run, plan, stride) for run in runs]
        rows = list(map(len, inputs))
        done.saw(HOST, sum(rows), sum(map(len, samples)))
        dtypes, ready = [part.dtypes for part in inputs], should_run(LEAST_ROWS)
        return {"samples": samples, "dtypes": dtypes, "rows": rows, "ready": ready}


def gpuagg_aim(sampled: Sequence[Sampled], max_inside: float, plan: Plan) -> Aim | None:
    """Task: the brackets of all groups from the samples of all chunks.

    There are none where values of all partitions together are no plain numbers, or the compiled
    loops cannot run; and where more than this share of all rows would be between them.
    """
    with task(plan, "aim") as done:
        samples = [table for of_chunk in sampled for table in of_chunk["samples"]]
        done.saw(HOST, sum(map(len, samples)), 0)
        dtypes = _dtypes_of(sampled, plan, engine_of(samples[0]))
        together = plan if dtypes is None else retyped(plan, dtypes)
        ready = all(of_chunk["ready"] for of_chunk in sampled)
        plans = [
            retyped(plan, of_partition)
            for of_chunk in sampled
            for of_partition in of_chunk["dtypes"]
            if of_partition is not None
        ]
        # the values of each partition, and of all together, are plain numbers
        if not (ready and all(map(is_narrowed, [*plans, together]))):
            return None
        brackets = narrowed.aim(samples, together)
        done.groups = len(brackets.keys)
        if brackets.inside > max_inside:
            return None
        return Aim(brackets, dtypes)


def _dtypes_of(sampled: Sequence[Sampled], plan: Plan, engine: Engine) -> tuple[Any, ...] | None:
    """Dtypes that the columns of all partitions have together, where they are not the plan's."""
    dtypes = [of_partition for of_chunk in sampled for of_partition in of_chunk["dtypes"]]
    if all(of_partition is None for of_partition in dtypes):
        return None
    promised = tuple(column.dtype for column in plan.columns)
    rows = [n for of_chunk in sampled for n in of_chunk["rows"]]
    common = common_dtypes([of_partition or promised for of_partition in dtypes], rows, engine)
    return None if common == promised else common


def gpuagg_count_sides(chunk: Chunk, plan: Plan, aim: Aim | None) -> Counted:
    """Task: the rows of a chunk counted by brackets, and the partial of the other outputs."""
    show_progress()
    with task(plan, "count") as done:
        inputs = inputs_there(chunk, plan)
        read(done, inputs, plan)
        if aim is None:
            partial_of_all = combined(partials_of(inputs, plan), plan)
            done.groups = rows_of(partial_of_all)
            return {"counted": [], "partial": partial_of_all}
        counted = _counted(inputs, aim, plan)
        rest = _others(plan)
        beside = combined(partials_of(inputs, rest), rest) if rest.outputs else None
        done.groups = narrowed.kept_rows(counted)
        return {"counted": counted, "partial": beside}


def gpuagg_widen(aim: Aim | None, chunks: Sequence[Counted], plan: Plan) -> Aim | None:
    """Task: the brackets that rows are counted by again; ``None`` where there are none."""
    if aim is None:
        return None
    with task(plan, "widen") as done:
        counted = [part for of_chunk in chunks for part in of_chunk["counted"]]
        wider = narrowed.widened(aim.brackets, counted, aim.plan(plan))
        done.saw(HOST, len(aim.brackets.keys), 0 if wider is None else len(wider.keys))
        return None if wider is None else Aim(wider, aim.dtypes)


def gpuagg_recount_sides(chunk: Chunk, plan: Plan, wider: Aim | None) -> list[Any]:
    """Task: the rows of a chunk counted by wider brackets, if there are any."""
    if wider is None:
        return []
    with task(plan, "recount") as done:
        inputs = inputs_there(chunk, plan)
        counted = _counted(inputs, wider, plan)
        done.saw(HOST, sum(map(len, inputs)), narrowed.kept_rows(counted))
        return counted


def gpuagg_pick(
    aim: Aim | None,
    chunks: Sequence[Counted],
    wider: Aim | None,
    again: Sequence[list[Any]],
    plan: Plan,
    meta: Any,
) -> Any:
    """Task: the output, from the rows that all chunks have kept."""
    with task(plan, "finalize") as done:
        partials = [of_chunk["partial"] for of_chunk in chunks if of_chunk["partial"]]
        if aim is None:
            output = finalized(partials, plan, meta)
            done.saw(engine_name(partials[0]), sum(map(rows_of, partials)), len(output))
            return output
        counted = [part for of_chunk in chunks for part in of_chunk["counted"]]
        recounted = [part for of_chunk in again for part in of_chunk]
        last = None if wider is None else wider.brackets
        rows = narrowed.picked(aim.brackets, counted, last, recounted, aim.plan(plan))
        beside = combined(partials, _others(plan)) if partials else labelled({}, aim.dtypes)
        output = finalized([{"rows": rows, **beside}], replace(plan, narrowed=True), meta)
        done.saw(HOST, narrowed.kept_rows([*counted, *recounted]), len(output))
        return output


def _counted(inputs: Sequence[Inputs], aim: Aim, plan: Plan) -> list[Any]:
    together, engine = aim.plan(plan), engine_of(inputs[0].keys[0])
    parts = (stacked(run, engine, plan) for run in stackable(inputs, plan, engine))
    return [narrowed.count(part.keys, part.columns, aim.brackets, together) for part in parts]


def _others(plan: Plan) -> Plan:
    """The outputs that are not of whole groups."""
    outputs = tuple(output for output in plan.outputs if output.kind is not Kind.WHOLE)
    return replace(plan, outputs=outputs)


# Partials of one side of a merge, joined with the rows of the other side. A row of such a partial
# stands for the rows of its side that are alike in the keys of the merge and in the keys of the
# group-by that lie on this side. Each of them meets the same rows of the other side, so the states
# of the partial's row meet them too, once for each.


@dataclass(frozen=True, slots=True)
class Join:
    """How partials of one side of a merge, their own, meet the rows of the other side.

    Columns are named by their place among the columns of the merge: a key of both sides that has
    one label is one column there. ``own`` are the names of the partials' keys, ``other`` labels and
    names of the columns that are read of the other side, ``keys`` the names of the result's keys,
    and ``categories`` those of columns that are categories in the merge.
    """

    how: str
    is_left: bool
    own: tuple[str, ...]
    other: tuple[tuple[Hashable, str], ...]
    left_on: tuple[str, ...]
    right_on: tuple[str, ...]
    keys: tuple[str, ...]
    categories: tuple[str, ...]

    def __call__(self, own: Any, other: Any) -> Any:
        """Merge the keys of a partial, with the number of each row, as Dask merges partitions."""
        names = dict.fromkeys([*own.columns, *other.columns])
        dtypes = ("category" if name in self.categories else object for name in names)
        columns = {n: pd.Series([], dtype=dtype) for n, dtype in zip(names, dtypes, strict=True)}
        return merge_chunk(
            *((own, other) if self.is_left else (other, own)),
            how=self.how,
            left_on=list(self.left_on),
            right_on=list(self.right_on),
            result_meta=pd.DataFrame(columns, index=pd.RangeIndex(0)),
        )


def gpuagg_join_side(partial: Partial, other: Any, plan: Plan, join: Join) -> Partial:
    """Task: a partial of one side of a merge to one of the merge, by the keys of the plan."""
    with task(plan, "join") as done:
        engine, groups = engine_of(partial), tables_of(partial)["groups"]

        def joined() -> Partial:
            table = _joined(groups, other, plan, join)
            of_merge = labelled({"groups": table}, partial.get(DTYPES))
            (tables,), together, dtypes = unify([of_merge], plan, engine)
            return labelled(engine.regrouped(tables, together), dtypes)

        result = engine.within_memory(f"joining a partial of {len(groups):,} rows", joined)
        done.saw(engine.NAME, len(groups), rows_of(result))
        return result


def _joined(groups: Any, other: Any, plan: Plan, join: Join) -> Any:
    """The groups of a partial by the keys of a plan, of which several rows may be alike."""
    own = groups[[f"k{i}" for i in range(len(join.own))]]
    own.columns = list(join.own)
    own = own.assign(row=np.arange(len(own)))
    other = other[[label for label, _ in join.other]]
    other.columns = [name for _, name in join.other]
    if engine_name(other) == DEVICE:
        other = other.nans_to_nulls()  # as the keys of a partial
    merged = join(own, other)
    fields = groups[[name for name in groups.columns if name.startswith("s")]]
    table = fields.take(merged["row"]).reset_index(drop=True)
    merged = merged.reset_index(drop=True)
    for i, name in enumerate(join.keys):
        table.insert(i, f"k{i}", merged[name])
    if plan.dropna and not plan.drops_late:
        complete = functools.reduce(operator.and_, (merged[name].notna() for name in join.keys))
        table = table[complete].reset_index(drop=True)
    if not len(table):
        # floats that held nulls alone, of rows without a partner, say nothing of the key's dtype
        keys = {f"k{i}": key.dtype for i, key in enumerate(plan.keys)}
        integers = {name: d for name, d in keys.items() if dtype_class(d) in INTEGRAL}
        table = table.astype(integers)
    return table
