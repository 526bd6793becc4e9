"""The empty result of an aggregation: dtypes by pandas on a made-up row, labels as pandas' are.

Of cuDF collections too the row is pandas'; then cuDF's dtypes replace those that it has otherwise.

Dask makes the metadata of a group-by in the same way. That costs milliseconds for each of the nodes
that one query goes through on its way to a task graph, on a GPU more than the kernels of a small
frame. It depends on the dtypes of the input and on the specification alone, and is cached by them.
"""

import importlib
import pickle
from collections.abc import Callable, Hashable, Sequence
from itertools import zip_longest
from typing import Any

import pandas as pd
from dask._expr import Expr
from dask.base import tokenize
from dask.dataframe.dispatch import meta_nonempty
from dask.dataframe.utils import is_index_like, is_series_like

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.cache import Cache, OfObjects
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import DEVICE, HOST, dtypes_of, engine_name
from dask_gpuagg.engines.host.dtypes import list_dtype
from dask_gpuagg.plan import CustomFunctions, Requested, short

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

# operands that do not change a result's metadata
_IRRELEVANT = ("split_every", "split_out", "shuffle_method")

_results: Cache[Hashable, Any] = Cache(512)
_pickled: OfObjects[bytes] = OfObjects(64)


class NoResult(Exception):
    """pandas has no result of an aggregation and a dtype, and so no metadata; has its error."""

    def __init__(self, request: Requested, dtype: Any, error: Exception) -> None:
        says = short((str(error).splitlines() or ["it is not implemented"])[0])
        super().__init__(f"pandas refuses {request.aggregation} of {dtype}: {says}")
        self.error = error


def is_cudf(data: Any) -> bool:
    """Whether metadata is cuDF's, whose group-bys differ from pandas', and not pandas'."""
    return engine_name(data) == DEVICE


def outputs_meta(groupby: Any, requested: Sequence[Requested]) -> Any:
    """Empty columns of the input's library, one per output, labelled by their positions.

    Raises ``NoResult``.
    """
    meta = groupby.obj._meta
    frame, by = _made_up(groupby)
    dropna = True if groupby.dropna is None else groupby.dropna
    columns = []
    for request in requested:
        # a tuple is a label here, which indexing a group-by would take for several
        if frame.ndim == 1:
            column = frame
        else:
            # the number of rows is the same for every column
            column = frame.iloc[:, 0] if request.aggregation == "size" else frame[request.column]
        grouped = column.groupby(by, observed=True, dropna=dropna)
        is_known = is_cudf(meta) and (
            request.custom or _dtype_of_source(request, _source_dtype(meta, request)) is not None
        )
        if is_known:  # cuDF's dtype follows from the input's, without pandas
            columns.append(grouped.size().iloc[:0])
        else:
            try:
                columns.append(output_meta(grouped, request).iloc[:0])
            except Exception as error:  # pandas raises any type
                raise NoResult(request, column.dtype, error) from error
    if not columns:  # the groups alone
        index = frame.iloc[:, :1] if frame.ndim == 2 else frame.to_frame()
        bare = index.groupby(by, observed=True, dropna=dropna).size()
        return bare.iloc[:0].to_frame().iloc[:, :0]
    result = pd.concat(columns, axis=1).iloc[:0]
    result.columns = pd.RangeIndex(len(columns))
    return _as_input(meta, result, requested)


def shaped(outputs: Any, labels: Sequence[Hashable], scalar: bool, levels: int) -> Any:
    """The empty result: the first outputs of ``outputs_meta`` under its labels, or one as a Series.

    A tuple may be a label of a single level.
    """
    if scalar:
        series = outputs[0]
        series.name = labels[0]
        return series
    # by label: cuDF has them as they are, and no positions without them
    result = outputs[list(range(len(labels)))]
    if levels > 1:
        arrays = list(zip(*labels, strict=True)) or [[]] * levels
        result.columns = pd.MultiIndex.from_arrays(arrays)
    else:
        result.columns = pd.Index(labels, tupleize_cols=False)
    return result


