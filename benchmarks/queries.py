"""The benchmark's queries: a table of frozen records.

A query is one function from a Dask DataFrame to a lazy result. Both arms run the same function,
as a user would: the plugin is switched on around it, the code does not change. The forms are those
of db-benchmark's Dask script (https://github.com/duckdblabs/db-benchmark,
``dask/groupby_dask.py``), with its own tuning for stock Dask kept (``shuffle_method="tasks"`` in
q6, ``split_out`` in q10); where that script no longer fits, the record's ``note`` says what is run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd

KEEP = MappingProxyType({"dropna": False, "observed": True})
"""db-benchmark's group-by options: missing keys form a group, absent categories do not."""

MULTIPLE = MappingProxyType(
    {"v3": ("sum", "mean", "min", "max", "std"), "v1": ("sum", "count")},
)
"""Seven outputs from two columns, the spec of the multi-aggregation queries."""

WIDE_ROWS, WIDE_COLUMNS, WIDE_PARTITIONS, WIDE_GROUPS = 200_000, 30, 8, 1_000


class Support(StrEnum):
    """How the plugin is expected to treat a query."""

    PLAN = "plan"
    """It runs by the plugin's plan."""

    STOCK = "stock"
    """It is not an aggregation: stock Dask runs it in both arms, the ratio says nothing."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query of the benchmark.

    Parameters
    ----------
    name : str
        Short name, used on the command line and in results.
    title : str
        What is computed, in db-benchmark's wording.
    build : callable
        Makes the lazy result from a Dask DataFrame of ``datagen``'s columns. It is called anew
        for every run: an expression that was computed once keeps what it derived.
    support : Support
        Whether the plugin is expected to run it.
    target : float, optional
        The least ratio of stock time to plugin time that is aimed at; None: outside the targets.
    default : bool
        Whether it runs when no queries are named.
    note : str
        What a reader of its figures must know.
    """

    name: str
    title: str
    # of db-benchmark a frame, of TPC-H all tables
    build: Callable[[Any], Any]
    support: Support = Support.PLAN
    target: float | None = 1.0
    default: bool = True
    note: str = ""


def _multiple() -> dict[str, list[str]]:
    # Dask takes lists, and keeps what it is given: a new dict per query.
    return {column: list(functions) for column, functions in MULTIPLE.items()}


def _q1(x: dd.DataFrame) -> Any:
    return x.groupby("id1", **KEEP).agg({"v1": "sum"})


def _q2(x: dd.DataFrame) -> Any:
    return x.groupby(["id1", "id2"], **KEEP).agg({"v1": "sum"})


def _q3(x: dd.DataFrame) -> Any:
    return x.groupby("id3", **KEEP).agg({"v1": "sum", "v3": "mean"})


def _q4(x: dd.DataFrame) -> Any:
    return x.groupby("id4", **KEEP).agg({"v1": "mean", "v2": "mean", "v3": "mean"})


def _q5(x: dd.DataFrame) -> Any:
    return x.groupby("id6", **KEEP).agg({"v1": "sum", "v2": "sum", "v3": "sum"})


def _q6(x: dd.DataFrame) -> Any:
    spec = {"v3": ["median", "std"]}
    return x.groupby(["id4", "id5"], **KEEP).agg(spec, shuffle_method="tasks")


def _q7(x: dd.DataFrame) -> Any:
    extremes = x.groupby("id3", **KEEP).agg({"v1": "max", "v2": "min"})
    return extremes.assign(range_v1_v2=extremes["v1"] - extremes["v2"])[["range_v1_v2"]]


def _q8(x: dd.DataFrame) -> Any:
    present = x[~x["v3"].isna()][["id6", "v3"]]
    largest = present.groupby("id6", **KEEP).apply(
        lambda group: group.nlargest(2, columns="v3"), meta={"v3": "float64"}
    )
    return largest[["v3"]]


def _q9(x: dd.DataFrame) -> Any:
    pairs = x[["id2", "id4", "v1", "v2"]].dropna(subset=["v1", "v2"])
    pairs = pairs.assign(
        v11=pairs["v1"] * pairs["v1"],
        v22=pairs["v2"] * pairs["v2"],
        v12=pairs["v1"] * pairs["v2"],
    )
    sums = pairs.groupby(["id2", "id4"], **KEEP).agg(
        {"v1": ["count", "sum"], "v2": "sum", "v11": "sum", "v22": "sum", "v12": "sum"}
    )
    return sums.map_partitions(_r_squared, meta={"r2": "float64"})


def _r_squared(sums: Any) -> Any:
    """Return the squared correlation from counts, sums and sums of (exact) integer products."""
    count = sums["v1", "count"].astype("float64")
    x, y = (sums[column, "sum"].astype("float64") for column in ("v1", "v2"))
    xx, yy, xy = (sums[column, "sum"].astype("float64") for column in ("v11", "v22", "v12"))
    covariance = count * xy - x * y
    r2 = covariance**2 / ((count * xx - x**2) * (count * yy - y**2))
    return r2.to_frame("r2")


def _q9_corr(x: dd.DataFrame) -> Any:
    return x[["id2", "id4", "v1", "v2"]].groupby(["id2", "id4"], **KEEP).corr()


