"""TPC-H's 22 queries, whole, by stock Dask and by the plugin, on one machine.

``python -m benchmarks.tpch --scale 0.5``. The arms run in one process on the same Parquet files, in
turns, and read them in every run; per query, the median over rounds of stock time divided by plugin
time, beside the same of stock Dask and itself. ``README.md`` says how to read it. The tables are
made once by ``tpchgen-cli``, and kept. With ``--engine device`` dask-cuDF runs on one GPU, shuffles
by tasks, and reads money as floats, and the file says where the time of stock Dask's tasks goes;
Polars' GPU engine runs the queries of ``tpch_polars`` after it, on the same files.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import shutil
import statistics
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import arms, machine, tpch_polars, tpch_queries
from benchmarks.arms import Query
from benchmarks.end_to_end_cluster import DEVICE, HOST, Session
from benchmarks.report import write
from benchmarks.tpch_queries import QUERIES, WITHOUT_GROUPBY, Tables

OUT = {
    HOST: Path("benchmarks/results/tpch.json"),
    DEVICE: Path("benchmarks/results/nvidia-h200/tpch.json"),
}
# kinds of tasks, by parts of the names of stock Dask's
KINDS = {
    "reading": ("read", "parquet", "astype"),
    "joins": ("merge", "join", "shuffle", "partition", "barrier", "transfer", "concat"),
    "group-bys": ("group", "agg", "chunk", "tree"),
}
LINES = 6_000_000
"""About so many rows has the largest table at scale 1."""
MONEY = {
    "customer": ["c_acctbal"],
    "lineitem": ["l_quantity", "l_extendedprice", "l_discount", "l_tax"],
    "nation": [],
    "orders": ["o_totalprice"],
    "part": ["p_retailprice"],
    "partsupp": ["ps_supplycost"],
    "region": [],
    "supplier": ["s_acctbal"],
}
"""The tables, and their columns of decimals."""


def write_parquet(scale: float, parts: int, folder: Path, plain: bool = False) -> Path:
    """Return the folder of the tables at a scale, each in so many files, made if need be.

    ``plain`` ones have floats for decimals and timestamps for dates, as cuDF computes with them.
    """
    target = folder / f"tpch-sf{scale:g}-{parts}{'-plain' * plain}"
    if target.exists():
        return target
    # the tool lies beside the interpreter, which need not be on the PATH
    tool = shutil.which("tpchgen-cli", path=sysconfig.get_path("scripts"))
    tool = tool or shutil.which("tpchgen-cli")
    if tool is None:
        raise FileNotFoundError("tpchgen-cli is missing: pip install 'dask-gpuagg[examples]'")
    with machine.example("data").whole(target) as unfinished:
        command = [tool, "parquet", "--scale-factor", f"{scale:g}", "--parts", str(parts)]
        subprocess.run([*command, "--output-dir", str(unfinished), "--quiet"], check=True)
        files = list(unfinished.glob("*/*.parquet"))
        with concurrent.futures.ProcessPoolExecutor() as pool:
            list(pool.map(functools.partial(_rewrite, plain=plain), files))
    return target


def _rewrite(file: Path, plain: bool) -> None:
    """Write a file again with plain strings: Arrow compares and filters no views of strings."""
    table = pq.read_table(file)
    fields = [field.with_type(_type_of(field.type, plain)) for field in table.schema]
    pq.write_table(table.cast(pa.schema(fields)), file)


def _type_of(kind: pa.DataType, plain: bool) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    if plain and pa.types.is_decimal(kind):
        return pa.float64()
    return pa.timestamp("ms") if plain and pa.types.is_date(kind) else kind


def read(folder: Path, scale: float, filesystem: str = "fsspec", decimals: bool = False) -> Tables:
    """Return the tables as Dask reads them, money as floats unless ``decimals`` is given.

    With "arrow" Dask's metadata promises ``object`` for dates and decimals; partitions have Arrow's
    types. Arrow has 38 digits for a decimal, fewer than products of three ask for; TPC-H allows any
    numeric type that keeps the answers in its tolerance.
    """
    tables = {}
    for name, money in MONEY.items():
        frame = dd.read_parquet(folder / name, filesystem=filesystem)
        tables[name] = frame if decimals else frame.astype(dict.fromkeys(money, "float64"))
    return Tables(scale, **tables)


def query(name: str) -> Query:
    """Return a query as the benchmark's tables know it."""
    build = QUERIES[name]
    title = (build.__doc__ or "").partition("\n")[0]
    return Query(name, title, build, "stock" if name in WITHOUT_GROUPBY else "plan")


