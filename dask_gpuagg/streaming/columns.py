"""Host columns as plain memory that a GPU takes, and columns of groups in their host dtypes again.

Nothing here needs a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from dask_gpuagg.dtypes import dtype_class

# What a null is in the values of each kind of memory.
PLAIN, FLOAT, TICKS, CODES, TEXT = "plain", "float", "ticks", "codes", "text"
# NaT of pandas.
NAT = np.iinfo(np.int64).min
_UNITS = ("s", "ms", "us", "ns")


@dataclass(frozen=True, slots=True)
class Image:
    """A column as it is copied.

    Attributes
    ----------
    kind : str
        ``plain`` values without nulls; ``float``, of which NaN is null; ``ticks`` of times, of
        which ``NAT`` is null; ``codes`` of categories, of which -1 is null; or ``text``.
    values : ndarray or pyarrow.ChunkedArray
        One-dimensional; an Arrow array of text.
    dtype : dtype
        Of the values on the device, in NumPy's terms.
    """

    kind: str
    values: Any
    dtype: Any

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, start: int, stop: int) -> Image:
        """Some of its rows, not copied."""
        values = self.values
        part = values.slice(start, stop - start) if self.kind == TEXT else values[start:stop]
        return replace(self, values=part)


def is_exact(dtype: Any, key: bool) -> bool:
    """Whether columns of a dtype are the same on a GPU and after the way back.

    Parameters
    ----------
    dtype : dtype
    key : bool
        Whether it is grouped by; its values are only compared then.
    """
    if isinstance(dtype, pd.DatetimeTZDtype):
        return True
    if isinstance(dtype, pd.CategoricalDtype):
        return key
    if isinstance(dtype, pd.StringDtype):
        return key and dtype.storage == "pyarrow"
    if not isinstance(dtype, np.dtype):
        return False
    if dtype.kind in "mM":
        return np.datetime_data(dtype) in [(unit, 1) for unit in _UNITS]
    native = dtype.isnative
    return native and (dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize in (4, 8)))


def image_of(column: pd.Series) -> Image:
    """A column of an exact dtype as it is copied."""
    dtype = column.dtype
    if isinstance(dtype, pd.StringDtype):
        return Image(TEXT, pa.chunked_array([pa.array(column.array)]), dtype)
    if isinstance(dtype, pd.CategoricalDtype):
        codes = column.cat.codes.to_numpy()
        return Image(CODES, np.ascontiguousarray(codes), codes.dtype)
    if isinstance(dtype, pd.DatetimeTZDtype):
        ticks = np.asarray(column.array.view("int64"))
        return Image(TICKS, np.ascontiguousarray(ticks), np.dtype(f"M8[{dtype.unit}]"))
    values = np.ascontiguousarray(column.to_numpy())
    if dtype.kind in "mM":
        return Image(TICKS, values.view("int64"), dtype)
    return Image(FLOAT if dtype.kind == "f" else PLAIN, values, dtype)


def restored(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None, dtype: Any) -> Any:
    """Values of groups in a host dtype.

    Parameters
    ----------
    values : ndarray
        As ``Image.values`` holds them.
    valid : ndarray of bool, optional
        Which of them are not null; all by default.
    dtype : dtype
        Of the host column.

    Returns
    -------
    ndarray or ExtensionArray
    """
    if isinstance(dtype, pd.CategoricalDtype):
        codes = values if valid is None else np.where(valid, values, values.dtype.type(-1))
        return pd.Categorical.from_codes(codes, dtype=dtype)
    cls = dtype_class(dtype)
    if cls in ("datetime", "timedelta"):
        ticks = values if valid is None else np.where(valid, values, NAT)
        if isinstance(dtype, pd.DatetimeTZDtype):
            utc = pd.Series(ticks.view(f"M8[{dtype.unit}]")).dt.tz_localize("UTC")
            return utc.dt.tz_convert(dtype.tz).array
        return ticks.view(dtype)
    if valid is not None and not valid.all():
        if cls != "float":
            raise AssertionError(f"a null among values of dtype {dtype}, which has none")
        values = np.where(valid, values, dtype.type(np.nan))
    return values.astype(dtype, copy=False)


def restored_text(values: pa.Array | pa.ChunkedArray, dtype: pd.StringDtype) -> Any:
    """Text of groups in a host dtype."""
    return dtype.__from_arrow__(values.cast(pa.large_string()))
