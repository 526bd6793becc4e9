"""Geometry of the kernels that have one table: in shared memory, in global memory, or both."""

import math

from dask_gpuagg.cuda.choice.decision import (
    FEWEST_SLOTS,
    Case,
    Direct,
    Hgb,
    Lphga,
    SpEga,
    deviation,
    even,
    margin,
    power_of_two,
    safe_slots,
    shared_bytes,
)
from dask_gpuagg.cuda.choice.summary import KeySummary, window
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS
from dask_gpuagg.cuda.runtime.driver import Device

# A key that is farther than this from its first slot of a global table says that the table is too
# small for the keys it gets.
PROBES = 1024
# Keys of a window for each expected group, at most, and likewise where it is forced.
_DENSE = 2.0
LOOSEST = 64.0
# Keys of a window in global memory up to which their states lie in sectors of their own, because
# atomics on one sector wait for each other.
_APART_BELOW = 1 << 17
# Share of a shared table that may be claimed: a longer probe costs less than another pass.
_SHARED_LOAD = 0.85
# Copies of few groups' accumulators: beyond the lanes of a warp they keep warps apart.
_MOST_REPLICAS = 256
# Slots for each expected group, the best first.
_ROOMY = (2, 1.5)
_GLOBAL_LOAD = 0.6
# A warp whose neighbours share a key in more than this share of the rows keeps its sums in
# registers.
_RUNS_FROM = 0.9


def shared_capacity(query: Query, device: Device) -> int:
    """Groups that one block's table can hold without replicas."""
    fixed, replica = query.slot_bytes
    return int((shared_bytes(device) // (fixed + replica) - EXTRA_SLOTS) * _SHARED_LOAD)


def in_shared(case: Case, why: str) -> Hgb:
    """A table in the shared memory of each multiprocessor, merged into one in global memory."""
    query, _, estimate, device, _ = case
    capacity, runs = shared_capacity(query, device), in_runs(estimate)
    # registers take what replicas are for, and a sample of long runs shows few of the groups
    groups = capacity if runs else min(margin(case.groups), capacity)
    fixed, replica = query.slot_bytes
    available = shared_bytes(device)
    # a warp probes as long as the unluckiest of its rows, so a low load comes before replicas
    # beyond those that keep lanes apart; both end where the memory does
    for slots_per_group in _ROOMY:
        slots = max(FEWEST_SLOTS, even(int(groups * slots_per_group)))
        room = available // (slots + EXTRA_SLOTS) - fixed
        if room >= replica:
            replicas = _replicas(room, replica)
            break
    else:
        slots, replicas = (available // (fixed + replica) - EXTRA_SLOTS) // 2 * 2, 1
    return Hgb(
        kernel="hgb_runs" if runs else "hgb",
        why=why,
        estimate=estimate,
        shared_slots=slots,
        replicas=replicas,
        blocks=_blocks(case),
        # blocks with different keys fill it beyond the estimate; it is small all the same
        global_slots=even(max(4 * margin(capacity if runs else case.groups), 2048)),
    )


def _blocks(case: Case) -> int:
    tiles = math.ceil(case.rows / (case.query.threads * case.query.unroll))
    return max(1, min(case.device.multiprocessors, tiles))


def _replicas(room: int, replica: int) -> int:
    """Copies of the states of a slot that has so much room for them."""
    return power_of_two(min(_MOST_REPLICAS, room // replica) if replica else _MOST_REPLICAS)


def in_window(case: Case, why: str, loosest: float = _DENSE) -> Direct | None:
    """The slot of a key by its distance from the least one, or None where it cannot be."""
    query, _, estimate, device, _ = case
    around = window(query, estimate)
    if estimate is None or around is None:
        return None
    base, keys = around
    if keys > loosest * estimate.groups + 64:
        return None
    fixed, replica = query.slot_bytes
    room = shared_bytes(device) - (keys + 63) // 64 * 8
    for_states = room // keys - (fixed - 8)
    replicas, shift, in_shared = 1, 0, room >= 0 and for_states >= replica
    if in_shared:
        replicas = _replicas(for_states, replica)
    elif room < 0 or estimate.skewed:
        # atomics on one address wait for each other
        return None
    elif keys < _APART_BELOW:
        shift = 2
    return Direct(
        why=why,
        estimate=estimate,
        base=base,
        keys=keys,
        blocks=_blocks(case),
        in_shared=in_shared,
        replicas=replicas,
        shift=shift,
    )


def direct_bytes(query: Query, decision: Direct) -> int:
    """Shared memory of a block of ``direct``: a bit for each slot, and the states if they fit."""
    fixed, replica = query.slot_bytes
    states = fixed - 8 + decision.replicas * replica
    return (decision.keys + 63) // 64 * 8 + decision.shared_slots * states


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
        uncertain = margin(case.groups) * (1 + 2 * deviation(case.groups, case.rows))
        slots = min(case.rows, int(uncertain))
    return SpEga(why=why, estimate=case.estimate, global_slots=even(max(slots, 64)))


def in_runs(estimate: KeySummary | None) -> bool:
    """Whether most rows have the key of the row before."""
    return estimate is not None and estimate.repeats >= _RUNS_FROM
