"""Sketches: at most so many entries of each group, from which an output is made approximately.

A sketch is a table with several rows for each group, as the distinct pairs are: the keys, and the
fields of its entries. A group with few values has few entries, and a group without values has one
that stands for nothing. Merging takes the entries of several partials together, in any order.

``nunique_approx`` is HyperLogLog (Flajolet, Fusy, Gandouet and Meunier 2007) with the estimator of
Ertl 2017, which needs no table of corrections. Its entries are the registers that are not zero, so
that merging is the largest of each register: associative, commutative, and exact.

``quantile_approx`` keeps values with weights that are powers of two, a level for each power. A
level that holds more than ``CAPACITY`` values is compacted: sorted, and every other value goes to
the next level (Munro and Paterson 1980; Manku, Rajagopalan and Lindsay 1998; Agarwal et al. 2012,
section 3). A compaction at a level moves the rank of any value by at most the weight of the level,
and takes at least ``CAPACITY`` values of that weight. So of ``n`` values ``rank_error(n)`` bounds
what all of them together move, however partials were merged. Up to ``CAPACITY`` values of a group
are all kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from dask_gpuagg.dtypes import TEMPORAL, TICKS, dtype_class
from dask_gpuagg.engines.host.buckets import ticks_with_unit
from dask_gpuagg.engines.host.update import floats_of

Codes = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Fields = dict[str, npt.NDArray[Any]]

# bits of a hash that name a register
PRECISION = 12
REGISTERS = 1 << PRECISION
# the standard error of HyperLogLog
DISTINCT_ERROR = 1.04 / REGISTERS**0.5

# values of a level that are kept
CAPACITY = 2048

# an entry holds the number of a register, and its rank in so many bits
_RANK_BITS = 6
_HASH_BITS = 64 - PRECISION
_RANKS = _HASH_BITS + 2
# registers of all groups that are kept dense while rows are read
_DENSE = 1 << 22
# groups of which the ranks are counted together
_BLOCK = 1 << 14

_DAY = 24 * 60 * 60
# stands for a group without values
_NOTHING = -1


class Sketch(NamedTuple):
    """What the engine does with a sketch.

    Attributes
    ----------
    update : callable
        Group numbers of rows, the number of groups and the values: group numbers and fields of
        entries.
    merge : callable
        Group numbers, the number of groups and the fields of entries: the same of fewer entries.
    finish : callable
        The same, and the parameters of the output: one value for each group.
    """

    update: Callable[[Codes, int, pd.Series], tuple[Codes, Fields]]
    merge: Callable[[Codes, int, Fields], tuple[Codes, Fields]]
    finish: Callable[[Codes, int, Fields, dict[str, Any]], npt.NDArray[Any]]


def rank_error(n: int) -> int:
    """By how many ranks a quantile of ``n`` values is off at most.

    Parameters
    ----------
    n : int

    Returns
    -------
    int
    """
    level, error = 0, 0
    while n > CAPACITY << level:
        error += (n // (CAPACITY << level)) << level
        level += 1
    return error


def hashes_of(values: pd.Series) -> Hashes:
    """Hashes of values of which none is null; equal values have equal ones, whatever their dtype.

    Parameters
    ----------
    values : Series

    Returns
    -------
    ndarray of uint64
    """
    cls = dtype_class(values.dtype)
    if cls == "category":
        of_category = hashes_of(pd.Series(values.cat.categories))
        return np.asarray(of_category[values.cat.codes.to_numpy()])
    if cls in ("bool", "int", "uint"):
        return _of_integers(values.to_numpy(np.uint64 if cls == "uint" else np.int64))
    if cls == "float":
        return _mixed(values.to_numpy(np.float64) + 0.0)
    if cls in TEMPORAL:
        unit, ticks = ticks_with_unit(values)
        seconds, rest = np.divmod(ticks, TICKS[unit])
        return _of_times(seconds, rest * (TICKS["ns"] // TICKS[unit]))
    if cls == "date":
        days = pa.array(values.array).cast(pa.date32()).cast(pa.int32())
        return _of_times(days.to_numpy(zero_copy_only=False).astype(np.int64) * _DAY)
    if cls == "string":
        encoded = pa.array(values.array).dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        texts = encoded.dictionary.to_numpy(zero_copy_only=False).astype(object)
        return np.asarray(_mixed(texts)[encoded.indices.to_numpy(zero_copy_only=False)])
    return _mixed(values.to_numpy(dtype=object))


def _mixed(array: npt.NDArray[Any]) -> Hashes:
    return np.asarray(pd.util.hash_array(array), dtype=np.uint64)


def _of_integers(integers: npt.NDArray[Any]) -> Hashes:
    """As floats, which other partitions may hold, where the integer is one."""
    floats = integers.astype(np.float64)
    with np.errstate(invalid="ignore"):
        back = floats.astype(integers.dtype)
    # rounded up, the largest integers have no place in their dtype
    fits = (back == integers) & (
        floats < 2.0 * 2.0 ** (8 * integers.itemsize - 1) / (1 + (integers.dtype.kind == "i"))
    )
    return np.where(fits, _mixed(floats + 0.0), _mixed(integers.view(np.uint64)))


def _of_times(seconds: npt.NDArray[np.int64], nanoseconds: Any = 0) -> Hashes:
    rest = np.broadcast_to(np.asarray(nanoseconds, np.int64), seconds.shape)
    return _mixed(_mixed(seconds) + np.ascontiguousarray(rest).view(np.uint64))


def _update_distinct(codes: Codes, n: int, values: pd.Series) -> tuple[Codes, Fields]:
    valid = values.notna().to_numpy()
    if not valid.all():
        codes, values = codes[valid], values[valid]
    hashes = hashes_of(values)
    register = (hashes >> np.uint64(_HASH_BITS)).astype(np.int64)
    # the bits behind the register's as a number below 2**52, whose length a float tells
    rest = (hashes << np.uint64(PRECISION)) >> np.uint64(PRECISION)
    rank = _HASH_BITS + 1 - np.frexp(rest.astype(np.float64))[1]
    return _largest(codes, n, register, rank)


def _largest(codes: Codes, n: int, register: Codes, rank: Any) -> tuple[Codes, Fields]:
    """The largest rank of each register; an entry of rank 0 for a group without any."""
    places = codes.astype(np.int64) * REGISTERS + register
    if n * REGISTERS <= _DENSE:
        dense = np.zeros(n * REGISTERS, np.uint8)
        np.maximum.at(dense, places, rank.astype(np.uint8))
        places = np.flatnonzero(dense)
        rank = dense[places]
    else:
        entries = np.sort((places << _RANK_BITS) | rank)
        places = entries >> _RANK_BITS
        last = np.append(places[1:] != places[:-1], np.ones(min(len(places), 1), bool))
        places, rank = places[last], (entries[last] & ((1 << _RANK_BITS) - 1))
        places, rank = places[rank > 0], rank[rank > 0]
    found, entries = np.divmod(places, REGISTERS)
    entries = ((entries << _RANK_BITS) | rank).astype(np.int32)
    missing = np.flatnonzero(np.bincount(found, minlength=n) == 0)
    fields = {"v": np.append(entries, np.zeros(len(missing), np.int32))}
    return np.append(found, missing), fields


def _merge_distinct(codes: Codes, n: int, fields: Fields) -> tuple[Codes, Fields]:
    entries = fields["v"].astype(np.int64)
    return _largest(codes, n, entries >> _RANK_BITS, entries & ((1 << _RANK_BITS) - 1))


def _finish_distinct(
    codes: Codes, n: int, fields: Fields, parameters: dict[str, Any]
) -> npt.NDArray[np.int64]:
    order = np.argsort(codes, kind="stable")
    codes, rank = codes[order], fields["v"][order] & ((1 << _RANK_BITS) - 1)
    counts = np.empty(n, np.int64)
    for start in range(0, n, _BLOCK):
        size = min(_BLOCK, n - start)
        rows = slice(*np.searchsorted(codes, (start, start + size)))
        places = (codes[rows] - start) * _RANKS + rank[rows]
        counts[start : start + size] = _estimates(
            np.bincount(places, minlength=size * _RANKS).reshape(size, _RANKS)
        )
    return counts


def _estimates(counted: Codes) -> npt.NDArray[np.int64]:
    """Numbers of distinct values from how many registers have each rank: Ertl 2017, algorithm 6."""
    filled = counted[:, 1:].sum(axis=1)
    z = REGISTERS * _tau(1 - counted[:, -1] / REGISTERS)
    for rank in range(_RANKS - 2, 0, -1):
        z = 0.5 * (z + counted[:, rank])
    z += REGISTERS * _sigma(1 - filled / REGISTERS)
    with np.errstate(divide="ignore"):
        estimates = REGISTERS**2 / (2 * np.log(2)) / z
    return np.where(filled == 0, 0, np.rint(estimates)).astype(np.int64)


def _sigma(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of the part of the registers that are zero; a group without values is not asked for."""
    x = np.where(x >= 1, 0.0, x)
    y, z = 1.0, x.copy()
    while True:
        x = x * x
        before = z
        z = z + x * y
        y += y
        if np.array_equal(z, before):
            return z


