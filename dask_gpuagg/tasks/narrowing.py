"""The tasks that find quantiles of groups without moving rows; see ``dask_gpuagg.narrowing``.

Values are compared in the dtype that all partitions have together, as a concatenation would have
them. Where that is no plain number, all rows are brought together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dask_gpuagg.aggregations import Kind
from dask_gpuagg.decomposition import retyped
from dask_gpuagg.engines import engine_name, engine_of, narrowing_of
from dask_gpuagg.engines.protocol import Engine
from dask_gpuagg.narrowing import is_narrowed
from dask_gpuagg.plan import Plan
from dask_gpuagg.reporting.runs import task
from dask_gpuagg.tasks.merging import combined, finalized, labelled, united
from dask_gpuagg.tasks.partials import (
    Inputs,
    inputs_there,
    partials_of,
    rows_of,
    stack_small,
    stackable,
)
from dask_gpuagg.tasks.reading import Chunk, show_progress
from dask_gpuagg.tasks.tasks import read

# The first result of a chunk: ``samples``, a list of tables; ``dtypes`` and ``rows`` of each of its
# partitions; and whether its rows can be counted, ``ready``.
Sampled = dict[str, Any]
# The second result of a chunk: ``counted``, a list of its partitions' counts, empty without
# brackets; and ``partial``, that of the other outputs, or of all without brackets.
Narrowed = dict[str, Any]


class Aim(NamedTuple):
    """Brackets of an engine by which rows are counted.

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
        first = inputs[0].keys[0]
        engine = narrowing_of(first)
        runs = stackable(inputs, plan, engine_of(first))
        rows = sum(map(len, inputs))
        samples = engine_of(first).within_memory(
            f"sampling {rows:,} rows",
            lambda: [engine.sample(run, plan, stride) for run in runs],
        )
        done.saw(engine_name(first), rows, sum(map(len, samples)))
        dtypes = [part.dtypes for part in inputs]
        ready = engine.is_ready()
        return {
            "samples": samples,
            "dtypes": dtypes,
            "rows": list(map(len, inputs)),
            "ready": ready,
        }


def gpuagg_aim(sampled: Sequence[Sampled], max_inside: float, plan: Plan) -> Aim | None:
    """Task: the brackets of all groups from the samples of all chunks.

    There are none where values of all partitions together are no plain numbers, or the kernels of a
    GPU cannot be compiled; and where more than this share of all rows would be between them.
    """
    with task(plan, "aim") as done:
        samples = [table for of_chunk in sampled for table in of_chunk["samples"]]
        rows = sum(map(len, samples))
        done.saw(engine_name(samples[0]), rows, 0)
        dtypes = _dtypes_of(sampled, plan, engine_of(samples[0]))
        together = plan if dtypes is None else retyped(plan, dtypes)
        ready = all(of_chunk["ready"] for of_chunk in sampled)
        if not (ready and _are_plain(sampled, plan) and is_narrowed(together)):
            return None
        engine = narrowing_of(samples[0])
        brackets = engine_of(samples[0]).within_memory(
            f"brackets of {rows:,} sampled rows", lambda: engine.aim(samples, together)
        )
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
    common = united([of_partition or promised for of_partition in dtypes], rows, engine)
    return None if common == promised else common


def _are_plain(sampled: Sequence[Sampled], plan: Plan) -> bool:
    """Whether the values of each partition are plain numbers."""
    distinct: list[tuple[Any, ...]] = []
    for of_chunk in sampled:
        distinct += [d for d in of_chunk["dtypes"] if d is not None and d not in distinct]
    return all(is_narrowed(retyped(plan, dtypes)) for dtypes in distinct)


def gpuagg_count_sides(chunk: Chunk, plan: Plan, aim: Aim | None) -> Narrowed:
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
        done.groups = _kept(counted)
        return {"counted": counted, "partial": beside}


def gpuagg_widen(aim: Aim | None, narrowed: Sequence[Narrowed], plan: Plan) -> Aim | None:
    """Task: the brackets that rows are counted by again; ``None`` where there are none."""
    if aim is None:
        return None
    with task(plan, "widen") as done:
        counted = [part for of_chunk in narrowed for part in of_chunk["counted"]]
        first, together, brackets = counted[0]["keys"], aim.plan(plan), aim.brackets
        engine = narrowing_of(first)
        wider = engine_of(first).within_memory(
            "wider brackets", lambda: engine.widened(brackets, counted, together)
        )
        done.saw(engine_name(first), len(brackets.keys), 0 if wider is None else len(wider.keys))
        return None if wider is None else Aim(wider, aim.dtypes)


def gpuagg_recount_sides(chunk: Chunk, plan: Plan, wider: Aim | None) -> list[Any]:
    """Task: the rows of a chunk counted by wider brackets, if there are any."""
    if wider is None:
        return []
    with task(plan, "recount") as done:
        inputs = inputs_there(chunk, plan)
        counted = _counted(inputs, wider, plan)
        done.saw(engine_name(counted[0]["keys"]), sum(map(len, inputs)), _kept(counted))
        return counted


def gpuagg_pick(
    aim: Aim | None,
    narrowed: Sequence[Narrowed],
    wider: Aim | None,
    again: Sequence[list[Any]],
    plan: Plan,
    meta: Any,
) -> Any:
    """Task: the output, from the rows that all chunks have kept."""
    with task(plan, "finalize") as done:
        partials = [of_chunk["partial"] for of_chunk in narrowed if of_chunk["partial"]]
        if aim is None:
            output = finalized(partials, plan, meta)
            done.saw(engine_name(partials[0]), sum(map(rows_of, partials)), len(output))
            return output
        counted = [part for of_chunk in narrowed for part in of_chunk["counted"]]
        recounted = [part for of_chunk in again for part in of_chunk]
        first, together = counted[0]["keys"], aim.plan(plan)
        kept_rows = _kept([*counted, *recounted])
        engine, last = narrowing_of(first), None if wider is None else wider.brackets
        rows = engine_of(first).within_memory(
            f"quantiles of {kept_rows:,} rows",
            lambda: engine.picked(aim.brackets, counted, last, recounted, together),
        )
        beside = combined(partials, _others(plan)) if partials else labelled({}, aim.dtypes)
        output = finalized([{"rows": rows, **beside}], replace(plan, narrowed=True), meta)
        done.saw(engine_name(rows), kept_rows, len(output))
        return output


def _kept(counted: Sequence[Any]) -> int:
    return sum(narrowing_of(part["keys"]).kept_rows(part) for part in counted)


def _counted(inputs: Sequence[Inputs], aim: Aim, plan: Plan) -> list[Any]:
    engine, first, together = narrowing_of(inputs[0].keys[0]), inputs[0].keys[0], aim.plan(plan)

    def counted(parts: Sequence[Inputs]) -> list[Any]:
        return [engine.count(part.keys, part.columns, aim.brackets, together) for part in parts]

    def stacked() -> list[Any]:
        return counted(stack_small(inputs, plan))

    def one_by_one() -> list[Any]:
        return counted([part for part in inputs if len(part)] or inputs[:1])

    what = f"counting {sum(map(len, inputs)):,} rows"
    return engine_of(first).within_memory(what, stacked, one_by_one)


def _others(plan: Plan) -> Plan:
    """The outputs that are not of whole groups."""
    outputs = tuple(output for output in plan.outputs if output.kind is not Kind.WHOLE)
    return replace(plan, outputs=outputs)
