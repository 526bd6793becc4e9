"""Update and merge of every state of the registry.

An update makes one row per group of the rows of a partition, a merge of several rows of states, in
their order. Plain integers and floats are reduced by the compiled loops, one read of a column
for all of its states. Everything else, and what is too small for them, goes to pandas' own
reductions, driven by a ready-made categorical grouper so that nothing is hashed again; Arrow's
hash aggregation takes over for the dtypes that pandas would reduce as Python objects.
"""

import decimal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from dask_gpuagg import exact_sums
from dask_gpuagg.dtypes import NUMERIC, dtype_class, is_plain
from dask_gpuagg.engines.host import compiled
from dask_gpuagg.engines.host.compiled import Fields, Reducer
from dask_gpuagg.engines.host.grouping import take
from dask_gpuagg.states import STATES, State

Floats = npt.NDArray[np.float64]
Update = Callable[[Reducer, pd.Series], Fields]
Merge = Callable[[Reducer, dict[str, pd.Series]], Fields]

_LOW = np.uint32(0xFFFFFFFF)


def update(reducer: Reducer, state: str, values: list[pd.Series], index: pd.Index) -> Fields:
    """Reduce the rows of one partition to one state other than ``custom``.

    Returns the state's fields, arrays of shape (n,). ``values`` are its input columns, of the
    reducer's rows, and ``index`` their labels, for ``idxmin`` and ``idxmax``.
    """
    if state == "size":
        return {"n": reducer.size}
    if state in ("idxmin", "idxmax"):
        nulls = reducer.size - reducer.count(values[0].notna().to_numpy())
        return _extreme(reducer, state, values[0], pd.Series(index), nulls)
    if state == "comoments":
        return _update_comoments(reducer, floats_of(values[0]), floats_of(values[1]))
    return _once(reducer, state, values[0])


def _once(reducer: Reducer, state: str, values: pd.Series) -> Fields:
    """A state of one column, computed once for all states that are made of it."""
    fields: Fields = reducer.shared(state, lambda v: _UPDATES[state](reducer, v), values)
    return fields


def merge(reducer: Reducer, state: str, fields: dict[str, pd.Series]) -> Fields:
    """Merge several rows of one state per group, in row order, into fields of shape (n,)."""
    return _MERGES[state](reducer, fields)


def expect(reducer: Reducer, state: str, fields: dict[str, pd.Series]) -> None:
    """Announce a merge, so that fields of several states are merged together."""
    if state in ("min", "max"):
        reducer.expect(state, fields[state])
    elif state == "moments":
        reducer.expect("isum", fields["n"])
    elif STATES[state].merge == "sum":
        for field in fields.values():
            reducer.expect("isum", field)


# Values as numbers of 64 bits.


def floats_of(values: pd.Series) -> Floats:
    """The values in float64, nulls as NaN; durations are numbers of ticks."""
    if dtype_class(values.dtype) == "timedelta":
        return np.where(values.isna(), np.nan, _ticks(values).astype(np.float64))
    if isinstance(values.dtype, np.dtype) and values.dtype.kind != "O":
        return np.asarray(values.to_numpy(dtype=np.float64))
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))


def _ticks(values: pd.Series) -> npt.NDArray[np.int64]:
    """Times or durations in the ticks of their dtype; nulls are any number."""
    if isinstance(values.dtype, pd.ArrowDtype):
        # with a time zone pandas would make objects
        return np.asarray(pa.array(values.array).cast(pa.int64()).fill_null(0))
    return np.asarray(values.array.view("int64"))


def _float_series(values: pd.Series) -> pd.Series:
    """The values in float64, nulls as NaN; the column itself if it can be."""
    return values if values.dtype == np.float64 else pd.Series(floats_of(values))


def _filled(values: pd.Series, null: float) -> pd.Series | None:
    """Floats with a number for each null, where NaN is no null: in masked and Arrow dtypes."""
    if isinstance(values.dtype, np.dtype) or dtype_class(values.dtype) != "float":
        return None
    return pd.Series(values.to_numpy(dtype=np.float64, na_value=null))


