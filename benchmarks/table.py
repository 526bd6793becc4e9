"""A results file as a table that one can read in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MIB = 2**20

PEAK_MARGIN = 1.1
PEAK_FLOOR = 16 * MIB
"""Peaks of equal arms differ by about this factor, from how the threads happen to interleave, and
by some megabytes whatever the query: less than both is not called a higher peak."""


def render(results: dict[str, Any]) -> str:
    """Return every scheduler's queries as a table, with the lowest ratio below it."""
    machine, data, versions = results["machine"], results["data"], results["versions"]
    first, second = results["arms"]
    lines = [
        f"{data['name']}: {data['rows']:,} rows, {data['partitions']} partitions; "
        f"{machine['cpu']}, {machine['usable_cores'] or machine['cores']} cores, "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB",
        ", ".join(f"{name} {version}" for name, version in versions.items() if version),
        f"{results['date']}, commit {results['commit']}",
    ]
    heading = ["query", f"{first} s", f"{second} s", "ratio", "range", "target", "answer"]
    heading += [f"{first} MiB", f"{second} MiB", "cold s", "by plan"]
    for scheduler in results["schedulers"].values():
        entries = list(scheduler["queries"].values())
        rows = [_row(entry) for entry in entries]
        noise = ["wall", "noise", "cpu", "noise of cpu"]
        with_noise = any("noise" in entry for entry in entries)
        lines += ["", scheduler["title"]]
        lines += _columns([*heading, *(noise if with_noise else [])], rows)
        lines += _summary(entries, results["arms"])
    return "\n".join(lines)


def _row(entry: dict[str, Any]) -> list[str]:
    first, second = entry["arms"][:2]
    ratios, answer, plugin = entry["ratios"], entry["answer"], entry.get("plugin")

    def seconds(one: dict[str, Any]) -> str:
        return "failed" if one["error"] is not None else _number(one["median"], ".3f")

    said = "-"
    if answer is not None:
        said = "equal" if answer["equal"] else f"DIFFERS: {answer['detail']}"
    plans = {True: "yes", False: "no", None: "?"}
    row = [
        entry["name"],
        seconds(first),
        seconds(second),
        _number(entry["ratio"], ".2f"),
        f"{min(ratios):.2f}-{max(ratios):.2f}" if ratios else "-",
        _number(entry["target"], ".1f"),
        said,
        *(_number(one["peak"] and one["peak"] / MIB, ".0f") for one in (first, second)),
        "/".join(_number(one["cold"], ".2f") for one in entry["arms"]),
        "-" if plugin is None else plans[plugin["by_plan"]],
    ]
    if "noise" in entry:
        # median ratios and their intervals, and those of the base arm and itself, by both clocks
        cpu = entry["cpu"]
        row += [_interval(one) for one in (entry, entry["noise"], cpu, cpu["noise"])]
    return row


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _interval(found: dict[str, Any]) -> str:
    if found["interval"] is None:
        return "-"
    return f"{found['ratio']:.3f} ({found['interval'][0]:.3f}-{found['interval'][1]:.3f})"


def _columns(heading: list[str], rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in [heading, *rows]) for column in range(len(heading))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [heading, *rows]
    ]


def _summary(entries: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    judged = [entry for entry in entries if entry["target"] is not None and entry["ratios"]]
    if not judged:
        return []
    lowest = min(judged, key=lambda entry: entry["ratio"])
    highest = max(judged, key=lambda entry: entry["ratio"])
    lines = [
        f"ratios from {lowest['ratio']:.2f} ({lowest['name']}) "
        f"to {highest['ratio']:.2f} ({highest['name']})"
    ]
    if names[0] == names[1]:
        return [*lines, "both arms are the same: this spread is noise"]
    missed = [entry["name"] for entry in judged if entry["ratio"] < entry["target"]]
    lines.append(f"below target: {', '.join(missed) or 'none'}")
    for clock, text in (("wall", "by the clock"), ("cpu", "in CPU time")):
        slower = [e["name"] for e in entries if e.get("slower", {}).get(clock)]
        if any("slower" in entry for entry in entries):
            lines.append(f"slower beyond noise, {text}: {', '.join(slower) or 'none'}")
    grew = [entry["name"] for entry in judged if _grew(entry)]
    if any(one["peak"] is not None for entry in judged for one in entry["arms"]):
        lines.append(f"higher peak than {names[0]}: {', '.join(grew) or 'none'} (beyond noise)")
    return lines


def _grew(entry: dict[str, Any]) -> bool:
    first, second = (one["peak"] for one in entry["arms"][:2])
    if first is None or second is None:
        return False
    return bool(second > max(first * PEAK_MARGIN, first + PEAK_FLOOR))
