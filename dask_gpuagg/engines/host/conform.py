"""The dtypes of outputs: those that pandas gives, or that the metadata promises."""

from __future__ import annotations

import contextlib
import decimal
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from dask.dataframe.dispatch import meta_nonempty

from dask_gpuagg.aggregations import REGISTRY, Kind
from dask_gpuagg.dtypes import TEMPORAL, TEXT, dtype_class, is_plain
from dask_gpuagg.plan import Output

# a decimal256 has at most 76 digits; as many again keep a quotient exact enough to round
DECIMAL_DIGITS = 152


def natural_dtype(output: Output, dtype: Any, promised: Any) -> Any:
    """The dtype that pandas gives an aggregation of a column of this dtype.

    Parameters
    ----------
    output : Output
    dtype : dtype
    promised : dtype
        Of the output, by the metadata. Stock Dask's lists are Arrow's beside a median only.

    Returns
    -------
    dtype, or None
        ``None`` where it is that of the values, or pandas has no such aggregation: the output
        keeps the dtype that it was made in.
    """
    rule = None if output.custom else REGISTRY[output.aggregation].result
    if isinstance(promised, pd.ArrowDtype) and output.aggregation == "list":
        return list_dtype(dtype)
    if dtype_class(dtype) in ("object", "category"):
        return None
    if rule == "same":
        return dtype
    if rule not in ("sum", "float", "count", "bool"):
        return None
    row = meta_nonempty(pd.Series([], dtype=dtype)).iloc[:1]
    try:
        method = getattr(row.groupby([0]), REGISTRY[output.aggregation].exact or output.aggregation)
        return method(**dict(output.parameters)).dtype
    except (TypeError, NotImplementedError, ArithmeticError):  # what pandas refuses by dtype
        return None


def list_dtype(dtype: Any) -> Any:
    """The dtype that pandas gives lists of values of a dtype: Arrow's where the values are.

    Those of decimals have the precision of the column, which all outputs share; pandas takes it
    from the values. pandas 3.0 cannot make those of categories.
    """
    if dtype_class(dtype) == "decimal":
        return pd.ArrowDtype(pa.list_(dtype.pyarrow_dtype))
    if is_plain(dtype) or dtype_class(dtype) == "category":
        return np.dtype(object)
    row = meta_nonempty(pd.Series([], dtype=dtype)).iloc[:1]
    return row.groupby([0]).agg(list).dtype


def _with_none(values: Iterable[Any]) -> list[Any]:
    """Values as Arrow takes them, for which None alone is null."""
    return [None if value is pd.NA else value for value in values]


def series_of(values: Any) -> pd.Series:
    """An array as a Series: Python objects may become text, but not times, periods or intervals.

    pandas takes the dtype of objects from what they are, which may differ between partitions.

    Parameters
    ----------
    values : array
    """
    series = pd.Series(values)
    if dtype_class(series.dtype) in ("object", "string") or not holds_objects(values):
        return series
    return pd.Series(values, dtype=object)


def holds_objects(values: Any) -> bool:
    """Whether an array holds Python objects."""
    plain = isinstance(values, np.ndarray | pd.arrays.NumpyExtensionArray)
    return plain and values.dtype.kind == "O"


