"""The bins of exact sums as libcudf makes them, while the kernels are being compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cudf
import cupy as cp
import pylibcudf as plc

from dask_gpuagg import exact_sums
from dask_gpuagg.cuda.query.types import EXACT_BINS
from dask_gpuagg.engines.device.operations import fill_nulls

# By bits, the bins that have one in the first field; the last bit is that of unusual values.
_LOWEST, _HIGHEST = 3, 65

Reduce = Callable[[plc.Column, Any], plc.Column]


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
    if values.dtype.kind == "f":
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
        bins = [
            cp.where((place + i) % EXACT_BINS == k, bins[k] + part, bins[k])
            for k in range(EXACT_BINS)
        ]
    unusual = some & ((first < _LOWEST) | (last > _HIGHEST))
    if values.dtype.kind == "f":
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


def _wide(values: cp.ndarray) -> cp.ndarray:
    return values.astype(cp.uint64 if values.dtype.kind == "u" else cp.int64)


def _array(column: plc.Column) -> cp.ndarray:
    return cudf.Series.from_pylibcudf(column).values


def _column(array: cp.ndarray) -> plc.Column:
    return cudf.Series(array).to_pylibcudf()[0]
