"""The ten group-by questions of db-benchmark: with the plugin, and by stock Dask.

Answers are compared, and the time of each question stands beside that of stock Dask::

    python examples/db_benchmark.py                    # 1e7 rows, or 1e9 where there is a GPU
    python examples/db_benchmark.py --rows 1e6 --runs 3
    python examples/db_benchmark.py --questions q1,q5 --no-stock
    python examples/db_benchmark.py --limit 20         # seconds that stock Dask gets, on a GPU

The columns are those of db-benchmark (https://github.com/duckdblabs/db-benchmark) and have its
distributions: `id1`, `id2`, `id4`, `id5` have 100 values, `id3`, `id6` have 100 times fewer than
there are rows. Where stock Dask needs other lines for a question, those of its db-benchmark script
are run: in q8 it calls Python once for each group, which takes minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
from dask.utils import format_bytes

import dask_gpuagg
import machine
from running import Ran, Threads, Workers, place

GROUPS = 100
ROWS_OF_A_PARTITION = {False: 1_000_000, True: 16_000_000}
PATTERNS = {"id1": "id%03d", "id2": "id%03d", "id3": "id%010d"}
SIX = ["id1", "id2", "id3", "id4", "id5", "id6"]
# Far above the rounding of sums in another order, far below anything one would care about.
TOLERANCE = 1e-9
# of larger answers only sums are compared: to order their rows takes longer than the question
COMPARED_ROWS = 20_000_000


def part(number: int, rows: int, of: int, gpu: bool) -> Any:
    """One partition, the same however often it is made."""
    small = max(of // GROUPS, 1)
    kinds = {"id1": GROUPS, "id2": GROUPS, "id3": small, "id4": GROUPS, "id5": GROUPS, "id6": small}
    made = _part_on_gpu if gpu else _part
    return made(number, rows, kinds, {"v1": 5, "v2": 15})


def _part(number: int, rows: int, kinds: dict[str, int], values: dict[str, int]) -> Any:
    rng = np.random.default_rng([number, rows])

    def text(name: str) -> Any:
        pattern = PATTERNS[name]
        words = pa.array([pattern % i for i in range(1, kinds[name] + 1)], type=pa.large_string())
        # no row is ever a Python object
        return words.take(pa.array(rng.integers(0, kinds[name], rows))).to_pandas()

    columns: dict[str, Any] = {name: text(name) for name in PATTERNS}
    for name, largest in (kinds | values).items():
        if name not in PATTERNS:
            columns[name] = rng.integers(1, largest + 1, rows, dtype=np.int32)
    columns["v3"] = np.round(rng.random(rows) * 100, 6)
    return pd.DataFrame(columns).astype(dict.fromkeys(PATTERNS, "str"))


def _part_on_gpu(number: int, rows: int, kinds: dict[str, int], values: dict[str, int]) -> Any:
    import cudf
    import cupy as cp

    rng = cp.random.RandomState(number)
    columns = {
        name: cudf.Series(rng.randint(1, largest + 1, rows, dtype=np.int32))
        for name, largest in (kinds | values).items()
    }
    for name, pattern in PATTERNS.items():
        # the digits, with two zeros more, which the letters replace
        digits = columns[name].astype("str").str.zfill(len(pattern % 0))
        columns[name] = digits.str.slice_replace(0, 2, "id")
    columns["v3"] = cudf.Series(cp.around(rng.random_sample(rows) * 100, 6))
    return cudf.DataFrame(columns)


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
    return x.groupby("id6").v3.agg("nlargest", n=2).explode().astype("float64").to_frame()


def top_two_stock(x: dd.DataFrame) -> Any:
    """Stock Dask calls Python once for each group of pandas; of cuDF it has lists."""
    if hasattr(x._meta, "to_pandas"):
        meta = x._meta[["id6", "v3"]].set_index("id6")
        return x.groupby("id6").agg({"v3": list}).map_partitions(_first_two, meta=meta)
    meta = {"v3": "float64"}
    largest = x[["id6", "v3"]].groupby("id6").apply(lambda g: g.nlargest(2, "v3"), meta=meta)
    return largest[["v3"]]


def _first_two(groups: Any) -> Any:
    groups["v3"] = groups["v3"].list.sort_values(ascending=False, na_position="last")
    import cudf

    return cudf.concat(
        [groups["v3"].list.get(i).to_frame("v3").dropna() for i in range(2)],
    )


def regression(x: dd.DataFrame) -> Any:
    """Squared correlation of v1 and v2, from sums of products."""
    few = x[["id2", "id4", "v1", "v2"]]
    # integers of at most 225, whose sums have 64 bits
    rows = few.assign(xx=few.v1 * few.v1, yy=few.v2 * few.v2, xy=few.v1 * few.v2)
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
    """One question; ``stock`` where stock Dask needs other lines.

    The answer's first columns have the sums of all rows in the columns ``totals``.
    """

    title: str
    ask: Callable[[dd.DataFrame], Any]
    stock: Callable[[dd.DataFrame], Any] | None = None
    totals: tuple[str, ...] = ()


QUESTIONS = {
    "q1": Question("sum v1 by id1", lambda x: x.groupby("id1").agg({"v1": "sum"}), totals=("v1",)),
    "q2": Question(
        "sum v1 by id1:id2", lambda x: x.groupby(["id1", "id2"]).agg({"v1": "sum"}), totals=("v1",)
    ),
    "q3": Question(
        "sum v1 mean v3 by id3",
        lambda x: x.groupby("id3").agg({"v1": "sum", "v3": "mean"}),
        totals=("v1",),
    ),
    "q4": Question(
        "mean v1:v3 by id4",
        lambda x: x.groupby("id4").agg({"v1": "mean", "v2": "mean", "v3": "mean"}),
    ),
    "q5": Question(
        "sum v1:v3 by id6",
        lambda x: x.groupby("id6").agg({"v1": "sum", "v2": "sum", "v3": "sum"}),
        totals=("v1", "v2", "v3"),
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
        totals=("v3", "rows"),
    ),
}


def by_plugin(question: Question, x: dd.DataFrame, where: Threads | Workers) -> Ran:
    """Answer with the plugin on; an error where it would fall back."""
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "raise"}):
        return where.run(question.ask(x))


def by_stock(
    question: Question, x: dd.DataFrame, where: Threads | Workers, limit: float | None
) -> Ran:
    """Answer with the plugin off."""
    return where.run((question.stock or question.ask)(x), limit)


@dataclass(frozen=True)
class Answer:
    """What is compared of an answer.

    Attributes
    ----------
    rows : int
    keys : ndarray, optional
        Hashes of the groups, ascending; ``None`` of answers of which sums alone are compared.
    values : ndarray
        In the order of the keys, or their sums.
    """

    rows: int
    keys: Any
    values: Any


def told(brought: Any) -> Answer:
    """What is compared of an answer, whatever the order of its rows."""
    if isinstance(brought, tuple):
        rows, sums = brought
        return Answer(rows, None, _floats(sums))
    if len(brought) > COMPARED_ROWS:
        return Answer(len(brought), None, _floats(brought.sum()))
    keys = brought.index
    if len(keys.names) == 2 and keys.names[0] == "id6":
        keys = keys.droplevel(1)  # stock Dask's apply adds the rows' labels
    hashed = pd.util.hash_pandas_object(keys.to_frame(index=False), index=False).to_numpy()
    values = brought.to_numpy("float64")
    # of groups with several rows their values decide
    order = np.lexsort((values[:, 0], hashed))
    return Answer(len(brought), hashed[order], values[order])


def _floats(sums: Any) -> Any:
    """Sums of columns, of pandas or cuDF."""
    return np.array((sums.to_pandas() if hasattr(sums, "to_pandas") else sums), "float64", ndmin=1)


def agreement(ours: Answer, stock: Answer) -> str:
    """Say how two answers compare; ``DIFFER`` where they do."""
    if ours.rows != stock.rows:
        return f"DIFFER: {ours.rows:,} and {stock.rows:,} rows"
    if ours.keys is None or stock.keys is None:
        return _near(ours.values, stock.values, f"{ours.rows:,} rows, sums compared")
    if not np.array_equal(ours.keys, stock.keys):
        return "DIFFER: other groups"
    return _near(ours.values, stock.values, f"{ours.rows:,} rows equal")


def _near(a: Any, b: Any, text: str) -> str:
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return "DIFFER: nulls in other places"
    # a group of one row has no standard deviation: null on both sides
    a, b = a[~np.isnan(a)], b[~np.isnan(b)]
    scale = np.maximum(np.abs(b), np.finfo("float64").tiny)
    worst = float(np.max(np.abs(a - b) / scale, initial=0))
    return text if worst < TOLERANCE else f"DIFFER: by {worst:.1e}"


def best(run: Callable[[], Ran], where: Threads | Workers, runs: int) -> tuple[Answer, Ran]:
    """What is compared of the answer, and the quickest of some runs; no answer is kept."""
    quickest = None
    for _ in range(runs):
        ran = run()
        if quickest is None:
            answer = told(where.brought(ran.answer))
        if quickest is None or ran.seconds < quickest.seconds:
            quickest = replace(ran, answer=None)
        del ran
    assert quickest is not None
    return answer, quickest


def show(
    name: str, x: dd.DataFrame, where: Threads | Workers, given: argparse.Namespace, totals: Any
) -> dict[str, Any]:
    """Run a question and print its line; the same as a record."""
    question = QUESTIONS[name]
    record: dict[str, Any] = {"question": name, "title": question.title}
    print(f"{name:<4} {question.title:<27}", end="", flush=True)
    try:
        ours, ran = best(lambda: by_plugin(question, x, where), where, given.runs)
    except Exception as error:
        # whatever it is, for lack of memory say: the other questions go on
        text = f"{type(error).__name__}: {str(error)[:300]}"
        print(f"{'–':>11}  {text}")
        return record | {"error": text}
    record |= {"rows": ours.rows, "seconds": ran.seconds, "peak_bytes": ran.peak}
    record["totals"] = agreed = has_totals(ours, question.totals, totals)
    memory = f"{format_bytes(ran.peak):>12}" if where.gpu else ""
    print(f"{ran.seconds:9.3f} s{memory}", end="", flush=True)
    wrong = "" if agreed in (True, None) else "  other TOTALS than those of the rows"
    if given.no_stock:
        print(f"    {ours.rows:,} rows{wrong}")
        return record
    try:
        theirs, stock = best(lambda: by_stock(question, x, where, given.limit), where, given.runs)
    except TimeoutError:
        record["stock"] = f"more than {given.limit:g} s"
    except Exception as error:
        # whatever stock Dask refuses or has no memory for: the other questions go on
        record["stock"] = f"{type(error).__name__}: {str(error)[:80]}"
    if "stock" in record:
        print(f"{'–':>11}{'–':>8}  stock Dask: {record['stock']}{wrong}")
        return record
    text = agreement(ours, theirs)
    print(f"{stock.seconds:9.3f} s{stock.seconds / ran.seconds:7.1f}x  {text}{wrong}")
    return record | {"stock_seconds": stock.seconds, "answers": text}


def has_totals(answer: Answer, columns: tuple[str, ...], totals: Any) -> bool | None:
    """Whether sums of an answer's first columns are those of all rows; None where none is."""
    if not columns:
        return None
    sums = answer.values if answer.keys is None else answer.values.sum(axis=0)
    return np.allclose(sums[: len(columns)], [totals[c] for c in columns], rtol=TOLERANCE)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, help="1e7, on a GPU 1e9, unless given")
    parser.add_argument("--cpu", action="store_true", help="pandas, also where there is a GPU")
    parser.add_argument("--runs", type=int, default=1, help="of each question; the best counts")
    parser.add_argument("--questions", default=",".join(QUESTIONS), help="as in q1,q5")
    parser.add_argument("--no-stock", action="store_true", help="with the plugin only")
    parser.add_argument("--limit", type=float, help="seconds that stock Dask gets, on a GPU")
    given = parser.parse_args()
    given.questions = given.questions.split(",")
    unknown = [name for name in given.questions if name not in QUESTIONS]
    if unknown:
        parser.error(f"no question {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    if given.runs < 1 or (given.rows is not None and given.rows < 1):
        parser.error("--rows and --runs are at least 1")
    return given


def main(note: Callable[[int, dict[str, Any]], None] | None = None) -> None:
    """Ask the questions; ``note`` gets the number of rows and the record of each."""
    given = options()
    dask_gpuagg.disable()
    gpu = not given.cpu and machine.without_gpu() is None
    rows = int(given.rows or (1e9 if gpu else 1e7))
    on = "workers on GPUs" if gpu else f"{os.cpu_count()} cores, no GPU used"
    print(f"dask_gpuagg {dask_gpuagg.__version__}, dask {dask.__version__}, {on}", flush=True)
    records = []
    with place(gpu) as where:
        print("each question once on few rows, which compiles what it needs ...", flush=True)
        few = where.ready(table(200_000, gpu))
        for name in given.questions:
            # what fails here will fail again, and be reported
            with contextlib.suppress(Exception):
                by_plugin(QUESTIONS[name], few, where)
        print(f"making {rows:,} rows ...", flush=True)
        x = where.ready(table(rows, gpu))
        sums = x[["v1", "v2", "v3"]].sum().compute()
        totals = dict(zip(("v1", "v2", "v3"), _floats(sums), strict=True)) | {"rows": rows}
        memory = f"{'memory':>12}" if gpu else ""
        print(f"\n{'':32}{'plugin':>11}{memory}{'stock Dask':>11}{'ratio':>8}  answers")
        for name in given.questions:
            records.append(show(name, x, where, given, totals))
            if note is not None:
                note(rows, records[-1])
    if not all(is_right(record) for record in records):
        sys.exit("Not every question was answered, or the two arms do not agree.")


def is_right(record: dict[str, Any]) -> bool:
    """Whether a question was answered, and as by stock Dask."""
    differs = record.get("answers", "").startswith("DIFFER")
    return not ("error" in record or differs or record["totals"] is False)


if __name__ == "__main__":
    main()
