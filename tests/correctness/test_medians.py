"""Medians and quantiles of what our plans take none of, alone and beside what they do."""

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.data import arrow, in_pieces
from tests.judging import judge

pytestmark = pytest.mark.usefixtures("synchronous")

ROWS = range(8)
_days = pd.Series([datetime.date(2024, 2, 25 + i) if i != 3 else None for i in range(5)] * 2)
_days = _days.iloc[: len(ROWS)]
_hours = pd.Series([datetime.time(i % 5, 30) for i in ROWS])
VALUES: dict[str, Any] = {
    "date32": _days.astype(arrow(pa.date32())),
    "time64": _hours.astype(arrow(pa.time64("us"))),
    "decimal": pd.Series([Decimal(i) / 4 for i in ROWS]).astype(arrow(pa.decimal128(10, 2))),
    "complex": pd.Series(np.arange(8) + 1j),
    "period": pd.Series(pd.period_range("2020-01", periods=8, freq="M")),
}
QUERIES: dict[str, Callable[..., Any]] = {
    "median": lambda g, **o: g.d.median(**o),
    "median in agg": lambda g, **o: g.agg({"d": "median"}, **o),
    "median of a column": lambda g, **o: g.d.agg("median", **o),
    "median beside another": lambda g, **o: g.agg({"d": "median", "x": "max"}, **o),
    "quantile": lambda g, **o: g.agg({"d": "quantile"}, **o),
    "beside a median": lambda g, **o: g.agg({"x": "median", "d": "max"}, **o),
    "several beside a median": lambda g, **o: g.agg({"x": ["median"], "d": ["last", "size"]}, **o),
    "sum beside a median": lambda g, **o: g.agg({"x": "median", "d": "sum"}, **o),
}


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("kind", VALUES)
def test_as_stock_dask(kind: str, query: str):
    frame = pd.DataFrame(
        {"k": [0, 1, 0, 1, 2, 0, 1, 2], "x": [1.0, None, 3, 4, 5, 6, 7, 8], "d": VALUES[kind]}
    )
    pieces = [frame.iloc[:3], frame.iloc[3:6], frame.iloc[6:]]
    judge(
        lambda f, **o: QUERIES[query](f.groupby("k"), **o),
        lambda: in_pieces(pieces),
        pieces,
        [{}, {"split_out": 2}],
    )


@pytest.mark.parametrize("found", ["int64[pyarrow]", "int32[pyarrow]", "double[pyarrow]"])
@pytest.mark.parametrize(
    "promised", ["int64[pyarrow]", "string[pyarrow]", "timestamp[us][pyarrow]"]
)
def test_lists_beside_a_median(promised: str, found: str):
    """They are Arrow's where the column is, as in pandas; stock Dask's alone are objects."""
    numbers = pd.Series([1, 2, 3, 4], dtype="Int64")
    first = pd.DataFrame({"k": [0, 1, 0, 1], "x": [1, 2, 3, 4], "d": numbers.astype(promised)})
    held = numbers.mask(numbers > 3).astype(found if promised.startswith("int") else promised)
    second = first.assign(d=held)
    pieces = [first, second.set_axis(range(4, 8))]
    judge(
        lambda f, **o: f.groupby("k").agg({"x": "median", "d": list}, **o),
        lambda: in_pieces(pieces, first.iloc[:0]),
        pieces,
        [{}, {"split_out": 2}],
    )
