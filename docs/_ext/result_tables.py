"""Tables of the documentation that committed results of the benchmarks give, at each build."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from package_tables import markdown

from benchmarks import choice
from dask_gpuagg.cuda.choice.costs import shipped

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
_HOST = _RESULTS / "host.json"
_TPCH = _RESULTS / "tpch.json"
_H100, _H200 = _RESULTS / "nvidia-h100", _RESULTS / "nvidia-h200"


_SCHEDULERS = {"threads": "In one process", "processes": "In several processes"}


def benchmark(text: str) -> str:
    """A table for each scheduler of ``host.json``: medians, ratio, peak memory by query."""
    lines = []
    for name, scheduler in json.loads(text)["schedulers"].items():
        rows = []
        for query in scheduler["queries"].values():
            arms = query["arms"]
            seconds = [f"{arm['median']:.3f}" for arm in arms]
            peaks = [f"{arm['peak'] / 2**20:.0f}" for arm in arms]
            title = f"{query['name']}: {query['title']}"
            rows.append([title, *seconds, f"{query['ratio']:.2f}", *peaks])
        head = ["query", "stock, s", "plugin, s", "stock / plugin", "peak MiB, stock", "plugin"]
        lines += [f"## {_SCHEDULERS[name]}", "", f"With {scheduler['title'].split(': ')[1]}:", ""]
        lines += [markdown(head, rows), ""]
    return "\n".join(lines)


# the queries of benchmarks/host.py by what they have in common
_CLASSES = {
    "one aggregation, few groups": ("q1", "q2", "q4"),
    "many groups": ("q3", "q5", "q7"),
    "several aggregations of a column": ("multi_str", "multi_str2", "multi_int"),
    "distinct values": ("nunique_few",),
    "whole groups (median)": ("q6",),
    "about as many groups as rows": ("q10",),
    "many columns of few rows": ("wide",),
    "most of the time outside of the group-by": ("q9",),
}


def faster(text: str) -> str:
    """By class of queries of ``host.json``: the least and the largest ratio of each scheduler."""
    schedulers = json.loads(text)["schedulers"]
    rows = []
    for title, names in _CLASSES.items():
        cells = []
        for name in ("threads", "processes"):
            cells.append(_between([schedulers[name]["queries"][query]["ratio"] for query in names]))
        rows.append([title, ", ".join(names), *cells])
    return markdown(["group-by", "queries", "in one process", "in two processes"], rows)


def highlights() -> list[tuple[str, str]]:
    """What is measured, and how many times longer stock Dask takes."""
    host = json.loads(_HOST.read_text(encoding="utf-8"))["schedulers"]
    on_gpu: dict[str, list[float]] = {"persisted": [], "parquet": []}
    whole = _RESULTS / "nvidia-h200-x2" / "end_to_end.json"
    for cell in json.loads(whole.read_text(encoding="utf-8"))["cells"]:
        if cell["workers"] == 1:
            on_gpu[cell["input"]].append(cell["ratios"]["stock-tuned"])
    grouping = [
        query["ratio"]
        for query in json.loads(_TPCH.read_text(encoding="utf-8"))["schedulers"]["threads"][
            "queries"
        ].values()
        if query["support"] == "plan"
    ]
    found = []
    for name, where in (("threads", "one process"), ("processes", "two processes")):
        ratios = [query["ratio"] for query in host[name]["queries"].values()]
        found.append(
            (f"{len(ratios)} group-bys of up to 10 million rows, two cores, {where}", ratios)
        )
    found.append((f"the {len(grouping)} queries of TPC-H that group, joins included", grouping))
    queries = "sums and five aggregations of"
    memory, files = "10⁹ rows on one H200, stock tuned", "400 million rows of Parquet files there"
    found.append((f"{queries} {memory}", on_gpu["persisted"]))
    found.append((f"{queries} {files}, reading included", on_gpu["parquet"]))
    return [
        (title, f"{geometric_mean(r):.1f} ({min(r):.1f} to {max(r):.1f})") for title, r in found
    ]


def highlight_table() -> str:
    """Markdown table of ``highlights``."""
    head = ["measured", "stock Dask takes so many times longer"]
    return markdown(head, highlights())


def bars() -> str:
    """The ratios of ``highlights`` as bars of HTML, which narrow screens can show, and TPC-H."""
    rows = highlights()
    means = [float(text.split(" ")[0]) for _, text in rows]
    shares = [f"--share: {mean / max(means):.2f}" for mean in means]
    bars = [
        f'<div><span>{title}</span><i style="{share}"></i><b>{text}</b></div>'
        for (title, text), share in zip(rows, shares, strict=True)
    ]
    tpch = json.loads(_TPCH.read_text(encoding="utf-8"))["schedulers"]["threads"]["queries"]
    equal = sum(query["answer"]["equal"] for query in tpch.values())
    slower = sum(any(query["slower"].values()) for query in tpch.values())
    return (
        f'```{{raw}} html\n<div class="bars">{"".join(bars)}</div>\n```\n\n'
        f"{equal} of the {len(tpch)} queries of TPC-H have stock Dask's answers; "
        f"{slower or 'none'} of them takes longer by more than noise.\n"
    )


def peers(text: str) -> str:
    """By query of ``host_peers.json``: seconds of each arm, and ours over the better peer's."""
    names = {"ours": "plugin", "stock": "stock Dask", "polars": "Polars", "duckdb": "DuckDB"}
    head = ["query", *(f"{name}, s" for name in names.values()), "plugin / better of the two"]
    rows = []
    for cell in json.loads(text)["cells"]:
        used = cell["median_cpu"]
        times = [f"{cell['median'][arm]:.2f}" for arm in names]
        times += [
            f"{cell['to_best']:.2f}",
            f"{used['ours'] / min(used['polars'], used['duckdb']):.2f}",
        ]
        rows.append([cell["title"], *times])
    head.append("the same of CPU time")
    return markdown(head, rows)


