"""Tables of several partitions one behind the other, whose columns may differ in dtype.

A partition's dtypes need not be those of the metadata, nor those of the next partition. cuDF
concatenates numbers of several dtypes, and refuses all other mixtures: these are cast before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cudf
import cupy as cp
import numpy as np
import pandas as pd
import pylibcudf as plc
import rmm
from cudf.utils.dtypes import find_common_type
from pylibcudf.utils import _get_stream

from dask_gpuagg.cuda.runtime.driver import copy
from dask_gpuagg.dtypes import NUMERIC, TEXT, TICKS, dtype_class, ticks_of
from dask_gpuagg.engines.device.groups import (
    NOWHERE,
    array_of,
    column_of,
    gather_rows,
    like,
    plain,
    view,
)
from dask_gpuagg.engines.device.layout import CTYPES, masked
from dask_gpuagg.plan import Column, Plan
from dask_gpuagg.states import STATES

# One call of the kernels takes so many rows, and stacks at most this part of the device's memory.
_ROWS_OF_A_CALL = (1 << 31) - 1
_SHARE_OF_A_CALL = 6

# Mean bytes of a piece from which on the time of a copy is above that of starting it.
_BYTES_OF_A_COPY = 1 << 20

_TEXT = frozenset(TEXT)
_NUMBERS = frozenset((*NUMERIC, "decimal"))
_LIMB = 32
_LOWER = (1 << _LIMB) - 1


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
    """Tables one behind the other. cuDF forgets that categories are ordered."""
    stacked = cudf.concat(tables, ignore_index=True)
    for name, dtype in _dtypes_of(tables[0]).items():
        if dtype_class(dtype) != "category" or not dtype.ordered:
            continue
        if any(not t[name].dtype.categories.equals(dtype.categories) for t in tables[1:]):
            raise TypeError("the partitions' ordered categories differ")
        stacked[name] = like(view(stacked[name]), dtype)
    return stacked


def _dtypes_of(table: Any) -> dict[Any, Any]:
    # ``dtypes`` makes a pandas object of them
    return {name: column.dtype for name, column in table._data.items()}


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
        more = bytes_of(part)
        if not pieces or rows + len(part) > _ROWS_OF_A_CALL or size + more > most:
            pieces.append([])
            rows = size = 0
        pieces[-1].append(part)
        rows, size = rows + len(part), size + more
    return list(pieces)


def bytes_of(part: Any) -> int:
    """Bytes of the columns of a part, roughly."""
    return sum(map(_bytes, (*part.keys, *part.columns)))


def _bytes(column: Any) -> int:
    dtype = column.dtype
    if isinstance(dtype, np.dtype) and dtype.kind != "O":  # without a look at the column itself
        return int(len(column) * dtype.itemsize)
    return _bytes_of(view(column))


def _bytes_of(column: plc.Column) -> int:
    """Bytes of a column's values, roughly: of a slice of text those of all of it."""
    if column.num_children():
        characters = column.data().size if column.data() else 0
        return int(sum(map(_bytes_of, column.children())) + characters)
    return int(column.size() * plc.types.size_of(column.type()))


