"""Experiments of the papers that no other program repeats, on one GPU.

``python -m benchmarks.papers --parts full,limited`` measures parts, each into a results file of its
name, which is written after every cell. Arms alternate on one RMM pool, outputs included.

full
    Wang 2025, figure 5: SP-EGA beside LPHGA over the load factor, with as many slots, and with as
    many bytes
limited
    a call that may take so many bytes beside its input, by the decision and by each kernel
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.gpu import (
    at_most,
    peak_bytes,
    prepare,
    report_head,
    timed,
)
from benchmarks.kernel_inputs import Input, grouped
from benchmarks.kernels import SPECS, forgotten, pass_of
from benchmarks.machine import arguments
from benchmarks.report import write
from dask_gpuagg.cuda.choice.decision import even

Record = dict[str, Any]
Calls = dict[str, Callable[[], Any]]

ROWS = 10**8
LOADS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.91, 0.93, 0.95, 0.97, 0.99)
REFUSED = "out of memory"


def slot_bytes(aggregator: Any) -> int:
    """Bytes of a slot of a table in global memory, and of the number of its group."""
    return int(sum(aggregator.query.slot_bytes)) + 4


def passes() -> Iterator[tuple[str, Any, Any, int]]:
    """A query, its rows, our pass over them and the number of their groups."""
    for possible in (1 << 24, 1 << 26):
        frame = Input("", partial(grouped, "random", possible, 0.0)).draw(ROWS)
        for query in ("sum", "five"):
            aggregator = pass_of(frame, SPECS[query])
            yield query, frame, aggregator, aggregator.run("auto")[2].groups


def medians(calls: Calls, repeats: int) -> dict[str, float]:
    """Milliseconds of each call."""
    return {name: statistics.median(ms) for name, ms in timed(calls, repeats).items()}


# ---- load factors --------------------------------------------------------------------------------


@contextmanager
def slots(count: int) -> Iterator[None]:
    """Forced tables in global memory have so many slots, and are filled and searched to the end."""
    from dask_gpuagg.cuda.call import table_of
    from dask_gpuagg.cuda.choice import tables

    usual = {name: getattr(tables, name) for name in ("in_global", "in_full_table")}

    def sized(name: str, *args: Any) -> Any:
        return replace(usual[name](*args), global_slots=count)

    def open_table(call: Any, count: int) -> Any:
        table = table_of(call, count)
        table.limit = count
        return table

    changed: dict[str, Any] = {name: partial(sized, name) for name in usual}
    with (
        patch.multiple(tables, **changed | {"PROBES": 2**32 - 1}),
        patch("dask_gpuagg.cuda.algorithms.tables.table_of", open_table),
        forgotten(),
    ):
        yield


def full(repeats: int) -> Iterator[Record]:
    """SP-EGA at LPHGA's slots and at its bytes: marks of rows and of free slots are counted in."""
    for query, _, aggregator, groups in passes():
        slot = slot_bytes(aggregator)

        def run(kernel: str, count: int, of: Any = aggregator) -> Any:
            with slots(count):
                return of.run(kernel)[2]

        for load in LOADS:
            count = even(math.ceil(groups / load))
            equal = int((count * slot - ROWS / 8) / (slot + 1 / 8)) & ~1
            sizes = {"lphga": count, "sp_ega": count, "sp_ega, equal bytes": equal}
            calls: Calls = {
                name: partial(run, name.partition(",")[0], of_arm)
                for name, of_arm in sizes.items()
                if of_arm >= groups
            }
            runs = {name: call() for name, call in calls.items()}
            yield {
                "query": query,
                "groups": groups,
                "load_factor": load,
                "slots": {name: each.decision.global_slots for name, each in runs.items()},
                "restarted": [name for name, each in runs.items() if each.restarted],
                "median_ms": medians(calls, repeats),
                "peak_bytes": {name: peak_bytes(call) for name, call in calls.items()},
            }


# ---- little memory -------------------------------------------------------------------------------


def limited(repeats: int) -> Iterator[Record]:
    """The result, and a room of so many bytes a group beside it."""
    for query, frame, aggregator, groups in passes():
        row = 16 if query == "sum" else 8 * 5 + 8
        names = ("auto", "lphga", "sp_ega", "pgb")
        calls: Calls = {name: partial(aggregator.run, name) for name in names}
        calls["cudf"] = partial(frame.groupby("k0").agg, SPECS[query])
        for share in (1.25, 1.5, 2.0, 3.0, 5.0):
            limit = int(groups * row + share * groups * slot_bytes(aggregator))

            def within(call: Callable[[], Any], limit: int = limit) -> Any:
                with at_most(limit):
                    return call()

            fitting: Calls = {}
            for name, call in calls.items():
                with suppress(MemoryError):
                    within(call)
                    fitting[name] = partial(within, call)
            run = within(calls["auto"])[2] if "auto" in fitting else None
            times = medians(fitting, repeats) if fitting else {}
            yield {
                "query": query,
                "groups": groups,
                "slots_of_groups": share,
                "limit_bytes": limit,
                "kernel": run.decision.kernel if run else None,
                "why": run.decision.why if run else None,
                "median_ms": {name: times.get(name, REFUSED) for name in calls},
            }


# ---- the program ---------------------------------------------------------------------------------

PARTS = {"full": full, "limited": limited}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = arguments("papers", __doc__, Path("."), "folder of the results files")
    parser.add_argument("--parts", default=",".join(PARTS), help="by commas; default: all")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    prepare()
    for name in options.parts.split(","):
        head = report_head(options.commit)
        cells: list[Record] = []
        for cell in PARTS[name](options.repeats):
            cells.append(cell)
            print(name, cell, flush=True)
            write(head | {"cells": cells}, options.out / f"{name}.json")


if __name__ == "__main__":
    main()
