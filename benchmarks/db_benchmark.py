"""The ten questions of db-benchmark as ``examples/db_benchmark.py`` asks them, to a results file.

``python -m benchmarks.db_benchmark --limit 20`` takes the options of the example, ``--out`` and
``--commit``. The file is written after every question.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from distributed import get_client

from benchmarks import machine
from benchmarks.end_to_end import PACKAGES, gpu
from benchmarks.report import write


def main() -> None:
    """Run the example, and write what it measures."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--out", type=Path, default=Path("db_benchmark.json"))
    parser.add_argument("--commit", help="where the tree is no git checkout")
    options, rest = parser.parse_known_args()
    sys.path.insert(0, str(machine.ROOT / "examples"))
    example = importlib.import_module("db_benchmark")
    sys.argv[1:] = rest
    report: dict[str, Any] = machine.provenance() | {"arguments": rest}
    report["commit"] = options.commit or report["commit"]
    report["versions"] |= machine.installed(PACKAGES)
    queries: list[dict[str, Any]] = []

    def note(rows: int, record: dict[str, Any]) -> None:
        queries.append(record)
        if "--cpu" not in rest:
            report["gpus"] = sorted(get_client().run(gpu).values())
        write(report | {"rows": rows, "queries": queries}, options.out)

    example.main(note)


if __name__ == "__main__":
    main()
