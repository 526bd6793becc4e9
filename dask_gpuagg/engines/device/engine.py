"""The device engine: cuDF partitions in, cuDF results out, by our kernels.

A partial has the tables and the columns of the host engine's (``engines/host/engine.py``). libcudf
makes the states that the kernels do not make (``support.py``, ``library_states.py``); cuDF joins
the tables of a result, sorts and casts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cudf
import cupy as cp
import pylibcudf as plc

from dask_gpuagg.aggregations import REGISTRY, Kind
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.device import best
from dask_gpuagg.engines.device.categories import complete, occurring
from dask_gpuagg.engines.device.columns import like, present, table, view
from dask_gpuagg.engines.device.direct import direct, direct_of_frame
from dask_gpuagg.engines.device.exact import alike
from dask_gpuagg.engines.device.exchange import (
    bucket_of,
    concatenated_outputs,
    divided_outputs,
    split,
)
from dask_gpuagg.engines.device.groups import Grouping, Numbering
from dask_gpuagg.engines.device.operations import nans_to_nulls
from dask_gpuagg.engines.device.outputs import numbered, with_outputs
from dask_gpuagg.engines.device.passes import (
    finished,
    keys_of,
    merged,
    states_of_rows,
)
from dask_gpuagg.engines.device.results import matrix_of, of_plan, shape_of, shaped, values_of
from dask_gpuagg.engines.device.stacking import (
    bytes_of,
    common_dtype,
    compatible,
    divided,
    of_categories,
    stack,
    stacked,
)
from dask_gpuagg.plan import Plan, Sketched

__all__ = [
    "alike", "bucket_of", "bytes_of", "combine", "common_dtype", "compatible",
    "concatenated_outputs", "direct", "direct_of_frame", "divided", "divided_outputs", "finalize",
    "of_categories", "partial", "shape_of", "split", "stack", "stacked",
]  # fmt: skip

Partial = dict[str, Any]


def partial(
    keys: Sequence[Any],
    columns: Sequence[Any],
    index: Any,
    plan: Plan,
) -> Partial:
    """Reduce one partition to one row per local group; see ``host.partial``."""
    if plan.shape == "values":
        # the value joins the keys, and rows without one leave; but every category of a group is
        # counted, those of a group whose values are all null too
        categorical = dtype_class(columns[0].dtype) == "category"
        wanted = [*(keys if plan.dropna else []), *([] if categorical else columns)]
        keys, columns = [*keys, columns[0]], []
        if wanted:
            kept = present(nans_to_nulls(view(wanted[0])))
            for another in wanted[1:]:
                kept &= present(nans_to_nulls(view(another)))
            keys = [_rows(k, kept) for k in keys]
    tables: Partial = {}
    dropna = plan.dropna and not plan.drops_late and plan.shape != "values"
    if plan.grouped:
        tables["groups"] = states_of_rows(keys, dict(enumerate(columns)), index, plan, not dropna)
    for c in plan.pairs:
        tables[f"pairs{c}"] = _distinct(keys, columns[c], plan, c, dropna)
    for i, kept in enumerate(plan.sketches):
        tables[f"sketch{i}"] = _entries(keys, columns[kept.column], kept, not dropna)
    if plan.rows:
        whole = {f"k{i}": k for i, k in enumerate(keys)}
        rows = table(whole | {f"v{c}": columns[c] for c in plan.rows})
        tables["rows"] = _without_null_keys(rows) if dropna else rows
    return tables


def combine(partials: Sequence[Partial], plan: Plan, least: int | None = None) -> Partial:
    """Merge partials into one, of the same layout; see ``host.combine``.

    ``least`` says how many groups there are at least where a partial has several rows of some.
    """
    tables: Partial = {}
    for name in plan.tables:
        stacked = stack(alike([p[name] for p in partials], plan))
        if name == "groups":
            stacked = merged(stacked, plan, _least(partials) if least is None else least)
        elif name.startswith("pairs"):
            stacked = _distinct(keys_of(stacked), stacked["v"], plan, int(name[5:]), False)
        elif name.startswith("sketch"):
            kept = plan.sketches[int(name.removeprefix("sketch"))]
            stacked = _entries(keys_of(stacked), stacked["v"], kept, True)
        tables[name] = stacked
    return tables


def finalize(
    partials: Sequence[Partial],
    plan: Plan,
    meta: Any,
    bucket: tuple[int, int] | None = None,
    owned: bool = False,
    least: int | None = None,
) -> Any:
    """Merge partials and make the outputs; see ``host.finalize``, and ``combine`` for ``least``.

    Unobserved categories are found with all groups at hand, so ``bucket`` is not needed. ``owned``
    changes nothing: the outputs are made anew.
    """
    stacked = {name: stack(alike([p[name] for p in partials], plan)) for name in plan.tables}
    if plan.states_from_rows and plan.states:
        rows = stacked["rows"]
        columns = {c: rows[f"v{c}"] for c in plan.rows}
        stacked["groups"] = states_of_rows(keys_of(rows), columns, None, plan, True)
    for name in plan.tables:
        if name.startswith("pairs"):
            pairs = stacked[name]
            if len(partials) == 1:  # they are distinct already
                continue
            stacked[name] = _distinct(keys_of(pairs), pairs["v"], plan, int(name[5:]), False)
    every_key = keys_of(next(iter(stacked.values())))
    least = _least(partials) if least is None else least
    if plan.states_from_rows or plan.drops_late:
        least = 0
    if plan.drops_late:
        stacked = {name: _without_null_keys(t) for name, t in stacked.items()}
    numberings: dict[str, Numbering] = {}
    if "groups" in stacked:
        groups = finished(stacked["groups"], plan, least)
    else:
        name = next(iter(stacked))
        groups, numbering = numbered(keys_of(stacked[name]))
        if numbering is not None and plan.observed:
            numberings[name] = numbering
    if plan.shape == "values":
        return values_of(groups, plan, meta)
    if plan.shape == "matrix":
        return matrix_of(groups, plan, meta)
    if not plan.observed:
        groups = complete(groups, every_key, plan.dropna)
    shape = of_plan(shape_of(meta), plan)
    made = with_outputs(groups, stacked, plan, shape.index, numberings)
    return shaped(made, plan, shape)


def _least(partials: Sequence[Partial]) -> int:
    """How many groups several partials have together, at least."""
    return max(len(partial["groups"]) if "groups" in partial else 0 for partial in partials)


def _rows(column: Any, kept: cp.ndarray) -> Any:
    """The rows of a Series for which a condition holds."""
    mask = view(cudf.Series(kept))
    made = plc.stream_compaction.apply_retention_mask(plc.Table([view(column)]), mask)
    return like(made.columns()[0], column.dtype)


def _without_null_keys(rows: Any) -> Any:
    if not any(view(key).null_count() for key in keys_of(rows)):
        return rows
    kept = occurring(keys_of(rows))
    return table({name: _rows(rows[name], kept) for name in rows.columns})


def _distinct(keys: Sequence[Any], values: Any, plan: Plan, c: int, dropna: bool) -> Any:
    """Distinct (key, value) pairs; a null value is a value, and NaN is another."""
    names = [f"k{i}" for i in range(len(keys))]
    ordered = any(
        o.column == c and o.kind is Kind.DISTINCT and REGISTRY[o.aggregation].order_sensitive
        for o in plan.outputs
    )
    if ordered or dtype_class(values.dtype) == "float":
        # in order of appearance; the kernels would take NaN for null
        columns = [*(nans_to_nulls(view(k)) for k in keys), view(values)]
        made = plc.stream_compaction.stable_distinct(
            plc.Table(columns),
            list(range(len(columns))),
            plc.stream_compaction.DuplicateKeepOption.KEEP_FIRST,
            plc.types.NullEquality.EQUAL,
            plc.types.NanEquality.ALL_EQUAL,
        )
        dtypes = [*(k.dtype for k in keys), values.dtype]
        pairs = table(
            {n: like(m, d) for n, m, d in zip([*names, "v"], made.columns(), dtypes, strict=True)}
        )
    else:
        pairs = Grouping([*keys, values], keep_nulls=True).table([])
        pairs.columns = [*names, "v"]
    return _without_null_keys(pairs) if dropna else pairs


def _entries(keys: Sequence[Any], values: Any, kept: Sketched, keep_nulls: bool) -> Any:
    """The rows that a sketch keeps of each group."""
    groups, numbering = numbered(keys, keep_nulls)
    if numbering is None:
        numbering = Numbering.of_keys(keys, keys_of(groups))
    return best.entries(groups, numbering, values, kept)
