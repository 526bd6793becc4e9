"""One table for all groups, in global memory, and smaller ones in the shared memory of each SM.

Their slots are found by hash (``hgb``, ``lphga``, ``sp_ega``), or are the keys of a narrow range
(``direct``).
"""

import math

from dask_gpuagg.cuda.call import Call, Run, collect, collect_early, reset, run_of, table_of, zero
from dask_gpuagg.cuda.choice import tables
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Hgb, Lphga, SpEga, even, safe_slots
from dask_gpuagg.cuda.query.structs import Args, Counters, Round, Table, Window
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS, SMALL_BLOCK
from dask_gpuagg.cuda.runtime.driver import fill

# ---- tables of hashed keys -----------------------------------------------------------------------


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
    call.launch_over("clear", decision.global_slots, args)
    if call.check:
        call.check()
    shared = (decision.shared_slots + EXTRA_SLOTS) * (fixed + decision.replicas * replica)

    def launch(kernel: str, shared: int = 0) -> None:
        for i, (own, columns, _) in enumerate(call.over(args)):
            own.resume = resume + 4 * warps * i
            call.launch(kernel, decision.blocks, query.threads, own, columns, shared=shared)

    launch(decision.kernel, shared)
    counters = collect_early(call)
    if counters.unplaced or counters.mismatch:
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
        if counters.unplaced:
            return None
    return run_of(call, decision, counters, spilled=spilled), counters


def lphga(call: Call, decision: Decision) -> tuple[Run, Counters]:
    """One table in global memory, which grows until all have found a place.

    The decision may be for another kernel, which did not have room for all groups.
    """
    args, threads = call.args, call.query.threads
    restarted = not isinstance(decision, Lphga)
    slots = decision.global_slots if isinstance(decision, Lphga) else safe_slots(call.rows)
    held = len(call.held)
    while True:
        args.slices, args.replicas = 1, 1
        args.resume = args.list = None
        args.table = table_of(call, slots)
        call.launch_over("clear", slots, args)
        for own, columns, rows in call.over(args):
            blocks = call.spread(rows, threads * call.query.unroll)
            call.launch("lphga", blocks, threads, own, columns)
        counters = collect_early(call)
        if not counters.unplaced:
            return run_of(call, decision, counters, restarted=restarted), counters
        # the failed table is released before the larger one is taken
        call.early = None
        del call.held[held:]
        # half empty by construction, and searched to its end: keys that all want one slot are
        # slow, but they find a place
        slots = args.probes = safe_slots(call.rows)
        restarted = True


# ---- a table that may be filled to its last slot, by SP-EGA --------------------------------------

# A round leaves about half of the keys before it without a place where keys are as many as slots,
# and far fewer elsewhere, so the last one, which probes, has few. Without rows they cost a launch.
ROUNDS = 12


def sp_ega(call: Call, decision: SpEga) -> tuple[Run, Counters] | None:
    """Groups of an input, by one table that may be filled to its last slot.

    None if groups that all want one slot did not fit a larger table.
    """
    args = call.args
    args.slices, args.replicas = 1, 1
    args.table = table_of(call, decision.global_slots)
    call.launch_over("clear", args.table.slots, args)
    losers = _first_places(call)
    _next_places(call, losers)
    counters = collect(call)
    grown = False
    while counters.unplaced:
        grown = True
        # of even keys the same share of rows and of groups has a place, of skewed ones more rows
        share = (call.rows - counters.unplaced) / call.rows
        slots = even(int(2 * max(counters.groups, SMALL_BLOCK) / share))
        reset(call, "unplaced")
        _transfer(call, min(slots, safe_slots(counters.groups + counters.unplaced)))
        if call.counters().unplaced:
            return None
        losers.waiting = args.counters + Counters.spilled.offset
        _next_places(call, losers)
        reset(call, "groups")
        counters = collect(call)
    spilled = counters.spilled
    return run_of(call, decision, counters, spilled=spilled, restarted=grown), counters


def _first_places(call: Call) -> Round:
    """Let every row look at its first place; the rows that lost it."""
    args, query = call.args, call.query
    losers = Round()
    losers.rows = call.allocate(4 * math.ceil(call.rows / 32)).ptr
    losers.lost = losers.waiting = args.counters + Counters.spilled.offset
    blocks = call.spread(call.rows, query.threads * query.unroll)
    call.launch("first_place", blocks, query.threads, args, losers, call.columns)
    return losers


