"""Tables of pages that are also read in the repository, made of committed results.

A table follows the comment ``<!-- NAME, by docs/_ext/page_tables.py -->``. After a change of
results ``PYTHONPATH=. python docs/_ext/page_tables.py`` writes all of them anew; a test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from package_tables import markdown
from result_tables import STREAM_STEPS, highlight_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- (\w+), by docs/_ext/page_tables\.py -->\n)((?:\|.*\n)*)")

# groups of families.json
_FEW = (16, 256, 4_096, 16_384)
_MANY = (65_536, 1_048_576, 4_194_304, 16_777_216, 67_108_864)
# of 67 million possible keys not all are drawn
_NAMES = {
    1_048_576: "1M",
    4_194_304: "4M",
    16_777_216: "16M",
    16_733_723: "16M",
    67_108_864: "64M, 52.0M of them present",
}


@cache
def _report(name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return report


def _cells(name: str) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = _report(f"nvidia-h200/{name}.json")["cells"]
    return cells


def _named(groups: int) -> str:
    return _NAMES.get(groups, f"{groups:,}")


def _ms(value: float) -> str:
    """Three digits."""
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def _mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:,.0f}"


def _ratios(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def _family(keys: str, groups: int, aggregations: int, zipf: float = 0.0) -> dict[str, Any]:
    """The kernels of a cell of families.json, by name."""
    fields = (keys, groups, aggregations, zipf)
    for cell in _cells("families"):
        if (cell["keys"], cell["groups"], cell["aggregations"], cell["zipf"]) == fields:
            kernels: dict[str, Any] = cell["kernels"]
            return kernels
    raise KeyError(fields)


def _forced(keys: str, groups: int, names: Sequence[str], aggregations: Sequence[int]) -> list[str]:
    """For each kernel its device milliseconds, one for each number of aggregations."""
    cells = [_family(keys, groups, n) for n in aggregations]
    return [
        ", ".join(_ms(cell[name]["device_ms"]) if name in cell else "-" for cell in cells)
        for name in names
    ]


def direct() -> str:
    """Direct addressing beside hashing and partitions."""
    groups = (*_FEW, 65_536, 262_144, 1_048_576)
    names = ("direct", "hgb", "pgb")
    rows = [[_named(g), *_forced("dense", g, names, (1, 5))] for g in groups]
    return markdown(["groups", "direct", "HGB", "PGB-TR"], rows)


def folding() -> str:
    """Partitions by tables and folded; bold is the kernel that is chosen."""
    rows = []
    for groups in _MANY:
        row = [_named(groups)]
        for keys in ("dense", "random"):
            for aggregations in (1, 5):
                cell = _family(keys, groups, aggregations)
                chosen = cell["auto"]["decision"]["kernel"]
                times = {name: _ms(cell[name]["device_ms"]) for name in ("pgb", "pgb_fold")}
                row.append(", ".join(f"**{t}**" if n == chosen else t for n, t in times.items()))
        rows.append(row)
    return markdown(["groups", "dense: sum", "five", "random: sum", "five"], rows)


def beside_cudf() -> str:
    """Partitions beside cuDF: ratio by the wall clock, and peak memory of both."""
    cells = {(cell["query"], cell["groups"]): cell for cell in _cells("kernels")}
    rows = []
    for groups in (16_384, *_MANY):
        row = [_named(groups)]
        for query in ("sum", "five"):
            cell = cells[query, groups]
            if cell["kernel"] == "direct":
                row += ["(`direct`)", "", ""]
                continue
            peaks = [_mib(cell["peak_bytes"][arm]) for arm in ("ours", "cudf columns")]
            row += [f"{cell['ratio_columns']:.1f}", *peaks]
        rows.append(row)
    head = ["groups", "sum: cuDF / ours", "MiB", "cuDF's", "five: cuDF / ours", "MiB", "cuDF's"]
    return markdown(head, rows)


def skewed() -> str:
    """Keys by Zipf's law beside as many keys drawn evenly."""
    rows: dict[tuple[float, int], list[str]] = {}
    for cell in _cells("grid"):
        if cell["zipf"]:
            times = [_ms(cell["device_ms"]), _ms(cell["even_ms"])]
            rows.setdefault((cell["zipf"], cell["made"]), []).extend(times)
    head = ["exponent", "keys present", "sum", "even", "five", "even", "20", "even"]
    body = [[f"{zipf}", f"{keys / 1e6:.1f}M", *times] for (zipf, keys), times in rows.items()]
    return markdown(head, body)


