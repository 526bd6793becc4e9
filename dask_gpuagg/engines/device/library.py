"""States and outputs of numbered rows: sorted by our kernels, or by libcudf and CuPy.

These need more than the atomics of a pass: strings, decimal128 to be compared, labels of rows,
pairs of columns, distinct values and whole groups, and the functions of users, which get cuDF's
group-bys. Fields of states are those of the host engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import cudf
import cupy as cp
import numpy as np
import pandas as pd
import pylibcudf as plc
from pylibcudf.utils import _get_stream

from dask_gpuagg.aggregations import REGISTRY, Kind
from dask_gpuagg.cuda.algorithms import sgb
from dask_gpuagg.cuda.runtime import compiler
from dask_gpuagg.cuda.runtime.compiler import KernelsCompiling, KernelsUnavailable, waiting
from dask_gpuagg.dtypes import NUMERIC, TEMPORAL, dtype_class
from dask_gpuagg.engines.device import libcudf
from dask_gpuagg.engines.device.aggregator import waits
from dask_gpuagg.engines.device.columns import (
    BOOL8,
    FLOAT64,
    INT64,
    LIST,
    NOWHERE,
    array_of,
    binary,
    column_at,
    column_of,
    floats_of,
    gather,
    keys_of,
    names_of,
    nans_to_nulls,
    present,
    series_from,
    table,
    take_rows,
    to_series,
    view,
)
from dask_gpuagg.engines.device.groups import Grouping, Numbering, counts_of, values_of
from dask_gpuagg.engines.device.results import index_of
from dask_gpuagg.engines.device.tables import of_categories
from dask_gpuagg.plan import Output, Plan, Sketched, StateUse
from dask_gpuagg.states import STATES

T = TypeVar("T")
Fields = dict[str, Any]


def state_of_rows(
    numbering: Numbering, use: StateUse, columns: Sequence[Any], index: Any
) -> Fields:
    """One state of rows: its fields, one row per group.

    ``columns`` are the state's inputs and ``index`` the labels, for ``idxmin`` and ``idxmax``, of
    all rows.
    """
    if use.custom is not None:
        return _custom_fields(numbering, use.custom.chunk, columns)
    if use.state == "comoments":
        x, y = columns
        some = numbering.where(present(numbering.take(x)) & present(numbering.take(y)))
        xs, ys = floats_of(some.take(x)), floats_of(some.take(y))
        # a row is a part of one pair
        one_each = {"n": cp.ones(len(xs)), "mx": xs, "my": ys, "cxx": 0.0, "cxy": 0.0, "cyy": 0.0}
        return _comoments(some, one_each)
    (values,) = columns
    if use.state in ("idxmin", "idxmax"):
        nulls = numbering.where(~present(numbering.take(values))).size
        labels = index.to_series().reset_index(drop=True)
        return _labelled_extreme(numbering, use.state, values, labels, nulls)
    return _reduced(numbering, use.state, values)


def state_of_partials(numbering: Numbering, use: StateUse, stacked: Any, prefix: str) -> Fields:
    """One state of partials, whose fields are the columns of a table with this prefix."""
    if use.custom is not None:
        parts = [stacked[name] for name in names_of(stacked) if name.startswith(prefix)]
        return _custom_fields(numbering, use.custom.agg, parts)
    fields = {name: stacked[prefix + name] for name in STATES[use.state].fields}
    if use.state == "comoments":
        some = numbering.where(floats_of(numbering.take(fields["n"])) > 0)
        return _comoments(some, {n: floats_of(some.take(part)) for n, part in fields.items()})
    if use.state in ("idxmin", "idxmax"):
        nulls = numbering.sums(floats_of(numbering.take(fields["nulls"]))).astype(cp.int64)
        return _labelled_extreme(numbering, use.state, fields["value"], fields["label"], nulls)
    return _reduced(numbering, use.state, *fields.values())


def _reduced(numbering: Numbering, state: str, values: Any) -> Fields:
    """Extremes, or texts joined in the order of the rows."""
    (field,) = STATES[state].fields
    taken = numbering.take(values)
    if state != "concat":
        column = numbering.reduce(taken, getattr(plc.aggregation, state)())
        return {field: to_series(column, values.dtype)}
    lists = numbering.reduce(taken, plc.aggregation.collect_list(plc.types.NullPolicy.EXCLUDE))
    text = plc.Scalar.from_py("")
    joined = plc.strings.combine.join_list_elements(
        lists,
        text,
        text,
        text,
        plc.strings.combine.SeparatorOnNulls.YES,
        plc.strings.combine.OutputIfEmptyList.NULL_ELEMENT,
    )
    return {field: to_series(joined, values.dtype)}


def _labelled_extreme(
    numbering: Numbering, state: str, values: Any, labels: Any, nulls: cp.ndarray
) -> Fields:
    """The first best value and its label: libcudf's own takes any of several best rows."""
    some = numbering.where(present(numbering.take(values)))
    # NaN is best only where there is nothing else
    comparable = nans_to_nulls(some.take(values))
    aggregation = plc.aggregation.min() if state == "idxmin" else plc.aggregation.max()
    best = gather(some.reduce(comparable, aggregation), some.codes)
    is_best = binary("NULL_EQUALS", comparable, best, BOOL8)
    hits = some.where(array_of(is_best))
    rows = array_of(hits.reduce(column_of(hits.rows), plc.aggregation.min()), NOWHERE)
    return {
        "value": take_rows(values, rows),
        "label": take_rows(labels, rows),
        "nulls": series_from(nulls),
    }