def _integers(values: pd.Series, fill: int) -> pd.Series:
    """The values in int64 or uint64, nulls replaced by an identity."""
    wide = "uint64" if dtype_class(values.dtype) == "uint" else "int64"
    if isinstance(values.dtype, np.dtype):
        # the column itself if it can be: it is known by its identity
        return values if values.dtype == wide else values.astype(wide)
    if dtype_class(values.dtype) == "bool":
        values = values.astype("boolean")  # Arrow's own refuses a fill value that is no bool
    return pd.Series(values.to_numpy(dtype=wide, na_value=fill))


# Counts, sums and products.


def _count(reducer: Reducer, values: pd.Series) -> Fields:
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "biu":
        return {"n": reducer.size}
    return {"n": reducer.counts(values)}


def _isum(reducer: Reducer, values: pd.Series) -> Fields:
    sums = reducer.by_loops(values, "sum")
    return {"sum": reducer.sum(_integers(values, 0)) if sums is None else sums}


def _fsum(reducer: Reducer, values: pd.Series) -> Fields:
    if dtype_class(values.dtype) == "float":
        sums = reducer.by_loops(values, "sum")
        if sums is not None:
            return {"sum": sums}
    if _cannot_wrap(values):  # the integer sum is exact, and may be asked for anyway
        return {"sum": np.asarray(_once(reducer, "isum", values)["sum"], dtype=np.float64)}
    # pandas would sum float32 in float32
    filled = _filled(values, 0.0)
    if filled is not None:
        return {"sum": np.asarray(reducer.sum(filled, skipna=False))}
    return {"sum": np.asarray(reducer.sum(_float_series(values)))}


def _cannot_wrap(values: pd.Series) -> bool:
    """Whether no sum of any of these integers can leave 64 bits."""
    if not (isinstance(values.dtype, np.dtype) and values.dtype.kind in "biu"):
        return False
    return sums_fit(values.to_numpy())


def sums_fit(values: npt.NDArray[Any]) -> bool:
    """Whether no sum of integers of a column, or of a block's columns, can leave 64 bits."""
    if values.size == 0 or values.dtype.itemsize < 8:
        return True
    largest = max(abs(int(values.min())), abs(int(values.max())))
    return bool(largest * values.shape[-1] <= np.iinfo(np.int64).max)


def _xsum(reducer: Reducer, values: pd.Series) -> Fields:
    n = _once(reducer, "count", values)
    if dtype_class(values.dtype) == "float":
        filled = _filled(values, 0.0)
        floats = floats_of(values) if filled is None else filled.to_numpy()
        return n | reducer.exact_sums(floats, nan_is_null=filled is None)
    if _cannot_wrap(values):
        digits = exact_sums.of_integers(np.asarray(_once(reducer, "isum", values)["sum"]))
    else:
        # the halves are a bin apart
        high, low = map(exact_sums.of_integers, _halves(reducer, _integers(values, 0).to_numpy()))
        digits = exact_sums.added({place + 1: part for place, part in high.items()}, low)
    return n | {exact_sums.label(place): part for place, part in digits.items()}


def _osum(reducer: Reducer, values: pd.Series) -> Fields:
    if dtype_class(values.dtype) == "decimal":
        return {"sum": reducer.arrow(values, "sum", empty=decimal.Decimal(0))}
    # a group without values has no sum yet: it depends on other partitions, and 0 cannot join a
    # string among Python objects
    sums = reducer.by(values).sum(min_count=1)
    return {"sum": (sums.astype(object) if is_plain(values.dtype) else sums).array}


def _iprod(reducer: Reducer, values: pd.Series) -> Fields:
    return _products(reducer, _integers(values, 1))


def _fprod(reducer: Reducer, values: pd.Series) -> Fields:
    filled = _filled(values, 1.0)
    if filled is not None:
        return _products(reducer, filled, skipna=False)
    return _products(reducer, _float_series(values))


def _products(reducer: Reducer, values: pd.Series, skipna: bool = True) -> Fields:
    return {"prod": np.asarray(reducer.by(values).prod(skipna=skipna))}


