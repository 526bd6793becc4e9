"""Group-by with hash tables: one in the shared memory of each SM, or one in global memory."""

from __future__ import annotations

from dask_gpuagg.cuda.algorithms.output import collect_early
from dask_gpuagg.cuda.call.call import Call, Run, collect, run_of, table_of
from dask_gpuagg.cuda.call.spilled import room_for_spilled, take_spilled
from dask_gpuagg.cuda.choice.decision import Decision, Hgb, Lphga, safe_slots
from dask_gpuagg.cuda.query.structs import Counters
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS, SMALL_BLOCK


def hgb(call: Call, decision: Hgb) -> tuple[Run, Counters] | None:
    """Shared-memory tables; None if the merged table was too small, which calls for ``lphga``."""
    args, query = call.args, call.query
    fixed, replica = query.slot_bytes
    args.table = table_of(call, decision.global_slots)
    args.shared_slots = decision.shared_slots
    args.shared_limit = decision.shared_slots - max(1, decision.shared_slots // 32)
    args.replicas = decision.replicas
    args.slices = 1
    room = room_for_spilled(call, decision.blocks)
    # where each warp stops, for each piece
    warps = decision.blocks * query.threads // 32
    resume = call.allocate(4 * warps * len(call.pieces)).ptr
    call.launch("clear", call.spread(decision.global_slots, SMALL_BLOCK), SMALL_BLOCK, args)
    if call.check:
        call.check()
    shared = (decision.shared_slots + EXTRA_SLOTS) * (fixed + decision.replicas * replica)

    def launch(kernel: str, shared: int = 0) -> None:
        for i, (own, columns, _) in enumerate(call.over(args)):
            own.resume = resume + 4 * warps * i
            call.launch(kernel, decision.blocks, query.threads, own, columns, shared=shared)

    launch(decision.kernel, shared)
    counters = collect_early(call)
    if counters.homeless or counters.surprise:
        return None
    spilled = counters.spilled
    if spilled:
        listed = min(spilled, room)
        stopped = spilled > args.spill_limit
        new = listed if not stopped else call.rows
        if decision.estimate is not None and stopped:
            new = min(new, 2 * decision.estimate.most)
        take_spilled(call, counters, listed, new)
        if stopped:
            # the same grid, so that each warp goes on where it stopped
            launch("lphga")
        counters = collect(call)
        if counters.homeless:
            return None
    return run_of(call, decision, counters, spilled=spilled), counters


def lphga(call: Call, decision: Decision) -> tuple[Run, Counters]:
    """One table in global memory, which grows until all have found a place.

    Parameters
    ----------
    call : Call
    decision : Decision
        ``Lphga``, or another that did not have room for all groups.

    Returns
    -------
    tuple of Run and Counters
    """
    args, threads = call.args, call.query.threads
    restarted = not isinstance(decision, Lphga)
    slots = decision.global_slots if isinstance(decision, Lphga) else safe_slots(call.rows)
    held = len(call.held)
    while True:
        args.slices, args.replicas = 1, 1
        args.resume = args.list = None
        args.table = table_of(call, slots)
        call.launch("clear", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, args)
        for own, columns, rows in call.over(args):
            blocks = call.spread(rows, threads * call.query.unroll)
            call.launch("lphga", blocks, threads, own, columns)
        counters = collect_early(call)
        if not counters.homeless:
            return run_of(call, decision, counters, restarted=restarted), counters
        # the failed table is released before the larger one is taken
        call.early = None
        del call.held[held:]
        # half empty by construction, and searched to its end: keys that all want one slot are
        # slow, but they find a place
        slots = args.probes = safe_slots(call.rows)
        restarted = True
