"""Partials divided by key hash, and finished outputs divided and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from dask.dataframe.dispatch import concat as dask_concat

from dask_gpuagg.dtypes import dtype_class, is_plain
from dask_gpuagg.engines.host import ordered
from dask_gpuagg.engines.host.buckets import bucket_of
from dask_gpuagg.engines.host.conform import categories_of
from dask_gpuagg.engines.host.finish import make_index, sort_order
from dask_gpuagg.engines.host.grouping import group
from dask_gpuagg.plan import Plan

Partial = dict[str, pd.DataFrame]

# NumPy sorts integers of 16 bits by radix
_RADIX_SORTED = 1 << 16


def split(tables: Partial, plan: Plan, buckets: int, second: bool = False) -> list[Partial]:
    """Divide a partial by key hash into one partial per output.

    Parameters
    ----------
    tables : dict of str to DataFrame
    plan : Plan
    buckets : int
    second : bool
        Whether the partial is of one output, and is divided again; see ``bucket_of``.

    Returns
    -------
    list of partials, of length ``buckets``
    """
    of_row = {}
    for name, table in tables.items():
        keys = [k.array for k in keys_of(table)[: len(plan.keys)]]
        if name == "groups":
            of_row[name] = bucket_of(keys, _key_dtypes(plan), buckets, second)
        else:  # hashing a row costs more than numbering it
            groups = group([pd.Series(k) for k in keys], dropna=False)
            of_group = bucket_of(groups.keys, _key_dtypes(plan), buckets, second)
            of_row[name] = of_group.take(groups.codes)
    return divided_tables(tables, of_row, buckets)


def divided_tables(
    tables: Partial, places: dict[str, npt.NDArray[np.int64]], buckets: int
) -> list[Partial]:
    """Divide a partial into one per output.

    Parameters
    ----------
    tables : dict of str to DataFrame
    places : dict of str to ndarray of int64 in ``range(buckets)``
        For each table the output of each row.
    buckets : int

    Returns
    -------
    list of partials, of length ``buckets``
    """
    parts: list[Partial] = [{} for _ in range(buckets)]
    for name, table in tables.items():
        of_row: Any = places[name]
        counts = np.bincount(of_row, minlength=buckets)
        ends = np.cumsum(counts)
        slices = [slice(*each) for each in zip(ends - counts, ends, strict=True)]
        if ordered.takes(table):
            columns = ordered.columns_by_place(table, of_row, counts)
            for part, rows in zip(parts, slices, strict=True):
                piece = {label: column[rows] for label, column in columns.items()}
                part[name] = pd.DataFrame(piece, copy=False)
            continue
        if buckets <= _RADIX_SORTED:
            of_row = of_row.astype(np.uint16)
        order = np.argsort(of_row, kind="stable")
        for part, rows in zip(parts, slices, strict=True):
            part[name] = table.take(order[rows])
    return parts


def keys_of(table: pd.DataFrame) -> list[pd.Series]:
    """The key columns of a table of a partial."""
    return [table[c] for c in table.columns if c.startswith("k")]


def concatenated_outputs(outputs: Sequence[Any], plan: Plan, meta: Any) -> Any:
    """Concatenate finished outputs, sorted by key if the plan says so.

    Parameters
    ----------
    outputs : sequence of DataFrame or Series
        With disjoint groups.
    plan : Plan
    meta : DataFrame or Series

    Returns
    -------
    DataFrame or Series
    """
    filled = [o for o in outputs if len(o)] or list(outputs[:1])
    whole = dask_concat(filled) if len(filled) > 1 else filled[0]
    if not plan.sort:
        return whole
    keys = _index_keys(whole, plan)
    promised = [dtype_class(meta.index.get_level_values(i).dtype) for i in range(len(keys))]
    late = [p == "category" != dtype_class(k.dtype) for p, k in zip(promised, keys, strict=True)]
    if any(late):  # see ``finalize``
        levels = enumerate(zip(keys, late, strict=True))
        of = [categories_of(k, plan.keys[i].dtype) if is_late else k for i, (k, is_late) in levels]
        rest = [whole.index.get_level_values(i) for i in range(len(keys), whole.index.nlevels)]
        keys, whole = of, whole.set_axis(make_index([*of, *rest], whole.index.names))
    return whole.take(sort_order(keys))


def divided_outputs(whole: Any, plan: Plan, outputs: int) -> list[Any]:
    """The groups of a finished output divided by key hash.

    Parameters
    ----------
    whole : DataFrame or Series
    plan : Plan
    outputs : int

    Returns
    -------
    list of DataFrame or Series, of length ``outputs``
    """
    of_row = bucket_of(_index_keys(whole, plan), _key_dtypes(plan), outputs)
    return [whole[of_row == i] for i in range(outputs)]


def _index_keys(result: Any, plan: Plan) -> list[Any]:
    levels = [result.index.get_level_values(i) for i in range(len(plan.keys))]
    return [level.to_numpy() if is_plain(level.dtype) else level.array for level in levels]


def _key_dtypes(plan: Plan) -> list[Any]:
    return [key.dtype for key in plan.keys]
