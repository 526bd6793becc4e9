"""Experiments of the papers that no other program repeats, on one GPU.

``python -m benchmarks.papers --parts full,sorts`` measures parts, each into a results file of its
name, which is written after every cell. Arms alternate on one RMM pool, outputs included.

full
    Wang 2025, figure 5: SP-EGA beside LPHGA over the load factor, with as many slots, and with as
    many bytes
limited
    a call that may take so many bytes beside its input, by the decision and by each kernel
sorts
    Wu 2025, figures 16 to 20: rows sorted by key, then reduced; values move with the keys (TR) or
    are gathered by row number (UR), keys as they are or as codes (DE). Beside them ours, also with
    ``sort=True``
probes
    Wang 2025, table 1: slots that a row looks at; a simulation, which needs no GPU
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

import numba
import numpy as np

from benchmarks.gpu import (
    aggregator_of,
    at_most,
    engine_arm,
    peak_bytes,
    prepare,
    report_head,
    timed,
)
from benchmarks.kernel_inputs import Input, grouped
from benchmarks.kernels import SPECS, forgotten, pass_of
from benchmarks.machine import arguments, provenance
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


# ---- sorted rows ---------------------------------------------------------------------------------

_MAXIMA = {"a": ["max"], "b": ["max"]}


def sorts(repeats: int) -> Iterator[Record]:
    """The maximum of two int32 columns."""
    points = [(1 << bits, 0.0) for bits in (4, 8, 12, 16, 20, 24, 26)]
    points += [(1 << bits, zipf) for bits in (12, 16) for zipf in (0.5, 1.0, 1.5)]
    for width in (4, 8):
        for groups, zipf in points:
            frame = _wu_rows(width, groups, zipf)
            engine = {
                f"ours{', sort=True' if sort else ''}": engine_arm(
                    frame, _MAXIMA, ["k0"], sort=sort
                )
                for sort in (False, True)
            }
            aggregator = pass_of(frame, _MAXIMA)
            calls: Calls = {"ours, columns": partial(aggregator.run, "auto")}
            calls |= engine
            for coded in (False, True):
                for gathers in (False, True):
                    name = f"SGB{'-DE' if coded else ''}-{'UR' if gathers else 'TR'}"
                    calls[name] = partial(by_sort, frame, groups, coded, gathers)
            sizes = {name: _rows_of(call()) for name, call in calls.items()}
            assert len(set(sizes.values())) == 1, sizes
            yield {
                "key_bytes": width,
                "possible": groups,
                "zipf": zipf,
                "groups": sizes["ours"],
                "kernel": aggregator.run("auto")[2].decision.kernel,
                "median_ms": medians(calls, repeats),
            }


def _rows_of(result: Any) -> int:
    return result[0][0].size() if isinstance(result, tuple) else len(result)


def _wu_rows(width: int, groups: int, zipf: float) -> Any:
    """Keys of all bits of their width, each number of a group another."""
    import cudf
    import cupy as cp

    frame = Input("", partial(grouped, "int64", groups, zipf), {}).draw(ROWS)
    keys = frame["k0"].values.view("uint64")
    # odd factors: no two numbers have the same product
    if width == 4:
        mixed = (keys.astype("uint32") * cp.uint32(2_654_435_761)).view("int32")
    else:
        mixed = (keys * cp.uint64(0x9E3779B97F4A7C15)).view("int64")
    rng = cp.random.default_rng(3)
    values = {name: rng.integers(0, 1 << 30, ROWS, dtype="int32") for name in "ab"}
    return cudf.DataFrame({"k0": mixed} | values)


def by_sort(frame: Any, groups: int, coded: bool, gathers: bool) -> Any:
    """Sort by key or code, then reduce runs of equal keys."""
    import cupy as cp
    from pylibcudf.utils import _get_stream

    from dask_gpuagg.cuda.algorithms import sgb
    from dask_gpuagg.engines.device.columns import array_of, column_of, gather_columns
    from dask_gpuagg.engines.device.library import number_rows

    on = sgb.launcher(_get_stream())
    rows, named = len(frame), None
    if coded:
        named, numbering = number_rows([frame["k0"]])
        keys, bits = numbering.of_rows(rows), len(named).bit_length()
    else:
        keys = frame["k0"].values
        bits = 8 * keys.itemsize
        # words that order as the keys do
        unsigned = keys.view(f"u{keys.itemsize}")
        keys = unsigned ^ unsigned.dtype.type(1 << (bits - 1))

    def sort(moved: Any) -> tuple[Any, Any]:
        arrays = (keys, moved)
        words, others = (sgb.array_of(on, rows, each.itemsize) for each in arrays)
        for to, each in zip((words, others), arrays, strict=True):
            cp.asarray(to.buffer).view(each.dtype)[:] = each
        ordered, beside = sgb.radix_sort(on, words, others, rows, bits)
        buffers = cp.asarray(ordered.buffer), cp.asarray(beside.buffer)
        return buffers[0].view(keys.dtype), buffers[1].view(moved.dtype)

    if gathers:
        ordered, numbers = sort(cp.arange(rows, dtype="int32"))
        values = [frame[name].to_pylibcudf()[0] for name in _MAXIMA]
        columns = gather_columns(values, column_of(numbers), all_there=True)
    else:
        pairs = [sort(frame[name].values) for name in _MAXIMA]
        ordered, columns = pairs[0][0], [column_of(values) for _, values in pairs]
    if not coded:
        bit = ordered.dtype.type(1 << (bits - 1))
        ordered = (ordered ^ bit).view(f"i{ordered.itemsize}")
    result = aggregator_of([column_of(ordered)], [(c, ["max"]) for c in columns]).run("sgb")
    if named is None:
        return result
    codes = array_of(result[0][0])
    return (gather_columns([named["k0"].to_pylibcudf()[0]], column_of(codes), all_there=True),)


# ---- slots that a row looks at -------------------------------------------------------------------

PROBED_SLOTS = 1 << 22
# Wang 2025, table 1: SP-EGA and linear probing by load factor.
TABLE_1 = {
    0.91: (1.66, 5.64),
    0.93: (1.76, 7.18),
    0.95: (1.86, 9.97),
    0.97: (1.99, 16.69),
    0.99: (2.13, 53.56),
}


def probes(repeats: int) -> Iterator[Record]:
    """Both ways to find slots, simulated on the host with hashes at random; repeated once."""
    for load, (paper, linear) in TABLE_1.items():
        for keys, rows_of_key in (("distinct", 1), ("uniform, 8 rows each", 8)):
            rng = np.random.default_rng(1)
            groups = int(load * PROBED_SLOTS)
            rows = rng.integers(0, groups, 8 * groups) if rows_of_key > 1 else np.arange(groups)
            _, came, counts = np.unique(rows, return_index=True, return_counts=True)
            # of each key, the first to come first
            counts = counts[np.argsort(came)]
            yield {
                "load_factor": len(counts) / PROBED_SLOTS,
                "keys": keys,
                "rows": len(rows),
                "groups": len(counts),
                "sp_ega": by_rounds(counts, rng) / len(rows),
                "linear": by_probing(counts, rng) / len(rows),
                "table_1": {"sp_ega": paper, "linear": linear},
            }


def by_rounds(counts: Any, rng: Any) -> int:
    """Slots that all rows look at in the rounds of ``kernels/sp_ega``; keys have so many rows."""
    from dask_gpuagg.cuda.algorithms.tables import ROUNDS

    is_free, looks, keys = np.ones(PROBED_SLOTS, dtype=bool), 0, len(counts)
    for number in range(ROUNDS):
        places = rng.integers(0, PROBED_SLOTS, len(counts))
        if number:
            # one of the free slots of a word, or of the next word that has some
            free = np.flatnonzero(is_free)
            words = free // 32
            word = words[np.searchsorted(words, places // 32) % len(free)]
            start, stop = (np.searchsorted(words, word, side) for side in ("left", "right"))
            places = free[start + places % (stop - start)]
        looks += int(counts.sum())
        # the first to come holds the place
        taken, winners = np.unique(places, return_index=True)
        is_free[taken] = False
        counts = np.delete(counts, winners)
        if not len(counts):
            break
    assert len(counts) < keys / 500, "the last round, which probes, is not counted"
    return looks


def by_probing(counts: Any, rng: Any) -> int:
    """Slots that all rows look at by linear probing."""
    homes = rng.integers(0, PROBED_SLOTS, len(counts))
    return int(_probed(counts, homes, np.ones(PROBED_SLOTS, dtype=np.bool_)))


@numba.njit
def _probed(counts: Any, homes: Any, is_free: Any) -> int:
    looks = 0
    for count, home in zip(counts, homes):  # noqa: B905 - numba has no strict
        slot = home
        while not is_free[slot]:
            slot = (slot + 1) % len(is_free)
        is_free[slot] = False
        looks += count * ((slot - home) % len(is_free) + 1)
    return looks


# ---- the program ---------------------------------------------------------------------------------

PARTS = {"full": full, "limited": limited, "sorts": sorts, "probes": probes}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    parser = arguments("papers", __doc__, Path("."), "folder of the results files")
    parser.add_argument("--parts", default=",".join(PARTS), help="by commas; default: all")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(argv)
    for name in options.parts.split(","):
        head = provenance(options.commit)
        if name != "probes":
            prepare()
            head = report_head(options.commit)
        cells: list[Record] = []
        for cell in PARTS[name](options.repeats):
            cells.append(cell)
            print(name, cell, flush=True)
            write(head | {"cells": cells}, options.out / f"{name}.json")


if __name__ == "__main__":
    main()
