"""The bins of one slot of the kernels, and exact sums as libcudf makes them meanwhile.

A slot has ``EXACT_BINS`` bins, bin ``j`` in the place ``j % EXACT_BINS``, and says which are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cudf
import cupy as cp
import pylibcudf as plc

from dask_gpuagg import exact_sums
from dask_gpuagg.cuda.query.types import EXACT_BINS
from dask_gpuagg.engines.device.memory import on_device
from dask_gpuagg.engines.device.operations import fill_nulls

# What a bit says is used, from the lowest one on; the last bit is that of unusual values.
_LOWEST, _HIGHEST = 3, 65
# More than ``centred.LOSS_AT_MOST``.
_LOSS = 1e300

Reduce = Callable[[plc.Column, Any], plc.Column]


def decoded(used: cp.ndarray, bins: Sequence[cp.ndarray]) -> exact_sums.Digits | None:
    """The bins of all groups by their places; None where those of a group are too far apart.

    Parameters
    ----------
    used : array of int64
        Of each group, the bits of the bins between which its values lie.
    bins : sequence of arrays of int64
    """
    lowest = used & -used
    if bool(((used < 0) | (used // cp.maximum(lowest, 1) >= 1 << EXACT_BINS)).any()):
        return None
    digits: exact_sums.Digits = {}
    held = used != 0
    if not bool(held.any()):
        return digits
    # the exponent of a power of two
    first = _LOWEST + (lowest.astype(cp.float64).view(cp.int64) >> 52) - 1023
    for j in range(int(first[held].min()), int(first[held].max()) + EXACT_BINS):
        inside = held & (j >= first) & (j < first + EXACT_BINS)
        values = cp.where(inside, bins[j % EXACT_BINS], 0)
        if bool(values.any()):
            digits[j] = values
    return digits


def exact_sum(reduced: Reduce, column: plc.Column) -> tuple[plc.Column, ...]:
    """The fields of the kernels' ``ExactSum``: which bins are used, and the bins.

    Parameters
    ----------
    reduced : callable
        Reduces a column to one row for each group.
    column : pylibcudf.Column
        Numbers of rows.
    """
    values = _array(fill_nulls(column, 0))
    floats = values.dtype.kind == "f"
    if floats:
        values = values.astype(cp.float64)
        place, slices = exact_sums.sliced(values, cp)
    else:
        digits = exact_sums.of_integers(_wide(values))
        place, slices = cp.full(len(values), min(digits), dtype=cp.int64), list(digits.values())
    some = cp.zeros(len(values), dtype=bool)
    first, last = cp.full_like(place, _HIGHEST), cp.full_like(place, _LOWEST)
    bins = [cp.zeros_like(place) for _ in range(EXACT_BINS)]
    for i, part in enumerate(slices):
        filled = part != 0
        first = cp.where(filled & ~some, place, first)
        last = cp.where(filled, place + i, last)
        some |= filled
        for k in range(EXACT_BINS):
            bins[k] += cp.where((place + i) % EXACT_BINS == k, part, 0)
    unusual = some & ((first < _LOWEST) | (last > _HIGHEST))
    if floats:
        unusual |= ~cp.isfinite(values)
    sums = [reduced(_column(part), plc.aggregation.sum()) for part in bins]
    least = _array(reduced(_column(first), plc.aggregation.min()))
    most = _array(reduced(_column(last), plc.aggregation.max()))
    any_unusual = _array(reduced(_column(unusual.astype(cp.int8)), plc.aggregation.max()))
    one = cp.ones_like(least)
    used = (one << (least - _LOWEST)) | (one << (most - _LOWEST))
    used = cp.where(most >= least, used, 0)
    used = cp.where(any_unusual > 0, cp.int64(-(1 << 63)), used)
    return _column(used), *sums


def total(fields: Sequence[plc.Column]) -> plc.Column:
    """The sums of such fields, rounded once; anything where bins are too far apart."""
    used, *bins = map(_array, fields)
    digits = decoded(used, bins)
    if digits is None:
        return _column(cp.zeros(len(used)))
    labelled = {exact_sums.label(j): values for j, values in digits.items()}
    return _column(exact_sums.total({exact_sums.COUNT: used} | labelled, cp))


def loss(fields: Sequence[plc.Column]) -> plc.Column:
    """More than may be lost where bins are too far apart."""
    used, *bins = map(_array, fields)
    return _column(cp.full(len(used), _LOSS if decoded(used, bins) is None else 0.0))


def _wide(values: cp.ndarray) -> cp.ndarray:
    return values.astype(cp.uint64 if values.dtype.kind == "u" else cp.int64)


def _array(column: plc.Column) -> cp.ndarray:
    return cudf.Series.from_pylibcudf(column).values


def _column(array: cp.ndarray) -> plc.Column:
    return on_device(cudf.Series(array, nan_as_null=False)._column)
