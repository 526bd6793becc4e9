"""Plot a result of ``benchmarks/kernels.py``: time against groups, log-log.

``python -m benchmarks.plots benchmarks/results/nvidia-h200/kernels.json`` writes it beside that.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

# ms to read the columns of the queries once, by the copy bandwidth measured on an H200 (4.3 TB/s)
FLOOR_BYTES_MS = 4.3e9
WIDTHS = {"sum": 16, "five": 20}


def main() -> None:
    """Read the result, write the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    args = parser.parse_args()
    report = json.loads(args.result.read_text())
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for axis, (query, width) in zip(axes, WIDTHS.items(), strict=True):
        cells = [cell for cell in report["cells"] if cell["query"] == query]
        groups = [cell["groups"] for cell in cells]
        axis.loglog(groups, [c["device_ms"] for c in cells], "o-", label="ours, device time")
        axis.loglog(groups, [c["median_ms"]["ours"] for c in cells], "o:", label="ours, wall")
        axis.loglog(
            groups, [c["median_ms"]["cudf columns"] for c in cells], "s-", label="cuDF, wall"
        )
        floor = report["rows"] * width / FLOOR_BYTES_MS
        axis.axhline(floor, color="grey", linestyle="--", label="memory floor")
        axis.set_title({"sum": "sum of one column", "five": "five aggregations"}[query])
        axis.set_xlabel("groups")
        axis.grid(True, which="major", alpha=0.3)
    axes[0].set_ylabel(f"ms for {report['rows']:,} rows")
    axes[0].legend()
    figure.suptitle(f"{report['gpu']}, {report['key']} keys, cuDF {report['cudf']}")
    figure.tight_layout()
    figure.savefig(args.result.with_suffix(".svg"))


if __name__ == "__main__":
    main()