def _next_places(call: Call, losers: Round) -> None:
    """Find places among the free slots for rows that lost their first; some stay unplaced."""
    args, threads = call.args, call.query.threads
    slots = args.table.slots
    losers.free = call.allocate(4 * math.ceil(slots / 32)).ptr
    counts = call.allocate(8 * ROUNDS).ptr
    zero(call, counts, 2 * ROUNDS)
    for number in range(1, ROUNDS):
        last = number == ROUNDS - 1
        losers.number += 1
        losers.found = counts + 8 * number
        losers.lost = args.counters + Counters.unplaced.offset if last else losers.found + 4
        call.launch("mark_free", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, args, losers)
        blocks = call.spread(call.rows, threads * call.query.unroll)
        kernel = "next_place_last" if last else "next_place"
        call.launch(kernel, blocks, threads, args, losers, call.columns)
        losers.waiting = losers.lost


# ---- a slot for each key of a narrow range -------------------------------------------------------


def direct(call: Call, decision: Direct) -> tuple[Run, Counters] | None:
    """Groups of keys that lie in a window; None if many keys lie outside."""
    args, query = call.args, call.query
    slots = decision.global_slots
    keys = decision.keys
    args.table = table_of(call, slots)
    args.replicas, args.slices = decision.replicas, 1
    room = room_for_spilled(call, decision.blocks)
    window = Window(decision.base % 2**64, keys, decision.shift)
    call.launch_over("clear", slots, args)
    if call.check:
        call.check()
    shared = tables.direct_bytes(query, decision)
    kernel = kernel_of_decision(decision)
    if not decision.in_shared:
        marks = 4 * math.ceil(keys / 32)
        window.present = call.allocate(marks).ptr
        fill(window.present, 0, marks, call.handle)
    for own, columns, _ in call.over(args):
        operands = (own, window, columns)
        call.launch(kernel, decision.blocks, query.threads, *operands, shared=shared)
    if not decision.in_shared:
        call.launch_over("name_slots", keys, args, window)
    counters = collect_early(call, keys)
    spilled = counters.spilled
    if spilled > args.spill_limit or counters.mismatch:
        return None
    if spilled:
        # the table has no room for other keys, and no hash by which they would be found
        listed = min(spilled, room)
        take_spilled(call, counters, listed, listed, transfer=True)
        counters = collect(call)
        if counters.unplaced:
            return None
    return run_of(call, decision, counters, spilled=spilled), counters


def kernel_of_decision(decision: Direct) -> str:
    """The kernel that adds rows to the slots of their keys."""
    return "direct_shared" if decision.in_shared else "direct_global"


# ---- rows that found no place in a block's table -------------------------------------------------


def room_for_spilled(call: Call, blocks: int) -> int:
    """Memory for the numbers of such rows; how many of them it takes.

    Warps stop once more than ``spill_limit`` are listed, but each finishes a tile of every piece.
    """
    args, query = call.args, call.query
    args.spill_limit = max(call.rows // 8, 1 << 16)
    warps = blocks * query.threads // 32 * len(call.pieces)
    room: int = min(call.rows, args.spill_limit + warps * 32 * query.unroll)
    args.spill = call.allocate(4 * room).ptr
    return room


def take_spilled(
    call: Call, counters: Counters, listed: int, new: int, transfer: bool = False
) -> None:
    """Group the listed rows in the global table, whose groups have to be counted again.

    The groups go to another table if this one has no room for so many ``new`` ones, or if that is
    asked for.
    """
    args = call.args
    if transfer or counters.claimed + new > args.table.limit:
        _transfer(call, safe_slots(counters.groups + new))
    reset(call, "groups")
    rest = Args.from_buffer_copy(args)
    rest.list, rest.rows, rest.slices, rest.resume = args.spill, listed, 1, None
    take_listed(call, rest)


def clear_target(call: Call, slots: int) -> Table:
    """An empty table beside that of the groups."""
    call.args.target = table = table_of(call, slots)
    call.launch_over("clear_target", slots, call.args)
    return table


def _transfer(call: Call, slots: int) -> None:
    """Move the groups to a table of so many slots."""
    args = call.args
    reset(call, "claimed")
    clear_target(call, slots)
    call.launch_over("transfer", args.table.slots, args, call.columns)
    args.table = args.target


def take_listed(call: Call, args: Args) -> None:
    """Group the rows of a list in the global table."""
    threads = call.query.threads
    for own, columns, _ in call.over(args):
        call.launch("lphga", call.spread(args.rows, threads), threads, own, columns)
