"""Classification of column dtypes into the classes that the registry speaks of."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

INTEGRAL: tuple[str, ...] = ("bool", "int", "uint")
NUMERIC: tuple[str, ...] = (*INTEGRAL, "float")
TEMPORAL: tuple[str, ...] = ("datetime", "timedelta")
# cuDF's columns of dtype object hold strings
TEXT: tuple[str, ...] = ("string", "object")
# classes of columns that cuDF has too
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


_PANDAS_CLASSES: dict[type, str] = {
    pd.CategoricalDtype: "category",
    pd.StringDtype: "string",
    pd.DatetimeTZDtype: "datetime",
    pd.PeriodDtype: "period",
    pd.SparseDtype: "other",
}
_ARROW_CLASSES = {
    "bool": [pa.types.is_boolean],
    "int": [pa.types.is_signed_integer],
    "uint": [pa.types.is_unsigned_integer],
    "float": [pa.types.is_floating],
    "datetime": [pa.types.is_timestamp],
    "timedelta": [pa.types.is_duration],
    "decimal": [pa.types.is_decimal],
    "string": [pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view],
    "date": [pa.types.is_date],
    "time": [pa.types.is_time],
    "binary": [
        *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
        pa.types.is_fixed_size_binary,
    ],
}


def dtype_class(dtype: Any) -> str:
    """Class of a dtype of NumPy, pandas or cuDF, as the registry names it.

    It is one of ``DTYPE_CLASSES``, or ``other`` for what no aggregation accepts (interval, sparse,
    complex, nested Arrow types).
    """
    if isinstance(dtype, np.dtype):
        return _NUMPY_KINDS.get(dtype.kind, "other")
    for kind, name in _PANDAS_CLASSES.items():
        if isinstance(dtype, kind):
            return name
    if type(dtype).__module__.startswith("cudf."):  # which only users of cuDF can import
        name = type(dtype).__name__
        if name == "CategoricalDtype":
            return "category"
        return "decimal" if name.startswith("Decimal") else "other"
    if isinstance(dtype, pd.ArrowDtype):
        arrow = dtype.pyarrow_dtype
        names = (
            name for name, tests in _ARROW_CLASSES.items() if any(is_of(arrow) for is_of in tests)
        )
        return next(names, "other")
    # the rest are the masked dtypes (Int64, Float32, boolean) and foreign extensions
    numpy_dtype = getattr(dtype, "numpy_dtype", None)
    if isinstance(numpy_dtype, np.dtype) and numpy_dtype.kind in "biuf":
        return _NUMPY_KINDS[numpy_dtype.kind]
    return "other"


TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def ticks_of(dtype: Any) -> int:
    """The ticks per second of a dtype of times or durations."""
    if isinstance(dtype, pd.ArrowDtype):
        return TICKS[dtype.pyarrow_dtype.unit]
    return TICKS[np.datetime_data(dtype)[0] if isinstance(dtype, np.dtype) else dtype.unit]


def is_plain(dtype: Any) -> bool:
    """Whether values of a dtype are a NumPy array whose nulls, if any, are NaN or None.

    Datetimes and timedeltas are not: pandas keeps their unit and NaT in arrays of its own.
    """
    return isinstance(dtype, np.dtype) and dtype.kind not in "mM"
