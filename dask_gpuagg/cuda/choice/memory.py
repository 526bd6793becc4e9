"""The kernel that needs less device memory than one for which it did not suffice."""

from __future__ import annotations

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

# Bytes of a row that is sorted: its word and its number, from one copy to another.
_SORTED_BYTES = 24


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
    """
    estimate = decision.estimate
    if isinstance(decision, Partitioned):
        memory = copies_bytes(query, decision) - 1
        return decide(query, rows, estimate, device, "auto", costs, values, memory)
    case = Case(query, rows, estimate, device, query.values if values is None else values)
    why = "it needs the least memory"
    tables: list[Decision] = [in_global(case, why)]
    if shared_capacity(query, device) > 0:
        tables.append(in_full_table(case, why))
    least = min(tables, key=lambda table: needed_bytes(query, rows, table))
    smaller = needed_bytes(query, rows, least) < needed_bytes(query, rows, decision)
    return least if smaller else None


def needed_bytes(query: Query, rows: int, decision: Decision) -> int:
    """Device memory that a call takes beside its columns and its result, roughly."""
    match decision:
        case Sgb():
            return _SORTED_BYTES * rows
        case SpEga():
            # the rows that lost their first place, and the list of free slots
            return global_bytes(query, decision) + 4 * rows + 2 * decision.global_slots
        case Hgb():
            # the list of rows that found no place
            return (decision.global_slots + EXTRA_SLOTS) * sum(query.slot_bytes) + rows // 2
    return global_bytes(query, decision)
