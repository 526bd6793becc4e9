"""The choice of the kernel and its geometry from a summary of the keys.

Nothing is launched here. Other tuning is in ``Query.threads`` and ``Query.unroll``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    doubt,
    even,
    margin,
    power_of_two,
    safe_slots,
    shared_bytes,
)
from dask_gpuagg.cuda.choice.folding import partitions_of_rows
from dask_gpuagg.cuda.choice.partitions import (
    FEWEST_SLOTS,
    PARTITIONED_FROM,
    copies_bytes,
    in_partitions,
    tile_of,
)
from dask_gpuagg.cuda.choice.summary import ANY_WORD, KeySummary
from dask_gpuagg.cuda.choice.window import null_slot, window
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS
from dask_gpuagg.cuda.runtime.driver import Device

# Kernels that may be forced.
KERNELS = ("hgb", "direct", "pgb", "pgb_ur", "pgb_fold", "sgb", "sp_ega", "lphga")
# A key that is farther than this from its first slot of a global table says that the table is too
# small for the keys it gets.
PROBES = 1024
# Keys of a window for each expected group, at most, and likewise where it is forced.
_DENSE = 2.0
_LOOSEST = 64.0
# Keys of a window in global memory up to which their states lie in sectors of their own, because
# atomics on one sector wait for each other.
_APART_BELOW = 1 << 17
# Copies of a state that skewed keys need.
_SKEWED_REPLICAS = 8
# Copies with which no two lanes of a warp wait for each other.
_LANES = 32
# Share of a shared table that may be claimed: a longer probe costs less than another pass.
_SHARED_LOAD = 0.85
# Copies of few groups' accumulators: beyond the lanes of a warp they keep warps apart.
_MOST_REPLICAS = 256
# Slots for each expected group, the best first.
_ROOMY = (2, 1.5)
_GLOBAL_LOAD = 0.6
# Share of a row's values below which gathering them may be faster than moving all.
_GATHERED = 0.5
# A warp whose neighbours share a key in more than this share of the rows keeps its sums in
# registers.
_RUNS_FROM = 0.9
# Share of the time of a table in shared memory below which one in global memory is chosen: it loses
# more by keys that the sample did not show.
_WORTH = 0.9


def shared_capacity(query: Query, device: Device) -> int:
    """Groups that one block's table can hold without replicas."""
    fixed, replica = query.slot_bytes
    return int((shared_bytes(device) // (fixed + replica) - EXTRA_SLOTS) * _SHARED_LOAD)


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

    Parameters
    ----------
    query : Query
    rows : int
    estimate : KeySummary, optional
        Without it the input is small.
    device : Device
    forced : str
        ``auto`` or one of ``KERNELS``.
    costs : Costs, optional
        Constants of the device; those shipped for it by default.
    values : float, optional
        Values that the states read of a row and that are not null, on average; all by default.
    memory : int, optional
        Bytes of device memory for copies of rows; where they need more, the rows go to the
        smallest table, that of ``sp_ega``. Unlimited by default; a forced kernel is not asked.

    Returns
    -------
    Decision

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
    made: Decision | None = None
    refusal = "forced"
    match kernel:
        case "sp_ega":
            made = in_full_table(case, "forced")
        case "sgb":
            refusal = "the keys have no word that orders as they do"
            if _admits_runs(case.query):
                made = Sgb(why="forced", estimate=case.estimate)
        case "direct":
            refusal = "the keys lie in no narrow range"
            made = _in_window(case, "forced", _LOOSEST)
        case "pgb" | "pgb_ur" | "pgb_fold":
            refusal = f"{case.groups:,} groups exceed shared memory"
            moved = _by_number(case) if kernel == "pgb_ur" else case
            made = in_partitions(moved, True, kernel == "pgb_fold")
        case "hgb":
            refusal = "a group's states exceed shared memory"
            if shared_capacity(case.query, case.device) > 0:
                made = _in_shared(case, "forced")
    return made or in_global(case, refusal)


def _by_number(case: Case) -> Case:
    return case._replace(query=case.query.by_number)


def _cheapest(case: Case, estimate: KeySummary, costs: Costs, memory: int | None) -> Decision:
    """The kernel that is expected to be the fastest of those that can take the groups."""
    query, rows, _, device, values = case
    expected = estimate.groups
    capacity = shared_capacity(query, device)
    narrow = _in_window(case, f"{expected:,} groups of a narrow range")
    if margin(expected) <= capacity:
        # the same updates as in partitions, and no rows are moved first: other candidates are not
        # evaluated, because the host's own time counts most here
        if narrow is not None and narrow.in_shared and not _meets(narrow):
            return narrow
        return _in_shared(case, f"{expected:,} groups fit shared memory")
    moved = in_partitions(case)
    candidates: list[Decision | None] = [moved]
    if narrow is not None and not _contended(narrow):
        candidates.insert(0, narrow)
    if values < _GATHERED * query.values:
        candidates.append(in_partitions(_by_number(case)))
    if not _are_few(moved, case):
        candidates.append(in_partitions(case, False, True))

    if memory is not None:
        candidates = [c for c in candidates if c and global_bytes(query, c) <= memory]

    def timed(decisions: Sequence[Decision | None]) -> list[tuple[float, Decision]]:
        return [(expected_ms(query, rows, device, costs, d), d) for d in decisions if d is not None]

    found = timed(candidates)
    best = min((ms for ms, _ in found), default=math.inf)
    # candidates that cannot win are not evaluated: the host's time counts too
    if not found or least_ms(costs, query, rows) < _WORTH * best:
        why = f"{expected:,} groups exceed shared memory"
        candidates = []
        if capacity > 0 and rows >= PARTITIONED_FROM:
            candidates.append(in_full_table(case, why))
        # its table does not grow where skew makes estimates too low, and is larger
        if not (found or candidates) or not (estimate.skewed or memory is not None):
            candidates.append(in_global(case, why))
        found += timed(candidates)

    def compared(i: int) -> float:
        ms, each = found[i]
        return ms / _WORTH if isinstance(each, Lphga | SpEga) else ms

    ms, chosen = found.pop(min(range(len(found)), key=compared))
    times = [f"{ms:.2g} ms expected", *(f"{each.kernel} {other:.2g}" for other, each in found)]
    return replace(chosen, why=f"{chosen.why}: {', '.join(times)}", expected_ms=ms)


def global_bytes(query: Query, decision: Decision) -> int:
    """Device memory for copies of rows, or for the table that holds the groups."""
    match decision:
        case Partitioned():
            return copies_bytes(query, decision)
        case Direct() | Lphga() | SpEga():
            return (decision.global_slots + EXTRA_SLOTS) * sum(query.slot_bytes)
    return 0


def _are_few(decision: Partitioned | None, case: Case) -> bool:
    """Whether partitions are so few, each grouped at once, that folding would need more of them."""
    if decision is None or decision.slices > 1:
        return False
    return decision.partitions <= partitions_of_rows(case)


def expected_ms(query: Query, rows: int, device: Device, costs: Costs, decision: Decision) -> float:
    """Device milliseconds that the model gives a decision for any kernel but ``sgb``."""
    tile = tile_of(query, device, decision)
    times = expected_kernel_ms(costs, query, rows, decision, device.multiprocessors, tile)
    return sum(times.values())


def _in_shared(case: Case, why: str) -> Hgb:
    query, rows, estimate, device, _ = case
    capacity = shared_capacity(query, device)
    held = min(margin(case.groups), capacity)
    runs = _in_runs(estimate)
    if runs:
        # registers take what replicas are for, and a sample of long runs shows few of the groups
        held = capacity
    slots, replicas = _shared_table(query, held, device)
    wanted = math.ceil(rows / (query.threads * query.unroll))
    return Hgb(
        kernel="hgb_runs" if runs else "hgb",
        why=why,
        estimate=estimate,
        shared_slots=slots,
        replicas=replicas,
        blocks=max(1, min(device.multiprocessors, wanted)),
        # blocks with different keys fill it beyond the estimate; it is small all the same
        global_slots=even(max(4 * margin(held if runs else case.groups), 2048)),
    )


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


def direct_bytes(query: Query, decision: Direct) -> int:
    """Shared memory of a block of ``direct``: a bit for each slot, and the states if they fit."""
    fixed, replica = query.slot_bytes
    each = fixed - 8 + decision.replicas * replica
    return (decision.keys + 63) // 64 * 8 + decision.shared_slots * each


def _in_window(case: Case, why: str, loosest: float = _DENSE) -> Direct | None:
    """The slot of a key by its distance from the least one, or None where it cannot be."""
    query, rows, estimate, device, _ = case
    found = window(query, estimate)
    if estimate is None or found is None:
        return None
    base, keys = found
    if keys > loosest * estimate.groups + 64:
        return None
    fixed, replica = query.slot_bytes
    room = shared_bytes(device) - (keys + 63) // 64 * 8
    each = room // keys - (fixed - 8)
    replicas, shift, in_shared = 1, 0, room >= 0 and each >= replica
    if in_shared:
        most = _MOST_REPLICAS if replica == 0 else min(_MOST_REPLICAS, each // replica)
        replicas = power_of_two(most)
    elif room < 0 or estimate.skewed:
        # atomics on one address wait for each other
        return None
    elif keys < _APART_BELOW:
        shift = 2
    blocks = min(device.multiprocessors, math.ceil(rows / (query.threads * query.unroll)))
    return Direct(
        why=why,
        estimate=estimate,
        base=base,
        keys=keys,
        blocks=max(1, blocks),
        in_shared=in_shared,
        replicas=replicas,
        shift=shift,
    )


def _in_runs(estimate: KeySummary | None) -> bool:
    return estimate is not None and estimate.repeats >= _RUNS_FROM


def _meets(decision: Direct) -> bool:
    """Whether rows that lie side by side want one copy of a state at once."""
    return _in_runs(decision.estimate) and decision.replicas < _LANES


def _contended(decision: Direct) -> bool:
    """Whether skewed keys would wait for each other more than hot keys that leave the stream."""
    skewed = decision.estimate is not None and decision.estimate.skewed
    return skewed and decision.replicas < _SKEWED_REPLICAS


def _admits_runs(query: Query) -> bool:
    # a null key of 64 bits has no word that could be sorted
    return query.family == "Packed" and not null_slot(query)


def in_global(case: Case, why: str) -> Lphga:
    """A roomy table in global memory."""
    slots = safe_slots(case.rows)
    if case.estimate is not None:
        slots = min(slots, even(int(margin(case.estimate.most) / _GLOBAL_LOAD) + 1024))
    return Lphga(why=why, estimate=case.estimate, global_slots=slots)


def in_full_table(case: Case, why: str) -> SpEga:
    """A table as large as the groups, which grows where they are more."""
    slots = case.rows
    if case.estimate is not None:
        doubtful = margin(case.groups) * (1 + 2 * doubt(case.groups, case.rows))
        slots = min(case.rows, int(doubtful))
    return SpEga(why=why, estimate=case.estimate, global_slots=even(max(slots, 64)))


def _shared_table(query: Query, groups: int, device: Device) -> tuple[int, int]:
    """Slots and replicas.

    A warp probes as long as the unluckiest of its rows, so a low load comes before replicas
    beyond those that keep lanes apart; both end where the memory does.
    """
    fixed, replica = query.slot_bytes
    available = shared_bytes(device)
    for slots_per_group in _ROOMY:
        slots = max(FEWEST_SLOTS, even(int(groups * slots_per_group)))
        room = available // (slots + EXTRA_SLOTS) - fixed
        if room >= replica:
            most = _MOST_REPLICAS if replica == 0 else min(_MOST_REPLICAS, room // replica)
            return slots, power_of_two(most)
    return (available // (fixed + replica) - EXTRA_SLOTS) // 2 * 2, 1
