"""Partition the rows first, then one shared-memory table for each partition."""

from __future__ import annotations

import ctypes

from dask_gpuagg.cuda import geometry
from dask_gpuagg.cuda.call import (
    SMALL_BLOCK,
    Args,
    Call,
    Column,
    Counters,
    Run,
    collect,
    reset,
    run_of,
    table_of,
    zero,
)
from dask_gpuagg.cuda.geometry import Decision
from dask_gpuagg.cuda.source import TYPE_BYTES


class _Partitions(ctypes.Structure):
    """``Partitions`` of kernels/pgb_tr/partitions.cuh."""

    _fields_ = [
        ("words", ctypes.c_void_p),
        ("numbers", ctypes.c_void_p),
        ("validity", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("ticket", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
        ("capacity", ctypes.c_uint32),
    ]


def pgb(call: Call, decision: Decision) -> tuple[Run, Counters] | None:
    """Groups of a partitioned input.

    Parameters
    ----------
    call : Call
    decision : Decision

    Returns
    -------
    tuple of Run and Counters, or None
        None if so many rows found their partition full that the global table is the better way.
    """
    args, query = call.args, call.query
    partitions, moved = _make_partitions(call, decision)
    args.table = table_of(call, decision.global_slots)
    args.shared_slots, args.slices = decision.shared_slots, decision.slices
    args.spill_limit = call.rows // 8 + (1 << 16)
    args.spill = call.allocate(4 * args.spill_limit).ptr
    zero(call, args.counters, Counters.doubt.offset // 4)
    zero(call, partitions.rows, partitions.count + 1)
    kernel, tile, shared = geometry.scatter_tile(query, call.device, decision.partitions)
    call.launch(
        kernel,
        min(call.device.multiprocessors, -(-call.rows // tile)),
        query.scatter[0],
        *(args, partitions, call.columns, moved),
        shared=shared,
    )
    counters = _aggregate(call, decision, partitions, moved)
    restarted = counters.groups > args.table.slots
    if counters.spilled > args.spill_limit:
        return None
    if restarted:
        # the groups have been counted all the same, so the second time all have room
        args.table = table_of(call, geometry.even(counters.groups))
        reset(call, "groups")
        zero(call, partitions.ticket, 1)
        counters = _aggregate(call, decision, partitions, moved)
    spilled = counters.spilled
    if spilled:
        counters = _add_spilled(call, counters)
        if counters.homeless:
            return None
    return run_of(call, decision, counters, spilled=spilled, restarted=restarted), counters


def _make_partitions(call: Call, decision: Decision) -> tuple[_Partitions, ctypes.Array[Column]]:
    """Memory for the rows' copies; the columns take the places of the input's."""
    query = call.query
    rows = decision.partitions * decision.capacity

    def array(width: int) -> int:
        return int(call.allocate(rows * width).ptr)

    masked = sum(v.masked for v in query.read)
    cursors = call.allocate(4 * (decision.partitions + 1)).ptr
    partitions = _Partitions(
        array(8),
        array(4) if query.numbered else 0,
        array(1 if masked <= 8 else 4 if masked <= 32 else 8) if masked else 0,
        cursors,
        cursors + 4 * decision.partitions,
        decision.partitions,
        decision.capacity,
    )
    moved = (Column * len(call.columns))()
    for i, value in enumerate(query.read, start=query.first_input):
        moved[i] = Column(array(TYPE_BYTES[value.ctype]))
    return partitions, moved


def _aggregate(
    call: Call, decision: Decision, partitions: _Partitions, moved: ctypes.Array[Column]
) -> Counters:
    fixed, replica = call.query.slot_bytes
    call.launch(
        "aggregate",
        decision.blocks,
        call.query.threads,
        *(call.args, partitions, moved),
        shared=decision.shared_slots * (fixed + replica),
    )
    return call.counters()


def _add_spilled(call: Call, counters: Counters) -> Counters:
    """Rows that found their partition full, by a global table that takes the groups over first."""
    args = call.args
    args.target = table_of(call, geometry.safe_slots(counters.groups + counters.spilled))
    slots = args.target.slots
    call.launch("clear_target", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, args)
    blocks = call.spread(counters.groups, SMALL_BLOCK)
    call.launch("transfer_dense", blocks, SMALL_BLOCK, args, call.columns)
    args.table = args.target
    reset(call, "groups")
    rest = Args.from_buffer_copy(args)
    rest.list, rest.rows, rest.slices = args.spill, counters.spilled, 1
    threads = call.query.threads
    call.launch("lphga", call.spread(counters.spilled, threads), threads, rest, call.columns)
    return collect(call)
