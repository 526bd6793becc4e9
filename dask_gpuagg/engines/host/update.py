"""Update of every state of the registry: the rows of a partition to one row per group.

Plain integers and floats are reduced by the compiled loops of ``fused.py``, one read of a column
for all of its states. Everything else, and what is too small for them, goes to pandas' own
reductions, driven by a ready-made categorical grouper so that nothing is hashed again; Arrow's
hash aggregation takes over for the dtypes that pandas would reduce as Python objects.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg import exact_sums
from dask_gpuagg.dtypes import dtype_class, is_complex, is_plain
from dask_gpuagg.engines.host import fused
from dask_gpuagg.engines.host.grouping import take
from dask_gpuagg.engines.host.reducer import Fields, Reducer

_LOW = np.uint32(0xFFFFFFFF)


def update(reducer: Reducer, state: str, values: list[pd.Series], index: pd.Index) -> Fields:
    """Reduce the rows of one partition to one state.

    Parameters
    ----------
    reducer : Reducer
    state : str
        A name of ``states.STATES`` other than ``custom``.
    values : list of Series
        The state's input columns, of the reducer's rows.
    index : Index
        The rows' labels, for ``idxmin`` and ``idxmax``.

    Returns
    -------
    dict of str to array of shape (n,)
        One entry per field of the state.
    """
    if state == "size":
        return {"n": reducer.size}
    if state in ("idxmin", "idxmax"):
        return _update_extreme(reducer, state, values[0], index)
    if state == "comoments":
        return _update_comoments(reducer, floats_of(values[0]), floats_of(values[1]))
    return UPDATES[state](reducer, values[0])


def _integers(values: pd.Series, fill: int) -> pd.Series:
    """The values in int64 or uint64, nulls replaced by an identity."""
    wide = "uint64" if dtype_class(values.dtype) == "uint" else "int64"
    if isinstance(values.dtype, np.dtype):
        # the column itself if it can be: it is known by its identity
        return values if values.dtype == wide else values.astype(wide)
    if dtype_class(values.dtype) == "bool":
        values = values.astype("boolean")  # Arrow's own refuses a fill value that is no bool
    return pd.Series(values.to_numpy(dtype=wide, na_value=fill))


def floats_of(values: pd.Series) -> npt.NDArray[np.float64]:
    """The values in float64, nulls as NaN; of complex ones the real parts, as pandas warns."""
    if isinstance(values.dtype, np.dtype) and values.dtype.kind != "O":
        return np.asarray(values.to_numpy(dtype=np.float64))
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))


def _valid(values: pd.Series) -> npt.NDArray[np.bool_]:
    return np.asarray(values.notna())


def _count(reducer: Reducer, values: pd.Series) -> Fields:
    return {"n": reducer.shared("count", lambda v: _valid_counts(reducer, v), values)}


def _valid_counts(reducer: Reducer, values: pd.Series) -> npt.NDArray[np.int64]:
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "biu":
        return reducer.size
    counts = reducer.fused(values, "count")
    return reducer.count(_valid(values)) if counts is None else counts


def _isum(reducer: Reducer, values: pd.Series) -> Fields:
    return {"sum": reducer.shared("isum", lambda v: _integer_sums(reducer, v), values)}


def _integer_sums(reducer: Reducer, values: pd.Series) -> npt.NDArray[Any]:
    if is_complex(values.dtype):
        return np.asarray(reducer.sum(values))
    sums: npt.NDArray[Any] | None = reducer.fused(values, "sum")
    return reducer.sum(_integers(values, 0)) if sums is None else sums


def _cannot_wrap(values: pd.Series) -> bool:
    """Whether no sum of any of these integers can leave 64 bits."""
    if not (isinstance(values.dtype, np.dtype) and values.dtype.kind in "biu"):
        return False
    if len(values) == 0 or values.dtype.itemsize < 8:
        return True
    largest = max(abs(int(values.min())), abs(int(values.max())))
    return largest * len(values) <= np.iinfo(np.int64).max


def _fsum(reducer: Reducer, values: pd.Series) -> Fields:
    return {"sum": reducer.shared("fsum", lambda v: _float_sums(reducer, v), values)}


def _float_sums(reducer: Reducer, values: pd.Series) -> npt.NDArray[Any]:
    if dtype_class(values.dtype) == "float":
        sums: npt.NDArray[np.float64] | None = reducer.fused(values, "sum")
        if sums is not None:
            return sums
    if is_complex(values.dtype):
        return np.asarray(reducer.sum(values))
    if _cannot_wrap(values):  # the integer sum is exact, and may be wanted anyway
        return np.asarray(_isum(reducer, values)["sum"], dtype=np.float64)
    # pandas would sum float32 in float32
    filled = _filled(values, 0.0)
    if filled is not None:
        return np.asarray(reducer.sum(filled, skipna=False))
    return np.asarray(reducer.sum(_float_series(values)))


def _float_series(values: pd.Series) -> pd.Series:
    """The values in float64, nulls as NaN; the column itself if it can be."""
    return values if values.dtype == np.float64 else pd.Series(floats_of(values))


def _filled(values: pd.Series, null: float) -> pd.Series | None:
    """Floats with a number for each null, where NaN is no null: in masked and Arrow dtypes."""
    if isinstance(values.dtype, np.dtype) or dtype_class(values.dtype) != "float":
        return None
    return pd.Series(values.to_numpy(dtype=np.float64, na_value=null))


def _xsum(reducer: Reducer, values: pd.Series) -> Fields:
    n = {"n": _count(reducer, values)["n"]}
    if is_complex(values.dtype):
        raise TypeError("gpuagg.deterministic: sums of complex numbers depend on the row order")
    if dtype_class(values.dtype) == "float":
        filled = _filled(values, 0.0)
        nan_is_null = filled is None
        floats = floats_of(values) if filled is None else filled.to_numpy()
        return n | reducer.exact_sums(floats, nan_is_null)
    if _cannot_wrap(values):
        digits = exact_sums.of_integers(np.asarray(_isum(reducer, values)["sum"]))
        return n | {exact_sums.label(place): part for place, part in digits.items()}
    # two halves that cannot overflow below 2**31 rows, and are a bin apart
    wide = _integers(values, 0).to_numpy()
    halves = [reducer.sum(pd.Series(half.astype("int64"))) for half in (wide >> 32, wide & _LOW)]
    high, low = (exact_sums.of_integers(np.asarray(half)) for half in halves)
    digits = exact_sums.added({place + 1: part for place, part in high.items()}, low)
    return n | {exact_sums.label(place): part for place, part in digits.items()}


def _osum(reducer: Reducer, values: pd.Series) -> Fields:
    if dtype_class(values.dtype) == "decimal":
        return {"sum": reducer.arrow(values, "sum", empty=decimal.Decimal(0))}
    if values.dtype == object:
        return _concat(reducer, values)
    # a group without values has no sum yet: what nothing adds up to depends on other partitions
    return {"sum": reducer.by(values).sum(min_count=1).array}


def _concat(reducer: Reducer, values: pd.Series) -> Fields:
    # a group without values has no sum yet: of Python objects, a 0 cannot join a string
    sums = reducer.by(values).sum(min_count=1)
    return {"sum": (sums.astype(object) if is_plain(values.dtype) else sums).array}


def _iprod(reducer: Reducer, values: pd.Series) -> Fields:
    if is_complex(values.dtype):
        return {"prod": products(reducer, values)}
    return {"prod": reducer.by(_integers(values, 1)).prod().to_numpy()}


def _fprod(reducer: Reducer, values: pd.Series) -> Fields:
    if is_complex(values.dtype):
        return {"prod": products(reducer, values)}
    filled = _filled(values, 1.0)
    if filled is not None:
        return {"prod": products(reducer, filled, skipna=False)}
    return {"prod": products(reducer, pd.Series(floats_of(values)))}


def products(reducer: Reducer, values: pd.Series, skipna: bool = True) -> npt.NDArray[Any]:
    """Products of numbers; of complex ones as Python objects, pandas having no other."""
    if is_complex(values.dtype):
        made = reducer.by(values.astype(object)).prod(skipna=skipna)
        return np.asarray(made, dtype=values.dtype)
    return np.asarray(reducer.by(values).prod(skipna=skipna))


def _extremum(function: str) -> Callable[[Reducer, pd.Series], Fields]:
    def extremum(reducer: Reducer, values: pd.Series) -> Fields:
        if _arrow_compares(values.dtype):
            return {function: reducer.arrow(values, function)}
        best = reducer.fused(values, function)
        if best is not None:
            return {function: best}
        return {function: reducer.reduced(function, values)}

    return extremum


def _arrow_compares(dtype: Any) -> bool:
    """Whether Arrow has a kernel for what pandas would compare as Python objects."""
    arrow = isinstance(dtype, pd.ArrowDtype) and dtype_class(dtype) != "timedelta"
    return arrow or (isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow")


def _one_row(function: str) -> Callable[[Reducer, pd.Series], Fields]:
    def select(reducer: Reducer, values: pd.Series) -> Fields:
        valid = _valid(values)
        choose = reducer.first_row if function == "first" else reducer.last_row
        if valid.all():  # the same rows of every such column
            chosen = reducer.shared(function, lambda v: choose(np.arange(len(valid))), None)
        else:
            chosen = choose(np.flatnonzero(valid))
        array = values.to_numpy() if is_plain(values.dtype) else values.array
        return {function: take(array, chosen)}

    return select


def _truth(function: str) -> Callable[[Reducer, pd.Series], Fields]:
    def test(reducer: Reducer, values: pd.Series) -> Fields:
        result = getattr(reducer.by(values), function)()
        return {function: result.to_numpy(dtype=bool, na_value=function == "all")}

    return test


def _update_moments(reducer: Reducer, values: pd.Series) -> Fields:
    if is_complex(values.dtype):
        values = pd.Series(floats_of(values))
    floats = values if fused.reads(values.dtype) else pd.Series(floats_of(values))
    n = _count(reducer, values)["n"]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = _fsum(reducer, values)["sum"] / n
    # Welford's, here and in pandas, so a constant gives exactly 0
    m2 = reducer.fused(floats, "m2")
    if m2 is None:
        floats = _float_series(values)
        m2 = reducer.reduced("var", floats, ddof=0) * n
    # a NaN that is a value, and not a null, makes the whole group NaN
    m2 = np.where(np.isnan(mean), np.nan, m2)
    constant = (m2 == 0) & (n > 1)
    if constant.any():
        # a sum divided by n may miss the constant by one rounding, which merging would square
        first = reducer.first_row(np.flatnonzero(_valid(floats)))
        mean[constant] = floats.to_numpy()[first[constant]]
    return {"n": n, "mean": mean, "m2": np.where(n == 0, 0.0, m2)}


def _limbs(reducer: Reducer, values: pd.Series) -> Fields:
    if isinstance(values.dtype, pd.ArrowDtype):
        values = pd.Series(values.array.to_numpy())
    ticks = values.array.view("int64")
    ticks = np.where(_valid(values), np.asarray(ticks), 0)
    # two halves that cannot overflow below 2**31 rows make the sum of 64-bit ticks exact
    return {
        "hi": reducer.sum(pd.Series(ticks >> 32)),
        "lo": reducer.sum(pd.Series(ticks & 0xFFFFFFFF)),
    }


def _update_extreme(reducer: Reducer, state: str, values: pd.Series, index: pd.Index) -> Fields:
    nulls = reducer.size - reducer.count(_valid(values))
    return extreme(reducer, state, values, pd.Series(index), nulls)


def extreme(
    reducer: Reducer, state: str, values: pd.Series, labels: pd.Series, nulls: Any
) -> Fields:
    """The state ``idxmin`` or ``idxmax`` of rows with these labels.

    Parameters
    ----------
    reducer : Reducer
    state : str
    values, labels : Series
        Of the reducer's rows.
    nulls : ndarray of int, shape (n,)
        Null values of each group.

    Returns
    -------
    dict of str to array of shape (n,)
    """
    best = reducer.by(values).min() if state == "idxmin" else reducer.by(values).max()
    of_group = pd.Series(best.array.take(reducer.codes))
    is_best = pd.Series(values.array).eq(of_group).to_numpy(dtype=bool, na_value=False)
    first = reducer.first_row(np.flatnonzero(is_best))
    # a group without values takes any label, which is never returned as its value is null: a null
    # label would turn integers into floats
    label = take(labels.array, np.maximum(first, 0) if len(labels) else first)
    return {"value": best.array, "label": label, "nulls": nulls}


def _update_comoments(
    reducer: Reducer, x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]
) -> Fields:
    both = ~(np.isnan(x) | np.isnan(y))
    if not both.all():
        reducer = Reducer(reducer.codes[both], reducer.n)
        x, y = x[both], y[both]
    n = reducer.size
    codes = reducer.codes
    with np.errstate(invalid="ignore"):
        mx = np.bincount(codes, x, reducer.n) / n
        my = np.bincount(codes, y, reducer.n) / n
        # a second correction removes the rounding error of the first mean
        mx += np.bincount(codes, x - mx[codes], reducer.n) / n
        my += np.bincount(codes, y - my[codes], reducer.n) / n
    dx, dy = x - mx[codes], y - my[codes]
    products = {"cxx": dx * dx, "cxy": dx * dy, "cyy": dy * dy}
    sums = {name: np.bincount(codes, p, reducer.n) for name, p in products.items()}
    return {"n": n, "mx": mx, "my": my, **sums}


UPDATES: dict[str, Callable[[Reducer, pd.Series], Fields]] = {
    "count": _count,
    "isum": _isum,
    "fsum": _fsum,
    "osum": _osum,
    "xsum": _xsum,
    "concat": _concat,
    "iprod": _iprod,
    "fprod": _fprod,
    "any": _truth("any"),
    "all": _truth("all"),
    "moments": _update_moments,
    "limbs": _limbs,
    **{name: _extremum(name) for name in ("min", "max")},
    **{name: _one_row(name) for name in ("first", "last")},
}