def matrix_meta(groupby: Any, labels: Sequence[Hashable]) -> Any:
    """The empty result of ``cov`` and ``corr`` of columns."""
    frame, by = _made_up(groupby)
    zeros = pd.DataFrame(0.0, index=frame.index, columns=list(labels))
    zeros.columns.names = frame.columns.names
    result = zeros.groupby(by, observed=True).cov(ddof=0).iloc[:0]
    return _as_input(groupby.obj._meta, result, [Requested(c, "mean", c) for c in labels])


def numeric_labels(meta: Any, labels: Sequence[Any]) -> list[Any]:
    """The columns that ``numeric_only=True`` leaves."""
    if not is_cudf(meta):
        numbers = set(meta._get_numeric_data().columns)
        return [label for label in labels if label in numbers]
    numeric = ("bool", "int", "uint", "float")
    return [label for label in labels if dtype_class(meta[label].dtype) in numeric]


def _made_up(groupby: Any) -> tuple[Any, Any]:
    """A row of pandas' of the frame's dtypes, and the key or keys to group it by."""
    # one row: the second one of nullable dtypes is null
    frame = _on_host(meta_nonempty(groupby.obj._meta)).iloc[:1]
    by = [_on_host(meta_nonempty(b._meta))[:1] if hasattr(b, "_meta") else b for b in groupby.by]
    by = [b.to_series(index=frame.index) if isinstance(b, pd.Index) else b for b in by]
    labels = list(frame.columns) if frame.ndim == 2 else []
    keys = [frame[b] if isinstance(b, Hashable) and b in labels else b for b in by]
    return frame, keys[0] if len(keys) == 1 else keys


def _on_host(meta: Any) -> Any:
    return meta.to_pandas() if hasattr(meta, "to_pandas") else meta


def output_meta(grouped: Any, request: Requested) -> pd.Series:
    """The output of grouped rows of pandas."""
    if request.custom is not None:
        return _custom_meta(grouped, request.custom)
    name, column = request.aggregation, grouped.obj
    record = REGISTRY[name]
    if column.dtype == object and name in ("sum", "min", "max"):
        # the objects of Dask's non-empty metadata can be neither added nor compared
        return grouped.first()
    if record.shapes or name == "list":
        # sketches give lists too, of the values that they keep
        lists = object if record.shapes else list_dtype(column.dtype)
        return pd.Series([], index=grouped.size().index[:0], dtype=lists)
    if dtype_class(column.dtype) == "decimal" and record.states.get("decimal") == ("moments",):
        # as in pandas 3.1; pandas 3.0 refuses std and sem, and types var by the values
        return grouped.size().astype("double[pyarrow]")
    method: Callable[..., pd.Series] = getattr(grouped, record.exact or name)
    return method(**dict(request.parameters))


def _custom_meta(grouped: Any, functions: CustomFunctions, **by: Any) -> Any:
    """The result of a ``dd.Aggregation`` of grouped rows; ``by`` groups its chunks."""
    chunk = functions.chunk(grouped)
    parts = chunk if isinstance(chunk, tuple) else (chunk,)
    by = by or {"level": list(range(parts[0].index.nlevels))}
    merged = functions.agg(*(part.groupby(**by) for part in parts))
    merged = merged if isinstance(merged, tuple) else (merged,)
    return functions.finalize(*merged) if functions.finalize else merged[0]


def _source_dtype(meta: Any, request: Requested) -> Any:
    """The dtype of the column that an output reads; None if it reads none."""
    if request.aggregation == "size":
        return None
    return meta.dtype if meta.ndim == 1 else meta[request.column].dtype


def _as_input(meta: Any, result: Any, requested: Sequence[Requested]) -> Any:
    """An empty result of pandas in the library of the input's metadata, with its dtypes."""
    if not is_cudf(meta):
        return result
    library = importlib.import_module("cudf")
    columns = {}
    for i, request in enumerate(requested):
        values = result.iloc[:, i].reset_index(drop=True)
        dtype = cudf_dtype(request, values.dtype, _source_dtype(meta, request), meta)
        if dtype is None or isinstance(dtype, str):
            columns[i] = library.from_pandas(values if dtype is None else values.astype(dtype))
        else:  # pandas has no such dtype
            columns[i] = library.Series([], dtype=dtype)
    frame = library.DataFrame(columns)
    frame.index = library.from_pandas(result.index)
    frame.columns = result.columns
    return frame


