"""Classification of column dtypes into the classes that the registry speaks of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

INTEGRAL: tuple[str, ...] = ("bool", "int", "uint")
NUMERIC: tuple[str, ...] = (*INTEGRAL, "float")
TEMPORAL: tuple[str, ...] = ("datetime", "timedelta")
# cuDF's columns of dtype object hold strings
TEXT: tuple[str, ...] = ("string", "object")
# of columns that cuDF has too
DEVICE_CLASSES: tuple[str, ...] = (*NUMERIC, *TEMPORAL, "string", "category", "decimal", "object")
DTYPE_CLASSES: tuple[str, ...] = (*DEVICE_CLASSES, "date", "time", "period", "binary")

_NUMPY_KINDS = {
    "b": "bool",
    "i": "int",
    "u": "uint",
    "f": "float",
    "M": "datetime",
    "m": "timedelta",
    "O": "object",
}


def dtype_class(dtype: Any) -> str:
    """Class of a dtype, as the registry names it.

    Parameters
    ----------
    dtype : numpy.dtype or pandas ExtensionDtype

    Returns
    -------
    str
        One of ``DTYPE_CLASSES``, or ``other`` for what no aggregation of the
        registry accepts (interval, sparse, complex, nested Arrow types).
    """
    if isinstance(dtype, np.dtype):
        return _NUMPY_KINDS.get(dtype.kind, "other")
    if isinstance(dtype, pd.CategoricalDtype):
        return "category"
    if type(dtype).__module__.startswith("cudf."):
        return _cudf_class(type(dtype).__name__)
    if isinstance(dtype, pd.StringDtype):
        return "string"
    if isinstance(dtype, pd.DatetimeTZDtype):
        return "datetime"
    if isinstance(dtype, pd.ArrowDtype):
        return _arrow_class(dtype.pyarrow_dtype)
    if isinstance(dtype, pd.PeriodDtype):
        return "period"
    if isinstance(dtype, pd.SparseDtype):
        return "other"
    # what is left are the masked dtypes (Int64, Float32, boolean) and foreign extensions
    numpy_dtype = getattr(dtype, "numpy_dtype", None)
    if isinstance(numpy_dtype, np.dtype) and numpy_dtype.kind in "biuf":
        return _NUMPY_KINDS[numpy_dtype.kind]
    return "other"


def _cudf_class(name: str) -> str:
    """Class of one of cuDF's own dtypes, which only users of cuDF can import."""
    if name == "CategoricalDtype":
        return "category"
    return "decimal" if name.startswith("Decimal") else "other"


def _arrow_class(dtype: pa.DataType) -> str:
    tests = (
        (pa.types.is_boolean, "bool"),
        (pa.types.is_signed_integer, "int"),
        (pa.types.is_unsigned_integer, "uint"),
        (pa.types.is_floating, "float"),
        (pa.types.is_timestamp, "datetime"),
        (pa.types.is_duration, "timedelta"),
        (pa.types.is_decimal, "decimal"),
        (pa.types.is_string, "string"),
        (pa.types.is_large_string, "string"),
        (pa.types.is_string_view, "string"),
        (pa.types.is_date, "date"),
        (pa.types.is_time, "time"),
        (pa.types.is_binary, "binary"),
        (pa.types.is_large_binary, "binary"),
        (pa.types.is_binary_view, "binary"),
        (pa.types.is_fixed_size_binary, "binary"),
    )
    return next((name for test, name in tests if test(dtype)), "other")


TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def ticks_of(dtype: Any) -> int:
    """How many ticks of a dtype of times or durations a second has.

    Parameters
    ----------
    dtype : numpy.dtype, DatetimeTZDtype or ArrowDtype
    """
    if isinstance(dtype, pd.ArrowDtype):
        return TICKS[dtype.pyarrow_dtype.unit]
    return TICKS[np.datetime_data(dtype)[0] if isinstance(dtype, np.dtype) else dtype.unit]


def is_plain(dtype: Any) -> bool:
    """Whether values of a dtype are a NumPy array whose nulls, if any, are NaN or None.

    Datetimes and timedeltas are not: pandas keeps their unit and NaT in arrays of its own.
    """
    return isinstance(dtype, np.dtype) and dtype.kind not in "mM"


def is_complex(dtype: Any) -> bool:
    """Whether values of a dtype are complex numbers, which only NumPy's arrays hold."""
    return isinstance(dtype, np.dtype) and dtype.kind == "c"