def _tau(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Of the part of the registers whose rank is not the largest."""
    x = np.where(x <= 0, 1.0, x)
    y, z = 1.0, 1 - x
    while True:
        x = np.sqrt(x)
        before = z
        y *= 0.5
        z = z - (1 - x) ** 2 * y
        if np.array_equal(z, before):
            return z / 3


def _update_quantile(codes: Codes, n: int, values: pd.Series) -> tuple[Codes, Fields]:
    valid = values.notna().to_numpy()
    floats, kept = floats_of(values)[valid], codes[valid].astype(np.int64)
    missing = np.flatnonzero(np.bincount(kept, minlength=n) == 0)
    level = np.zeros(len(kept) + len(missing), np.int8)
    level[len(kept) :] = _NOTHING
    fields = {"v": np.append(floats, np.full(len(missing), np.nan)), "w": level}
    return _merge_quantile(np.append(kept, missing), n, fields)


def _merge_quantile(codes: Codes, n: int, fields: Fields) -> tuple[Codes, Fields]:
    values, levels = fields["v"], fields["w"]
    level = 0
    while level <= levels.max(initial=_NOTHING):
        here = levels == level
        full = np.bincount(codes[here], minlength=n) > CAPACITY
        if full.any():
            here &= full[codes]
            kept = _every_other(codes[here], values[here], level)
            codes = np.append(codes[~here], kept[0])
            values = np.append(values[~here], kept[1])
            levels = np.append(levels[~here], kept[2])
        level += 1
    return codes, {"v": values, "w": levels}


def _every_other(
    codes: Codes, values: npt.NDArray[np.float64], level: int
) -> tuple[Codes, npt.NDArray[np.float64], npt.NDArray[np.int8]]:
    """Compact the values of groups at a level; the last one of an odd number stays there."""
    groups, numbers, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    # NumPy sorts integers of 16 bits by radix
    narrow = np.uint16 if len(groups) <= 1 << 16 else np.int64
    values = values[np.argsort(numbers.astype(narrow), kind="stable")]
    kept, levels = [], []
    for run in np.split(values, np.cumsum(sizes)[:-1]):
        ordered = np.sort(run)
        even = len(run) // 2 * 2
        half = ordered[_coin(ordered, level) : even : 2]
        kept += [half, ordered[even:]]
        levels.append(np.repeat((level + 1, level), (len(half), len(run) - even)))
    counts = [len(of_group) for of_group in levels]
    return np.repeat(groups, counts), np.concatenate(kept), np.concatenate(levels).astype(np.int8)


def _coin(ordered: npt.NDArray[np.float64], level: int) -> int:
    """0 or 1, by the values: a task that is run again makes the same sketch."""
    bits = _mixed(ordered[len(ordered) // 2 :][:1] + 0.0)
    return int(bits[0] >> np.uint64(level)) & 1


def _finish_quantile(
    codes: Codes, n: int, fields: Fields, parameters: dict[str, Any]
) -> npt.NDArray[np.float64]:
    """Values at a rank, interpolated between two ranks as pandas does."""
    order = np.lexsort((fields["v"], codes))
    codes, values, levels = codes[order], fields["v"][order], fields["w"][order]
    weights = np.where(levels == _NOTHING, 0, np.int64(1) << np.maximum(levels, 0).astype(np.int64))
    until = np.cumsum(weights)
    ends = np.searchsorted(codes, np.arange(n), side="right")
    total = np.append(0, until)[ends]
    start = np.append(0, total[:-1])
    sizes = total - start
    wanted = parameters.get("q", 0.5) * (sizes - 1)
    low = np.floor(wanted).astype(np.int64)
    made = np.full(n, np.nan)
    some = sizes > 0
    below, above = (
        values[np.searchsorted(until, (start + rank)[some], side="right")]
        for rank in (low, np.minimum(low + 1, sizes - 1))
    )
    with np.errstate(invalid="ignore"):
        between = below + (above - below) * (wanted - low)[some]
    made[some] = np.where((below == above) | ((wanted - low)[some] == 0), below, between)
    return made


SKETCHES: dict[str, Sketch] = {
    "nunique_approx": Sketch(_update_distinct, _merge_distinct, _finish_distinct),
    "quantile_approx": Sketch(_update_quantile, _merge_quantile, _finish_quantile),
}
