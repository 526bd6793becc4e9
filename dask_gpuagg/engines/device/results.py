"""Finished groups as the metadata promises them: labels, dtypes, index, order, all categories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import cudf
import cupy as cp
import numpy as np
import pandas as pd
import pylibcudf as plc
from cudf.core.column import ColumnBase
from cudf.core.column_accessor import ColumnAccessor
from cudf.utils.dtypes import dtype_to_pylibcudf_type

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.cache import Cache, OfObjects
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.device.columns import (
    BOOL8,
    NOWHERE,
    array_of,
    as_column,
    as_type,
    binary,
    column_at,
    column_of,
    floats_of,
    gather,
    names_of,
    series_from,
    series_of,
    sorted_table,
    table,
    take_rows,
    to_series,
    unchecked,
    view,
)
from dask_gpuagg.engines.device.groups import Grouping, matches
from dask_gpuagg.plan import Output, Plan

# Classes whose means are of the same class; their spread is a float.
_OWN_MEANS = ("datetime", "timedelta", "decimal")


@dataclass(frozen=True)
class Shape:
    """Labels and dtypes that metadata promise of a result, read once when the query is planned.

    ``index`` has the names of the index levels; ``labels`` the column labels, or the name of a
    Series; ``dtypes`` are of the columns. A MultiIndex of cuDF has a name beside its levels' names.
    """

    index: tuple[Any, ...]
    labels: Any
    dtypes: tuple[Any, ...]
    series: bool
    index_name: Any = None


def shape_of(meta: Any) -> Shape:
    """The shape of results with this metadata; a shape is its own."""
    if isinstance(meta, Shape):
        return meta
    names = tuple(meta.index.names)
    if meta.ndim == 1:
        return Shape(names, meta.name, (meta.dtype,), True, meta.index.name)
    if isinstance(meta, cudf.DataFrame):
        # not by ``dtypes``, of which cuDF makes a pandas object
        dtypes = tuple(column.dtype for column in meta._data.values())
    else:  # the examples of a warm-up have metadata of pandas
        dtypes = tuple(meta.dtypes)
    return Shape(names, meta.columns, dtypes, False, meta.index.name)


def index_of(keys: Sequence[Any], names: Sequence[Any], name: Any = None) -> Any:
    """Index of the groups by their key Series; several keys are a MultiIndex, which has a name."""
    return _index_of([key._column for key in keys], names, name)


def _index_of(keys: Sequence[ColumnBase], names: Sequence[Any], name: Any) -> Any:
    """Index of key columns as they are: levels and codes are factorized when they are asked for."""
    if len(keys) == 1:
        return cudf.Index._from_column(keys[0], name=names[0])
    index = cudf.MultiIndex._from_data(ColumnAccessor(dict(enumerate(keys)), verify=False))
    index.names, index.name = list(names), name
    return index


def of_plan(shape: Shape, plan: Plan) -> Shape:
    """The shape with the dtypes that outputs have by the plan's columns, promised or not."""
    outputs = zip(plan.outputs, shape.dtypes, strict=True)
    return replace(shape, dtypes=tuple(_dtype_of(o, plan, promised) for o, promised in outputs))


def _dtype_of(output: Output, plan: Plan, promised: Any) -> Any:
    if output.column is None or output.custom is not None:
        return promised
    source = plan.columns[output.column].dtype
    cls, record = dtype_class(source), REGISTRY[output.aggregation]
    rule = record.result
    if rule == "same":
        return source
    if rule == "sum":
        summed = {"bool": "int"}.get(cls, cls)
        if summed in ("int", "uint"):
            # cuDF's sums of unsigned integers are signed
            wide = dtype_class(promised) in ("int", summed) and promised.itemsize == 8
            return promised if wide else np.dtype(f"{summed}64")
        if dtype_class(promised) != summed:
            return source
        if summed == "timedelta" or (summed == "float" and source.itemsize > promised.itemsize):
            return source
    if rule == "float":
        if cls in _OWN_MEANS and record.power is None:
            # the promised precision of decimals is cuDF's; it is kept where values fit it
            return promised if cls == dtype_class(promised) == "decimal" else source
        # quantiles that are one of the values are of their class
        return promised if dtype_class(promised) in ("float", cls) else np.dtype("float64")
    return promised


def shaped(groups: Any, plan: Plan, shape: Shape) -> Any:
    """One row per group: labels, dtypes, index and order that metadata and plan promise."""
    names = [f"k{i}" for i in range(len(plan.keys))]
    if plan.sort:
        groups = sorted_table(groups, names)
    columns = [groups._data[n] for n in names]
    for i, dtype in enumerate(shape.dtypes):
        column = column_at(groups, f"o{i}")
        columns.append((column if column.dtype == dtype else _cast(column, dtype))._column)
    return _framed(columns, shape)


def _framed(columns: Sequence[ColumnBase], shape: Shape) -> Any:
    """A DataFrame or Series of the keys' columns and then the outputs'."""
    keys = len(columns) - len(shape.dtypes)
    index = _index_of(columns[:keys], shape.index, shape.index_name)
    if shape.series:
        return series_of(columns[keys], shape.labels, index)
    return unchecked(cudf.DataFrame, _labelled(shape.labels, columns[keys:]), index)


