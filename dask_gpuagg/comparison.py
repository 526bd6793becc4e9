"""Group-bys with the plugin and without it, timed in turn: ``dask-gpuagg bench``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import pandas as pd
from dask.dataframe import from_pandas, read_parquet

from dask_gpuagg.frontend.activation import enabled
from dask_gpuagg.markup import text_table
from dask_gpuagg.reporting.units import time_text

QUERIES: dict[str, Callable[[Any], Any]] = {
    "sum": lambda rows: rows.groupby("k").v.sum(),
    "five": lambda rows: rows.groupby("k").v.agg(["sum", "mean", "min", "max", "count"]),
    "var": lambda rows: rows.groupby("k").v.var(),
    "two keys": lambda rows: rows.groupby(["k", "s"]).v.mean(),
    "text key": lambda rows: rows.groupby("s").v.sum(),
    "median": lambda rows: rows.groupby("k").v.median(),
}


@dataclass(frozen=True)
class Timing:
    """A query with the plugin and without: medians, and the median of the ratios of neighbours.

    Attributes
    ----------
    query : str
    stock, plugin : float
        Seconds.
    ratio : float
        How many times as long stock Dask takes.
    """

    query: str
    stock: float
    plugin: float
    ratio: float


def made_rows(rows: int, groups: int, partitions: int) -> Any:
    """A collection of integer and text keys and float values, in memory."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "k": rng.integers(0, groups, rows),
            "s": pd.array(rng.choice([f"id{i:03}" for i in range(100)], rows), dtype="string"),
            "v": rng.random(rows),
        }
    )
    return from_pandas(frame, npartitions=partitions)


def compare(rows: Any, queries: dict[str, Callable[[Any], Any]], repeats: int) -> list[Timing]:
    """Time queries on a collection.

    Parameters
    ----------
    rows : dask.dataframe collection
    queries : dict of str to callable
    repeats : int
        How often each runs with the plugin and without, in turn, after one run of both.

    Returns
    -------
    list of Timing

    Raises
    ------
    UnsupportedGroupBy
        For a query that the plugin does not run: it would be compared with itself.
    """
    found = []
    for name, query in queries.items():
        pairs = [(_stock(rows, query), _plugin(rows, query)) for _ in range(repeats + 1)][1:]
        stock, plugin = (statistics.median(times) for times in zip(*pairs, strict=True))
        found.append(Timing(name, stock, plugin, statistics.median(a / b for a, b in pairs)))
    return found


def _stock(rows: Any, query: Callable[[Any], Any]) -> float:
    with dask.config.set({"gpuagg.enabled": False}):
        return _timed(rows, query)


def _plugin(rows: Any, query: Callable[[Any], Any]) -> float:
    with enabled(), dask.config.set({"gpuagg.fallback": "raise"}):
        return _timed(rows, query)


def _timed(rows: Any, query: Callable[[Any], Any]) -> float:
    started = time.perf_counter()
    query(rows).compute()
    return time.perf_counter() - started


def of_files(
    path: str, by: list[str], values: list[str] | None, how: str
) -> tuple[Any, dict[str, Any]]:
    """A collection of Parquet files, and the query that is asked of it."""
    rows = read_parquet(path)
    missing = [label for label in (*by, *(values or ())) if label not in rows.columns]
    if missing:
        there = ", ".join(map(str, rows.columns))
        raise ValueError(f"{path} has no column {', '.join(missing)}; it has {there}")

    def query(rows: Any) -> Any:
        groups = rows.groupby(by)
        return (groups[values] if values else groups).agg(how)

    return rows, {f"{how} by {', '.join(by)}": query}


def table(found: list[Timing]) -> str:
    """Timings as text."""
    head = ("query", "stock Dask", "with the plugin", "times as fast")
    rows = [[t.query, time_text(t.stock), time_text(t.plugin), f"{t.ratio:.2f}"] for t in found]
    return "\n".join(text_table(head, rows))
