"""libcudf's columns as the kernels see them, and columns of what the kernels made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pylibcudf as plc
from pylibcudf.types import DataType, TypeId

from dask_gpuagg.cuda.aggregate import DeviceColumn, Made
from dask_gpuagg.cuda.query.types import PRESENT, KeyPart, ValuePart

CTYPES: dict[TypeId, str] = {
    TypeId.INT8: "i8",
    TypeId.INT16: "i16",
    TypeId.INT32: "i32",
    TypeId.INT64: "i64",
    TypeId.UINT8: "u8",
    TypeId.UINT16: "u16",
    TypeId.UINT32: "u32",
    TypeId.UINT64: "u64",
    TypeId.FLOAT32: "f32",
    TypeId.FLOAT64: "f64",
    TypeId.BOOL8: "u8",
    TypeId.TIMESTAMP_DAYS: "i32",
    TypeId.TIMESTAMP_SECONDS: "i64",
    TypeId.TIMESTAMP_MILLISECONDS: "i64",
    TypeId.TIMESTAMP_MICROSECONDS: "i64",
    TypeId.TIMESTAMP_NANOSECONDS: "i64",
    TypeId.DURATION_DAYS: "i32",
    TypeId.DURATION_SECONDS: "i64",
    TypeId.DURATION_MILLISECONDS: "i64",
    TypeId.DURATION_MICROSECONDS: "i64",
    TypeId.DURATION_NANOSECONDS: "i64",
    TypeId.DECIMAL32: "i32",
    TypeId.DECIMAL64: "i64",
    TypeId.DECIMAL128: "i128",
}
FLOATS = ("f32", "f64")

INT32 = DataType(TypeId.INT32)
INT64 = DataType(TypeId.INT64)
UINT64 = DataType(TypeId.UINT64)
FLOAT64 = DataType(TypeId.FLOAT64)
BOOL8 = DataType(TypeId.BOOL8)


class UnsupportedType(Exception):
    """No kernel reads columns of this type, or makes this state of them."""


def identity(column: Any) -> tuple[Any, ...]:
    """What views of the same memory have in common: a Series gives a new view at each request."""
    if not isinstance(column, plc.Column):  # in pieces
        return tuple(map(identity, column.columns))
    spans = (column.data(), column.null_mask())
    addresses = (span.ptr if span is not None else 0 for span in spans)
    # empty columns share address 0: their identity distinguishes them
    own = id(column) if column.size() == 0 else 0
    return (*addresses, column.offset(), int(column.type().id()), own)


def kind_of(columns: Sequence[Any]) -> tuple[Any, ...] | None:
    """What a query depends on of its columns: types, nulls, which are the same; None of pieces."""
    found: list[Any] = []
    places: dict[tuple[Any, ...], int] = {}
    for i, column in enumerate(columns):
        if not isinstance(column, plc.Column):
            return None
        dtype = column.type()
        child = column.child(0).type().id() if column.num_children() else None
        place = places.setdefault(identity(column), i)
        found.append((dtype.id(), dtype.scale(), masked(column), child, place))
    return tuple(found)


def masked(column: plc.Column) -> bool:
    """Whether rows of the column are null."""
    return column.null_mask() is not None and column.null_count() > 0


def ctype_of(column: plc.Column) -> str:
    """CUDA C++ name of the column's values.

    Raises
    ------
    UnsupportedType
        For strings, lists, structs and dictionaries.
    """
    ctype = CTYPES.get(column.type().id())
    if ctype is None:
        raise UnsupportedType(f"values of type {column.type().id().name}")
    return ctype


def wide(ctype: str, dtype: DataType) -> tuple[str, DataType]:
    """Type of an integer sum: 64 bits; a duration or a decimal64 stays what it is."""
    if dtype.id() is TypeId.BOOL8 or ctype[0] == "i":
        plain = dtype.id() in (TypeId.INT8, TypeId.INT16, TypeId.INT32, TypeId.BOOL8)
        if dtype.id() is TypeId.DECIMAL32:
            return "i64", DataType(TypeId.DECIMAL64, dtype.scale())
        return "i64", INT64 if plain or ctype != "i64" else dtype
    return "u64", UINT64


def key_part(column: plc.Column) -> KeyPart:
    """What of a key column is compiled in."""
    if column.type().id() is TypeId.STRING:
        if column.num_children() == 0:  # no rows and no characters: libcudf leaves offsets out
            return KeyPart("i32", False, string=True)
        offsets = column.child(0).type().id()
        return KeyPart("i64" if offsets is TypeId.INT64 else "i32", masked(column), string=True)
    return KeyPart(ctype_of(column), masked(column))


def value_part(column: plc.Column, present: bool) -> ValuePart:
    """What of an input is compiled in; ``present`` if only its validity is read."""
    return ValuePart(PRESENT if present else ctype_of(column), masked(column))


def view_of(column: plc.Column) -> DeviceColumn:
    """Where a column's values and validity bits lie."""
    mask = column.null_mask()
    mask_address = mask.ptr if mask is not None and masked(column) else 0
    data = column.data()
    address = data.ptr if data is not None else 0
    nulls = column.null_count()
    if column.type().id() is TypeId.STRING:
        offsets = column.child(0).data() if column.num_children() else None
        start = offsets.ptr if offsets is not None else 0
        size = data.size if data is not None else 0
        return DeviceColumn(start, mask_address, column.offset(), address, size, nulls)
    return DeviceColumn(address, mask_address, column.offset(), nulls=nulls)


def sorted_order(keys: Sequence[plc.Column]) -> plc.Column:
    """The rows of some key columns in ascending order, nulls last."""
    ascending = [plc.types.Order.ASCENDING] * len(keys)
    nulls = [plc.types.NullOrder.AFTER] * len(keys)
    return plc.sorting.sorted_order(plc.Table(list(keys)), ascending, nulls)


def column_of(made: Made, dtype: DataType, groups: int) -> plc.Column:
    """A column of what the kernels wrote, without a copy."""
    nulls, mask = made.nulls, made.mask
    if mask is not None and nulls is None:
        nulls = plc.null_mask.null_count(mask, 0, groups)
    mask, nulls = mask if nulls else None, nulls or 0
    if made.characters is None:
        return plc.Column(dtype, groups, made.data, mask, nulls, 0, [])
    offsets = INT64 if made.large else INT32
    children = [plc.Column(offsets, groups + 1, made.data, None, 0, 0, [])]
    return plc.Column(dtype, groups, made.characters, mask, nulls, 0, children)


def gather(
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
