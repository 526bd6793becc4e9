"""``astype`` of Arrow's decimals and dates, which pandas casts by way of objects of Python."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from dask.dataframe.dask_expr import _expr as E
from pandas.api.types import is_dict_like, pandas_dtype

from dask_gpuagg.frontend.metadata import is_cudf

# float64 has all integers up to here, and all powers of ten up to that exponent
_EXACT = 1 << 53
_EXACT_POWER = 22
_BYTES = 16


def cast(data: Any, dtypes: Any) -> Any:
    """Task: ``data.astype(dtypes)``, columns of decimals and dates by Arrow."""
    by_label = is_dict_like(dtypes)
    if isinstance(data, pd.Series):
        if by_label and set(dtypes.keys()) == {data.name}:
            by_label, dtypes = False, dtypes[data.name]
        column = None if by_label else _column(data, dtypes)
        return data.astype(dtypes) if column is None else column
    if not isinstance(data, pd.DataFrame) or data.columns.nlevels > 1:
        return data.astype(dtypes)
    targets = dict(dtypes.items()) if by_label else dict.fromkeys(data.columns, dtypes)
    if not data.columns.is_unique or data.columns.isin(list(targets)).sum() != len(targets):
        return data.astype(dtypes)
    columns = {label: _column(data[label], dtype) for label, dtype in targets.items()}
    quick = {label: column for label, column in columns.items() if column is not None}
    data = data.copy(deep=False)
    for label, column in quick.items():
        data[label] = column
    return data.astype({label: dtype for label, dtype in targets.items() if label not in quick})


def _column(column: pd.Series, dtype: Any) -> pd.Series | None:
    """A column of decimals as float64, or of dates as times; ``None`` where Arrow's may differ."""
    if not isinstance(column.dtype, pd.ArrowDtype):
        return None
    kind, target = column.dtype.pyarrow_dtype, pandas_dtype(dtype)
    values = None
    if pa.types.is_decimal128(kind) and target == np.float64:
        values = _floats(column.array.__arrow_array__())
    elif pa.types.is_date32(kind) and isinstance(target, np.dtype) and target.kind == "M":
        values = _times(column.array.__arrow_array__(), target)
    return None if values is None else pd.Series(values, column.index, name=column.name)


def _floats(decimals: pa.ChunkedArray) -> np.ndarray | None:
    """The nearest float64 of each decimal: Arrow's own cast multiplies by an inexact 1/10^n."""
    scale = decimals.type.scale
    if not 0 <= scale <= _EXACT_POWER:
        return None
    parts = []
    for chunk in filter(len, decimals.chunks):
        words = np.frombuffer(chunk.buffers()[1], "<i8", offset=_BYTES * chunk.offset)
        low, high = words[: 2 * len(chunk)].reshape(-1, 2).T
        missing = chunk.is_null().to_numpy(zero_copy_only=False)
        exact = (high == low >> 63) & (low <= _EXACT) & (low >= -_EXACT)
        if not (exact | missing).all():
            return None
        floats = low / 10.0**scale
        floats[missing] = np.nan
        parts.append(floats)
    return np.concatenate([np.empty(0), *parts])


def _times(dates: pa.ChunkedArray, dtype: np.dtype[Any]) -> np.ndarray | None:
    """The first moment of each day; ``None`` if the unit has no such time."""
    unit = np.datetime_data(dtype)[0]
    try:
        return np.asarray(pc.cast(dates, pa.timestamp(unit)).to_numpy(), dtype)
    except (pa.ArrowInvalid, ValueError):
        return None


class ArrowCast(E.AsType):
    """A lowered ``astype``."""

    operation = staticmethod(cast)


def lower_astype(original: Callable[..., Any], self: Any) -> Any:
    """Lower ``astype`` where a column of pandas may be one of decimals or dates."""
    meta = self.frame._meta
    if type(self) is not E.AsType or is_cudf(meta):
        return original(self)
    dtypes = meta.dtypes if meta.ndim == 2 else [meta.dtype]
    may_be = any(isinstance(dtype, pd.ArrowDtype) or dtype.kind == "O" for dtype in dtypes)
    return ArrowCast(*self.operands) if may_be else original(self)
