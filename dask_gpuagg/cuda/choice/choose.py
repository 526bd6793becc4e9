"""The decision: the candidate that is expected to take least, or that memory has room for.

Nothing is launched here. Other tuning is in ``Query.threads`` and ``Query.unroll``.
"""

from dataclasses import replace
from functools import partial

from dask_gpuagg.cuda.choice import partitions, tables
from dask_gpuagg.cuda.choice.cost_model import expected_kernel_ms
from dask_gpuagg.cuda.choice.costs import Costs, shipped
from dask_gpuagg.cuda.choice.decision import (
    Case,
    Decision,
    Direct,
    Hgb,
    Lphga,
    Partitioned,
    Sgb,
    SpEga,
    margin,
)
from dask_gpuagg.cuda.choice.summary import KeySummary, null_slot
from dask_gpuagg.cuda.query.forms import PACKED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS
from dask_gpuagg.cuda.runtime.driver import Device

# Kernels that may be forced.
KERNELS = ("hgb", "direct", "pgb", "pgb_ur", "pgb_fold", "sgb", "sp_ega", "lphga")
# Copies of a state that skewed keys need.
_SKEWED_REPLICAS = 8
# Copies with which no two lanes of a warp wait for each other.
_LANES = 32
# Share of a row's values below which gathering them may be faster than moving all.
_GATHERED = 0.5
# Share of the time of a table in shared memory below which one in global memory is chosen: it loses
# more by keys that the sample did not show.
_GLOBAL_TABLE_SHARE = 0.9
# Rows from which a second pass over them may pay.
_PASSED_AGAIN_FROM = 1 << 20


def decide(
    query: Query,
    rows: int,
    estimate: KeySummary | None,
    device: Device,
    forced: str = "auto",
    costs: Costs | None = None,
    values: float | None = None,
) -> Decision:
    """Choose the kernel of one call.

    Without an estimate the input is small. ``forced`` is ``auto`` or one of ``KERNELS``; ``values``
    how many of a row's values the states read and that are not null, on average, by default all.
    """
    if forced not in ("auto", *KERNELS):
        raise ValueError(f"there is no kernel {forced!r}: auto, {', '.join(KERNELS)}")
    case = Case(query, rows, estimate, device, query.values if values is None else values)
    if forced != "auto":
        return _forced(case, forced)
    if estimate is None:
        return tables.in_global(case, f"{rows:,} rows are few")
    fits = margin(estimate.groups) <= tables.shared_capacity(query, device)
    if estimate.ascending and not fits and _admits_runs(query):
        return Sgb(why=f"{estimate.groups:,} groups, keys that ascend", estimate=estimate)
    return _cheapest(case, estimate, costs or shipped(device).costs)


def _forced(case: Case, kernel: str) -> Decision:
    """The kernel of this name, or ``lphga`` where it does not admit the query or its keys."""
    decision: Decision | None = None
    why = f"{case.groups:,} groups exceed shared memory"
    match kernel:
        case "lphga":
            return tables.in_global(case, "forced")
        case "sp_ega":
            decision = tables.in_full_table(case, "forced")
        case "sgb":
            why = "the keys have no word that orders as they do"
            if _admits_runs(case.query):
                decision = Sgb(why="forced", estimate=case.estimate)
        case "direct":
            why = "the keys lie in no narrow range"
            decision = tables.in_window(case, "forced", tables.LOOSEST)
        case "hgb":
            why = "a group's states exceed shared memory"
            if tables.shared_capacity(case.query, case.device) > 0:
                decision = tables.in_shared(case, "forced")
        case "pgb_ur":
            decision = partitions.in_partitions(case._replace(query=case.query.by_number))
        case "pgb" | "pgb_fold":
            decision = partitions.in_partitions(case, folds=kernel == "pgb_fold")
        case _:
            raise AssertionError(f"{kernel} is in KERNELS, and not here")
    return tables.in_global(case, why) if decision is None else replace(decision, why="forced")


