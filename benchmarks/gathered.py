"""Partitions of copies against partitions of row numbers: where values are better gathered.

``python -m benchmarks.gathered`` groups the same rows by ``pgb`` and by ``pgb_ur`` over the number
of groups, the columns, their widths and the share of nulls, and writes device times and the memory
that a call takes beyond its input and its result to JSON.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kernels import device_time, peak_bytes, prepare, report_head
from benchmarks.report import write

GROUPS = (1 << 16, 1 << 20, 1 << 22, 1 << 24)
KERNELS = ("pgb", "pgb_ur")
FIVE = ("sum", "count", "min", "max", "mean")


@dataclass(frozen=True)
class Values:
    """Columns that are aggregated: types and aggregations of each, the share of nulls in all."""

    types: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    nulls: float = 0.0


def alike(number: int, ctype: str, names: tuple[str, ...], nulls: float = 0.0) -> Values:
    """So many columns of one type."""
    return Values((ctype,) * number, (names,) * number, nulls)


SETS = {
    "1 i64": alike(1, "i64", ("sum",)),
    "4 i64": alike(4, "i64", ("sum",)),
    "8 i64": alike(8, "i64", ("sum",)),
    "5 aggs": Values(("f64", "f32"), (FIVE[:4], FIVE[4:])),
    "20 aggs": Values(("f64", "f32", "i64", "i32"), (FIVE,) * 4),
    "1 dec": alike(1, "i128", ("sum",)),
    "4 dec": alike(4, "i128", ("sum",)),
    "4 i64 50%": alike(4, "i64", ("sum",), 0.5),
    "4 i64 90%": alike(4, "i64", ("sum",), 0.9),
    "8 max i64 90%": alike(8, "i64", ("max",), 0.9),
    "8 max i32": alike(8, "i32", ("max",)),
}


def column(ctype: str, nulls: float, rows: int, rng: Any) -> Any:
    """A pylibcudf column of random values, i128 as decimals."""
    import cupy as cp
    import pylibcudf as plc

    if ctype[0] == "f":
        array = rng.random(rows, dtype="float32" if ctype == "f32" else "float64")
    elif ctype == "i32":
        array = rng.integers(-1000, 1000, rows, dtype="int32")
    elif ctype == "i64":
        array = rng.integers(-(2**40), 2**40, rows, dtype="int64")
    else:
        array = cp.zeros(2 * rows, dtype="int64")
        array[::2] = rng.integers(0, 2**40, rows, dtype="int64")
    valid = rng.random(rows) >= nulls
    # libcudf has a stream of its own
    cp.cuda.get_current_stream().synchronize()
    made = plc.Column.from_cuda_array_interface(array)
    if ctype == "i128":
        decimal = plc.DataType(plc.TypeId.DECIMAL128, 0)
        made = plc.Column(decimal, rows, made.data(), None, 0, 0, [])
    if nulls:
        made = made.with_mask(
            *plc.transform.bools_to_mask(plc.Column.from_cuda_array_interface(valid))
        )
    return made


def aggregator_of(key: Any, columns: list[Any], values: Values) -> Any:
    """The aggregations of a set."""
    from dask_gpuagg.engines.device.aggregator import Aggregator

    aggregator = Aggregator([key], False)
    for of, names in zip(columns, values.names, strict=True):
        for name in names:
            getattr(aggregator, name)(of)
    return aggregator


def measured(aggregator: Any, kernel: str, repeats: int) -> dict[str, Any]:
    """Device times and memory of one kernel."""
    call = partial(aggregator.run, kernel)
    run = call()[2]
    laps = device_time(call, repeats)
    return {
        "kernel": run.decision.kernel,
        "partitions": getattr(run.decision, "partitions", 0),
        "slices": getattr(run.decision, "slices", 1),
        "device_ms": sum(laps.values()),
        "kernels_ms": laps,
        "peak_bytes": peak_bytes(call),
        "spilled": run.spilled,
    }


def main() -> None:
    """Run the sets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("gathered.json"))
    args = parser.parse_args()
    import cupy as cp
    import pylibcudf as plc

    rows, cells = int(args.rows), []
    prepare()
    rng = cp.random.default_rng(1)
    for groups in GROUPS:
        codes = rng.integers(0, groups, rows, dtype="int64")
        cp.cuda.get_current_stream().synchronize()
        key = plc.Column.from_cuda_array_interface(codes)
        for name, values in SETS.items():
            columns = [column(ctype, values.nulls, rows, rng) for ctype in values.types]
            aggregator = aggregator_of(key, columns, values)
            runs = {kernel: measured(aggregator, kernel, args.repeats) for kernel in KERNELS}
            cells.append({"groups": groups, "set": name, "kernels": runs})
            shown = (
                f"{kernel} {run['device_ms']:.2f} ms {run['peak_bytes'] / 2**20:.0f} MiB"
                for kernel, run in runs.items()
            )
            print(f"{groups:>10,} {name:>13}: {' | '.join(shown)}", flush=True)
            del columns, aggregator
        head = report_head(args.commit) | {"rows": rows}
        write(head | {"cells": cells}, args.out)


if __name__ == "__main__":
    main()
