"""Aggregations that Dask refuses: dtypes of cuDF's results, decided without cuDF."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.device_meta import cudf_dtype
from dask_gpuagg.extended import Stock
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


def test_the_stock_expression_is_no_part_of_ours() -> None:
    import dask.dataframe as dd
    from dask._expr import Expr
    from dask.base import tokenize

    frame = dd.from_pandas(pd.DataFrame({"k": [1, 2], "v": [3, 4]}), npartitions=1)
    one, other = (Stock(frame.groupby("k").agg({"v": name}).expr) for name in ("sum", "min"))
    assert not isinstance(one, Expr)
    assert tokenize(one) == tokenize(Stock(one.expr))
    assert tokenize(one) != tokenize(other)
