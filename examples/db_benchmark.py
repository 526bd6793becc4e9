"""The ten group-by questions of db-benchmark: with the plugin, and by stock Dask.

Answers are compared, and the time of each question stands beside that of stock Dask::

    python examples/db_benchmark.py                    # 1e7 rows, or 1e9 where there is a GPU
    python examples/db_benchmark.py --rows 1e6 --runs 3
    python examples/db_benchmark.py --questions q1,q5 --no-stock

The columns are those of db-benchmark (https://github.com/duckdblabs/db-benchmark) and have its
distributions: `id1`, `id2`, `id4`, `id5` have 100 values, `id3`, `id6` have 100 times fewer than
there are rows. Where stock Dask needs other lines for a question, those of its db-benchmark script
are run: in q8 it calls Python once for each group, which takes minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
from dask.diagnostics import ProgressBar

import dask_gpuagg
import machine

GROUPS = 100
ROWS_OF_A_PARTITION = {False: 1_000_000, True: 8_000_000}
SIX = ["id1", "id2", "id3", "id4", "id5", "id6"]
# Far above the rounding of sums in another order, far below anything one would care about.
TOLERANCE = 1e-9
# of larger answers only sums are compared: to order their rows takes longer than the question
COMPARED_ROWS = 20_000_000


def part(number: int, rows: int, of: int, gpu: bool) -> Any:
    """One partition, the same however often it is made."""
    rng = np.random.default_rng([number, rows])
    small = max(of // GROUPS, 1)

    def text(pattern: str, kinds: int) -> Any:
        words = pa.array([pattern % i for i in range(1, kinds + 1)], type=pa.large_string())
        # no row is ever a Python object
        return words.take(pa.array(rng.integers(0, kinds, rows))).to_pandas()

    columns: dict[str, Any] = {"id1": text("id%03d", GROUPS), "id2": text("id%03d", GROUPS)}
    columns["id3"] = text("id%010d", small)
    for name, kinds in (("id4", GROUPS), ("id5", GROUPS), ("id6", small)):
        columns[name] = rng.integers(1, kinds + 1, rows, dtype=np.int32)
    for name, largest in (("v1", 5), ("v2", 15)):
        columns[name] = rng.integers(1, largest + 1, rows, dtype=np.int32)
    columns["v3"] = np.round(rng.random(rows) * 100, 6)
    frame = pd.DataFrame(columns).astype(dict.fromkeys(("id1", "id2", "id3"), "str"))
    if not gpu:
        return frame
    import cudf

    return cudf.from_pandas(frame)


def table(rows: int, gpu: bool) -> dd.DataFrame:
    """All rows, in memory."""
    size = ROWS_OF_A_PARTITION[gpu]
    # at least two partitions, so that something is merged
    parts = max(-(-rows // size), 2)
    sizes = [rows // parts + (i < rows % parts) for i in range(parts)]
    numbers = list(range(parts))
    made = dd.from_map(part, numbers, sizes, of=rows, gpu=gpu, meta=part(0, 2, rows, gpu).iloc[:0])
    return made.persist()


def top_two(x: dd.DataFrame) -> Any:
    """The two largest v3 of each id6, a row for each."""
    if hasattr(x._meta, "to_pandas"):  # cuDF has lists of its own
        return x.groupby("id6").agg({"v3": list}).map_partitions(_first_two)
    return x.groupby("id6").v3.agg("nlargest", n=2).explode().astype("float64").to_frame()


def _first_two(groups: Any) -> Any:
    groups["v3"] = groups["v3"].list.sort_values(ascending=False, na_position="last")
    import cudf

    return cudf.concat(
        [groups["v3"].list.get(i).to_frame("v3").dropna() for i in range(2)],
    )


def top_two_stock(x: dd.DataFrame) -> Any:
    """Stock Dask calls Python once for each group."""
    meta = {"v3": "float64"}
    largest = x[["id6", "v3"]].groupby("id6").apply(lambda g: g.nlargest(2, "v3"), meta=meta)
    return largest[["v3"]]


def regression(x: dd.DataFrame) -> Any:
    """Squared correlation of v1 and v2, from sums of products."""
    # integers, so that the sums are exact
    wide = x[["id2", "id4", "v1", "v2"]].astype({"v1": "int64", "v2": "int64"})
    rows = wide.assign(xx=wide.v1 * wide.v1, yy=wide.v2 * wide.v2, xy=wide.v1 * wide.v2)
    spec = {"v1": ["count", "sum"], "v2": "sum", "xx": "sum", "yy": "sum", "xy": "sum"}
    sums = rows.groupby(["id2", "id4"]).agg(spec)
    return sums.map_partitions(_r_squared)


def _r_squared(sums: Any) -> Any:
    n, x, y, xx, yy, xy = (sums.iloc[:, i].astype("float64") for i in range(6))
    r2 = (n * xy - x * y) ** 2 / ((n * xx - x * x) * (n * yy - y * y))
    return r2.to_frame("r2")


def ranges(x: dd.DataFrame) -> Any:
    """Largest v1 less smallest v2."""
    found = x.groupby("id3").agg({"v1": "max", "v2": "min"})
    return (found.v1 - found.v2).to_frame("range_v1_v2")


@dataclass(frozen=True)
class Question:
    """One question; ``stock`` where stock Dask needs other lines."""

    title: str
    ask: Callable[[dd.DataFrame], Any]
    stock: Callable[[dd.DataFrame], Any] | None = None


QUESTIONS = {
    "q1": Question("sum v1 by id1", lambda x: x.groupby("id1").agg({"v1": "sum"})),
    "q2": Question("sum v1 by id1:id2", lambda x: x.groupby(["id1", "id2"]).agg({"v1": "sum"})),
    "q3": Question(
        "sum v1 mean v3 by id3", lambda x: x.groupby("id3").agg({"v1": "sum", "v3": "mean"})
    ),
    "q4": Question(
        "mean v1:v3 by id4",
        lambda x: x.groupby("id4").agg({"v1": "mean", "v2": "mean", "v3": "mean"}),
    ),
    "q5": Question(
        "sum v1:v3 by id6",
        lambda x: x.groupby("id6").agg({"v1": "sum", "v2": "sum", "v3": "sum"}),
    ),
    "q6": Question(
        "median v3 sd v3 by id4 id5",
        lambda x: x.groupby(["id4", "id5"]).agg({"v3": ["median", "std"]}),
        lambda x: x.groupby(["id4", "id5"]).agg({"v3": ["median", "std"]}, shuffle_method="tasks"),
    ),
    "q7": Question("max v1 - min v2 by id3", ranges),
    "q8": Question("largest two v3 by id6", top_two, top_two_stock),
    "q9": Question("regression v1 v2 by id2 id4", regression),
    "q10": Question(
        "sum v3 count by id1:id6",
        lambda x: x.groupby(SIX).agg({"v3": "sum", "v1": "size"}),
        lambda x: x.groupby(SIX).agg({"v3": "sum", "v1": "size"}, split_out=x.npartitions),
    ),
}


def computed(query: Any) -> Any:
    """Result, with a bar of its tasks where somebody looks."""
    with ProgressBar(minimum=2) if sys.stderr.isatty() else nullcontext():
        return query.compute()


def by_plugin(question: Question, x: dd.DataFrame) -> Any:
    """Answer with the plugin on; an error where it would fall back."""
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "raise"}):
        return computed(question.ask(x))


def by_stock(question: Question, x: dd.DataFrame) -> Any:
    """Answer with the plugin off."""
    return computed((question.stock or question.ask)(x))


def best(
    arm: Callable[[Question, dd.DataFrame], Any], question: Question, x: Any, runs: int
) -> Any:
    """Answer and the shortest time of some runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        answer = arm(question, x)
        times.append(time.perf_counter() - start)
    return answer, min(times)


