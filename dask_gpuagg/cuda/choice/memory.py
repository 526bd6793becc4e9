"""Kernels that device memory has room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dask_gpuagg.cuda.choice.choose import (
    decide,
    global_bytes,
    in_full_table,
    in_global,
    shared_capacity,
)
from dask_gpuagg.cuda.choice.costs import Costs
from dask_gpuagg.cuda.choice.decision import Case, Decision, Hgb, Partitioned, Sgb, SpEga
from dask_gpuagg.cuda.choice.partitions import copies_bytes
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS
from dask_gpuagg.cuda.runtime.driver import Device

# Bytes from which the allocator is asked before a kernel is decided on: writing as many takes
# longer than asking.
_ASKED_FROM = 1 << 28
# Bytes of a value in most columns of copies, each of which is allocated by itself.
_COPIED_BYTES = 8
# Share of the bytes of copies that there was no room for: of nearly as many nobody need try again.
_LESS = 0.95


def that_fits(
    query: Query,
    rows: int,
    decision: Decision,
    device: Device,
    has_room: Callable[[Sequence[int]], bool],
    costs: Costs | None = None,
    values: float | None = None,
) -> Decision:
    """The decision, or the best kernel whose copies or table there is memory for.

    Parameters
    ----------
    query : Query
    rows : int
    decision : Decision
    device : Device
    has_room : callable
        Takes bytes of several buffers; whether the allocator gives all of them at once.
    costs : Costs, optional
    values : float, optional
        See ``choose.decide``.

    Returns
    -------
    Decision
        Where nothing fits the one that needs least, whose call meets the allocator's message.
    """
    while True:
        sizes = _buffers(query, decision)
        if sum(sizes) < _ASKED_FROM or has_room(sizes):
            return decision
        less = with_less_memory(query, rows, decision, device, costs, values)
        if less is None:
            return decision
        decision = less


def _buffers(query: Query, decision: Decision) -> list[int]:
    """Bytes of the buffers for copies of rows, or of the table."""
    needed = global_bytes(query, decision)
    if not isinstance(decision, Partitioned):
        return [needed]
    each = _COPIED_BYTES * decision.partitions * decision.capacity
    return [min(each, needed - first) for first in range(0, needed, each)]


def with_less_memory(
    query: Query,
    rows: int,
    decision: Decision,
    device: Device,
    costs: Costs | None = None,
    values: float | None = None,
) -> Decision | None:
    """The best kernel of those that need less memory than a decision; None if none does.

    Parameters
    ----------
    query : Query
    rows : int
    decision : Decision
        For which device memory did not suffice.
    device : Device
    costs : Costs, optional
    values : float, optional
        See ``choose.decide``.

    Returns
    -------
    Decision or None
        ``why`` says what there was no room for.
    """
    estimate = decision.estimate
    if isinstance(decision, Partitioned):
        memory = int(_LESS * copies_bytes(query, decision))
        made = decide(query, rows, estimate, device, "auto", costs, values, memory)
        return _instead_of(decision, made)
    case = Case(query, rows, estimate, device, query.values if values is None else values)
    why = "it needs the least memory"
    tables: list[Decision] = [in_global(case, why)]
    if shared_capacity(query, device) > 0:
        tables.append(in_full_table(case, why))
    least = min(tables, key=lambda table: needed_bytes(query, rows, table))
    smaller = needed_bytes(query, rows, least) < needed_bytes(query, rows, decision)
    return _instead_of(decision, least) if smaller else None


def _instead_of(decision: Decision, made: Decision) -> Decision:
    return replace(made, why=f"{made.why}; device memory has no room for {decision.kernel}")


def needed_bytes(query: Query, rows: int, decision: Decision) -> int:
    """Device memory that a call takes beside its columns and its result, roughly."""
    match decision:
        case Sgb():
            groups = rows if decision.estimate is None else decision.estimate.groups
            return groups * sum(query.slot_bytes)
        case SpEga():
            # the rows that lost their first place, and the list of free slots
            return global_bytes(query, decision) + 4 * rows + 2 * decision.global_slots
        case Hgb():
            # the list of rows that found no place
            return (decision.global_slots + EXTRA_SLOTS) * sum(query.slot_bytes) + rows // 2
    return global_bytes(query, decision)
