"""Our kernels against cuDF's group-by over keys, aggregations, nulls and skew, on one GPU.

``python -m benchmarks.grid`` alternates the arms in one process on one RMM pool, output included:
as columns, and as users have it, DataFrames in and out. It writes medians, ratios, device times and
peak memory of every cell to JSON. ``--fill i/n`` runs the i-th of n parts of the cells once, so
that n processes side by side compile their kernels into the cache.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.kernels import (
    decision_fields,
    device_time,
    engine_arm,
    peak_bytes,
    prepare,
    prepare_to_fill,
    report_head,
    timed,
)
from benchmarks.report import write

GROUPS = (1_000, 65_536, 1_048_576, 16_777_216)
KEYS = (
    "int64",
    "int32",
    "int32+int32",
    "int64+int32",
    "int64+int64",
    "int32+int32+int32",
    "str10",
    "str40",
)
AGGREGATIONS: dict[int, dict[str, list[str]]] = {
    1: {"v": ["sum"]},
    5: {"v": ["sum", "count", "min", "max"], "w": ["mean"]},
    20: {c: ["sum", "count", "min", "max", "mean"] for c in "vwxy"},
}
EXPONENTS = (0.5, 0.75, 1.0, 1.25, 1.5)
# Of all cells, and the ratio that each is the mean of.
MEANS = {"geometric_mean": "ratio", "geometric_mean_frame": "ratio_frame"}


@dataclass(frozen=True)
class Cell:
    """One input and query: key columns, groups, aggregations, nulls among the values, skew."""

    key: str
    groups: int
    aggregations: int
    nulls: float = 0.0
    zipf: float = 0.0

    @property
    def input(self) -> Cell:
        """Equal for cells of the same rows."""
        return replace(self, aggregations=1)


def cells() -> Iterator[Cell]:
    """The grid, inputs that are alike side by side."""
    for key in KEYS:
        for groups in GROUPS:
            for aggregations in AGGREGATIONS:
                yield Cell(key, groups, aggregations)
    for groups in GROUPS:
        for aggregations in (5, 20):
            yield Cell("int64", groups, aggregations, nulls=0.5)
    for zipf in EXPONENTS:
        for aggregations in AGGREGATIONS:
            yield Cell("int64", GROUPS[-1], aggregations, zipf=zipf)


def numbers(rows: int, groups: int, zipf: float, rng: Any) -> Any:
    """Group numbers, uniform or by Zipf's law (inverted continuously), int64."""
    import cupy as cp

    if not zipf:
        return rng.integers(0, groups, rows, dtype="int64")
    u = rng.random(rows)
    if zipf == 1.0:
        ranks = cp.exp(u * math.log(groups))
    else:
        power = 1.0 - zipf
        ranks = (u * (groups**power - 1.0) + 1.0) ** (1.0 / power)
    ranks = cp.minimum(ranks.astype("int64") - 1, groups - 1)
    # the heavy keys lie anywhere
    return (ranks * 2_654_435_761) % 2**32 % (2 * groups)


def key_columns(key: str, codes: Any, groups: int) -> dict[str, Any]:
    """Columns of which every group has its own combination."""
    import cudf
    import cupy as cp

    if key.startswith("str"):
        width = int(key[3:])
        names = cudf.Series(cp.arange(groups)).astype("str").str.zfill(width)
        return {"k0": names.take(codes).reset_index(drop=True)}
    types = key.split("+")
    if len(types) == 1:
        return {"k0": codes.astype(types[0])}
    side = math.ceil(groups ** (1 / len(types)))
    columns = {}
    for i, name in enumerate(types):
        columns[f"k{i}"] = (codes % side if i + 1 < len(types) else codes).astype(name)
        codes = codes // side
    return columns


def frame_of(cell: Cell, rows: int, seed: int = 1) -> Any:
    """The input of a cell."""
    import cudf
    import cupy as cp

    rng = cp.random.default_rng(seed)
    codes = numbers(rows, cell.groups, cell.zipf, rng)
    columns = key_columns(cell.key, codes, cell.groups)
    values = {
        "v": rng.random(rows),
        "w": rng.random(rows, dtype="float32"),
        "x": rng.integers(-(2**40), 2**40, rows, dtype="int64"),
        "y": rng.integers(-1000, 1000, rows, dtype="int32"),
    }
    frame = cudf.DataFrame(columns | values)
    if cell.nulls:
        for name in values:
            frame[name] = frame[name].mask(cudf.Series(rng.random(rows) < cell.nulls))
    return frame


def evenly(frame: Any, seed: int = 2) -> Any:
    """The same values under the same keys, each of which is as frequent as the others."""
    import cupy as cp

    (label,) = (label for label in frame.columns if label[0] == "k")
    keys = frame[label].unique()
    drawn = cp.random.default_rng(seed).integers(0, len(keys), len(frame))
    return frame.assign(**{label: keys.take(drawn).reset_index(drop=True)})


def columns_of(frame: Any, aggregations: int) -> tuple[list[Any], dict[str, Any]]:
    """Key columns, and those that are aggregated, by their labels."""

    def column(label: str) -> Any:
        return frame[label].to_pylibcudf()[0]

    keys = [column(label) for label in frame.columns if label[0] == "k"]
    return keys, {label: column(label) for label in AGGREGATIONS[aggregations]}


def aggregator_of(keys: list[Any], values: dict[str, Any], aggregations: int) -> Any:
    """Ours, before it runs."""
    from dask_gpuagg.engines.device.aggregator import Aggregator

    aggregator = Aggregator(keys, False)
    for label, names in AGGREGATIONS[aggregations].items():
        for name in names:
            getattr(aggregator, name)(values[label])
    return aggregator


