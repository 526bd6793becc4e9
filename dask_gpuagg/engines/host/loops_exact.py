"""The compiled loops of exact sums; see ``loops.py`` and ``exact_sums.py``."""

from __future__ import annotations

import numpy as np

from dask_gpuagg.engines.host.loops import Array, compiled

_EXPONENT = np.uint64(0x7FF)
_MANTISSA = np.uint64((1 << 52) - 1)
_IMPLICIT = np.uint64(1 << 52)
_LOW = np.uint64(0xFFFFFFFF)
_ONE, _BIN, _WIDTH, _SIGN = np.uint64(1), np.uint64(5), np.uint64(32), np.uint64(63)
_IN_BIN, _DIGITS = np.uint64(31), np.uint64(52)


@compiled
def exponents(bits: Array) -> tuple[np.uint64, np.uint64]:
    """The least and the greatest exponent of float64 that are not zero; 0x7ff and 0 of none."""
    least, most = _EXPONENT, np.uint64(0)
    for i in range(len(bits)):
        exponent = (bits[i] >> _DIGITS) & _EXPONENT
        zero = (bits[i] << _ONE) == np.uint64(0)
        least = min(least, _EXPONENT if zero else exponent)
        most = max(most, exponent)
    return least, most


@compiled
def add_slices(codes: Array, bits: Array, acc: Array, low: int) -> None:
    """Add the slices of float64 to bins of int64 of shape (groups, bins), from bin ``low`` on."""
    for i in range(len(codes)):
        word = bits[i]
        exponent = (word >> _DIGITS) & _EXPONENT
        mantissa = word & _MANTISSA
        if exponent == np.uint64(0):
            if mantissa == np.uint64(0):
                continue
            exponent = _ONE
        elif exponent == _EXPONENT:
            continue
        else:
            mantissa |= _IMPLICIT
        start = exponent - _ONE
        shift = start & _IN_BIN
        lower = mantissa << shift
        upper = (mantissa >> _ONE) >> (_SIGN - shift)
        sign = np.int64(1) - np.int64(word >> _SIGN << _ONE)
        g = np.uint64(codes[i])
        j = np.uint64(np.int64(start >> _BIN) - low)
        acc[g, j] += sign * np.int64(lower & _LOW)
        acc[g, j + _ONE] += sign * np.int64(lower >> _WIDTH)
        acc[g, j + _ONE + _ONE] += sign * np.int64(upper)
