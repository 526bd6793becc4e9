"""Which outputs of an ``Aggregator`` update, merge and finish the states of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pylibcudf as plc
from cudf.utils.dtypes import dtype_to_pylibcudf_type
from pylibcudf.types import DataType, TypeId

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.device.aggregator import Aggregator
from dask_gpuagg.engines.device.columns import view_at
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
    return plc.unary.cast(column, DataType(TypeId.FLOAT64))


def _truths(column: plc.Column) -> plc.Column:
    """Which strings are not empty; all else as it is."""
    if column.type().id() is not TypeId.STRING:
        return column
    return plc.binaryop.binary_operation(
        plc.strings.attributes.count_bytes(column),
        plc.Scalar.from_py(0, DataType(TypeId.INT32)),
        plc.binaryop.BinaryOperator.GREATER,
        DataType(TypeId.BOOL8),
    )


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
        aggregator.merged_moments(*fields)
        aggregator.merged_loss(*fields)
        return
    assert record.kernels, f"the planner let {use.state!r} through to the kernels"
    for name, field in zip(record.fields, fields, strict=True):
        getattr(aggregator, "total" if name in NEVER_NULL else record.merge)(field)


def finish(
    aggregator: Aggregator, output: Output, plan: Plan, table: Any, watched: bool = False
) -> None:
    """One output from the states of partials; of moments their loss too if they are watched."""
    if output.aggregation == "mean":
        fields = {f: view_at(table, f"s{i}.{f}") for i in output.states for f in _fields(plan, i)}
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
            aggregator.merged_loss(n, mean, m2)
    else:
        (i,) = output.states
        merge(aggregator, plan.states[i], table, f"s{i}.")


def _fields(plan: Plan, state: int) -> tuple[str, ...]:
    return STATES[plan.states[state].state].fields


def finish_rows(
    aggregator: Aggregator,
    output: Output,
    plan: Plan,
    column: plc.Column | None,
    watched: bool = False,
) -> None:
    """One output from whole rows; of moments and exact sums their loss too if they are watched."""
    if column is None:
        aggregator.size()
    elif is_binned(output, plan):
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
