"""Every kernel, forced, over the number of groups: which one the decision should choose.

``python -m benchmarks.families --rows 1e8`` alternates the kernels in one process on one RMM pool
and writes device times, the times that the cost model expects, wall times and the memory that a
call takes beyond its input and its result to JSON. ``benchmarks.plots`` draws it,
``benchmarks.choice`` judges the decision by it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Collection, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.grid import Cell, aggregator_of, columns_of, frame_of
from benchmarks.kernels import (
    decision_fields,
    device_time,
    peak_bytes,
    prepare,
    report_head,
    timed,
)
from benchmarks.report import write
from dask_gpuagg.cuda.choice import choose
from dask_gpuagg.cuda.choice.costs import known
from dask_gpuagg.cuda.choice.decision import Decision, Hgb
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.runtime.driver import Device, current_device

GROUPS = tuple(1 << bits for bits in (4, 8, 12, 14, 16, 18, 20, 22, 24, 26))
# dense integers, as many of 64 random bits, skewed ones, strings of ten bytes
KEYS = ("dense", "random", "zipf", "strings")
# A kernel that is expected to take longer, in ms, is left out.
LIMIT = 100.0


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


def expected(query: Query, rows: int, device: Device, decision: Decision) -> float | None:
    """What the model gives a decision; None for those that it does not describe."""
    if decision.kernel == "sgb" or not holds(decision):
        return None
    return choose.expected_ms(query, rows, device, known(device).costs, decision)


def holds(decision: Decision) -> bool:
    """Whether the tables of ``hgb`` have room for the expected groups, or it is another kernel."""
    if not isinstance(decision, Hgb) or decision.estimate is None:
        return True
    return decision.estimate.groups <= decision.shared_slots


def as_grouped(query: Query, laps: Collection[str]) -> Query:
    """The query with its keys in the form that they were grouped in."""
    return replace(query, coded=True) if "make_codes" in laps else query


def fields_of(query: Query) -> dict[str, Any]:
    """A query's fields, and those of its parts, by name."""
    parts = ("keys", "inputs", "states", "outputs")
    return asdict(query) | {p: [part._asdict() for part in getattr(query, p)] for p in parts}


def measured(
    frame: Any, aggregations: int, kernels: list[str], repeats: int, limit: float
) -> dict[str, Any]:
    """Times, memory and decision of each kernel that admits the input."""
    device, rows = current_device(), len(frame)
    keys, values = columns_of(frame, aggregations)
    aggregator = aggregator_of(keys, values, aggregations)
    run = aggregator.run("auto")[2]
    # which kernels admit the input depends on the form that the keys are grouped in
    query = as_grouped(aggregator.query, device_time(partial(aggregator.run, "auto"), 1))
    runs, left_out = {}, {}
    for name in kernels:
        made = choose.decide(query, rows, run.decision.estimate, device, name)
        if name != "auto" and made.kernel.removesuffix("_runs") != name:
            left_out[name] = f"not for this input: {made.why}"
        elif name != "auto" and (expected(query, rows, device, made) or 0) > limit:
            left_out[name] = f"more than {limit:.0f} ms expected"
        else:
            runs[name] = aggregator.run(name)[2]
    calls = {name: partial(aggregator.run, name) for name in runs}
    times = timed(calls, repeats)
    cell: dict[str, Any] = {"aggregations": aggregations, "made": run.groups}
    cell |= {"left_out": left_out, "kernels": {}}
    for name, call in calls.items():
        laps = device_time(call, repeats)
        query = as_grouped(aggregator.query, laps)
        cell["query"] = fields_of(query)
        cell["kernels"][name] = {
            "decision": decision_fields(runs[name].decision),
            "expected_ms": expected(query, rows, device, runs[name].decision),
            "median_ms": statistics.median(times[name]),
            "device_ms": sum(laps.values()),
            "kernels_ms": laps,
            "peak_bytes": peak_bytes(call),
            "spilled": runs[name].spilled,
            "restarted": runs[name].restarted,
        }
    return cell


def main() -> None:
    """Run the cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keys", default=",".join(KEYS))
    parser.add_argument("--groups", default=",".join(map(str, GROUPS)))
    parser.add_argument("--kernels", default=",".join(("auto", *choose.KERNELS)))
    parser.add_argument("--limit", type=float, default=LIMIT, help="ms expected of a kernel")
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("families.json"))
    args = parser.parse_args()
    prepare()
    groups = [int(float(g)) for g in args.groups.split(",")]
    kernels = args.kernels.split(",")
    device = asdict(current_device())
    done = []
    for kind, cell in cells(args.keys.split(","), groups):
        frame = frame_for(kind, cell, int(args.rows))
        for aggregations in (1, 5):
            of = measured(frame, aggregations, kernels, args.repeats, args.limit)
            done.append({"keys": kind} | asdict(cell) | of)
            shown = " | ".join(
                f"{name} {k['median_ms']:.2f} ({k['device_ms']:.2f}) "
                f"{k['peak_bytes'] / 2**20:.0f} MiB{' again' * k['restarted']}"
                for name, k in of["kernels"].items()
            )
            print(
                f"{kind:>7} g={cell.groups:>10,} zipf={cell.zipf:<4} n={aggregations}: {shown}"
                + "".join(f" | {name}: {why}" for name, why in of["left_out"].items()),
                flush=True,
            )
        del frame
        head = report_head(args.commit) | {"device": device, "rows": int(args.rows)}
        write(head | {"cells": done}, args.out)


if __name__ == "__main__":
    main()
