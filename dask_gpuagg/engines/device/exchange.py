"""Partials divided by key hash, and finished outputs divided and concatenated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cudf
import cupy as cp
import numpy as np
import pylibcudf as plc
from cudf.core.column import ColumnBase
from dask.dataframe.dispatch import hash_object_dispatch

from dask_gpuagg.dtypes import INTEGRAL, NUMERIC, TEMPORAL, dtype_class, ticks_of
from dask_gpuagg.engines.device.columns import (
    column_at,
    column_of,
    frame_of,
    like,
    names_of,
    view,
    view_at,
)
from dask_gpuagg.engines.device.groups import counts_of
from dask_gpuagg.engines.device.operations import nans_to_nulls
from dask_gpuagg.engines.device.results import index_of
from dask_gpuagg.engines.device.stacking import of_categories, stack
from dask_gpuagg.plan import Plan

Partial = dict[str, Any]

_NANOSECONDS = 10**9
# see the host's
_SECOND = 0x9E3779B97F4A7C15
_INT64 = plc.DataType(plc.TypeId.INT64)
# Outputs up to which the rows of each are looked for; for more they are sorted by their output.
_FEW_BUCKETS = 8


def bucket_of(keys: Sequence[Any], buckets: int, second: bool = False) -> Any:
    """The output that each row of key values belongs to, int64; see ``host.bucket_of``.

    Equal values have equal hashes whatever the dtype of their partition is: integers as floats,
    instants in all units, values as categories.
    """
    return cudf.Series(_buckets(keys, buckets, second).astype(cp.int64))


def _buckets(keys: Sequence[Any], buckets: int, second: bool = False) -> cp.ndarray:
    """The same as an array of the hashes' dtype, which is narrower."""
    columns: list[Any] = []
    for key in keys:
        columns += _hash_columns(cudf.Series(key).reset_index(drop=True))
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
        return [like(nans_to_nulls(view(key)), key.dtype) + 0.0]
    if cls not in TEMPORAL:
        return [key]
    per_second = ticks_of(key.dtype)
    ticks = like(plc.unary.bit_cast(view(key), _INT64), np.dtype("int64"))
    seconds = ticks // per_second
    rest = (ticks - seconds * per_second) * (_NANOSECONDS // per_second)
    return [seconds, rest]


def split(tables: Partial, plan: Plan, buckets: int, second: bool = False) -> list[Partial]:
    """Divide a partial by key hash into one partial per output; see ``host.split``."""
    return divided_tables(tables, lambda whole: _buckets_of(whole, plan, buckets, second), buckets)


def divided_tables(
    tables: Partial, place_of: Callable[[Any], cp.ndarray], buckets: int
) -> list[Partial]:
    """Divide a partial into one per output, by the output of each row of a table."""
    parts: list[Partial] = [{} for _ in range(buckets)]
    for name, whole in tables.items():
        of_row = place_of(whole)
        if buckets <= _FEW_BUCKETS:
            for j, part in enumerate(parts):
                part[name] = _where(whole, of_row == j)
            continue
        order, ends = _order_of(of_row, buckets)
        for part, start, end in zip(parts, [0, *ends[:-1]], ends, strict=True):
            # not slices of one table: each would keep all of it in memory
            part[name] = taken(whole, order[start:end])
    return parts


def ordered(whole: Any, plan: Plan, buckets: int) -> tuple[Any, list[int]]:
    """A table in the order of the outputs of ``split``, and where the rows of each end."""
    order, ends = _order_of(_buckets_of(whole, plan, buckets, False), buckets)
    return taken(whole, order), ends


def divided(whole: Any, keys: int, parts: int) -> list[Any]:
    """A table divided by the hash of its first columns, as slices of one.

    By libcudf's own hash, which is not that of ``split``: equal values are in one part only where
    their dtypes are equal. The order of the rows is lost.
    """
    names = names_of(whole)
    columns = plc.Table([view_at(whole, name) for name in names])
    made, starts = plc.partitioning.hash_partition(columns, list(range(keys)), parts)
    ordered = _like(whole, names, made)
    ends = [*starts[1:parts], len(ordered)]
    return [ordered.iloc[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def _order_of(of_row: cp.ndarray, buckets: int) -> tuple[cp.ndarray, list[int]]:
    # sorted by as few bits as number the buckets
    of_row = of_row.astype(np.min_scalar_type(buckets - 1))
    ends = cp.cumsum(counts_of(of_row, buckets)).get().tolist()
    return cp.argsort(of_row, kind="stable").astype(cp.int32), ends


def _buckets_of(whole: Any, plan: Plan, buckets: int, second: bool) -> cp.ndarray:
    keys = [column_at(whole, f"k{i}") for i in range(len(plan.keys))]
    return _buckets(keys, buckets, second)


def _where(whole: Any, rows: cp.ndarray) -> Any:
    """Rows of a table for which a condition holds, in their order."""
    names = names_of(whole)
    columns = plc.Table([view_at(whole, name) for name in names])
    made = plc.stream_compaction.apply_retention_mask(columns, column_of(rows))
    return _like(whole, names, made)


def taken(whole: Any, rows: cp.ndarray) -> Any:
    """Rows of a table by number."""
    names = names_of(whole)
    made = plc.copying.gather(
        plc.Table([view_at(whole, name) for name in names]),
        column_of(rows),
        plc.copying.OutOfBoundsPolicy.DONT_CHECK,
    )
    return _like(whole, names, made)


def _like(whole: Any, names: Sequence[str], made: plc.Table) -> Any:
    """A table of columns that libcudf has made of another's."""
    pairs = zip(names, made.columns(), strict=True)
    return frame_of({n: ColumnBase.create(c, whole._data[n].dtype) for n, c in pairs})


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
    whole = stack([_as_table(output, levels) for output in filled])
    if plan.sort:
        whole = whole.sort_values(levels, na_position="last", ignore_index=True)
    index = index_of([whole[name] for name in levels], list(first.index.names))
    columns = [whole[name] for name in whole.columns if name not in levels]
    if first.ndim == 1:
        result = columns[0]
        result.index = index
        result.name = first.name
        return result
    result = cudf.DataFrame(dict(enumerate(columns)))
    result.index = index
    result.columns = first.columns
    return result


def _as_table(output: Any, levels: Sequence[str]) -> Any:
    """The levels of an output's index, then its columns."""
    columns = [output._column] if output.ndim == 1 else output._columns
    named = dict(zip(levels, output.index._columns, strict=True))
    named |= {f"o{i}": column for i, column in enumerate(columns)}
    return cudf.DataFrame({n: cudf.Series._from_column(c) for n, c in named.items()})


def divided_outputs(whole: Any, plan: Plan, outputs: int) -> list[Any]:
    """The groups of a finished output divided by key hash; see ``host.divided_outputs``."""
    keys = [cudf.Series._from_column(c) for c in whole.index._columns[: len(plan.keys)]]
    of_row = _buckets(keys, outputs)
    ordered = whole.take(cp.argsort(of_row, kind="stable"))
    ends = cp.cumsum(counts_of(of_row, outputs)).get().tolist()
    pairs = zip([0, *ends[:-1]], ends, strict=True)
    # copies: a slice would keep all of it in memory
    return [ordered.iloc[start:end].copy(deep=True) for start, end in pairs]