def stacked(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """Concatenate the columns of several partitions, of equal dtypes by position.

    Parameters
    ----------
    parts : sequence of sequence of Series
        The columns of each partition.

    Returns
    -------
    list of Series
    """
    pieces = [list(map(view, columns)) for columns in zip(*parts, strict=True)]
    made = {i: _copied(several) for i, several in enumerate(pieces) if _are_plain(several)}
    rest = [i for i in range(len(pieces)) if i not in made]
    if rest:
        tables = [plc.Table(list(row)) for row in zip(*(pieces[i] for i in rest), strict=True)]
        made |= zip(rest, plc.concatenate.concatenate(tables).columns(), strict=True)
    return [like(made[i], known.dtype) for i, known in enumerate(parts[0])]


def _are_plain(pieces: Sequence[plc.Column]) -> bool:
    """Whether pieces of a column are concatenated by copies: large, of fixed width, no nulls.

    libcudf looks up the piece of each row, and reaches less than half of the bandwidth of a copy.
    """
    kind = pieces[0].type()
    if kind.id() not in CTYPES or any(map(masked, pieces)):
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
    """The dtype of columns of these dtypes one behind the other.

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


def as_found(values: Any, column: Column) -> tuple[Any, Any]:
    """A column of a partition, and the dtype under which its partial is merged.

    Parameters
    ----------
    values : Series
    column : Column
        What the metadata promised.

    Returns
    -------
    values : Series
        In the promised dtype where no value depends on it: a column without rows or without
        values.
    dtype : dtype
    """
    found, promised = values.dtype, column.dtype
    if found == promised:
        return values, promised
    classes = {dtype_class(found), dtype_class(promised)}
    if classes == {"category"}:
        return values, promised  # categories may differ from partition to partition
    if classes <= _TEXT:
        return values, promised  # one to libcudf, whatever their missing value
    if len(values) == 0 or _is_null(values):
        return cast(values, promised), promised
    if "category" in classes and dtype_class(found) == "category":
        return as_found(of_categories(values), column)
    return values, found


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


def retyped(partial: dict[str, Any], own: Plan, common: Plan) -> dict[str, Any]:
    """A partial as if it had been made by another plan of the same outputs.

    Parameters
    ----------
    partial : dict of str to DataFrame
    own : Plan
        By which it was made, with the dtypes of its partition.
    common : Plan
        With the dtypes that all partitions have in common: a sum of integers in one partition
        may be one of floats in all of them, and then the number of a state may be another.

    Returns
    -------
    dict of str to DataFrame
        Columns still have the dtypes of the partition: stacking brings them together.
    """
    if "groups" not in partial or own == common:
        return partial
    groups = partial["groups"]
    columns = {n: groups[n] for n in groups.columns if not n.startswith("s")}
    for i, j in _same_states(own, common):
        fields = {n: groups[n] for n in groups.columns if n.startswith(f"s{i}.")}
        if own.states[i].state == "limbs":
            (c,), (d,) = own.states[i].columns, common.states[j].columns
            factor = ticks_of(common.columns[d].dtype) // ticks_of(own.columns[c].dtype)
            fields = _rescaled(fields, f"s{i}.", factor)
        for name, values in fields.items():
            field = name.partition(".")[2]
            columns[f"s{j}.{field}"] = _as_state(values, common, j)
    return partial | {"groups": cudf.DataFrame(columns)}


def _same_states(own: Plan, common: Plan) -> list[tuple[int, int]]:
    """Numbers of the states of one plan, with those of another that serve the same outputs."""
    if own.shape != "groups":  # of which the outputs name no states
        return [(i, i) for i in range(len(own.states))]
    pairs = {}
    for mine, theirs in zip(own.outputs, common.outputs, strict=True):
        for i, j in zip(mine.states, theirs.states, strict=True):
            fields = STATES[own.states[i].state].fields, STATES[common.states[j].state].fields
            if fields[0] != fields[1]:
                raise TypeError(
                    f"{mine.aggregation} of {own.columns[own.states[i].columns[0]].dtype} and of "
                    f"{common.columns[common.states[j].columns[0]].dtype} have no common state"
                )
            pairs[j] = i
    return [(i, j) for j, i in sorted(pairs.items())]


def _as_state(values: Any, plan: Plan, state: int) -> Any:
    """A field of a state; sums of integers modulo 2**64 with the sign that the plan gives them.

    cuDF would bring signed and unsigned ones together as floats.
    """
    use = plan.states[state]
    if use.state not in ("isum", "iprod"):
        return values
    unsigned = dtype_class(plan.columns[use.columns[0]].dtype) == "uint"
    return values.astype("uint64" if unsigned else "int64")


def _rescaled(fields: dict[str, Any], prefix: str, factor: int) -> dict[str, Any]:
    """A sum in two halves times a factor of at most 2**30: the lower half stays one of 32 bits."""
    if factor == 1:
        return fields
    high, low = array_of(view(fields[prefix + "hi"])), array_of(view(fields[prefix + "lo"]))
    # a partial of several partitions may hold more in its lower half
    high, low = (high + (low >> _LIMB)) * factor, (low & _LOWER) * factor
    high, low = high + (low >> _LIMB), low & _LOWER
    return {prefix + "hi": plain(column_of(high)), prefix + "lo": plain(column_of(low))}
