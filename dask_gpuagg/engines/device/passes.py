"""Passes of the kernels for a plan: states of rows, merged and finished states of partials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import pylibcudf as plc
from cudf.utils.dtypes import dtype_to_pylibcudf_type
from pylibcudf.types import TypeId

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.device.aggregator import Aggregator
from dask_gpuagg.engines.device.columns import (
    BOOL8,
    FLOAT64,
    INT32,
    binary,
    column_at,
    is_own,
    keys_of,
    view,
    view_at,
)
from dask_gpuagg.engines.device.digits import (
    add_exact_sum,
    is_lost,
    loss_label,
    losses_of,
    merge_exact_sum,
    repaired_partials,
    repaired_rows,
    settled_partials,
    settled_rows,
    with_sums,
    without_losses,
)
from dask_gpuagg.engines.device.groups import Grouping, Numbering
from dask_gpuagg.engines.device.library import state_of_partials, state_of_rows
from dask_gpuagg.engines.device.support import in_kernels
from dask_gpuagg.plan import Output, Plan, StateUse
from dask_gpuagg.states import STATES

# Fields of partials that are integers of every group; those that merge by themselves are summed.
NEVER_NULL = ("n", "hi", "lo")
_DECIMALS = (TypeId.DECIMAL32, TypeId.DECIMAL64, TypeId.DECIMAL128)


def keeps_values(name: str) -> bool:
    """Whether a state or an aggregation is one of the values, in their own dtype."""
    return name in REGISTRY and REGISTRY[name].result == "same"


def _numbers(column: plc.Column) -> plc.Column:
    """Decimals in float64, as moments are made of them; all else as it is."""
    if column.type().id() not in _DECIMALS:
        return column
    return plc.unary.cast(column, FLOAT64)


def _truths(column: plc.Column) -> plc.Column:
    """Strings as whether they are not empty; all else as it is."""
    if column.type().id() is not TypeId.STRING:
        return column
    nothing = plc.Scalar.from_py(0, INT32)
    return binary("GREATER", plc.strings.attributes.count_bytes(column), nothing, BOOL8)


def _is_exact(output: Output, plan: Plan) -> bool:
    """Whether a mean is made in the unit of the values."""
    assert output.column is not None
    cls = dtype_class(plan.columns[output.column].dtype)
    return cls in ("datetime", "timedelta", "decimal")


def is_watched(output: Output, plan: Plan) -> bool:
    """Whether an output is made of what a pass may lose digits of: moments, or exact sums."""
    return _power(output) is not None or is_binned(output, plan)


def is_binned(output: Output, plan: Plan) -> bool:
    """Whether an output is made of an exact sum."""
    return any(STATES[plan.states[i].state].binned for i in output.states)


def _power(output: Output) -> int | None:
    return None if output.custom else REGISTRY[output.aggregation].power


def update(aggregator: Aggregator, use: StateUse, columns: Sequence[plc.Column]) -> None:
    """One state of rows: the outputs are its fields, and for moments then their loss."""
    if use.state == "size":
        aggregator.size()
        return
    (column,) = columns
    match use.state:
        case "osum" if column.type().id() is TypeId.DECIMAL64:
            aggregator.wide_sum(column)
        case "isum" | "osum":
            aggregator.sum(column)
        case "fsum":
            aggregator.float_sum(column)
        case "iprod" | "fprod":
            aggregator.prod(column)
        case "any" | "all":
            getattr(aggregator, use.state)(_truths(column))
        case "moments":
            numbers = _numbers(column)
            aggregator.moments(numbers)
            aggregator.loss(numbers)
        case "count" | "min" | "max" | "first" | "last" | "limbs":
            getattr(aggregator, use.state)(column)
        case other:
            raise AssertionError(f"the planner let {other!r} through to the device")


def merge(aggregator: Aggregator, use: StateUse, table: Any, prefix: str) -> None:
    """One state of partials: the outputs are its fields again, and the loss of moments."""
    record = STATES[use.state]
    fields = [view_at(table, prefix + name) for name in record.fields]
    if use.state == "moments":
        aggregator.moments(*fields)
        aggregator.loss(*fields)
        return
    assert record.kernels, f"the planner let {use.state!r} through to the kernels"
    for name, field in zip(record.fields, fields, strict=True):
        getattr(aggregator, "total" if name in NEVER_NULL else record.merge)(field)


def finish(aggregator: Aggregator, output: Output, watched: bool, plan: Plan, table: Any) -> None:
    """One output from the states of partials; of moments their loss too if they are watched."""
    if output.aggregation == "mean":
        fields = {
            f: view_at(table, f"s{i}.{f}")
            for i in output.states
            for f in STATES[plan.states[i].state].fields
        }
        if "hi" in fields:
            assert output.column is not None
            dtype = dtype_to_pylibcudf_type(plan.columns[output.column].dtype)
            aggregator.merged_limb_mean(fields["hi"], fields["lo"], fields["n"], dtype)
        elif _is_exact(output, plan):
            aggregator.merged_exact_mean(fields["sum"], fields["n"])
        else:
            aggregator.merged_mean(fields["sum"], fields["n"])
    elif (power := _power(output)) is not None:
        (i,) = output.states
        n, mean, m2 = (view_at(table, f"s{i}.{f}") for f in ("n", "mean", "m2"))
        ddof = dict(output.parameters).get("ddof", 1)
        aggregator.merged_spread(n, mean, m2, ddof, power)
        if watched:
            aggregator.loss(n, mean, m2)
    else:
        (i,) = output.states
        merge(aggregator, plan.states[i], table, f"s{i}.")


def finish_rows(
    aggregator: Aggregator,
    output: Output,
    watched: bool,
    plan: Plan,
    columns: Sequence[plc.Column],
) -> None:
    """One output from whole rows; of moments and exact sums their loss too if they are watched."""
    if output.column is None:
        aggregator.size()
        return
    column = columns[output.column]
    if is_binned(output, plan):
        if output.aggregation == "mean":
            aggregator.exact_total_mean(column)
        else:
            aggregator.exact_total(column)
        if watched:
            aggregator.exact_loss(column)
    elif output.aggregation == "mean" and _is_exact(output, plan):
        aggregator.exact_mean(column)
    elif output.aggregation == "mean":
        aggregator.mean(column)
    elif (power := _power(output)) is not None:
        ddof = dict(output.parameters).get("ddof", 1)
        numbers = _numbers(column)
        aggregator.spread(numbers, ddof, power)
        if watched:
            aggregator.loss(numbers)
    else:
        (i,) = output.states
        update(aggregator, plan.states[i], [column])


def states_of_rows(
    keys: Sequence[Any],
    columns: Mapping[int, Any],
    index: Any,
    plan: Plan,
    keep_nulls: bool,
    unusual: frozenset[int] = frozenset(),
) -> Any:
    """One row per group of some rows: the keys, then the fields of every state.

    Of ``unusual`` states, exact sums, the values do not fit the bins of one slot.
    """
    grouping = Grouping(keys, keep_nulls)
    # several states read the same column
    view_of = cache(lambda c: view(columns[c]))
    grouping.read(view_of(c) for use in plan.states if in_kernels(use, plan) for c in use.columns)

    def add_binned(i: int, use: StateUse) -> list[str]:
        names = add_exact_sum(grouping, view_of(use.columns[0]), i in unusual)
        return [f"s{i}.{name}" for name in names]

    def add(i: int, use: StateUse) -> None:
        update(grouping.aggregator, use, [view_of(c) for c in use.columns])

    labels = _add_states(plan, add, add_binned)
    kept = [(i, use) for i, use in enumerate(plan.states) if keeps_values(use.state)]
    dtypes = {f"s{i}.{use.state}": columns[use.columns[0]].dtype for i, use in kept}
    dtypes = {label: dtype for label, dtype in dtypes.items() if not is_own(dtype)}
    groups, also_unusual = settled_rows(grouping.table(labels, dtypes), plan)
    if also_unusual:
        again = unusual | also_unusual
        return states_of_rows(keys, columns, index, plan, keep_nulls, again)
    groups = repaired_rows(groups, keys, columns, plan)

    def by_library(numbering: Numbering, i: int, use: StateUse) -> dict[str, Any]:
        return state_of_rows(numbering, use, [columns[c] for c in use.columns], index)

    return _with_library_states(groups, keys, plan, by_library)


def _add_states(
    plan: Plan,
    add: Callable[[int, StateUse], None],
    add_binned: Callable[[int, StateUse], list[str]],
) -> list[str]:
    """Add the states that the kernels make to passes, and what moments lose; their labels."""
    labels: list[str] = []
    for i, use in enumerate(plan.states):
        if not in_kernels(use, plan):
            continue
        if STATES[use.state].binned:
            labels += add_binned(i, use)
            continue
        add(i, use)
        labels += [f"s{i}.{f}" for f in STATES[use.state].fields]
        if use.state == "moments":
            labels.append(loss_label(i))
    return labels


def merged(stacked: Any, plan: Plan, least: int = 0) -> Any:
    """One row per group of several partials: the keys, then the fields of every state.

    ``least`` is the rows of the largest of them.
    """
    keys = keys_of(stacked)
    grouping = Grouping(keys, keep_nulls=True, least=least)
    grouping.read(_fields_of(stacked, plan))
    labels = _add_states(
        plan,
        lambda i, use: merge(grouping.aggregator, use, stacked, f"s{i}."),
        lambda i, use: merge_exact_sum(grouping, stacked, f"s{i}."),
    )
    values = [n for n in labels if keeps_values(n.partition(".")[2])]
    dtypes = {n: column_at(stacked, n).dtype for n in values}
    groups = settled_partials(grouping.table(labels, dtypes), plan)
    groups = repaired_partials(groups, stacked, keys, plan)
    return _with_merged_states(groups, stacked, plan)


def finished(stacked: Any, plan: Plan, least: int = 0, merges: bool = True) -> Any:
    """Outputs that the kernels finish, and the merged states of all others.

    ``least`` is the rows of the largest partial. Where moments lost digits, partials are merged
    first if ``merges`` says so.
    """
    grouping = Grouping(keys_of(stacked), keep_nulls=True, least=least)
    if plan.shape == "values":
        merge(grouping.aggregator, plan.states[0], stacked, "s0.")
        return grouping.table(["n"])
    grouping.read(_fields_of(stacked, plan))
    # the outputs of a matrix name no states
    chosen = [
        i
        for i, output in enumerate(plan.outputs)
        if output.states and not is_binned(output, plan)
        if all(in_kernels(plan.states[state], plan) for state in output.states)
    ]
    labels = add_outputs(grouping, plan, chosen, partial(finish, plan=plan, table=stacked))
    dtypes = {}
    for i in chosen:
        output = plan.outputs[i]
        if keeps_values(output.aggregation):
            state = f"s{output.states[0]}.{output.aggregation}"
            dtypes[f"o{i}"] = column_at(stacked, state).dtype
    for i, use in enumerate(plan.states):
        if STATES[use.state].binned:
            labels += merge_exact_sum(grouping, stacked, f"s{i}.")
    groups = with_sums(grouping.table(labels, dtypes), plan)
    if merges and is_lost(losses_of(groups)):
        # merged first, which restores what was lost; one part of a group has nothing to lose
        return finished(merged(stacked, plan, least), plan, merges=False)
    return _with_merged_states(without_losses(groups), stacked, plan)


def add_outputs(
    grouping: Grouping,
    plan: Plan,
    chosen: Iterable[int],
    add: Callable[[Aggregator, Output, bool], None],
) -> list[str]:
    """Add outputs to the passes over some rows, and what a state loses once; their labels.

    ``add`` adds an output to an aggregator, followed by its loss if the last argument is true.
    """
    labels: list[str] = []
    watched: set[tuple[Aggregator, tuple[int, ...]]] = set()
    for i in chosen:
        output, aggregator = plan.outputs[i], grouping.aggregator
        moments = (aggregator, output.states)
        first = is_watched(output, plan) and moments not in watched
        add(aggregator, output, first)
        labels.append(f"o{i}")
        if first:
            watched.add(moments)
            labels.append(loss_label(i))
    return labels


def _with_merged_states(groups: Any, stacked: Any, plan: Plan) -> Any:
    def by_library(numbering: Numbering, i: int, use: StateUse) -> dict[str, Any]:
        return state_of_partials(numbering, use, stacked, f"s{i}.")

    return _with_library_states(groups, keys_of(stacked), plan, by_library)


def _with_library_states(
    groups: Any,
    keys: Sequence[Any],
    plan: Plan,
    make: Callable[[Numbering, int, StateUse], dict[str, Any]],
) -> Any:
    """The groups with the states that the kernels do not make."""
    uses = [(i, use) for i, use in enumerate(plan.states) if not in_kernels(use, plan)]
    if uses:
        numbering = Numbering.of_keys(keys, keys_of(groups))
        for i, use in uses:
            for name, values in make(numbering, i, use).items():
                groups[f"s{i}.{name}"] = values
    return groups


def _fields_of(stacked: Any, plan: Plan) -> Iterator[plc.Column]:
    """The fields of partials that the kernels merge, but for those of integers without nulls."""
    for i, use in enumerate(plan.states):
        if in_kernels(use, plan) and not STATES[use.state].binned:
            yield from (view_at(stacked, f"s{i}.{f}") for f in STATES[use.state].fields)
