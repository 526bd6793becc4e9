"""Keys from a narrow range: the window that is a table's slots, and the kernels that fill it."""

from __future__ import annotations

import ctypes
import math

from dask_gpuagg.cuda.algorithms.output import collect_early
from dask_gpuagg.cuda.call.call import Call, Counters, Run, collect, run_of, table_of
from dask_gpuagg.cuda.call.spilled import room_for_spilled, take_spilled
from dask_gpuagg.cuda.choice import tables
from dask_gpuagg.cuda.choice.decision import Direct
from dask_gpuagg.cuda.query.tuning import SMALL_BLOCK
from dask_gpuagg.cuda.runtime.driver import fill


class _Window(ctypes.Structure):
    """``Window`` of kernels/direct/direct.cuh."""

    _fields_ = [
        ("base", ctypes.c_uint64),
        ("keys", ctypes.c_uint32),
        ("shift", ctypes.c_uint32),
        ("present", ctypes.c_void_p),
    ]


def direct(call: Call, decision: Direct) -> tuple[Run, Counters] | None:
    """Groups of keys that lie in a window.

    Parameters
    ----------
    call : Call
    decision : Direct

    Returns
    -------
    tuple of Run and Counters, or None
        None if many keys lie outside.
    """
    args, query = call.args, call.query
    slots = decision.global_slots
    keys = decision.keys
    args.table = table_of(call, slots)
    args.replicas, args.slices = decision.replicas, 1
    room = room_for_spilled(call, decision.blocks)
    window = _Window(decision.base % 2**64, keys, decision.shift)
    call.launch("clear", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, args)
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
        call.launch("name_slots", call.spread(keys, SMALL_BLOCK), SMALL_BLOCK, args, window)
    counters = collect_early(call, keys)
    spilled = counters.spilled
    if spilled > args.spill_limit or counters.surprise:
        return None
    if spilled:
        # the table has no room for other keys, and no hash by which they would be found
        listed = min(spilled, room)
        take_spilled(call, counters, listed, listed, transfer=True)
        counters = collect(call)
        if counters.homeless:
            return None
    return run_of(call, decision, counters, spilled=spilled), counters


def kernel_of_decision(decision: Direct) -> str:
    """The kernel that adds rows to the slots of their keys."""
    return "direct_shared" if decision.in_shared else "direct_global"
