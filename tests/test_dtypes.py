"""Dtypes and the classes that the registry speaks of."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_gpuagg.dtypes import DTYPE_CLASSES, dtype_class
from tests.data import arrow

CASES = [
    (np.dtype("bool"), "bool"),
    *((np.dtype(f"int{bits}"), "int") for bits in (8, 16, 32, 64)),
    *((np.dtype(f"uint{bits}"), "uint") for bits in (8, 16, 32, 64)),
    *((np.dtype(f"float{bits}"), "float") for bits in (32, 64)),
    (np.dtype("datetime64[ns]"), "datetime"),
    (np.dtype("datetime64[s]"), "datetime"),
    (np.dtype("timedelta64[us]"), "timedelta"),
    (np.dtype("object"), "object"),
    (np.dtype("complex128"), "other"),
    (np.dtype("S3"), "other"),
    (pd.BooleanDtype(), "bool"),
    (pd.Int8Dtype(), "int"),
    (pd.Int64Dtype(), "int"),
    (pd.UInt16Dtype(), "uint"),
    (pd.Float32Dtype(), "float"),
    (pd.StringDtype("python"), "string"),
    (pd.StringDtype("pyarrow"), "string"),
    (pd.StringDtype("pyarrow", na_value=np.nan), "string"),
    (pd.DatetimeTZDtype("us", "Europe/Berlin"), "datetime"),
    (pd.CategoricalDtype(["a"]), "category"),
    (pd.CategoricalDtype([1, 2], ordered=True), "category"),
    (pd.PeriodDtype("D"), "period"),
    (pd.IntervalDtype("int64"), "other"),
    (pd.SparseDtype("float64"), "other"),
    (arrow(pa.bool_()), "bool"),
    (arrow(pa.int8()), "int"),
    (arrow(pa.uint64()), "uint"),
    (arrow(pa.float32()), "float"),
    (arrow(pa.timestamp("ns")), "datetime"),
    (arrow(pa.timestamp("ms", "UTC")), "datetime"),
    (arrow(pa.duration("s")), "timedelta"),
    (arrow(pa.decimal128(10, 2)), "decimal"),
    (arrow(pa.decimal256(50, 2)), "decimal"),
    (arrow(pa.string()), "string"),
    (arrow(pa.large_string()), "string"),
    (arrow(pa.string_view()), "string"),
    (arrow(pa.binary()), "binary"),
    (arrow(pa.date32()), "date"),
    (arrow(pa.time64("us")), "time"),
    (arrow(pa.list_(pa.int64())), "other"),
    (arrow(pa.struct([("a", pa.int64())])), "other"),
]


@pytest.mark.parametrize(("dtype", "expected"), CASES, ids=lambda v: str(v))
def test_class(dtype, expected):
    assert dtype_class(dtype) == expected


def test_every_class_is_reached():
    assert {dtype_class(dtype) for dtype, _ in CASES} - {"other"} == set(DTYPE_CLASSES)
