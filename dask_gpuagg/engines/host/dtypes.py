"""Dtypes of columns, keys and outputs, where partitions hold others than the metadata promised.

A partial takes a column in the dtype that was found (``compatible``), partials are brought to one
plan by the dtype that all have together (``common_dtype``; see ``tasks/partials.py``), and keys and
outputs get the dtype that pandas gives, or that the metadata promises.
"""

import decimal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from dask.dataframe.dispatch import meta_nonempty

from dask_gpuagg.aggregations import REGISTRY, Kind
from dask_gpuagg.dtypes import NUMERIC, TEMPORAL, TEXT, dtype_class, is_plain
from dask_gpuagg.engines.host.grouping import is_dictionary
from dask_gpuagg.plan import Column, Output

_NUMERIC = frozenset(NUMERIC)
# a decimal256 has at most 76 digits; as many again keep a quotient exact enough to round
DECIMAL_DIGITS = 152


# Columns of partitions.


def compatible(values: pd.Series, promised: Any) -> tuple[pd.Series, Any]:
    """A column that has another dtype than the promised one, as its partial takes it.

    The values are changed only where that loses nothing and saves a dtype: empty columns, and
    Python objects that all are of the promised class. The dtype is the promised one where the
    values can be merged with those of it.
    """
    dtype = values.dtype
    if isinstance(dtype, np.dtype) and dtype.kind == "c":
        raise TypeError(f"a partition has complex numbers, where {promised} was promised")
    cls, promised_cls = dtype_class(dtype), dtype_class(promised)
    if len(values) == 0:
        return values.astype(promised), promised
    if cls == promised_cls or {cls, promised_cls} <= _NUMERIC or promised_cls in TEXT:
        return values, dtype
    if values.isna().all():
        # objects, text or NaN, which a column gets that holds nothing
        return pd.Series(None, values.index, nullable(promised), values.name), promised
    return _of_objects(values, promised) if cls == "object" else (values, dtype)


def _of_objects(values: pd.Series, promised: Any) -> tuple[pd.Series, Any]:
    """Python objects as the numbers, truths or times that all of them are, if they are.

    A null among them is what kept them from a plain dtype.
    """
    cls = dtype_class(promised)
    try:
        inferred = pd.Series(pd.array(values.tolist()), values.index, name=values.name)
    except OverflowError:  # integers beyond 64 bits
        return values, values.dtype
    if dtype_class(inferred.dtype) != cls:
        return values, values.dtype
    if cls in _NUMERIC:
        exact = inferred.astype(nullable(promised))
        if (exact == inferred).fillna(True).all():  # integers wrap, floats are rounded
            return exact, promised
    return inferred, inferred.dtype


def of_categories(values: pd.Series) -> pd.Series:
    """A column of categories as the values that they stand for."""
    return values.astype(values.dtype.categories.dtype)