def read_plain(folder: Path, scale: float) -> Tables:
    """Return the tables as dask-cuDF reads them."""
    import dask_cudf

    return Tables(scale, **{name: dask_cudf.read_parquet(folder / name) for name in MONEY})


def shares(one: Query, tables: Tables) -> dict[str, float]:
    """Return the shares of stock Dask's tasks in their time, by kind; none is fused with others."""
    from distributed import get_task_stream

    with get_task_stream() as stream:
        one.build(tables).optimize(fuse=False).compute(optimize_graph=False)
    times = [
        (str(task["key"]), step["stop"] - step["start"])
        for task in stream.data
        for step in task["startstops"]
        if step["action"] == "compute"
    ]
    seconds: Counter[str] = Counter()
    for key, taken in times:
        name = key.lower()
        kind = next((k for k, parts in KINDS.items() if any(p in name for p in parts)), "others")
        seconds[kind] += taken
    total = sum(seconds.values()) or 1.0
    return {kind: round(taken / total, 3) for kind, taken in seconds.most_common()}


@contextlib.contextmanager
def session(options: argparse.Namespace, folder: Path) -> Iterator[Tables]:
    """Yield the tables in a folder while a scheduler is set."""
    if options.engine == HOST:
        with dask.config.set(scheduler="threads", num_workers=options.threads):
            yield read(folder, options.scale, decimals=options.decimals)
        return
    # cuDF compares no dates of Python
    tpch_queries.date = lambda y, m, d: np.datetime64(f"{y:04d}-{m:02d}-{d:02d}", "ms")  # type: ignore[assignment, attr-defined, return-value]
    with (
        Session(DEVICE, 1, "tcp", options.pool),
        dask.config.set({"dataframe.shuffle.method": "tasks"}),
    ):
        yield read_plain(folder, options.scale)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark and return its results, written to ``options.out`` after every query."""
    arms.prepare(options.arms)
    on_gpu = options.engine == DEVICE
    measured: dict[str, Any] = {}
    title = f"threads: {options.threads} threads in one process, reading included"
    if on_gpu:
        title = "one worker on one GPU, shuffles by tasks, reading included"
    data = {
        "scale": options.scale,
        "rows": int(LINES * options.scale),
        "partitions": options.parts,
        "decimals": options.decimals,
    }
    results = arms.results_of(options, data)
    scheduler = {"title": title, "queries": measured}
    results["schedulers"]["gpu" if on_gpu else "threads"] = scheduler
    folder = write_parquet(options.scale, options.parts, options.data, plain=on_gpu)
    peers = tpch_polars.queries(folder) if on_gpu and tpch_polars.is_installed() else {}
    with session(options, folder) as tables:
        for name in options.queries:
            one = query(name)
            print(f"{name}: {one.title}", file=sys.stderr, flush=True)
            again = arms.PLUGIN in options.arms and options.engine == HOST
            measured[name] = arms.measure(one, tables, options, again)
            if on_gpu and measured[name]["ratio"] is not None:
                measured[name]["shares"] = shares(one, tables)
            if name in peers:
                measured[name]["cudf_polars"] = peer_of(peers[name], options.repeats)
            write(results, options.out)
    return results


def peer_of(call: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """Seconds of a query by Polars' GPU engine."""
    (timed,) = arms.rounds(("",), lambda _: arms.timed(call), 1 + repeats, lambda: False)
    assert timed.error is None, timed.error
    cold, *warm = timed.wall
    return {"cold": cold, "warm": warm, "median": statistics.median(warm)}


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = machine.arguments("tpch", __doc__)
    arms.add_arguments(parser, 11, 180.0)
    parser.add_argument("--engine", choices=(HOST, DEVICE), default=HOST)
    parser.add_argument("--decimals", action="store_true", help="money as decimals, on the host")
    parser.add_argument("--pool", default="60GB", help="device memory of the worker's RMM pool")
    parser.add_argument("--scale", type=float, default=0.5, help="TPC-H's scale factor")
    parser.add_argument("--data", type=Path, default=Path("data"), help="where Parquet is kept")
    parser.add_argument("--parts", type=int, default=8, help="files of a table")
    parser.add_argument("--queries", type=arms.list_of(tuple(QUERIES)), default=tuple(QUERIES))
    options = arms.parsed(parser, argv, OUT[HOST], "tpch-quick.json", scale=0.01, repeats=1)
    if options.out == OUT[HOST]:
        options.out = OUT[options.engine]
    return options


if __name__ == "__main__":
    arms.run_and_print(parse(), run)
