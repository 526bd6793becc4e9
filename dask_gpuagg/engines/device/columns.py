"""Columns: as cuDF and libcudf have them, and as the kernels see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import cudf
import cupy as cp
import numpy as np
import pandas as pd
import pylibcudf as plc
import rmm
from cudf.core.buffer import Buffer, as_buffer
from cudf.core.column import ColumnBase
from cudf.core.column_accessor import ColumnAccessor
from pylibcudf.types import DataType, TypeId
from pylibcudf.utils import _get_stream

from dask_gpuagg.cuda.aggregate import DeviceColumn, Made
from dask_gpuagg.cuda.query.types import PRESENT, KeyPart, ValuePart
from dask_gpuagg.cuda.runtime.driver import copy
from dask_gpuagg.engines.device.memory import on_device

# Types of fixed width: what the kernels call their values, and which dtype cuDF has for them.
_TYPES = {
    **{f"INT{bits}": (f"i{bits}", f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": (f"u{bits}", f"uint{bits}") for bits in (8, 16, 32, 64)},
    "FLOAT32": ("f32", "float32"),
    "FLOAT64": ("f64", "float64"),
    "BOOL8": ("u8", "bool"),
    "TIMESTAMP_DAYS": ("i32", None),
    "TIMESTAMP_SECONDS": ("i64", "datetime64[s]"),
    "TIMESTAMP_MILLISECONDS": ("i64", "datetime64[ms]"),
    "TIMESTAMP_MICROSECONDS": ("i64", "datetime64[us]"),
    "TIMESTAMP_NANOSECONDS": ("i64", "datetime64[ns]"),
    "DURATION_DAYS": ("i32", None),
    "DURATION_SECONDS": ("i64", "timedelta64[s]"),
    "DURATION_MILLISECONDS": ("i64", "timedelta64[ms]"),
    "DURATION_MICROSECONDS": ("i64", "timedelta64[us]"),
    "DURATION_NANOSECONDS": ("i64", "timedelta64[ns]"),
    "DECIMAL32": ("i32", None),
    "DECIMAL64": ("i64", None),
    "DECIMAL128": ("i128", None),
}
CTYPES: dict[TypeId, str] = {getattr(TypeId, name): ctype for name, (ctype, _) in _TYPES.items()}
_STRINGS = pd.StringDtype(na_value=np.nan)
DTYPES: dict[TypeId, Any] = {
    getattr(TypeId, name): np.dtype(dtype) for name, (_, dtype) in _TYPES.items() if dtype
} | {TypeId.STRING: _STRINGS}
FLOATS = ("f32", "f64")
# Where a smaller share of the rows stays, a copy costs less than reading all of them.
FEW_STAY = 1 / 8

INT32 = DataType(TypeId.INT32)
INT64 = DataType(TypeId.INT64)
UINT64 = DataType(TypeId.UINT64)
FLOAT64 = DataType(TypeId.FLOAT64)
BOOL8 = DataType(TypeId.BOOL8)
LIST = DataType(TypeId.LIST)


def identity(column: Any) -> tuple[Any, ...]:
    """Key that views of one memory share: a Series gives a new view at each request."""
    if not isinstance(column, plc.Column):  # in pieces
        return tuple(map(identity, column.columns))
    addresses = _address(column.data()), _address(column.null_mask())
    # empty columns share address 0: their identity distinguishes them
    own = id(column) if column.size() == 0 else 0
    return (*addresses, column.offset(), int(column.type().id()), own)


def masked(column: plc.Column) -> bool:
    """Whether rows of the column are null."""
    return column.null_mask() is not None and column.null_count() > 0


def ctype_of(column: plc.Column) -> str:
    """CUDA C++ name of the values of a column of fixed width."""
    return CTYPES[column.type().id()]


def wide(ctype: str, dtype: DataType) -> tuple[str, DataType]:
    """Type of an integer sum: 64 bits; a duration or a decimal64 stays what it is."""
    if ctype[0] == "u" and dtype.id() is not TypeId.BOOL8:
        return "u64", UINT64
    if dtype.id() is TypeId.DECIMAL32:
        return "i64", DataType(TypeId.DECIMAL64, dtype.scale())
    return "i64", dtype if ctype == "i64" else INT64


def key_part(column: plc.Column) -> KeyPart:
    """The part of a query that a key column determines."""
    if column.type().id() is TypeId.STRING:
        if column.num_children() == 0:  # no rows and no characters: libcudf leaves offsets out
            return KeyPart("i32", False, string=True)
        offsets = column.child(0).type().id()
        return KeyPart("i64" if offsets is TypeId.INT64 else "i32", masked(column), string=True)
    return KeyPart(ctype_of(column), masked(column))


def value_part(column: plc.Column, present: bool) -> ValuePart:
    """The part that an input determines; ``present`` if only its validity is read."""
    return ValuePart(PRESENT if present else ctype_of(column), masked(column))


def view_of(column: plc.Column) -> DeviceColumn:
    """Where a column's values and validity bits lie."""
    mask = _address(column.null_mask()) if masked(column) else 0
    data, nulls = column.data(), column.null_count()
    if column.type().id() is not TypeId.STRING:
        return DeviceColumn(_address(data), mask, column.offset(), nulls=nulls)
    offsets = column.child(0).data() if column.num_children() else None
    size = data.size if data is not None else 0
    return DeviceColumn(_address(offsets), mask, column.offset(), _address(data), size, nulls)