def nullable(dtype: Any) -> Any:
    """The dtype itself if it holds nulls, else its masked counterpart."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biu":
        return dtype
    return pd.Series([], dtype=dtype).convert_dtypes().dtype


def unmasked(values: Any, dtype: Any) -> Any:
    """Values merged under a plain dtype in that, where ``compatible`` gave them a needless mask."""
    masked = isinstance(dtype, np.dtype) and values.dtype == nullable(dtype) != dtype
    return values.astype(dtype) if masked and not values.isna().any() else values


def common_dtype(dtypes: Sequence[Any]) -> Any:
    """The dtype that columns of pandas have together: that of a concatenation.

    Where pandas would make Python objects of numbers, truths or decimals, it is the dtype of
    numbers that holds them all.
    """
    distinct = list(dict.fromkeys(dtypes))
    if len(distinct) == 1:
        return distinct[0]
    classes = set(map(dtype_class, distinct))
    if classes == {"category"}:
        return distinct[0]
    if classes == {"decimal"}:
        schemas = [pa.schema([("value", dtype.pyarrow_dtype)]) for dtype in distinct]
        schema = pa.unify_schemas(schemas, promote_options="permissive")
        return pd.ArrowDtype(schema.field("value").type)
    plain = [d.categories.dtype if isinstance(d, pd.CategoricalDtype) else d for d in distinct]
    together = pd.concat([pd.Series([], dtype=dtype) for dtype in plain]).dtype
    if dtype_class(together) == "object" and classes <= _NUMERIC:
        return np.dtype("float64" if "float" in classes else "int64")
    return together


def series_of(values: Any) -> pd.Series:
    """An array as a Series: Python objects may become text, but not times, periods or intervals.

    pandas takes the dtype of objects from what they are, which may differ between partitions.
    """
    series = pd.Series(values)
    if dtype_class(series.dtype) in ("object", "string") or not holds_objects(values):
        return series
    return pd.Series(values, dtype=object)


def holds_objects(values: Any) -> bool:
    """Whether an array holds Python objects."""
    plain = isinstance(values, np.ndarray | pd.arrays.NumpyExtensionArray)
    return plain and values.dtype.kind == "O"


# Keys of groups.


def key_of_no_group(key: pd.Series, promised: Column) -> pd.Series:
    """A key of a partition without groups: objects or NaN without a value have no dtype."""
    cls, promised_cls = dtype_class(key.dtype), dtype_class(promised.dtype)
    nothing = isinstance(key.dtype, np.dtype) and cls in ("object", "float") and key.isna().all()
    if not nothing or promised_cls in (cls, "category"):
        return key.iloc[:0]
    # objects, of which stacking takes no dtype where others have rows or a dtype
    return pd.Series([], dtype=object)


def key_as_text(key: Any, promised: Column) -> Any:
    """A key of the groups that was read as a dictionary of text, which was promised as text."""
    if not (is_dictionary(key.dtype) and isinstance(promised.dtype, pd.StringDtype)):
        return key
    texts = pa.array(key)  # a chunked array where there are no rows, which only a cast decodes
    return pd.array(texts.cast(texts.type.value_type), dtype=promised.dtype)


def key_as_promised(key: Any, promised: Column, level: Any) -> Any:
    """A key of the groups, with categories only where the metadata has them.

    Outputs of one result may have met different partitions: those that hold categories, text or
    Python objects. They have to agree, or Dask cannot concatenate them. ``level`` is the dtype of
    the result's index by its metadata: that of ``unique`` has lost the categories.
    """
    cls, promised_cls = dtype_class(key.dtype), dtype_class(promised.dtype)
    if len(key) == 0 and cls != "category":
        return pd.Series(key).astype(promised.dtype).array
    if promised_cls == "category":
        as_it_is = cls == "category" or dtype_class(level) != "category"
        return key if as_it_is else categories_of(key, promised.dtype)
    if cls == "category":
        return pd.Series(key).astype(key.categories.dtype).array
    null = pd.isna(key)
    if promised_cls == "object" or (cls != "object" and not null.all()):
        return key
    held = pd.Series(key).astype(object)
    # None is null to every dtype, and NaN to those that pandas takes from the values
    for dtype, nothing in ((promised.dtype, None), (None, np.nan)):
        objects = held.where(~null, nothing).tolist()
        with suppress(TypeError, ValueError, OverflowError):
            cast = pd.Series(objects, dtype=dtype)
            # floats are not what large integers are, nor integers what fractions are, nor is
            # False what None is
            pairs = zip(null, cast.isna(), objects, cast.tolist(), strict=True)
            if all(m if n else a == b for n, m, a, b in pairs):
                return cast.array
    return key


def categories_of(values: Any, promised: Any) -> pd.Categorical:
    """Values as categories of the plainest dtype that holds them, sorted as pandas sorts them.

    They come from partitions that did not hold categories, though the metadata promised them.
    """
    series = pd.Series(values)
    distinct = pd.Index(series.dropna().unique().tolist())
    with suppress(TypeError):  # values that cannot be compared come in order of appearance
        distinct = distinct.sort_values()
    return pd.Categorical(series, categories=distinct if len(distinct) else promised.categories[:0])


# Outputs.


def natural_dtype(output: Output, dtype: Any, promised: Any) -> Any:
    """The dtype that pandas gives an aggregation of a column of this dtype.

    ``None`` where it is that of the values, or pandas has no such aggregation. Stock Dask's lists
    are Arrow's beside a median only, where that is ``promised`` by the metadata.
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
    except (TypeError, NotImplementedError, ArithmeticError):
        return None  # pandas has no such aggregation of the dtype


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


