"""Tables concatenated, divided by the hash of their keys, and computed below a group-by.

A partition's dtypes need not be those of the metadata, nor those of the next partition. cuDF
concatenates numbers of several dtypes, and refuses all other mixtures: these are cast before.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import cudf
import cupy as cp
import numpy as np
import pandas as pd
import pylibcudf as plc
from cudf.core.column import ColumnBase
from cudf.utils.dtypes import find_common_type
from dask.dataframe.dispatch import hash_object_dispatch
from pylibcudf.utils import _get_stream

from dask_gpuagg import expressions
from dask_gpuagg.cuda.call import Launcher, mask_bytes
from dask_gpuagg.cuda.query.instantiations import deriving
from dask_gpuagg.cuda.runtime.driver import Device, current_device, fill
from dask_gpuagg.cuda.runtime.kernels import Kernels, OneUnit
from dask_gpuagg.dtypes import INTEGRAL, NUMERIC, TEMPORAL, TEXT, TICKS, dtype_class, ticks_of
from dask_gpuagg.engines.device.columns import (
    DTYPES,
    FEW_STAY,
    INT32,
    INT64,
    NOWHERE,
    Pieces,
    as_column,
    can_stay_in_pieces,
    column_at,
    column_of,
    concatenated,
    fill_nulls,
    frame_of,
    gather_columns,
    is_own,
    keep_where,
    names_of,
    nans_to_nulls,
    sorted_table,
    take_rows,
    to_series,
    view,
    view_at,
)
from dask_gpuagg.engines.device.groups import counts_of
from dask_gpuagg.engines.device.results import index_of
from dask_gpuagg.engines.device.support import reads_once
from dask_gpuagg.expressions import Derived, Read, inputs_of, text_of
from dask_gpuagg.plan import Partial, Plan

# One call of the kernels takes so many rows, and stacks at most this part of the device's memory.
_ROWS_OF_A_CALL = (1 << 31) - 1
_SHARE_OF_A_CALL = 6

_NANOSECONDS = 10**9
# as ``host.bucket_of`` has it
_SECOND = 0x9E3779B97F4A7C15
# Outputs up to which the rows of each are looked for; for more they are sorted by their output.
_FEW_BUCKETS = 8

_TEXT = frozenset(TEXT)
_NUMBERS = frozenset((*NUMERIC, "decimal"))


def stack(tables: Sequence[Any]) -> Any:
    """Concatenate tables of the same columns in order of the partitions; categories are united."""
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
    # dtypes that say the same as the type of libcudf's column
    if all(is_own(dtype) or isinstance(dtype, pd.DatetimeTZDtype) for dtype in dtypes.values()):
        columns = concatenated([[view_at(table, name) for table in tables] for name in dtypes])
        pairs = zip(dtypes.items(), columns, strict=True)
        return frame_of({name: as_column(column, dtype) for (name, dtype), column in pairs})
    stacked = cudf.concat(tables, ignore_index=True)
    for name, dtype in dtypes.items():
        if dtype_class(dtype) != "category" or not dtype.ordered:
            continue
        if any(not t[name].dtype.categories.equals(dtype.categories) for t in tables[1:]):
            raise TypeError("the partitions' ordered categories differ")
        stacked[name] = to_series(view(stacked[name]), dtype)
    return stacked


def _dtypes_of(table: Any) -> dict[Any, Any]:
    # ``dtypes`` makes a pandas object of them
    return {name: column.dtype for name, column in table._data.items()}


def divided(run: Sequence[Any]) -> list[Sequence[Any]]:
    """Divide partitions of equal dtypes into those that are stacked for one call of the kernels."""
    limit = cp.cuda.Device().mem_info[1] // _SHARE_OF_A_CALL
    pieces: list[list[Any]] = []
    rows = size = 0
    for part in run:
        more = bytes_of((*part.keys, *part.columns))
        if not pieces or rows + len(part) > _ROWS_OF_A_CALL or size + more > limit:
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
        size = sum(map(_bytes_of, column.children())) + characters
        if column.type().id() == plc.TypeId.STRING:
            # a slice has the offsets and the characters of all rows
            size = size * column.size() // max(column.child(0).size() - 1, 1)
        return int(size)
    # text without rows may have no children, and text has no size of its own
    return int(column.size() * plc.types.size_of(column.type())) if column.size() else 0


def stacked(parts: Sequence[Sequence[Any]], plan: Plan | None = None) -> list[Any]:
    """Concatenate the columns of several partitions, of equal dtypes by position.

    Columns stay ``Pieces`` where the plan's kernels take large columns as they lie.
    """
    columns = [list(map(view, pieces)) for pieces in zip(*parts, strict=True)]
    dtypes = [column.dtype for column in parts[0]]
    if (
        plan is not None
        and reads_once(plan)
        and all(map(is_own, dtypes))
        and can_stay_in_pieces(columns)
    ):
        return [Pieces(pieces, dtype) for pieces, dtype in zip(columns, dtypes, strict=True)]
    return [to_series(c, dtype) for c, dtype in zip(concatenated(columns), dtypes, strict=True)]


def aligned(tables: Sequence[Any]) -> list[Any]:
    """Cast tables so that columns of one name have one dtype.

    Columns whose values are all null take the dtype of the others.
    """
    dtypes = [_dtypes_of(table) for table in tables]
    changed: list[dict[Any, Any]] = [{} for _ in tables]
    for name in dtypes[0]:
        own = [of_table[name] for of_table in dtypes]
        if _are_alike(own):
            continue
        nulls = [_is_null(table[name]) for table in tables]
        filled = [d for d, null in zip(own, nulls, strict=True) if not null] or own[:1]
        # categories are united afterwards
        agreed = _are_alike(filled)
        common = filled[0] if agreed else common_dtype(filled)
        for new, table, null in zip(changed, tables, nulls, strict=True):
            if null or not agreed:
                new[name] = cast(table[name], common)
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
    """The dtype of a concatenation of columns of these dtypes, which are not all null.

    cuDF's common dtype for numbers, decimals, and times of several units; the values' dtype for
    values with categories of them; for nothing but categories the first. TypeError for what cuDF
    does not concatenate either: numbers with strings, say.
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
        return to_series(plc.Column.all_null_like(kind, len(column)), dtype)
    if isinstance(dtype, pd.DatetimeTZDtype):
        ticks = to_series(view(column), np.dtype(f"M8[{column.dtype.unit}]"))
        return to_series(view(ticks.astype(f"datetime64[{dtype.unit}]")), dtype)
    return column.astype(dtype)


