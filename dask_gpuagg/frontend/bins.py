"""``pd.Grouper`` with a frequency: timestamps in bins of equal length, the empty ones among them.

The key is floored to the begin of its bin, and grouped like any computed key. Where it is the only
one, pandas has all bins from the first to the last, and those without rows are added to the result.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from dask.dataframe.dask_expr._expr import Elemwise
from dask.dataframe.dispatch import meta_nonempty

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.frontend.metadata import is_cudf, output_meta
from dask_gpuagg.frontend.ordered import one_output
from dask_gpuagg.frontend.specification import FLAGS, read_method, read_specification
from dask_gpuagg.plan import Requested
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy

# pandas has the rows of these in order of time, or with other columns
_OF_ROWS = (
    *("apply", "transform", "shift", "ffill", "bfill", "cumsum", "cumprod", "cumcount"),
    *("head", "tail", "get_group", "rolling"),
)
_DEFAULTS = {"closed": "left", "label": "left", "origin": "start_day", "offset": None}


def gpuagg_floored(times: Any, freq: Any, first: Any, alone: bool) -> Any:
    """Task: begins of bins, which divide a day or follow the midnight before ``first``."""
    if first is None or pd.isna(first):
        return times.dt.floor(pd.Timedelta(freq)) if first is None else times
    midnight = first.floor("D")
    return (midnight + (times - midnight).dt.floor(pd.Timedelta(freq))).astype(times.dtype)


class BinKey(Elemwise):
    """The key of a Grouper; where it is ``alone``, the result gets its empty bins."""

    _parameters = ["frame", "freq", "first", "alone"]
    operation = staticmethod(gpuagg_floored)


def with_bins(groupby: Any, obj: Any, by: Any, dropna: bool | None) -> tuple[Any, Any]:
    """The frame without the column of a Grouper, as pandas has it, and the keys with BinKeys."""
    keys = list(by) if isinstance(by, list | tuple) else [by]
    has_bins = [isinstance(k, pd.Grouper) and getattr(k, "freq", None) is not None for k in keys]
    if any(has_bins) or any(isinstance(key, BinKey) for key in keys):
        for name in _OF_ROWS:
            message = f"{name} with a pd.Grouper is not supported"
            setattr(groupby, name, functools.partial(_refuse, message))
    if not any(has_bins):
        return obj, by
    places = np.flatnonzero(has_bins)
    labels = [_label(obj, keys[i]) for i in places]
    if dropna is False:  # rows without a time have no bin
        obj = obj.dropna(subset=labels)
    for i in places:
        times, freq = obj[keys[i].key], keys[i].freq
        divides = not pd.Timedelta(days=1) % pd.Timedelta(freq)
        first = None if divides else times.min().expr
        keys[i] = BinKey(times.expr, freq, first, len(keys) == 1)
    return obj[[c for c in obj.columns if c not in labels]], keys


def _refuse(message: str, *args: Any, **kwargs: Any) -> Any:
    raise UnsupportedGroupBy(message)


def _label(obj: Any, grouper: Any) -> Any:
    """The column of a Grouper, which is refused where its bins would not be pandas'."""
    freq, key = grouper.freq, grouper.key
    if not isinstance(freq, pd.offsets.Tick | pd.offsets.Day) or freq.n < 1:
        _refuse(f"a pd.Grouper needs a fixed length of time, not freq={freq.freqstr!r}")
    for name, default in _DEFAULTS.items():
        if getattr(grouper, name) != default:
            value = getattr(grouper, name)
            _refuse(f"{name}={value!r} of a pd.Grouper is not supported")
    if key is None or obj.ndim == 1 or is_cudf(obj._meta):
        key_text = f"key={key!r} and level={grouper.level!r}"
        _refuse(f"a pd.Grouper needs the key of a column of a pandas DataFrame, not {key_text}")
    times = obj._meta[key]
    if not str(times.dtype).startswith("datetime64") or str(times.dt.tz) not in ("None", "UTC"):
        needed = "a column of datetime64, without a time zone or in UTC"
        _refuse(f"a pd.Grouper needs {needed}: key={key!r} is {times.dtype}")
    if pd.Timedelta(freq) % pd.Timedelta(1, times.dt.unit):
        unit = f"the unit of {times.dtype}"
        _refuse(f"a pd.Grouper needs a multiple of {unit}, not freq={freq.freqstr!r}")
    return key


