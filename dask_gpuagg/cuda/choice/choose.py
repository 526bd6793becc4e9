"""The decision: the candidate that is expected to take least, or that memory has room for.

Nothing is launched here. Other tuning is in ``Query.threads`` and ``Query.unroll``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from dask_gpuagg.cuda.choice.cost_model import expected_kernel_ms, least_ms
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
from dask_gpuagg.cuda.choice.partitions import (
    PARTITIONED_FROM,
    copies_bytes,
    in_partitions,
    partitions_of_rows,
    tile_of,
)
from dask_gpuagg.cuda.choice.summary import ANY_WORD, KeySummary, null_slot
from dask_gpuagg.cuda.choice.tables import (
    LOOSEST,
    in_full_table,
    in_global,
    in_runs,
    in_shared,
    in_window,
    shared_capacity,
)
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
_WORTH = 0.9
# Bytes from which the allocator is asked before a kernel is decided on: writing as many takes
# longer than asking.
_ASKED_FROM = 1 << 28
# Bytes of a value in most columns of copies, each of which is allocated by itself.
_COPIED_BYTES = 8
# Share of the bytes of copies that there was no room for: of nearly as many nobody need try again.
_LESS = 0.95


def decide(
    query: Query,
    rows: int,
    estimate: KeySummary | None,
    device: Device,
    forced: str = "auto",
    costs: Costs | None = None,
    values: float | None = None,
    memory: int | None = None,
) -> Decision:
    """Choose the kernel of one call.

    Without an estimate the input is small. ``forced`` is ``auto`` or one of ``KERNELS``; ``values``
    how many of a row's values the states read and that are not null, on average, by default all.
    Where copies of rows need more bytes of device ``memory``, the rows go to the smallest table,
    that of ``sp_ega``; a forced kernel is not asked.

    Raises
    ------
    ValueError
        If there is no kernel of the forced name.
    """
    if forced not in ("auto", *KERNELS):
        raise ValueError(f"there is no kernel {forced!r}: auto, {', '.join(KERNELS)}")
    case = Case(query, rows, estimate, device, query.values if values is None else values)
    if forced != "auto":
        return _forced(case, forced)
    if estimate is None:
        return in_global(case, f"{rows:,} rows are few")
    fits = margin(estimate.groups) <= shared_capacity(query, device)
    if estimate.ascending and not fits and _admits_runs(query):
        return Sgb(why=f"{estimate.groups:,} groups, keys that ascend", estimate=estimate)
    return _cheapest(case, estimate, costs or shipped(device).costs, memory)


def _forced(case: Case, kernel: str) -> Decision:
    """The kernel of this name, or ``lphga`` where it does not admit the query or its keys."""
    decision: Decision | None = None
    why = "forced"
    match kernel:
        case "sp_ega":
            decision = in_full_table(case, why)
        case "sgb":
            why = "the keys have no word that orders as they do"
            if _admits_runs(case.query):
                decision = Sgb(why="forced", estimate=case.estimate)
        case "direct":
            why = "the keys lie in no narrow range"
            decision = in_window(case, "forced", LOOSEST)
        case "pgb" | "pgb_ur" | "pgb_fold":
            why = f"{case.groups:,} groups exceed shared memory"
            moved = case.by_number if kernel == "pgb_ur" else case
            decision = in_partitions(moved, True, kernel == "pgb_fold")
        case "hgb":
            why = "a group's states exceed shared memory"
            if shared_capacity(case.query, case.device) > 0:
                decision = in_shared(case, "forced")
    return decision or in_global(case, why)


def _cheapest(case: Case, estimate: KeySummary, costs: Costs, memory: int | None) -> Decision:
    """The kernel that is expected to be the fastest of those that can take the groups."""
    query, rows, _, device, values = case
    expected = estimate.groups
    capacity = shared_capacity(query, device)
    narrow = in_window(case, f"{expected:,} groups of a narrow range")
    if margin(expected) <= capacity:
        # the same updates as in partitions, and no rows are moved first: other candidates are not
        # evaluated, because the host's own time counts most here
        if narrow is not None and narrow.in_shared and not _meets(narrow):
            return narrow
        return in_shared(case, f"{expected:,} groups fit shared memory")
    candidates: list[Decision | None] = []
    if narrow is not None and not _contended(narrow):
        candidates.append(narrow)
    moved = in_partitions(case)
    candidates.append(moved)
    if values < _GATHERED * query.values:
        candidates.append(in_partitions(case.by_number))
    # partitions so few, each grouped at once, that folding would need more of them
    few = moved is not None and moved.slices == 1 and moved.partitions <= partitions_of_rows(case)
    if not few:
        candidates.append(in_partitions(case, folds=True))
    if memory is not None:
        candidates = [c for c in candidates if c and global_bytes(query, c) <= memory]

    def timed(decisions: Sequence[Decision | None]) -> list[tuple[float, Decision]]:
        return [(expected_ms(query, rows, device, costs, d), d) for d in decisions if d is not None]

    times = timed(candidates)
    best = min((ms for ms, _ in times), default=math.inf)
    # candidates that cannot win are not evaluated: the host's time counts too
    if not times or least_ms(costs, query, rows) < _WORTH * best:
        why = f"{expected:,} groups exceed shared memory"
        tables: list[Decision] = []
        if capacity > 0 and rows >= PARTITIONED_FROM:
            tables.append(in_full_table(case, why))
        # its table does not grow where skew makes estimates too low, and is larger
        if not (times or tables) or not (estimate.skewed or memory is not None):
            tables.append(in_global(case, why))
        times += timed(tables)

    def handicapped(i: int) -> float:
        ms, decision = times[i]
        return ms / _WORTH if isinstance(decision, Lphga | SpEga) else ms

    ms, chosen = times.pop(min(range(len(times)), key=handicapped))
    others = [f"{other.kernel} {other_ms:.2g}" for other_ms, other in times]
    why = ", ".join([f"{chosen.why}: {ms:.2g} ms expected", *others])
    return replace(chosen, why=why, expected_ms=ms)


def _meets(decision: Direct) -> bool:
    """Whether rows that lie side by side want one copy of a state at once."""
    return in_runs(decision.estimate) and decision.replicas < _LANES


def _contended(decision: Direct) -> bool:
    """Whether skewed keys would wait for each other more than hot keys that leave the stream."""
    skewed = decision.estimate is not None and decision.estimate.skewed
    return skewed and decision.replicas < _SKEWED_REPLICAS


def _admits_runs(query: Query) -> bool:
    # a null key of 64 bits has no word that could be sorted
    return query.form == PACKED and not null_slot(query)


def expected_ms(query: Query, rows: int, device: Device, costs: Costs, decision: Decision) -> float:
    """Device milliseconds that the model gives a decision for any kernel but ``sgb``."""
    tile = tile_of(query, device, decision)
    times = expected_kernel_ms(costs, query, rows, decision, device.multiprocessors, tile)
    return sum(times.values())


def decide_again(
    query: Query,
    rows: int,
    decision: Decision,
    device: Device,
    forced: str,
    costs: Costs | None = None,
    values: float | None = None,
) -> Decision:
    """Choose another kernel after one that the rows do not admit.

    ``sgb`` found rows that are not sorted, or that it cannot sort, ``direct`` many keys outside of
    its window.
    """
    if forced == decision.kernel or decision.estimate is None:
        return decide(query, rows, decision.estimate, device, "lphga", costs, values)
    estimate = replace(decision.estimate, ascending=False)
    if isinstance(decision, Direct):
        estimate = replace(estimate, bounds=ANY_WORD)
    return decide(query, rows, estimate, device, forced, costs, values)


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

    ``has_room`` takes bytes of several buffers, and says whether the allocator gives all of them at
    once. Where nothing fits it is the kernel that needs least, whose call meets the allocator's
    message.
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

    ``why`` says what there was no room for.
    """
    estimate = decision.estimate
    if isinstance(decision, Partitioned):
        memory = int(_LESS * copies_bytes(query, decision))
        smaller = decide(query, rows, estimate, device, "auto", costs, values, memory)
        return _instead_of(decision, smaller)
    case = Case(query, rows, estimate, device, query.values if values is None else values)
    why = "it needs the least memory"
    tables: list[Decision] = [in_global(case, why)]
    if shared_capacity(query, device) > 0:
        tables.append(in_full_table(case, why))
    least = min(tables, key=lambda table: needed_bytes(query, rows, table))
    if needed_bytes(query, rows, least) >= needed_bytes(query, rows, decision):
        return None
    return _instead_of(decision, least)


def _instead_of(decision: Decision, smaller: Decision) -> Decision:
    return replace(smaller, why=f"{smaller.why}; device memory has no room for {decision.kernel}")


def global_bytes(query: Query, decision: Decision) -> int:
    """Device memory for copies of rows, or for the table that holds the groups."""
    match decision:
        case Partitioned():
            return copies_bytes(query, decision)
        case Direct() | Lphga() | SpEga():
            return (decision.global_slots + EXTRA_SLOTS) * sum(query.slot_bytes)
    return 0


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
