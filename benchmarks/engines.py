"""Ways to reduce one partition on the host: what the choice of the host engine rests on.

``python -m benchmarks.engines`` times, on one thread and alternating, Arrow's hash aggregation
on the keys themselves, pandas' group-by on the keys, and the host engine's own two steps:
numbering the groups once and reductions on those numbers. Written to
``benchmarks/results/engines.json``.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from benchmarks.datagen import Parameters, generate
from benchmarks.machine import provenance
from benchmarks.report import write
from dask_gpuagg.engines.host.grouping import group
from dask_gpuagg.engines.host.reducer import Reducer
from dask_gpuagg.engines.host.states import update

KEYS = {
    "int, 100 groups": ["id4"],
    "int, many groups": ["id6"],
    "str, 100 groups": ["id1"],
    "str, many groups": ["id3"],
    "two str": ["id1", "id2"],
    "six keys": ["id1", "id2", "id3", "id4", "id5", "id6"],
}
SPEC = [("v3", "sum"), ("v3", "min"), ("v3", "max"), ("v3", "count"), ("v1", "sum")]


def by_arrow(frame: pd.DataFrame, keys: list[str]) -> Any:
    """Arrow's hash aggregation on the keys."""
    columns = {c: pa.array(frame[c]) for c in [*keys, "v1"]}
    table = pa.table(columns | {"v3": pa.array(frame["v3"], from_pandas=True)})
    return table.group_by(keys, use_threads=False).aggregate(SPEC)


def by_pandas(frame: pd.DataFrame, keys: list[str]) -> Any:
    """The group-by of pandas on the keys; the grouping is shared by the reductions."""
    grouped = frame.groupby(keys, sort=False, observed=True)
    return [getattr(grouped[column], function)() for column, function in SPEC]


def by_host(frame: pd.DataFrame, keys: list[str]) -> Any:
    """The host engine: groups numbered once, then reduced by number."""
    groups = group([frame[k] for k in keys], dropna=False)
    reducer = Reducer(groups.codes, groups.n)
    states = [("fsum", "v3"), ("min", "v3"), ("max", "v3"), ("count", "v3"), ("isum", "v1")]
    columns = {c: frame[c] for _, c in states}
    for state, c in states:
        reducer.expect(state, columns[c])
    return [update(reducer, state, [columns[c]], frame.index) for state, c in states]


ARMS: dict[str, Callable[[pd.DataFrame, list[str]], Any]] = {
    "arrow": by_arrow,
    "pandas": by_pandas,
    "host": by_host,
}


def measure(frame: pd.DataFrame, keys: list[str], repeats: int) -> dict[str, list[float]]:
    """Seconds of every repeat of every arm, alternating, the first round left out."""
    times: dict[str, list[float]] = {name: [] for name in ARMS}
    for repeat in range(repeats + 1):
        for name, arm in ARMS.items():
            start = time.perf_counter()
            arm(frame, keys)
            if repeat:
                times[name].append(time.perf_counter() - start)
    return times


def main() -> None:
    """Run all keys, print medians in milliseconds, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/engines.json"))
    options = parser.parse_args()
    pa.set_cpu_count(1)
    frame = generate(Parameters(rows=options.rows, groups=100))
    results = {}
    for name, keys in KEYS.items():
        times = measure(frame, keys, options.repeats)
        medians = {arm: statistics.median(t) for arm, t in times.items()}
        groups = group([frame[k] for k in keys], dropna=False).n
        results[name] = {"groups": groups, "seconds": times, "median": medians}
        text = ", ".join(f"{arm} {1e3 * m:.1f} ms" for arm, m in medians.items())
        print(f"{name:<18} {groups:>9,} groups: {text}")
    report = {"rows": options.rows, **provenance()}
    write(report | {"results": results}, options.out)


if __name__ == "__main__":
    main()