def with_all_bins(
    name: str, wrapper: Callable[..., Any], original: Any, self: Any, *args: Any, **kwargs: Any
) -> Any:
    """A call of a group-by through its wrapper; where a Grouper is the only key, with all bins."""
    key = self.by[0]
    if not (isinstance(key, BinKey) and key.alone):
        return wrapper(original, self, *args, **kwargs)
    options = inspect.signature(functools.partial(original, self)).bind(*args, **kwargs).arguments
    options |= options.pop("kwargs", {})
    arg = options.pop("arg", None) if name == "aggregate" else name
    flags = {n: options.pop(n) for n in FLAGS & options.keys()}
    if flags.get("split_out") not in (None, 1):
        _refuse("split_out with a pd.Grouper is not supported")
    flags["split_out"] = one_output
    by = [BinKey(*key.operands[:3], False)]
    groupby = type(self)(self.obj, by=by, slice=self._slice, sort=False, observed=self.observed)
    if isinstance(arg, str) and arg == "size":
        groups, spec = groupby.size(**flags), read_method(groupby, "size", ())
    else:
        groups = groupby.aggregate(arg, **flags, **options)
        spec = read_specification(groupby, arg, options)
    least = {guard.output: guard.least for guard in spec.guards}
    values = [_of_no_rows(self.obj._meta, r, least.get(i)) for i, r in enumerate(spec.requested)]
    complete = functools.partial(_all_bins, freq=key.freq, values=values)
    return groups.map_partitions(complete, meta=complete(groups._meta), enforce_metadata=False)


def _of_no_rows(meta: Any, request: Requested, least: int | None) -> Any:
    """The value of an output in a bin without rows, as pandas has it; ``None`` for a null."""
    empty_bin = REGISTRY[request.aggregation].empty_bin if request.custom is None else ""
    if not empty_bin:
        _refuse(f"{request.aggregation} with a pd.Grouper is not supported")
    column = meta.index.to_series() if request.column is None else meta[request.column]
    if request.aggregation == "sum" and dtype_class(column.dtype) in ("string", "object"):
        _refuse("a sum of text with a pd.Grouper is not supported: pandas joins by time")
    if least and column.dtype == bool:
        _refuse("min_count of booleans with a pd.Grouper is not supported")
    if least or empty_bin == "null":
        return None
    days = pd.DatetimeIndex(["2000-01-01", "2000-01-03"])
    rows = meta_nonempty(column).iloc[[0, 0]].set_axis(days)
    return output_meta(rows.groupby(pd.Grouper(freq="D")), request).iloc[1]


def _all_bins(groups: Any, freq: Any, values: list[Any]) -> Any:
    """A row for each bin from the first to the last."""
    frame = groups.to_frame() if groups.ndim == 1 else groups
    columns = {i: _with_bins_of(frame.iloc[:, i], freq, value) for i, value in enumerate(values)}
    if groups.ndim == 1:
        return columns[0].rename(groups.name)
    result = pd.DataFrame(columns)
    result.columns = groups.columns
    return result


def _with_bins_of(column: pd.Series, freq: Any, value: Any) -> pd.Series:
    """A column with all bins; NumPy's integers are floats, as in pandas where a bin is null."""
    if value is None and isinstance(column.dtype, np.dtype) and column.dtype.kind in "iub":
        exact, column = column, column.astype("float64")
        if not (column.astype(exact.dtype) == exact).all():
            raise ValueError(f"{column.name!r} has integers beyond 2**53: take a column of Int64")
    return column.asfreq(freq, fill_value=value)
