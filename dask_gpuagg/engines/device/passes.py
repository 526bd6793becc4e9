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
from dask_gpuagg.engines.device import digits
from dask_gpuagg.engines.device.aggregator import Aggregator
from dask_gpuagg.engines.device.columns import (
    BOOL8,
    FLOAT64,
    INT32,
    as_one,
    binary,
    column_at,
    keys_of,
    view,
    view_at,
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


def _add_spread(aggregator: Aggregator, output: Output, power: int, *columns: plc.Column) -> None:
    ddof = dict(output.parameters).get("ddof", 1)
    aggregator.spread(ddof, power, *columns)
    aggregator.loss(*columns)


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


def finish(aggregator: Aggregator, output: Output, plan: Plan, table: Any) -> None:
    """One output from the states of partials, followed by the loss of moments."""
    power = _power(output)
    if output.aggregation != "mean" and power is None:
        (i,) = output.states
        merge(aggregator, plan.states[i], table, f"s{i}.")
        return
    fields = {
        name: view_at(table, f"s{i}.{name}")
        for i in output.states
        for name in STATES[plan.states[i].state].fields
    }
    if power is not None:
        moments = [fields[name] for name in ("n", "mean", "m2")]
        _add_spread(aggregator, output, power, *moments)
    elif "hi" in fields:
        assert output.column is not None
        dtype = dtype_to_pylibcudf_type(plan.columns[output.column].dtype)
        aggregator.limb_mean(fields["hi"], fields["lo"], fields["n"], dtype)
    else:
        mean = aggregator.exact_mean if _is_exact(output, plan) else aggregator.mean
        mean(fields["sum"], fields["n"])


def finish_rows(
    aggregator: Aggregator, output: Output, plan: Plan, columns: Sequence[plc.Column]
) -> None:
    """One output from whole rows, followed by the loss of moments and exact sums."""
    if output.column is None:
        aggregator.size()
        return
    column = columns[output.column]
    if is_binned(output, plan):
        if output.aggregation == "mean":
            aggregator.exact_total_mean(column)
        else:
            aggregator.exact_total(column)
        aggregator.exact_loss(column)
    elif output.aggregation == "mean":
        mean = aggregator.exact_mean if _is_exact(output, plan) else aggregator.mean
        mean(column)
    elif (power := _power(output)) is not None:
        _add_spread(aggregator, output, power, _numbers(column))
    else:
        (i,) = output.states
        update(aggregator, plan.states[i], [column])


def _kernel_states(plan: Plan) -> list[tuple[int, StateUse]]:
    return [(i, use) for i, use in enumerate(plan.states) if in_kernels(use, plan)]


def _labels_of(i: int, use: StateUse) -> list[str]:
    """Labels of a state's fields, and of its loss."""
    labels = [f"s{i}.{field}" for field in STATES[use.state].fields]
    return [*labels, digits.loss_label(i)] if use.state == "moments" else labels


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
    uses = _kernel_states(plan)
    grouping.read(view_of(c) for _, use in uses for c in use.columns)
    labels: list[str] = []
    dtypes = {}
    for i, use in uses:
        views = [view_of(c) for c in use.columns]
        if STATES[use.state].binned:
            names = digits.add_exact_sum(grouping, views[0], i in unusual)
            labels += [f"s{i}.{name}" for name in names]
            continue
        update(grouping.aggregator, use, views)
        labels += _labels_of(i, use)
        if keeps_values(use.state):
            dtypes[f"s{i}.{use.state}"] = columns[use.columns[0]].dtype
    groups, also_unusual = digits.settled_rows(grouping.table(labels, dtypes), plan)
    if also_unusual:
        together = {c: as_one(column) for c, column in columns.items()}
        again = unusual | also_unusual
        return states_of_rows(list(map(as_one, keys)), together, index, plan, keep_nulls, again)
    groups = digits.repaired_rows(groups, keys, columns, plan)

    def by_library(numbering: Numbering, i: int, use: StateUse) -> dict[str, Any]:
        return state_of_rows(numbering, use, [columns[c] for c in use.columns], index)

    return _with_library_states(groups, keys, plan, by_library)


def merged(stacked: Any, plan: Plan, least: int = 0) -> Any:
    """One row per group of several partials: the keys, then the fields of every state.

    ``least`` is the rows of the largest of them.
    """
    keys = keys_of(stacked)
    grouping = Grouping(keys, keep_nulls=True, least=least)
    grouping.read(_fields_of(stacked, plan))
    labels: list[str] = []
    for i, use in _kernel_states(plan):
        if STATES[use.state].binned:
            labels += digits.merge_exact_sum(grouping, stacked, f"s{i}.")
            continue
        merge(grouping.aggregator, use, stacked, f"s{i}.")
        labels += _labels_of(i, use)
    values = [n for n in labels if keeps_values(n.partition(".")[2])]
    dtypes = {n: column_at(stacked, n).dtype for n in values}
    groups = digits.settled_partials(grouping.table(labels, dtypes), plan)
    groups = digits.repaired_partials(groups, stacked, keys, plan)
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
            labels += digits.merge_exact_sum(grouping, stacked, f"s{i}.")
    groups = digits.with_sums(grouping.table(labels, dtypes), plan)
    if merges and digits.is_lost(digits.losses_of(groups)):
        # merged first, which restores what was lost; one part of a group has nothing to lose
        return finished(merged(stacked, plan, least), plan, merges=False)
    return _with_merged_states(digits.without_losses(groups), stacked, plan)


def add_outputs(
    grouping: Grouping,
    plan: Plan,
    chosen: Iterable[int],
    add: Callable[[Aggregator, Output], None],
) -> list[str]:
    """Add outputs to the passes over some rows; the labels of them and of their losses."""
    labels: list[str] = []
    for i in chosen:
        output = plan.outputs[i]
        add(grouping.aggregator, output)
        labels.append(f"o{i}")
        if is_watched(output, plan):
            labels.append(digits.loss_label(i))
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
    for i, use in _kernel_states(plan):
        if not STATES[use.state].binned:
            yield from (view_at(stacked, f"s{i}.{f}") for f in STATES[use.state].fields)