def agreement(ours: Any, stock: Any) -> str:
    """Say how two answers compare, whatever the order of their rows; ``DIFFER`` where they do."""
    if len(ours) != len(stock):
        return f"DIFFER: {len(ours):,} and {len(stock):,} rows"
    if len(ours) > COMPARED_ROWS:
        a, b = (np.array(x.sum().to_numpy(), "float64", ndmin=1) for x in (ours, stock))
        return _near(a, b, f"{len(ours):,} rows, sums compared")
    (keys, a), (other, b) = (_ordered(x) for x in (ours, stock))
    if not np.array_equal(keys, other):
        return "DIFFER: other groups"
    return _near(a, b, f"{len(ours):,} rows equal")


def _ordered(answer: Any) -> tuple[Any, Any]:
    """Hashes of the groups, ascending, and the values in their order."""
    frame = answer.to_pandas() if hasattr(answer, "to_pandas") else answer
    keys = frame.index
    if len(keys.names) == 2 and keys.names[0] == "id6":
        keys = keys.droplevel(1)  # stock Dask's apply adds the rows' labels
    hashed = pd.util.hash_pandas_object(keys.to_frame(index=False), index=False).to_numpy()
    values = frame.to_numpy("float64")
    # of groups with several rows their values decide
    order = np.lexsort((values[:, 0], hashed))
    return hashed[order], values[order]


