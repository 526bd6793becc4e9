"""The device engine: cuDF partitions in, cuDF results out, by our kernels.

A partial has the tables and the columns of the host engine's (see ``host.py``). What the kernels
do not make (see ``support.py``) is libcudf's, group by group (``device_reduce.py``); joining
tables of one result, sorting and casting are cuDF's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import cudf
import cupy as cp
import pylibcudf as plc

from dask_gpuagg.aggregations import REGISTRY, Kind
from dask_gpuagg.cuda.runtime.compiler import KernelsUnavailable
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.device import libcudf, reduce
from dask_gpuagg.engines.device.categories import complete, occurring
from dask_gpuagg.engines.device.exchange import bucket_of, divided_outputs, gather, select, split
from dask_gpuagg.engines.device.groups import (
    Grouping,
    Numbering,
    array_of,
    is_own,
    like,
    plain,
    present,
    table,
    view,
)
from dask_gpuagg.engines.device.moments import (
    is_lost,
    loss_label,
    losses_of,
    repaired_partials,
    repaired_rows,
    without_losses,
)
from dask_gpuagg.engines.device.operations import nans_to_nulls
from dask_gpuagg.engines.device.results import (
    Shape,
    from_libcudf,
    index_of,
    matrix_of,
    of_plan,
    shape_of,
    shaped,
    values_of,
)
from dask_gpuagg.engines.device.stacking import (
    bytes_of,
    common_dtype,
    compatible,
    divided,
    of_categories,
    stack,
    stacked,
)
from dask_gpuagg.engines.device.states import (
    finish,
    finish_rows,
    is_spread,
    merge,
    selects,
    update,
)
from dask_gpuagg.engines.device.support import in_kernels
from dask_gpuagg.engines.device.whole_groups import can_sort, counts, is_chrono, serves
from dask_gpuagg.plan import Output, Plan
from dask_gpuagg.states import STATES

__all__ = [
    "Shape", "bucket_of", "bytes_of", "combine", "common_dtype", "compatible", "direct", "divided",
    "divided_outputs", "finalize", "gather", "of_categories", "partial", "select", "shape_of",
    "split", "stacked",
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
        tables["groups"] = _states(keys, dict(enumerate(columns)), index, plan, not dropna)
    for c in plan.pairs:
        tables[f"pairs{c}"] = _distinct(keys, columns[c], plan, c, dropna)
    if plan.rows:
        whole = {f"k{i}": k for i, k in enumerate(keys)}
        rows = table(whole | {f"v{c}": columns[c] for c in plan.rows})
        tables["rows"] = _without_null_keys(rows) if dropna else rows
    return tables


def combine(partials: Sequence[Partial], plan: Plan) -> Partial:
    """Merge partials into one, of the same layout; see ``host.combine``."""
    tables: Partial = {}
    for name in plan.tables:
        stacked = stack([p[name] for p in partials])
        if name == "groups":
            stacked = _merged(stacked, plan)
        elif name.startswith("pairs"):
            stacked = _distinct(_keys_of(stacked), stacked["v"], plan, int(name[5:]), False)
        tables[name] = stacked
    return tables


def finalize(
    partials: Sequence[Partial],
    plan: Plan,
    meta: Any,
    bucket: tuple[int, int] | None = None,
) -> Any:
    """Merge partials and make the outputs; see ``host.finalize``.

    Unobserved categories are found with all groups at hand, so ``bucket`` is not needed.
    """
    stacked = {name: stack([p[name] for p in partials]) for name in plan.tables}
    if plan.states_from_rows and plan.states:
        rows = stacked["rows"]
        columns = {c: rows[f"v{c}"] for c in plan.rows}
        stacked["groups"] = _states(_keys_of(rows), columns, None, plan, True)
    for name in plan.tables:
        if name.startswith("pairs"):
            pairs = stacked[name]
            if len(partials) == 1:  # they are distinct already
                continue
            stacked[name] = _distinct(_keys_of(pairs), pairs["v"], plan, int(name[5:]), False)
    every_key = _keys_of(next(iter(stacked.values())))
    if plan.drops_late:
        stacked = {name: _without_null_keys(t) for name, t in stacked.items()}
    numberings: dict[str, Numbering] = {}
    if "groups" in stacked:
        groups = _finished(stacked["groups"], plan)
    else:
        name = next(iter(stacked))
        groups, numbering = _numbered(_keys_of(stacked[name]))
        if numbering is not None and plan.observed:
            numberings[name] = numbering
    if plan.shape == "values":
        return values_of(groups, plan, meta)
    if plan.shape == "matrix":
        return matrix_of(groups, plan, meta)
    if not plan.observed:
        groups = complete(groups, every_key, plan.dropna)
    shape = of_plan(shape_of(meta), plan)
    made = _with_outputs(groups, stacked, plan, shape.index, numberings)
    return shaped(made, plan, shape)


def direct(keys: Sequence[Any], columns: Sequence[Any], plan: Plan, shape: Shape) -> Any:
    """One partition to its result in one pass, without a partial in between.

    Parameters
    ----------
    keys, columns : sequence of Series
        Of the partition's rows, as the plan names them.
    plan : Plan
        For which ``support.one_pass`` or ``support.of_rows`` holds.
    shape : Shape

    Returns
    -------
    DataFrame or Series
    """
    if not plan.grouped:
        return _direct_of_rows(keys, columns, plan, shape)
    grouping = Grouping(keys, not plan.dropna)
    # several outputs read the same column
    seen = cache(lambda c: view(columns[c]))
    labels = []
    # columns whose var has told already what their std lost
    told: set[tuple[Any, Any]] = set()
    for i, output in enumerate(plan.outputs):
        column = None if output.column is None else seen(output.column)
        aggregator = grouping.aggregator
        watched = is_spread(output) and (aggregator, output.column) not in told
        finish_rows(aggregator, output, plan, column, watched)
        labels.append(f"o{i}")
        if watched:
            told.add((aggregator, output.column))
            labels.append(loss_label(i))
    dtypes = {
        label: columns[o.column].dtype
        for label, o in zip((n for n in labels if n.startswith("o")), plan.outputs, strict=True)
        if o.column is not None and selects(o.aggregation) and not is_own(columns[o.column].dtype)
    }
    shape = of_plan(shape, plan)
    own = all(is_own(d) for d in (*(k.dtype for k in keys), *shape.dtypes))
    if plan.sort or not own:
        groups = grouping.table(labels, dtypes)
        if not is_lost(losses_of(groups)):
            return shaped(without_losses(groups), plan, shape)
    else:
        found, made = grouping.run()
        pairs = list(zip(labels, made, strict=True))
        if not is_lost([column for label, column in pairs if label.startswith("l")]):
            outputs = [column for label, column in pairs if label.startswith("o")]
            return from_libcudf(found, outputs, shape)
    # the states of rows tell more of what was lost than outputs do
    states = _states(keys, dict(enumerate(columns)), None, plan, not plan.dropna)
    finished = _finished(states, plan)
    return shaped(_with_outputs(finished, {}, plan, shape.index, {}), plan, shape)


def _direct_of_rows(keys: Sequence[Any], columns: Sequence[Any], plan: Plan, shape: Shape) -> Any:
    """The same where all outputs are of whole groups."""
    whole = {f"k{i}": k for i, k in enumerate(keys)}
    rows = table(whole | {f"v{c}": columns[c] for c in sorted({*plan.rows, *plan.pairs})})
    groups, numbering = _numbered(_keys_of(rows), not plan.dropna)
    numberings = {} if numbering is None else {"rows": numbering}
    made = _with_outputs(groups, {"rows": rows}, plan, shape.index, numberings)
    return shaped(made, plan, of_plan(shape, plan))


def _states(
    keys: Sequence[Any], columns: Mapping[int, Any], index: Any, plan: Plan, keep_nulls: bool
) -> Any:
    """One row per group of some rows: the keys, then the fields of every state."""
    grouping = Grouping(keys, keep_nulls)
    labels, dtypes = [], {}
    # several states read the same column
    seen = cache(lambda c: view(columns[c]))
    for i, use in enumerate(plan.states):
        if not in_kernels(use, plan):
            continue
        update(grouping.aggregator, use, [seen(c) for c in use.columns])
        fields = [f"s{i}.{f}" for f in STATES[use.state].fields]
        labels += fields
        if use.state == "moments":
            labels.append(loss_label(i))
        if selects(use.state) and not is_own(columns[use.columns[0]].dtype):
            dtypes[fields[0]] = columns[use.columns[0]].dtype
    groups = repaired_rows(grouping.table(labels, dtypes), keys, columns, plan)
    uses = [(i, use) for i, use in enumerate(plan.states) if not in_kernels(use, plan)]
    if uses:
        numbering = Numbering(keys, _keys_of(groups))
        for i, use in uses:
            made = reduce.update(numbering, use, [columns[c] for c in use.columns], index)
            for name, values in made.items():
                groups[f"s{i}.{name}"] = values
    return groups


def _merged(stacked: Any, plan: Plan) -> Any:
    """The same from the rows of several partials."""
    grouping = Grouping(_keys_of(stacked), keep_nulls=True)
    labels: list[str] = []
    for i, use in enumerate(plan.states):
        if not in_kernels(use, plan):
            continue
        merge(grouping.aggregator, use, stacked, f"s{i}.")
        labels += [f"s{i}.{f}" for f in STATES[use.state].fields]
        if use.state == "moments":
            labels.append(loss_label(i))
    dtypes = {n: stacked[n].dtype for n in labels if selects(n.partition(".")[2])}
    groups = grouping.table(labels, dtypes)
    groups = repaired_partials(groups, stacked, _keys_of(stacked), plan)
    return _with_library_states(groups, stacked, plan)


def _finished(stacked: Any, plan: Plan, merges: bool = True) -> Any:
    """Outputs that the kernels finish, and the merged states of all others."""
    grouping = Grouping(_keys_of(stacked), keep_nulls=True)
    labels, dtypes = [], {}
    # whose losses are told already
    seen: set[tuple[Any, Any]] = set()
    if plan.shape == "values":
        merge(grouping.aggregator, plan.states[0], stacked, "s0.")
        return grouping.table(["n"])
    for i, output in enumerate(plan.outputs):
        if _finished_in_kernels(output, plan):
            aggregator = grouping.aggregator
            watched = is_spread(output) and (aggregator, output.states) not in seen
            finish(aggregator, output, plan, stacked, watched)
            labels.append(f"o{i}")
            if watched:
                seen.add((aggregator, output.states))
                labels.append(loss_label(i))
            if selects(output.aggregation):
                dtypes[f"o{i}"] = stacked[f"s{output.states[0]}.{output.aggregation}"].dtype
    groups = grouping.table(labels, dtypes)
    if merges and is_lost(losses_of(groups)):
        # merged first, which makes good what was lost; one part of a group has nothing to lose
        return _finished(_merged(stacked, plan), plan, merges=False)
    return _with_library_states(without_losses(groups), stacked, plan)


def _finished_in_kernels(output: Output, plan: Plan) -> bool:
    # the outputs of a matrix name no states
    return bool(output.states) and all(in_kernels(plan.states[i], plan) for i in output.states)


def _with_library_states(groups: Any, stacked: Any, plan: Plan) -> Any:
    uses = [(i, use) for i, use in enumerate(plan.states) if not in_kernels(use, plan)]
    if uses:
        numbering = Numbering(_keys_of(stacked), _keys_of(groups))
        for i, use in uses:
            for name, values in reduce.merge(numbering, use, stacked, f"s{i}.").items():
                groups[f"s{i}.{name}"] = values
    return groups


def _numbered(keys: Sequence[Any], keep_nulls: bool = True) -> tuple[Any, Numbering | None]:
    """The groups of some rows, and the rows' numbers if the kernels could tell them."""
    grouping = Grouping(keys, keep_nulls)
    grouping.aggregator.encode()
    groups = grouping.table([])
    codes = grouping.aggregator.codes
    return groups, None if codes is None else Numbering.of_codes(array_of(codes), len(groups))


