"""Exact sums of floats of one partition, in the bins of ``exact_sums.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dask_gpuagg import exact_sums
from dask_gpuagg.engines.host import fused

Array = npt.NDArray[Any]

# A bin takes the slices of so many rows.
_ROWS = 1 << 30
_INFINITE = 0x7FF


def sums(
    codes: Array, n: int, values: npt.NDArray[np.float64], nan_is_null: bool, compiled: bool
) -> dict[str, npt.NDArray[np.int64]]:
    """The bins of each group, and the numbers of values that are not finite where there are any.

    Parameters
    ----------
    codes : ndarray of int in ``range(n)``, shape (rows,)
        Read-only int32 for the compiled loop.
    n : int
    values : ndarray of float64, shape (rows,)
    nan_is_null : bool
    compiled : bool

    Returns
    -------
    dict of str to ndarray of int64, shape (n,)
        Fields of the state ``xsum``, all but the number of values.
    """
    bits = np.ascontiguousarray(values).view(np.uint64)
    least, most = _exponents(bits, compiled)
    fields = _not_finite(codes, n, values, nan_is_null) if most == _INFINITE else {}
    digits: exact_sums.Digits = {}
    for start in range(0, len(bits) if least < _INFINITE else 0, _ROWS):
        rows = slice(start, start + _ROWS)
        low = (max(least, 1) - 1) >> 5
        high = min(most, _INFINITE - 1)
        # the highest slice is two bins above the lowest
        acc = np.zeros((n, ((max(high, 1) - 1) >> 5) + 3 - low), np.int64)
        if compiled:
            from dask_gpuagg.engines.host import loops_exact

            loops_exact.add_slices(codes[rows], fused.frozen(bits[rows], np.uint64), acc, low)
        else:
            _add_slices(codes[rows], bits[rows], acc, low)
        of_rows = {low + j: acc[:, j] for j in range(acc.shape[1])}
        digits = exact_sums.carried(exact_sums.added(digits, of_rows), np)
    # copies: a column of the accumulators keeps all of them
    used = {j: np.ascontiguousarray(part) for j, part in digits.items() if part.any()}
    return fields | {exact_sums.label(j): used[j] for j in sorted(used)}


def _exponents(bits: Array, compiled: bool) -> tuple[int, int]:
    """The least and the greatest exponent, 0x7ff and 0 of no values but zeros."""
    if compiled:
        from dask_gpuagg.engines.host import loops_exact

        least, most = loops_exact.exponents(fused.frozen(bits, np.uint64))
        return int(least), int(most)
    some = bits[bits << np.uint64(1) != 0]
    if len(some) == 0:
        return _INFINITE, 0
    exponents = some >> np.uint64(52) & np.uint64(0x7FF)
    return int(exponents.min()), int(exponents.max())


def _add_slices(codes: Array, bits: Array, acc: Array, low: int) -> None:
    place, slices = exact_sums.sliced(bits.view(np.float64), np)
    # what has no slices, zeros and values that are not finite, may lie outside of the bins
    some = slices[0] | slices[1] | slices[2] != 0
    at = codes[some].astype(np.int64) * acc.shape[1] + place[some] - low
    flat = acc.reshape(-1)
    for i, part in enumerate(slices):
        np.add.at(flat, at + i, part[some])


def _not_finite(codes: Array, n: int, values: Array, nan_is_null: bool) -> dict[str, Array]:
    nan, above, below = exact_sums.SPECIAL
    found = {above: values == np.inf, below: values == -np.inf}
    if not nan_is_null:
        found[nan] = np.isnan(values)
    return {
        name: np.bincount(codes[rows], minlength=n) for name, rows in found.items() if rows.any()
    }
