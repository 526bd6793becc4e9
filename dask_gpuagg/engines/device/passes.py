"""Passes of the kernels for a plan: states of rows, merged and finished states of partials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pylibcudf as plc

from dask_gpuagg.engines.device import exact, library_states
from dask_gpuagg.engines.device.aggregator import Aggregator
from dask_gpuagg.engines.device.columns import column_at, is_own, names_of, view, view_at
from dask_gpuagg.engines.device.groups import Grouping, Numbering
from dask_gpuagg.engines.device.moments import (
    is_lost,
    loss_label,
    losses_of,
    repaired_partials,
    repaired_rows,
    without_losses,
)
from dask_gpuagg.engines.device.states import (
    finish,
    is_binned,
    is_watched,
    keeps_values,
    merge,
    update,
)
from dask_gpuagg.engines.device.support import in_kernels
from dask_gpuagg.plan import Output, Plan
from dask_gpuagg.states import STATES


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
    labels, dtypes = [], {}
    # several states read the same column
    seen = cache(lambda c: view(columns[c]))
    grouping.read(seen(c) for use in plan.states if in_kernels(use, plan) for c in use.columns)
    for i, use in enumerate(plan.states):
        if not in_kernels(use, plan):
            continue
        if STATES[use.state].binned:
            names = exact.update(grouping, seen(use.columns[0]), i in unusual)
            labels += [f"s{i}.{name}" for name in names]
            continue
        update(grouping.aggregator, use, [seen(c) for c in use.columns])
        fields = [f"s{i}.{f}" for f in STATES[use.state].fields]
        labels += fields
        if use.state == "moments":
            labels.append(loss_label(i))
        if keeps_values(use.state) and not is_own(columns[use.columns[0]].dtype):
            dtypes[fields[0]] = columns[use.columns[0]].dtype
    groups, found = exact.settled_rows(grouping.table(labels, dtypes), plan)
    if found:
        again = unusual | found
        return states_of_rows(keys, columns, index, plan, keep_nulls, again)
    groups = repaired_rows(groups, keys, columns, plan)
    uses = [(i, use) for i, use in enumerate(plan.states) if not in_kernels(use, plan)]
    if uses:
        numbering = Numbering.of_keys(keys, keys_of(groups))
        for i, use in uses:
            made = library_states.update(numbering, use, [columns[c] for c in use.columns], index)
            for name, values in made.items():
                groups[f"s{i}.{name}"] = values
    return groups


def merged(stacked: Any, plan: Plan, least: int = 0) -> Any:
    """One row per group of several partials: the keys, then the fields of every state.

    ``least`` is the rows of the largest of them.
    """
    grouping = Grouping(keys_of(stacked), keep_nulls=True, least=least)
    grouping.read(_fields_of(stacked, plan))
    labels: list[str] = []
    for i, use in enumerate(plan.states):
        if not in_kernels(use, plan):
            continue
        if STATES[use.state].binned:
            labels += exact.merge(grouping, stacked, f"s{i}.")
            continue
        merge(grouping.aggregator, use, stacked, f"s{i}.")
        labels += [f"s{i}.{f}" for f in STATES[use.state].fields]
        if use.state == "moments":
            labels.append(loss_label(i))
    kept = [n for n in labels if keeps_values(n.partition(".")[2])]
    dtypes = {n: column_at(stacked, n).dtype for n in kept}
    groups = exact.settled_partials(grouping.table(labels, dtypes), plan)
    groups = repaired_partials(groups, stacked, keys_of(stacked), plan)
    return _with_library_states(groups, stacked, plan)


def finished(stacked: Any, plan: Plan, least: int = 0, merges: bool = True) -> Any:
    """Outputs that the kernels finish, and the merged states of all others.

    Parameters
    ----------
    stacked : DataFrame
        The rows of partials.
    plan : Plan
    least : int
        Rows of the largest of the partials, each of a group of its own.
    merges : bool
        Whether partials are merged first where moments lost digits.
    """
    grouping = Grouping(keys_of(stacked), keep_nulls=True, least=least)
    if plan.shape == "values":
        merge(grouping.aggregator, plan.states[0], stacked, "s0.")
        return grouping.table(["n"])
    grouping.read(_fields_of(stacked, plan))
    chosen = [i for i, o in enumerate(plan.outputs) if _finished_in_kernels(o, plan)]

    def add(aggregator: Aggregator, output: Output, watched: bool) -> None:
        finish(aggregator, output, plan, stacked, watched)

    labels = add_outputs(grouping, plan, chosen, add)
    dtypes = {}
    for i in chosen:
        output = plan.outputs[i]
        if keeps_values(output.aggregation):
            state = f"s{output.states[0]}.{output.aggregation}"
            dtypes[f"o{i}"] = column_at(stacked, state).dtype
    for i, use in enumerate(plan.states):
        if STATES[use.state].binned:
            labels += exact.merge(grouping, stacked, f"s{i}.")
    groups = exact.with_sums(grouping.table(labels, dtypes), plan)
    if merges and is_lost(losses_of(groups)):
        # merged first, which restores what was lost; one part of a group has nothing to lose
        return finished(merged(stacked, plan, least), plan, merges=False)
    return _with_library_states(without_losses(groups), stacked, plan)


def add_outputs(
    grouping: Grouping,
    plan: Plan,
    chosen: Iterable[int],
    add: Callable[[Aggregator, Output, bool], None],
) -> list[str]:
    """Add outputs to the passes over some rows, and what a state loses once.

    Parameters
    ----------
    grouping : Grouping
    plan : Plan
    chosen : iterable of int
        Numbers of the outputs.
    add : callable
        Adds an output to an aggregator, followed by its loss if the last argument is true.

    Returns
    -------
    list of str
        Labels of what the passes make.
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


def _finished_in_kernels(output: Output, plan: Plan) -> bool:
    # the outputs of a matrix name no states
    if not output.states or is_binned(output, plan):
        return False
    return all(in_kernels(plan.states[i], plan) for i in output.states)


def _with_library_states(groups: Any, stacked: Any, plan: Plan) -> Any:
    uses = [(i, use) for i, use in enumerate(plan.states) if not in_kernels(use, plan)]
    if uses:
        numbering = Numbering.of_keys(keys_of(stacked), keys_of(groups))
        for i, use in uses:
            for name, values in library_states.merge(numbering, use, stacked, f"s{i}.").items():
                groups[f"s{i}.{name}"] = values
    return groups


def _fields_of(stacked: Any, plan: Plan) -> Iterator[plc.Column]:
    """The fields of partials that the kernels merge, but for those of integers without nulls."""
    for i, use in enumerate(plan.states):
        if in_kernels(use, plan) and not STATES[use.state].binned:
            yield from (view_at(stacked, f"s{i}.{f}") for f in STATES[use.state].fields)


def keys_of(groups: Any) -> list[Any]:
    """The key columns of a table."""
    return [column_at(groups, c) for c in names_of(groups) if c.startswith("k")]