def pipelines(text: str) -> str:
    """By query of ``pipelines.json``: times of the arms, and ours over the bare query and peers."""
    results = json.loads(text)
    unit, factor = ("ms", 1e3) if results["gpus"] else ("s", 1)
    names = {"ours": "plugin", "stock": "stock Dask", "polars": "Polars", "duckdb": "DuckDB"}
    arms = [arm for arm in names if any(arm in cell["median"] for cell in results["cells"])]
    head = ["query", *(f"{names[arm]}, {unit}" for arm in arms), "stock / plugin", "plugin / bare"]
    head += ["plugin / better of the two"] if "polars" in arms else []
    rows = []
    for cell in results["cells"]:
        times = [cell["median"].get(arm) for arm in arms]
        ratios = [cell.get(name) for name in ("stock_to_ours", "to_bare", "to_best")]
        row = [cell["title"], *("-" if t is None else f"{t * factor:.3g}" for t in times)]
        rows.append([*row, *("-" if r is None else f"{r:.2f}" for r in ratios)][: len(head)])
    return markdown(head, rows)


def kernels(text: str) -> str:
    """By query and groups of ``kernels.json``: device and wall times, ratio, peak memory."""
    head = ["query", "groups", "kernel", "device ms", "wall ms", "first", "cuDF ms", "cuDF / ours"]
    head += ["as frames", "peak MiB", "cuDF's"]
    rows = []
    for cell in json.loads(text)["cells"]:
        wall, peak = cell["median_ms"], cell["peak_bytes"]
        times = (cell["device_ms"], wall["ours"], wall["ours first"], wall["cudf columns"])
        rows.append(
            [
                *(cell["query"], f"{cell['groups']:,}", cell["kernel"]),
                *(f"{ms:.2f}" for ms in times),
                f"{cell['ratio_columns']:.1f}",
                f"{wall['ours frame']:.2f}, {wall['cudf frame']:.2f}",
                *(f"{peak[arm] / 2**20:.0f}" for arm in ("ours", "cudf columns")),
            ]
        )
    return markdown(head, rows)


# the arms of benchmarks/end_to_end.py, in the order of the columns
_ARMS = {
    "stock-tuned": "stock, tuned",
    "ours": "ours",
    "floor": "floor",
}


def whole_queries(text: str) -> str:
    """Milliseconds of each arm of ``end_to_end.json``.

    Cells that a deadline ended, which compare nothing, are left out.
    """
    rows = []
    for cell in sorted(json.loads(text)["cells"], key=lambda c: (c["query"] != "sum", c["groups"])):
        if cell["ratios"]:
            times = (f"{cell['arms'][arm]['median_ms']:,.0f}" for arm in _ARMS)
            ratio = f"{cell['ratios']['stock-tuned']:.1f}"
            rows.append([cell["query"], f"{cell['groups']:,}", *times, ratio])
    return markdown(["query", "groups", *_ARMS.values(), "stock / ours"], rows)