def gathered() -> str:
    """PGB-TR beside PGB-UR: device time, and memory at 4M groups."""
    titles = {
        **{f"{n} i64": f"{n} int64" for n in (1, 4, 8)},
        "8 max i32": "greatest of 8 int32",
        **{f"{n} dec": f"{n} decimal128" for n in (1, 4)},
        "5 aggs": "5 aggregations of 2 columns",
        "20 aggs": "20 aggregations of 4 columns",
        "4 i64 50%": "4 int64, half of them null",
        "4 i64 90%": "4 int64, 90 % null",
        "8 max i64 90%": "greatest of 8 int64, 90 % null",
    }
    cells = {(cell["set"], cell["groups"]): cell["kernels"] for cell in _cells("gathered")}
    groups = sorted({g for _, g in cells})
    rows = []
    for name, title in titles.items():
        row = [title]
        for g in groups:
            moved, numbered = (cells[name, g][k]["device_ms"] for k in ("pgb", "pgb_ur"))
            better = f"**{numbered:.1f}**" if numbered < moved else f"{numbered:.1f}"
            row.append(f"{moved:.1f}, {better}")
        peaks = [_mib(cells[name, 4_194_304][k]["peak_bytes"]) for k in ("pgb", "pgb_ur")]
        rows.append([*row, "; ".join(peaks)])
    return markdown(["sums, unless noted", *map(_named, groups), "MiB at 4M"], rows)


def _sorted_cells() -> dict[tuple[int, str], dict[str, Any]]:
    return {(cell["groups"], cell["query"]): cell for cell in _cells("sorted")}


def sorted_rows() -> str:
    """What needs a group's rows side by side, ours and libcudf's."""
    titles = {
        "median": "median of float64",
        "median of ints": "of int32",
        "nunique of floats": "distinct float64",
        "nunique": "distinct int32",
        "list": "list",
    }
    cells = _sorted_cells()
    rows = []
    for groups in sorted({g for g, _ in cells}):
        times = [cells[groups, name]["median_ms"] for name in titles]
        rows.append([f"{groups:,}", *(f"{_ms(t['ours'])}, {_ms(t['cudf'])}" for t in times)])
    return markdown(["groups", *titles.values()], rows)


def runs() -> str:
    """One sum of rows whose keys ascend."""
    arms = {
        "ours": "runs",
        "pgb": "PGB-TR",
        "lphga": "LPHGA",
        "cudf": "cuDF",
        "cudf told": "cuDF, told that keys are sorted",
    }
    cells = _sorted_cells()
    rows = [
        [f"{g:,}", *(_ms(cells[g, "sum of sorted"]["median_ms"][arm]) for arm in arms)]
        for g in sorted({g for g, _ in cells})
    ]
    return markdown(["groups", *arms.values()], rows)


def probes() -> str:
    """Slots that a row looks at, beside Table 1 of Wang 2025."""
    rows: dict[str, list[str]] = {}
    paper: dict[str, list[str]] = {}
    for cell in _report("probes.json")["cells"]:
        load = f"{cell['load_factor']:.2f}"
        rows.setdefault(load, []).extend(f"{cell[name]:.2f}" for name in ("sp_ega", "linear"))
        paper[load] = [f"{cell['table_1'][name]:.2f}" for name in ("sp_ega", "linear")]
    head = ["load", "SP-EGA, distinct keys", "linear probing", "SP-EGA, 8 rows a key"]
    head += ["linear probing", "the paper's SP-EGA", "its linear probing"]
    return markdown(head, [[load, *ours, *paper[load]] for load, ours in rows.items()])


def over_loads() -> str:
    """SP-EGA beside LPHGA over the load factor, as in figure 5 of Wang 2025."""
    rows: dict[float, list[str]] = {}
    for cell in _cells("full"):
        times = [cell["median_ms"].get(n) for n in ("lphga", "sp_ega", "sp_ega, equal bytes")]
        row = rows.setdefault(cell["load_factor"], [f"{cell['load_factor']}"])
        row.append(", ".join("does not fit" if ms is None else _ms(ms) for ms in times))
    titles = [f"{query}, {size}" for size in ("17M", "52M") for query in ("sum", "five")]
    return markdown(["load of LPHGA", *titles], list(rows.values()))