def _q10(x: dd.DataFrame) -> Any:
    keys = ["id1", "id2", "id3", "id4", "id5", "id6"]
    result = x.groupby(keys, **KEEP).agg({"v3": "sum", "v1": "size"}, split_out=x.npartitions)
    return result.rename(columns={"v1": "count"})


def _q10_untuned(x: dd.DataFrame) -> Any:
    keys = ["id1", "id2", "id3", "id4", "id5", "id6"]
    result = x.groupby(keys, **KEEP).agg({"v3": "sum", "v1": "size"})
    return result.rename(columns={"v1": "count"})


def _multi_str(x: dd.DataFrame) -> Any:
    return x.groupby("id1", **KEEP).agg(_multiple())


def _multi_str2(x: dd.DataFrame) -> Any:
    return x.groupby(["id1", "id2"], **KEEP).agg(_multiple())


def _multi_int(x: dd.DataFrame) -> Any:
    return x.groupby("id6", **KEEP).agg(_multiple())


def _multi_skew(x: dd.DataFrame) -> Any:
    return x.groupby("skew", **KEEP).agg(_multiple())


def _nunique_few(x: dd.DataFrame) -> Any:
    return x.groupby("id4", **KEEP)["id5"].nunique()


def _nunique_many(x: dd.DataFrame) -> Any:
    return x.groupby("id4", **KEEP)["id6"].nunique()


def _wide(x: dd.DataFrame) -> Any:
    return _wide_frame(_client()).groupby("k").sum()


@functools.cache
def _wide_frame(client: str | None) -> dd.DataFrame:
    """Rows of many columns in small partitions, in the memory of this process or of a cluster."""
    drawn: dd.DataFrame = dd.from_map(_draw_wide, range(WIDE_PARTITIONS)).persist()
    return drawn


def _client() -> str | None:
    try:
        return str(distributed.get_client().id)
    except ValueError:
        return None


def _draw_wide(partition: int) -> pd.DataFrame:
    rng = np.random.default_rng(partition)
    rows = WIDE_ROWS // WIDE_PARTITIONS
    keys = {"k": rng.integers(0, WIDE_GROUPS, rows)}
    return pd.DataFrame(keys | {f"c{i}": rng.random(rows) for i in range(WIDE_COLUMNS)})


_TABLE = (
    Query("q1", "sum v1 by id1", _q1, target=2.0),
    Query("q2", "sum v1 by id1:id2", _q2, target=2.0),
    Query("q3", "sum v1 mean v3 by id3", _q3, target=2.0),
    Query("q4", "mean v1:v3 by id4", _q4),
    Query("q5", "sum v1:v3 by id6", _q5),
    Query("q6", "median v3 sd v3 by id4 id5", _q6, note="shuffle_method='tasks', as the script"),
    Query("q7", "max v1 - min v2 by id3", _q7, target=2.0),
    Query(
        "q8",
        "largest two v3 by id6",
        _q8,
        support=Support.STOCK,
        target=None,
        note="groupby.apply: not an aggregation; stock Dask runs it in both arms",
    ),
    Query(
        "q9",
        "regression v1 v2 by id2 id4",
        _q9,
        note="from sums of products; the script's groupby.apply runs a Python call per group",
    ),
    Query("q10", "sum v3 count by id1:id6", _q10, note="split_out=npartitions, as the script"),
    Query("q10_untuned", "sum v3 count by id1:id6", _q10_untuned, note="q10 without split_out"),
    Query("multi_str", "5 of v3, 2 of v1 by id1", _multi_str, target=2.0),
    Query("multi_str2", "5 of v3, 2 of v1 by id1:id2", _multi_str2, target=2.0),
    Query("multi_int", "5 of v3, 2 of v1 by id6", _multi_int, target=2.0),
    Query("multi_skew", "5 of v3, 2 of v1 by skew", _multi_skew, target=2.0, note="Zipf key"),
    Query("nunique_few", "distinct id5 by id4", _nunique_few, note="K * K distinct pairs"),
    Query("nunique_many", "distinct id6 by id4", _nunique_many, note="about N distinct pairs"),
    Query(
        "wide",
        f"sum of {WIDE_COLUMNS} columns",
        _wide,
        note=f"{WIDE_ROWS:,} rows of their own in {WIDE_PARTITIONS} partitions, "
        f"{WIDE_GROUPS} groups",
    ),
    Query(
        "q9_corr",
        "corr v1 v2 by id2 id4",
        _q9_corr,
        target=None,
        default=False,
        note="GroupBy.corr: stock Dask 2026.8.0 raises on a persisted frame, and runs a Python "
        "call per group otherwise",
    ),
)

QUERIES: Mapping[str, Query] = MappingProxyType({query.name: query for query in _TABLE})
"""Every query by name, in the order they run."""


def select(names: str | None) -> tuple[Query, ...]:
    """Return the queries that a comma-separated list names."""
    if names is None:
        return tuple(query for query in QUERIES.values() if query.default)
    if names == "all":
        return tuple(QUERIES.values())
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in QUERIES]
    if unknown:
        raise KeyError(f"no query named {', '.join(unknown)}; there are {', '.join(QUERIES)}")
    return tuple(QUERIES[name] for name in wanted)
