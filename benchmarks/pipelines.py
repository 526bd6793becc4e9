"""What users write below a group-by: filters, derived columns, lookups, a transform.

``python -m benchmarks.pipelines`` runs queries on Parquet files with the host engine, beside stock
Dask, Polars and DuckDB; with ``--engine device`` on rows persisted in one GPU, beside dask-cuDF
with one output. Each query's time is divided by the bare query's too. With ``--group-bys`` they are
group-bys alone. The arms alternate; the CPU's seconds vary less where other programs run too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd

from benchmarks import arms, gpu, machine, report
from benchmarks.compare import compare
from benchmarks.end_to_end_cluster import DEVICE, HOST, Session, libraries

OURS, STOCK, POLARS, DUCKDB = "ours", "stock", "polars", "duckdb"
OUT = {
    HOST: Path("benchmarks/results/pipelines.json"),
    DEVICE: Path("benchmarks/results/nvidia-h200/pipelines.json"),
}
GROUP_BYS_OUT = Path("benchmarks/results/host_peers.json")
BARE, FIVE = "bare", {"v": ["sum", "count", "min", "max"], "w": ["mean"]}
SQL_FIVE = "sum(v), count(v), min(v), max(v), avg(w)"


def by(frame: Any, key: Any, spec: dict[str, Any], **tuning: Any) -> Any:
    """A group-by."""
    return frame.groupby(key).agg(spec, **tuning)


def product(frame: Any) -> Any:
    """The product of Q1 of TPC-H, roughly."""
    return frame.assign(z=frame.v * (1 - frame.w))


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A query: on a Dask collection, with a table to be joined, and in SQL; ``{t}`` is the rows.

    One without SQL is run by Dask alone.
    """

    name: str
    title: str
    build: Callable[..., Any]
    sql: str = ""


