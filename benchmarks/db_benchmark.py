"""The ten questions of db-benchmark as ``examples/db_benchmark.py`` asks them, to a results file.

``python -m benchmarks.db_benchmark --limit 20`` takes the options of the example, ``--out`` and
``--commit``. The file is written after every question.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from distributed import get_client

from benchmarks import gpu, machine
from benchmarks.report import write


def main() -> None:
    """Run the example, and write what it measures."""
    parser = machine.arguments("db_benchmark", __doc__, Path("db_benchmark.json"))
    options, rest = parser.parse_known_args()
    example = machine.example("db_benchmark")
    sys.argv[1:] = rest
    report: dict[str, Any] = machine.provenance(options.commit) | {"arguments": rest}
    queries: list[dict[str, Any]] = []

    def note(rows: int, record: dict[str, Any]) -> None:
        queries.append(record)
        if "--cpu" not in rest:
            report["gpus"] = sorted(get_client().run(gpu.name).values())
        write(report | {"rows": rows, "queries": queries}, options.out)

    example.main(note)


if __name__ == "__main__":
    main()
