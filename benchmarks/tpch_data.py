"""TPC-H's tables, made once by ``tpchgen-cli`` and kept as Parquet."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import dask.dataframe as dd
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.tpch_queries import Tables

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