def _with_outputs(
    groups: Any,
    tables: Partial,
    plan: Plan,
    names: Sequence[Any],
    numberings: dict[str, Numbering],
) -> Any:
    """The groups with every output, those that no row has included.

    ``names`` are those of the keys; ``numberings`` of the rows of some tables are known already.
    """
    keys = _keys_of(groups)
    made = {f"k{i}": key for i, key in enumerate(keys)}
    for i, output in enumerate(plan.outputs):
        label = f"o{i}"
        if label in groups.columns:
            values = groups[label]
        elif output.kind is Kind.MERGEABLE:
            prefix = f"s{output.states[0]}."
            fields = {
                n.removeprefix(prefix): groups[n] for n in groups.columns if n.startswith(prefix)
            }
            values = reduce.finish(output, fields, index_of(keys, names))
        else:
            name = f"pairs{output.column}" if output.kind is Kind.DISTINCT else "rows"
            paired = name in tables and name != "rows"
            name = name if paired else "rows"
            if name not in numberings:
                numberings[name] = Numbering(_keys_of(tables[name]), keys)
            column = tables[name]["v" if paired else f"v{output.column}"]
            values = _of_rows(output, numberings[name], column, paired)
        empty = None if output.custom else REGISTRY[output.aggregation].of_no_rows
        if empty is not None:
            values = values.fillna(empty)
        made[label] = values
    return table(made)


