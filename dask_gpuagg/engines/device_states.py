"""Which outputs of an ``Aggregator`` update, merge and finish the states of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pylibcudf as plc

from dask_gpuagg.engines.columns import Aggregator
from dask_gpuagg.plan import Output, Plan, StateUse

_POWERS = {"var": 0, "std": 1, "sem": 2}


def view(column: Any) -> plc.Column:
    """The column as libcudf has it."""
    return column.to_pylibcudf()[0]


def update(aggregator: Aggregator, use: StateUse, columns: Sequence[plc.Column]) -> None:
    """One state of rows: the outputs are its fields."""
    if use.state == "size":
        aggregator.size()
        return
    (column,) = columns
    match use.state:
        case "isum" | "osum":
            aggregator.sum(column)
        case "fsum":
            aggregator.float_sum(column)
        case "iprod" | "fprod":
            aggregator.prod(column)
        case "count" | "min" | "max" | "first" | "last" | "any" | "all" | "moments":
            getattr(aggregator, use.state)(column)
        case other:
            raise AssertionError(f"the planner let {other!r} through to the device")


def merge(aggregator: Aggregator, use: StateUse, table: Any, prefix: str) -> None:
    """One state of partials: the outputs are its fields again."""
    match use.state:
        case "size" | "count":
            aggregator.sum(view(table[prefix + "n"]))
        case "isum" | "osum" | "fsum":
            aggregator.sum(view(table[prefix + "sum"]))
        case "iprod" | "fprod":
            aggregator.prod(view(table[prefix + "prod"]))
        case "min" | "max" | "first" | "last" | "any" | "all":
            getattr(aggregator, use.state)(view(table[prefix + use.state]))
        case "moments":
            aggregator.merged_moments(*(view(table[prefix + f]) for f in ("n", "mean", "m2")))
        case other:
            raise AssertionError(f"the planner let {other!r} through to the device")


def finish(aggregator: Aggregator, output: Output, plan: Plan, table: Any) -> None:
    """One output from the states of partials."""
    if output.aggregation == "mean":
        names = {plan.states[i].state: i for i in output.states}
        sums, counts = (
            view(table[f"s{names[n]}.{f}"]) for n, f in (("fsum", "sum"), ("count", "n"))
        )
        aggregator.merged_mean(sums, counts)
    elif output.aggregation in _POWERS:
        (i,) = output.states
        n, mean, m2 = (view(table[f"s{i}.{f}"]) for f in ("n", "mean", "m2"))
        ddof = dict(output.parameters).get("ddof", 1)
        aggregator.merged_spread(n, mean, m2, ddof, _POWERS[output.aggregation])
    else:
        (i,) = output.states
        merge(aggregator, plan.states[i], table, f"s{i}.")


def finish_rows(
    aggregator: Aggregator, output: Output, plan: Plan, views: dict[int, plc.Column]
) -> None:
    """One output from whole rows."""
    if output.aggregation == "size":
        aggregator.size()
        return
    assert output.column is not None
    column = views[output.column]
    if output.aggregation == "mean":
        aggregator.mean(column)
    elif output.aggregation in _POWERS:
        ddof = dict(output.parameters).get("ddof", 1)
        aggregator.spread(column, ddof, _POWERS[output.aggregation])
    else:
        (i,) = output.states
        update(aggregator, plan.states[i], [column])
