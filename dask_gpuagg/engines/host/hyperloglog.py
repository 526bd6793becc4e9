"""Numbers of distinct values by HyperLogLog (Flajolet, Fusy, Gandouet and Meunier 2007).

The estimator is that of Ertl 2017, which needs no table of corrections. Entries are the registers
that are not zero, so that merging is the largest of each register: associative, commutative, and
exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from dask_gpuagg.dtypes import TEMPORAL, TICKS, dtype_class
from dask_gpuagg.engines.host.buckets import ticks_with_unit
from dask_gpuagg.engines.host.reducer import Fields

Codes = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Entries = tuple[Codes, Fields]

# bits of a hash that name a register
PRECISION = 12
REGISTERS = 1 << PRECISION
# the standard error of an estimate
ERROR = 1.04 / REGISTERS**0.5

# an entry holds the number of a register, and its rank in so many bits
_RANK_BITS = 6
_HASH_BITS = 64 - PRECISION
_RANKS = _HASH_BITS + 2
# registers of all groups that are kept dense while rows are read
DENSE = 1 << 22
# groups of which the ranks are counted together
_BLOCK = 1 << 14

_DAY = 24 * 60 * 60


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
        return mixed(values.to_numpy(np.float64) + 0.0)
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
        return np.asarray(mixed(texts)[encoded.indices.to_numpy(zero_copy_only=False)])
    return mixed(values.to_numpy(dtype=object))


def mixed(array: npt.NDArray[Any]) -> Hashes:
    """Hashes of an array of NumPy."""
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
    return np.where(fits, mixed(floats + 0.0), mixed(integers.view(np.uint64)))


def _of_times(seconds: npt.NDArray[np.int64], nanoseconds: Any = 0) -> Hashes:
    rest = np.broadcast_to(np.asarray(nanoseconds, np.int64), seconds.shape)
    return mixed(mixed(seconds) + np.ascontiguousarray(rest).view(np.uint64))


def update(codes: Codes, n: int, values: pd.Series) -> Entries:
    """The registers that the values of each group set."""
    valid = values.notna().to_numpy()
    if not valid.all():
        codes, values = codes[valid], values[valid]
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
    found, entries = np.divmod(places, REGISTERS)
    entries = ((entries << _RANK_BITS) | rank).astype(np.int32)
    missing = np.flatnonzero(np.bincount(found, minlength=n) == 0)
    fields = {"v": np.append(entries, np.zeros(len(missing), np.int32))}
    return np.append(found, missing), fields


def merge(codes: Codes, n: int, fields: Fields) -> Entries:
    """The largest of each register."""
    entries = fields["v"].astype(np.int64)
    return _largest(codes, n, entries >> _RANK_BITS, entries & ((1 << _RANK_BITS) - 1))


def finish(codes: Codes, n: int, fields: Fields) -> npt.NDArray[np.int64]:
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
