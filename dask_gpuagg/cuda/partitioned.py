"""Partition the rows first, then one shared-memory table for each partition."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

from dask_gpuagg.cuda import cardinality, partitioning
from dask_gpuagg.cuda.call import (
    OUTPUTS_AT_MOST,
    SMALL_BLOCK,
    Args,
    Call,
    Column,
    Counters,
    Run,
    Table,
    Target,
    reset,
    run_of,
    table_of,
    zero,
)
from dask_gpuagg.cuda.decision import EXTRA_SLOTS, Decision, even, safe_slots
from dask_gpuagg.cuda.driver import kernels_of
from dask_gpuagg.cuda.output import columns_for, no_targets, targets_of
from dask_gpuagg.cuda.parts import TYPE_BYTES


class _Words(ctypes.Structure):
    """``Words`` of kernels/pgb_tr/words.cuh."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("base", ctypes.c_uint64),
        ("inverse", ctypes.c_uint64),
        ("keys", ctypes.c_uint32),
    ]


class _Partitions(ctypes.Structure):
    """``Partitions`` of kernels/pgb_tr/partitions.cuh."""

    _fields_ = [
        ("words", _Words),
        ("numbers", ctypes.c_void_p),
        ("validity", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("ticket", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
        ("capacity", ctypes.c_uint32),
    ]


class _HotKeys(ctypes.Structure):
    """``HotKeys`` of kernels/pgb_tr/hot.cuh."""

    _fields_ = [
        ("words", ctypes.c_uint64 * cardinality.HOT_AT_MOST),
        ("count", ctypes.c_uint32),
        ("buckets", ctypes.c_uint32),
        ("replicas", ctypes.c_uint32),
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
    args = call.args
    moving = _moving(call, decision)
    first = len(call.held)
    partitions, moved = _make_partitions(moving, decision)
    copies = slice(first, len(call.held))
    args.shared_slots, args.slices = decision.shared_slots, decision.slices
    args.replicas = decision.replicas
    args.spill_limit = call.rows // 8 + (1 << 16)
    args.spill = call.allocate(4 * args.spill_limit).ptr
    zero(call, args.counters, Counters.doubt.offset // 4)
    zero(call, partitions.rows, partitions.count + 1)
    if call.check:
        call.check()
    _scatter(moving, decision, partitions, moved)
    columns = partitioning.writes_columns(call.query, decision)
    targets = _make_room(call, decision.global_slots, columns)
    counters = _aggregate(moving, decision, partitions, moved, targets)
    spilled = counters.spilled
    if spilled > args.spill_limit or counters.homeless or counters.surprise:
        call.early = None
        del call.held[copies]
        return None
    if columns and spilled:
        # columns would be final, so nothing has been written yet
        columns = False
        counters = _again(call, moving, decision, partitions, moved, decision.global_slots, columns)
    beside = []
    if decision.hot_buckets:
        beside.append(Table.from_buffer_copy(args.target))
    if spilled:
        beside.append(_group_spilled(call, spilled))
    # groups made beside the partitions may all be new
    others = call.counters().claimed if spilled else 0
    needed = counters.groups + len(decision.hot) + others
    restarted = needed > args.table.slots
    if restarted:
        # the groups have been counted all the same, so the second time all have room
        counters = _again(call, moving, decision, partitions, moved, even(needed), columns)
    # their memory is for the columns, which are made next
    del call.held[copies]
    for args.target in beside:
        counters = _absorb(call, counters)
    if counters.homeless:
        return None
    args.groups, args.extras = counters.total, counters.extras
    if beside:
        counters = _recounted(call)
    return run_of(call, decision, counters, spilled=spilled, restarted=restarted), counters


def _again(
    call: Call,
    moving: Call,
    decision: Decision,
    partitions: _Partitions,
    moved: ctypes.Array[Column],
    room: int,
    columns: bool,
) -> Counters:
    """The aggregation done again, with room for so many groups."""
    targets = _make_room(call, room, columns)
    reset(call, "groups")
    zero(call, partitions.ticket, 1)
    return _aggregate(moving, decision, partitions, moved, targets)


def _make_room(call: Call, groups: int, columns: bool) -> ctypes.Array[Target]:
    """A dense area for so many groups, or columns."""
    if columns:
        call.early = columns_for(call, groups)
        call.args.table = Table(None, None, groups, groups)
        return targets_of(call.early)
    call.early = None
    call.args.table = table_of(call, groups)
    return no_targets(call.query)


def _moving(call: Call, decision: Decision) -> Call:
    """The same call with the kernels that move what the decision says."""
    query = decision.form(call.query)
    if query is call.query:
        return call
    return replace(call, query=query, kernels=kernels_of(query, call.device))


def _suffix(decision: Decision) -> str:
    if decision.window:
        return "_striped"
    return "" if decision.base is None else "_narrow"


def _scatter(
    call: Call, decision: Decision, partitions: _Partitions, moved: ctypes.Array[Column]
) -> None:
    query, args = call.query, call.args
    kernel, tile, shared = partitioning.scatter_of(query, call.device, decision)
    operands: tuple[Any, ...] = (args, partitions, call.columns, moved)
    if decision.hot_buckets:
        _clear_beside(call, 4 * cardinality.HOT_AT_MOST)
        keys = _HotKeys(
            (ctypes.c_uint64 * cardinality.HOT_AT_MOST)(*decision.hot),
            len(decision.hot),
            decision.hot_buckets,
            decision.hot_replicas,
        )
        operands += (keys,)
    blocks = min(call.device.multiprocessors, -(-call.rows // tile))
    kernel += _suffix(decision)
    call.launch(kernel, blocks, query.scatter[0], *operands, shared=shared)


def _make_partitions(call: Call, decision: Decision) -> tuple[_Partitions, ctypes.Array[Column]]:
    """Memory for the rows' copies; the columns take the places of the input's.

    Those that are gathered, or not read at all, are the input's own.
    """
    query = call.query
    rows = decision.partitions * decision.capacity

    def array(width: int) -> int:
        return int(call.allocate(rows * width).ptr)

    masked = sum(v.masked for v in query.read)
    cursors = call.allocate(4 * (decision.partitions + 1)).ptr
    base = decision.base
    word = 2 if decision.window else 8 if base is None else 4
    inverse = -(-(2**64) // decision.partitions) if decision.window else 0
    partitions = _Partitions(
        _Words(array(word), (base or 0) % 2**64, inverse, decision.window),
        array(4) if query.numbered else 0,
        array(1 if masked <= 8 else 4 if masked <= 32 else 8) if masked else 0,
        cursors,
        cursors + 4 * decision.partitions,
        decision.partitions,
        decision.capacity,
    )
    moved = (Column * len(call.columns))(*call.columns)
    for i, value in query.copied:
        moved[query.first_input + i] = Column(array(TYPE_BYTES[value.ctype]))
    return partitions, moved


def _aggregate(
    call: Call,
    decision: Decision,
    partitions: _Partitions,
    moved: ctypes.Array[Column],
    targets: ctypes.Array[Target],
) -> Counters:
    if decision.fills:
        _fold(call, decision, partitions, moved, targets)
        return call.counters()
    kernel, slots = "aggregate", decision.shared_slots
    if decision.window:
        once, copied = partitioning.striped_bytes(call.query)
        shared = even(slots) * (once + decision.replicas * copied) + 8
    else:
        shared = slots * sum(call.query.slot_bytes)
    if decision.crowded:
        kernel, shared = "aggregate_crowded", shared + partitioning.crowd_bytes(call.query)
    operands = (call.args, partitions, moved, targets)
    kernel += _suffix(decision)
    call.launch(kernel, decision.blocks, call.query.threads, *operands, shared=shared)
    return call.counters()


def _fold(
    call: Call,
    decision: Decision,
    partitions: _Partitions,
    moved: ctypes.Array[Column],
    targets: ctypes.Array[Target],
) -> None:
    places = call.allocate(2 * decision.blocks * decision.capacity).ptr
    operands = (call.args, partitions, moved, targets, ctypes.c_void_p(places))
    shared = partitioning.fold_bytes(call.device)
    name = "fold" + _suffix(decision)
    call.launch(name, decision.blocks, partitioning.FOLD_THREADS, *operands, shared=shared)


def _clear_beside(call: Call, slots: int) -> Table:
    """An empty table for groups that are made beside the partitions."""
    call.args.target = table = table_of(call, slots)
    call.launch("clear_target", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, call.args)
    return table


def _group_spilled(call: Call, spilled: int) -> Table:
    """Rows that found their partition full, in a table of their own."""
    table = _clear_beside(call, safe_slots(spilled))
    reset(call, "claimed")
    rest = Args.from_buffer_copy(call.args)
    rest.table, rest.list, rest.rows, rest.slices = table, call.args.spill, spilled, 1
    rest.replicas = 1
    # half empty, and searched to its end
    rest.probes, rest.beside = table.slots, 1
    threads = call.query.threads
    call.launch("lphga", call.spread(spilled, threads), threads, rest, call.columns)
    return table


def _absorb(call: Call, counters: Counters) -> Counters:
    """The groups of the other table join those of the dense area."""
    args = call.args
    slots = args.target.slots + EXTRA_SLOTS
    args.taken = call.allocate(4 * slots).ptr
    zero(call, args.taken, slots)
    args.groups = counters.groups
    call.launch(
        "absorb", call.spread(counters.groups, SMALL_BLOCK), SMALL_BLOCK, args, call.columns
    )
    call.launch("append_others", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, args)
    return call.counters()


def _recounted(call: Call) -> Counters:
    """The counters, with the nulls of all groups counted again."""
    zero(call, call.args.counters + Counters.nulls.offset, OUTPUTS_AT_MOST)
    blocks = call.spread(call.args.groups, SMALL_BLOCK)
    call.launch("recount", blocks, SMALL_BLOCK, call.args)
    return call.counters()
