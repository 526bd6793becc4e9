"""The queries of ``benchmarks.host``: a table of frozen records, and the rows that they read.

The questions are those of ``examples/db_benchmark.py``, and more on the same columns. q8 is left
out: of stock Dask it is ``groupby.apply``, which calls Python once for each group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd

from benchmarks import machine
from benchmarks.arms import Query

EXAMPLE = machine.example("db_benchmark")


def draw(rows: int, partitions: int) -> dd.DataFrame:
    """The columns of db-benchmark, in the memory of this process or of a cluster."""
    sizes = [rows * (i + 1) // partitions - rows * i // partitions for i in range(partitions)]
    meta = EXAMPLE.part(0, 2, rows, False).iloc[:0]
    lazy = dd.from_map(EXAMPLE.part, range(partitions), sizes, of=rows, gpu=False, meta=meta)
    drawn: dd.DataFrame = lazy.persist()
    len(drawn)  # workers draw it meanwhile
    return drawn


def _seven(*keys: str) -> Callable[[Any], Any]:
    """Seven outputs from two columns."""
    return lambda x: x.groupby(list(keys)).agg(
        {"v3": ["sum", "mean", "min", "max", "std"], "v1": ["sum", "count"]}
    )


@functools.cache
def _wide_frame(client: str | None, columns: int, rows: int, partitions: int = 8) -> dd.DataFrame:
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
    keys = {"k": rng.integers(0, 1_000, rows)}
    return pd.DataFrame(keys | {f"c{i}": rng.random(rows) for i in range(columns)})


_TABLE = (
    *(
        Query(name, question.title, question.ask, stock=question.stock)
        for name, question in EXAMPLE.QUESTIONS.items()
        if name != "q8"
    ),
    Query("multi_str", "5 of v3, 2 of v1 by id1", _seven("id1")),
    Query("multi_str2", "5 of v3, 2 of v1 by id1:id2", _seven("id1", "id2")),
    Query("multi_int", "5 of v3, 2 of v1 by id6", _seven("id6")),
    Query("nunique_few", "distinct id5 by id4", lambda x: x.groupby("id4")["id5"].nunique()),
    # these have rows of their own
    Query(
        "wide",
        "sum of 30 columns",
        lambda x: _wide_frame(_client(), 30, 200_000).groupby("k").sum(),
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
