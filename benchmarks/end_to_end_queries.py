"""Queries, data and expected answers of ``benchmarks.end_to_end``.

Everything is drawn from a partition's number, so that the expected answer is made from the rows
again, whether a query met them in memory or in a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

HOST, DEVICE = "host", "device"
TOLERANCE = {"v": 1e-9, "w": 1e-3}
"""Largest relative difference that is right, by column. cuDF sums float32 as float32."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query: pairs of column and aggregation."""

    name: str
    title: str
    aggregations: tuple[tuple[str, str], ...]

    @property
    def values(self) -> list[str]:
        """Columns that are aggregated."""
        return list(dict.fromkeys(column for column, _ in self.aggregations))

    @property
    def labels(self) -> list[str]:
        """Columns of the answer."""
        return [f"{column}_{function}" for column, function in self.aggregations]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row that have to be read, an int64 key included."""
        return 8 + sum({"v": 8, "w": 4}[column] for column in self.values)

    def build(self, frame: Any, key: str, **tuning: Any) -> Any:
        """The query as a user writes it, on a collection or on a frame."""
        grouped = frame.groupby(key)
        if len(self.aggregations) == 1:
            ((column, function),) = self.aggregations
            return getattr(grouped[column], function)(**tuning)
        spec: dict[str, list[str]] = {}
        for column, function in self.aggregations:
            spec.setdefault(column, []).append(function)
        return grouped.agg(spec, **tuning)


QUERIES = {
    query.name: query
    for query in (
        Query("sum", "sum of one column", (("v", "sum"),)),
        Query(
            "five",
            "sum, count, min, max and a mean",
            (("v", "sum"), ("v", "count"), ("v", "min"), ("v", "max"), ("w", "mean")),
        ),
        Query("median", "median of one column", (("v", "median"),)),
    )
}


@dataclass(frozen=True, slots=True)
class Rows:
    """How rows are drawn: how many, in how many partitions, and the groups of each key column."""

    rows: int
    partitions: int
    keys: tuple[tuple[str, int], ...]
    engine: str

    def draw(self, index: int) -> Any:
        """A partition: int64 keys, float64 ``v`` and float32 ``w``, uniform."""
        xp = arrays(self.engine)
        rng = xp.random.default_rng(index)
        n = (self.rows * (index + 1)) // self.partitions - (self.rows * index) // self.partitions
        columns = {label: rng.integers(0, g, n, dtype="int64") for label, g in self.keys}
        columns["v"] = rng.random(n)
        columns["w"] = rng.random(n, dtype="float32")
        return frames(self.engine).DataFrame(columns)

    def write(self, index: int, folder: Path) -> None:
        """A partition as a Parquet file."""
        path = folder / f"{index:04d}.parquet"
        if self.engine == HOST:
            self.draw(index).to_parquet(path, compression="snappy", index=False)
        else:
            # several row groups: a reader may cut a file
            self.draw(index).to_parquet(
                path, compression="snappy", index=False, row_group_size_rows=2_500_000
            )


def arrays(engine: str) -> Any:
    """NumPy or CuPy."""
    if engine == HOST:
        return np
    import cupy

    return cupy


def frames(engine: str) -> Any:
    """Pandas or cuDF."""
    if engine == HOST:
        return pd
    import cudf

    return cudf


def probes(groups: int) -> list[int]:
    """Keys whose groups are compared one by one."""
    return sorted({0, 1 % groups, groups // 2, groups - 1})


def seen_in(indices: Sequence[int], rows: Rows, key: str) -> dict[str, Any]:
    """What some partitions add to the expected answer."""
    xp, groups = arrays(rows.engine), dict(rows.keys)[key]
    seen = xp.zeros(groups, dtype=bool)
    found: dict[str, list[Any]] = {"v_sum": [], "v_min": [], "v_max": [], "w_sum": [], "rows": []}
    for index in indices:
        frame = rows.draw(index)
        seen[frame[key].values] = True
        of_probes = frame[frame[key].isin(probes(groups))][[key, "v", "w"]]
        found["rows"].append(of_probes if rows.engine == HOST else of_probes.to_pandas())
        for function in ("sum", "min", "max"):
            found[f"v_{function}"].append(float(getattr(frame["v"], function)()))
        found["w_sum"].append(float(frame["w"].astype("float64").sum()))
    packed = xp.packbits(seen)
    return found | {"seen": packed if rows.engine == HOST else packed.get()}


def expected(found: Iterable[Mapping[str, Any]], rows: Rows, key: str) -> dict[str, Any]:
    """The expected answer in the form of :func:`summary`, with the probed groups of all queries."""
    parts = list(found)
    seen = np.bitwise_or.reduce([part["seen"] for part in parts])
    probed = pd.concat([frame for part in parts for frame in part["rows"]])
    answers = pd.DataFrame(index=sorted(probed[key].unique()))
    for query in QUERIES.values():
        for column, function in query.aggregations:
            values = probed.groupby(key)[column]
            answers[f"{column}_{function}"] = values.agg(function).astype("float64")
    return {
        "groups": int(np.bitwise_count(seen).sum()),
        "v_sum": math.fsum(value for part in parts for value in part["v_sum"]),
        "v_min": min(value for part in parts for value in part["v_min"]),
        "v_max": max(value for part in parts for value in part["v_max"]),
        "v_count": rows.rows,
        "w_sum": math.fsum(value for part in parts for value in part["w_sum"]),
        "probes": {int(k): row for k, row in answers.to_dict("index").items()},
    }


def summary(result: Any, query: Query, key: str, wanted: Sequence[int]) -> dict[str, Any]:
    """What is compared of an answer, or of one partition of it."""
    frame = result.to_frame() if result.ndim == 1 else result.copy(deep=False)
    frame.columns = query.labels
    frame = frame.reset_index()
    found: dict[str, Any] = {"groups": len(frame)}
    for label in query.labels:
        if len(frame) and label.partition("_")[2] in ("sum", "count", "min", "max"):
            function = label.partition("_")[2].replace("count", "sum")
            found[label] = float(getattr(frame[label], function)())
    if len(frame) and "w_mean" in query.labels:
        found["w_sum"] = float((frame["w_mean"].astype("float64") * frame["v_count"]).sum())
    of_probes = frame[frame[key].isin(wanted)]
    if not isinstance(of_probes, pd.DataFrame):
        of_probes = of_probes.to_pandas()
    rows = of_probes.to_dict("records")
    found["probes"] = {int(row.pop(key)): row for row in rows}
    return found


def together(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Summaries of the partitions of one answer as one."""
    ways = {"v_min": min, "v_max": max}
    found: dict[str, Any] = {"groups": 0, "probes": {}}
    for part in parts:
        found["groups"] += part["groups"]
        found["probes"] |= part["probes"]
        for label in part.keys() - {"groups", "probes"}:
            way = ways.get(label, lambda values: sum(values))
            found[label] = way([found[label], part[label]]) if label in found else part[label]
    return found


