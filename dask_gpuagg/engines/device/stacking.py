"""Tables of several partitions, concatenated, whose columns may differ in dtype.

A partition's dtypes need not be those of the metadata, nor those of the next partition. cuDF
concatenates numbers of several dtypes, and refuses all other mixtures: these are cast before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import cudf
import cupy as cp
import numpy as np
import pandas as pd
import pylibcudf as plc
from cudf.utils.dtypes import find_common_type

from dask_gpuagg.dtypes import NUMERIC, TEXT, TICKS, dtype_class
from dask_gpuagg.engines.device.columns import (
    NOWHERE,
    as_column,
    frame_of,
    gather_rows,
    is_own,
    like,
    view,
    view_at,
)
from dask_gpuagg.engines.device.pieces import Pieces, concatenated, suit
from dask_gpuagg.engines.device.support import reads_once
from dask_gpuagg.plan import Plan

# One call of the kernels takes so many rows, and stacks at most this part of the device's memory.
_ROWS_OF_A_CALL = (1 << 31) - 1
_SHARE_OF_A_CALL = 6

_TEXT = frozenset(TEXT)
_NUMBERS = frozenset((*NUMERIC, "decimal"))


def stack(tables: Sequence[Any]) -> Any:
    """Concatenate tables in order of the partitions; categories are united.

    Parameters
    ----------
    tables : sequence of DataFrame
        With the same columns.

    Returns
    -------
    DataFrame
    """
    tables = list(tables)
    if len(tables) > 1:
        tables = [t for t in tables if len(t)] or tables[:1]
    return tables[0] if len(tables) == 1 else _concatenated(aligned(tables))


def _concatenated(tables: list[Any]) -> Any:
    """Tables with columns of one name in one dtype, concatenated.

    By libcudf where none has categories: what cuDF does beside it takes longer than a merge of few
    groups. cuDF itself forgets that categories are ordered.
    """
    dtypes = _dtypes_of(tables[0])
    if all(map(_is_one_column, dtypes.values())):
        whole = concatenated([[view_at(table, name) for table in tables] for name in dtypes])
        pairs = zip(dtypes.items(), whole, strict=True)
        return frame_of({name: as_column(column, dtype) for (name, dtype), column in pairs})
    stacked = cudf.concat(tables, ignore_index=True)
    for name, dtype in dtypes.items():
        if dtype_class(dtype) != "category" or not dtype.ordered:
            continue
        if any(not t[name].dtype.categories.equals(dtype.categories) for t in tables[1:]):
            raise TypeError("the partitions' ordered categories differ")
        stacked[name] = like(view(stacked[name]), dtype)
    return stacked


def _dtypes_of(table: Any) -> dict[Any, Any]:
    # ``dtypes`` makes a pandas object of them
    return {name: column.dtype for name, column in table._data.items()}


def _is_one_column(dtype: Any) -> bool:
    """Whether a dtype says the same as the type of libcudf's column."""
    return is_own(dtype) or isinstance(dtype, pd.DatetimeTZDtype)


def divided(run: Sequence[Any]) -> list[Sequence[Any]]:
    """Divide partitions of equal dtypes into those that are stacked for one call of the kernels.

    Parameters
    ----------
    run : sequence of parts
        With ``keys`` and ``columns``.

    Returns
    -------
    list of sequence
    """
    most = cp.cuda.Device().mem_info[1] // _SHARE_OF_A_CALL
    pieces: list[list[Any]] = []
    rows = size = 0
    for part in run:
        more = bytes_of((*part.keys, *part.columns))
        if not pieces or rows + len(part) > _ROWS_OF_A_CALL or size + more > most:
            pieces.append([])
            rows = size = 0
        pieces[-1].append(part)
        rows, size = rows + len(part), size + more
    return list(pieces)


def bytes_of(columns: Iterable[Any]) -> int:
    """Bytes of columns, roughly."""
    return sum(map(_bytes, columns))


def _bytes(column: Any) -> int:
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind != "O":  # without reading the column's buffers
        return int(len(column) * dtype.itemsize)
    return _bytes_of(view(column))


def _bytes_of(column: plc.Column) -> int:
    """Bytes of a column's values, roughly: of a slice of text its share of all of it."""
    if column.num_children():
        characters = column.data().size if column.data() else 0
        whole = sum(map(_bytes_of, column.children())) + characters
        if column.type().id() == plc.TypeId.STRING:
            # a slice has the offsets and the characters of all rows
            whole = whole * column.size() // max(column.child(0).size() - 1, 1)
        return int(whole)
    # text without rows may have no children, and text has no size of its own
    return int(column.size() * plc.types.size_of(column.type())) if column.size() else 0


def stacked(parts: Sequence[Sequence[Any]], plan: Plan | None = None) -> list[Any]:
    """Concatenate the columns of several partitions, of equal dtypes by position.

    Parameters
    ----------
    parts : sequence of sequence of Series
        The columns of each partition.
    plan : Plan, optional
        What they are for.

    Returns
    -------
    list of Series, or of Pieces where the plan's kernels take large columns as they lie
    """
    columns = [list(map(view, pieces)) for pieces in zip(*parts, strict=True)]
    dtypes = [known.dtype for known in parts[0]]
    if plan is not None and reads_once(plan) and all(map(is_own, dtypes)) and suit(columns):
        return [Pieces(pieces, dtype) for pieces, dtype in zip(columns, dtypes, strict=True)]
    return [like(c, dtype) for c, dtype in zip(concatenated(columns), dtypes, strict=True)]