V: dict[str, Any] = {"v": ["sum"]}
Z: dict[str, Any] = {"z": ["sum"]}
PIPELINES = (
    Pipeline(BARE, "sum of v by k", lambda d, o, **t: by(d, "k", V, **t),
             "select k, sum(v) from {t} group by k"),
    Pipeline("filter_half", "d[d.w > .5], sum by k",
             lambda d, o, **t: by(d[d.w > 0.5], "k", V, **t),
             "select k, sum(v) from {t} where w > .5 group by k"),
    Pipeline("filter_few", "d[d.v < .01], five by k",
             lambda d, o, **t: by(d[d.v < 0.01], "k", FIVE, **t),
             f"select k, {SQL_FIVE} from {{t}} where v < .01 group by k"),
    Pipeline("filter_many", "d[d.w > .5], five by m",
             lambda d, o, **t: by(d[d.w > 0.5], "m", FIVE, **t),
             f"select m, {SQL_FIVE} from {{t}} where w > .5 group by m"),
    Pipeline("product", "d[d.w <= .95], z = v * (1 - w), sum z, mean v by k",
             lambda d, o, **t: by(product(d[d.w <= 0.95]), "k", Z | {"v": ["mean"]}, **t),
             "select k, sum(v * (1 - w)), avg(v) from {t} where w <= .95 group by k"),
    Pipeline("product_text", "z = v * (1 - w), sum z by s",
             lambda d, o, **t: by(product(d), "s", Z, **t),
             "select s, sum(v * (1 - w)) from {t} group by s"),
    Pipeline("day", "sum of v by t.dt.floor('D')",
             lambda d, o, **t: by(d.assign(day=d.t.dt.floor("D")), "day", V, **t),
             "select date_trunc('day', t), sum(v) from {t} group by 1"),
    Pipeline("modulo", "sum of v by m % 100",
             lambda d, o, **t: by(d.assign(b=d.m % 100), "b", V, **t),
             "select m % 100, sum(v) from {t} group by 1"),
    Pipeline("where", "z = v.where(w > .9, 0), sum by k",
             lambda d, o, **t: by(d.assign(z=d.v.where(d.w > 0.9, 0)), "k", Z, **t),
             "select k, sum(case when w > .9 then v else 0 end) from {t} group by k"),
    Pipeline("lookup", "d.merge(dim, on='k') of 1,000 rows, sum by region",
             lambda d, o, **t: by(d.merge(o, on="k"), "region", V, **t),
             "select region, sum(v) from {t} join dim using (k) group by region"),
    Pipeline("transform_few", "transform('mean') of v by k, its sum",
             lambda d, o, **t: d.groupby("k").v.transform("mean").sum()),
    Pipeline("transform_many", "transform('mean') of v by m, its sum",
             lambda d, o, **t: d.groupby("m").v.transform("mean").sum()),
)  # fmt: skip
GROUP_BYS = (
    Pipeline("sum_few", "sum by 1,000 groups", lambda d, o: d.groupby("k").v.sum(),
             "select k, sum(v) from {t} group by k"),
    Pipeline("five_few", "five aggregations by 1,000", lambda d, o: by(d, "k", FIVE),
             f"select k, {SQL_FIVE} from {{t}} group by k"),
    Pipeline("five_many", "five aggregations by 1,000,000", lambda d, o: by(d, "m", FIVE),
             f"select m, {SQL_FIVE} from {{t}} group by m"),
    Pipeline("sum_most", "sum by 8,000,000", lambda d, o: d.groupby("most").v.sum(),
             "select most, sum(v) from {t} group by most"),
    Pipeline("sum_name", "sum by 100,000 strings", lambda d, o: d.groupby("name").v.sum(),
             "select name, sum(v) from {t} group by name"),
    Pipeline("two_keys", "mean and std by two keys",
             lambda d, o: by(d, ["s", "k"], {"v": ["mean"], "w": ["std"]}),
             "select s, k, avg(v), stddev(w) from {t} group by s, k"),
    Pipeline("median", "median by 1,000", lambda d, o: d.groupby("k").v.median(),
             "select k, median(v) from {t} group by k"),
    Pipeline("nunique", "distinct values by 1,000", lambda d, o: d.groupby("k").m.nunique(),
             "select k, count(distinct m) from {t} group by k"),
)  # fmt: skip


def draw(index: int, rows: int, engine: str) -> Any:
    """A partition: of ``k`` 1,000 values, of ``m`` a million, 200 texts ``s``, days of ``t``.

    On the host also ``most``, of 8 million values, and 100,000 texts ``name``.
    """
    xp, frames = libraries(engine)
    rng = xp.random.default_rng(index)
    number = "int64" if engine == HOST else "int32"
    texts = frames.Series([f"name {i}" for i in range(200)])
    seconds = frames.Series(rng.integers(0, 10**7, rows) * 1000)
    more: dict[str, Any] = {}
    if engine == HOST:
        more["most"] = rng.integers(0, 8_000_000, rows)
        more["name"] = "n" + frames.Series(rng.integers(0, 100_000, rows)).astype("str")
    return frames.DataFrame({
        "k": rng.integers(0, 1_000, rows, dtype=number),
        "m": rng.integers(0, 1_000_000, rows, dtype=number),
        "v": rng.random(rows),
        "w": rng.random(rows, dtype="float32"),
        "s": texts.take(rng.integers(0, 200, rows)).reset_index(drop=True),
        "t": seconds.astype("datetime64[ms]"),
    } | more)  # fmt: skip


def dimension(engine: str) -> Any:
    """The table that is joined: a region of twelve for each ``k``."""
    frames = libraries(engine)[1]
    keys = frames.Series(range(1000), dtype="int64" if engine == HOST else "int32")
    return frames.DataFrame({"k": keys, "region": [f"region {i % 12}" for i in range(1000)]})


