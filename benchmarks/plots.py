"""Plot results: ``kernels``, ``families``, ``end_to_end``, ``host``, ``host_peers``.

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
import pandas as pd

from benchmarks.choice import Case, cases, expected_ms, is_modelled
from dask_gpuagg.cuda.choice import choose
from dask_gpuagg.cuda.choice.costs import shipped

# ms to read the columns of the queries once, by the copy bandwidth measured on an H200 (4.3 TB/s)
FLOOR_BYTES_MS = 4.3e9
WIDTHS = {"sum": 16, "five": 20}
TITLES = {"sum": "sum of one column", "five": "five aggregations"}
# arms of benchmarks.end_to_end and of benchmarks.pipelines: what a reader knows them by, a colour
BARS = {
    "stock": ("stock Dask, as it is", "#c9c9c9"),
    "stock-tuned": ("stock Dask, best of six settings", "#8a8a8a"),
    "ours": ("dask-gpuagg", "#1f77b4"),
    "floor": ("floor: kernels, or reading, alone", "#111111"),
    "polars": ("Polars", "#e6a04b"),
    "duckdb": ("DuckDB", "#d8c545"),
}


def against_cudf(report: dict[str, Any]) -> plt.Figure:
    """Ours and cuDF over the number of groups."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    cells = pd.json_normalize(report["cells"]).set_index("groups")
    lines = {
        "device_ms": "ours, device time",
        "median_ms.ours": "ours, wall",
        "median_ms.cudf columns": "cuDF, wall",
    }
    for axis, query in zip(axes, WIDTHS, strict=True):
        times = cells.loc[cells["query"] == query, list(lines)].rename(columns=lines)
        times.plot(ax=axis, loglog=True, style=["o-", "o:", "s-"], legend=False)
        finish(axis, query, report)
    axes[0].legend()
    figure.suptitle(f"{report['gpu']}, int64 keys, cuDF {report['cudf']}")
    figure.tight_layout()
    return figure


def every_kernel(report: dict[str, Any], found: Sequence[Case]) -> plt.Figure:
    """Every kernel over the groups, of dense keys; what the model expects; which one is chosen.

    The expectation is that of the constants that ship, whichever the result was made with.
    """
    figure, axes = plt.subplots(1, 2, figsize=(13, 6), sharey=True)
    for axis, (query, number) in zip(axes, {"sum": 1, "five": 5}.items(), strict=True):
        times, expected = {}, {}
        for cell, case in zip(report["cells"], found, strict=True):
            if (cell["keys"], cell["aggregations"]) == ("dense", number):
                runs = cell["kernels"].items()
                times[case.made] = {name: run["device_ms"] for name, run in runs}
                expected[case.made] = {
                    name: expected_ms(case, measured, shipped(case.device).costs)
                    for name, measured in case.kernels.items()
                    if is_modelled(measured.decision)
                }
        measured_ms, expected_of = (pd.DataFrame(part).T for part in (times, expected))
        for i, name in enumerate(choose.KERNELS):
            for frame, style in ((measured_ms, "o-"), (expected_of, "--")):
                if name in frame:
                    shown = name if frame is measured_ms else "_"
                    line = frame[name].dropna()
                    line.plot(ax=axis, style=style, color=f"C{i}", markersize=4, label=shown)
        chosen = {"markersize": 11, "markerfacecolor": "none", "color": "black"}
        measured_ms["auto"].plot(ax=axis, loglog=True, style="o", label="chosen", **chosen)
        axis.plot([], [], "--", color="grey", label="expected by the model")
        finish(axis, query, report)
    axes[0].legend(ncols=2, fontsize="small")
    figure.suptitle(f"{report['gpu']}, dense int64 keys, device time")
    figure.tight_layout()
    return figure


def finish(axis: plt.Axes, query: str, report: dict[str, Any]) -> None:
    """Add floor, titles and grid."""
    read = report["rows"] * WIDTHS[query]
    axis.axhline(read / FLOOR_BYTES_MS, color="grey", linestyle=":", label="memory floor")
    axis.set(title=TITLES[query], xlabel="groups", ylabel=f"ms for {report['rows']:,} rows")
    axis.grid(True, which="major", alpha=0.3)