def result_of(
    keys: Sequence[plc.Column], outputs: Sequence[plc.Column], dtypes: Sequence[Any], shape: Shape
) -> Any:
    """The DataFrame or Series of one row per group, which shares the memory of the columns.

    Keys, of these dtypes, are without NaN; the shape has dtypes of libcudf's own.
    """
    columns = [as_column(key, dtype) for key, dtype in zip(keys, dtypes, strict=True)]
    for output, promised in zip(outputs, shape.dtypes, strict=True):
        # where the values are other numbers than promised
        if promised.kind in "biuf":
            output = as_type(output, dtype_to_pylibcudf_type(promised))
        columns.append(as_column(output))
    return _framed(columns, shape)


def _labelled(labels: pd.Index, columns: Sequence[ColumnBase]) -> ColumnAccessor:
    """Columns as a frame has them, by their labels."""
    labelled = _seen.of(labels, lambda: _labelled_of(labels))
    return ColumnAccessor(
        dict(zip(labelled.names, columns, strict=True)),
        **labelled.options,
        verify=False,
        # a user may name them: those of the metadata stay as they are
        pandas_index=labels.view() if labelled.is_ordered else None,
    )


class _Labelled(NamedTuple):
    """Labels as cuDF has them: it would look for duplicates in them each time."""

    names: tuple[Any, ...]
    options: dict[str, Any]
    # whether levels have an order that cuDF does not give them itself
    is_ordered: bool


# Workers unpickle equal labels for each task.
_labels: Cache[tuple[Any, ...], _Labelled] = Cache(256)
_seen: OfObjects[_Labelled] = OfObjects(16)


def _labelled_of(labels: pd.Index) -> _Labelled:
    levels = labels.levels if isinstance(labels, pd.MultiIndex) else [labels]
    dtypes = tuple(level.dtype for level in levels)
    key = (type(labels), tuple(labels), tuple(labels.names), dtypes, *map(tuple, levels))

    def make() -> _Labelled:
        frame = cudf.DataFrame({i: cudf.Series([], dtype="int8") for i in range(len(labels))})
        frame.columns = labels
        data = frame._data
        options = {
            "multiindex": data.multiindex,
            "rangeindex": data.rangeindex,
            "level_names": data.level_names,
            "label_dtype": data.label_dtype,
            "level_dtypes": data._level_dtypes,
        }
        own = ColumnAccessor(dict(data), **options, verify=False).to_pandas_index
        return _Labelled(data.names, options, not _are_same(own, labels))

    return _labels.of(key, make)


def _are_same(own: pd.Index, labels: pd.Index) -> bool:
    """Whether labels are equal, and their levels in dtype and order."""
    levels = zip(getattr(own, "levels", []), getattr(labels, "levels", []), strict=True)
    return bool(own.identical(labels)) and all(a.identical(b) for a, b in levels)


def _cast(column: Any, dtype: Any) -> Any:
    if isinstance(dtype, pd.DatetimeTZDtype) and not isinstance(column.dtype, pd.DatetimeTZDtype):
        # means of zoned datetimes are made of their instants
        return to_series(view(column.astype(f"datetime64[{dtype.unit}]")), dtype)
    own, promised = dtype_class(column.dtype), dtype_class(dtype)
    if own == promised == "decimal":
        return _decimals(column, dtype)
    if own in ("category", "decimal", "other"):
        return column  # categories, precisions and lists are known only now
    if {own, promised} <= {"string", "object"}:
        return column  # in cuDF all are strings, and each stays what it is
    if own == "float" and promised in ("bool", "int", "uint"):
        return column  # it would lose fractions
    return column.astype(dtype)


def _decimals(column: Any, dtype: Any) -> Any:
    """Decimals in the promised type, or as they are where one of them does not fit it."""
    values = view(column)
    decimals = plc.unary.cast(values, dtype_to_pylibcudf_type(dtype))
    differs = binary("NOT_EQUAL", plc.unary.cast(decimals, values.type()), values, BOOL8)
    return column if array_of(differs, False).any() else to_series(decimals, dtype)


def values_of(counts: Any, plan: Plan, meta: Any) -> Any:
    """``value_counts``: one row per group and distinct value, frequent values first."""
    names = [name for name in names_of(counts) if name.startswith("k")]
    if dtype_class(counts[names[-1]].dtype) == "category":
        counts = _every_category(counts, names)
    counts = counts.sort_values(
        [*names[:-1], "n"],
        ascending=[True] * (len(names) - 1) + [False],
        na_position="last",
        ignore_index=True,
    )
    result = counts["n"].astype(meta.dtype if dtype_class(meta.dtype) == "int" else "int64")
    result.index = index_of([counts[n] for n in names], meta.index.names, meta.index.name)
    result.name = meta.name
    return result


