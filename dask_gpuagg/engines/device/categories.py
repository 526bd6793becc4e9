"""Groups that no row has: every combination of categories, for ``observed=False``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy as cp
import pylibcudf as plc

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.device.columns import (
    NOWHERE,
    column_of,
    gather,
    like,
    present,
    table,
    view,
)
from dask_gpuagg.engines.device.groups import Grouping, matches


def complete(groups: Any, keys: Sequence[Any], dropna: bool) -> Any:
    """Append the groups that no row has, with null for all that is not a key.

    Parameters
    ----------
    groups : DataFrame
        One row per group that has rows; its keys are the columns ``k0``, ….
    keys : sequence of Series
        Of all rows, those with null keys included.
    dropna : bool
        Whether null is no level of a key.

    Returns
    -------
    DataFrame
    """
    categorical = [dtype_class(k.dtype) == "category" for k in keys]
    if not any(categorical):
        return groups
    expected = _expected(keys, categorical, dropna)
    names = [f"k{i}" for i in range(len(keys))]
    there, _ = matches(expected, [groups[n] for n in names])
    missing = cp.ones(len(expected[0]), dtype=bool)
    missing[there] = False
    missing = cp.flatnonzero(missing).astype(cp.int32)
    columns = {}
    for name, key in zip(names, expected, strict=True):
        parts = [view(groups[name]), gather(view(key), missing)]
        columns[name] = like(plc.concatenate.concatenate(parts), groups[name].dtype)
    rows = cp.full(len(groups) + len(missing), NOWHERE, dtype=cp.int32)
    rows[: len(groups)] = cp.arange(len(groups), dtype=cp.int32)
    for name in groups.columns:
        if name not in columns:
            columns[name] = _padded(groups[name], rows)
    return table(columns)


def _padded(column: Any, rows: cp.ndarray) -> Any:
    if len(column) == 0:
        return like(plc.Column.all_null_like(view(column), len(rows)), column.dtype)
    return like(gather(view(column), rows), column.dtype)


def _expected(keys: Sequence[Any], categorical: Sequence[bool], dropna: bool) -> list[Any]:
    """Every combination of the categories, with every combination of the other keys that occurs."""
    levels = [_levels(key, dropna) for key, c in zip(keys, categorical, strict=True) if c]
    plain = [key for key, c in zip(keys, categorical, strict=True) if not c]
    others: list[Any] = []
    repeats = 1
    if plain:
        combinations = Grouping(plain, keep_nulls=not dropna).table([])
        others = [combinations[f"k{i}"] for i in range(len(plain))]
        repeats = len(combinations)
    sizes = [level.size() for level in levels]
    product = 1
    for size in sizes:
        product *= size
    number = cp.arange(product * repeats)
    of_plain, rest = number // product, number % product
    taken = []
    for size in reversed(sizes):
        taken.append((rest % size).astype(cp.int32))
        rest //= size
    codes, of_others = iter(reversed(taken)), iter(others)
    of_levels = iter(levels)
    columns = []
    for key, c in zip(keys, categorical, strict=True):
        if c:
            columns.append(like(gather(next(of_levels), next(codes)), key.dtype))
        else:
            other = next(of_others)
            columns.append(like(gather(view(other), of_plain.astype(cp.int32)), other.dtype))
    return columns


def _levels(key: Any, dropna: bool) -> plc.Column:
    """Codes of all categories of a key; null is one more where it occurs."""
    codes = view(key)
    size = len(key.dtype.categories)
    null = not dropna and codes.null_count() > 0
    every = plc.unary.cast(column_of(cp.arange(size, dtype=cp.int32)), codes.type())
    if not null:
        return every
    rows = cp.append(cp.arange(size, dtype=cp.int32), cp.int32(NOWHERE))
    return gather(every, rows)


def occurring(keys: Sequence[Any]) -> cp.ndarray:
    """Which rows have a value for every key."""
    kept = present(view(keys[0]))
    for key in keys[1:]:
        kept &= present(view(key))
    return kept