def _of_rows(output: Output, numbering: Numbering, column: Any, paired: bool) -> Any:
    """One output from distinct pairs or whole rows: the kernels' where they can, else libcudf's."""
    counted = output.aggregation == "nunique"
    rows = len(column)
    sorts = counts(column.dtype, rows) if counted else serves(output, column.dtype, rows)
    if not sorts or not can_sort():
        return reduce.whole(output, numbering, column, paired)
    try:
        if counted:
            return plain(numbering.sorted(rows).nunique(view(column)))
        made = numbering.sorted(rows).output(output, view(column))
    except KernelsUnavailable as error:  # memory was full when a kernel was to be loaded
        libcudf.cause_of(error)
        return reduce.whole(output, numbering, column, paired)
    if output.aggregation == "list":
        return like(made, cudf.ListDtype(column.dtype))
    return like(made, column.dtype) if is_chrono(column.dtype) else plain(made)


def _keys_of(groups: Any) -> list[Any]:
    return [groups[c] for c in groups.columns if c.startswith("k")]


def _rows(column: Any, kept: cp.ndarray) -> Any:
    """The rows of a Series for which a condition holds."""
    mask = view(cudf.Series(kept))
    made = plc.stream_compaction.apply_retention_mask(plc.Table([view(column)]), mask)
    return like(made.columns()[0], column.dtype)


def _without_null_keys(rows: Any) -> Any:
    if not any(view(key).null_count() for key in _keys_of(rows)):
        return rows
    kept = occurring(_keys_of(rows))
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
