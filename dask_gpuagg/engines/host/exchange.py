"""Partials divided by key hash, and finished outputs divided and joined.

Equal keys must meet in one output, and partitions may hold them in different dtypes: integers that
are floats where a null is among them, text as categories, dates in another unit, Python objects.
So the hash depends on a value and on the dtype that the metadata promised for its key, and on
nothing else that the partition holds. Of a column that is as promised it is Dask's own hash, with
-0.0 as 0.0, so that a later merge on the same key finds its partners where Dask expects them.
"""

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
from dask.dataframe.dispatch import concat as dask_concat

from dask_gpuagg.dtypes import NUMERIC, TEMPORAL, TICKS, dtype_class, is_plain, ticks_of
from dask_gpuagg.engines.host import compiled
from dask_gpuagg.engines.host.dtypes import categories_of
from dask_gpuagg.engines.host.finish import make_index, sort_order
from dask_gpuagg.engines.host.grouping import group
from dask_gpuagg.engines.host.stacking import keys_of
from dask_gpuagg.plan import Partial, Plan

Hashes = npt.NDArray[np.uint64]

# NumPy sorts integers of 16 bits by radix
_RADIX_SORTED = 1 << 16
# constants of the hash of a tuple
_FIRST, _FACTOR, _LAST = 0x345678, 1000003, 97531
_DAY = 24 * 60 * 60
# 2^64 / golden ratio: multiplicative hashing (Knuth, The Art of Computer Programming, 6.4)
_SECOND = np.uint64(0x9E3779B97F4A7C15)


def split(tables: Partial, plan: Plan, buckets: int, second: bool = False) -> list[Partial]:
    """Divide a partial by key hash into one partial per output.

    ``second``: whether the partial is of one output, and is divided again; see ``bucket_of``.
    """
    dtypes = [key.dtype for key in plan.keys]
    parts: list[Partial] = [{} for _ in range(buckets)]
    for name, table in tables.items():
        keys: list[Any] = [k.array for k in keys_of(table)[: len(dtypes)]]
        if name == "groups":
            places = bucket_of(keys, dtypes, buckets, second)
        else:  # hashing a row costs more than numbering it
            groups = group([pd.Series(k) for k in keys], dropna=False)
            places = bucket_of(groups.keys, dtypes, buckets, second).take(groups.codes)
        for part, piece in zip(parts, _divided(table, places, buckets), strict=True):
            part[name] = piece
    return parts


def _divided(
    table: pd.DataFrame, places: npt.NDArray[np.int64], buckets: int
) -> list[pd.DataFrame]:
    """The rows of a table by the output that each belongs to."""
    counts = np.bincount(places, minlength=buckets)
    ends = np.cumsum(counts)
    slices = [slice(*ends_of) for ends_of in zip(ends - counts, ends, strict=True)]
    if compiled.can_order(table):
        small = compiled.read_only(places, np.int32)
        columns = {
            name: compiled.scattered(column.to_numpy(), small, counts)
            for name, column in table.items()
        }
        pieces = [{name: column[rows] for name, column in columns.items()} for rows in slices]
        return [pd.DataFrame(piece, copy=False) for piece in pieces]
    narrow = places.astype(np.uint16) if buckets <= _RADIX_SORTED else places
    order = np.argsort(narrow, kind="stable")
    return [table.take(order[rows]) for rows in slices]


def concatenated_outputs(outputs: Sequence[Any], plan: Plan, meta: Any) -> Any:
    """Concatenate finished outputs, of disjoint groups, sorted by key if the plan says so."""
    filled = [o for o in outputs if len(o)] or list(outputs[:1])
    result = dask_concat(filled) if len(filled) > 1 else filled[0]
    if not plan.sort:
        return result
    keys = _index_keys(result, plan)
    promised = [dtype_class(meta.index.get_level_values(i).dtype) for i in range(len(keys))]
    late = [p == "category" != dtype_class(k.dtype) for p, k in zip(promised, keys, strict=True)]
    if any(late):  # see ``finalize``
        levels = zip(keys, plan.keys, late, strict=True)
        keys = [categories_of(k, key.dtype) if is_late else k for k, key, is_late in levels]
        rest = [result.index.get_level_values(i) for i in range(len(keys), result.index.nlevels)]
        result = result.set_axis(make_index([*keys, *rest], result.index.names))
    return result.take(sort_order(keys))


def divided_outputs(output: Any, plan: Plan, outputs: int) -> list[Any]:
    """Divide the groups of a finished output by key hash."""
    places = bucket_of(_index_keys(output, plan), [key.dtype for key in plan.keys], outputs)
    return [output[places == i] for i in range(outputs)]


def _index_keys(result: Any, plan: Plan) -> list[Any]:
    levels = [result.index.get_level_values(i) for i in range(len(plan.keys))]
    return [level.to_numpy() if is_plain(level.dtype) else level.array for level in levels]


def bucket_of(
    keys: Sequence[Any], dtypes: Sequence[Any], buckets: int, second: bool = False
) -> npt.NDArray[np.int64]:
    """The output that each row of key values belongs to, by the dtypes promised for the keys.

    ``second``: whether the keys of one output are divided again, into even parts however many
    outputs there are: by the upper bits of a product with the hash.
    """
    columns = zip(keys, dtypes, strict=True)
    hashes = _together([_hashes(pd.Series(key), dtype) for key, dtype in columns])
    if second:
        hashes = (hashes * _SECOND) >> np.uint64(32)
    return np.asarray(hashes % np.uint64(buckets), dtype=np.int64)