def compatible(values: Any, promised: Any) -> tuple[Any, Any]:
    """A column that has another dtype than the promised one, as its partial takes it.

    In the promised dtype where no value depends on it: a column without rows or without values.
    Also the dtype: the promised one where the values can be merged with those of that dtype.
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
        return to_series(plc.Column.all_null_like(view(values), len(column)), values.dtype)
    rows = fill_nulls(plc.unary.cast(codes, INT32), NOWHERE)
    return to_series(gather_columns([view(values)], rows)[0], values.dtype)


def bucket_of(keys: Sequence[Any], buckets: int, second: bool = False) -> cp.ndarray:
    """The output that each row of key values belongs to, in the dtype of the hashes.

    Equal values have equal hashes whatever the dtype of their partition is: integers as floats,
    instants in all units, values as categories; see ``host.bucket_of`` for ``second``.
    """
    series = (cudf.Series(key).reset_index(drop=True) for key in keys)
    columns = [column for key in series for column in _hash_columns(key)]
    frame = cudf.DataFrame({f"k{i}": column for i, column in enumerate(columns)})
    hashes = hash_object_dispatch(frame, index=False).values
    if second:
        hashes = (hashes.astype(cp.uint64) * cp.uint64(_SECOND)) >> cp.uint64(32)
    return hashes % hashes.dtype.type(buckets)


def _hash_columns(key: Any) -> list[Any]:
    """Columns that have the same values for the same keys."""
    if dtype_class(key.dtype) == "category":
        # partitions may number their categories differently
        key = of_categories(key)
    cls = dtype_class(key.dtype)
    if cls in NUMERIC:
        # large integers that are equal as floats share an output, which is correct
        key = key.astype("float64")
        if cls in INTEGRAL:
            return [key]
        # NaN and null are one key, and so are -0.0 and 0.0
        return [to_series(nans_to_nulls(view(key)), key.dtype) + 0.0]
    if cls not in TEMPORAL:
        return [key]
    per_second = ticks_of(key.dtype)
    ticks = to_series(plc.unary.bit_cast(view(key), INT64), np.dtype("int64"))
    seconds = ticks // per_second
    rest = (ticks - seconds * per_second) * (_NANOSECONDS // per_second)
    return [seconds, rest]


def split(tables: Partial, plan: Plan, buckets: int, second: bool = False) -> list[Partial]:
    """Divide a partial by key hash into one partial per output; see ``host.split``."""
    parts: list[Partial] = [{} for _ in range(buckets)]
    for name, table in tables.items():
        keys = [column_at(table, f"k{i}") for i in range(len(plan.keys))]
        of_row = bucket_of(keys, buckets, second)
        if buckets <= _FEW_BUCKETS:
            for j, part in enumerate(parts):
                part[name] = rows_where(table, of_row == j)
            continue
        order, ends = _order_of(of_row, buckets)
        for part, (start, end) in zip(parts, _spans(ends), strict=True):
            # not slices of one table: each would keep all of it in memory
            rows = column_of(order[start:end])
            part[name] = _like(table, gather_columns(_views(table), rows, all_there=True))
    return parts


def hash_partitioned(table: Any, keys: int, parts: int) -> tuple[Any, list[int]]:
    """A table in the order of its parts by the hash of its first columns, and where each ends.

    By libcudf's own hash, which is not that of ``split``: equal values are in one part only where
    their dtypes are equal. The order of the rows is lost.
    """
    columns = plc.Table(_views(table))
    parted, starts = plc.partitioning.hash_partition(columns, list(range(keys)), parts)
    return _like(table, parted.columns()), [*starts[1:parts], len(table)]


def slices(table: Any, ends: Sequence[int]) -> list[Any]:
    """A table in slices, which keep all of it in memory."""
    return [table.iloc[start:end] for start, end in _spans(ends)]


def _order_of(of_row: cp.ndarray, buckets: int) -> tuple[cp.ndarray, list[int]]:
    # sorted by as few bits as number the buckets
    of_row = of_row.astype(np.min_scalar_type(buckets - 1))
    ends = cp.cumsum(counts_of(of_row, buckets)).get().tolist()
    return cp.argsort(of_row, kind="stable").astype(cp.int32), ends


def _spans(ends: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip([0, *ends[:-1]], ends, strict=True))


def rows_where(table: Any, rows: cp.ndarray) -> Any:
    """Rows of a table for which a condition holds, in their order."""
    columns, condition = plc.Table(_views(table)), column_of(rows)
    filtered = plc.stream_compaction.apply_retention_mask(columns, condition)
    return _like(table, filtered.columns())


def filtered(
    keys: Sequence[Any], columns: Sequence[Any], index: Any, mask: Any, plan: Plan
) -> tuple[Sequence[Any], Sequence[Any], Any]:
    """Leave out the rows for which ``mask`` is not true; see ``Engine.filtered``.

    Most stay where they are: their key becomes null, and the kernels leave them out.
    """
    condition = fill_nulls(view(mask), False)
    place = _nullable_key(keys, plan)
    if place is not None:
        key = view(keys[place])
        # a mask is that of all rows of a column, of which this may be some
        key = keep_where(key.copy() if key.offset() else key, condition)
        if len(mask) - key.null_count() >= len(mask) * FEW_STAY:
            nullable = to_series(key, keys[place].dtype)
            return [nullable if i == place else k for i, k in enumerate(keys)], columns, index
    views = plc.Table([view(column) for column in (*keys, *columns)])
    staying = plc.stream_compaction.apply_retention_mask(views, condition).columns()
    pairs = zip(staying, (*keys, *columns), strict=True)
    taken = [to_series(column, of.dtype) for column, of in pairs]
    labels = index[to_series(condition).values] if plan.reads_labels else taken[0].index
    return taken[: len(keys)], taken[len(keys) :], labels


def _nullable_key(keys: Sequence[Any], plan: Plan) -> int | None:
    """The number of a key of fixed width, if rows of null keys are in no table."""
    if not plan.drops_at_once:
        return None
    fixed = (
        i for i, key in enumerate(keys) if isinstance(key.dtype, np.dtype) and is_own(key.dtype)
    )
    return next(fixed, None)


def _views(table: Any) -> list[plc.Column]:
    return [view_at(table, name) for name in names_of(table)]


def _like(table: Any, columns: Sequence[plc.Column]) -> Any:
    """A table of columns that libcudf has made of another's."""
    pairs = zip(names_of(table), columns, strict=True)
    return frame_of({n: ColumnBase.create(c, table._data[n].dtype) for n, c in pairs})


