"""TPC-H's 22 queries, whole, by stock Dask and by the plugin, on one machine.

``python -m benchmarks.tpch --scale 0.5``. The arms run in one process on the same Parquet files, in
turns, and read them in every run; per query, the median over rounds of stock time divided by plugin
time, beside the same of stock Dask and itself. ``README.md`` says how to read it. The tables are
made once by ``tpchgen-cli``, and kept.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import arms, machine
from benchmarks.queries import Query
from benchmarks.report import write
from benchmarks.tpch_queries import QUERIES, WITHOUT_GROUPBY, Tables

OUT = Path("benchmarks/results/tpch.json")
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


def write_parquet(scale: float, parts: int, folder: Path) -> Path:
    """Return the folder of the tables at a scale, each in so many files, made if need be."""
    target = folder / f"tpch-sf{scale:g}-{parts}"
    if target.exists():
        return target
    # the tool lies beside the interpreter, which need not be on the PATH
    tool = shutil.which("tpchgen-cli", path=sysconfig.get_path("scripts"))
    tool = tool or shutil.which("tpchgen-cli")
    if tool is None:
        raise FileNotFoundError("tpchgen-cli is missing: pip install 'dask-gpuagg[examples]'")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # under its name only when it is whole
        unfinished = Path(scratch) / target.name
        command = [tool, "parquet", "--scale-factor", f"{scale:g}", "--parts", str(parts)]
        subprocess.run([*command, "--output-dir", str(unfinished), "--quiet"], check=True)
        for file in unfinished.glob("*/*.parquet"):
            _without_views(file)
        unfinished.rename(target)
    return target


def _without_views(file: Path) -> None:
    """Write a file again with plain strings: Arrow compares and filters no views of strings."""
    table = pq.read_table(file)
    fields = [
        field.with_type(pa.string()) if pa.types.is_string_view(field.type) else field
        for field in table.schema
    ]
    pq.write_table(table.cast(pa.schema(fields)), file)


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
    if name in WITHOUT_GROUPBY:
        return Query(name, title, build, "stock", target=None)
    return Query(name, title, build)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the benchmark and return its results, written to ``options.out`` after every query."""
    arms.prepare(options.arms)
    folder = write_parquet(options.scale, options.parts, options.data)
    tables = read(folder, options.scale)
    measured: dict[str, Any] = {}
    results: dict[str, Any] = {
        "schema": 1,
        **machine.provenance(),
        "arms": list(options.arms),
        "data": {
            "name": f"TPC-H SF {options.scale:g}, lineitem of about",
            "scale": options.scale,
            "rows": int(LINES * options.scale),
            "partitions": options.parts,
        },
        "repeats": options.repeats,
        "schedulers": {
            "threads": {
                "title": f"threads: {options.threads} threads in one process, reading included",
                "queries": measured,
            }
        },
    }
    with dask.config.set(scheduler="threads", num_workers=options.threads):
        for name in options.queries:
            one = query(name)
            print(f"{name}: {one.title}", file=sys.stderr, flush=True)
            again = arms.PLUGIN in options.arms
            measured[name] = arms.measure(one, tables, options, again)
            write(results, options.out)
    return results


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tpch", description=__doc__)
    arms.add_arguments(parser, 11, 180.0, OUT)
    parser.add_argument("--scale", type=float, default=0.5, help="TPC-H's scale factor")
    parser.add_argument("--data", type=Path, default=Path("data"), help="where Parquet is kept")
    parser.add_argument("--parts", type=int, default=8, help="files of a table")
    parser.add_argument("--queries", type=arms.list_of(tuple(QUERIES)), default=tuple(QUERIES))
    return arms.parsed(parser, argv, OUT, "tpch-quick.json", scale=0.01, repeats=1)


if __name__ == "__main__":
    arms.run_and_print(parse(), run)