def hashed_by_dask(dtype: Any) -> bool:
    """Whether Dask's own shuffles put keys of a promised dtype where ``bucket_of`` puts them.

    Not keys that Dask hashes by the text of Python objects, or by how they are held.
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


def _hashes(values: pd.Series, promised: Any) -> Hashes:
    null = values.isna().to_numpy()
    if not null.any():
        return _of_values(values, promised)
    result = np.empty(len(values), np.uint64)
    result[null] = _of_null(promised)
    result[~null] = _of_values(values[~null], promised)
    return result


def _of_null(promised: Any) -> Any:
    categorical = isinstance(promised, pd.CategoricalDtype)
    cls = dtype_class(promised.categories.dtype if categorical else promised)
    if cls in NUMERIC:
        return hash_array(np.array([np.nan]))
    if cls in TEMPORAL and not categorical:
        return hash_array(np.array([np.iinfo(np.int64).min]))
    return pd.util.hash_pandas_object(pd.Series([None], dtype=promised), index=False).to_numpy()


def _of_values(values: pd.Series, promised: Any) -> Hashes:
    """Hashes of values of which none is null."""
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        of_category = _hashes(pd.Series(dtype.categories), promised)
        return np.asarray(of_category[values.cat.codes.to_numpy()])
    if isinstance(promised, pd.CategoricalDtype):
        promised = promised.categories.dtype
    cls = dtype_class(dtype)
    if cls in NUMERIC:
        return hash_array(values.to_numpy(dtype=np.float64) + 0.0)
    if cls == "decimal":
        # through text: both conversions are exact or correctly rounded, as float() of a Decimal is
        floats = pc.cast(pc.cast(pa.array(values.array), pa.string()), pa.float64())
        return hash_array(floats.to_numpy(zero_copy_only=False) + 0.0)
    if cls == "string":
        return hash_text(values)
    if cls in (*TEMPORAL, "date"):
        unit, ticks = ticks_with_unit(values)
        return _of_ticks(ticks, TICKS[unit], promised)
    return _of_objects(values.to_numpy(dtype=object), promised)


def hash_text(values: pd.Series) -> Hashes:
    """Hashes of text, of each distinct string once: Python objects are made of nothing else."""
    groups = group([values], dropna=False)
    distinct = pd.Series(groups.keys[0]).to_numpy(dtype=object)
    hashes = pd.util.hash_array(distinct, categorize=False)
    return np.asarray(hashes, np.uint64).take(groups.codes)


def hash_array(array: npt.NDArray[Any]) -> Hashes:
    """Hashes of an array of NumPy."""
    return np.asarray(pd.util.hash_array(array, categorize=len(array) > 1), dtype=np.uint64)


def ticks_with_unit(values: pd.Series) -> tuple[str, npt.NDArray[np.int64]]:
    """Unit and integers of datetimes, durations and dates; instants for those in a time zone."""
    if dtype_class(values.dtype) == "date":
        days = pc.cast(pc.cast(pa.array(values.array), pa.date32()), pa.int32())
        return "s", days.to_numpy(zero_copy_only=False).astype(np.int64) * _DAY
    if isinstance(values.dtype, pd.ArrowDtype):
        kind = values.dtype.pyarrow_dtype
        return kind.unit, pc.cast(pa.array(values.array), pa.int64()).to_numpy(zero_copy_only=False)
    return values.array.unit, np.asarray(values.array.view("int64"))


def _of_ticks(ticks: npt.NDArray[np.int64], per_second: int, promised: Any) -> Hashes:
    """Hashes of times in the promised unit: finer ones are rounded down, as equal times are."""
    promised_ticks = ticks_of(promised) if dtype_class(promised) in TEMPORAL else TICKS["us"]
    if per_second > promised_ticks:
        ticks = ticks // (per_second // promised_ticks)
    elif per_second < promised_ticks:
        ticks = ticks * np.int64(promised_ticks // per_second)  # wraps alike in every partition
    return hash_array(ticks)


def _of_objects(objects: npt.NDArray[np.object_], promised: Any) -> Hashes:
    """Hashes of Python objects: by text, number or time, which equal objects share."""
    hashed: dict[type, Callable[[list[Any]], Hashes]] = {
        str: lambda texts: hash_array(np.array(texts, dtype=object)),
        float: lambda floats: hash_array(np.array(floats) + 0.0),
        # nanoseconds since 1970, of any size
        int: lambda times: _of_ticks(
            np.array([n % 2**64 for n in times], np.uint64).view(np.int64), TICKS["ns"], promised
        ),
        # objects that may be equal without having the same text
        type(None): lambda others: np.zeros(len(others), np.uint64),
    }
    tokens = [_token(value) for value in objects]
    kinds = np.array([type(token) for token in tokens], dtype=object)
    result = np.empty(len(objects), np.uint64)
    for kind in set(kinds):
        rows = np.flatnonzero([kind is other for other in kinds])
        result[rows] = hashed[kind]([tokens[row] for row in rows])
    return result


def _token(value: Any) -> str | float | int | None:
    """Value that equal objects share: text, number or nanoseconds; ``None`` for others."""
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
        case bytes() | datetime.time() | uuid.UUID() | pd.Period() | pd.Interval():
            return str(value)
        case _:
            return None


def _nanoseconds(time: Any) -> int:
    # in its own unit: years that nanoseconds do not reach are held in coarser ones
    return int(time.asm8.view("int64")) * (TICKS["ns"] // TICKS[time.unit])


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
    except TypeError:  # complex, which equals a float only where it has no imaginary part
        return float(value.real)