def _address(span: Any | None) -> int:
    return 0 if span is None else int(span.ptr)


def kernel_column(output: Made, dtype: DataType, groups: int) -> plc.Column:
    """A column of what the kernels wrote, without a copy, in buffers of cuDF."""
    nulls, mask = output.nulls, output.mask
    if mask is not None and nulls is None:
        nulls = plc.null_mask.null_count(mask, 0, groups)
    mask, nulls = as_buffer(mask) if nulls else None, nulls or 0
    data = as_buffer(output.data)
    if output.characters is None:
        return plc.Column(dtype, groups, data, mask, nulls, 0, [], validate=False)
    offsets = INT64 if output.large else INT32
    children = [plc.Column(offsets, groups + 1, data, None, 0, 0, [], validate=False)]
    characters = as_buffer(output.characters)
    return plc.Column(dtype, groups, characters, mask, nulls, 0, children, validate=False)


def gather_columns(
    columns: Sequence[plc.Column], rows: plc.Column, all_there: bool = False
) -> list[plc.Column]:
    """Rows of columns by number; null where there is no row of that number.

    Where ``all_there`` says that each number is a row's, columns without nulls get no null mask,
    which would be made and counted.
    """
    if not columns:
        return []
    policy = plc.copying.OutOfBoundsPolicy
    beyond = policy.DONT_CHECK if all_there else policy.NULLIFY
    return list(plc.copying.gather(plc.Table(list(columns)), rows, beyond).columns())


def reinterpreted(column: plc.Column, dtype: DataType) -> plc.Column:
    """A column's bits as values of another type of equal width."""
    if column.type() == dtype:
        return column
    mask, nulls = column.null_mask(), column.null_count()
    return plc.Column(dtype, column.size(), column.data(), mask, nulls, column.offset(), [])


def as_type(column: plc.Column, dtype: DataType) -> plc.Column:
    """A column cast to a type, if it has another."""
    return column if column.type() == dtype else plc.unary.cast(column, dtype)


def nans_to_nulls(column: plc.Column) -> plc.Column:
    """NaN replaced by null, in a column of floats."""
    if column.type().id() not in (TypeId.FLOAT32, TypeId.FLOAT64):
        return column
    return plc.transform.column_nans_to_nulls(column)


def binary(operator: str, left: Any, right: Any, dtype: DataType = FLOAT64) -> plc.Column:
    """A binary operation by the name that libcudf has for it."""
    chosen = getattr(plc.binaryop.BinaryOperator, operator)
    return plc.binaryop.binary_operation(left, right, chosen, dtype)


def scalar(value: float, like: plc.Column) -> plc.Scalar:
    """A number in the type of a column."""
    return plc.Scalar.from_py(value, like.type())


def fill_nulls(column: plc.Column, value: float) -> plc.Column:
    """A number in place of each null."""
    if not column.null_count():
        return column
    return plc.replace.replace_nulls(column, scalar(value, column))


def is_positive(column: plc.Column) -> plc.Column:
    """Whether values are greater than zero."""
    return binary("GREATER", column, scalar(0, column), BOOL8)


def keep_where(column: plc.Column, condition: plc.Column) -> plc.Column:
    """Null where a condition does not hold."""
    if not column.size():
        return column
    if column.null_count():
        condition = binary("LOGICAL_AND", condition, plc.unary.is_valid(column), BOOL8)
    mask, nulls = plc.transform.bools_to_mask(condition)
    return column.with_mask(mask, nulls)


# Mean bytes of a piece from which on the time of a copy is above that of starting it.
_BYTES_OF_A_COPY = 1 << 20
# Mean rows of a piece from which on the kernels are launched for each: every block has several
# tiles then.
_ROWS_OF_A_PIECE = 6 << 20