def conform(values: Any, dtype: Any, output: Output) -> Any:
    """Give an output the dtype that the metadata promises, where no value is lost by it.

    ``None`` for the dtype leaves the output as it is.
    """
    plain = isinstance(values, np.ndarray) and isinstance(dtype, np.dtype) and dtype.kind in "iuf"
    if plain and values.dtype == dtype:
        return values
    series = series_of(values)
    rule = "same" if output.custom else REGISTRY[output.aggregation].result
    if _selects_objects(output, series, dtype):
        return series.astype(object).where(series.notna(), None).array
    if dtype is None or series.dtype == dtype:
        return series.array
    if series.dtype == object and dtype_class(dtype) == "decimal":
        return pd.array([_rounded(v, dtype) for v in series], dtype=dtype)
    if rule == "sum" and holds_objects(values) and dtype_class(dtype) == "timedelta":
        return series.array  # of objects that are durations
    if rule == "same" and not output.custom:
        found = dtype_class(series.dtype)
        if found == "object":
            return series.array  # truths beside numbers, of several partitions
        if found in TEMPORAL and dtype_class(dtype) == "object":
            return series.array  # extremes of objects that all are times: pandas' dtype of times
    narrow = dtype_class(dtype) in ("int", "uint", "bool")
    if rule == "sum" and narrow:
        # like pandas: int8 sums stay int8 where every group's sum fits, else 64 bit
        return _narrowed(series, dtype)
    if narrow and series.isna().any() and isinstance(dtype, np.dtype):
        return _with_nan(series)  # a null has no place in the promised dtype
    if rule == "object" and isinstance(dtype, pd.ArrowDtype) and _holds_lists(dtype):
        # metadata made by pandas; made of no group it has the dtype of the values
        return pd.array([_with_none(values) for values in series], dtype=dtype)
    if output.kind is Kind.WHOLE and series.dtype == np.float64 and _is_narrow_float(dtype):
        return series.array  # pandas' medians of float16 are float64, whatever the metadata says
    if rule in ("object", "key") or (output.custom and dtype_class(dtype) == "object"):
        return series.array
    if isinstance(dtype, pd.CategoricalDtype) and isinstance(series.dtype, pd.CategoricalDtype):
        return series.array  # categories are known only now
    return series.astype(dtype).array


def _holds_lists(dtype: pd.ArrowDtype) -> bool:
    of = dtype.pyarrow_dtype
    return bool(pa.types.is_list(of) or pa.types.is_large_list(of))


def _selects_objects(output: Output, series: pd.Series, dtype: Any) -> bool:
    """Whether an output is one of the Python objects of each group, or None where none is."""
    chosen = not output.custom and output.aggregation in ("first", "last")
    objects = dtype is None or dtype_class(dtype) == "object"
    return chosen and objects and dtype_class(series.dtype) in TEXT


def _is_narrow_float(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind == "f" and dtype.itemsize < 8


def _with_nan(series: pd.Series) -> Any:
    """Masked values of which some are null, as Python objects: no plain dtype holds both.

    They come from partitions that held objects, of which pandas would have made objects too.
    """
    if isinstance(series.dtype, np.dtype):
        return series.array
    return series.astype(object).where(series.notna(), None).array


def _rounded(value: Any, dtype: Any) -> Any:
    """A decimal at the scale of a dtype, halves away from zero as pandas rounds them."""
    if value is None:
        return None
    unit = decimal.Decimal(1).scaleb(-dtype.pyarrow_dtype.scale)
    with decimal.localcontext(prec=DECIMAL_DIGITS):
        return value.quantize(unit, rounding=decimal.ROUND_HALF_UP)


def _narrowed(series: pd.Series, dtype: Any) -> Any:
    numpy_dtype = _numpy_dtype(dtype)
    limits = np.iinfo(numpy_dtype) if numpy_dtype.kind in "iu" else None
    fits = limits is not None and (
        len(series) == 0 or (series.min() >= limits.min and series.max() <= limits.max)
    )
    if fits:
        return series.astype(dtype).array
    # the 64-bit relative of the promised dtype: Int64 for Int8, int64[pyarrow] for int8[pyarrow]
    wide = "uint64" if series.dtype.kind == "u" else "int64"
    if isinstance(dtype, pd.ArrowDtype):
        return series.astype(f"{wide}[pyarrow]").array
    if not isinstance(dtype, np.dtype):
        return series.astype(wide.replace("i", "I", 1).replace("uI", "UI")).array
    return series.array


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    return dtype if isinstance(dtype, np.dtype) else np.dtype(dtype.numpy_dtype)


def categories_of(values: Any, promised: Any) -> pd.Categorical:
    """Values as categories of the plainest dtype that holds them, sorted as pandas sorts them.

    Parameters
    ----------
    values : array
        Of partitions that did not hold categories, though the metadata promised them.
    promised : CategoricalDtype
    """
    series = pd.Series(values)
    distinct = pd.Index(series.dropna().unique().tolist())
    with contextlib.suppress(TypeError):  # what cannot be compared comes in order of appearance
        distinct = distinct.sort_values()
    return pd.Categorical(series, categories=distinct if len(distinct) else promised.categories[:0])