def tables(text: str) -> str:
    """By family and query of ``tables.json``: how many times longer cuDF takes, mean and least."""
    ratios: dict[str, dict[str, list[float]]] = {}
    queries: list[str] = []
    for cell in json.loads(text)["cells"]:
        queries += [cell["query"]] if cell["query"] not in queries else []
        ratios.setdefault(cell["family"], {}).setdefault(cell["query"], []).append(cell["ratio"])
    rows = []
    for family, found in ratios.items():
        shown = [
            f"{geometric_mean(found[q]):.1f} ({min(found[q]):.1f})" if q in found else ""
            for q in queries
        ]
        rows.append([family, *shown])
    return markdown(["keys", *queries], rows)


class _Kind(NamedTuple):
    """What the arms of ``grid.json`` take and give: ours, and the ratio to cuDF's."""

    said: str
    arm: str
    ratio: str


_KINDS = (
    _Kind("as DataFrames", "ours frame", "ratio_frame"),
    _Kind("as columns", "ours", "ratio"),
)


def grid(text: str) -> str:
    """By key, nulls, skew and groups of ``grid.json``: wall time and ratio, then their means."""
    report = json.loads(text)
    counts = sorted({cell["aggregations"] for cell in report["cells"]})
    heads = [
        f"{n} aggregation{'s' if n > 1 else ''} {kind.said}, ms, cuDF / ours"
        for n in counts
        for kind in _KINDS
    ]
    cells: dict[tuple[str, int], dict[int, list[str]]] = {}
    for cell in report["cells"]:
        key, ms = cell["key"], cell["median_ms"]
        if cell["nulls"]:
            key += f", {cell['nulls']:.0%} nulls"
        if cell["zipf"]:
            key += f", Zipf {cell['zipf']}"
        cells.setdefault((key, cell["made"]), {})[cell["aggregations"]] = [
            f"{ms[kind.arm]:.2f}, {cell[kind.ratio]:.1f}" for kind in _KINDS
        ]
    rows = [
        [key, f"{groups:,}", *(text for n in counts for text in shown.get(n, [""] * len(_KINDS)))]
        for (key, groups), shown in cells.items()
    ]
    said = []
    for kind in _KINDS:
        ratios = [cell[kind.ratio] for cell in report["cells"]]
        said.append(f"{kind.said} {geometric_mean(ratios):.1f}, the least {min(ratios):.2f}")
    return (
        f"{markdown(['key', 'groups', *heads], rows)}\n\n"
        f"Geometric mean of all {len(report['cells'])} ratios: {'; '.join(said)}."
    )


def first_use(text: str) -> str:
    """First and warm calls of ``first_use.json`` by query, in milliseconds."""
    return _first_calls(json.loads(text)["queries"])


def first_files(text: str) -> str:
    """Markdown table of what ``benchmarks/first_use.py`` measures of Parquet files; see above."""
    return _first_calls(json.loads(text)["files"])


def _first_calls(records: Sequence[dict[str, Any]]) -> str:
    columns = [("stock", "first_s"), ("empty cache", "first_s"), ("filled cache", "first_s")]
    columns += [("stock", "warm_s"), ("filled cache", "warm_s")]
    head = ["query", "dask-cudf, first", "ours, empty cache", "filled cache"]
    head += ["dask-cudf, warm", "ours, warm"]
    queries: dict[str, dict[str, Any]] = {}
    for record in records:
        queries.setdefault(record["query"], {})[record["arm"]] = record
    # a run that was cut lacks the last ones
    rows = [
        [query, *(f"{arms[arm][s] * 1e3:.0f}" if arm in arms else "" for arm, s in columns)]
        for query, arms in queries.items()
    ]
    return markdown(head, rows)


