"""The tasks that find quantiles of groups without moving rows; see ``dask_gpuagg.narrowing``.

Partitions whose columns are not as promised are not narrowed: then all rows are brought together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from dask_gpuagg.aggregations import Kind
from dask_gpuagg.engines import DEVICE, engine_name, engine_of, narrowing_of
from dask_gpuagg.engines.device.memory import after_free, first_that_fits, out_of_memory
from dask_gpuagg.plan import Plan
from dask_gpuagg.reporting.runs import task
from dask_gpuagg.tasks.merging import combined, finalized
from dask_gpuagg.tasks.partials import Inputs, partials_of, runs_of, stackable
from dask_gpuagg.tasks.reading import show_progress
from dask_gpuagg.tasks.tasks import inputs_there, read

# What one chunk sends: ``counted``, a list of its partitions' counts, empty where there are no
# brackets; and ``partial``, that of the other outputs, or of all where there are no brackets.
Narrowed = dict[str, Any]


def gpuagg_sample_rows(
    parts: Sequence[Any],
    keys: Sequence[Any],
    *values: Any,
    plan: Plan,
    readers: int,
    stride: int,
) -> list[Any] | None:
    """Task: some rows of each partition; see ``gpuagg_chunk``.

    Returns
    -------
    list of DataFrame or None
        ``None`` where dtypes are not as promised.
    """
    with task(plan, "sample") as done:
        found = inputs_there(parts, keys, values, plan)
        engine = narrowing_of(found[0].keys[0])
        if any(part.dtypes is not None for part in found) or not engine.is_ready():
            return None
        runs = stackable(found, plan, engine_of(found[0].keys[0]))
        made = [engine.sample(run, plan, stride) for run in runs]
        rows = sum(map(len, made))
        done.saw(engine_name(made[0]), sum(map(len, found)), rows)
        return made


def gpuagg_aim(samples: Sequence[list[Any] | None], plan: Plan) -> Any:
    """Task: the brackets of all groups from the samples of all chunks, if all have one."""
    with task(plan, "aim") as done:
        rows = [table for of_chunk in samples for table in of_chunk or ()]
        if any(of_chunk is None for of_chunk in samples):
            return None
        brackets = narrowing_of(rows[0]).aim(rows, plan)
        done.saw(engine_name(rows[0]), sum(map(len, rows)), len(brackets.keys))
        return brackets


def gpuagg_count_sides(
    parts: Sequence[Any],
    keys: Sequence[Any],
    *values: Any,
    plan: Plan,
    readers: int,
    brackets: Any,
) -> Narrowed:
    """Task: the rows of a chunk counted by brackets, and the partial of the other outputs."""
    show_progress()
    with task(plan, "count") as done:
        found = inputs_there(parts, keys, values, plan)
        read(done, found, plan)
        if brackets is None:
            return {"counted": [], "partial": combined(partials_of(found, plan), plan)}
        counted = _counted(found, brackets, plan)
        rest = _others(plan)
        beside = combined(partials_of(found, rest), rest) if rest.outputs else None
        done.groups = _kept(counted)
        return {"counted": counted, "partial": beside}


def gpuagg_widen(brackets: Any, narrowed: Sequence[Narrowed], plan: Plan) -> Any:
    """Task: the brackets that rows are counted by again; ``None`` where there are none."""
    if brackets is None:
        return None
    with task(plan, "widen") as done:
        counted = [one for of_chunk in narrowed for one in of_chunk["counted"]]
        wider = narrowing_of(counted[0]["keys"]).widened(brackets, counted, plan)
        groups = 0 if wider is None else len(wider.keys)
        done.saw(engine_name(counted[0]["keys"]), len(brackets.keys), groups)
        return wider


def gpuagg_recount_sides(
    parts: Sequence[Any],
    keys: Sequence[Any],
    *values: Any,
    plan: Plan,
    readers: int,
    wider: Any,
) -> list[Any]:
    """Task: the rows of a chunk counted by wider brackets, if there are any."""
    if wider is None:
        return []
    with task(plan, "recount") as done:
        found = inputs_there(parts, keys, values, plan)
        counted = _counted(found, wider, plan)
        done.saw(engine_name(counted[0]["keys"]), sum(map(len, found)), _kept(counted))
        return counted


def gpuagg_pick(
    brackets: Any,
    narrowed: Sequence[Narrowed],
    wider: Any,
    again: Sequence[list[Any]],
    plan: Plan,
    meta: Any,
) -> Any:
    """Task: the output, from the rows that all chunks have kept."""
    with task(plan, "finalize") as done:
        partials = [one["partial"] for one in narrowed if one["partial"]]
        if brackets is None:
            return finalized(partials, plan, meta)
        counted = [one for of_chunk in narrowed for one in of_chunk["counted"]]
        recounted = [one for of_chunk in again for one in of_chunk]
        engine = narrowing_of(counted[0]["keys"])
        rows = engine.picked(brackets, counted, wider, recounted, plan)
        beside = combined(partials, _others(plan)) if partials else {}
        made = finalized([{**beside, "rows": rows}], replace(plan, narrowed=True), meta)
        done.saw(engine_name(rows), _kept([*counted, *recounted]), len(made))
        return made


def _kept(counted: Sequence[Any]) -> int:
    return sum(narrowing_of(one["keys"]).kept_rows(one) for one in counted)


def _counted(found: Sequence[Inputs], brackets: Any, plan: Plan) -> list[Any]:
    engine, first = narrowing_of(found[0].keys[0]), found[0].keys[0]

    def counted(parts: Sequence[Inputs]) -> list[Any]:
        return [engine.count(part.keys, part.columns, brackets, plan) for part in parts]

    def stacked() -> list[Any]:
        return counted(runs_of(found, plan))

    if engine_name(first) != DEVICE:
        return stacked()
    filled = [part for part in found if len(part)] or found[:1]
    what = partial(out_of_memory, f"counting {sum(map(len, found)):,} rows")
    return first_that_fits([stacked, after_free(lambda: counted(filled))], what)


def _others(plan: Plan) -> Plan:
    """The outputs that are not of whole groups."""
    outputs = tuple(output for output in plan.outputs if output.kind is not Kind.WHOLE)
    return replace(plan, outputs=outputs)