def _cheapest(case: Case, estimate: KeySummary, costs: Costs) -> Decision:
    """The kernel that is expected to be the fastest of those that can take the groups."""
    query, rows, _, device, values = case
    expected, skewed = estimate.groups, estimate.skewed
    capacity = tables.shared_capacity(query, device)
    narrow = tables.in_window(case, f"{expected:,} groups of a narrow range")
    if margin(expected) <= capacity:
        # rows of runs that lie side by side want one copy of a state at once
        meets = narrow is not None and tables.in_runs(estimate) and narrow.replicas < _LANES
        # the same updates as in partitions, and no rows are moved first: other candidates are not
        # evaluated, because the host's own time counts most here
        if narrow is not None and narrow.in_shared and not meets:
            return narrow
        return tables.in_shared(case, f"{expected:,} groups fit shared memory")
    why = f"{expected:,} groups exceed shared memory"
    candidates: list[Decision | None] = []
    # skewed keys wait for each other more than hot keys that leave the stream
    if narrow is not None and not (skewed and narrow.replicas < _SKEWED_REPLICAS):
        candidates.append(narrow)
    many = rows >= _PASSED_AGAIN_FROM
    if many:
        moved = partitions.in_partitions(case)
        candidates.append(moved)
        if values < _GATHERED * query.values:
            by_number = case._replace(query=query.by_number)
            candidates.append(partitions.in_partitions(by_number))
        # not for partitions so few, each grouped at once, that folding would need more of them
        if not moved or moved.slices > 1 or moved.partitions > partitions.partitions_of_rows(case):
            candidates.append(partitions.in_partitions(case, folds=True))
    if many and capacity > 0:
        candidates.append(tables.in_full_table(case, why))
    # its table does not grow where skew makes estimates too low, and is larger
    if not skewed or not any(candidates):
        candidates.append(tables.in_global(case, why))

    times = [(expected_ms(query, rows, device, costs, c), c) for c in candidates if c is not None]

    def weigh(timed: tuple[float, Decision]) -> float:
        ms, decision = timed
        return ms / _GLOBAL_TABLE_SHARE if isinstance(decision, Lphga | SpEga) else ms

    ms, chosen = min(times, key=weigh)
    others = [f"{other.kernel} {other_ms:.2g}" for other_ms, other in times if other is not chosen]
    why = ", ".join([f"{chosen.why}: {ms:.2g} ms expected", *others])
    return replace(chosen, why=why, expected_ms=ms)


def _admits_runs(query: Query) -> bool:
    """Whether keys have words that can be sorted; a null key of 64 bits has none."""
    return query.form == PACKED and not null_slot(query)


def expected_ms(query: Query, rows: int, device: Device, costs: Costs, decision: Decision) -> float:
    """Device milliseconds that the model gives a decision for any kernel but ``sgb``."""
    return sum(expected_kernel_ms(costs, query, rows, decision, device).values())


def with_less_memory(
    query: Query, rows: int, decision: Decision, device: Device
) -> Decision | None:
    """The fastest table after partitions that memory has no room for, then the smallest one.

    None if no table needs less than the decision.
    """
    case = Case(query, rows, decision.estimate, device, query.values)
    why = f"it needs less memory; device memory has no room for {decision.kernel}"
    window, full = tables.in_window(case, why), None
    if tables.shared_capacity(query, device) > 0:
        full = tables.in_full_table(case, why)
    fastest_first = [d for d in (window, full, tables.in_global(case, why)) if d is not None]
    if isinstance(decision, Partitioned):
        return fastest_first[0]
    smallest = min(fastest_first, key=partial(needed_bytes, query, rows))
    needs_less = needed_bytes(query, rows, smallest) < needed_bytes(query, rows, decision)
    return smallest if needs_less else None


def needed_bytes(query: Query, rows: int, decision: Decision) -> int:
    """Device memory that a call takes beside its columns and its result, roughly."""
    groups, more = rows if decision.estimate is None else decision.estimate.groups, 0
    match decision:
        case Partitioned():
            row = partitions.moved_bytes(decision.partition_query(query), decision)
            return decision.partitions * decision.capacity * row
        case Sgb():
            return groups * sum(query.slot_bytes)
        case SpEga():
            # bits: of rows without a place, and of free slots
            more = (rows + decision.global_slots) // 8
        case Hgb():
            # the list of rows that found no place
            more = rows // 2
    assert isinstance(decision, Direct | Hgb | Lphga | SpEga)
    return (decision.global_slots + EXTRA_SLOTS) * sum(query.slot_bytes) + more
