"""Dtypes and the classes that the registry speaks of."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_gpuagg.dtypes import DTYPE_CLASSES, dtype_class
from tests.data import arrow

SIZES = (8, 16, 32, 64)
CLASSES: dict[str, list[Any]] = {
    "bool": ["bool", "boolean", "bool[pyarrow]"],
    "int": [*(f"int{bits}" for bits in SIZES), "Int8", "Int64", "int8[pyarrow]"],
    "uint": [*(f"uint{bits}" for bits in SIZES), "UInt16", "uint64[pyarrow]"],
    "float": ["float32", "float64", "Float32", "float[pyarrow]"],
    "decimal": [arrow(pa.decimal128(10, 2)), arrow(pa.decimal256(50, 2))],
    "datetime": [
        *("datetime64[ns]", "datetime64[s]", "datetime64[us, Europe/Berlin]"),
        *(arrow(pa.timestamp("ns")), arrow(pa.timestamp("ms", "UTC"))),
    ],
    "timedelta": ["timedelta64[us]", arrow(pa.duration("s"))],
    "date": [arrow(pa.date32())],
    "time": [arrow(pa.time64("us"))],
    "period": ["period[D]"],
    "string": [
        *(pd.StringDtype("python"), pd.StringDtype("pyarrow")),
        pd.StringDtype("pyarrow", na_value=np.nan),
        *(arrow(pa.string()), arrow(pa.large_string()), arrow(pa.string_view())),
    ],
    "binary": [arrow(pa.binary())],
    "category": [pd.CategoricalDtype(["a"]), pd.CategoricalDtype([1, 2], ordered=True)],
    "object": ["object"],
    "other": [
        *("complex128", "S3", "interval[int64]", "Sparse[float64]"),
        *(arrow(pa.list_(pa.int64())), arrow(pa.struct([("a", pa.int64())]))),
    ],
}


def test_every_class_has_dtypes():
    assert set(CLASSES) - {"other"} == set(DTYPE_CLASSES)


@pytest.mark.parametrize("name", CLASSES)
def test_class(name: str):
    for dtype in CLASSES[name]:
        assert dtype_class(pd.api.types.pandas_dtype(dtype)) == name, dtype
