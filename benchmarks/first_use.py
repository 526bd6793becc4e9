"""What the first call of a query costs, beside stock dask-cudf's, and how long kernels compile.

``python -m benchmarks.first_use`` measures three things. Whole queries, each in a process of its
own (``benchmarks.first_queries``): the first call with an empty kernel cache and with a filled one,
and a later one. How long the kernels of a common query take to compile, side by side
(``benchmarks.first_compiling``). And, where ``--parts`` names ``files``, whole queries from Parquet
files on a cluster (``benchmarks.first_files``). The file is written after every query.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks import first_compiling, first_files, first_queries
from benchmarks.machine import commit, provenance
from benchmarks.report import write

PARTS = ("compiling", "queries")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="of these and files, by commas")
    parser.add_argument("--rows", type=float, default=first_compiling.ROWS, help="of what compiles")
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=Path("first_use.json"))
    args = parser.parse_args()
    parts = args.parts.split(",")
    began = time.perf_counter()
    report: dict[str, Any] = {**provenance(), "commit": args.commit or commit()}

    def keep(part: str, record: dict[str, Any], said: str) -> None:
        report.setdefault(part, []).append(record)
        write(report, args.out)
        print(f"{time.perf_counter() - began:6.1f} s: {said}", flush=True)

    if "compiling" in parts:
        report["rows"] = int(args.rows)
        for record in first_compiling.records(int(args.rows)):
            if "query" not in record:
                report |= {name: record[name] for name in ("gpu", "driver", "cudf", "kernels")}
                continue
            keep("compiling", record, first_compiling.line(record))
    if "queries" in parts:
        for record in first_queries.measured():
            keep("queries", record, first_queries.line(record))
    if "files" in parts:
        for record in first_files.measured():
            keep("files", record, first_files.line(record))


if __name__ == "__main__":
    main()
