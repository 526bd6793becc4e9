"""Distinct (group, value) pairs on the host: the row in which each of them appears first.

From ``fused.LEAST_ROWS`` on a compiled loop looks rows up in a hash table of row numbers, four
bytes each: no pair is numbered, and nothing is sorted. Fewer rows go through pandas.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.host import fused, numbering
from dask_gpuagg.engines.host.grouping import Codes, encode, pair_codes

Bits = npt.NDArray[np.int64]

# as much memory as the hash table takes
_BITS_PER_ROW = 64
_SAMPLED_ROWS = 1 << 14


def first_rows(codes: Codes, n: int, values: pd.Series) -> npt.NDArray[np.int64]:
    """Number of the first row of each distinct pair of group and value, ascending.

    Parameters
    ----------
    codes : ndarray of int in ``range(n)``, shape (rows,)
        The group of each row.
    n : int
    values : Series of shape (rows,)
        Of any hashable dtype. Nulls are one value, and so are all NaN, and -0.0 and 0.0.

    Returns
    -------
    ndarray of int64
    """
    if not fused.usable(len(codes), 2 * n):
        pairs = pair_codes(codes, n, encode(values))
        return np.flatnonzero(~pd.Series(pairs).duplicated().to_numpy())
    from dask_gpuagg.engines.host import loops

    codes, bits = _looked_up(codes, n, values)
    low, high = int(bits.min()), int(bits.max())
    slots = (int(codes.max()) + 1) * (high - low + 1)
    rows = np.empty(len(codes), np.int64)
    codes, bits = fused.frozen(codes, np.int32), fused.frozen(bits, np.int64)
    if slots <= _BITS_PER_ROW * len(codes):
        seen = np.zeros(slots // 64 + 1, np.uint64)
        found = loops.first_of_slots(codes, bits, low, high - low + 1, seen, rows)
    else:
        table, shift = numbering.hash_table(len(codes))
        found = loops.first_of_pairs(codes, bits, table, shift, rows)
    return rows[:found]


def _looked_up(codes: Codes, n: int, values: pd.Series) -> tuple[Codes, Bits]:
    """Integers of which two rows have the same pair just where they have the same value."""
    dtype, cls = values.dtype, dtype_class(values.dtype)
    if cls in ("bool", "int", "uint"):
        wide: Any = np.uint64 if cls == "uint" else np.int64
        if isinstance(dtype, np.dtype):
            return codes, values.to_numpy().astype(wide, copy=False).view(np.int64)
        null = values.isna().to_numpy()
        zero = False if cls == "bool" else 0  # Arrow's own take nothing else
        bits = values.to_numpy(dtype=wide, na_value=zero).view(np.int64)
        # the nulls of a group are a pair of a number that no group has
        return (np.where(null, codes.astype(np.int64) + n, codes) if null.any() else codes), bits
    if cls == "float" and isinstance(dtype, np.dtype) and dtype.itemsize <= 8:
        floats = values.to_numpy().astype(np.float64) + 0.0
        floats[np.isnan(floats)] = np.nan  # of one pattern
        return codes, floats.view(np.int64)
    if cls in ("datetime", "timedelta") and not isinstance(dtype, pd.ArrowDtype):
        return codes, np.asarray(values.array.view("int64"))
    return codes, encode(values).codes.astype(np.int64, copy=False)


def repeated(codes: Codes, values: pd.Series) -> float:
    """About which part of the rows repeats a pair, by how often a sample meets one again.

    Parameters
    ----------
    codes : ndarray of int, shape (rows,)
        The group of each row.
    values : Series of shape (rows,)
        Of any hashable dtype.

    Returns
    -------
    float
        1 of few rows, which are not looked at.
    """
    rows = len(codes)
    if rows < fused.LEAST_ROWS:
        return 1.0
    step = max(rows // _SAMPLED_ROWS, 1)
    sample = pd.DataFrame({"k": codes[::step], "v": values.array[::step]})
    again = int(sample.duplicated().sum())
    # of s rows about s^2 / (2 pairs) meet a pair again: the birthday problem
    load = 2 * again * rows / len(sample) ** 2
    # rows of a pair, thrown at random: the part of the pairs that is met at all
    return 1 - (1 - math.exp(-load)) / load if load else 0.0
