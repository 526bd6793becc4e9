"""The benchmark's queries: a table of frozen records.

A query is one function from a Dask DataFrame to a lazy result. Both arms run the same function,
as a user would: the plugin is switched on around it, the code does not change. The forms are those
of db-benchmark's Dask script (https://github.com/duckdblabs/db-benchmark,
``dask/groupby_dask.py``), with its own tuning for stock Dask kept (``shuffle_method="tasks"`` in
q6, ``split_out`` in q10). The regression q9 is computed from sums of products, because the script's
``groupby.apply`` calls Python once for each group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd

WIDE_ROWS, WIDE_COLUMNS, WIDE_PARTITIONS, WIDE_GROUPS = 200_000, 30, 8, 1_000


@dataclass(frozen=True, slots=True)
class Query:
    """One query: its short name, and what it computes in db-benchmark's wording.

    ``build`` makes the lazy result from a Dask DataFrame of ``datagen``'s columns, or of TPC-H from
    all tables. It is called anew for every run: an expression that was computed once keeps what it
    derived. ``support`` is ``stock`` for what is no aggregation, where the ratio says nothing.
    ``target`` is the least ratio of stock time to plugin time that is aimed at, None outside the
    targets.
    """

    name: str
    title: str
    build: Callable[[Any], Any]
    support: Literal["plan", "stock"] = "plan"
    target: float | None = 1.0


def _by(frame: Any, *keys: str) -> Any:
    """Group by db-benchmark's options: missing keys form a group, absent categories do not."""
    labels = list(keys) if len(keys) > 1 else keys[0]
    return frame.groupby(labels, dropna=False, observed=True)


def _grouped(*keys: str, **aggregations: Any) -> Callable[[Any], Any]:
    """A query of some aggregations of each column; a dict for each call, because Dask keeps it."""
    return lambda x: _by(x, *keys).agg(
        {c: list(f) if isinstance(f, tuple) else f for c, f in aggregations.items()}
    )


def _seven(*keys: str) -> Callable[[Any], Any]:
    """Seven outputs from two columns."""
    return _grouped(*keys, v3=("sum", "mean", "min", "max", "std"), v1=("sum", "count"))


def _median(x: dd.DataFrame) -> Any:
    return _by(x, "id4", "id5").agg({"v3": ["median", "std"]}, shuffle_method="tasks")


def _range(x: dd.DataFrame) -> Any:
    extremes = _by(x, "id3").agg({"v1": "max", "v2": "min"})
    return extremes.assign(range_v1_v2=extremes["v1"] - extremes["v2"])[["range_v1_v2"]]


def _regression(x: dd.DataFrame) -> Any:
    pairs = x[["id2", "id4", "v1", "v2"]].dropna(subset=["v1", "v2"])
    pairs = pairs.assign(
        v11=pairs["v1"] * pairs["v1"],
        v22=pairs["v2"] * pairs["v2"],
        v12=pairs["v1"] * pairs["v2"],
    )
    sums = _by(pairs, "id2", "id4").agg(
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


def _nearly_unique(x: dd.DataFrame) -> Any:
    keys = ["id1", "id2", "id3", "id4", "id5", "id6"]
    result = _by(x, *keys).agg({"v3": "sum", "v1": "size"}, split_out=x.npartitions)
    return result.rename(columns={"v1": "count"})


@functools.cache
def _wide_frame(
    client: str | None, columns: int, rows: int, partitions: int = WIDE_PARTITIONS
) -> dd.DataFrame:
    """Rows of many columns in small partitions, in the memory of this process or of a cluster."""
    draw = functools.partial(_draw_wide, columns, rows // partitions)
    drawn: dd.DataFrame = dd.from_map(draw, range(partitions)).persist()
    return drawn


def _client() -> str | None:
    try:
        return str(distributed.get_client().id)
    except ValueError:
        return None


def _draw_wide(columns: int, rows: int, partition: int) -> pd.DataFrame:
    rng = np.random.default_rng(partition)
    keys = {"k": rng.integers(0, WIDE_GROUPS, rows)}
    return pd.DataFrame(keys | {f"c{i}": rng.random(rows) for i in range(columns)})


_TABLE = (
    Query("q1", "sum v1 by id1", _grouped("id1", v1="sum"), target=2.0),
    Query("q2", "sum v1 by id1:id2", _grouped("id1", "id2", v1="sum"), target=2.0),
    Query("q3", "sum v1 mean v3 by id3", _grouped("id3", v1="sum", v3="mean"), target=2.0),
    Query("q4", "mean v1:v3 by id4", _grouped("id4", v1="mean", v2="mean", v3="mean")),
    Query("q5", "sum v1:v3 by id6", _grouped("id6", v1="sum", v2="sum", v3="sum")),
    Query("q6", "median v3 sd v3 by id4 id5", _median),
    Query("q7", "max v1 - min v2 by id3", _range, target=2.0),
    Query("q9", "regression v1 v2 by id2 id4", _regression),
    Query("q10", "sum v3 count by id1:id6", _nearly_unique),
    Query("multi_str", "5 of v3, 2 of v1 by id1", _seven("id1"), target=2.0),
    Query("multi_str2", "5 of v3, 2 of v1 by id1:id2", _seven("id1", "id2"), target=2.0),
    Query("multi_int", "5 of v3, 2 of v1 by id6", _seven("id6"), target=2.0),
    Query("nunique_few", "distinct id5 by id4", lambda x: _by(x, "id4")["id5"].nunique()),
    # these have rows of their own
    Query(
        "wide",
        f"sum of {WIDE_COLUMNS} columns",
        lambda x: _wide_frame(_client(), WIDE_COLUMNS, WIDE_ROWS).groupby("k").sum(),
    ),
    Query(
        "hundreds",
        "mean of 400 columns",
        lambda x: _wide_frame(_client(), 400, 32_000).groupby("k").mean(),
    ),
    Query(
        "parts_sum",
        "sum, 600 partitions",
        lambda x: _wide_frame(_client(), 1, 600_000, 600).groupby("k").c0.sum(),
    ),
    Query(
        "parts_median",
        "median, 600 partitions",
        lambda x: _wide_frame(_client(), 1, 600_000, 600).groupby("k").agg({"c0": "median"}),
    ),
)

QUERIES: Mapping[str, Query] = MappingProxyType({query.name: query for query in _TABLE})
"""Every query by name, in the order they run."""
