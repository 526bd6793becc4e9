"""Write the parts of the documentation that the package itself knows.

Before a build reads its pages, this makes ``_generated/support.md`` from the registry of
aggregations, ``device.md`` from what the device engine takes, ``configuration.md`` from the
configuration file with its comments, and ``benchmark.md``, ``peers.md``, ``kernels.md``,
``grid.md``, ``tables.md``, ``whole_queries.md``, ``first_use.md`` and ``choice.md`` from the
committed results of the benchmarks. The pages of ``kernels/``, which lie beside the kernels, are
copied to ``docs/kernels/``. Their links, and those to them, are written as they are in the
repository, where readers of the sources follow them.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from sphinx.application import Sphinx

import dask_gpuagg
from benchmarks import choice
from dask_gpuagg import aggregations
from dask_gpuagg.cuda.choice.costs import shipped
from dask_gpuagg.engines.device.support import device_table

_ROOT = Path(__file__).parents[2]
_RESULTS = _ROOT / "benchmarks" / "results" / "host.json"
_PEERS = _RESULTS.parent / "host_peers.json"
_KERNELS = _RESULTS.parent / "nvidia-h200" / "kernels.json"
_FIRST_USE = _KERNELS.parent / "first_use.json"
_GRID = _KERNELS.parent / "grid.json"
_WHOLE_QUERIES = _KERNELS.parent / "end_to_end.json"
_TABLES = _KERNELS.parent / "tables.json"

# ``docs/`` and ``kernels/`` are neighbours in the repository; in the build one holds the other.
_TO_KERNELS = re.compile(r"\]\(\.\./(?=kernels/)")
_TO_DOCS = re.compile(r"\]\((?P<up>(\.\./)+)docs/")
_KEY = re.compile(r"(?P<indent> *)(?P<name>[\w-]+):(?P<value>.*)")
_CHOICE = re.compile(r" {2,}(?P<name>\S+) {2,}(?P<meaning>\S.*)")


def configuration(text: str) -> str:
    """Markdown section for each key of a commented YAML file.

    Parameters
    ----------
    text : str
        The file; the comment above a key describes it. Lines of the form
        ``#   choice  meaning`` become a list.

    Returns
    -------
    str
        For each key with a value: name, default, environment variable and description.
    """
    return "\n\n".join(_sections(text)) + "\n"


def benchmark(text: str) -> str:
    """Markdown table for each scheduler of a result of ``benchmarks/host.py``.

    Parameters
    ----------
    text : str
        The JSON file.

    Returns
    -------
    str
        Medians in seconds, the median ratio, and peak memory of both arms.
    """
    lines = []
    for scheduler in json.loads(text)["schedulers"].values():
        lines += [f"## {scheduler['title'].capitalize()}", ""]
        lines += ["| query | stock, s | plugin, s | stock / plugin | peak MiB, stock | plugin |"]
        lines += ["|" + " --- |" * 6]
        for query in scheduler["queries"].values():
            stock, plugin = query["arms"]
            seconds = f"{stock['median']:.3f} | {plugin['median']:.3f} | {query['ratio']:.2f}"
            peaks = f"{stock['peak'] / 2**20:.0f} | {plugin['peak'] / 2**20:.0f}"
            lines.append(f"| {query['name']}: {query['title']} | {seconds} | {peaks} |")
        lines.append("")
    return "\n".join(lines)


def peers(text: str) -> str:
    """Markdown table of a result of ``benchmarks/host_peers.py``.

    Parameters
    ----------
    text : str
        The JSON file.

    Returns
    -------
    str
        Seconds of each arm by query, and how many times those of the better peer ours are, also
        of the CPU's seconds.
    """
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
    return aggregations.markdown(head, rows)


def kernels(text: str) -> str:
    """Markdown table of a result of ``benchmarks/kernels.py``.

    Parameters
    ----------
    text : str
        The JSON file.

    Returns
    -------
    str
        Device time of our kernels, wall times, ratios and peak memory, by query and groups.
    """
    lines = [
        "| query | groups | kernel | device ms | wall ms | first | cuDF ms | cuDF / ours | "
        "as frames | peak MiB | cuDF's |",
        "|" + " --- |" * 11,
    ]
    for cell in json.loads(text)["cells"]:
        wall, peak = cell["median_ms"], cell["peak_bytes"]
        lines.append(
            f"| {cell['query']} | {cell['groups']:,} | {cell['kernel']} | {cell['device_ms']:.2f} "
            f"| {wall['ours']:.2f} | {wall['ours first']:.2f} "
            f"| {wall['cudf columns']:.2f} | {cell['ratio_columns']:.1f} "
            f"| {wall['ours frame']:.2f}, {wall['cudf frame']:.2f} "
            f"| {peak['ours'] / 2**20:.0f} | {peak['cudf columns'] / 2**20:.0f} |"
        )
    return "\n".join(lines)


def whole_queries(text: str) -> str:
    """Markdown table of a result of ``benchmarks/end_to_end.py``.

    Parameters
    ----------
    text : str
        The JSON file.

    Returns
    -------
    str
        By input, query and groups: milliseconds of tuned stock, ours and the floor, and how many
        times longer stock takes.
    """
    names = {"stock-tuned": "stock, tuned", "ours": "ours", "floor": "floor"}
    lines = ["| input | query | groups | " + " | ".join(names.values()) + " | stock / ours |"]
    lines.append("|" + " --- |" * (4 + len(names)))
    for cell in json.loads(text)["cells"]:
        medians = [cell["arms"].get(arm, {}).get("median_ms") for arm in names]
        times = " | ".join("" if ms is None else f"{ms:,.0f}" for ms in medians)
        ratio = cell.get("ratios", {}).get("stock-tuned")
        shown = "" if ratio is None else f"{ratio:.1f}"
        source = f"{cell['rows']:,} rows, {cell['partitions']} partitions"
        if cell["input"] != "persisted":
            source = f"{cell['rows']:,} rows in Parquet files"
        lines.append(f"| {source} | {cell['query']} | {cell['groups']:,} | {times} | {shown} |")
    return "\n".join(lines)


def tables(text: str) -> str:
    """Markdown table of a result of ``benchmarks/tables.py``.

    Parameters
    ----------
    text : str
        The JSON file.

    Returns
    -------
    str
        By family of keys and query: how many times longer cuDF takes, the geometric mean of the
        members and the least.
    """
    ratios: dict[str, dict[str, list[float]]] = {}
    queries: list[str] = []
    for cell in json.loads(text)["cells"]:
        queries += [cell["query"]] if cell["query"] not in queries else []
        ratios.setdefault(cell["family"], {}).setdefault(cell["query"], []).append(cell["ratio"])
    lines = ["| keys | " + " | ".join(queries) + " |", "|" + " --- |" * (1 + len(queries))]
    for family, found in ratios.items():
        shown = [
            f"{statistics.geometric_mean(found[q]):.1f} ({min(found[q]):.1f})" if q in found else ""
            for q in queries
        ]
        lines.append(f"| {family} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def grid(text: str) -> str:
    """Markdown table of a result of ``benchmarks/grid.py``.

    Parameters
    ----------
    text : str
        The JSON file.

    Returns
    -------
    str
        By key, nulls, skew and groups: wall time of ours and how many times longer cuDF takes, for
        each number of aggregations; then the geometric mean and the least of all.
    """
    report = json.loads(text)
    counts = sorted({cell["aggregations"] for cell in report["cells"]})
    heads = [f"{n} aggregation{'s' if n > 1 else ''}, ms, cuDF / ours" for n in counts]
    lines = ["| key | groups | " + " | ".join(heads) + " |", "|" + " --- |" * (2 + len(counts))]
    rows: dict[tuple[str, int], dict[int, str]] = {}
    for cell in report["cells"]:
        key = cell["key"]
        if cell["nulls"]:
            key += f", {cell['nulls']:.0%} nulls"
        if cell["zipf"]:
            key += f", Zipf {cell['zipf']}"
        shown = f"{cell['median_ms']['ours']:.2f}, {cell['ratio']:.1f}"
        rows.setdefault((key, cell["made"]), {})[cell["aggregations"]] = shown
    for (key, groups), shown_of in rows.items():
        cells = " | ".join(shown_of.get(n, "") for n in counts)
        lines.append(f"| {key} | {groups:,} | {cells} |")
    ratios = [cell["ratio"] for cell in report["cells"]]
    lines.append("")
    lines.append(
        f"Geometric mean of all {len(ratios)} ratios: {report['geometric_mean']:.1f}; "
        f"the least: {min(ratios):.2f}."
    )
    return "\n".join(lines)


def first_use(text: str) -> str:
    """Markdown table of a result of ``benchmarks/first_use.py``.

    Parameters
    ----------
    text : str
        The JSON file.

    Returns
    -------
    str
        What the first query of a shape takes longer than the second, with an empty kernel cache
        and with a filled one.
    """
    empty, filled = json.loads(text)["processes"].values()
    lines = [
        "| query | kernels of its two steps | compiled | empty cache, s | filled cache, ms |",
        "|" + " --- |" * 5,
    ]
    for first, later in zip(empty["cells"], filled["cells"], strict=True):
        lines.append(
            f"| {first['query']} | {', '.join(first['kernels'])} | {first['units_compiled']} "
            f"| {first['extra_s']:.2f} | {later['extra_s'] * 1e3:.1f} |"
        )
    return "\n".join(lines)


def expectations(path: Path) -> str:
    """Markdown table of expected and measured times, and how good the choice is.

    Parameters
    ----------
    path : Path
        A result of ``benchmarks/families.py``.

    Returns
    -------
    str
    """
    found = choice.cases(path)
    costs = shipped(found[0].device).costs
    judgement = str(choice.verdict(found, costs)).capitalize()
    return f"{choice.side_by_side(found, costs)}\n\n{judgement}."


def _sections(text: str) -> Iterator[str]:
    defaults = yaml.safe_load(text)
    path: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        bare = line.strip()
        if bare.startswith("#"):
            comment.append(bare[1:].removeprefix(" "))
        elif match := _KEY.fullmatch(line):
            path[len(match["indent"]) // 2 :] = [match["name"]]
            if match["value"].strip():
                yield _section(path, _look_up(defaults, path), comment)
            comment = []


def _look_up(tree: Any, path: list[str]) -> Any:
    for name in path:
        tree = tree[name]
    return tree


def _section(path: list[str], default: Any, comment: list[str]) -> str:
    shown = yaml.safe_dump(default).removesuffix("\n").removesuffix("\n...")
    variable = "DASK_" + "__".join(path).upper().replace("-", "_")
    lines = [f"## `{'.'.join(path)}`", "", f"Default `{shown}`, environment `{variable}`.", ""]
    for text in comment:
        if choice := _CHOICE.fullmatch(text):
            # A list may not start in the middle of a paragraph.
            if not lines[-1].startswith("- "):
                lines.append("")
            lines.append(f"- `{choice['name']}`: {choice['meaning']}")
        else:
            lines.append(text.strip())
    return "\n".join(lines)


def in_the_build(page: str, text: str) -> str:
    """A page's text with the links that hold in the build.

    Parameters
    ----------
    page : str
        Name of the document, relative to ``docs/``.
    text : str
        As it is in the repository.

    Returns
    -------
    str
    """
    if page.startswith("kernels/"):
        return _TO_DOCS.sub(r"](\g<up>", text)
    return _TO_KERNELS.sub("](", text)


def _copy_kernel_pages(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "kernels"
    shutil.rmtree(folder, ignore_errors=True)
    for page in (_ROOT / "kernels").rglob("*.md"):
        copy = folder / page.relative_to(_ROOT / "kernels")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)


def _relink(app: Sphinx, page: str, text: list[str]) -> None:
    text[0] = in_the_build(page, text[0])


def _write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "_generated"
    folder.mkdir(exist_ok=True)
    settings = files(dask_gpuagg).joinpath("gpuagg.yaml").read_text(encoding="utf-8")
    parts = {
        "support.md": aggregations.support_table(),
        "configuration.md": configuration(settings),
        "device.md": device_table(),
        "benchmark.md": benchmark(_RESULTS.read_text(encoding="utf-8")),
        "peers.md": peers(_PEERS.read_text(encoding="utf-8")),
        "kernels.md": kernels(_KERNELS.read_text(encoding="utf-8")),
        "grid.md": grid(_GRID.read_text(encoding="utf-8")),
        "whole_queries.md": whole_queries(_WHOLE_QUERIES.read_text(encoding="utf-8")),
        "tables.md": tables(_TABLES.read_text(encoding="utf-8")),
        "first_use.md": first_use(_FIRST_USE.read_text(encoding="utf-8")),
        "choice.md": expectations(choice.RESULT),
    }
    for name, text in parts.items():
        (folder / name).write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("builder-inited", _write)
    app.connect("builder-inited", _copy_kernel_pages)
    app.connect("source-read", _relink)
    return {"parallel_read_safe": True}