def cudf_dtype(request: Requested, dtype: Any, source: Any = None, meta: Any = None) -> Any:
    """The dtype that cuDF gives where pandas gives this one; None where it is the same."""
    if request.custom is not None:
        return None if meta is None else _custom_dtype(meta, request)
    of_source = _dtype_of_source(request, source)
    if of_source is not None:
        return of_source
    rule = REGISTRY[request.aggregation].result
    if rule == "float":
        return _WIDE_MEANS.get(str(dtype))
    return _WIDE.get(str(dtype)) if rule == "sum" else None


def _dtype_of_source(request: Requested, source: Any) -> Any:
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
    grouped = column.groupby(library.Series([0]), sort=True)
    return _custom_meta(grouped, request.custom, level=0, sort=True).dtype


def cached_meta(original: Callable[[Any], Any], self: Any) -> Any:
    """The metadata of a group-by node, from the cache or made by Dask."""
    if engine_name(self.frame._meta) is None:
        return original(self)
    named = zip_longest(self._parameters, self.operands)
    relevant = [operand for name, operand in named if name not in _IRRELEVANT]
    return remembered((type(self), relevant), lambda: original(self))


def remembered(depends_on: Any, make: Callable[[], Any]) -> Any:
    """The result of a function, or that of an earlier call with equal inputs.

    These are tuples, lists and dictionaries of expressions, which are compared by schema, and of
    values. Where a value cannot be hashed, nothing is cached.
    """
    try:
        key = _frozen(depends_on)
        hash(key)
    except TypeError:
        return make()
    result = _results.get(key)
    if result is None:
        result = make()
        _results.put(key, result)
    return _copied(result)


def _copied(meta: Any) -> Any:
    """A shallow copy of what is cached, so that the caller may rename it."""
    if isinstance(meta, tuple):
        return tuple(map(_copied, meta))
    # a copy by cuDF costs as much as is saved, and dask-cudf does not rename metadata
    return meta.copy(deep=False) if engine_name(meta) == HOST else meta


class NamedByBytes(Expr):
    """A node with metadata of cuDF among its operands, which are named by their cached bytes.

    Dask would copy them to the host and back, twice, for each node that is made.
    """

    def __dask_tokenize__(self) -> Any:
        if not self._determ_token:
            operands = map(_by_bytes, self.operands)
            self._determ_token = tokenize(type(self), *operands, ensure_deterministic=True)
        return self._determ_token


def _by_bytes(operand: Any) -> Any:
    if isinstance(operand, dict):
        return {name: _by_bytes(value) for name, value in operand.items()}
    if not is_cudf(operand):
        return operand
    pickled = _pickled.of(operand, lambda: pickle.dumps(operand, pickle.HIGHEST_PROTOCOL))
    return ("dask_gpuagg.metadata", pickled)


def _frozen(operand: Any) -> Hashable:
    """An operand as a hashable key; raises TypeError where there is none."""
    if isinstance(operand, Expr):
        return _schema(operand._meta)
    if isinstance(operand, list | tuple):
        return (type(operand), *map(_frozen, operand))
    if isinstance(operand, dict):
        pairs = ((_frozen(key), _frozen(value)) for key, value in operand.items())
        return (dict, *pairs)
    # equal values of several types are not the same label
    return type(operand), operand


def _schema(meta: Any) -> Hashable:
    if is_index_like(meta):
        return _levels(meta)
    if is_series_like(meta):
        columns, names = [(meta.name, meta.dtype)], ()
    # not by ``is_dataframe_like``, which asks for ``dtypes``
    elif engine_name(meta) is not None and getattr(meta, "ndim", 0) == 2:
        columns, names = dtypes_of(meta), tuple(meta.columns.names)
    else:
        raise TypeError("a value that has no schema")
    return (type(meta), names, _pairs(columns), _levels(meta.index))


def _levels(index: Any) -> Hashable:
    levels = list(index.dtypes.items()) if index.nlevels > 1 else [(index.name, index.dtype)]
    return (type(index), tuple(index.names), _pairs(levels))


def _pairs(columns: list[tuple[Any, Any]]) -> Hashable:
    if any(dtype_class(dtype) == "category" for _, dtype in columns):
        raise TypeError("comparing categories costs as much as it saves")
    return tuple((type(label), label, str(dtype), dtype) for label, dtype in columns)
