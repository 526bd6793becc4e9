"""The output that a group belongs to: a hash of its key on the host.

Equal keys must meet in one output, and partitions may hold them in different dtypes: integers that
are floats where a null is among them, text as categories, dates in another unit, Python objects.
So the hash depends on a value and on the dtype that the metadata promised for its key, and on
nothing else that the partition holds. Of a column that is as promised it is Dask's own hash, with
-0.0 as 0.0, so that a later merge on the same key finds its partners where Dask expects them.
"""

from __future__ import annotations

import datetime
import math
import numbers
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from dask_gpuagg.dtypes import NUMERIC, TICKS, dtype_class, ticks_of
from dask_gpuagg.engines.host import fused
from dask_gpuagg.engines.host.grouping import densify, encode

Hashes = npt.NDArray[np.uint64]

# of the hash of a tuple
_FIRST, _FACTOR, _LAST = 0x345678, 1000003, 97531
_DAY = 24 * 60 * 60
# 2^64 / golden ratio: multiplicative hashing (Knuth, The Art of Computer Programming, 6.4)
_SECOND = np.uint64(0x9E3779B97F4A7C15)


def bucket_of(
    keys: Sequence[Any], dtypes: Sequence[Any], buckets: int, second: bool = False
) -> npt.NDArray[np.int64]:
    """The output that each row of key values belongs to.

    Parameters
    ----------
    keys : sequence of arrays, each of shape (rows,)
    dtypes : sequence of dtypes
        What the metadata promised, one per key.
    buckets : int
    second : bool
        Whether the keys of one output are divided again, into even parts however many outputs there
        are: by the upper bits of a product with the hash.

    Returns
    -------
    ndarray of int64, shape (rows,)
    """
    series = [pd.Series(key) for key in keys]
    number = len(keys) == 1 and _is_number(series[0], dtypes[0])
    if number and not second and fused.usable(len(series[0])):
        return _bucket_of_numbers(series[0].to_numpy(np.float64), buckets)
    columns = [_hashes(key, d) for key, d in zip(series, dtypes, strict=True)]
    hashes = _together(columns)
    if second:
        hashes = (hashes * _SECOND) >> np.uint64(32)
    return np.asarray(hashes % np.uint64(buckets), dtype=np.int64)


def _is_number(key: pd.Series, promised: Any) -> bool:
    """Whether a key has plain integers, promised as numbers."""
    plain = isinstance(key.dtype, np.dtype) and key.dtype.kind in "iu"
    return plain and dtype_class(promised) in NUMERIC


def _bucket_of_numbers(floats: npt.NDArray[np.float64], buckets: int) -> npt.NDArray[np.int64]:
    """``bucket_of`` one key, in one read."""
    from dask_gpuagg.engines.host import loops_order

    found = np.empty(len(floats), np.int64)
    bits = fused.frozen(floats.view(np.uint64), np.uint64)
    loops_order.buckets_of_bits(bits, _FIRST, _FACTOR, _LAST, buckets, found)
    return found


def hashed_by_dask(dtype: Any) -> bool:
    """Whether Dask's own shuffles put keys of this dtype where ``bucket_of`` puts them.

    Parameters
    ----------
    dtype : dtype
        What the metadata promises of a key.

    Returns
    -------
    bool
        False for dtypes that Dask hashes by the text of Python objects, or by how they are held.
    """
    if isinstance(dtype, pd.CategoricalDtype):
        dtype = dtype.categories.dtype
    cls = dtype_class(dtype)
    if isinstance(dtype, pd.ArrowDtype):
        return cls in ("int", "uint", "float", "string")
    return cls in (*NUMERIC, "string", "datetime", "timedelta")


def _together(columns: Sequence[Hashes]) -> Hashes:
    """One hash of several, as ``pandas.util.hash_pandas_object`` makes it: CPython's for tuples."""
    multiplier, out = np.uint64(_FACTOR), np.full(len(columns[0]), _FIRST, np.uint64)
    for i, column in enumerate(columns):
        out ^= column
        out *= multiplier
        multiplier += np.uint64(82520 + 2 * (len(columns) - i))
    return out + np.uint64(_LAST)


def _is_object(dtype: Any) -> bool:
    return dtype_class(dtype) == "object"


def _hashes(values: pd.Series, promised: Any) -> Hashes:
    null = values.isna().to_numpy()
    if not null.any():
        return _of_values(values, promised)
    result = np.empty(len(values), np.uint64)
    result[null] = _of_null(promised)
    result[~null] = _of_values(values[~null], promised)
    return result


def _of_null(promised: Any) -> np.uint64:
    if (
        isinstance(promised, pd.CategoricalDtype)
        and dtype_class(promised.categories.dtype) in NUMERIC
    ):
        promised = promised.categories.dtype
    if dtype_class(promised) in NUMERIC:
        return np.uint64(_of_array(np.array([np.nan]))[0])
    if dtype_class(promised) in ("datetime", "timedelta"):
        return np.uint64(_of_array(np.array([np.iinfo(np.int64).min]))[0])
    null = pd.Series([None], dtype="str" if _is_object(promised) else promised)
    hashes = pd.util.hash_pandas_object(null, index=False).to_numpy(dtype=np.uint64)
    return np.uint64(hashes[0])