def _comoments(numbering: Numbering, parts: Mapping[str, Any]) -> Fields:
    """The state of parts: Chan, Golub, LeVeque 1979, equation 1.5b, for any number at once."""
    n, codes = parts["n"], numbering.codes
    total = numbering.sums(n)
    merged = {"n": total.astype(cp.int64)}
    distances = {}
    for name in ("mx", "my"):
        # relative to a mean of the group, so that equal means stay equal
        reference = cp.full(numbering.n, cp.nan)
        reference[codes] = parts[name]
        mean = reference + numbering.sums(n * (parts[name] - reference[codes])) / total
        merged[name], distances[name] = mean, parts[name] - mean[codes]
    dx, dy = distances["mx"], distances["my"]
    for name, product in (("cxx", dx * dx), ("cxy", dx * dy), ("cyy", dy * dy)):
        merged[name] = numbering.sums(parts[name] + n * product)
    return {name: series_from(values) for name, values in merged.items()}


def _custom_fields(
    numbering: Numbering, function: Callable[..., Any], columns: Sequence[Any]
) -> Fields:
    """What a function of a ``dd.Aggregation`` makes of grouped columns, a field per Series."""
    grouped = []
    for values in columns:
        part = to_series(numbering.take(values), values.dtype)
        part.name, part.index = values.name, cudf.Index(numbering.codes)
        grouped.append(part.groupby(level=0, sort=True))
    returned = function(*grouped)
    fields = {}
    for i, part in enumerate(returned if isinstance(returned, tuple) else (returned,)):
        codes = array_of(view(part.index.to_series()))
        fields[str(i)] = to_series(numbering.spread(codes, view(part)), part.dtype)
    return fields


def _finished_state(output: Output, fields: Fields, index: Any) -> Any:
    """One output from a state of libcudf's; ``index`` has the keys, for the functions of users."""
    if output.custom is not None:
        columns = [values.copy() for values in fields.values()]
        for column in columns:
            column.index = index
        finalize = output.custom.finalize
        return columns[0] if finalize is None else finalize(*columns)
    name = output.aggregation
    if name in ("idxmin", "idxmax"):
        skipna = dict(output.parameters).get("skipna", True)
        if skipna and view(fields["value"]).null_count():
            raise ValueError(f"{name} with skipna=True encountered all NA values in a group.")
        if not skipna and (array_of(view(fields["nulls"]), 0) > 0).any():
            raise ValueError(f"{name} with skipna=False encountered an NA value.")
        return fields["label"]
    (values,) = fields.values()
    return values.fillna("") if name == "sum" else values