def little_memory() -> str:
    """A call that may take so much beside its rows: the decision, and kernels forced."""
    arms = {"auto": "ours", "sp_ega": "SP-EGA", "lphga": "LPHGA", "pgb": "PGB-TR", "cudf": "cuDF"}
    rows = []
    for cell in _cells("limited"):
        times = cell["median_ms"]
        if all(isinstance(ms, str) for ms in times.values()):
            continue
        row = [f"{cell['query']}, {cell['groups'] / 1e6:.0f}M", _mib(cell["limit_bytes"])]
        row += ["" if isinstance(times[arm], str) else _ms(times[arm]) for arm in arms]
        kernel = f" (`{cell['kernel']}`)" if cell["kernel"] else ""
        rows.append([*row[:2], row[2] + kernel, *row[3:]])
    return markdown(["query, groups", "MiB", *arms.values()], rows)


def wrong_estimates() -> str:
    """One sum by skewed keys, of which the sample alone shows too few."""
    rows = []
    for cell in _cells("families"):
        if cell["zipf"] and cell["aggregations"] == 1:
            kernels = cell["kernels"]
            expected = kernels["lphga"]["decision"]["estimate"]["groups"]
            counts = [f"{n / 1e6:.2f}M" for n in (cell["made"], expected)]
            times = [_ms(kernels[name]["device_ms"]) for name in ("lphga", "sp_ega", "pgb")]
            rows.append([f"{cell['zipf']}", *counts, *times])
    head = ["exponent", "groups present", "expected", "LPHGA", "SP-EGA", "PGB-TR"]
    return markdown(head, rows)


def strings() -> str:
    """One sum by strings of digits."""
    times: dict[int, dict[str, str]] = {}
    for cell in _cells("grid"):
        if cell["key"] in ("str40", "str10") and cell["aggregations"] == 1:
            times.setdefault(cell["made"], {})[cell["key"]] = _ms(cell["device_ms"])
    rows = [[_named(groups), cell["str40"], cell["str10"]] for groups, cell in times.items()]
    return markdown(["groups", "40 bytes", "10 bytes"], rows)


def tpch() -> str:
    """Stock Dask's time over the plugin's, of queries with and without a group-by, and noise."""
    queries = _report("tpch.json")["schedulers"]["threads"]["queries"].values()
    grouping = [query for query in queries if query["support"] == "plan"]
    others = [query for query in queries if query["support"] != "plan"]
    rows = []
    for title, some, of in (
        (f"the {len(grouping)} queries that group", grouping, None),
        (f"the {len(others)} without a group-by", others, None),
        (f"noise: all {len(queries)}, stock Dask and itself", queries, "noise"),
    ):
        row = [title]
        for clock in (None, "cpu"):
            records = [query[clock] if clock else query for query in some]
            ratios = [(record[of] if of else record)["ratio"] for record in records]
            mean = "" if of else f", geometric mean {geometric_mean(ratios):.2f}"
            row.append(_ratios(ratios) + mean)
        rows.append(row)
    return markdown(["stock time over plugin time, medians", "by the clock", "in CPU time"], rows)


def tpch_gpu() -> str:
    """TPC-H on one GPU: seconds of stock dask-cudf, ours and cuDF-Polars, and stock's group-bys."""
    rows = []
    for name, query in _report("nvidia-h200/tpch.json")["schedulers"]["gpu"]["queries"].items():
        if query["ratio"] is None:
            continue
        times = [arm["median"] for arm in query["arms"]]
        times += [query["cudf_polars"]["median"]] if "cudf_polars" in query else []
        cells = [f"{seconds:.2f}" for seconds in times] + [""] * (3 - len(times))
        share = f"{query['shares'].get('group-bys', 0):.0%}".replace("%", " %")
        rows.append([name.upper(), *cells[:2], f"{query['ratio']:.2f}", cells[2], share])
    head = ["query", "stock, s", "plugin, s", "ratio", "cuDF-Polars, s", "group-bys"]
    return markdown(head, rows)