def _of_values(values: pd.Series, promised: Any) -> Hashes:
    """Hashes of values of which none is null."""
    found = values.dtype
    if isinstance(found, pd.CategoricalDtype):
        of_category = _hashes(pd.Series(found.categories), promised)
        return np.asarray(of_category[values.cat.codes.to_numpy()])
    if isinstance(promised, pd.CategoricalDtype):
        # Dask hashes the numbers of a category as numbers, also where the metadata does not know it
        of_objects = _is_object(promised.categories.dtype)
        promised = np.dtype("float64") if of_objects else promised.categories.dtype
    cls = dtype_class(found)
    if cls in NUMERIC:
        return _of_numbers(values.to_numpy(dtype=np.float64), promised)
    if cls == "decimal":
        # through text: both conversions are exact or correctly rounded, as float() of a Decimal is
        text = pc.cast(pa.array(values.array), pa.string())
        return _of_numbers(pc.cast(text, pa.float64()).to_numpy(zero_copy_only=False), promised)
    if cls == "string":
        return _of_text(values)
    if cls in ("datetime", "timedelta"):
        unit, ticks = ticks_with_unit(values)
        return _of_ticks(ticks, TICKS[unit], promised)
    if cls == "date":
        days = pc.cast(pc.cast(pa.array(values.array), pa.date32()), pa.int32())
        seconds = days.to_numpy(zero_copy_only=False).astype(np.int64) * _DAY
        return _of_ticks(seconds, TICKS["s"], promised)
    return _of_objects(values.to_numpy(dtype=object), promised)


def _of_text(values: pd.Series) -> Hashes:
    """Of each distinct string once: Python objects are made of nothing else."""
    encoded = encode(values)
    if encoded.dense:
        codes, present = encoded.codes, np.arange(encoded.size)
    else:
        codes, present = densify(encoded.codes, encoded.size)
    distinct = pd.Series(encoded.decode(present)).to_numpy(dtype=object)
    hashes = pd.util.hash_array(distinct, categorize=False)
    return np.asarray(hashes, np.uint64).take(codes)


def _of_array(array: npt.NDArray[Any]) -> Hashes:
    return np.asarray(pd.util.hash_array(array, categorize=len(array) > 1), dtype=np.uint64)


def _of_numbers(floats: npt.NDArray[np.float64], promised: Any) -> Hashes:
    if not _is_object(promised):
        return _of_array(floats + 0.0)
    # Dask hashes the text of Python objects
    return _of_array(np.array([_text_of_number(x) for x in floats.tolist()], dtype=object))


def _text_of_number(number: float) -> str:
    return str(int(number)) if math.isfinite(number) and number == int(number) else repr(number)


def ticks_with_unit(values: pd.Series) -> tuple[str, npt.NDArray[np.int64]]:
    """Unit and integers of datetimes and durations; instants for those in a time zone."""
    if isinstance(values.dtype, pd.ArrowDtype):
        kind = values.dtype.pyarrow_dtype
        return kind.unit, pc.cast(pa.array(values.array), pa.int64()).to_numpy(zero_copy_only=False)
    return values.array.unit, np.asarray(values.array.view("int64"))


def _of_ticks(ticks: npt.NDArray[np.int64], per_second: int, promised: Any) -> Hashes:
    """Of times in the promised unit: a finer one is rounded down, which equal times share."""
    timed = dtype_class(promised) in ("datetime", "timedelta")
    wanted = ticks_of(promised) if timed else TICKS["us"]
    if per_second > wanted:
        ticks = ticks // (per_second // wanted)
    elif per_second < wanted:
        ticks = ticks * np.int64(wanted // per_second)  # wraps alike in every partition
    return _of_array(ticks)


def _of_objects(objects: npt.NDArray[np.object_], promised: Any) -> Hashes:
    """Hashes of Python objects, each by what makes it equal to others."""
    hashed: dict[type, Callable[[list[Any]], Hashes]] = {
        str: lambda some: _of_array(np.array(some, dtype=object)),
        float: lambda some: _of_numbers(np.array(some), promised),
        # nanoseconds since 1970, of any size
        int: lambda some: _of_ticks(_wrapped(some), TICKS["ns"], promised),
        tuple: lambda some: np.array([_of_tuple(each, promised) for each in some], np.uint64),
        # objects that may be equal without having the same text
        type(None): lambda some: np.zeros(len(some), np.uint64),
    }
    tokens = [_token(value) for value in objects]
    kinds = np.array([type(token) for token in tokens], dtype=object)
    result = np.empty(len(objects), np.uint64)
    for kind in set(kinds):
        rows = np.flatnonzero([kind is other for other in kinds])
        result[rows] = hashed[kind]([tokens[row] for row in rows])
    return result


def _token(value: Any) -> str | float | int | tuple[Any, ...] | None:
    """Text, number, nanoseconds or parts that equal objects share; else ``None``."""
    match value:
        case str():
            return str(value)
        case numbers.Number() | np.bool_():
            return _float(value)
        case datetime.datetime() | np.datetime64():
            return _nanoseconds(pd.Timestamp(value))
        case datetime.timedelta() | np.timedelta64():
            return _nanoseconds(pd.Timedelta(value))
        case datetime.date():
            return (value - datetime.date(1970, 1, 1)).days * _DAY * TICKS["ns"]
        case tuple():
            return tuple(value)
        case bytes() | datetime.time() | uuid.UUID() | pd.Period() | pd.Interval():
            return str(value)
        case _:
            return None


def _nanoseconds(time: Any) -> int:
    # in its own unit: years that nanoseconds do not reach are held in coarser ones
    ticks = time.asm8.view("int64")
    return int(ticks) * (TICKS["ns"] // TICKS[time.unit])


def _wrapped(nanoseconds: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array([n % 2**64 for n in nanoseconds], dtype=np.uint64).view(np.int64)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except TypeError:  # complex, which equals a float only where it has no imaginary part
        return float(value.real)


def _of_tuple(parts: tuple[Any, ...], promised: Any) -> np.uint64:
    if not parts:
        return np.uint64(0)
    return np.uint64(_together([_hashes(pd.Series([p], dtype=object), promised) for p in parts])[0])
