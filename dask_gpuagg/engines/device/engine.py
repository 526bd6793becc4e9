"""The device engine: cuDF partitions in, cuDF results out, by our kernels.

A partial has the tables and the columns of the host engine's (``engines/host/engine.py``). libcudf
makes the states that the kernels do not make (``support.py``, ``library.py``); cuDF joins the
tables of a result, sorts and casts.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from operator import iand
from typing import Any, NamedTuple, TypeVar

import cudf
import cupy as cp
import numpy as np
import pylibcudf as plc

from dask_gpuagg.aggregations import REGISTRY, Kind
from dask_gpuagg.cache import Cache, OfObjects
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.device import memory
from dask_gpuagg.engines.device.columns import (
    BareColumn,
    column_at,
    is_own,
    key_part,
    keys_of,
    masked,
    nans_to_nulls,
    present,
    sort_by,
    table,
    to_series,
    view,
)
from dask_gpuagg.engines.device.digits import alike, is_lost, losses_of, without_losses
from dask_gpuagg.engines.device.groups import Grouping, Numbering, Repeated
from dask_gpuagg.engines.device.library import number_rows, sketch_entries, with_outputs
from dask_gpuagg.engines.device.memory import after_free, first_that_fits, restored
from dask_gpuagg.engines.device.passes import (
    add_outputs,
    finish_rows,
    finished,
    is_watched,
    keeps_values,
    merged,
    states_of_rows,
)
from dask_gpuagg.engines.device.results import (
    Shape,
    complete,
    matrix_of,
    of_plan,
    result_of,
    shape_of,
    shaped,
    values_of,
)
from dask_gpuagg.engines.device.support import of_rows, one_pass
from dask_gpuagg.engines.device.tables import (
    bytes_of,
    common_dtype,
    compatible,
    concatenated_outputs,
    derived,
    divided,
    divided_outputs,
    filtered,
    of_categories,
    rows_where,
    split,
    stack,
    stacked,
)
from dask_gpuagg.plan import Partial, Plan

__all__ = [
    "NAME", "alike", "bytes_of", "combine", "common_dtype", "compatible",
    "concatenated_outputs", "derived", "direct", "direct_of_frame", "divided", "divided_outputs",
    "filtered", "finalize", "of_categories", "partial", "regrouped", "restored", "sampled",
    "shape_of", "split", "stack", "stacked", "within_memory",
]  # fmt: skip

NAME = "device"
T = TypeVar("T")

# For the plans used last: whether only values and dtypes of columns are read, ...
_bare: OfObjects[bool] = OfObjects(8)
# ... and the shape of the result.
_prepared: OfObjects[_Prepared] = OfObjects(8)


def direct_of_frame(frame: Any, by: Sequence[Any], plan: Plan, meta: Any) -> tuple[Any, int] | None:
    """Run ``direct`` for a frame; see ``Engine.direct_of_frame``."""
    # what loses digits is made again by other ways
    bare = _bare.of(
        plan,
        lambda: (
            of_rows(plan)
            or (one_pass(plan) and not any(is_watched(output, plan) for output in plan.outputs))
        ),
    )
    if not bare or not isinstance(frame, cudf.DataFrame):
        return None
    keys = _bare_columns(frame, by)
    columns = _bare_columns(frame, [c.label for c in plan.columns])
    if keys is None or columns is None:
        return None
    for column, promised in zip(columns, plan.columns, strict=True):
        # of other dtypes the values may have to be converted
        if not (isinstance(column.dtype, np.dtype) and column.dtype == promised.dtype):
            return None
    try:
        result = direct_of_columns(keys, columns, plan, shape_of(meta))
    except MemoryError:
        # the caller has other steps to find memory
        return None
    return result, bytes_of((*keys, *columns))


def _bare_columns(frame: Any, labels: Sequence[Any]) -> list[BareColumn] | None:
    """Columns of a frame by label; None if one is no label of a single level, or not there."""
    data = frame._data
    if data.multiindex or not all(isinstance(label, str) and label in data for label in labels):
        return None
    return [BareColumn(data[label]) for label in labels]


def direct(parts: Sequence[Any], plan: Plan, meta: Any) -> Any | None:
    """Compute the outputs of partitions in one pass; see ``Engine.direct``."""
    if not (one_pass(plan) or of_rows(plan)):
        return None

    def at_once() -> Any:
        columns = [(*part.keys, *part.columns) for part in parts]
        together = columns[0] if len(parts) == 1 else stacked(columns, plan)
        keys = len(parts[0].keys)
        return direct_of_columns(together[:keys], together[keys:], plan, shape_of(meta))

    # the caller has other ways to find memory
    return first_that_fits([at_once, after_free(at_once), lambda: None], MemoryError)


def direct_of_columns(keys: Sequence[Any], columns: Sequence[Any], plan: Plan, shape: Shape) -> Any:
    """Compute the outputs of rows in one pass: ``support.one_pass`` or ``of_rows`` holds."""
    if not plan.grouped:
        return _direct_of_rows(keys, columns, plan, shape)
    prepared = _prepared.of(plan, lambda: _prepare(plan, shape))
    if prepared.promised is not shape:
        prepared = _prepare(plan, shape)
    shape = prepared.shape
    views, key_views = list(map(view, columns)), list(map(view, keys))
    # what a pass depends on of its columns
    types = (*map(key_part, key_views), *[(v.type(), masked(v)) for v in views])
    repeated = prepared.repeated.get(types)
    if repeated is not None:
        group_keys, outputs = repeated.run(key_views, views)
        return _result_of(group_keys, outputs, keys, plan, prepared)
    grouping = Grouping(keys, not plan.dropna)
    grouping.read(views)
    add = functools.partial(finish_rows, plan=plan, columns=views)
    labels = add_outputs(grouping, plan, range(len(plan.outputs)), add)
    if prepared.by_table:
        dtypes = {
            f"o{i}": columns[o.column].dtype
            for i, o in enumerate(plan.outputs)
            if o.column is not None
            and keeps_values(o.aggregation)
            and not is_own(columns[o.column].dtype)
        }
        groups = grouping.table(labels, dtypes)
        if not is_lost(losses_of(groups)):
            return shaped(without_losses(groups), plan, shape)
    else:
        group_keys, outputs = grouping.run()
        pairs = list(zip(labels, outputs, strict=True))
        losses = [column for label, column in pairs if label.startswith("l")]
        if not is_lost(losses):
            if not losses and (repeated := grouping.repeated(views)) is not None:
                prepared.repeated.put(types, repeated)
            outputs = [column for label, column in pairs if label.startswith("o")]
            return _result_of(group_keys, outputs, keys, plan, prepared)
    # moments lost digits: the states of rows have them restored
    states = states_of_rows(keys, dict(enumerate(columns)), None, plan, not plan.dropna)
    groups = with_outputs(finished(states, plan), {}, plan, shape.index, {})
    return shaped(groups, plan, shape)


def _result_of(
    group_keys: list[plc.Column],
    outputs: list[plc.Column],
    keys: Sequence[Any],
    plan: Plan,
    prepared: _Prepared,
) -> Any:
    if not plan.dropna:  # a NaN key is a null one
        group_keys = [nans_to_nulls(key) for key in group_keys]
    if plan.sort:
        ordered = sort_by(group_keys, [*group_keys, *outputs])
        group_keys, outputs = ordered[: len(keys)], ordered[len(keys) :]
    return result_of(group_keys, outputs, [k.dtype for k in keys], prepared.shape)


class _Prepared(NamedTuple):
    """A plan's shape as promised and as the plan has it, and its passes.

    Results go ``by_table`` that have a dtype unknown to libcudf, or are sorted by a key of one.
    """

    promised: Shape
    shape: Shape
    by_table: bool
    repeated: Cache[tuple[Any, ...], Repeated]


def _prepare(plan: Plan, promised: Shape) -> _Prepared:
    shape = of_plan(promised, plan)
    keys = [key.dtype for key in plan.keys] if plan.sort else []
    by_table = not all(map(is_own, [*shape.dtypes, *keys]))
    return _Prepared(promised, shape, by_table, Cache(64))


def _direct_of_rows(keys: Sequence[Any], columns: Sequence[Any], plan: Plan, shape: Shape) -> Any:
    """Run ``direct`` for a plan whose outputs are all of whole groups."""
    key_columns = {f"k{i}": k for i, k in enumerate(keys)}
    rows = table(key_columns | {f"v{c}": columns[c] for c in sorted({*plan.rows, *plan.pairs})})
    groups, numbering = number_rows(keys_of(rows), not plan.dropna)
    outputs = with_outputs(groups, {"rows": rows}, plan, shape.index, {"rows": numbering})
    return shaped(outputs, plan, of_plan(shape, plan))


def within_memory(
    what: str,
    step: Callable[[], T],
    smaller: Callable[[], T] | None = None,
    held: list[Any] | None = None,
) -> T:
    """Return the result of the first way for which memory suffices; see ``Engine``."""
    return memory.within_memory(what, step, smaller, held, lambda: bytes_of_partials(held or ()))


def bytes_of_partials(partials: Iterable[Any]) -> int:
    """Bytes of the tables of partials in device memory, roughly."""
    tables = [
        table
        for partial in partials
        if isinstance(partial, dict)
        for table in partial.values()
        if isinstance(table, cudf.DataFrame)
    ]
    return sum(bytes_of(column_at(table, label) for label in table.columns) for table in tables)


def sampled(column: Any, step: int) -> Any:
    """Return every ``step``-th row in pandas; see ``Engine``."""
    return column.iloc[::step].to_pandas()


def partial(keys: Sequence[Any], columns: Sequence[Any], index: Any, plan: Plan) -> Partial:
    """Reduce rows to one row per local group; see ``Engine.partial``."""
    if plan.shape == "values":
        # the value joins the keys, and rows without one leave; but every category of a group is
        # counted, those of a group whose values are all null too
        categorical = dtype_class(columns[0].dtype) == "category"
        needed = [*(keys if plan.dropna else []), *([] if categorical else columns)]
        keys, columns = [*keys, columns[0]], []
        if needed:
            has_values = _all_present(nans_to_nulls(view(column)) for column in needed)
            keys = keys_of(rows_where(table({f"k{i}": k for i, k in enumerate(keys)}), has_values))
    tables: Partial = {}
    dropna = plan.dropna and not plan.drops_late and plan.shape != "values"
    if plan.grouped:
        tables["groups"] = states_of_rows(keys, dict(enumerate(columns)), index, plan, not dropna)
    for c in plan.pairs:
        tables[f"pairs{c}"] = _distinct(keys, columns[c], plan, c, dropna)
    for i, sketch in enumerate(plan.sketches):
        values = columns[sketch.column]
        tables[f"sketch{i}"] = sketch_entries(keys, values, sketch, not dropna)
    if plan.rows:
        key_columns = {f"k{i}": k for i, k in enumerate(keys)}
        rows = table(key_columns | {f"v{c}": columns[c] for c in plan.rows})
        tables["rows"] = _without_null_keys(rows) if dropna else rows
    return tables


def combine(partials: Sequence[Partial], plan: Plan, owned: bool = False) -> Partial:
    """Merge partials into one of the same layout; see ``Engine.combine``."""
    return memory.combine(sys.modules[__name__], partials, plan, owned)


def regrouped(tables: Partial, plan: Plan) -> Partial:
    """Merge the rows of each group; see ``Engine.regrouped``."""
    # the number of rows is no lower bound of the groups
    return combine_tables([tables], plan, least=0)


def finalize(
    partials: Sequence[Partial],
    plan: Plan,
    meta: Any,
    bucket: tuple[int, int] | None = None,
    owned: bool = False,
) -> Any:
    """Merge partials and compute the outputs; see ``Engine.finalize``.

    Unobserved categories are completed with all groups at hand, so ``bucket`` is not needed.
    """
    return memory.finalize(sys.modules[__name__], partials, plan, meta, owned)


def combine_tables(partials: Sequence[Partial], plan: Plan, least: int | None = None) -> Partial:
    """Merge partials at once.

    ``least`` says how many groups there are at least, where a partial has several rows of some.
    """
    tables: Partial = {}
    for spec in plan.tables:
        stacked = stack(alike([p[spec.name] for p in partials], plan))
        if spec.kind is Kind.MERGEABLE:
            stacked = merged(stacked, plan, _least(partials) if least is None else least)
        elif spec.kind is Kind.DISTINCT:
            stacked = _distinct(keys_of(stacked), stacked["v"], plan, spec.columns[0], False)
        elif spec.sketch is not None:
            stacked = sketch_entries(keys_of(stacked), stacked["v"], spec.sketch, True)
        tables[spec.name] = stacked
    return tables


def finalize_tables(
    partials: Sequence[Partial], plan: Plan, meta: Any, least: int | None = None
) -> Any:
    """Merge partials at once and compute the outputs; see ``combine_tables`` for ``least``."""
    stacked = {
        table.name: stack(alike([p[table.name] for p in partials], plan)) for table in plan.tables
    }
    if plan.states_from_rows and plan.states:
        rows = stacked["rows"]
        columns = {c: rows[f"v{c}"] for c in plan.rows}
        stacked["groups"] = states_of_rows(keys_of(rows), columns, None, plan, True)
    for c in plan.pairs:
        if len(partials) > 1:  # those of one are distinct already
            pairs = stacked[f"pairs{c}"]
            stacked[f"pairs{c}"] = _distinct(keys_of(pairs), pairs["v"], plan, c, False)
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
        groups, numbering = number_rows(keys_of(stacked[name]))
        if plan.observed:
            numberings[name] = numbering
    if plan.shape == "values":
        return values_of(groups, plan, meta)
    if plan.shape == "matrix":
        return matrix_of(groups, plan, meta)
    if not plan.observed:
        groups = complete(groups, every_key, plan.dropna)
    shape = of_plan(shape_of(meta), plan)
    outputs = with_outputs(groups, stacked, plan, shape.index, numberings)
    return shaped(outputs, plan, shape)


def _least(partials: Sequence[Partial]) -> int:
    """Least number of groups that several partials have together."""
    return max(len(partial["groups"]) if "groups" in partial else 0 for partial in partials)


def _all_present(columns: Iterable[plc.Column]) -> cp.ndarray:
    """Whether rows have a value in every column."""
    return functools.reduce(iand, map(present, columns))


def _without_null_keys(rows: Any) -> Any:
    keys = [view(key) for key in keys_of(rows)]
    if not any(key.null_count() for key in keys):
        return rows
    return rows_where(rows, _all_present(keys))


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
        distinct = plc.stream_compaction.stable_distinct(
            plc.Table(columns),
            list(range(len(columns))),
            plc.stream_compaction.DuplicateKeepOption.KEEP_FIRST,
            plc.types.NullEquality.EQUAL,
            plc.types.NanEquality.ALL_EQUAL,
        )
        dtypes = [*(k.dtype for k in keys), values.dtype]
        pairs = table(
            {
                n: to_series(m, d)
                for n, m, d in zip([*names, "v"], distinct.columns(), dtypes, strict=True)
            }
        )
    else:
        pairs = Grouping([*keys, values], keep_nulls=True).table([])
        pairs.columns = [*names, "v"]
    return _without_null_keys(pairs) if dropna else pairs