@contextlib.contextmanager
def files(options: argparse.Namespace) -> Any:
    """Yield Dask's arguments of a query on Parquet files, and the arms of peers."""
    folder = options.data / f"pipelines_{options.rows}_{options.partitions}"
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(options.partitions):
        path = folder / f"{i:03d}.parquet"
        if not path.exists():
            draw(i, options.rows // options.partitions, HOST).to_parquet(path, index=False)
    dim, names = dimension(HOST), f"{folder}/*.parquet"
    there = [name for name in PEERS if importlib.util.find_spec(name)]
    peers = {name: PEERS[name](names, dim) for name in there}
    with dask.config.set(scheduler="threads", num_workers=options.threads):
        yield (lambda: (dd.read_parquet(names), dim)), lambda q: q.compute(), peers


def polars(names: str, dim: pd.DataFrame) -> Callable[[str], Any]:
    """Polars' streaming engine, by its SQL."""
    import polars as pl

    lookup = pl.from_pandas(dim).lazy()

    def run(sql: str) -> Any:
        context = pl.SQLContext(rows=pl.scan_parquet(names), dim=lookup)
        return context.execute(sql.format(t="rows")).collect(engine="streaming")

    return run


def duckdb(names: str, dim: pd.DataFrame) -> Callable[[str], Any]:
    """DuckDB, with as many threads as the machine has cores, to a table of its own.

    One thread would hand over the rows.
    """
    import duckdb as db

    connection = db.connect()
    connection.register("dim", dim)

    def run(sql: str) -> Any:
        text = sql.format(t=f"'{names}'")
        connection.execute(f"create or replace temp table answer as {text}")
        return connection.table("answer")

    return run


PEERS = {POLARS: polars, DUCKDB: duckdb}


@contextlib.contextmanager
def persisted(options: argparse.Namespace) -> Any:
    """Yield Dask's arguments of a query on rows in a GPU."""
    from distributed import wait

    with Session(DEVICE, 1, "tcp", options.pool) as session:
        rows = options.rows // options.partitions
        numbers = range(options.partitions)
        meta = session.client.submit(draw, 0, 2, DEVICE).result()
        frame = dd.from_map(draw, numbers, rows=rows, engine=DEVICE, meta=meta).persist()
        dim = dd.from_map(lambda _: dimension(DEVICE), [0], meta=dimension(DEVICE)).persist()
        wait([frame, dim])

        def run(query: Any) -> Any:
            result = query.persist()
            wait(result, timeout=options.limit)
            return result

        options.gpus = sorted(session.client.run(gpu.name).values())

        yield (lambda: (frame, dim)), run, {}


def calls_of(pipeline: Pipeline, session: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Calls that run a query, by arm."""
    import dask_gpuagg

    inputs, finish, peers = session
    # with its default dask-cuDF makes as many outputs as partitions
    tuning = {"split_out": 1, "split_every": 32} if options.engine == DEVICE else {}
    tuning = tuning if "transform" not in pipeline.name else {}

    def ours() -> Any:
        with dask_gpuagg.enabled():
            return finish(pipeline.build(*inputs()))

    calls: dict[str, Callable[[], Any]] = {
        OURS: ours,
        STOCK: lambda: finish(pipeline.build(*inputs(), **tuning)),
        **{name: partial(run, pipeline.sql) for name, run in peers.items() if pipeline.sql},
    }
    return {name: call for name, call in calls.items() if name in options.arms}


def frame_of(result: Any) -> pd.DataFrame:
    """An arm's answer as pandas' frame, its columns by their positions."""
    if hasattr(result, "df"):
        frame = result.df()
    else:
        frame = result.to_pandas() if hasattr(result, "to_pandas") else result.reset_index()
    frame.columns = pd.RangeIndex(frame.shape[1])
    return frame


def measure(
    calls: dict[str, Callable[[], Any]], options: argparse.Namespace, compares: bool
) -> dict[str, Any]:
    """Run one query in all arms, which alternate; answers of the first runs may be compared."""
    answers: dict[str, pd.DataFrame] = {}

    def run(name: str) -> arms.Run:
        done = arms.timed(calls[name])
        if compares and name not in answers and done.error is None:
            answers[name] = frame_of(done.result)
        return done

    timed = arms.rounds(list(calls), run, options.repeats + 1, lambda: False, shifted=False)
    later = [one for one in timed if len(one.wall) > 1]
    right = answers.get(OURS)

    def is_equal(one: pd.DataFrame) -> bool:
        # but for the rounding of float32 sums
        return right is not None and compare(one, right, relative=1e-4).equal

    return {
        "median": {one.name: statistics.median(one.wall[1:]) for one in later},
        "median_cpu": {one.name: statistics.median(one.cpu[1:]) for one in later},
        "first": {one.name: one.wall[0] for one in timed if one.wall},
        "seconds": {one.name: one.wall[1:] for one in timed},
        "equal": {name: is_equal(answer) for name, answer in answers.items()},
        "errors": {one.name: one.error for one in timed if one.error},
    }


def main() -> None:
    """Measure and write the results."""
    # Dask guesses the metadata of a transform
    warnings.filterwarnings("ignore")
    parser = machine.arguments("pipelines", __doc__)
    parser.add_argument("--engine", choices=(HOST, DEVICE), default=HOST)
    parser.add_argument("--group-bys", action="store_true", help="alone, on the host")
    parser.add_argument("--rows", type=machine.number, help="in all partitions or files together")
    parser.add_argument("--partitions", type=int, help="or files")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--arms", default=f"{OURS},{STOCK},{POLARS},{DUCKDB}")
    parser.add_argument("--queries", help="names, by commas; by default all")
    parser.add_argument("--pool", default="62GB", help="device memory of the worker's RMM pool")
    parser.add_argument("--limit", type=float, default=40, help="seconds of a run on a GPU")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.set_defaults(gpus=[])
    options = parser.parse_args()
    rows, partitions = (10**7, 8) if options.engine == HOST else (8 * 10**8, 32)
    queries: tuple[Pipeline, ...] = PIPELINES
    out = OUT[options.engine]
    if options.group_bys:
        rows, partitions, queries, out = 2 * 10**7, 16, GROUP_BYS, GROUP_BYS_OUT
    options.rows, options.partitions = options.rows or rows, options.partitions or partitions
    out, names = options.out or out, (options.queries or "").split(",")
    chosen = [query for query in queries if not options.queries or query.name in names]
    results: dict[str, Any] = machine.provenance(options.commit) | {
        "engine": options.engine,
        "rows": options.rows,
        "partitions": options.partitions,
        "cells": [],
    }
    with (files if options.engine == HOST else persisted)(options) as session:
        results |= {"gpus": options.gpus}
        for pipeline in chosen:
            calls = calls_of(pipeline, session, options)
            compares = bool(pipeline.sql) and options.engine == HOST
            cell: dict[str, Any] = {"name": pipeline.name, "title": pipeline.title}
            cell |= measure(calls, options, compares)
            bare = next((c for c in results["cells"] if c["name"] == BARE), cell)
            fastest = min((cell["median"][p] for p in PEERS if p in cell["median"]), default=None)
            if OURS in cell["median"]:
                ours = cell["median"][OURS]
                cell["to_bare"] = round(ours / bare["median"][OURS], 2)
                cell["to_best"] = None if fastest is None else round(ours / fastest, 2)
                if STOCK in cell["median"]:
                    cell["stock_to_ours"] = round(cell["median"][STOCK] / ours, 2)
            results["cells"].append(cell)
            report.write(results, out)
            shown = ("name", "median", "to_bare", "to_best", "stock_to_ours", "equal", "errors")
            print({name: cell.get(name) for name in shown}, flush=True)


if __name__ == "__main__":
    main()