def concatenated_outputs(outputs: Sequence[Any], plan: Plan, meta: Any) -> Any:
    """Concatenate finished outputs, sorted by key if the plan says so; see the host engine's.

    The keys travel as columns. cuDF's own concatenation looks for a frequency in an index of
    datetimes, and fails where few rows surround a null; and it factorizes every level of a
    MultiIndex.
    """
    filled = [o for o in outputs if len(o)] or list(outputs[:1])
    first = filled[0]
    if len(filled) == 1:
        return first.sort_index(na_position="last") if plan.sort else first
    levels = [f"k{i}" for i in range(first.index.nlevels)]
    stacked = stack([_as_table(output, levels) for output in filled])
    if plan.sort:
        stacked = sorted_table(stacked, levels)
    keys = [stacked[name] for name in levels]
    index = index_of(keys, list(first.index.names), first.index.name)
    columns = [stacked[name] for name in stacked.columns if name not in levels]
    result = columns[0] if first.ndim == 1 else cudf.DataFrame(dict(enumerate(columns)))
    result.index = index
    if first.ndim == 1:
        result.name = first.name
    else:
        result.columns = first.columns
    return result


def _as_table(output: Any, levels: Sequence[str]) -> Any:
    """The levels of an output's index, then its columns."""
    columns = [output._column] if output.ndim == 1 else output._columns
    named = dict(zip(levels, output.index._columns, strict=True))
    named |= {f"o{i}": column for i, column in enumerate(columns)}
    return cudf.DataFrame({n: cudf.Series._from_column(c) for n, c in named.items()})


