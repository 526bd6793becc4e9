"""Columns and tables of cuDF as libcudf has them, and those of libcudf as cuDF's.

What cuDF does itself for either takes longer than most kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cudf
import cupy as cp
import numpy as np
import pandas as pd
import pylibcudf as plc
from cudf.core.buffer import as_buffer
from cudf.core.column import ColumnBase
from cudf.core.column_accessor import ColumnAccessor
from pylibcudf.types import TypeId

from dask_gpuagg.engines.device import layout
from dask_gpuagg.engines.device.memory import on_device
from dask_gpuagg.engines.device.pieces import Pieces

# the number of a row that no table has: a gather makes a null of it
NOWHERE = 0x7FFFFFFF

# libcudf's types with cuDF's dtypes of them.
_BITS = (8, 16, 32, 64)
_NAMES = {f"{kind}{bits}": f"{kind.lower()}{bits}" for kind in ("INT", "UINT") for bits in _BITS}
_NAMES |= {"FLOAT32": "float32", "FLOAT64": "float64", "BOOL8": "bool"}
_UNITS = {"SECONDS": "s", "MILLISECONDS": "ms", "MICROSECONDS": "us", "NANOSECONDS": "ns"}
_NAMES |= {f"TIMESTAMP_{name}": f"datetime64[{unit}]" for name, unit in _UNITS.items()}
_NAMES |= {f"DURATION_{name}": f"timedelta64[{unit}]" for name, unit in _UNITS.items()}
_STRINGS = pd.StringDtype(na_value=np.nan)
_DTYPES: dict[TypeId, Any] = {getattr(TypeId, name): np.dtype(d) for name, d in _NAMES.items()}
_DTYPES[TypeId.STRING] = _STRINGS


class Bare:
    """A column of a frame in the place of a Series, for what reads its values and dtype only.

    Parameters
    ----------
    column : ColumnBase
    """

    __slots__ = ("_column", "dtype")

    def __init__(self, column: ColumnBase) -> None:
        self._column, self.dtype = column, column.dtype

    def __len__(self) -> int:
        return len(self._column)


def column_at(frame: Any, label: Any) -> Any:
    """A column of a DataFrame. cuDF itself makes another DataFrame of it first."""
    if frame._data.multiindex:
        return frame[label]
    return series_of(frame._data[label], label, frame.index)


def series_of(column: ColumnBase, name: Any, index: Any) -> Any:
    """A Series of a column, with an index of as many rows."""
    return as_cudf_makes(cudf.Series, ColumnAccessor({name: column}, verify=False), index)


def as_cudf_makes(cls: Any, data: ColumnAccessor, index: Any) -> Any:
    """A DataFrame or Series with the fields that cuDF gives it.

    cuDF itself looks for each field among the labels before it is set.
    """
    made = object.__new__(cls)
    flags = pd.Flags(made, allows_duplicate_labels=True)
    vars(made).update(_data=data, _index=index, _attrs={}, _flags=flags)
    return made


def view_at(frame: Any, name: str) -> plc.Column:
    """A column of a table as libcudf has it, without a Series in between."""
    return on_device(frame._data[name])


def view(column: Any) -> plc.Column:
    """The column as libcudf has it, or in pieces."""
    # not by the Series, which gives its name and index too
    return column if isinstance(column, Pieces) else on_device(column._column)


def plain(column: plc.Column) -> Any:
    """A Series of libcudf's column, of the dtype that belongs to its type."""
    return cudf.Series.from_pylibcudf(column)


def like(column: plc.Column, dtype: Any) -> Any:
    """A Series of libcudf's column, of a dtype that is stored in its type."""
    return cudf.Series._from_column(ColumnBase.create(column, dtype))


def buffered(column: plc.Column) -> plc.Column:
    """A column whose memory lies in buffers of cuDF, as that of its own columns does."""
    data, mask = column.data(), column.null_mask()
    return plc.Column(
        column.type(),
        column.size(),
        None if data is None else as_buffer(data),
        None if mask is None else as_buffer(mask),
        column.null_count(),
        column.offset(),
        [buffered(child) for child in column.children()],
        validate=False,
    )


def wrapped(column: plc.Column) -> ColumnBase:
    """A column as cuDF has it. What cuDF does itself takes longer than most kernels."""
    dtype = _DTYPES.get(column.type().id())
    # days become seconds, which cuDF has
    if dtype is None:
        return plain(column)._column
    return ColumnBase.create(buffered(column), dtype, validate=False)


def as_column(column: plc.Column, dtype: Any) -> ColumnBase:
    """A column as cuDF has it, of a dtype that is stored in its type."""
    return wrapped(column) if is_own(dtype) else ColumnBase.create(column, dtype)


def table(columns: Mapping[str, Any]) -> Any:
    """A DataFrame of Series of equal length, whose labels it forgets."""
    return frame_of({name: c._column.copy(deep=False) for name, c in columns.items()})


def frame_of(columns: dict[str, ColumnBase]) -> Any:
    """A DataFrame of columns that no other has."""
    return cudf.DataFrame._from_data(ColumnAccessor(columns, verify=False))


def names_of(frame: Any) -> tuple[str, ...]:
    """Labels of a table's columns; cuDF itself makes an index of pandas of them."""
    names: tuple[str, ...] = frame._data.names
    return names


def take(column: Any, rows: plc.Column) -> Any:
    """Rows of a Series by number, in its dtype; ``NOWHERE`` gives null."""
    return like(gather_rows(view(column), rows), column.dtype)


def gather(column: plc.Column, rows: cp.ndarray) -> plc.Column:
    """Rows of a column by number; ``NOWHERE`` gives null."""
    return gather_rows(column, column_of(rows))


def gather_rows(column: plc.Column, rows: plc.Column) -> plc.Column:
    """The same, of row numbers in a column."""
    return layout.gather([column], rows)[0]


def column_of(array: cp.ndarray) -> plc.Column:
    """An array of CuPy as a column."""
    return view(cudf.Series(array, nan_as_null=False))


def array_of(column: plc.Column, null: Any = None) -> cp.ndarray:
    """A column as an array of CuPy, nulls replaced."""
    if null is not None and column.null_count():
        column = plc.replace.replace_nulls(column, plc.Scalar.from_py(null, column.type()))
    return plain(column).values


def floats_of(column: plc.Column) -> cp.ndarray:
    """Numbers as float64, nulls as NaN."""
    made = plc.unary.cast(column, plc.DataType(plc.TypeId.FLOAT64))
    return array_of(made, float("nan"))


def present(column: plc.Column) -> cp.ndarray:
    """Which values are not null."""
    return array_of(plc.unary.is_valid(column))


def is_own(dtype: Any) -> bool:
    """Whether a column of libcudf comes back as this dtype by itself."""
    if isinstance(dtype, np.dtype):
        return dtype.kind != "O"
    return isinstance(dtype, pd.StringDtype) and dtype.na_value is not pd.NA


def as_it_comes(dtype: Any) -> Any:
    """A dtype as the columns have it that ``as_column`` makes: strings are of cuDF's own."""
    return _STRINGS if is_own(dtype) and not isinstance(dtype, np.dtype) else dtype
