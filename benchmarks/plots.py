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
import matplotlib.patches
import matplotlib.pyplot as plt

from benchmarks.choice import Case, cases, expected_ms, is_modelled
from dask_gpuagg.cuda.choice import choose
from dask_gpuagg.cuda.choice.costs import shipped

# ms to read the columns of the queries once, by the copy bandwidth measured on an H200 (4.3 TB/s)
FLOOR_BYTES_MS = 4.3e9
WIDTHS = {"sum": 16, "five": 20}
TITLES = {"sum": "sum of one column", "five": "five aggregations"}
# arms of benchmarks.end_to_end: what a reader knows them by, and a colour
BARS = {
    "stock-default": ("stock Dask, as it is", "#c9c9c9"),
    "stock-tuned": ("stock Dask, best of six settings", "#8a8a8a"),
    "ours": ("dask-gpuagg", "#1f77b4"),
    "floor": ("floor: kernels, or reading, alone", "#111111"),
    "polars": ("Polars", "#e6a04b"),
    "duckdb": ("DuckDB", "#d8c545"),
}


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
    figure.suptitle(f"{report['gpu']}, int64 keys, cuDF {report['cudf']}")
    return label(figure, report)


def every_kernel(report: dict[str, Any], found: Sequence[Case], keys: str) -> plt.Figure:
    """Every kernel over the number of groups, what the model expects, and which one is chosen.

    The expectation is that of the constants that ship, whichever the result was made with.
    """
    expected = {
        (case.label, name): expected_ms(case, made, shipped(case.device).costs)
        for case in found
        for name, made in case.kernels.items()
        if is_modelled(made.decision)
    }
    figure, axes = plt.subplots(1, 2, figsize=(13, 6), sharey=True)
    for axis, (query, width) in zip(axes, WIDTHS.items(), strict=True):
        number = {"sum": 1, "five": 5}[query]
        cells = [c for c in report["cells"] if (c["keys"], c["aggregations"]) == (keys, number)]
        for i, name in enumerate(choose.KERNELS):
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
            labels = {f"{keys} {c['groups']:,} {c['aggregations']}": c["made"] for c in cells}
            modelled = [
                (groups, expected[text, name])
                for text, groups in labels.items()
                if (text, name) in expected
            ]
            if modelled:
                axis.loglog(*zip(*modelled, strict=True), "--", color=colour)
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


# arms of others, and the queries from left to right
PEERS = BARS.keys() - {"ours", "floor"}
QUERIES = {"sum": 0, "five": 1, "median": 2}


