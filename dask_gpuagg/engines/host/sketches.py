"""Sketches: at most so many entries of each group, from which an output is made.

A sketch is a table with several rows for each group, as the distinct pairs are: the keys, and the
fields of its entries. A group with few values has few entries, and a group without values has one
that stands for nothing. Merging takes the entries of several partials together, in any order.

* ``nlargest`` and ``nsmallest`` keep so many values, and are exact.
* ``nunique_approx`` is HyperLogLog (Flajolet, Fusy, Gandouet and Meunier 2007) with the estimator
  of Ertl 2017, which needs no table of corrections. Entries are the registers that are not zero, so
  that merging is the largest of each register: associative, commutative, and exact.
* ``quantile_approx`` compacts samples. Values have weights that are powers of two, a level for each
  power. A level that holds more than ``CAPACITY`` values is sorted, and every other value goes to
  the next level (Munro and Paterson 1980; Manku, Rajagopalan and Lindsay 1998; Agarwal et al. 2012,
  section 3). That moves the rank of any value by at most the weight of the level, and takes at
  least ``CAPACITY`` values of that weight, which bounds the error however partials were merged. Up
  to ``CAPACITY`` values of a group are all kept.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg.dtypes import TEMPORAL, TICKS, dtype_class
from dask_gpuagg.engines.host.compiled import Fields, order_within
from dask_gpuagg.engines.host.exchange import Hashes, hash_array, hash_text, ticks_with_unit
from dask_gpuagg.engines.host.grouping import lists_of
from dask_gpuagg.engines.host.states import floats_of

Codes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
# group number and fields of each entry; every group has one
Entries = tuple[Codes, Fields]

# bits of a hash that name a register
PRECISION = 12
REGISTERS = 1 << PRECISION
# an entry holds the number of a register, and its rank in so many bits
_RANK_BITS = 6
_HASH_BITS = 64 - PRECISION
_RANKS = _HASH_BITS + 2
# registers of all groups that are kept dense while rows are read
DENSE = 1 << 22
# groups of which the ranks are counted together
_BLOCK = 1 << 14

# values of a level of a compacted sample
CAPACITY = 2048
# the level of an entry that stands for a group without values
_NOTHING = -1


class Sketch(NamedTuple):
    """The functions of a sketch, which also take parameters by name.

    ``update`` makes entries of the group numbers of rows, the number of groups and the values;
    ``merge`` fewer entries of the group numbers, the number of groups and the fields of entries;
    ``finish``, of these arguments too, one value for each group.
    """

    update: Callable[..., Entries]
    merge: Callable[..., Entries]
    finish: Callable[..., npt.NDArray[Any]]


def _valid(codes: Codes, values: pd.Series) -> tuple[Codes, pd.Series]:
    """The rows whose value is not null."""
    valid = values.notna().to_numpy()
    return (codes, values) if valid.all() else (codes[valid], values[valid])


def _without_rows(codes: Codes, n: int) -> Codes:
    """The groups that no code names."""
    return np.flatnonzero(np.bincount(codes, minlength=n) == 0)


def _update_top(codes: Codes, rows: int, values: pd.Series, sign: int, n: int = 5) -> Entries:
    codes, values = _valid(codes, values)
    dtype = {"int": np.int64, "uint": np.uint64}.get(dtype_class(values.dtype), np.float64)
    fields = {"v": values.to_numpy(dtype), "w": np.ones(len(values), np.int8)}
    return _merge_top(codes, rows, fields, sign, n)


def _merge_top(codes: Codes, rows: int, fields: Fields, sign: int, n: int = 5) -> Entries:
    """The first values of each group; one that does not count for a group without any."""
    some = fields["w"] == 1
    codes, values = codes[some], fields["v"][some]
    # the order of the complement of an unsigned integer is the reverse one, as of the negative
    ranked = values if sign > 0 else ~values if values.dtype.kind in "iu" else -values
    order = order_within(codes, rows, ranked)
    codes, values = codes[order], values[order]
    starts = np.append(0, np.cumsum(np.bincount(codes, minlength=rows)))
    first = np.arange(len(codes)) - starts[codes] < n
    codes, values = codes[first], values[first]
    missing = _without_rows(codes, rows)
    counts = np.append(np.ones(len(codes), np.int8), np.zeros(len(missing), np.int8))
    values = np.append(values, np.zeros(len(missing), values.dtype))
    return np.append(codes, missing), {"v": values, "w": counts}


def _finish_top(codes: Codes, rows: int, fields: Fields, n: int = 5) -> npt.NDArray[np.object_]:
    # merged entries are in the order of their groups, and of the values in each
    some = fields["w"] == 1
    sizes = np.bincount(codes[some], minlength=rows)
    return lists_of(fields["v"][some].tolist(), sizes)


def _of_top(sign: int) -> Sketch:
    """The smallest values, or with a negative sign the largest."""
    return Sketch(partial(_update_top, sign=sign), partial(_merge_top, sign=sign), _finish_top)


def hashes_of(values: pd.Series) -> Hashes:
    """Hashes of values without a null; equal values have equal ones, whatever their dtype."""
    cls = dtype_class(values.dtype)
    if cls == "category":
        of_category = hashes_of(pd.Series(values.cat.categories))
        return np.asarray(of_category[values.cat.codes.to_numpy()])
    if cls in ("bool", "int", "uint"):
        return _hashes_of_integers(values.to_numpy(np.uint64 if cls == "uint" else np.int64))
    if cls == "float":
        return hash_array(values.to_numpy(np.float64) + 0.0)
    if cls in (*TEMPORAL, "date"):
        unit, ticks = ticks_with_unit(values)
        seconds, rest = np.divmod(ticks, TICKS[unit])
        nanoseconds = rest * (TICKS["ns"] // TICKS[unit])
        return hash_array(hash_array(seconds) + nanoseconds.view(np.uint64))
    if cls == "string":
        return hash_text(values)
    return hash_array(values.to_numpy(dtype=object))


def _hashes_of_integers(integers: npt.NDArray[Any]) -> Hashes:
    """Hashes of integers as floats, which other partitions may hold, where they are equal."""
    floats = integers.astype(np.float64)
    with np.errstate(invalid="ignore"):
        back = floats.astype(integers.dtype)
    # rounded up, the largest integers have no place in their dtype
    fits = (back == integers) & (
        floats < 2.0 * 2.0 ** (8 * integers.itemsize - 1) / (1 + (integers.dtype.kind == "i"))
    )
    return np.where(fits, hash_array(floats + 0.0), hash_array(integers.view(np.uint64)))


def _update_registers(codes: Codes, n: int, values: pd.Series) -> Entries:
    """The registers that the values of each group set."""
    codes, values = _valid(codes, values)
    hashes = hashes_of(values)
    register = (hashes >> np.uint64(_HASH_BITS)).astype(np.int64)
    # the bits behind the register's as a number below 2**52, whose length a float tells
    rest = (hashes << np.uint64(PRECISION)) >> np.uint64(PRECISION)
    rank = _HASH_BITS + 1 - np.frexp(rest.astype(np.float64))[1]
    return _largest(codes, n, register, rank)


def _largest(codes: Codes, n: int, register: Codes, rank: Any) -> Entries:
    """The largest rank of each register; an entry of rank 0 for a group without any."""
    places = codes.astype(np.int64) * REGISTERS + register
    if n * REGISTERS <= DENSE:
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
    groups, entries = np.divmod(places, REGISTERS)
    entries = ((entries << _RANK_BITS) | rank).astype(np.int32)
    missing = _without_rows(groups, n)
    fields = {"v": np.append(entries, np.zeros(len(missing), np.int32))}
    return np.append(groups, missing), fields


def _merge_registers(codes: Codes, n: int, fields: Fields) -> Entries:
    """The largest of each register."""
    entries = fields["v"].astype(np.int64)
    return _largest(codes, n, entries >> _RANK_BITS, entries & ((1 << _RANK_BITS) - 1))


def _finish_registers(codes: Codes, n: int, fields: Fields) -> npt.NDArray[np.int64]:
    """The estimated number of distinct values of each group."""
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
    """Ertl's sigma of the part of the registers that are zero, below 1."""
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
    """Ertl's tau of the part of the registers whose rank is not the largest."""
    x = np.where(x <= 0, 1.0, x)
    y, z = 1.0, 1 - x
    while True:
        x = np.sqrt(x)
        before = z
        y *= 0.5
        z = z - (1 - x) ** 2 * y
        if np.array_equal(z, before):
            return z / 3


