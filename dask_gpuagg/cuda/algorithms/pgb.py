"""Partition the rows first, then one shared-memory table for each partition."""

import ctypes
from dataclasses import replace
from typing import Any, NamedTuple

from dask_gpuagg.cuda.algorithms.tables import clear_target, take_listed
from dask_gpuagg.cuda.call import (
    Call,
    NeedsWholeColumns,
    Run,
    columns_for,
    no_targets,
    reset,
    run_of,
    table_of,
    targets_of,
    zero,
)
from dask_gpuagg.cuda.choice import partitions as partitioning
from dask_gpuagg.cuda.choice.decision import Partitioned, Pgb, PgbFold, even, safe_slots
from dask_gpuagg.cuda.choice.summary import null_slot
from dask_gpuagg.cuda.query import structs, tuning
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import Device
from dask_gpuagg.cuda.runtime.kernels import kernels_of


class _Copies(NamedTuple):
    """Rows in partitions, their columns, and the call whose kernels move and read them."""

    call: Call
    partitions: structs.Partitions
    columns: ctypes.Array[structs.ColumnStruct]


def pgb(call: Call, decision: Partitioned) -> tuple[Run, structs.Counters] | None:
    """Groups of a partitioned input.

    None if so many rows found their partition full that the global table is the better way.
    """
    args = call.args
    first = len(call.held)
    copies = _allocate_partitions(call, decision)
    buffers = slice(first, len(call.held))
    partitions = copies.partitions
    args.shared_slots, args.slices = decision.shared_slots, decision.slices
    args.replicas = decision.replicas if isinstance(decision, Pgb) else 1
    args.spill_limit = call.rows // 8 + (1 << 16)
    args.spill = call.allocate(4 * args.spill_limit).ptr
    zero(call, args.counters, structs.Counters.ambiguous.offset // 4)
    # and the ticket behind them
    zero(call, partitions.rows, partitions.count + 1)
    if call.check:
        call.check()
    if decision.counted:
        _lay_out(call, decision, partitions)
    if decision.hot_buckets:
        clear_target(call, 4 * tuning.HOT_AT_MOST)
    _scatter(decision, copies)
    columns = partitioning.writes_columns(call.query, decision)
    targets = _make_room(call, decision.global_slots, columns)
    counters = _aggregate(call, decision, copies, targets)
    spilled = counters.spilled
    if spilled > args.spill_limit or counters.unplaced or counters.mismatch:
        return None
    if columns and spilled:
        # columns would be final, so nothing has been written yet
        columns = False
        counters = _again(call, decision, copies, decision.global_slots, columns)
    needed = counters.groups
    hot = spills = structs.Table.from_buffer_copy(args.target)
    if spilled:
        spills = _group_spilled(call, spilled)
        # they may all be new
        needed += call.counters().claimed
    restarted = needed > args.table.slots
    if restarted:
        # the groups have been counted all the same, so the second time all have room
        args.target = hot
        counters = _again(call, decision, copies, even(needed), columns)
    # their memory is for the columns, which are made next
    del call.held[buffers]
    if spilled:
        args.target = spills
        counters = _absorb(call, counters)
    if counters.unplaced:
        return None
    args.groups, args.extras = counters.total, counters.extras
    if spilled:
        # the nulls of all groups are counted again
        zero(call, args.counters + structs.Counters.nulls.offset, tuning.OUTPUTS_AT_MOST)
        call.launch_over("recount", args.groups, args)
        counters = call.counters()
    return run_of(call, decision, counters, spilled=spilled, restarted=restarted), counters


def _again(
    call: Call, decision: Partitioned, copies: _Copies, room: int, columns: bool
) -> structs.Counters:
    """Aggregate again, with room for so many groups."""
    targets = _make_room(call, room, columns)
    reset(call, "groups")
    zero(call, copies.partitions.ticket, 1)
    return _aggregate(call, decision, copies, targets)


def _make_room(call: Call, groups: int, columns: bool) -> ctypes.Array[structs.Target]:
    """A dense area for so many groups, or columns."""
    if columns:
        call.early = columns_for(call, groups)
        call.args.table = structs.Table(None, None, groups, groups)
        return targets_of(call.early)
    call.early = None
    call.args.table = table_of(call, groups)
    return no_targets(call.query)


def kernels_of_decision(query: Query, device: Device, decision: Partitioned) -> tuple[str, str]:
    """The kernels that scatter rows and that group a partition, by ``decision.partition_query``."""
    scatter, _, _ = partitioning.scatter_of(query, device, decision)
    return scatter + _suffix(decision), _grouping(decision)


def _suffix(decision: Partitioned) -> str:
    if decision.window:
        return "_striped"
    return "" if decision.base is None else "_narrow"


def _grouping(decision: Partitioned) -> str:
    kernel = "aggregate"
    if isinstance(decision, PgbFold):
        kernel = "fold"
    elif isinstance(decision, Pgb) and decision.has_replicated_slots:
        kernel = "aggregate_crowded"
    return kernel + _suffix(decision)


def _scatter(decision: Partitioned, copies: _Copies) -> None:
    call, query = copies.call, copies.call.query
    kernel, tile, shared = partitioning.scatter_of(query, call.device, decision)
    kernel += _suffix(decision)
    hot = (_hot_keys(query, decision),) if decision.hot_buckets else ()
    for args, columns, rows in call.over(call.args):
        operands = (args, copies.partitions, columns, copies.columns, *hot)
        blocks = min(call.device.multiprocessors, -(-rows // tile))
        call.launch(kernel, blocks, query.scatter[0], *operands, shared=shared)


def _hot_keys(query: Query, decision: Partitioned) -> structs.HotKeys:
    return structs.HotKeys(
        (ctypes.c_uint64 * tuning.HOT_AT_MOST)(*decision.hot),
        len(decision.hot),
        # where there is no such table, one in which nothing is found
        decision.hot_buckets or partitioning.FEWEST_BUCKETS,
        decision.hot_replicas,
        null_slot(query),
    )


def _lay_out(call: Call, decision: Partitioned, partitions: structs.Partitions) -> None:
    """Give each partition room by a count of its rows."""
    count = decision.partitions
    counts = call.allocate(4 * (2 * count + 1)).ptr
    partitions.begins = begins = counts + 4 * count
    zero(call, counts, count)
    keys = _hot_keys(call.query, decision)
    shared = partitioning.count_bytes(decision)
    for args, columns, rows in call.over(call.args):
        blocks = call.spread(rows // tuning.ROOM_OF, tuning.ROOM_THREADS, waves=1)
        operands = (args, partitions, columns, keys, ctypes.c_void_p(counts))
        call.launch("count_partitions", blocks, tuning.ROOM_THREADS, *operands, shared=shared)
    places = ctypes.c_uint32(count * decision.capacity)
    addresses = ctypes.c_void_p(counts), ctypes.c_void_p(begins)
    call.launch("lay_out", 1, tuning.ROOM_THREADS, partitions, *addresses, places)


def _allocate_partitions(call: Call, decision: Partitioned) -> _Copies:
    """Memory for the rows' copies; columns that are gathered, or not read, are the input's own."""
    query = decision.partition_query(call.query)
    if query.has_row_numbers and len(call.pieces) > 1:
        raise NeedsWholeColumns(f"{decision.kernel} by the numbers of rows")
    if query is not call.query:
        call = replace(call, query=query, kernels=kernels_of(query, call.device))
    rows = decision.partitions * decision.capacity

    def array(width: int) -> int:
        return int(call.allocate(rows * width).ptr)

    masked = sum(v.masked for v in query.all_inputs)
    cursors = call.allocate(4 * (decision.partitions + 1)).ptr
    base = decision.base
    word = 2 if decision.window else 8 if base is None else 4
    inverse = -(-(2**64) // decision.partitions) if decision.window else 0
    partitions = structs.Partitions(
        structs.Words(array(word), (base or 0) % 2**64, inverse, decision.window),
        array(4) if query.has_row_numbers else 0,
        array(1 if masked <= 8 else 4 if masked <= 32 else 8) if masked else 0,
        cursors,
        cursors + 4 * decision.partitions,
        None,
        decision.partitions,
        decision.capacity,
        partitioning.most_rows(decision),
    )
    columns = (structs.ColumnStruct * len(call.columns))(*call.columns)
    for i, value in query.copied:
        columns[query.first_input + i] = structs.ColumnStruct(array(TYPE_BYTES[value.ctype]))
    return _Copies(call, partitions, columns)


def _aggregate(
    call: Call, decision: Partitioned, copies: _Copies, targets: ctypes.Array[structs.Target]
) -> structs.Counters:
    own = copies.call
    operands: list[Any] = [call.args, copies.partitions, copies.columns, targets]
    if isinstance(decision, Pgb):
        slots, threads = decision.shared_slots, own.query.threads
        if decision.window:
            once, copied = partitioning.striped_bytes(own.query)
            shared = even(slots) * (once + decision.replicas * copied) + 8
        else:
            shared = slots * partitioning.hashed_bytes(own.query, decision.base)
        shared += partitioning.crowd_bytes(own.query) if decision.has_replicated_slots else 0
    else:
        shared, threads = partitioning.fold_bytes(own.device), tuning.FOLD_THREADS
        places = own.allocate(2 * decision.blocks * partitioning.most_rows(decision)).ptr
        # of keys that the words are only a part of
        words = 0
        if own.query.form.has_witness:
            words = own.allocate(8 * decision.blocks * decision.shared_slots).ptr
        operands += ctypes.c_void_p(places), ctypes.c_void_p(words)
    own.launch(_grouping(decision), decision.blocks, threads, *operands, shared=shared)
    if decision.hot_buckets:
        call.args.taken = None
        _append_others(call, targets)
    return call.counters()


def _append_others(call: Call, targets: ctypes.Array[structs.Target]) -> None:
    slots = call.args.target.slots + tuning.EXTRA_SLOTS
    call.launch_over("append_others", slots, call.args, call.columns, targets)


def _group_spilled(call: Call, spilled: int) -> structs.Table:
    """Rows that found their partition full, in a table of their own."""
    table = clear_target(call, safe_slots(spilled))
    reset(call, "claimed")
    rest = structs.Args.from_buffer_copy(call.args)
    rest.table, rest.list, rest.rows, rest.slices = table, call.args.spill, spilled, 1
    rest.replicas = 1
    # half empty, and searched to its end
    rest.probes, rest.beside = table.slots, 1
    take_listed(call, rest)
    return table


def _absorb(call: Call, counters: structs.Counters) -> structs.Counters:
    """Let the groups of the other table join those of the dense area."""
    args = call.args
    slots = args.target.slots + tuning.EXTRA_SLOTS
    args.taken = call.allocate(4 * slots).ptr
    zero(call, args.taken, slots)
    args.groups = counters.groups
    call.launch_over("absorb", counters.groups, args, call.columns)
    _append_others(call, no_targets(call.query))
    return call.counters()
