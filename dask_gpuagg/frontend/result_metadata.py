"""The empty result of an aggregation: dtypes by pandas on made-up rows, labels as pandas' are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pandas as pd
from dask.dataframe.dispatch import meta_nonempty

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.host.dtypes import list_dtype
from dask_gpuagg.frontend.device_metadata import beside, empty_matrix, is_known, on_host
from dask_gpuagg.plan import CustomFunctions, Requested, short


class NoResult(Exception):
    """pandas has no result of an aggregation and a dtype, nor so its metadata.

    Parameters
    ----------
    request : Requested
    dtype : dtype
        Of the column.
    error : Exception
        pandas' own.
    """

    def __init__(self, request: Requested, dtype: Any, error: Exception) -> None:
        says = short((str(error).splitlines() or ["it is not implemented"])[0])
        super().__init__(f"pandas refuses {request.aggregation} of {dtype}: {says}")
        self.error = error


def outputs_meta(groupby: Any, requested: Sequence[Requested]) -> Any:
    """Empty columns, one per output, labelled by their positions.

    Parameters
    ----------
    groupby : dask.dataframe GroupBy
    requested : sequence of Requested

    Returns
    -------
    DataFrame
        Of the library of the input.

    Raises
    ------
    NoResult
    """
    frame, keys = _made_up(groupby)
    dropna = True if groupby.dropna is None else groupby.dropna
    by = keys[0] if len(keys) == 1 else keys
    columns = []
    for request in requested:
        # a tuple is a label here, which indexing a group-by would take for several
        if frame.ndim == 2:
            # the number of rows is the same for every column
            column = frame.iloc[:, 0] if request.column is None else frame[request.column]
        else:
            column = frame
        one = column.groupby(by, observed=True, dropna=dropna)
        if is_known(groupby.obj._meta, request):
            columns.append(one.size().iloc[:0])
        else:
            try:
                columns.append(_meta_of(one, request))
            except Exception as error:  # pandas raises any type
                raise NoResult(request, column.dtype, error) from error
    if not columns:  # the groups alone
        index = frame.iloc[:, :1] if frame.ndim == 2 else frame.to_frame()
        bare = index.groupby(by, observed=True, dropna=dropna).size()
        return bare.iloc[:0].to_frame().iloc[:, :0]
    result = pd.concat(columns, axis=1).iloc[:0]
    result.columns = pd.RangeIndex(len(columns))
    return beside(groupby.obj._meta, result, requested)


def shaped(outputs: Any, labels: Sequence[Hashable], scalar: bool, levels: int) -> Any:
    """The empty result: the first outputs under its labels.

    Parameters
    ----------
    outputs : DataFrame
        As ``outputs_meta`` gives them.
    labels : sequence of hashable
    scalar : bool
        Whether the result is a Series.
    levels : int
        Of the result's columns. A tuple may be a label of a single level.

    Returns
    -------
    DataFrame or Series
    """
    if scalar:
        series = outputs[0]
        series.name = labels[0]
        return series
    # by label: cuDF has them as they are, and no positions without them
    result = outputs[list(range(len(labels)))]
    result.columns = columns_of(labels, levels)
    return result


def columns_of(labels: Sequence[Hashable], levels: int) -> pd.Index:
    """Labels of a result's columns."""
    if levels > 1:
        return pd.MultiIndex.from_arrays(list(zip(*labels, strict=True)) or [[]] * levels)
    return pd.Index(labels, tupleize_cols=False)


def matrix_meta(groupby: Any, labels: Sequence[Hashable]) -> Any:
    """The empty result of ``cov`` and ``corr`` of columns."""
    frame, keys = _made_up(groupby)
    made = empty_matrix(frame, keys, labels)
    return beside(groupby.obj._meta, made, [Requested(c, "mean", c) for c in labels])


def _made_up(groupby: Any) -> tuple[Any, list[Any]]:
    """A row of pandas' of the frame's dtypes, and its keys."""
    # one row: the second one of nullable dtypes is null
    frame = on_host(meta_nonempty(groupby.obj._meta)).iloc[:1]
    by = [on_host(meta_nonempty(b._meta))[:1] if hasattr(b, "_meta") else b for b in groupby.by]
    by = [b.to_series(index=frame.index) if isinstance(b, pd.Index) else b for b in by]
    return frame, [frame[b] if frame.ndim == 2 and _is_column(b, frame) else b for b in by]


def _is_column(by: Any, frame: pd.DataFrame) -> bool:
    return isinstance(by, Hashable) and by in frame.columns


def _meta_of(grouped: Any, request: Requested) -> pd.Series:
    if request.custom is not None:
        return _meta_of_custom(grouped, request.custom)
    parameters = dict(request.parameters)
    if grouped.obj.dtype == object and request.aggregation in ("sum", "min", "max"):
        # the objects of Dask's non-empty metadata can be neither added nor compared
        return grouped.first().iloc[:0]
    if REGISTRY[request.aggregation].shapes:  # lists of the values that are kept
        made = pd.Series([], index=grouped.size().index[:0], dtype=object)
    elif request.aggregation == "list":
        index = grouped.size().index[:0]
        made = pd.Series([], index=index, dtype=list_dtype(grouped.obj.dtype))
    elif dtype_class(grouped.obj.dtype) == "decimal" and _keeps_moments(request.aggregation):
        # what pandas 3.1 says; pandas 3.0 refuses std and sem, and types var by the values
        made = grouped.size().astype("double[pyarrow]")
    else:
        name = REGISTRY[request.aggregation].exact or request.aggregation
        method: Callable[..., pd.Series] = getattr(grouped, name)
        made = method(**parameters)
    return made.iloc[:0]


def _keeps_moments(aggregation: str) -> bool:
    return REGISTRY[aggregation].states.get("decimal") == ("moments",)


def _meta_of_custom(grouped: Any, functions: CustomFunctions) -> pd.Series:
    chunk = functions.chunk(grouped)
    parts = chunk if isinstance(chunk, tuple) else (chunk,)
    levels = list(range(parts[0].index.nlevels))
    merged = functions.agg(*(p.groupby(level=levels) for p in parts))
    merged = merged if isinstance(merged, tuple) else (merged,)
    made: pd.Series = functions.finalize(*merged) if functions.finalize else merged[0]
    return made.iloc[:0]
