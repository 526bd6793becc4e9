"""Tasks of ``head`` and ``tail`` of groups: rows of partitions, and of several together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask.dataframe.dispatch import concat

from dask_gpuagg.engines import engine_name, engine_of
from dask_gpuagg.plan import Plan
from dask_gpuagg.reporting.runs import task
from dask_gpuagg.tasks.partials import inputs_of

# entries of what a task hands on: rows of the input, and their keys
ROWS, KEYS = "rows", "keys"


def gpuagg_rows(
    frame: Any, *by: Any, plan: Plan, n: int, last: bool, columns: Any
) -> dict[str, Any]:
    """Task: the first or last rows of each group of a partition.

    Parameters
    ----------
    frame : DataFrame or Series
    *by : labels, Series, Index or callables
        As the user gave them, per partition.
    plan : Plan
        Of the keys.
    n : int
        Rows of a group, at most.
    last : bool
        The last ones and not the first.
    columns : label, list of labels, or None
        Of the result; ``None`` for all.
    """
    with task(plan, "partial") as done:
        keys = engine_of(frame).key_table(inputs_of(frame, by, plan).keys)
        made = _picked(frame if columns is None else frame[columns], keys, plan, n, last)
        done.saw(engine_name(frame), len(frame), len(made[ROWS]))
        return made


def gpuagg_rows_combine(
    parts: Sequence[dict[str, Any]], plan: Plan, n: int, last: bool
) -> dict[str, Any]:
    """Task: rows of several partitions, of which each group again keeps the first or last."""
    return _of_several("combine", parts, plan, n, last)


def gpuagg_rows_finish(parts: Sequence[dict[str, Any]], plan: Plan, n: int, last: bool) -> Any:
    """Task: the last rows to the result; see ``gpuagg_rows_combine``."""
    return _of_several("finalize", parts, plan, n, last)[ROWS]


def _of_several(
    step: str, parts: Sequence[dict[str, Any]], plan: Plan, n: int, last: bool
) -> dict[str, Any]:
    with task(plan, step) as done:
        rows = [part[ROWS] for part in parts]
        filled = [some for some in rows if len(some)] or rows[:1]
        stacked = concat(filled) if len(filled) > 1 else filled[0]
        keys = engine_of(parts[0][KEYS]).stack([part[KEYS] for part in parts])
        made = _picked(stacked, keys, plan, n, last)
        done.saw(engine_name(stacked), len(stacked), len(made[ROWS]))
        return made


def _picked(rows: Any, keys: Any, plan: Plan, n: int, last: bool) -> dict[str, Any]:
    where = engine_of(keys).rows_within(keys, plan.dropna, n, last)
    return {ROWS: rows.take(where), KEYS: keys.take(where).reset_index(drop=True)}