def small() -> str:
    """Frames of few rows, DataFrames in and out."""
    rows = []
    for cell in _cells("small"):
        times = [_ms(cell["median_ms"][arm]) for arm in ("ours", "cudf")]
        rows.append([cell["family"], cell["member"], cell["query"], *times, f"{cell['ratio']:.2f}"])
    return markdown(["rows", "keys", "query", "ours, ms", "cuDF, ms", "ratio"], rows)


def cards() -> str:
    """How many times longer cuDF takes on each card: geometric means, in brackets the least."""
    reports = [
        {name: _report(f"nvidia-{card}/{name}.json") for name in ("tables", "grid", "small")}
        for card in ("h200", "h100")
    ]
    rows = []
    for title, part, ratio, is_shown in (
        ("any key, 50 million rows", "tables", "ratio", lambda cell: True),
        ("of these left out of tuning", "tables", "ratio", lambda cell: not cell["tuned"]),
        ("the grid, 100 million rows, as columns", "grid", "ratio", lambda cell: True),
        ("the grid, as DataFrames", "grid", "ratio_frame", lambda cell: True),
        ("few rows", "small", "ratio", lambda cell: True),
    ):
        row = [title]
        for report in reports:
            ratios = [cell[ratio] for cell in report[part]["cells"] if is_shown(cell)]
            row.append(f"{geometric_mean(ratios):.1f} ({min(ratios):.1f})")
        rows.append(row)
    return markdown(["cells", "H200", "H100"], rows)


def counted() -> str:
    """Bytes of memory for each row: of the model and counted by the hardware."""
    report = _report("nvidia-h200/counts.json")
    cells = {(c["kernel"], c["groups"], c["dense"], c["query"]): c for c in report["cells"]}
    rows = []
    for title, kernel, groups, dense in (
        ("`hgb`", "hgb", 1_000, True),
        ("scatter of `pgb`", "scatter", 65_536, True),
        ("scatter of `pgb`", "scatter", 8_388_608, True),
        ("scatter of hashed words", "scatter", 1_048_576, False),
        ("aggregation of `pgb`", "aggregate", 65_536, True),
        ("aggregation of `pgb`", "aggregate", 8_388_608, True),
    ):
        pairs = []
        for query in ("sum", "five"):
            cell = cells[kernel, groups, dense, query]
            counts = cell["counted"]["memory_read"] + cell["counted"]["memory_written"]
            pairs.append((cell["model"]["bytes"] / report["rows"], counts / report["rows"]))
        columns = [f"{one:.1f} ({five:.1f})" for one, five in zip(*pairs, strict=True)]
        rows.append([title, f"{groups:,}", *columns])
    return markdown(["kernel", "groups", "model", "counted"], rows)


def few_groups() -> str:
    """Few groups beside cuDF, whose tables in shared memory hold 128."""
    cells = {(cell["query"], cell["groups"]): cell for cell in _cells("kernels")}
    rows = []
    for groups in (4, 64, 128, 256, 1_000, 4_000, 65_536, 1_048_576):
        row = [_named(groups)]
        for query in ("sum", "five"):
            cell = cells[query, groups]
            times = [_ms(cell["median_ms"][arm]) for arm in ("ours", "cudf columns")]
            row += [*times, f"{cell['ratio_columns']:.1f}"]
        rows.append(row)
    head = ["groups", "sum: ours", "cuDF", "ratio", "five: ours", "cuDF", "ratio"]
    return markdown(head, rows)


def forced() -> str:
    """Every kernel forced, one sum by keys that count up."""
    names = {"lphga": "LPHGA", "hgb": "HGB", "pgb_ur": "PGB-UR", "pgb": "PGB-TR"}
    rows = [[_named(g), *_forced("dense", g, tuple(names), (1,))] for g in (*_FEW, *_MANY)]
    return markdown(["groups", *names.values()], rows)


def out_of_core() -> str:
    """Rows of the host that are streamed once, with a pool: seconds of the second run."""
    rows = []
    for cell in _report("nvidia-h100/larger.json")["cells"]:
        if "peers" in cell:
            times = (f"{cell['peers'][name][0]:.1f}" for name in ("polars", "duckdb"))
            rows.append([f"{cell['groups']:,}", f"{cell['seconds'][-1]:.2f}", *times])
    return markdown(["possible keys", "seconds", "Polars", "DuckDB"], rows)


