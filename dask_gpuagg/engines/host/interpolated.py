"""What pandas makes of the two order statistics on either side of a quantile, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg.narrowing import interpolation_of, target_of
from dask_gpuagg.plan import Output

Array = npt.NDArray[Any]


def interpolated(output: Output, dtype: Any, rows: Array, low: Array, high: Array) -> Array:
    """An output of each group; NaN of groups without values.

    Parameters
    ----------
    output : Output
        That ``narrowing.is_narrowed`` admits.
    dtype : numpy.dtype
        Of the values.
    rows : ndarray of int64, shape (groups,)
        How many values there are.
    low, high : ndarray, shape (groups,)
        Of which any value will do where there is none.

    Returns
    -------
    ndarray of float64, or float32, shape (groups,)
    """
    share = target_of(output).q * np.maximum(rows - 1, 0) % 1
    with np.errstate(invalid="ignore", over="ignore"):
        if output.aggregation != "median":
            made = _quantile(share, low, high, interpolation_of(output))
            return np.where(rows > 0, made, np.nan)
        low, high = low.astype(np.float64), high.astype(np.float64)
        made = np.where(share > 0, (low + high) / 2.0, low)
    if dtype != np.float32:
        return np.where(rows > 0, made, np.nan)
    # pandas' dtype depends on the values
    ends = np.where(rows > 0, (low, high), np.nan).astype(np.float32).ravel()
    medians: Array = pd.Series(ends).groupby(np.tile(np.arange(len(low)), 2)).median().to_numpy()
    return medians


def _quantile(share: Array, low: Array, high: Array, how: str) -> Array:
    # pandas' loop takes float64 of any number: sums and gaps of integers do not overflow
    low, high = low.astype(np.float64), high.astype(np.float64)
    made = (low + high) / 2.0 if how == "midpoint" else low + (high - low) * share
    return np.where(share == 0, low, made)
