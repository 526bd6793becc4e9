"""Plot a result, log-log: of ``benchmarks.kernels`` or ``benchmarks.families``.

``python -m benchmarks.plots benchmarks/results/nvidia-h200/families.json`` writes it beside that.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

from benchmarks.choice import Case, cases, expected_ms
from dask_gpuagg.cuda import geometry
from dask_gpuagg.cuda.costs import shipped

# ms to read the columns of the queries once, by the copy bandwidth measured on an H200 (4.3 TB/s)
FLOOR_BYTES_MS = 4.3e9
WIDTHS = {"sum": 16, "five": 20}
TITLES = {"sum": "sum of one column", "five": "five aggregations"}


def against_cudf(report: dict[str, Any]) -> plt.Figure:
    """Ours and cuDF over the number of groups."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for axis, (query, width) in zip(axes, WIDTHS.items(), strict=True):
        cells = [cell for cell in report["cells"] if cell["query"] == query]
        groups = [cell["groups"] for cell in cells]
        axis.loglog(groups, [c["device_ms"] for c in cells], "o-", label="ours, device time")
        axis.loglog(groups, [c["median_ms"]["ours"] for c in cells], "o:", label="ours, wall")
        axis.loglog(
            groups, [c["median_ms"]["cudf columns"] for c in cells], "s-", label="cuDF, wall"
        )
        finish(axis, query, report["rows"] * width)
    axes[0].legend()
    figure.suptitle(f"{report['gpu']}, {report['key']} keys, cuDF {report['cudf']}")
    return label(figure, report)


def every_kernel(report: dict[str, Any], found: Sequence[Case], keys: str) -> plt.Figure:
    """Every kernel over the number of groups, what the model expects, and which one is chosen.

    The expectation is that of the constants that ship, whichever the result was made with.
    """
    expected = {
        (case.label, name): expected_ms(case, made, shipped(case.device).costs)
        for case in found
        for name, made in case.kernels.items()
        if made.modelled
    }
    figure, axes = plt.subplots(1, 2, figsize=(13, 6), sharey=True)
    for axis, (query, width) in zip(axes, WIDTHS.items(), strict=True):
        number = {"sum": 1, "five": 5}[query]
        cells = [c for c in report["cells"] if (c["keys"], c["aggregations"]) == (keys, number)]
        for i, name in enumerate(geometry.KERNELS):
            ran = [(c["made"], c["kernels"][name]) for c in cells if name in c["kernels"]]
            if not ran:
                continue
            colour = f"C{i}"
            axis.loglog(
                [groups for groups, _ in ran],
                [kernel["device_ms"] for _, kernel in ran],
                "o-",
                color=colour,
                markersize=4,
                label=name,
            )
            labels = [f"{keys} {c['groups']:,} {c['aggregations']}" for c in cells]
            told = [
                (cell["made"], expected[label, name])
                for cell, label in zip(cells, labels, strict=True)
                if (label, name) in expected
            ]
            if told:
                axis.loglog(*zip(*told, strict=True), "--", color=colour)
        auto = [(c["made"], c["kernels"]["auto"]) for c in cells if "auto" in c["kernels"]]
        axis.loglog(
            [groups for groups, _ in auto],
            [kernel["device_ms"] for _, kernel in auto],
            "o",
            markersize=11,
            markerfacecolor="none",
            color="black",
            label="chosen",
        )
        axis.plot([], [], "--", color="grey", label="expected by the model")
        finish(axis, query, report["rows"] * width)
    axes[0].legend(ncols=2, fontsize="small")
    figure.suptitle(f"{report['gpu']}, {keys} int64 keys, device time")
    return label(figure, report)


def finish(axis: plt.Axes, query: str, read: int) -> None:
    """What the axes of all plots have."""
    axis.axhline(read / FLOOR_BYTES_MS, color="grey", linestyle=":", label="memory floor")
    axis.set_title(TITLES[query])
    axis.set_xlabel("groups")
    axis.grid(True, which="major", alpha=0.3)


def label(figure: plt.Figure, report: dict[str, Any]) -> plt.Figure:
    """What all figures have."""
    figure.axes[0].set_ylabel(f"ms for {report['rows']:,} rows")
    figure.tight_layout()
    return figure


def main() -> None:
    """Read the result, write the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--keys", default="dense", help="of a result of benchmarks.families")
    args = parser.parse_args()
    # the same file for the same result
    mpl.rcParams["svg.hashsalt"] = "dask-gpuagg"
    report = json.loads(args.result.read_text())
    of_families = "kernels" in report["cells"][0]
    if of_families:
        figure = every_kernel(report, cases(args.result), args.keys)
    else:
        figure = against_cudf(report)
    figure.savefig(args.result.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