def beyond_device() -> str:
    """Distinct rows beyond the device, in a billion groups or more: seconds of each step."""
    rows = []
    for name in ("larger", "larger_keys"):
        for cell in _report(f"nvidia-h100/{name}.json")["cells"]:
            if cell["drawing"]:
                taken = (cell["steps"].get(step, 0) for step in STREAM_STEPS)
                times = (f"{s:.1f}" for s in (cell["seconds"][-1], cell["drawing"], *taken))
                limit, peak = cell["limit_bytes"], f"{cell['peak_bytes'] / 1e9:.0f}"
                pool = f"{limit / 1e9:.0f} GB" if limit else "no limit"
                rows.append([f"{cell['present']:,}", pool, peak, *times])
    head = ["groups", "pool", "most in use, GB", "all", "drawing alone", *STREAM_STEPS]
    return markdown(head, rows)


def by_sorts() -> str:
    """Rows sorted by key and reduced, beside ours: the maximum of two columns of 4 bytes."""
    arms = ("SGB-TR", "SGB-UR", "SGB-DE-TR", "SGB-DE-UR", "ours", "ours, sort=True")
    rows = []
    for cell in _report("nvidia-h100/sorts.json")["cells"]:
        zipf = f", Zipf {cell['zipf']}" if cell["zipf"] else ""
        times = (_ms(cell["median_ms"][arm]) for arm in arms)
        rows.append([f"{cell['key_bytes']}", f"{cell['groups']:,}{zipf}", *times])
    return markdown(["bytes of a key", "groups", *arms], rows)


def db_benchmark() -> str:
    """The ten questions of db-benchmark over a billion rows, by an H200 and by an H100."""
    rows: dict[str, list[str]] = {}
    for card in ("nvidia-h200", "nvidia-h100"):
        for query in _report(f"{card}/db_benchmark.json")["queries"]:
            row = rows.setdefault(query["question"], [query["question"], query["title"]])
            if "error" in query:
                row += ["no memory", "", ""]
                continue
            seconds, stock = query["seconds"], query.get("stock_seconds")
            said = query.get("stock", "").partition(":")[0].replace("more than", "over")
            row += [f"{seconds:.2f}", f"{stock:.2f}" if stock else said]
            row.append(f"{stock / seconds:.1f}" if stock else "")
    fields = ("ours, s", "stock", "ratio")
    head = [f"{card}: {field}" for card in ("H200", "H100") for field in fields]
    return markdown(["", "question", *head], list(rows.values()))


def two_gpus() -> str:
    """Whole queries by one GPU and by two: milliseconds, and two's time over one's."""
    cells = _report("nvidia-h200-x2/end_to_end.json")["cells"]
    medians = {
        (cell["name"], cell["workers"], arm): record["median_ms"]
        for cell in cells
        for arm, record in cell["arms"].items()
    }
    rows = []
    for cell in cells:
        if cell["workers"] != 2:
            continue
        row = [cell["input"], cell["query"], f"{cell['groups']:,}"]
        # the kernels' floor of persisted rows: libcudf may have served it while ours were compiled
        reads = cell["input"] == "parquet"
        for arm in ("stock-tuned", "ours", *(["floor"] if reads else [])):
            one, two = (medians[cell["name"], gpus, arm] for gpus in (1, 2))
            row.append(f"{one:,.0f}, {two:,.0f}: {two / one:.2f}")
        rows.append(row if reads else [*row, ""])
    return markdown(["rows", "query", "groups", "stock, tuned", "ours", "floor"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "highlights": highlight_table,
    **{
        table.__name__: table
        for table in (
            *(direct, folding, beside_cudf, skewed, gathered, sorted_rows, runs, probes),
            *(over_loads, little_memory, wrong_estimates, strings, tpch, tpch_gpu, small, cards),
            *(counted, few_groups, forced, out_of_core, by_sorts, db_benchmark),
            *(two_gpus, beyond_device),
        )
    },
}


def pages() -> list[Path]:
    """Pages that may have such tables."""
    patterns = ("README.md", "docs/*.md", "kernels/**/README.md")
    return [page for pattern in patterns for page in sorted(ROOT.glob(pattern))]


def with_tables(text: str) -> str:
    """A page's text with each table as results have it."""
    return MARKED.sub(lambda mark: f"{mark[1]}{TABLES[mark[2]]()}\n", text)


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
