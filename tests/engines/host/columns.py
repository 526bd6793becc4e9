"""Values to draw for columns of every dtype, those at the ends of its range among them."""

import decimal
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

from tests.comparison import PANDAS_3_0

I64, U64 = np.iinfo("int64"), np.iinfo("uint64")
_TEXT = st.text(alphabet=st.sampled_from(["a", "b", "é", "漢", "\0", " "]), max_size=3)
_CENTS = st.integers(-3, 3).map(lambda i: decimal.Decimal(i).scaleb(-2))
_FLOATS = st.sampled_from([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, 1e300, 5e-324])
_TICKS = st.integers(-2, 2) | st.sampled_from([10**17, -(10**17)])
_WIDE = st.sampled_from([I64.min, I64.max]) | st.integers(-3, 3)
_CATEGORIES = ["b", "a", "", "é"]

# dtype -> (values, whether the dtype has a null)
DTYPES: dict[Any, tuple[st.SearchStrategy[Any], bool]] = {
    "bool": (st.booleans(), False),
    "int8": (st.integers(-128, 127), False),
    "int64": (_WIDE, False),
    "uint64": (st.sampled_from([0, 1, I64.max + 1, U64.max]), False),
    "float32": (_FLOATS.filter(lambda v: abs(v) != 1e300), True),
    "float64": (_FLOATS, True),
    # pandas 3.0 takes Python strings for equal that differ in what follows a NUL only
    "object": (_TEXT.map(lambda t: t.replace("\0", " ")) if PANDAS_3_0 else _TEXT, True),
    "str": (_TEXT, True),
    "string": (_TEXT, True),
    "string[python]": (_TEXT, True),
    "datetime64[ns]": (_TICKS, True),
    "datetime64[s]": (st.integers(-2, 2), True),
    "datetime64[ns, Europe/Berlin]": (_TICKS, True),
    "timedelta64[us]": (_TICKS, True),
    "boolean": (st.booleans(), True),
    "Int64": (_WIDE, True),
    "UInt8": (st.integers(0, 255), True),
    "Float64": (_FLOATS, True),
    pd.CategoricalDtype(_CATEGORIES): (st.sampled_from(_CATEGORIES), True),
    pd.CategoricalDtype([3, 1, 2], ordered=True): (st.integers(1, 3), True),
    pd.ArrowDtype(pa.bool_()): (st.booleans(), True),
    pd.ArrowDtype(pa.int64()): (_WIDE, True),
    pd.ArrowDtype(pa.string()): (_TEXT, True),
    pd.ArrowDtype(pa.timestamp("ns")): (_TICKS.map(pd.Timestamp), True),
    pd.ArrowDtype(pa.duration("ns")): (_TICKS.map(pd.Timedelta), True),
    pd.ArrowDtype(pa.decimal128(10, 2)): (_CENTS, True),
}


def series_of(values: Sequence[Any], dtype: Any) -> pd.Series:
    """A column of drawn values: times in NumPy's dtypes are drawn as ticks."""
    if not isinstance(dtype, str) or dtype[:4] not in ("date", "time"):
        return pd.Series(list(values), dtype=dtype)
    ticks = np.array([I64.min if v is None else v for v in values], "int64")
    if "," not in dtype:
        return pd.Series(ticks.view(dtype))
    moments = pd.Series(ticks.view("datetime64[ns]"))
    return moments.dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")
