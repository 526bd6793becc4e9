"""Partitions of pandas whose columns have other dtypes than the metadata promised.

What the host engine makes of such columns, and how its partials are brought to one plan; see
``tasks/unify.py`` for the order in which that is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dask_gpuagg.dtypes import NUMERIC, TEXT, dtype_class, is_complex

_NUMERIC = frozenset(NUMERIC)


def compatible(values: pd.Series, promised: Any) -> tuple[pd.Series, Any]:
    """A column that has another dtype than the promised one, as its partial takes it.

    Parameters
    ----------
    values : Series
        Not of categories, unless it has no rows.
    promised : dtype

    Returns
    -------
    values : Series
        Unchanged, unless that loses nothing and saves a dtype: empty columns, and Python objects
        that all are of the promised class. Objects that are durations are left to ``durations``.
    dtype : dtype
        The promised one where the values can be merged with those of that dtype.
    """
    found = values.dtype
    cls, wanted = dtype_class(found), dtype_class(promised)
    if len(values) == 0:
        return values.astype(promised), promised
    if cls == wanted or {cls, wanted} <= _NUMERIC or wanted in TEXT:
        return values, found
    if values.isna().all():
        # objects, text or NaN, which a column gets that holds nothing
        if wanted == "timedelta":
            return values.astype(object), promised
        return pd.Series(None, values.index, nullable(promised), values.name), promised
    if cls == "object":
        return _of_objects(values, promised)
    return values, found


def of_categories(values: pd.Series) -> pd.Series:
    """A column of categories as the values that they stand for."""
    return values.astype(values.dtype.categories.dtype)


def _of_objects(values: pd.Series, promised: Any) -> tuple[pd.Series, Any]:
    """Python objects as the numbers, truths or times that all of them are, if they are.

    A null among them is what kept them from a plain dtype.
    """
    if dtype_class(promised) in _NUMERIC:
        values = complex_objects(values)
        if is_complex(values.dtype):
            return values, values.dtype
    try:
        inferred = pd.Series(pd.array(values.tolist()), values.index, name=values.name)
    except OverflowError:  # integers beyond 64 bits
        return values, values.dtype
    if dtype_class(inferred.dtype) != dtype_class(promised):
        return values, values.dtype
    if dtype_class(promised) in _NUMERIC:
        exact = inferred.astype(nullable(promised))
        if (exact == inferred).fillna(True).all():  # integers wrap, floats are rounded
            return exact, promised
    if dtype_class(promised) == "timedelta":
        return values, inferred.dtype
    return inferred, inferred.dtype


def durations(values: pd.Series, dtype: Any) -> pd.Series:
    """Python objects that are merged as durations, as durations.

    Their sum alone is one of objects: pandas adds nothing up to the integer 0 there.

    Parameters
    ----------
    values : Series
        As ``compatible`` returns it; what is no column of objects is returned as it is.
    dtype : dtype
        Under which they are merged.
    """
    if values.dtype != object or dtype_class(dtype) != "timedelta":
        return values
    return pd.Series(pd.array(values.tolist(), dtype=dtype), values.index, name=values.name)


def complex_objects(values: pd.Series) -> pd.Series:
    """Python objects as complex numbers, where all are numbers and some of them complex."""
    found = [v for v in values if not pd.isna(v)]
    if not any(isinstance(v, complex | np.complexfloating) for v in found):
        return values
    if not all(isinstance(v, Number | np.bool_) for v in found):
        return values
    return values.where(values.notna(), np.nan).astype("complex128")


def nullable(dtype: Any) -> Any:
    """The dtype itself if it holds nulls, else its masked counterpart."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biu":
        return dtype
    if dtype.kind == "b":
        return pd.BooleanDtype()
    return pd.Series([], dtype=dtype).convert_dtypes().dtype


def unmasked(values: Any, dtype: Any) -> Any:
    """Values without a null in their plain dtype, where ``compatible`` gave them a mask.

    Parameters
    ----------
    values : array
    dtype : dtype
        Under which they were merged.
    """
    masked = isinstance(dtype, np.dtype) and values.dtype == nullable(dtype) != dtype
    return values.astype(dtype) if masked and not values.isna().any() else values


def common_dtype(dtypes: Sequence[Any]) -> Any:
    """The dtype that columns of pandas have together.

    Parameters
    ----------
    dtypes : sequence of dtypes

    Returns
    -------
    dtype
        That of a concatenation. Where pandas would make Python objects of numbers, truths or
        decimals, it is the dtype of numbers that holds them all.
    """
    distinct = list(dict.fromkeys(dtypes))
    if len(distinct) == 1:
        return distinct[0]
    classes = {"complex" if is_complex(dtype) else dtype_class(dtype) for dtype in distinct}
    if classes == {"category"}:
        return distinct[0]
    if classes == {"decimal"}:
        return _common_decimal(distinct)
    if "complex" in classes and classes <= {"complex", *_NUMERIC}:
        return np.dtype("complex128")
    plain = [d.categories.dtype if isinstance(d, pd.CategoricalDtype) else d for d in distinct]
    together = pd.concat([pd.Series([], dtype=dtype) for dtype in plain]).dtype
    if dtype_class(together) == "object" and classes <= _NUMERIC:
        return np.dtype("float64" if "float" in classes else "int64")
    return together


def _common_decimal(dtypes: Sequence[pd.ArrowDtype]) -> pd.ArrowDtype:
    schemas = [pa.schema([("value", dtype.pyarrow_dtype)]) for dtype in dtypes]
    schema = pa.unify_schemas(schemas, promote_options="permissive")
    return pd.ArrowDtype(schema.field("value").type)