def _every_category(counts: Any, names: list[str]) -> Any:
    """Every group with every category of the values, as pandas counts categorical values."""
    values = counts[names[-1]]
    size = len(values.dtype.categories)
    groups = counts[names[:-1]].drop_duplicates(ignore_index=True)
    row = cp.arange(len(groups) * size, dtype=cp.int32)
    columns = {n: take_rows(groups[n], row // size) for n in names[:-1]}
    codes = plc.unary.cast(column_of(row % size), view(values).type())
    columns[names[-1]] = to_series(codes, values.dtype)
    rows, places = matches([counts[n] for n in names], [columns[n] for n in names])
    dense = cp.zeros(len(row), dtype=cp.int64)
    dense[places] = array_of(view(counts["n"]))[rows]
    return table(columns | {"n": series_from(dense)})


def matrix_of(groups: Any, plan: Plan, meta: Any) -> Any:
    """``cov`` and ``corr``: one row per group and column, one column per column."""
    names = [f"k{i}" for i in range(len(plan.keys))]
    if plan.sort:
        groups = sorted_table(groups, names)
    n, m = len(groups), len(plan.columns)
    output = plan.outputs[0]
    cube, filled = cp.empty((n, m, m)), cp.empty((n, m, m), dtype=bool)
    for i, use in enumerate(plan.states):
        state = {f: floats_of(view(groups[f"s{i}.{f}"])) for f in ("n", "cxx", "cxy", "cyy")}
        if output.aggregation == "cov":
            freedom = state["n"] - dict(output.parameters).get("ddof", 1)
            cells, has_value = state["cxy"] / freedom, freedom > 0
        else:
            cells = cp.clip(state["cxy"] / cp.sqrt(state["cxx"] * state["cyy"]), -1.0, 1.0)
            has_value = state["n"] > 1
        a, b = use.columns
        cube[:, a, b] = cube[:, b, a] = cells
        filled[:, a, b] = filled[:, b, a] = has_value
    row = cp.arange(n * m, dtype=cp.int32)
    repeated = [take_rows(groups[k], row // m) for k in names]
    # few labels, repeated by row
    labels = cudf.Series(pd.Series(list(meta.columns)))
    repeated.append(take_rows(labels, row % m))
    columns = {}
    for j in range(m):
        pair = (cp.ascontiguousarray(cells[:, :, j].ravel()) for cells in (cube, filled))
        values, has_value = map(series_from, pair)
        columns[j] = values.where(has_value, None)
    result = cudf.DataFrame(columns)
    result.index = index_of(repeated, meta.index.names, meta.index.name)
    result.columns = meta.columns.view()
    return result


def complete(groups: Any, keys: Sequence[Any], dropna: bool) -> Any:
    """Append the groups that no row has, with null for all that is not a key.

    ``groups`` has one row per group that has rows, ``keys`` are of all rows, those with null keys
    included. With ``dropna`` null is no level of a key.
    """
    categorical = [dtype_class(k.dtype) == "category" for k in keys]
    if not any(categorical):
        return groups
    expected = _expected(keys, categorical, dropna)
    names = [f"k{i}" for i in range(len(keys))]
    observed, _ = matches(expected, [groups[n] for n in names])
    is_missing = cp.ones(len(expected[0]), dtype=bool)
    is_missing[observed] = False
    missing = cp.flatnonzero(is_missing).astype(cp.int32)
    rows = cp.full(len(groups) + len(missing), NOWHERE, dtype=cp.int32)
    rows[: len(groups)] = cp.arange(len(groups), dtype=cp.int32)
    columns = {}
    for name in names_of(groups):
        column = view(groups[name])
        if name in names:
            rest = gather(view(expected[names.index(name)]), missing)
            completed = plc.concatenate.concatenate([column, rest])
        elif len(groups):
            completed = gather(column, rows)
        else:
            completed = plc.Column.all_null_like(column, len(rows))
        columns[name] = to_series(completed, groups[name].dtype)
    return table(columns)


def _expected(keys: Sequence[Any], categorical: Sequence[bool], dropna: bool) -> list[Any]:
    """Every combination of the categories, with every combination of the other keys that occurs."""
    levels = {i: _levels(key, dropna) for i, key in enumerate(keys) if categorical[i]}
    others = [i for i in range(len(keys)) if i not in levels]
    product, repeats = math.prod(level.size() for level in levels.values()), 1
    if others:
        combinations = Grouping([keys[i] for i in others], keep_nulls=not dropna).table([])
        repeats = len(combinations)
    number = cp.arange(product * repeats)
    columns = {}
    for j, i in enumerate(others):
        columns[i] = take_rows(combinations[f"k{j}"], (number // product).astype(cp.int32))
    rest = number % product
    for i in reversed(levels):
        size = levels[i].size()
        codes = (rest % size).astype(cp.int32)
        columns[i] = to_series(gather(levels[i], codes), keys[i].dtype)
        rest //= size
    return [columns[i] for i in range(len(keys))]


def _levels(key: Any, dropna: bool) -> plc.Column:
    """Codes of all categories of a key; null is one more where it occurs."""
    codes, numbers = view(key), cp.arange(len(key.dtype.categories), dtype=cp.int32)
    every = plc.unary.cast(column_of(numbers), codes.type())
    if dropna or not codes.null_count():
        return every
    return gather(every, cp.append(numbers, cp.int32(NOWHERE)))