def conform(values: Any, dtype: Any, output: Output) -> Any:
    """Give an output the dtype that the metadata promises, where no value is lost by it.

    ``None`` for the dtype leaves the output as it is.
    """
    plain = isinstance(values, np.ndarray) and isinstance(dtype, np.dtype) and dtype.kind in "iuf"
    if plain and values.dtype == dtype:
        return values
    series = series_of(values)
    cls, promised = dtype_class(series.dtype), None if dtype is None else dtype_class(dtype)
    rule = "custom" if output.custom else REGISTRY[output.aggregation].result
    chosen = rule != "custom" and output.aggregation in ("first", "last")
    if chosen and cls in TEXT and promised in (None, "object"):
        # one of the Python objects of each group, or None where there is none
        return series.astype(object).where(series.notna(), None).array
    if dtype is None or series.dtype == dtype:
        return series.array
    if series.dtype == object and promised == "decimal":
        return pd.array([_rounded(v, dtype) for v in series], dtype=dtype)
    if rule == "same" and (cls == "object" or (cls in TEMPORAL and promised == "object")):
        return series.array  # of several partitions, or pandas' dtype of objects that all are times
    if rule == "sum" and promised in ("int", "uint", "bool"):
        # like pandas: int8 sums stay int8 where every group's sum fits, else 64 bit
        return _narrowed(series, dtype)
    if promised in ("int", "uint", "bool") and isinstance(dtype, np.dtype) and series.isna().any():
        # a null has no place in the promised dtype: pandas, too, would have made objects of masked
        # values of partitions that held objects
        if isinstance(series.dtype, np.dtype):
            return series.array
        return series.astype(object).where(series.notna(), None).array
    arrow = dtype.pyarrow_dtype if isinstance(dtype, pd.ArrowDtype) else None
    if arrow is not None and promised == "timedelta" and series.dtype == np.int64:
        # NaT's pattern, which Arrow takes for a value
        ticks = pa.array(series.to_numpy(), mask=series.to_numpy() == np.iinfo(np.int64).min)
        return pd.array(ticks.cast(arrow), dtype=dtype)
    if rule == "object" and arrow is not None and pa.types.is_nested(arrow):
        # metadata made by pandas; made of no group it has the dtype of the values. For Arrow None
        # alone is null
        lists = [[None if value is pd.NA else value for value in values] for values in series]
        return pd.array(lists, dtype=dtype)
    narrow_float = isinstance(dtype, np.dtype) and dtype.kind == "f" and dtype.itemsize < 8
    if (
        rule in ("object", "key")
        or (rule == "custom" and promised == "object")
        or cls == promised == "category"  # categories are known only now
        # pandas' medians of float16 are float64, whatever the metadata says
        or (output.kind is Kind.WHOLE and series.dtype == np.float64 and narrow_float)
    ):
        return series.array
    cast = series.astype(dtype)
    # metadata of a user's function is made of few and small values
    fits = rule != "custom" or cast.astype(series.dtype).equals(series)
    return cast.array if fits else series.array


def _rounded(value: Any, dtype: Any) -> Any:
    """A decimal at the scale of a dtype, halves away from zero as pandas rounds them."""
    if value is None:
        return None
    unit = decimal.Decimal(1).scaleb(-dtype.pyarrow_dtype.scale)
    with decimal.localcontext(prec=DECIMAL_DIGITS):
        return value.quantize(unit, rounding=decimal.ROUND_HALF_UP)


def _narrowed(series: pd.Series, dtype: Any) -> Any:
    """Sums in the promised dtype if all fit, else in its 64-bit relative."""
    numpy_dtype = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype.numpy_dtype)
    if numpy_dtype.kind in "iu":
        limits = np.iinfo(numpy_dtype)
        if len(series) == 0 or (series.min() >= limits.min and series.max() <= limits.max):
            return series.astype(dtype).array
    # Int64 for Int8, int64[pyarrow] for int8[pyarrow]
    wide = np.dtype("uint64" if series.dtype.kind == "u" else "int64")
    if isinstance(dtype, pd.ArrowDtype):
        return series.astype(f"{wide}[pyarrow]").array
    if not isinstance(dtype, np.dtype):
        return series.astype(nullable(wide)).array
    return series.array