def exact_sums(results: Path) -> str:
    """Markdown table of ``deterministic.json``: exact sums beside ordinary ones."""
    columns: dict[str, dict[int, list[float]]] = {}
    for folder in (results, results / _H200.name):
        path = folder / "deterministic.json"
        if not path.exists():
            continue
        report = json.loads(path.read_text(encoding="utf-8"))
        where = report.get("gpu", f"{report['machine']['usable_cores']} cores")
        found = columns.setdefault(f"{where}, {report['rows']:,} rows", {})
        for cell in report["cells"]:
            found.setdefault(cell["groups"], []).append(cell["ratio"])
    groups = sorted({g for found in columns.values() for g in found})
    rows = [[f"{g:,}", *(_between(found.get(g, [])) for found in columns.values())] for g in groups]
    return markdown(["groups", *columns], rows)


def _between(ratios: list[float]) -> str:
    if not ratios:
        return ""
    least, most = (f"{ratio:.1f}" for ratio in (min(ratios), max(ratios)))
    return least if least == most else f"{least} to {most}"


STREAM_STEPS = ("copy", "group", "merge", "write", "concatenate", "rest")


def larger(text: str) -> str:
    """Markdown tables of a frame in a result of ``benchmarks/larger.py``."""
    report = json.loads(text)
    rows, beside, steps = [], [], []
    for cell in report["cells"]:
        if cell["drawing"]:
            continue
        start = [f"{cell['groups']:,}", f"{cell['present']:,}"]
        rate = f"{cell['gigabytes_a_second']:.1f}"
        if "peers" in cell:
            times = (f"{cell['peer_ratio'][name]:.1f}" for name in ("polars", "duckdb"))
            beside.append([*start, f"{cell['seconds'][-1]:.2f}", *times])
        memory = "RMM's default" if cell["resource"] == "default" else "a pool"
        if cell["limit_bytes"] is not None:
            memory = f"a pool of {cell['limit_bytes'] / 1e9:.1f} GB"
        peak = "" if cell["peak_bytes"] is None else f"{cell['peak_bytes'] / 1e9:.1f}"
        taken = (f"{cell['steps'].get(name, 0):.2f}" for name in STREAM_STEPS)
        steps.append([start[0], memory, *taken, f"{cell['seconds'][-1]:.2f}"])
        rows.append([*start, memory, rate, f"{cell['share_of_link']:.0%}", peak])
    head = ["possible keys", "groups", "device memory"]
    lines = [f"The link takes {report['link'] / 1e9:.1f} GB/s from pinned memory.", ""]
    lines.append(markdown([*head, "GB/s", "of the link", "most in use, GB"], rows))
    title = "Seconds of each step, when it is waited for (`rest`: planning, reading, the frame)"
    lines += ["", f"{title}:", "", markdown([head[0], head[2], *STREAM_STEPS, "all"], steps)]
    lines += ["", "Seconds with a pool, and how many times longer the peers take:", ""]
    lines.append(markdown([*head[:2], "stream, s", "Polars", "DuckDB"], beside))
    return "\n".join(lines)


def expectations(path: Path) -> str:
    """Markdown table of expected and measured times, and how good the choice is."""
    found = choice.cases(path)
    costs = shipped(found[0].device).costs
    judgement = str(choice.verdict(found, costs)).capitalize()
    return f"{choice.side_by_side(found, costs)}\n\n{judgement}."


def parts() -> dict[str, str]:
    """What is generated from results, by the name of the file."""
    of_file: dict[str, tuple[Path, Callable[[str], str]]] = {
        "benchmark.md": (_HOST, benchmark),
        "faster.md": (_HOST, faster),
        "peers.md": (_RESULTS / "host_peers.json", peers),
        "larger.md": (_H100 / "larger.json", larger),
        "pipelines.md": (_RESULTS / "pipelines.json", pipelines),
        "pipelines_gpu.md": (_H200 / "pipelines.json", pipelines),
        "whole_queries.md": (_H100 / "end_to_end.json", whole_queries),
        **{
            f"{name}.md": (_H200 / f"{name}.json", make)
            for name, make in (
                ("kernels", kernels),
                ("grid", grid),
                ("tables", tables),
                ("first_use", first_use),
                ("first_files", first_files),
            )
        },
    }
    made = {name: make(path.read_text(encoding="utf-8")) for name, (path, make) in of_file.items()}
    return made | {
        "deterministic.md": exact_sums(_RESULTS),
        "highlights.md": highlight_table(),
        "bars.md": bars(),
        "choice.md": expectations(choice.RESULT),
    }