def divided_outputs(output: Any, plan: Plan, outputs: int) -> list[Any]:
    """The groups of a finished output divided by key hash; see ``host.divided_outputs``."""
    keys = [cudf.Series._from_column(c) for c in output.index._columns[: len(plan.keys)]]
    order, ends = _order_of(bucket_of(keys, outputs), outputs)
    ordered = output.take(order)
    # copies: a slice would keep all of it in memory
    return [ordered.iloc[start:end].copy(deep=True) for start, end in _spans(ends)]


def looked_up(groups: Any, keys: Sequence[Any]) -> Any:
    """The groups of rows by their keys, in the order of the rows, null where there is none.

    NaN and null are one key. Labels are forgotten.
    """
    names = [f"k{i}" for i in range(len(keys))]
    # cuDF's join leaves no order
    levels = groups.index.to_frame(index=False, name=names if len(names) > 1 else names[0])
    levels = levels.nans_to_nulls().assign(place=cp.arange(len(groups)))
    rows = cudf.DataFrame({n: k.reset_index(drop=True) for n, k in zip(names, keys, strict=True)})
    rows = rows.nans_to_nulls().assign(row=cp.arange(len(rows)))
    places = rows.merge(levels, on=names, how="left").sort_values("row")["place"]
    places = places.fillna(NOWHERE).astype("int32").values
    columns = [groups] if groups.ndim == 1 else [groups[label] for label in groups.columns]
    return frame_of({f"{i}": take_rows(c, places)._column for i, c in enumerate(columns)})