def judge(found: Mapping[str, Any], right: Mapping[str, Any], query: Query) -> dict[str, Any]:
    """Compare an answer with the expected one."""
    problems: list[str] = []
    largest = {"v": 0.0, "w": 0.0}

    def compare(what: str, label: str, one: float, other: float) -> None:
        column, _, function = label.partition("_")
        if function in ("count", "min", "max"):
            difference, allowed = float(one != other), 0.0
        else:
            difference, allowed = abs(one - other) / max(abs(other), 1e-300), TOLERANCE[column]
        largest[column] = max(largest[column], difference)
        if not difference <= allowed:
            problems.append(f"{what}{label} is {one!r} instead of {other!r}")

    if found["groups"] != right["groups"]:
        problems.append(f"{found['groups']:,} groups instead of {right['groups']:,}")
    for label in found.keys() - {"groups", "probes"}:
        compare("over all groups ", label, found[label], right[label])
    if found["probes"].keys() != right["probes"].keys():
        problems.append(f"keys {sorted(found['probes'])} instead of {sorted(right['probes'])}")
    for key in found["probes"].keys() & right["probes"].keys():
        for label in query.labels:
            one, other = found["probes"][key][label], right["probes"][key][label]
            compare(f"of key {key} ", label, one, other)
    return {"right": not problems, "problems": problems[:10], "largest": largest}
