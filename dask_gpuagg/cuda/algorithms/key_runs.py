"""Reduce runs of equal keys, of rows whose keys ascend."""

from __future__ import annotations

import ctypes
import math

from dask_gpuagg.cuda.call.call import Call, Counters, Run, collect, run_of, table_of
from dask_gpuagg.cuda.choice.decision import Sgb, even
from dask_gpuagg.cuda.query.tuning import RUN_ROWS, SCAN_THREADS, SMALL_BLOCK
from dask_gpuagg.cuda.runtime.driver import fill, read_back

_WARPS = SMALL_BLOCK // 32


class Runs(ctypes.Structure):
    """``Runs`` of kernels/sgb/runs.cuh."""

    _fields_ = [
        ("heads", ctypes.c_void_p),
        ("falls", ctypes.c_void_p),
    ]


class _Seen(ctypes.Structure):
    _fields_ = [("groups", ctypes.c_uint32), ("falls", ctypes.c_uint32)]


def sgb(call: Call, decision: Sgb) -> tuple[Run, Counters] | None:
    """Groups of rows whose keys ascend.

    Parameters
    ----------
    call : Call
        Its keys fit one word.
    decision : Sgb

    Returns
    -------
    tuple of Run and Counters, or None
        None if the rows are not sorted, or a key has an extra slot behind tables.
    """
    args = call.args
    runs, seen = _count(call)
    if seen.falls:
        return None
    args.table = table_of(call, even(max(seen.groups, 2)))
    slots = args.table.slots
    call.launch("clear", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, args)
    call.launch("reduce_runs", _blocks(call), SMALL_BLOCK, args, runs, call.columns)
    counters = collect(call)
    # the groups are the first slots, in the order of their keys
    args.order = None
    return run_of(call, decision, counters), counters


def _blocks(call: Call) -> int:
    return math.ceil(call.rows / (RUN_ROWS * _WARPS))


def _count(call: Call) -> tuple[Runs, _Seen]:
    """Number the groups of the rows."""
    tiles = math.ceil(call.rows / RUN_ROWS)
    heads = call.allocate(4 * (tiles + 2)).ptr
    totals = heads + 4 * tiles
    runs = Runs(heads, totals + 4)
    fill(totals, 0, 8, call.handle)
    call.launch("count_runs", _blocks(call), SMALL_BLOCK, call.args, runs, call.columns)
    scanned = ctypes.c_void_p(heads), ctypes.c_uint32(tiles), ctypes.c_void_p(totals)
    call.launch("scan_tiles", 1, SCAN_THREADS, *scanned)
    seen = _Seen()
    read_back(totals, seen, call.handle)
    return runs, seen