def can_sort() -> bool:
    """Whether the kernels that sort are compiled, or can be; if not, libcudf's group-by serves."""
    kernels = sgb.launcher(_get_stream()).kernels
    if not compiler.waits():
        return kernels.begin()
    try:
        kernels.prepare()
    except KernelsUnavailable as error:
        libcudf.cause_of(error)
        return False
    return True


# libcudf's sort takes several times the memory of its rows, which may not suffice for so many.
_WAITS_FROM_ROWS = 1 << 26


def by_kernels(make: Callable[[], T], rows: int) -> T | None:
    """Call ``make`` with the kernels that sort; None while, or where, they cannot run.

    They are waited for where there are many rows to be sorted.
    """
    with waiting(waits() or rows >= _WAITS_FROM_ROWS):
        if not can_sort():
            return None
        try:
            return make()
        except KernelsCompiling:
            return None
        except KernelsUnavailable as error:  # memory was full when a kernel was to be loaded
            libcudf.cause_of(error)
    return None


def _parameters_of(output: Output, ticks: bool) -> tuple[Any, Any]:
    """Quantile and interpolation; for ticks the exact midpoint, else what cuDF's own median is."""
    parameters = dict(output.parameters)
    between = "midpoint" if ticks and output.aggregation == "median" else "linear"
    return parameters.get("q", 0.5), parameters.get("interpolation", between)


def _is_sorted(output: Output, dtype: Any, rows: int) -> bool:
    """Whether the kernels that sort make an output; the others are libcudf's and CuPy's."""
    if rows > sgb.ROWS_AT_MOST:
        return False
    if output.aggregation == "list":
        # libcudf has no lists of categories, nor of times in a zone
        return isinstance(dtype, np.dtype | pd.StringDtype)
    if dtype_class(dtype) not in (*NUMERIC, *TEMPORAL):
        return False
    q, between = _parameters_of(output, False)
    is_plain = isinstance(q, int | float) and 0 <= q <= 1 and between in sgb.BETWEEN
    return output.aggregation == "nunique" or (output.aggregation in _QUANTILES and is_plain)


def _output_of_rows(output: Output, numbering: Numbering, values: Any, paired: bool) -> Any:
    """One output from the values of all distinct pairs, or of whole rows."""
    name, dtype, rows = output.aggregation, values.dtype, len(values)
    # quantiles of ticks are ticks
    ticks = dtype_class(dtype) in TEMPORAL
    q, between = _parameters_of(output, ticks)

    def by_sorting() -> plc.Column:
        in_order = numbering.sorted(rows)
        if name == "list":
            return in_order.list(view(values))
        if name == "nunique":
            return in_order.nunique(view(values))
        return in_order.quantile(view(values), q, between)

    column = by_kernels(by_sorting, rows) if _is_sorted(output, dtype, rows) else None
    match name:
        case "nunique":
            return (
                _distinct_values(numbering, values, paired) if column is None else to_series(column)
            )
        case "list" | "unique":
            if dtype_class(dtype) == "category":
                values = of_categories(values)
            if column is None:
                collect = plc.aggregation.collect_list(plc.types.NullPolicy.INCLUDE)
                column = numbering.reduce(numbering.take(values), collect)
            return to_series(column, cudf.ListDtype(values.dtype))
        case "median" | "quantile":
            if column is None:
                return _quantile(numbering, values, q, between)
            return to_series(column, dtype) if ticks else to_series(column)
        case other:
            raise AssertionError(f"the planner let {other!r} through to the device")