class Pieces:
    """A column of fixed width in pieces of one type; an ``Aggregator`` takes it as one column."""

    def __init__(self, columns: Sequence[plc.Column], dtype: Any) -> None:
        self.columns = tuple(columns)
        self.dtype = dtype
        self._rows = int(sum(column.size() for column in columns))

    def __len__(self) -> int:
        return self._rows

    def size(self) -> int:
        """Rows."""
        return self._rows

    def type(self) -> plc.DataType:
        """Libcudf's type."""
        return self.columns[0].type()

    def null_mask(self) -> Any:
        """A piece's mask, if any has one."""
        return next((c.null_mask() for c in self.columns if c.null_mask() is not None), None)

    def null_count(self) -> int:
        """Rows without a value."""
        return int(sum(column.null_count() for column in self.columns))

    @cached_property
    def together(self) -> plc.Column:
        """The pieces concatenated."""
        return concatenated([self.columns])[0]

    def forget(self) -> None:
        """Release the concatenated column."""
        self.__dict__.pop("together", None)


def together(column: Any) -> plc.Column:
    """A column that lies together."""
    return column.together if isinstance(column, Pieces) else column


def as_one(column: Any) -> Any:
    """A Series, of pieces concatenated."""
    return to_series(column.together, column.dtype) if isinstance(column, Pieces) else column


def can_stay_in_pieces(columns: Sequence[Sequence[plc.Column]]) -> bool:
    """Whether the pieces of some columns are large enough, and of types that kernels read."""
    first = columns[0]
    rows = sum(piece.size() for piece in first)
    return rows >= _ROWS_OF_A_PIECE * len(first) and all(
        pieces[0].type().id() in CTYPES and all(p.type() == pieces[0].type() for p in pieces)
        for pieces in columns
    )


def concatenated(columns: Sequence[Sequence[plc.Column]]) -> list[plc.Column]:
    """Columns whose pieces have equal types, by their pieces."""
    columns_by_number = {
        i: _copied(pieces) for i, pieces in enumerate(columns) if _are_plain(pieces)
    }
    rest = [i for i in range(len(columns)) if i not in columns_by_number]
    if rest:
        tables = [plc.Table(list(row)) for row in zip(*(columns[i] for i in rest), strict=True)]
        columns_by_number |= zip(rest, plc.concatenate.concatenate(tables).columns(), strict=True)
    return [columns_by_number[i] for i in range(len(columns))]


def _are_plain(pieces: Sequence[plc.Column]) -> bool:
    """Whether pieces of a column are concatenated by copies: large, of fixed width, no nulls.

    libcudf looks up the piece of each row, and reaches less than half of the bandwidth of a copy.
    """
    kind = pieces[0].type()
    if kind.id() not in CTYPES or any(p.type() != kind or masked(p) for p in pieces):
        return False
    rows = sum(piece.size() for piece in pieces)
    return bool(rows * plc.types.size_of(kind) >= _BYTES_OF_A_COPY * len(pieces))


def _copied(pieces: Sequence[plc.Column]) -> plc.Column:
    kind, stream = pieces[0].type(), _get_stream()
    width, rows = plc.types.size_of(kind), sum(piece.size() for piece in pieces)
    buffer = rmm.DeviceBuffer(size=rows * width, stream=stream)
    target, handle = buffer.ptr, stream.__cuda_stream__()[1]
    for piece in pieces:
        size = piece.size() * width
        if size:
            copy(target, piece.data().ptr + piece.offset() * width, size, handle)
        target += size
    return plc.Column(kind, rows, buffer, None, 0, 0, [])


# the number of a row that no table has: a gather makes a null of it
NOWHERE = 0x7FFFFFFF


class BareColumn:
    """A column of a frame in the place of a Series, for what reads its values and dtype only."""

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
    return unchecked(cudf.Series, ColumnAccessor({name: column}, verify=False), index)


def unchecked(cls: Any, data: ColumnAccessor, index: Any) -> Any:
    """A DataFrame or Series with the fields that cuDF gives it.

    cuDF itself looks for each field among the labels before it is set.
    """
    result = object.__new__(cls)
    flags = pd.Flags(result, allows_duplicate_labels=True)
    vars(result).update(_data=data, _index=index, _attrs={}, _flags=flags)
    return result


def view_at(frame: Any, name: str) -> plc.Column:
    """A column of a table as libcudf has it, without a Series in between."""
    return on_device(frame._data[name])


