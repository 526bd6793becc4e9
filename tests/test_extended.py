"""Aggregations that Dask refuses: dtypes of cuDF's results, decided without cuDF."""

from __future__ import annotations

from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.dask_expr._collection import new_collection

import dask_gpuagg
from dask_gpuagg.device_meta import cudf_dtype
from dask_gpuagg.extended import Stock, extend
from dask_gpuagg.plan import Requested


@pytest.mark.parametrize(
    ("name", "dtype", "wide"),
    [
        ("sum", np.dtype("int8"), "int64"),
        ("sum", np.dtype("uint32"), "uint64"),
        ("sum", pd.Int32Dtype(), "Int64"),
        ("prod", np.dtype("bool"), "int64"),
        ("sum", np.dtype("int64"), None),
        ("sum", np.dtype("float32"), None),
        ("mean", np.dtype("float32"), "float64"),
        ("var", np.dtype("float32"), "float64"),
        ("min", np.dtype("int8"), None),
        ("count", np.dtype("int64"), None),
    ],
)
def test_dtypes_are_those_of_cudf(name: str, dtype: object, wide: str | None) -> None:
    assert cudf_dtype(Requested("v", name, "v"), dtype) == wide


class Decimal64Dtype:
    """Stands for cuDF's, which cannot be imported here."""

    MAX_PRECISION = 18

    def __init__(self, precision: int, scale: int) -> None:
        self.precision, self.scale = precision, scale


Decimal64Dtype.__module__ = "cudf.core.dtypes"


def test_dtypes_of_decimals() -> None:
    source = Decimal64Dtype(9, 2)
    kept = {n: cudf_dtype(Requested("v", n, "v"), None, source) for n in ("min", "mean", "first")}
    assert all(dtype is source for dtype in kept.values())
    total = cudf_dtype(Requested("v", "sum", "v"), None, source)
    assert (total.precision, total.scale) == (18, 2)
    assert cudf_dtype(Requested("v", "var", "v"), None, source) == "float64"
    assert cudf_dtype(Requested("v", "count", "v"), np.dtype("int64"), source) is None


def test_quantiles_of_bools_are_floats() -> None:
    assert cudf_dtype(Requested("v", "quantile", "v"), None, np.dtype("bool")) == "float64"


def test_the_stock_expression_is_no_part_of_ours() -> None:
    from dask._expr import Expr
    from dask.base import tokenize

    frame = dd.from_pandas(pd.DataFrame({"k": [1, 2], "v": [3, 4]}), npartitions=1)
    one, other = (Stock(frame.groupby("k").agg({"v": name}).expr) for name in ("sum", "min"))
    assert not isinstance(one, Expr)
    assert tokenize(one) == tokenize(Stock(one.kept))
    assert tokenize(one) != tokenize(other)


def with_stock() -> tuple[Any, Any]:
    """A node of ours that keeps stock Dask's, and its input."""
    frame = dd.from_pandas(pd.DataFrame({"k": [1, 2, 1], "v": [3, 4, 5]}), npartitions=2)
    grouped = frame.groupby("k")
    flags = {"split_every": 8, "split_out": None, "shuffle_method": None}
    with dask_gpuagg.enabled():
        return extend(grouped, {"v": "sum"}, flags, {}, grouped.agg({"v": "sum"})), frame.expr


def test_the_stock_expression_is_no_input_of_ours() -> None:
    node, frame = with_stock()
    assert [d._name for d in node.dependencies()] == [frame._name]
    assert isinstance(node.stock, Stock)


def test_the_stock_expression_runs_where_ours_does_not() -> None:
    node, _ = with_stock()
    with dask.config.set({"gpuagg.enabled": False}):
        assert new_collection(node).compute().v.to_dict() == {1: 8, 2: 4}
