"""Rows in the order of their groups or outputs, by a compiled loop; medians of groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg.engines.host import fused

Array = npt.NDArray[Any]

# Groups of so many rows are selected from faster by NumPy, whose calls have their price.
_NUMPY_ROWS = 1 << 11


def scattered(values: Array, places: Array, counts: Array) -> Array:
    """Values in the order of the places that they belong to, stable.

    Parameters
    ----------
    values : ndarray of shape (rows,)
        Numbers of 4 or 8 bytes.
    places : ndarray of int32 in ``range(len(counts))``, shape (rows,), read-only
    counts : ndarray of int64
        Rows of each place.

    Returns
    -------
    ndarray of the dtype of ``values``
    """
    from dask_gpuagg.engines.host import loops_order

    kind = np.dtype(f"i{values.dtype.itemsize}")
    made = np.empty(len(values), values.dtype)
    starts = np.cumsum(counts) - counts
    loops_order.scatter(places, starts, fused.frozen(values.view(kind), kind), made.view(kind))
    return made


def takes(table: pd.DataFrame) -> bool:
    """Whether the loops order a table: many rows of plain numbers."""
    plain = all(isinstance(dtype, np.dtype) and _is_word(dtype) for dtype in table.dtypes)
    return plain and fused.usable(len(table))


def _is_word(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iuf" and dtype.itemsize in (4, 8)


def columns_by_place(table: pd.DataFrame, places: Array, counts: Array) -> dict[str, Array]:
    """The columns of a table that the loops order, their rows in the order of their places."""
    places = fused.frozen(places, np.int32)
    return {str(name): scattered(table[name].to_numpy(), places, counts) for name in table.columns}


def medians(codes: Array, n: int, values: Array) -> npt.NDArray[np.float64]:
    """The median of each group, of values that are no NaN; NaN of no values.

    Parameters
    ----------
    codes : ndarray of int in ``range(n)``, shape (rows,)
    n : int
    values : ndarray of float64, shape (rows,)
    """
    from dask_gpuagg.engines.host import loops_order

    valid = ~np.isnan(values)
    if not valid.all():
        codes, values = codes[valid], values[valid]
    codes = fused.frozen(codes, np.int32)
    counts = fused.count(codes, n)
    ordered, ends = scattered(values, codes, counts), np.cumsum(counts)
    found = np.full(n, np.nan)
    if len(values) < n * _NUMPY_ROWS:
        loops_order.medians(ordered, ends, found)
        return found
    with np.errstate(invalid="ignore", over="ignore"):
        for g, (end, rows) in enumerate(zip(ends, counts, strict=True)):
            if rows:
                found[g] = _median(ordered[end - rows : end])
    return found


def _median(run: Array) -> Any:
    k = len(run) // 2
    run.partition(k)
    return run[k] if len(run) % 2 else (run[k] + run[:k].max()) / 2


def select(
    values: Array, codes: Array, counts: Array, ranks: Sequence[Array], out: Sequence[Array]
) -> None:
    """Write the order statistics of each group that are asked for.

    Parameters
    ----------
    values : ndarray of shape (rows,)
        Numbers of 8 bytes, no NaN.
    codes : ndarray of int32 in ``range(groups)``, shape (rows,), read-only
    counts : ndarray of int64, shape (groups,)
        Rows of each group.
    ranks : sequence of ndarray of int64, each of shape (groups,)
        From 0; -1 where a group is asked for nothing.
    out : sequence of ndarray, each of shape (groups,)
        For each of ``ranks``, of the dtype of ``values``. Other groups keep what they have.
    """
    from dask_gpuagg.engines.host import loops_order

    ordered, ends = scattered(values, codes, counts), np.cumsum(counts)
    large = counts >= _NUMPY_ROWS
    for g in np.flatnonzero(large):
        asked = [rank[g] for rank in ranks if rank[g] >= 0]
        if asked:
            ordered[ends[g] - counts[g] : ends[g]].partition(asked)
    for rank, found in zip(ranks, out, strict=True):
        some = large & (rank >= 0)
        found[some] = ordered[(ends - counts + rank)[some]]
        loops_order.select(ordered, ends, np.where(large, -1, rank), found)


def order_within(codes: Array, n: int, values: Array) -> Array:
    """The order of rows by their groups, and by their values in each.

    Parameters
    ----------
    codes : ndarray of int in ``range(n)``, shape (rows,)
    n : int
        Number of groups.
    values : ndarray of numbers, shape (rows,)
        NaN comes last. The order of equal values is not specified.

    Returns
    -------
    ndarray of int64, shape (rows,)
    """
    # codes of booleans and categories may have fewer bits than the mask
    codes = codes.astype(np.int64, copy=False)
    # NumPy sorts numbers by vector instructions, and integers of 16 bits by radix
    order = np.argsort(values)
    for shift in range(0, max(n - 1, 1).bit_length(), 16):
        digits = ((codes[order] >> shift) & 0xFFFF).astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
    return order