# ---- columns that are computed below a group-by, by one kernel for each partition ----------------

_TYPES = {dtype: kind for kind, dtype in DTYPES.items() if isinstance(dtype, np.dtype)}


def derived(frame: Any, columns: Derived) -> Any:
    """The columns of a partition that a group-by reads, without the rows that leave.

    Those may stay where their key becomes null.
    """
    reads = inputs_of([*columns.steps.values(), columns.predicate])
    inputs = [view_at(frame, read.label) for read in reads]
    as_promised = all(str(frame._data[read.label].dtype) == read.dtype for read in reads)
    if not len(frame) or not as_promised or any(column.null_count() for column in inputs):
        return expressions.derived(frame, columns)
    result, bits, staying = _run(columns, inputs)
    dtypes: dict[str, Any] = {label: np.dtype(step.dtype) for label, step in columns.steps.items()}
    for label, tree in columns.columns:
        if isinstance(tree, Read):
            result[label], dtypes[label] = view_at(frame, tree.label), frame._data[tree.label].dtype
    if bits is not None:
        result = _filtered(result, bits, staying, columns.nullable)
    return frame_of({label: as_column(column, dtypes[label]) for label, column in result.items()})


def _filtered(
    columns: dict[str, plc.Column], bits: Any, staying: int, nullable: str | None
) -> dict[str, plc.Column]:
    """Leave out rows: their key becomes null, or the others are copied."""
    rows = next(iter(columns.values())).size()
    if staying == rows:
        return columns
    if nullable is not None and staying >= rows * FEW_STAY:
        key = columns[nullable]
        if not key.null_count():
            if key.offset():  # the bits are those of a whole column
                key = key.copy()
            return columns | {nullable: key.with_mask(bits, rows - staying)}
    stays = plc.transform.mask_to_bools(bits.ptr, 0, rows)
    table = plc.Table(list(columns.values()))
    copied = plc.stream_compaction.apply_retention_mask(table, stays).columns()
    return dict(zip(columns, copied, strict=True))


def _run(
    derived: Derived, inputs: Sequence[plc.Column]
) -> tuple[dict[str, plc.Column], Any | None, int]:
    """Launch the kernel: computed columns, the bits of rows that stay, and their number."""
    rows = inputs[0].size()
    device = current_device()
    on = Launcher(kernels=_kernels(derived, device), device=device, stream=_get_stream())
    outputs, addresses = {}, []
    for column in inputs:
        width = plc.types.size_of(column.type())
        addresses.append(column.data().ptr + column.offset() * width)
    for label, step in derived.steps.items():
        kind = plc.DataType(_TYPES[np.dtype(step.dtype)])
        buffer = on.buffer(rows * plc.types.size_of(kind))
        outputs[label] = plc.Column(kind, rows, buffer, None, 0, 0, [])
        addresses.append(buffer.ptr)
    bits = counter = None
    if derived.predicate is not None:
        bits, counter = on.buffer(mask_bytes(rows)), on.buffer(4)
        fill(counter.ptr, 0, 4, on.handle)
    pointers = (ctypes.c_void_p * len(addresses))(*addresses)
    ends = (ctypes.c_void_p(0 if b is None else b.ptr) for b in (bits, counter))
    on.launch_over("derive", rows, pointers, *ends, ctypes.c_uint64(rows))
    return outputs, bits, rows if counter is None else on.read_number(counter.ptr)


@lru_cache(64)
def _kernels(derived: Derived, device: Device) -> Kernels:
    return Kernels(OneUnit(deriving(text_of(derived))), device)
