"""The results file of ``benchmarks.end_to_end``: merged, written, and shown as a table."""

from __future__ import annotations

import json
import statistics
from importlib import metadata
from pathlib import Path
from typing import Any

IDENTITY = ("engine", "name", "rows", "groups", "partitions", "workers", "protocol")
"""What makes a cell: measured again, it takes the place of the earlier one, arm by arm."""

PACKAGES = (
    "cudf-cu12",
    "cudf-cu13",
    "cudf-polars-cu12",
    "cudf-polars-cu13",
    "dask-cuda",
    "distributed-ucxx-cu12",
    "distributed-ucxx-cu13",
    "duckdb",
    "polars",
)


def versions() -> dict[str, str]:
    """Of the peers, and of what a GPU cluster is made of; what is not installed is left out."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def load(path: Path, append: bool) -> dict[str, Any]:
    """An earlier file to add to, or a new one."""
    if append and path.exists():
        results: dict[str, Any] = json.loads(path.read_text())
        return results
    return {"schema": 1, "runs": [], "cells": []}


def add(results: dict[str, Any], entry: dict[str, Any]) -> None:
    """Put a cell in the place of an earlier one; arms that were not measured again stay."""
    for i, earlier in enumerate(results["cells"]):
        if all(earlier[label] == entry[label] for label in IDENTITY):
            measured = {k for k, arm in entry["arms"].items() if not came_too_late(arm)}
            kept = {k: arm for k, arm in earlier["arms"].items() if k not in measured}
            if "plan" not in entry and "plan" in earlier:
                entry |= {"plan": earlier["plan"], "kernels": earlier["kernels"]}
            entry["arms"] = entry["arms"] | kept
            entry["ratios"] = ratios(entry["arms"])
            results["cells"][i] = entry
            return
    results["cells"].append(entry)


def came_too_late(arm: dict[str, Any]) -> bool:
    """Whether the deadline left nothing of an arm."""
    return "stopped" in arm and "stopped_s" not in arm and arm["first_ms"] is None


def ratios(arms: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Median over the repetitions of each arm's time divided by ours, above 1 if ours is faster.

    Only of arms that alternated with ours: those of another call, or that ran once, have none.
    """
    ours, found = arms.get("ours", {}), {}
    for name, arm in arms.items():
        pairs = list(zip(arm.get("times_ms", ()), ours.get("times_ms", ()), strict=False))
        if name not in ("ours", "floor") and pairs and arm["run"] == ours["run"]:
            found[name] = statistics.median(other / one for other, one in pairs)
    return found


def line(entry: dict[str, Any]) -> str:
    """A cell as one line."""
    about = f"{entry['name']} {entry['workers']} worker(s) {entry['protocol']}:"
    if "error" in entry:
        return f"{about} {entry['error']}"
    return " | ".join([about, *(f"{name} {shown(arm)}" for name, arm in entry["arms"].items())])


def shown(arm: dict[str, Any]) -> str:
    """An arm in a few words: milliseconds (the first run's in brackets), or what went wrong."""
    for reason in ("skipped", "error"):
        if reason in arm:
            return f"{reason}: {arm[reason]}"
    text = "-" if arm.get("median_ms") is None else f"{arm['median_ms']:,.1f} ms"
    if arm.get("first_ms") is not None:
        text += f" ({arm['first_ms']:,.0f})"
    if "first_warm_ms" in arm:
        text += f" (new data {arm['first_warm_ms']:,.0f})"
    if "stopped_s" in arm:
        text += f" stopped after {arm['stopped_s']:.0f} s"
    if arm.get("answer") and not arm["answer"]["right"]:
        text += f" WRONG: {'; '.join(arm['answer']['problems'])}"
    return text