def _near(a: Any, b: Any, text: str) -> str:
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return "DIFFER: nulls in other places"
    # a group of one row has no standard deviation: null on both sides
    a, b = a[~np.isnan(a)], b[~np.isnan(b)]
    scale = np.maximum(np.abs(b), np.finfo("float64").tiny)
    worst = float(np.max(np.abs(a - b) / scale, initial=0))
    return text if worst < TOLERANCE else f"DIFFER: by {worst:.1e}"


def show(name: str, x: dd.DataFrame, runs: int, stock: bool) -> bool:
    """Run a question and print its line; whether the answers agree."""
    question = QUESTIONS[name]
    print(f"{name:<4} {question.title:<27}", end="", flush=True)
    ours, seconds = best(by_plugin, question, x, runs)
    print(f"{seconds:9.3f} s", end="", flush=True)
    if not stock:
        print(f"    {len(ours):,} rows")
        return True
    try:
        theirs, other = best(by_stock, question, x, runs)
    except Exception as error:
        # whatever stock Dask refuses or has no memory for: the other questions go on
        print(f"{'–':>11}{'–':>8}  stock Dask: {type(error).__name__}: {str(error)[:80]}")
        return True
    text = agreement(ours, theirs)
    print(f"{other:9.3f} s{other / seconds:7.1f}x  {text}")
    return not text.startswith("DIFFER")


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, help="1e7, on a GPU 1e9, unless given")
    parser.add_argument("--cpu", action="store_true", help="pandas, also where there is a GPU")
    parser.add_argument("--runs", type=int, default=1, help="of each question; the best counts")
    parser.add_argument("--questions", default=",".join(QUESTIONS), help="as in q1,q5")
    parser.add_argument("--no-stock", action="store_true", help="with the plugin only")
    given = parser.parse_args()
    given.questions = given.questions.split(",")
    unknown = [name for name in given.questions if name not in QUESTIONS]
    if unknown:
        parser.error(f"no question {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    if given.runs < 1 or (given.rows is not None and given.rows < 1):
        parser.error("--rows and --runs are at least 1")
    return given


def main() -> None:
    given = options()
    dask_gpuagg.disable()
    gpu = not given.cpu and machine.without_gpu() is None
    rows = int(given.rows or (1e9 if gpu else 1e7))
    if gpu:
        import rmm

        rmm.reinitialize(pool_allocator=True)
    where = "one GPU" if gpu else f"{os.cpu_count()} cores, no GPU used"
    print(f"dask_gpuagg {dask_gpuagg.__version__}, dask {dask.__version__}, {where}")
    print(f"making {rows:,} rows ...", flush=True)
    x = computed_once(table(rows, gpu))
    print("each question once on few rows, which compiles what it needs ...", flush=True)
    few = table(200_000, gpu)
    for name in given.questions:
        by_plugin(QUESTIONS[name], few)
    print(f"\n{'':32}{'plugin':>11}{'stock Dask':>11}{'ratio':>8}  answers")
    agreed = [show(name, x, given.runs, not given.no_stock) for name in given.questions]
    if not all(agreed):
        sys.exit("The two arms do not agree.")


def computed_once(x: dd.DataFrame) -> dd.DataFrame:
    """The collection, when all of it is there."""
    len(x)
    return x


if __name__ == "__main__":
    main()
