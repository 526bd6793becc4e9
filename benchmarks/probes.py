"""Slots that a row looks at in nearly full tables: SP-EGA beside linear probing.

``python -m benchmarks.probes`` builds the kernels so that they count. Every look at a slot counts,
the first one included, and the mean is taken over all rows. This is how the figures of linear
probing in Table 1 of the EGA paper come about; those of SP-EGA there leave the looks of its first
phase out, which ``after_first`` does too.
"""

from __future__ import annotations

import argparse
import ctypes
from pathlib import Path
from typing import Any

from benchmarks.gpu import prepare, report_head
from benchmarks.report import write
from dask_gpuagg.cuda.algorithms.tables import sp_ega
from dask_gpuagg.cuda.call import Call, Piece, collect, table_of
from dask_gpuagg.cuda.choice.decision import SpEga
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import ColumnStruct, Counters
from dask_gpuagg.cuda.query.tuning import SMALL_BLOCK
from dask_gpuagg.cuda.query.types import KernelOutput, KernelState, KeyPart
from dask_gpuagg.cuda.runtime.driver import current_device, fill, read_back
from dask_gpuagg.cuda.runtime.kernels import kernels_of

# Load factor: probes of SP-EGA and of linear probing in Table 1 of the paper.
TABLE_1 = {
    0.91: (1.66, 5.64),
    0.93: (1.76, 7.18),
    0.95: (1.86, 9.97),
    0.97: (1.99, 16.69),
    0.99: (2.13, 53.56),
}
COUNTS = Query(
    (KeyPart("i64", masked=False),),
    keep_nulls=False,
    inputs=(),
    states=(KernelState("Size"),),
    outputs=(KernelOutput("Field", (0,), "i64"),),
    counting=True,
)


class _Looks(ctypes.Structure):
    _fields_ = [("looks", ctypes.c_uint64)]


def probes(keys: Any, slots: int, kernel: str) -> tuple[float, int]:
    """Looks of a row, and groups, in a table of so many slots."""
    from rmm.pylibrmm.stream import DEFAULT_STREAM as stream

    device = current_device()
    kernels = kernels_of(COUNTS, device)
    columns = (ColumnStruct * 1)(ColumnStruct(keys.data.ptr, 0, 0))
    call = Call(
        query=COUNTS,
        kernels=kernels,
        device=device,
        pieces=(Piece(columns, 0, len(keys)),),
        rows=len(keys),
        stream=stream,
    )
    args = call.args
    args.counters = call.allocate(ctypes.sizeof(Counters)).ptr
    args.rows, args.probes = len(keys), slots
    address = kernels.variable("gpuagg_looks", "first_place" if kernel == "sp_ega" else "lphga")
    fill(address, 0, ctypes.sizeof(_Looks), call.handle)
    if kernel == "sp_ega":
        done = sp_ega(call, SpEga(why="", global_slots=slots))
        if done is None or done[0].restarted:
            raise RuntimeError(f"{slots} slots did not suffice")
        counters = done[1]
    else:
        args.slices, args.replicas = 1, 1
        args.table = table_of(call, slots)
        args.table.limit = slots
        call.launch("clear", call.spread(slots, SMALL_BLOCK), SMALL_BLOCK, args)
        threads = COUNTS.threads
        call.launch("lphga", call.spread(len(keys), threads), threads, args, columns)
        counters = collect(call)
        if counters.unplaced:
            raise RuntimeError(f"{slots} slots did not suffice")
    seen = _Looks()
    read_back(address, seen, call.handle)
    return seen.looks / len(keys), counters.groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=1 << 22)
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("probes.json"))
    args = parser.parse_args()
    import cupy as cp

    prepare()
    rng = cp.random.default_rng(1)
    cells = []
    for load_factor, table_1 in TABLE_1.items():
        groups = int(load_factor * args.slots)
        distinct = cp.unique(rng.integers(-(2**63), 2**63 - 1, groups, dtype="int64"))
        shapes = {
            "distinct": cp.random.permutation(distinct),
            "uniform, 8 rows each": distinct[rng.integers(0, groups, 8 * groups)],
        }
        for shape, keys in shapes.items():
            ours, found = probes(keys, args.slots, "sp_ega")
            linear, also = probes(keys, args.slots, "lphga")
            if found != also:
                raise RuntimeError(f"{found} groups, or {also}")
            cells.append(
                {
                    "load_factor": found / args.slots,
                    "keys": shape,
                    "rows": len(keys),
                    "groups": found,
                    "sp_ega": ours,
                    "sp_ega_after_first": ours - 1,
                    "linear": linear,
                    "table_1": {"sp_ega": table_1[0], "linear": table_1[1]},
                }
            )
            print(
                f"{load_factor:.2f} {shape}: sp_ega {ours:.3f} ({ours - 1:.3f} after the first), "
                f"linear {linear:.2f}; in the paper {table_1[0]}, {table_1[1]}",
                flush=True,
            )
    report = report_head(args.commit) | {"slots": args.slots, "cells": cells}
    write(report, args.out)


if __name__ == "__main__":
    main()