# Of more rows, with their order and their groups beside them, a device has hardly the memory.
_SORTED_ROWS = 1 << 30
_QUANTILES = ("median", "quantile")


def _distinct_values(numbering: Numbering, values: Any, paired: bool) -> Any:
    """Number of distinct values other than null of each group."""
    if not paired:  # one row of each pair, found by hashing
        rows = plc.stream_compaction.distinct_indices(
            plc.Table([column_of(numbering.codes), numbering.take(values)]),
            plc.stream_compaction.DuplicateKeepOption.KEEP_ANY,
            plc.types.NullEquality.EQUAL,
            plc.types.NanEquality.ALL_EQUAL,
        )
        numbering = numbering.where(array_of(rows))
    count = plc.aggregation.count(plc.types.NullPolicy.EXCLUDE)
    return to_series(numbering.reduce(numbering.take(values), count))


def _quantile(numbering: Numbering, values: Any, q: float, interpolation: str) -> Any:
    taken = numbering.take(values)
    if taken.size() > _SORTED_ROWS:
        raise OverflowError(
            f"a quantile of {taken.size():,} rows in one partition: at most {_SORTED_ROWS:,} are"
            " sorted. Repartition the collection into smaller partitions"
        )
    ticks, q = dtype_class(values.dtype) in TEMPORAL, min(max(q, 0.0), 1.0)
    # float64 would lose the last digits of ticks
    numbers = plc.unary.bit_cast(taken, INT64) if ticks else plc.unary.cast(taken, FLOAT64)
    ascending, starts = _ascending(numbering, numbers)
    sizes = cp.diff(starts)
    filled = cp.flatnonzero(sizes)
    place = q * (sizes[filled] - 1)
    lower = cp.floor(place).astype(cp.int64)
    share = place - lower
    start = starts[filled] + lower
    low, high = ascending[start], ascending[start + (share > 0)]
    # infinities have no distance
    gap = cp.where(low == high, low.dtype.type(0), high - low)
    match interpolation:
        case "linear":
            between = low + (gap * share).astype(low.dtype)
        case "lower":
            between = low
        case "higher":
            between = high
        case "midpoint":
            between = low + (gap // 2 if ticks else gap / 2)
        case "nearest":
            between = cp.where((share > 0.5) | ((share == 0.5) & (q > 0.5)), high, low)
        case other:
            raise ValueError(f"unknown interpolation {other!r}")
    quantiles = column_of(between)
    if not ticks:
        return to_series(numbering.spread(filled, quantiles))
    return to_series(
        numbering.spread(filled, plc.unary.bit_cast(quantiles, taken.type())), values.dtype
    )


def sketch_entries(keys: Sequence[Any], values: Any, sketch: Sketched, keep_nulls: bool) -> Any:
    """The best values of rows, as a table of keys and ``v``: at least one row for each group."""
    groups, numbering = number_rows(keys, keep_nulls)
    codes, best = _best(numbering, values, sketch.aggregation, **dict(sketch.parameters))
    missing = cp.flatnonzero(counts_of(codes, len(groups)) == 0)
    rows = cp.concatenate([codes, missing]).astype(cp.int32)
    columns = {name: take_rows(groups[name], rows) for name in names_of(groups)}
    if len(codes) == 0:
        column = plc.Column.all_null_like(view(values), len(rows))
    else:
        nowhere = cp.full(len(missing), NOWHERE, dtype=cp.int32)
        places = cp.concatenate([cp.arange(len(codes), dtype=cp.int32), nowhere])
        column = gather(column_of(best), places)
    return table(columns | {"v": to_series(column, values.dtype)})


def _best_lists(output: Output, numbering: Numbering, values: Any) -> Any:
    """A list of each group's best values, of no value an empty one."""
    codes, best = _best(numbering, values, output.aggregation, **dict(output.parameters))
    offsets = cp.zeros(numbering.n + 1, dtype=cp.int32)
    offsets[1:] = cp.cumsum(counts_of(codes, numbering.n))
    children = [column_of(offsets), column_of(best)]
    lists = plc.Column(LIST, numbering.n, None, None, 0, 0, children)
    return to_series(lists, cudf.ListDtype(values.dtype))


def _best(
    numbering: Numbering, values: Any, aggregation: str, n: int = 5
) -> tuple[cp.ndarray, cp.ndarray]:
    """Group numbers, ascending, and values, of each group the best one first."""
    column, rows = nans_to_nulls(view(values)), len(values)
    words = None
    if rows <= sgb.ROWS_AT_MOST:
        words = by_kernels(lambda: numbering.sorted(rows).ascending(column), rows)
    ascending, starts = words or _ascending(numbering, gather(column, numbering.rows))
    starts = starts.astype(cp.int64)
    sizes = cp.minimum(cp.diff(starts), min(n, NOWHERE))
    ends = cp.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    codes = cp.searchsorted(ends, cp.arange(total), side="right")
    place = cp.arange(total) - (ends - sizes)[codes]
    largest = aggregation == "nlargest"
    at = starts[codes + 1] - 1 - place if largest else starts[codes] + place
    taken = ascending[at]
    dtype = getattr(values.dtype, "numpy_dtype", values.dtype)
    return codes, taken if words is None else values_of(taken, dtype)


def _ascending(numbering: Numbering, taken: plc.Column) -> tuple[cp.ndarray, cp.ndarray]:
    """The values of each group in ascending order, and where each begins; nulls are left out."""
    filled = present(taken)
    some, values = numbering.where(filled), array_of(taken, 0)[filled]
    order = cp.argsort(values)
    order = order[cp.argsort(some.codes[order], kind="stable")]
    starts = cp.zeros(numbering.n + 1, dtype=cp.int64)
    starts[1:] = cp.cumsum(some.size)
    return values[order], starts


def number_rows(keys: Sequence[Any], keep_nulls: bool = True) -> tuple[Any, Numbering]:
    """The groups of some rows, and the rows' numbers."""
    grouping = Grouping(keys, keep_nulls)
    grouping.aggregator.encode()
    groups = grouping.table([])
    codes = grouping.aggregator.codes
    if codes is None:  # libcudf has made the groups
        return groups, Numbering.of_keys(keys, keys_of(groups))
    return groups, Numbering(len(groups), of_rows=codes)


def with_outputs(
    groups: Any,
    tables: Mapping[str, Any],
    plan: Plan,
    names: Sequence[Any],
    numberings: dict[str, Numbering],
) -> Any:
    """The groups with every output, those that no row has included.

    ``names`` are those of the keys; ``numberings`` of the rows of some tables are known already.
    """
    keys, labels = keys_of(groups), names_of(groups)
    columns = {f"k{i}": key for i, key in enumerate(keys)}
    for i, output in enumerate(plan.outputs):
        label = f"o{i}"
        if label in labels:
            values = column_at(groups, label)
        elif output.kind is Kind.MERGEABLE:
            prefix = f"s{output.states[0]}."
            fields = {n.removeprefix(prefix): groups[n] for n in labels if n.startswith(prefix)}
            values = _finished_state(output, fields, index_of(keys, names))
        else:
            name = plan.table_of(output)
            paired = name in tables and name != "rows"
            name = name if paired else "rows"
            if name not in numberings:
                numberings[name] = Numbering.of_keys(keys_of(tables[name]), keys)
            if output.kind is Kind.SKETCH:
                values = _best_lists(output, numberings[name], tables[name]["v"])
            else:
                column = tables[name]["v" if paired else f"v{output.column}"]
                values = _output_of_rows(output, numberings[name], column, paired)
        empty = None if output.custom else REGISTRY[output.aggregation].of_no_rows
        if empty is not None and view(values).null_count():
            values = values.fillna(empty)
        columns[label] = values
    return table(columns)