def view(column: Any) -> plc.Column:
    """The column as libcudf has it, or in pieces."""
    # not by the Series, which gives its name and index too
    return column if isinstance(column, Pieces) else on_device(column._column)


def to_series(column: plc.Column, dtype: Any = None) -> Any:
    """A Series of libcudf's column, of a dtype that is stored in its type, or of the type's own."""
    if dtype is None:
        return cudf.Series.from_pylibcudf(column)
    return cudf.Series._from_column(ColumnBase.create(column, dtype))


def buffered(column: plc.Column) -> plc.Column:
    """A column whose memory lies in buffers of cuDF, as that of its own columns does."""
    data, mask = column.data(), column.null_mask()
    if isinstance(data, Buffer):
        return column
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


def as_column(column: plc.Column, dtype: Any = None) -> ColumnBase:
    """A column as cuDF has it, of a dtype that is stored in its type, or of the type's own.

    The checks and conversions that are left out take longer than most kernels.
    """
    if dtype is not None and not is_own(dtype):
        return ColumnBase.create(column, dtype)
    own = DTYPES.get(column.type().id())
    if own is None:  # days become seconds, which cuDF has
        return to_series(column)._column
    return ColumnBase.create(buffered(column), own, validate=False)


def table(columns: Mapping[str, Any]) -> Any:
    """A DataFrame of Series of equal length, whose labels it forgets."""
    return frame_of({name: c._column.copy(deep=False) for name, c in columns.items()})


def frame_of(columns: dict[str, ColumnBase]) -> Any:
    """A DataFrame of columns that no other has."""
    return cudf.DataFrame._from_data(ColumnAccessor(columns, verify=False))


def sort_by(keys: Sequence[plc.Column], columns: Sequence[plc.Column]) -> list[plc.Column]:
    """Rows of columns by keys in ascending order, nulls last."""
    order = [plc.types.Order.ASCENDING] * len(keys)
    nulls = [plc.types.NullOrder.AFTER] * len(keys)
    ordered = plc.sorting.sort_by_key(plc.Table(list(columns)), plc.Table(list(keys)), order, nulls)
    return list(ordered.columns())


def sorted_table(frame: Any, names: Sequence[str]) -> Any:
    """The rows of a table by some of its columns, ascending, nulls last.

    cuDF's own way takes a millisecond more, however few rows there are.
    """
    labels = names_of(frame)
    if not all(is_own(column_at(frame, label).dtype) for label in labels):
        return frame.sort_values(list(names), na_position="last", ignore_index=True)
    ordered = sort_by(
        [view_at(frame, name) for name in names], [view_at(frame, label) for label in labels]
    )
    return frame_of(dict(zip(labels, map(as_column, ordered), strict=True)))


def names_of(frame: Any) -> tuple[str, ...]:
    """Labels of a table's columns; cuDF itself makes an index of pandas of them."""
    names: tuple[str, ...] = frame._data.names
    return names


def gather(column: plc.Column, rows: cp.ndarray, all_there: bool = False) -> plc.Column:
    """Rows of a column by number, of which ``NOWHERE`` gives null; see ``gather_columns``."""
    return gather_columns([column], column_of(rows), all_there)[0]


def take_rows(series: Any, rows: cp.ndarray) -> Any:
    """Rows of a Series by number, in its dtype; ``NOWHERE`` gives null."""
    return to_series(gather(view(series), rows), series.dtype)


def column_of(array: cp.ndarray) -> plc.Column:
    """An array of CuPy as a column."""
    return view(series_from(array))


def series_from(array: cp.ndarray) -> Any:
    """An array of CuPy as a Series."""
    return cudf.Series(array, nan_as_null=False)


def array_of(column: plc.Column, null: Any = None) -> cp.ndarray:
    """A column as an array of CuPy, nulls replaced."""
    if null is not None:
        column = fill_nulls(column, null)
    return to_series(column).values


def floats_of(column: plc.Column) -> cp.ndarray:
    """Numbers as float64, nulls as NaN."""
    return array_of(plc.unary.cast(column, FLOAT64), float("nan"))


def present(column: plc.Column) -> cp.ndarray:
    """Whether values are not null."""
    return array_of(plc.unary.is_valid(column))


def is_own(dtype: Any) -> bool:
    """Whether a column of libcudf comes back as this dtype by itself."""
    if isinstance(dtype, np.dtype):
        return dtype.kind != "O"
    return isinstance(dtype, pd.StringDtype) and dtype.na_value is not pd.NA


def keys_of(groups: Any) -> list[Any]:
    """The key columns of a table."""
    return [column_at(groups, c) for c in names_of(groups) if c.startswith("k")]
