"""Every kernel, forced, over the number of groups: which one the decision should choose.

``python -m benchmarks.families --rows 1e8`` writes medians of device and wall time, and the memory
that a call takes beyond its input and its result, to JSON. Arms alternate in one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.kernels import arms, data, device_time, peak_bytes
from benchmarks.machine import commit, provenance

KERNELS = ("lphga", "sp_ega", "pgb")
GROUPS = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)


def cell(frame: Any, query: str, kernels: list[str], repeats: int) -> dict[str, Any]:
    import cupy as cp

    calls = {name: arms(frame, query, name)["ours"] for name in kernels}
    runs = {name: call()[2] for name, call in calls.items()}
    calls = {name: call for name, call in calls.items() if runs[name].decision.kernel == name}
    walls: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            cp.cuda.Device().synchronize()
            start = time.perf_counter()
            result = call()
            cp.cuda.Device().synchronize()
            walls[name].append((time.perf_counter() - start) * 1e3)
            del result
    made: dict[str, Any] = {"query": query}
    for name, call in calls.items():
        laps = device_time(call, 3)
        made["found"] = runs[name].groups
        made[name] = {
            "median_ms": statistics.median(walls[name]),
            "device_ms": sum(laps.values()),
            "kernels_ms": laps,
            "peak_bytes": peak_bytes(call),
            "decision": str(runs[name].decision),
            "spilled": runs[name].spilled,
            "restarted": runs[name].restarted,
        }
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--groups", default=",".join(map(str, GROUPS)))
    parser.add_argument("--queries", default="sum,five")
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--key", default="int64", help="a NumPy type, or string")
    parser.add_argument("--spread", action="store_true")
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("families.json"))
    args = parser.parse_args()
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator

    rmm.reinitialize(pool_allocator=True, initial_pool_size=60 << 30)
    import cupy as cp

    cp.cuda.set_allocator(rmm_cupy_allocator)
    from dask_gpuagg.cuda.compiler import sources_hash
    from dask_gpuagg.cuda.driver import current_device

    cells = []
    for groups in (int(float(g)) for g in args.groups.split(",")):
        frame = data(int(args.rows), groups, args.key, args.spread)
        for query in args.queries.split(","):
            made = cell(frame, query, args.kernels.split(","), args.repeats)
            cells.append({"groups": groups, "key": args.key, **made})
            shown = " ".join(
                f"{name} {of['median_ms']:.2f} (device {of['device_ms']:.2f}, "
                f"{of['peak_bytes'] / 2**20:.0f} MiB{', again' * of['restarted']})"
                for name, of in made.items()
                if isinstance(of, dict)
            )
            print(f"{query} {args.key} g={groups:,} ({made['found']:,}): {shown}", flush=True)
        del frame
    report = {
        **provenance(),
        "commit": args.commit or commit(),
        "gpu": current_device().name,
        "rows": int(args.rows),
        "spread": args.spread,
        "kernels": sources_hash(),
        "cells": cells,
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
