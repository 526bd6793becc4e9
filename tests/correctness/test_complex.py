"""Complex values in partitions of a column that was promised real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.data import in_pieces
from tests.judging import judge

pytestmark = pytest.mark.usefixtures("synchronous")

METHODS = (
    "sum", "mean", "std", "count", "size", "first", "last", "nunique", "unique", "value_counts",
    "median", "min",
)  # fmt: skip
NAMES = ("sum", "sem", "first", "any", "all", list)
QUERIES: dict[str, Callable[..., Any]] = {
    **{
        f".{name}()": lambda f, _name=name, **o: getattr(f.groupby("k").x, _name)(**o)
        for name in METHODS
    },
    **{
        f"agg of {name}": lambda f, _name=name, **o: f.groupby("k").agg({"x": _name, "y": "sum"})
        for name in NAMES
    },
    "key": lambda f, **o: f.groupby("x").y.sum(**o),
    "beside another key": lambda f, **o: f.groupby(["k", "x"]).agg({"y": ["sum", "mean"]}, **o),
}
PLANS: dict[str, dict[str, Any]] = {
    "tree": {"split_every": 2},
    "exchange": {"split_out": 2, "shuffle_method": "tasks"},
}


def real(dtype: str) -> pd.DataFrame:
    x = pd.Series([1, 2, 3, 4, 0]).astype(dtype)
    return pd.DataFrame({"k": [0, 1, 0, 1, 2], "x": x, "y": [1.0, 2.0, 3.0, 4.0, 5.0]})


def mixed(dtype: str) -> list[pd.DataFrame]:
    """A real partition, one of complex numbers with a null, one of complex numbers alone."""
    some = real(dtype).assign(k=[0, 1, 0, 3, 1], x=[1 + 2j, 3, 4j, 5, np.nan])
    few = some.iloc[:2]
    return [real(dtype), some.set_axis(range(5, 10)), few.set_axis([10, 11])]


@pytest.mark.parametrize(
    ("query", "promised"),
    [
        (query, promised)
        for query in QUERIES
        for promised in ("float64", "Int64")
        # pandas makes objects of masked and complex numbers, whose medians may be complex
        if (query, promised) != (".median()", "Int64")
    ],
)
def test_where_stock_dask_answers(query: str, promised: str):
    pieces, plans = mixed(promised), list(PLANS.values())
    judge(QUERIES[query], lambda: in_pieces(pieces, real(promised).iloc[:0]), pieces, plans)


@pytest.mark.parametrize("plan", PLANS)
def test_products(plan: str):
    pieces = mixed("int64")
    with dask_gpuagg.enabled():
        got = in_pieces(pieces, pieces[0].iloc[:0]).groupby("k").x.prod(**PLANS[plan]).compute()
    data = pd.concat(pieces).dropna()
    want = {k: np.prod(rows) for k, rows in data.groupby("k").x}
    assert got.to_dict() == want


def test_the_variance_is_that_of_the_standard_deviation():
    """It is of the real parts: pandas has no variance of complex values, stock Dask several."""
    pieces = mixed("float64")
    with dask_gpuagg.enabled():
        query = in_pieces(pieces, pieces[0].iloc[:0]).groupby("k").x.agg(["var", "std"])
        with pytest.warns(np.exceptions.ComplexWarning):
            got = query.compute()
    want = pd.concat(pieces).assign(x=lambda f: np.real(f.x)).groupby("k").x.agg(["var", "std"])
    pd.testing.assert_frame_equal(got.sort_index(), want)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "count", "first", "median"])
def test_objects(name: str):
    """Python's complex numbers beside None are numbers, as other objects are."""
    held = real("float64").assign(x=pd.Series([1j, None, 2, 3.5 + 1j, np.nan], dtype=object))
    pieces = [real("float64"), held.set_axis(range(5, 10))]
    # or they would be text
    as_they_are = dask.config.set({"dataframe.convert-string": False})
    with as_they_are, dask_gpuagg.enabled():
        query = getattr(in_pieces(pieces, pieces[0].iloc[:0]).groupby("k").x, name)()
        got = query.compute().sort_index()
    data = pd.concat(pieces)
    numbers = data.x.where(data.x.notna(), np.nan).astype("complex128")
    # of complex numbers pandas has no product and no first one, and of objects no median
    alone = name in ("prod", "first")
    want = getattr((data.x.dropna() if alone else numbers).groupby(data.k), name)()
    pd.testing.assert_series_equal(got, want.astype("complex128") if alone else want)


@pytest.mark.parametrize("name", ["cov", "corr"])
def test_matrices(name: str):
    pieces = mixed("float64")
    judge(
        lambda f: getattr(f.groupby("k")[["x", "y"]], name)(),
        lambda: in_pieces(pieces, pieces[0].iloc[:0]),
        pieces,
        [{}],
    )