def _limbs(reducer: Reducer, values: pd.Series) -> Fields:
    high, low = _halves(reducer, np.where(values.notna(), _ticks(values), 0))
    return {"hi": high, "lo": low}


def _halves(reducer: Reducer, integers: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Exact sums of 64-bit integers, in two halves that cannot overflow below 2**31 rows."""
    halves = (half.astype(np.int64, copy=False) for half in (integers >> 32, integers & _LOW))
    return [np.asarray(reducer.sum(pd.Series(half))) for half in halves]


def _sums(reducer: Reducer, values: pd.Series) -> Any:
    """Sums of partial sums."""
    if dtype_class(values.dtype) not in NUMERIC:
        # sums of decimals beside sums of floats
        values = pd.Series(values.to_numpy(dtype=np.float64, na_value=np.nan))
    # an inf - inf of a partition is NaN and has to stay NaN: partial sums are never skipped
    return reducer.sum(values, skipna=False)


def _merge_exact(reducer: Reducer, fields: dict[str, pd.Series]) -> Fields:
    sums = {name: np.asarray(reducer.sum(values)) for name, values in fields.items()}
    return exact_sums.settled(sums, np)


# Values of single rows.


def _extremum(reducer: Reducer, values: pd.Series, function: str) -> Fields:
    dtype = values.dtype
    arrow = isinstance(dtype, pd.ArrowDtype) and dtype_class(dtype) != "timedelta"
    if arrow or (isinstance(dtype, pd.StringDtype) and dtype.storage == "pyarrow"):
        return {function: reducer.arrow(values, function)}
    best = reducer.by_loops(values, function)
    return {function: reducer.by_pandas(function, values) if best is None else best}


def _one_row(reducer: Reducer, values: pd.Series, function: str) -> Fields:
    valid = values.notna().to_numpy()
    choose = reducer.first_row if function == "first" else reducer.last_row
    if valid.all():  # the same rows of every such column
        rows = reducer.shared(function, lambda v: choose(np.arange(len(valid))), None)
    else:
        rows = choose(np.flatnonzero(valid))
    array = values.to_numpy() if is_plain(values.dtype) else values.array
    return {function: take(array, rows)}


def _truth(reducer: Reducer, values: pd.Series, function: str) -> Fields:
    result = getattr(reducer.by(values), function)()
    return {function: result.to_numpy(dtype=bool, na_value=function == "all")}


def _extreme(
    reducer: Reducer, state: str, values: pd.Series, labels: pd.Series, nulls: Any
) -> Fields:
    """``idxmin`` or ``idxmax`` of rows with these labels, and groups with so many nulls."""
    best = reducer.by(values).min() if state == "idxmin" else reducer.by(values).max()
    of_group = pd.Series(best.array.take(reducer.codes))
    is_best = pd.Series(values.array).eq(of_group).to_numpy(dtype=bool, na_value=False)
    first = reducer.first_row(np.flatnonzero(is_best))
    # a group without values takes any label, which is never returned as its value is null: a null
    # label would turn integers into floats
    label = take(labels.array, np.maximum(first, 0) if len(labels) else first)
    return {"value": best.array, "label": label, "nulls": nulls}


def _merge_extreme(reducer: Reducer, fields: dict[str, pd.Series], state: str) -> Fields:
    nulls = _sums(reducer, fields["nulls"])
    return _extreme(reducer, state, fields["value"], fields["label"], nulls)


# Moments.


def _update_moments(reducer: Reducer, values: pd.Series) -> Fields:
    if dtype_class(values.dtype) == "timedelta":
        values = pd.Series(floats_of(values))
    floats = values if compiled.can_read(values.dtype) else pd.Series(floats_of(values))
    n = _once(reducer, "count", values)["n"]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = _once(reducer, "fsum", values)["sum"] / n
    # Welford's, here and in pandas, so a constant gives exactly 0
    m2 = reducer.by_loops(floats, "m2")
    if m2 is None:
        # pandas casts integers itself, all columns at once, and would reduce float32 in float32
        integers = isinstance(values.dtype, np.dtype) and values.dtype.kind in "iu"
        floats = values if integers else _float_series(values)
        m2 = reducer.by_pandas("var", floats, ddof=0) * n
    # a NaN that is a value, and not a null, makes the whole group NaN
    m2 = np.where(np.isnan(mean), np.nan, m2)
    constant = (m2 == 0) & (n > 1)
    if constant.any():
        # a sum divided by n may miss the constant by one rounding, which merging would square
        first = reducer.first_row(np.flatnonzero(floats.notna().to_numpy()))
        mean[constant] = floats.to_numpy()[first[constant]]
    return {"n": n, "mean": mean, "m2": np.where(n == 0, 0.0, m2)}


def _merge_centred(
    reducer: Reducer,
    fields: dict[str, pd.Series],
    means: Sequence[str],
    products: Mapping[str, tuple[str, str]],
) -> Fields:
    """Merge counts, means and sums of products of deviations from the means.

    Chan, Golub, LeVeque 1979, equation 1.5b, for any number of parts at once.
    """
    n = fields["n"].to_numpy()
    total = np.asarray(_sums(reducer, fields["n"]))
    merged: Fields = {"n": total}
    deviations = {}
    with np.errstate(invalid="ignore", divide="ignore"):
        for name in means:
            parts = fields[name].to_numpy()
            merged[name] = _weighted_mean(reducer, n, parts, total)
            deviations[name] = parts - merged[name][reducer.codes]
        for name, (a, b) in products.items():
            spread = np.where(n > 0, n * (deviations[a] * deviations[b]), 0.0)
            merged[name] = np.bincount(reducer.codes, fields[name].to_numpy() + spread, reducer.n)
    return merged


def _weighted_mean(
    reducer: Reducer, n: npt.NDArray[Any], means: npt.NDArray[Any], total: npt.NDArray[Any]
) -> Floats:
    """Means of means, relative to each group's first one so that equal means stay equal."""
    filled = n > 0
    first = reducer.first_row(np.flatnonzero(filled))
    reference = np.full(reducer.n, np.nan)
    reference[first >= 0] = means[first[first >= 0]]
    shift = np.where(filled, n * (means - reference[reducer.codes]), 0.0)
    mean: Floats = reference + np.bincount(reducer.codes, shift, reducer.n) / total
    return mean


def _update_comoments(reducer: Reducer, x: Floats, y: Floats) -> Fields:
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


_UPDATES: dict[str, Update] = {
    "count": _count,
    "isum": _isum,
    "fsum": _fsum,
    "osum": _osum,
    "xsum": _xsum,
    "concat": _osum,
    "iprod": _iprod,
    "fprod": _fprod,
    "moments": _update_moments,
    "limbs": _limbs,
    **{name: partial(_truth, function=name) for name in ("any", "all")},
    **{name: partial(_extremum, function=name) for name in ("min", "max")},
    **{name: partial(_one_row, function=name) for name in ("first", "last")},
}


def _merge_of(state: State) -> Merge:
    """The merge of a state whose fields merge one by one, as they are updated if by no other."""
    if state.binned:
        return _merge_exact
    if state.merge == "sum" and state.name != "osum":  # the sums of osum are no numbers
        return lambda reducer, fields: {f: _sums(reducer, fields[f]) for f in state.fields}
    if state.merge == "prod":
        return lambda reducer, fields: _products(reducer, fields["prod"], skipna=False)
    (field,) = state.fields
    return lambda reducer, fields: _UPDATES[state.name](reducer, fields[field])


_MERGES: dict[str, Merge] = {
    **{state.name: _merge_of(state) for state in STATES.values() if state.merge},
    "moments": partial(_merge_centred, means=("mean",), products={"m2": ("mean", "mean")}),
    "idxmin": partial(_merge_extreme, state="idxmin"),
    "idxmax": partial(_merge_extreme, state="idxmax"),
    "comoments": partial(
        _merge_centred,
        means=("mx", "my"),
        products={"cxx": ("mx", "mx"), "cxy": ("mx", "my"), "cyy": ("my", "my")},
    ),
}
