"""One table in global memory that may be filled to its last slot, by SP-EGA."""

from __future__ import annotations

import math

from dask_gpuagg.cuda.call import Call, Run, collect, reset, run_of, table_of, zero
from dask_gpuagg.cuda.choice.decision import SpEga, even, safe_slots
from dask_gpuagg.cuda.query.structs import Counters, Round
from dask_gpuagg.cuda.query.tuning import SMALL_BLOCK

# Each round leaves at most a share of 1/e of the keys before it without a place, so the last one,
# which probes, has few of them even where keys are as many as slots.
ROUNDS = 8
# Skewed keys have been seen to be 50 times as many as a sample lets expect.
GROWTH = 16


def sp_ega(call: Call, decision: SpEga) -> tuple[Run, Counters] | None:
    """Groups of an input, by one table that may be filled to its last slot.

    None if groups that all want one slot did not fit a larger table.
    """
    args = call.args
    args.slices, args.replicas = 1, 1
    args.table = table_of(call, decision.global_slots)
    slots = args.table.slots
    call.launch("clear", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, args)
    losers = first_places(call)
    next_places(call, losers)
    counters = collect(call)
    grown = False
    while counters.unplaced:
        grown = True
        if not _grow(call, counters):
            return None
        losers.waiting = args.counters + Counters.spilled.offset
        next_places(call, losers)
        reset(call, "groups")
        counters = collect(call)
    spilled = counters.spilled
    return run_of(call, decision, counters, spilled=spilled, restarted=grown), counters


def first_places(call: Call) -> Round:
    """Every row looks at its first place; those who lose it."""
    args, query = call.args, call.query
    tile = 32 * query.unroll
    blocks = _blocks(call)
    warps = blocks * query.threads // 32
    losers = Round()
    losers.capacity = math.ceil(call.rows / (warps * tile)) * tile
    losers.rows = call.allocate(4 * warps * losers.capacity).ptr
    losers.left = call.allocate(4 * warps).ptr
    losers.lost = losers.waiting = args.counters + Counters.spilled.offset
    call.launch("first_place", blocks, query.threads, args, losers, call.columns)
    return losers


def next_places(call: Call, losers: Round) -> None:
    """Places among the free slots for those who lost their first; who finds none is unplaced."""
    args = call.args
    slots = args.table.slots
    # where most slots are free, half of them will do
    losers.room = slots // 2
    losers.free = call.allocate(4 * losers.room).ptr
    counts = call.allocate(8 * ROUNDS).ptr
    zero(call, counts, 2 * ROUNDS)
    for number in range(1, ROUNDS):
        last = number == ROUNDS - 1
        losers.number, losers.places = losers.number + 1, slots if last else 1
        losers.found = counts + 8 * number
        losers.lost = args.counters + Counters.unplaced.offset if last else losers.found + 4
        _round(call, losers)
        losers.waiting = losers.lost


def _round(call: Call, losers: Round) -> None:
    slots = call.args.table.slots
    call.launch("list_free", call.spread(slots, 8 * SMALL_BLOCK), SMALL_BLOCK, call.args, losers)
    threads = call.query.threads
    call.launch("next_place", _blocks(call), threads, call.args, losers, call.columns)


def _blocks(call: Call) -> int:
    """The same for all rounds: a warp goes on with the rows that it left."""
    return call.spread(call.rows, call.query.threads * call.query.unroll)


def _grow(call: Call, counters: Counters) -> bool:
    """A larger table takes the groups over; False if they did not all find a place there.

    The rows that are left say no more than that the estimate was too low, so it takes several
    times the groups, and grows again where that does not suffice.
    """
    args = call.args
    slots = safe_slots(counters.groups + counters.unplaced)
    slots = min(slots, even(GROWTH * max(counters.groups, SMALL_BLOCK)))
    args.target = table_of(call, slots)
    reset(call, "claimed")
    reset(call, "unplaced")
    call.launch("clear_target", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, args)
    blocks = call.spread(args.table.slots, SMALL_BLOCK)
    call.launch("transfer", blocks, SMALL_BLOCK, args, call.columns)
    args.table = args.target
    return not call.counters().unplaced
