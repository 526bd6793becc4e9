"""Partitions that are not what the metadata says: stock Dask, the plugin and pandas compared."""

import datetime
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from tests.data import partitioned
from tests.deviations import Deviating, deviating, thirds
from tests.judging import judge

pytestmark = pytest.mark.usefixtures("synchronous")

PLANS: dict[str, dict[str, Any]] = {
    "default": {},
    "tree": {"split_out": 1, "split_every": 2},
    "tasks": {"split_out": 2, "shuffle_method": "tasks"},
    "disk": {"split_out": 3, "shuffle_method": "disk"},
}


@settings(max_examples=settings.default.max_examples // 2)
@given(deviating())
def test_random_partitions(case: Deviating):
    frame = case.collection()
    judge(case.query, lambda: frame, case.pieces, list(PLANS.values()), case.ordered)


_rng = np.random.default_rng(14)
ROWS = 40
FRAME = pd.DataFrame(
    {
        "k": _rng.integers(0, 4, ROWS),
        "x": _rng.integers(-5, 6, ROWS),
        "b": _rng.random(ROWS) < 0.5,
        "t": pd.Series(_rng.choice(["a", "b", "c"], ROWS), dtype="str"),
        "row": np.arange(ROWS),
    }
)


def _joined(folder: Path) -> Any:
    """Rows of the left side alone in the first partitions, and as floats in all."""
    left = partitioned(FRAME[["k", "row"]], 4)
    return left.merge(
        dd.from_pandas(FRAME[["x", "b", "t", "row"]].iloc[20:], npartitions=1), "left"
    )


def _mapped(folder: Path) -> Any:
    data = partitioned(FRAME, 4)
    return data.assign(
        k=data.k.map({0: 5, 1: 6, 2: 7}, meta=("k", "int64")),
        t=data.t.map({"a": "A", "b": "B"}, meta=("t", "str")),
    )


def _files(tables: list[pa.Table]) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        for number, table in enumerate(tables):
            pq.write_table(table, folder / f"part.{number}.parquet")
        return dd.read_parquet(folder, filesystem="arrow")

    return read


_days = [datetime.date(2024, 2, 28) + datetime.timedelta(days=i) for i in range(3)]
_money = [Decimal(i) / 4 for i in range(3)]


def _dated(*rows: int) -> pa.Table:
    # None is the row of a null
    days, money = ([values[i] if i >= 0 else None for i in rows] for values in (_days, _money))
    return pa.table(
        {
            "k": pa.array(days, pa.date32()),
            "x": pa.array(money, pa.decimal128(12, 2)),
            "b": pa.array([i % 2 == 0 for i in rows]),
            "t": pa.array([f"t{i}" for i in rows]),
            "row": pa.array(range(len(rows))),
        }
    )


def _read_csv(folder: Path) -> Any:
    """A column without a null is integers in one file, one with a null floats in another."""
    FRAME.iloc[:20].to_csv(folder / "0.csv", index=False)
    FRAME.iloc[20:].assign(x=FRAME.x.where(FRAME.x > 0)).to_csv(folder / "1.csv", index=False)
    meta = FRAME.iloc[:0]
    return dd.from_map(pd.read_csv, [folder / "0.csv", folder / "1.csv"], meta=meta)


SOURCES: dict[str, Callable[[Path], Any]] = {
    "left join": _joined,
    "where": lambda folder: partitioned(FRAME, 4).where(partitioned(FRAME, 4).row > 12),
    "map of a dict": _mapped,
    "dates and decimals": _files([_dated(0, 1, 2, 1), _dated(2, 2, 0)]),
    "dates and decimals with nulls": _files([_dated(0, 1, 2, 1), _dated(2, -1, -1), _dated(-1)]),
    "files of which one has nulls": _read_csv,
}
QUERIES: dict[str, Callable[..., Any]] = {
    "sizes": lambda f, **o: f.groupby("k").size(**o),
    "sums": lambda f, **o: f.groupby("k").x.sum(**o),
    "extremes": lambda f, **o: f.groupby("k", dropna=False)[["x", "row"]].max(**o),
    "several": lambda f, **o: f.groupby("k").agg(
        {"x": ["count", "min", "first"], "row": "sum"}, **o
    ),
    "flags": lambda f, **o: f.groupby("b", sort=True).agg({"row": "sum", "x": "count"}, **o),
    "text": lambda f, **o: f.groupby(["t", "b"]).agg({"row": ["mean", "max"]}, **o),
    "flags as values": lambda f, **o: f.groupby("t").b.sum(**o),
    "distinct": lambda f, **o: f.groupby("t").x.nunique(**o),
    "lists": lambda f, **o: f.groupby("k").x.agg(list, **o),
    "value counts": lambda f, **o: f.groupby("k").t.value_counts(**o),
    "callable": lambda f, **o: f.groupby(thirds).x.count(**o),
    "median": lambda f, **o: f.groupby(["k", "t"]).row.median(**o),
}


# the labels of rows from files depend on which of them Dask reads together
WITHOUT_LABELS = {"dates and decimals", "dates and decimals with nulls"}
# every second pair, so that each query has three sources, and each source half of the queries
PIPELINES = [
    (source, query)
    for i, source in enumerate(SOURCES)
    for j, query in enumerate(QUERIES)
    if (i + j) % 2 == 0 and not (query == "callable" and source in WITHOUT_LABELS)
]


@pytest.mark.parametrize(("source", "query"), PIPELINES)
def test_pipelines(source: str, query: str, tmp_path: Path):
    # small files would be read together, and be one partition
    with dask.config.set({"dataframe.parquet.minimum-partition-size": 1}):
        collection = SOURCES[source](tmp_path)
        pieces = [part.compute() for part in collection.partitions]
        plans = [PLANS["default"], PLANS["tasks"]]
        judge(QUERIES[query], lambda: collection, pieces, plans)