def end_to_end(report: dict[str, Any]) -> plt.Figure:
    """A bar for each arm of each query, a panel for each kind of input and cluster.

    Cells without a peer, which compare nothing, are left out.
    """
    panels: dict[str, list[dict[str, Any]]] = {}
    compared = [cell for cell in report["cells"] if PEERS & cell["arms"].keys()]
    for cell in sorted(compared, key=lambda c: (c["partitions"], QUERIES[c["query"]], c["groups"])):
        panels.setdefault(panel_of(cell), []).append(cell)
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(11, 4.2 * len(panels)), squeeze=False, layout="constrained"
    )
    for axis, (title, cells) in zip(axes[:, 0], panels.items(), strict=True):
        draw_bars(axis, cells)
        axis.set_title(title)
        axis.set_ylabel("ms")
    used = {name for cell in compared for name in cell["arms"]}
    handles = [
        mpl.patches.Patch(color=colour, label=text)
        for name, (text, colour) in BARS.items()
        if name in used
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


# arms of benchmarks.pipelines, by their names among BARS
HOST_BARS = {"stock": "stock-default", "ours": "ours", "polars": "polars", "duckdb": "duckdb"}


def host_peers(report: dict[str, Any]) -> plt.Figure:
    """A bar for each library of each query, from Parquet on the CPU."""
    figure, axis = plt.subplots(figsize=(11, 4.2), layout="constrained")
    width = 0.84 / len(HOST_BARS)
    for i, (arm, name) in enumerate(HOST_BARS.items()):
        text, colour = BARS[name]
        medians = [cell["median"][arm] for cell in report["cells"]]
        places = [place - 0.42 + (i + 0.5) * width for place in range(len(medians))]
        axis.bar(places, medians, 0.94 * width, color=colour, label=text)
    titles = [cell["title"].replace(" by ", "\nby ") for cell in report["cells"]]
    axis.set_xticks(range(len(titles)), titles, fontsize=8)
    cores = report["machine"]["usable_cores"]
    files = report.get("files") or report["partitions"]
    axis.set_title(f"{report['rows']:,} rows from {files} Parquet files, {cores} cores")
    axis.set_ylabel("seconds")
    scale(axis)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(ncols=len(HOST_BARS), fontsize=8)
    return figure


SCHEDULERS = {"threads": "#1f77b4", "processes": "#9ecae1"}


def host(report: dict[str, Any]) -> plt.Figure:
    """How many times longer stock Dask takes, a bar for each query and scheduler."""
    figure, axis = plt.subplots(figsize=(8, 4.4), layout="constrained")
    titles: list[str] = []
    for i, (name, colour) in enumerate(SCHEDULERS.items()):
        scheduler = report["schedulers"][name]
        queries = list(scheduler["queries"].values())
        titles = [query["title"] for query in queries]
        places = [place + (i - 0.5) * 0.4 for place in range(len(queries))]
        ratios = [query["ratio"] for query in queries]
        bars = axis.barh(
            places, ratios, 0.38, color=colour, label=scheduler["title"].split(", memory")[0]
        )
        axis.bar_label(bars, fmt="%.1f", fontsize=7, padding=2)
    axis.set_yticks(range(len(titles)), titles, fontsize=8)
    axis.invert_yaxis()
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xlabel("how many times longer stock Dask takes")
    cores = report["machine"]["usable_cores"]
    axis.set_title(f"{report['data']['rows']:,} rows in memory, {cores} cores", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(fontsize=8, loc="outside lower center", ncols=len(SCHEDULERS))
    return figure


def panel_of(cell: dict[str, Any]) -> str:
    """Title of the panel of a cell."""
    workers = cell["workers"]
    of = "GPU" if cell["engine"] == "device" else "worker process"
    several = f"{workers} {of}{'es' if of.endswith('s') else 's'}, {cell['protocol']}"
    cluster = f"one {of}" if workers == 1 else several
    place = (
        "in memory" if cell["input"] == "persisted" else f"from {cell['partitions']} Parquet files"
    )
    return f"{cell['rows']:,} rows {place}, {cluster}"


def draw_bars(axis: plt.Axes, cells: Sequence[dict[str, Any]]) -> None:
    """The cells of a panel side by side; what was stopped is hatched up to where it was."""
    labels = []
    for place, cell in enumerate(cells):
        heights = {name: height_of(cell["arms"].get(name)) for name in BARS}
        shown = {name: height for name, height in heights.items() if height is not None}
        width = 0.84 / max(len(shown), 1)
        for i, (name, (ms, stopped)) in enumerate(shown.items()):
            at = place - 0.42 + (i + 0.5) * width
            colour = BARS[name][1]
            (bar,) = axis.bar(at, ms, 0.94 * width, color=colour)
            if stopped:
                bar.set(facecolor="white", edgecolor=colour, hatch="//")
            text = f"> {readable(ms)}" if stopped else readable(ms)
            axis.annotate(
                text, (at, ms), (0, 2), textcoords="offset points", ha="center", fontsize=7
            )
        parts = f"{cell['groups']:,} groups\n{cell['partitions']:,} partitions"
        labels.append(f"{cell['query']}\n{parts}")
    axis.set_xticks(range(len(cells)), labels, fontsize=8)
    scale(axis)
    axis.margins(x=0.01, y=0.12)
    axis.spines[["top", "right"]].set_visible(False)


def scale(axis: plt.Axes) -> None:
    """Bars from zero, so that lengths compare; a log axis where the least would not be seen."""
    heights = [bar.get_height() for bar in axis.patches]
    if max(heights, default=0) > 50 * min(heights, default=0):
        axis.set_yscale("log")


def height_of(arm: dict[str, Any] | None) -> tuple[float, bool] | None:
    """Milliseconds of an arm's bar, and whether it was stopped there; None: nothing to draw."""
    if arm is None:
        return None
    ms = arm.get("median_ms") or arm.get("first_ms")
    if ms:
        return ms, False
    return (arm["stopped_s"] * 1e3, True) if "stopped_s" in arm else None


def readable(ms: float) -> str:
    """Milliseconds as they stand over a bar."""
    if ms >= 10_000:
        return f"{ms / 1e3:.0f} s"
    if ms >= 1_000:
        return f"{ms / 1e3:.1f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def finish(axis: plt.Axes, query: str, read: int) -> None:
    """Add floor, title and grid."""
    axis.axhline(read / FLOOR_BYTES_MS, color="grey", linestyle=":", label="memory floor")
    axis.set_title(TITLES[query])
    axis.set_xlabel("groups")
    axis.grid(True, which="major", alpha=0.3)


def label(figure: plt.Figure, report: dict[str, Any]) -> plt.Figure:
    """Label the first axis of a figure."""
    figure.axes[0].set_ylabel(f"ms for {report['rows']:,} rows")
    figure.tight_layout()
    return figure


def main() -> None:
    """Read the result, write the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("--keys", default="dense", help="of a result of the part families")
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
        figure = every_kernel(report, cases(args.result), args.keys)
    else:
        figure = against_cudf(report)
    figure.savefig(args.result.with_suffix(".svg"), metadata={"Date": None})


if __name__ == "__main__":
    main()