def end_to_end(report: dict[str, Any]) -> plt.Figure:
    """A bar for each arm of each query, a panel for each kind of input and cluster.

    Cells without stock Dask, or that a deadline ended, compare nothing and are left out.
    """
    panels: dict[str, list[dict[str, Any]]] = {}
    queries = ("sum", "five", "median")
    order = sorted(
        (cell for cell in report["cells"] if "stock-tuned" in cell["ratios"]),
        key=lambda cell: (cell["partitions"], queries.index(cell["query"]), cell["groups"]),
    )
    for cell in order:
        panels.setdefault(panel_of(cell), []).append(cell)
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(11, 4.2 * len(panels)), squeeze=False, layout="constrained"
    )
    for axis, (title, cells) in zip(axes[:, 0], panels.items(), strict=True):
        labels = [
            f"{c['query']}\n{c['groups']:,} groups\n{c['partitions']:,} partitions" for c in cells
        ]
        heights = [
            {name: arm.get("median_ms") or arm.get("first_ms") for name, arm in c["arms"].items()}
            for c in cells
        ]
        bars(axis, pd.DataFrame(heights, labels))
        for drawn in axis.containers:
            axis.bar_label(drawn, fmt=readable, fontsize=7, padding=2)
        axis.set(title=title, ylabel="ms")
    return figure


def panel_of(cell: dict[str, Any]) -> str:
    """Title of the panel of a cell."""
    of = "GPUs" if cell["engine"] == "device" else "worker processes"
    several = f"{cell['workers']} {of}, {cell['protocol']}"
    cluster = several if cell["workers"] > 1 else "one GPU" if of == "GPUs" else "one process"
    files = f"from {cell['partitions']} Parquet files"
    place = "in memory" if cell["input"] == "persisted" else files
    return f"{cell['rows']:,} rows {place}, {cluster}"


def host_peers(report: dict[str, Any]) -> plt.Figure:
    """A bar for each library of each query, from Parquet on the CPU."""
    figure, axis = plt.subplots(figsize=(11, 4.2), layout="constrained")
    titles = [cell["title"].replace(" by ", "\nby ") for cell in report["cells"]]
    bars(axis, pd.DataFrame([cell["median"] for cell in report["cells"]], titles))
    cores = report["machine"]["usable_cores"]
    files = report.get("files") or report["partitions"]
    title = f"{report['rows']:,} rows from {files} Parquet files, {cores} cores"
    axis.set(title=title, ylabel="seconds")
    return figure


def bars(axis: plt.Axes, heights: pd.DataFrame) -> None:
    """A bar for each arm, a column, of each row.

    They begin at zero, so that lengths compare, unless the least would not be seen.
    """
    heights = heights[[name for name in BARS if name in heights]]
    texts, colours = zip(*(BARS[name] for name in heights), strict=True)
    wide = heights.max(axis=None) > 50 * heights.min(axis=None)
    heights.set_axis(texts, axis=1).plot.bar(
        ax=axis, color=list(colours), width=0.84, logy=bool(wide), rot=0, fontsize=8, legend=False
    )
    axis.set_ylim(top=(1.6 if wide else 1.15) * heights.max(axis=None))
    if not axis.figure.legends:
        axis.figure.legend(loc="outside lower center", ncols=len(texts))
    axis.spines[["top", "right"]].set_visible(False)


def host(report: dict[str, Any]) -> plt.Figure:
    """How many times longer stock Dask takes, a bar for each query and scheduler."""
    figure, axis = plt.subplots(figsize=(8, 4.4), layout="constrained")
    ratios = {
        scheduler["title"].split(", memory")[0]: {
            query["title"]: query["ratio"] for query in scheduler["queries"].values()
        }
        for scheduler in report["schedulers"].values()
    }
    colours = ["#1f77b4", "#9ecae1"]
    pd.DataFrame(ratios).plot.barh(ax=axis, color=colours, width=0.8, fontsize=8, legend=False)
    for drawn in axis.containers:
        axis.bar_label(drawn, fmt="%.1f", fontsize=7, padding=2)
    axis.invert_yaxis()
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xlabel("how many times longer stock Dask takes")
    cores = report["machine"]["usable_cores"]
    axis.set_title(f"{report['data']['rows']:,} rows in memory, {cores} cores", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8, loc="outside lower center", ncols=len(ratios))
    return figure


def readable(ms: float) -> str:
    """Milliseconds as they stand over a bar; nothing where an arm has none."""
    if not ms:
        return ""
    if ms >= 1_000:
        return f"{ms / 1e3:.{0 if ms >= 10_000 else 1}f} s"
    return f"{ms:.{0 if ms >= 10 else 1}f} ms"


def main() -> None:
    """Read the result, write the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    args = parser.parse_args()
    # the same file for the same result
    mpl.rcParams["svg.hashsalt"] = "dask-gpuagg"
    report = json.loads(args.result.read_text())
    if "schedulers" in report:
        figure = host(report)
    elif "runs" in report:
        figure = end_to_end(report)
    elif "files" in report or "engine" in report:
        figure = host_peers(report)
    elif "kernels" in report["cells"][0]:
        figure = every_kernel(report, cases(args.result))
    else:
        figure = against_cudf(report)
    figure.savefig(args.result.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
