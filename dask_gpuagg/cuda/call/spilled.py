"""Rows that found no place in a block's table."""

from __future__ import annotations

from dask_gpuagg.cuda.call.call import Call, reset, table_of
from dask_gpuagg.cuda.choice.decision import safe_slots
from dask_gpuagg.cuda.query.structs import Args, Counters
from dask_gpuagg.cuda.query.tuning import SMALL_BLOCK


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

    Parameters
    ----------
    call : Call
    counters : Counters
        Of the table as it is.
    listed : int
        Rows.
    new : int
        Groups that the table must have room for beside its own.
    transfer : bool
        Whether the groups go to another table even if this one has room.
    """
    args = call.args
    if transfer or counters.claimed + new > args.table.limit:
        args.target = table_of(call, safe_slots(counters.groups + new))
        slots = args.target.slots
        reset(call, "claimed")
        call.launch("clear_target", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, args)
        blocks = call.spread(args.table.slots, SMALL_BLOCK)
        call.launch("transfer", blocks, SMALL_BLOCK, args, call.columns)
        args.table = args.target
    reset(call, "groups")
    rest = Args.from_buffer_copy(args)
    rest.list, rest.rows, rest.slices, rest.resume = args.spill, listed, 1, None
    take_listed(call, rest)


def take_listed(call: Call, args: Args) -> None:
    """Group the rows of a list in the global table."""
    threads = call.query.threads
    for own, columns, _ in call.over(args):
        call.launch("lphga", call.spread(args.rows, threads), threads, own, columns)