def _update_levels(codes: Codes, n: int, values: pd.Series) -> Entries:
    """Values and levels of the rows of a partition."""
    codes, values = _valid(codes, values)
    missing = _without_rows(codes, n)
    levels = np.repeat(np.array([0, _NOTHING], np.int8), (len(codes), len(missing)))
    floats = np.append(floats_of(values), np.full(len(missing), np.nan))
    return _merge_levels(np.append(codes, missing), n, {"v": floats, "w": levels})


def _merge_levels(codes: Codes, n: int, fields: Fields) -> Entries:
    """Values and levels, of which no level has too many."""
    values, levels = fields["v"], fields["w"]
    level = 0
    while level <= levels.max(initial=_NOTHING):
        here = levels == level
        full = np.bincount(codes[here], minlength=n) > CAPACITY
        if full.any():
            here &= full[codes]
            compacted = _every_other(codes[here], values[here], level)
            codes = np.append(codes[~here], compacted[0])
            values = np.append(values[~here], compacted[1])
            levels = np.append(levels[~here], compacted[2])
        level += 1
    return codes, {"v": values, "w": levels}


def _every_other(
    codes: Codes, values: Floats, level: int
) -> tuple[Codes, Floats, npt.NDArray[np.int8]]:
    """Compact the values of groups at a level; the last one of an odd number stays there."""
    groups, numbers, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    # NumPy sorts integers of 16 bits by radix
    narrow = np.uint16 if len(groups) <= 1 << 16 else np.int64
    values = values[np.argsort(numbers.astype(narrow), kind="stable")]
    halves, levels = [], []
    for run in np.split(values, np.cumsum(sizes)[:-1]):
        ordered = np.sort(run)
        even = len(run) // 2 * 2
        # a coin by the values: a task that is run again makes the same sketch
        bits = int(hash_array(ordered[len(run) // 2 :][:1] + 0.0)[0])
        half = ordered[bits >> level & 1 : even : 2]
        halves += [half, ordered[even:]]
        levels.append(np.repeat((level + 1, level), (len(half), len(run) - even)))
    counts = [len(of_group) for of_group in levels]
    return np.repeat(groups, counts), np.concatenate(halves), np.concatenate(levels).astype(np.int8)


def _finish_levels(codes: Codes, n: int, fields: Fields, q: float = 0.5) -> Floats:
    """Values at a rank, interpolated between two ranks as pandas does."""
    order = order_within(codes, n, fields["v"])
    codes, values, levels = codes[order], fields["v"][order], fields["w"][order]
    weights = np.where(levels == _NOTHING, 0, np.int64(1) << np.maximum(levels, 0).astype(np.int64))
    until = np.cumsum(weights)
    ends = np.searchsorted(codes, np.arange(n), side="right")
    total = np.append(0, until)[ends]
    start = np.append(0, total[:-1])
    sizes = total - start
    rank = q * (sizes - 1)
    low = np.floor(rank).astype(np.int64)
    result = np.full(n, np.nan)
    some = sizes > 0
    below, above = (
        values[np.searchsorted(until, (start + at)[some], side="right")]
        for at in (low, np.minimum(low + 1, sizes - 1))
    )
    with np.errstate(invalid="ignore"):
        between = below + (above - below) * (rank - low)[some]
    result[some] = np.where((below == above) | ((rank - low)[some] == 0), below, between)
    return result


SKETCHES: dict[str, Sketch] = {
    "nlargest": _of_top(-1),
    "nsmallest": _of_top(1),
    "nunique_approx": Sketch(_update_registers, _merge_registers, _finish_registers),
    "quantile_approx": Sketch(_update_levels, _merge_levels, _finish_levels),
}
