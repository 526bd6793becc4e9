"""Every kernel, forced, over the number of groups: which one the decision should choose.

``python -m benchmarks.families --rows 1e8`` alternates the kernels in one process on one RMM pool
and writes device times, wall times and the memory that a call takes beyond its input and its result
to JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.grid import Cell, arms, frame_of
from benchmarks.kernels import device_time, peak_bytes, prepare, report_head, timed

KERNELS = ("auto", "lphga", "sp_ega", "pgb")
GROUPS = (1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
# dense integers, as many of 64 random bits, skewed ones, strings of ten bytes
KEYS = ("dense", "random", "zipf", "strings")


def cells(keys: list[str], groups: list[int]) -> Iterator[tuple[str, Cell]]:
    """Kinds of keys and inputs; the skewed and the strings at fewer points."""
    for kind in keys:
        if kind == "strings":
            yield from ((kind, Cell("str10", g, 1)) for g in (100_000, 10_000_000))
        elif kind == "zipf":
            yield from ((kind, Cell("int64", 1 << 24, 1, zipf=z)) for z in (0.75, 1.0, 1.25))
        else:
            yield from ((kind, Cell("int64", g, 1)) for g in groups)


def frame_for(kind: str, cell: Cell, rows: int) -> Any:
    """The input of a cell."""
    import cupy as cp

    frame = frame_of(cell, rows)[["k0", "v", "w"]]
    if kind == "random":
        rng = cp.random.default_rng(2)
        bits = rng.integers(-(2**63), 2**63 - 1, cell.groups, dtype="int64")
        frame["k0"] = bits[frame["k0"].values]
    return frame


def measured(frame: Any, aggregations: int, kernels: list[str], repeats: int) -> dict[str, Any]:
    """Times, memory and decision of each kernel that admits the input."""
    ours = arms(frame, aggregations)["ours"]
    calls: dict[str, Callable[..., Any]] = {name: partial(ours, forced=name) for name in kernels}
    runs = {name: call()[2] for name, call in calls.items()}
    calls = {n: c for n, c in calls.items() if n in ("auto", runs[n].decision.kernel)}
    times = timed(calls, repeats)
    made: dict[str, Any] = {"aggregations": aggregations, "kernels": {}}
    for name, call in calls.items():
        made["made"] = runs[name].groups
        laps = device_time(call, repeats)
        made["kernels"][name] = {
            "decision": str(runs[name].decision),
            "median_ms": statistics.median(times[name]),
            "device_ms": sum(laps.values()),
            "kernels_ms": laps,
            "peak_bytes": peak_bytes(call),
            "spilled": runs[name].spilled,
            "restarted": runs[name].restarted,
        }
    return made


def main() -> None:
    """Run the cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keys", default=",".join(KEYS))
    parser.add_argument("--groups", default=",".join(map(str, GROUPS)))
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("families.json"))
    args = parser.parse_args()
    prepare()
    groups = [int(float(g)) for g in args.groups.split(",")]
    done = []
    for kind, cell in cells(args.keys.split(","), groups):
        frame = frame_for(kind, cell, int(args.rows))
        for aggregations in (1, 5):
            of = measured(frame, aggregations, args.kernels.split(","), args.repeats)
            done.append({"keys": kind} | asdict(cell) | of)
            shown = " | ".join(
                f"{name} {k['median_ms']:.2f} ({k['device_ms']:.2f}) "
                f"{k['peak_bytes'] / 2**20:.0f} MiB{' again' * k['restarted']}"
                for name, k in of["kernels"].items()
            )
            print(
                f"{kind:>7} g={cell.groups:>10,} zipf={cell.zipf:<4} n={aggregations}: {shown}",
                flush=True,
            )
        del frame
        head = report_head(args.commit) | {"rows": int(args.rows)}
        args.out.write_text(json.dumps(head | {"cells": done}, indent=1) + "\n")


if __name__ == "__main__":
    main()