def aligned(tables: Sequence[Any]) -> list[Any]:
    """The same tables, with columns of one name in one dtype.

    Columns whose values are all null take the dtype of the others.
    """
    dtypes = [_dtypes_of(table) for table in tables]
    changed: list[dict[Any, Any]] = [{} for _ in tables]
    for name in dtypes[0]:
        found = [of_table[name] for of_table in dtypes]
        if _are_alike(found):
            continue
        nulls = [_is_null(table[name]) for table in tables]
        filled = [d for d, null in zip(found, nulls, strict=True) if not null] or found[:1]
        # categories are united afterwards
        agreed = _are_alike(filled)
        wanted = filled[0] if agreed else common_dtype(filled)
        for new, table, null in zip(changed, tables, nulls, strict=True):
            if null or not agreed:
                new[name] = cast(table[name], wanted)
    return [t.assign(**new) if new else t for t, new in zip(tables, changed, strict=True)]


def _are_alike(dtypes: Sequence[Any]) -> bool:
    """Whether cuDF concatenates columns of these dtypes."""
    categories = [dtype_class(d) == "category" for d in dtypes]
    if all(categories):
        kinds = [d.categories.dtype for d in dtypes]
        return all(k == kinds[0] for k in kinds[1:])
    return not any(categories) and all(d == dtypes[0] for d in dtypes[1:])


def _is_null(column: Any) -> bool:
    return len(column) > 0 and int(view(column).null_count()) == len(column)


def common_dtype(dtypes: Sequence[Any]) -> Any:
    """The dtype of a concatenation of columns of these dtypes.

    Parameters
    ----------
    dtypes : sequence of dtypes
        Of columns of cuDF that are not all null.

    Returns
    -------
    dtype
        cuDF's common dtype for numbers, decimals, and times of several units; strings for
        strings with categories of strings, and so on for categories of other values; for nothing
        but categories the first, which stands for all: they are united when columns are.

    Raises
    ------
    TypeError
        For what cuDF does not concatenate either: numbers with strings, say.
    """
    distinct = [d for i, d in enumerate(dtypes) if not any(d == e for e in dtypes[:i])]
    if _are_alike(distinct):
        return distinct[0]
    plain_dtypes = [d.categories.dtype if dtype_class(d) == "category" else d for d in distinct]
    classes = {dtype_class(d) for d in plain_dtypes}
    if classes <= _TEXT:
        strings = [d for d in plain_dtypes if isinstance(d, pd.StringDtype)]
        return strings[0] if strings else plain_dtypes[0]
    if classes <= _NUMBERS or classes in ({"datetime"}, {"timedelta"}):
        zones = [d for d in plain_dtypes if isinstance(d, pd.DatetimeTZDtype)]
        if not zones:
            return find_common_type(plain_dtypes)
        if len(zones) == len(plain_dtypes) and all(z.tz == zones[0].tz for z in zones[1:]):
            unit = max((z.unit for z in zones), key=TICKS.__getitem__)
            return pd.DatetimeTZDtype(unit, zones[0].tz)
    names = ", ".join(str(d) for d in distinct)
    raise TypeError(f"cuDF does not concatenate columns of dtypes {names}")


def cast(column: Any, dtype: Any) -> Any:
    """A Series in a common dtype; nulls stay null."""
    if column.dtype == dtype:
        return column
    if dtype_class(column.dtype) == "category":
        column = of_categories(column)
        if column.dtype == dtype:
            return column
    if _is_null(column):
        kind = view(cudf.Series([], dtype=dtype))
        return like(plc.Column.all_null_like(kind, len(column)), dtype)
    if isinstance(dtype, pd.DatetimeTZDtype):
        ticks = like(view(column), np.dtype(f"M8[{column.dtype.unit}]"))
        return like(view(ticks.astype(f"datetime64[{dtype.unit}]")), dtype)
    return column.astype(dtype)


def compatible(values: Any, promised: Any) -> tuple[Any, Any]:
    """A column that has another dtype than the promised one, as its partial takes it.

    Parameters
    ----------
    values : Series
        Not of categories, unless it has no rows.
    promised : dtype

    Returns
    -------
    values : Series
        In the promised dtype where no value depends on it: a column without rows or without
        values.
    dtype : dtype
        The promised one where the values can be merged with those of that dtype.
    """
    if {dtype_class(values.dtype), dtype_class(promised)} <= _TEXT:
        return values, promised  # one to libcudf, whatever their missing value
    if len(values) == 0 or _is_null(values):
        return cast(values, promised), promised
    return values, values.dtype


def of_categories(column: Any) -> Any:
    """A column of categories as the values that they stand for.

    cuDF's own ``astype`` takes the bytes of a null mask for its bits where the column is a slice
    of another: it raises ``Invalid bit range``, or makes nulls of other rows.
    """
    values = cudf.Series._from_column(column.dtype.categories._column)
    codes = view(column)
    if len(values) == 0 or len(column) == 0:
        return like(plc.Column.all_null_like(view(values), len(column)), values.dtype)
    rows = plc.unary.cast(codes, plc.DataType(plc.TypeId.INT32))
    if rows.null_count():
        rows = plc.replace.replace_nulls(rows, plc.Scalar.from_py(NOWHERE, rows.type()))
    return like(gather_rows(view(values), rows), values.dtype)
