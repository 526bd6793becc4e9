"""Number the groups of rows: a dictionary encoding of their keys."""

from __future__ import annotations

import ctypes
from typing import Any

from dask_gpuagg.cuda.call import SMALL_BLOCK, Call
from dask_gpuagg.cuda.geometry import EXTRA_SLOTS

# What a query's translation unit ends with if its rows are to be encoded.
ENCODING = '#include "sgb/encode_entry.cuh"\n'
_THREADS = 512
# A key's word and its group's number, at 16 bytes' alignment.
_ENTRY_BYTES = 16


def encode(call: Call, groups: int, order: int = 0) -> Any:
    """The number of every row's group.

    Parameters
    ----------
    call : Call
        That has left its groups in one table in global memory.
    groups : int
    order : int
        Address of the numbers, int32, of the groups that come first, second, ...; 0 for the order
        of ``call.args.order``.

    Returns
    -------
    rmm.DeviceBuffer
        int32, -1 for rows of no group.
    """
    import rmm

    codes = rmm.DeviceBuffer(size=4 * call.rows, stream=call.stream)
    if call.rows == 0:
        return codes
    args = call.args
    slots = args.table.slots + EXTRA_SLOTS
    entries = ctypes.c_void_p(call.allocate(_ENTRY_BYTES * slots).ptr)
    sorted_groups, count = ctypes.c_void_p(order), ctypes.c_uint32(groups)
    blocks = call.spread(slots, SMALL_BLOCK)
    call.launch("entries", blocks, SMALL_BLOCK, args, sorted_groups, count, entries)
    blocks = call.spread(call.rows, _THREADS * call.query.unroll)
    target = ctypes.c_void_p(codes.ptr)
    call.launch("encode", blocks, _THREADS, args, call.columns, entries, target)
    return codes
