"""Partials divided by ranges of keys, so that outputs are sorted one after the other.

The bounds of the ranges are quantiles of the keys of all partials, which are sampled. A row belongs
to the output whose number is that of the bounds which are not above its key, in the order in which
``finish.sort_order`` sorts groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_gpuagg.dtypes import NUMERIC, dtype_class
from dask_gpuagg.engines.host.buckets import bucket_of
from dask_gpuagg.engines.host.exchange import divided_tables, keys_of
from dask_gpuagg.engines.host.finish import ranks, sort_order
from dask_gpuagg.engines.host.grouping import group
from dask_gpuagg.engines.host.stacking import stack
from dask_gpuagg.plan import Plan

Partial = dict[str, pd.DataFrame]
Codes = npt.NDArray[np.int64]

_WIDEST = 1 << 62


def sampled_keys(tables: Partial, plan: Plan, most: int) -> tuple[pd.DataFrame, int]:
    """Some keys of a partial, chosen by their hash.

    They do not depend on the order of the rows: a task that runs again, for another output or after
    a worker was lost, gives the same bounds.

    Parameters
    ----------
    tables : dict of str to DataFrame
    plan : Plan
    most : int
        Keys of a sample, about.

    Returns
    -------
    keys : DataFrame
        Distinct.
    parts : int
        Of how many the sample has one, a power of two.
    """
    name = plan.tables[0]
    keys = _keys(tables[name], plan)
    if name != "groups":
        keys = _distinct(keys)
    parts = 1
    while parts * most < len(keys):
        parts *= 2
    return _part(keys, plan, parts), parts


def bounds_of(
    samples: Sequence[tuple[pd.DataFrame, int]], plan: Plan, outputs: int
) -> pd.DataFrame | None:
    """The first keys of all outputs but one.

    Parameters
    ----------
    samples : sequence of (DataFrame, int)
        See ``sampled_keys``.
    plan : Plan
    outputs : int

    Returns
    -------
    DataFrame of ``outputs - 1`` rows, or None
        ``None`` where keys have no order that all partials share: one output gets all of them.

    Notes
    -----
    A key that many partials have is in many samples. So all are reduced to the same part of the
    hashes, and then the distinct keys of all samples are a sample of all distinct keys.
    """
    fewest = max(parts for _, parts in samples)
    keys = [_part(k, plan, fewest) if parts < fewest else k for k, parts in samples]
    stacked = stack(keys)
    if len(stacked) == 0 or not _have_one_order(keys, stacked, plan):
        return None
    stacked = _distinct(stacked)
    order = sort_order([key.array for key in keys_of(stacked)])
    first = np.arange(1, outputs) * len(order) // outputs
    return stacked.take(order[first]).reset_index(drop=True)


def _distinct(keys: pd.DataFrame) -> pd.DataFrame:
    found = group([keys[k] for k in keys], dropna=False).keys
    return pd.DataFrame(dict(zip(keys, found, strict=True)), copy=False)


def _part(keys: pd.DataFrame, plan: Plan, parts: int) -> pd.DataFrame:
    """The keys whose hash is in the first of so many parts."""
    if parts == 1:
        return keys
    dtypes = [key.dtype for key in plan.keys]
    chosen = bucket_of([keys[k].array for k in keys], dtypes, parts) == 0
    return keys[chosen].reset_index(drop=True)


def split_in_ranges(
    tables: Partial, plan: Plan, bounds: pd.DataFrame | None, outputs: int
) -> list[Partial]:
    """Divide a partial by ranges of keys into one partial per output.

    Parameters
    ----------
    tables : dict of str to DataFrame
    plan : Plan
    bounds : DataFrame, optional
        See ``bounds_of``.
    outputs : int

    Returns
    -------
    list of partials, of length ``outputs``
    """
    of_row = {
        name: np.zeros(len(table), np.int64)
        if bounds is None
        else ranges_of(_keys(table, plan), bounds)
        for name, table in tables.items()
    }
    return divided_tables(tables, of_row, outputs)


def ranges_of(keys: pd.DataFrame, bounds: pd.DataFrame) -> npt.NDArray[np.int64]:
    """How many bounds are not above each row of keys.

    Parameters
    ----------
    keys : DataFrame of shape (rows, keys)
    bounds : DataFrame of shape (bounds, keys)
        Sorted, with the same columns, in the dtypes that the keys of all partials have together.

    Returns
    -------
    ndarray of int64, shape (rows,)
    """
    n, of_rows = len(keys), np.zeros(len(keys), np.int64)
    of_bounds, size = np.zeros(len(bounds), np.int64), 1
    for name in bounds.columns:
        codes, of_bound = _codes(keys[name], bounds[name])
        radix = int(max(codes.max(initial=0), of_bound.max(initial=0))) + 1
        if size * radix > _WIDEST:
            found, inverse = np.unique(np.append(of_rows, of_bounds), return_inverse=True)
            of_rows, of_bounds, size = inverse[:n], inverse[n:], len(found)
        of_rows, of_bounds = of_rows * radix + codes, of_bounds * radix + of_bound
        size *= radix
    return np.searchsorted(of_bounds, of_rows, side="right").astype(np.int64)


def _keys(table: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    return table[[str(key.name) for key in keys_of(table)[: len(plan.keys)]]]


def _have_one_order(keys: Sequence[pd.DataFrame], stacked: pd.DataFrame, plan: Plan) -> bool:
    """Whether all outputs sort keys as their bounds are sorted."""
    for name, promised in zip(stacked.columns, plan.keys, strict=True):
        found, wanted = stacked[name].dtype, promised.dtype
        classes = {dtype_class(found), dtype_class(wanted)}
        if classes & {"object", "other"} or not (len(classes) == 1 or classes <= {*NUMERIC}):
            return False
        # each output unites the categories of what it gets; dtypes are equal in any order of them
        if dtype_class(wanted) == "category" and not all(
            k[name].cat.categories.equals(wanted.categories) for k in keys
        ):
            return False
    return True


def _codes(column: pd.Series, bounds: pd.Series) -> tuple[Codes, Codes]:
    """Integers in the order of the values of a column and of its bounds; nulls are last."""
    n = len(column)
    if column.dtype != bounds.dtype:
        together = stack([column.to_frame("k0"), bounds.to_frame("k0")])["k0"]
        column, bounds = together[:n], together[n:]
    kind = dtype_class(bounds.dtype)
    if kind == "string":
        return _codes_of_text(column, bounds)
    if isinstance(bounds.dtype, np.dtype) and kind in ("int", "uint", "float"):
        return _codes_of_numbers(column.to_numpy(), bounds.to_numpy())
    (found,) = ranks([pd.concat([column, bounds], ignore_index=True).array])
    return found[:n].astype(np.int64), found[n:].astype(np.int64)


def _codes_of_numbers(values: Any, bounds: Any) -> tuple[Codes, Codes]:
    """Twice the number of bounds below a value, and one more where it is a bound."""
    distinct = np.unique(bounds[~np.isnan(bounds)])

    def code(some: Any) -> Codes:
        # NaN is above all numbers
        below, above = (np.searchsorted(distinct, some, side) for side in ("left", "right"))
        return np.where(np.isnan(some), 2 * len(distinct) + 1, below + above).astype(np.int64)

    return code(values), code(bounds)


def _codes_of_text(values: pd.Series, bounds: pd.Series) -> tuple[Codes, Codes]:
    """The same; Arrow compares the bytes, which have the order of the characters."""
    distinct = sorted(bounds.dropna().unique())

    def code(some: pd.Series) -> Codes:
        text = pa.array(some, pa.large_string())
        found = np.zeros(len(some), np.int64)
        for bound in distinct:
            for compare in (pc.greater_equal, pc.greater):
                found += compare(text, bound).fill_null(True).to_numpy(zero_copy_only=False)
        return np.where(some.isna().to_numpy(), 2 * len(distinct) + 1, found)

    return code(values), code(bounds)