def arms(frame: Any, aggregations: int) -> dict[str, Callable[..., Any]]:
    """Ours and libcudf's group-by on columns, ours and cuDF's on DataFrames."""
    import pylibcudf as plc

    keys, values = columns_of(frame, aggregations)
    labels = [label for label in frame.columns if label[0] == "k"]
    spec = AGGREGATIONS[aggregations]

    def ours(stopwatch: Any = None) -> Any:
        return aggregator_of(keys, values, aggregations).run("auto", stopwatch)

    def theirs() -> Any:
        requests = [
            plc.groupby.GroupByRequest(
                values[label], [getattr(plc.aggregation, name)() for name in names]
            )
            for label, names in spec.items()
        ]
        return plc.groupby.GroupBy(plc.Table(keys)).aggregate(requests)

    return {
        "ours": ours,
        "cudf": theirs,
        "ours frame": engine_arm(frame, spec, labels),
        "cudf frame": lambda: frame.groupby(labels).agg(spec),
    }


def measured(cell: Cell, frame: Any, repeats: int) -> dict[str, Any]:
    """Medians, ratios, device times, memory and the decision of one cell."""
    calls = arms(frame, cell.aggregations)
    keys, values = columns_of(frame, cell.aggregations)
    inputs = [*keys, *values.values()]
    run = calls["ours"]()[2]
    times = timed(calls, repeats)
    laps = device_time(calls["ours"], repeats)
    median = {name: statistics.median(t) for name, t in times.items()}
    # before other rows are grouped, for which a call would make room first
    peaks = {name: peak_bytes(calls[name]) for name in ("ours", "cudf")}
    even = {}
    if cell.zipf:
        calls_even = arms(evenly(frame), cell.aggregations)
        run_even = calls_even["ours"]()[2]
        even = {
            "even_ms": sum(device_time(calls_even["ours"], repeats).values()),
            "even_decision": decision_fields(run_even.decision),
        }
    return asdict(cell) | {
        "kernel": run.decision.kernel,
        "decision": decision_fields(run.decision),
        "made": run.groups,
        "spilled": run.spilled,
        "restarted": run.restarted,
        "median_ms": median,
        "ratio": median["cudf"] / median["ours"],
        "ratio_frame": median["cudf frame"] / median["ours frame"],
        "device_ms": sum(laps.values()),
        "kernels_ms": laps,
        "input_bytes": sum(column.device_buffer_size() for column in inputs),
        "peak_bytes": peaks,
        **even,
    }


def fill(chosen: list[Cell], rows: int, part: int, parts: int) -> None:
    """Run what our kernels do in a part of the cells, so that they are compiled."""
    prepare_to_fill()
    inputs = [list(alike) for _, alike in groupby(chosen, lambda cell: cell.input)]
    for alike in inputs[part::parts]:
        frame = frame_of(alike[0], rows)
        for each in (frame, evenly(frame)) if alike[0].zipf else (frame,):
            for cell in alike:
                calls = arms(each, cell.aggregations)
                calls["ours"]()
                calls["ours frame"]()


def main() -> None:
    """Run the grid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--keys", help="only cells of these keys")
    parser.add_argument("--aggregations", help="only cells of so many")
    parser.add_argument("--zipf", action="store_true", help="only skewed cells")
    parser.add_argument("--fill", help="i/n: run the i-th of n parts once, and measure nothing")
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("grid.json"))
    args = parser.parse_args()
    chosen = [
        cell
        for cell in cells()
        if (not args.keys or cell.key in args.keys.split(","))
        and (not args.aggregations or str(cell.aggregations) in args.aggregations.split(","))
        and (cell.zipf or not args.zipf)
    ]
    if args.fill:
        fill(chosen, int(args.rows), *map(int, args.fill.split("/")))
        return
    prepare()
    done: list[dict[str, Any]] = []
    held: tuple[Cell, Any] | None = None
    for cell in chosen:
        if held is None or held[0] != cell.input:
            held = None
            held = cell.input, frame_of(cell, int(args.rows))
        result = measured(cell, held[1], args.repeats)
        done.append(result)
        laps = " ".join(f"{n} {t:.2f}" for n, t in result["kernels_ms"].items() if t > 0.05)
        peaks = " ".join(f"{b / 2**20:,.0f}" for b in result["peak_bytes"].values())
        times = result["median_ms"]
        print(
            f"{cell.key:>17} g={cell.groups:>10,} n={cell.aggregations:>2} nulls={cell.nulls} "
            f"zipf={cell.zipf:<4} {result['kernel']:>8} ours {times['ours']:8.2f} "
            f"({laps}) cudf {times['cudf']:8.2f} ratio {result['ratio']:6.2f} "
            f"frames {times['ours frame']:.2f} {times['cudf frame']:.2f} "
            f"{result['ratio_frame']:.2f} spilled {result['spilled']:,} peak {peaks} MiB"
            + (f", even keys {result['even_ms']:.2f} ms" if cell.zipf else ""),
            flush=True,
        )
        means = {
            mean: statistics.geometric_mean(each[ratio] for each in done)
            for mean, ratio in MEANS.items()
        }
        head = report_head(args.commit) | {"rows": int(args.rows), **means}
        write(head | {"cells": done}, args.out)
    for mean, ratio in MEANS.items():
        print(f"{mean} {means[mean]:.2f}, least {min(each[ratio] for each in done):.2f}")


if __name__ == "__main__":
    main()
