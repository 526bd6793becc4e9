"""Metadata of results of cuDF collections: pandas' on made-up rows, with cuDF's dtypes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import pandas as pd
from dask.dataframe.dispatch import meta_nonempty

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.plan import Requested

# numbers whose sums have another dtype in cuDF
_SUMMED = ("int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64")
# it has 64 bits and a sign; pandas' sums of empty frames keep the input's width
_WIDE = {
    **dict.fromkeys(("bool", *_SUMMED), "int64"),
    **dict.fromkeys(("boolean", "Int8", "Int16", "Int32"), "Int64"),
    **dict.fromkeys(("UInt8", "UInt16", "UInt32", "UInt64"), "Int64"),
    **{f"{name}[pyarrow]": "int64[pyarrow]" for name in _SUMMED},
}
# dtypes of means and the like: cuDF widens floats
_WIDE_MEANS = {"float32": "float64", "Float32": "Float64", "float[pyarrow]": "double[pyarrow]"}


def on_host(meta: Any) -> Any:
    """Metadata as pandas'."""
    return meta.to_pandas() if hasattr(meta, "to_pandas") else meta


def source_dtype(meta: Any, request: Requested) -> Any:
    """The dtype of the column that an output reads; None if it reads none."""
    if request.aggregation == "size":
        return None
    return meta.dtype if meta.ndim == 1 else meta[request.column].dtype


def is_known(meta: Any, request: Requested) -> bool:
    """Whether cuDF's dtype of an output follows from the input's, without pandas."""
    return engine_name(meta) == DEVICE and (
        request.custom is not None or _of_source(request, source_dtype(meta, request)) is not None
    )


def beside(meta: Any, result: Any, requested: Sequence[Requested]) -> Any:
    """An empty pandas result in the library of the input's metadata, with its dtypes.

    Parameters
    ----------
    meta : DataFrame or Series
        Of the input.
    result : DataFrame or Series
        Empty, of pandas.
    requested : sequence of Requested
        One per column.
    """
    if engine_name(meta) != DEVICE:
        return result
    library = importlib.import_module("cudf")
    frame = result.to_frame() if result.ndim == 1 else result
    columns = {}
    for i, request in enumerate(requested):
        values = frame.iloc[:, i].reset_index(drop=True)
        dtype = cudf_dtype(request, values.dtype, source_dtype(meta, request), meta)
        if dtype is None or isinstance(dtype, str):
            columns[i] = library.from_pandas(values if dtype is None else values.astype(dtype))
        else:  # pandas has no such dtype
            columns[i] = library.Series([], dtype=dtype)
    made = library.DataFrame(columns)
    made.index = library.from_pandas(frame.index)
    if result.ndim == 1:
        series = made[0]
        series.name = result.name
        return series
    made.columns = result.columns
    return made


def cudf_dtype(request: Requested, dtype: Any, source: Any = None, meta: Any = None) -> Any:
    """The dtype that cuDF gives where pandas gives this one; None where it is the same."""
    if request.custom is not None:
        return None if meta is None else _custom_dtype(meta, request)
    known = _of_source(request, source)
    if known is not None:
        return known
    rule = REGISTRY[request.aggregation].result
    if rule == "float":
        return _WIDE_MEANS.get(str(dtype))
    return _WIDE.get(str(dtype)) if rule == "sum" else None


def _of_source(request: Requested, source: Any) -> Any:
    """The dtype of an output where cuDF has types that pandas has not, or accepts more."""
    cls = dtype_class(source)
    record = REGISTRY.get(request.aggregation)
    if record is None or source is None:
        return None
    if cls == "decimal" and type(source).__module__.startswith("cudf."):
        if record.result == "sum":
            return type(source)(type(source).MAX_PRECISION, source.scale)
        if record.result == "same" or record.name == "mean":
            return source
        if record.result == "float":
            return "float64"
    if record.result == "object":
        library = importlib.import_module("cudf")
        return library.ListDtype(source.categories.dtype if cls == "category" else source)
    if cls in ("string", "object") and record.result in ("same", "sum"):
        # pandas has several dtypes of strings, and takes cuDF's for its objects
        return source
    if record.name == "quantile" and cls == "bool":
        return "float64"
    return None


def _custom_dtype(meta: Any, request: Requested) -> Any:
    """The dtype that a ``dd.Aggregation`` returns for cuDF's group-bys."""
    library = importlib.import_module("cudf")
    assert request.custom is not None
    frame = meta_nonempty(meta).iloc[:1].reset_index(drop=True)
    column = frame if frame.ndim == 1 else frame[request.column]
    chunk = request.custom.chunk(column.groupby(library.Series([0]), sort=True))
    parts = chunk if isinstance(chunk, tuple) else (chunk,)
    merged = request.custom.agg(*(p.groupby(level=0, sort=True) for p in parts))
    merged = merged if isinstance(merged, tuple) else (merged,)
    finalize = request.custom.finalize
    return (finalize(*merged) if finalize else merged[0]).dtype


def numeric_labels(meta: Any, labels: Sequence[Any]) -> list[Any]:
    """The columns that ``numeric_only=True`` leaves."""
    if engine_name(meta) != DEVICE:
        numbers = set(meta._get_numeric_data().columns)
        return [label for label in labels if label in numbers]
    numeric = ("bool", "int", "uint", "float")
    return [label for label in labels if dtype_class(meta[label].dtype) in numeric]


def empty_matrix(frame: pd.DataFrame, keys: Sequence[Any], labels: Sequence[Any]) -> Any:
    """Metadata of ``cov`` and ``corr``, by pandas."""
    by = keys[0] if len(keys) == 1 else list(keys)
    zeros = pd.DataFrame(0.0, index=frame.index, columns=list(labels))
    return zeros.groupby(by, observed=True).cov(ddof=0).iloc[:0]
