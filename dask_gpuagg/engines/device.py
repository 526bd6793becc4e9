"""The device engine: cuDF partitions in, cuDF results out, by our kernels.

A partial has the tables and the columns of the host engine's (see ``host.py``). Reductions run
in the kernels; what is left per group (joining tables of one result, sorting, casting) is
cuDF's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import cudf
import cupy as cp
import dask
import numpy as np
import pandas as pd
import pyarrow as pa
import pylibcudf as plc
from dask.dataframe.dispatch import hash_object_dispatch

from dask_gpuagg.aggregations import Kind
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.columns import Aggregator
from dask_gpuagg.engines.device_states import finish, finish_rows, merge, update, view
from dask_gpuagg.engines.host import ORDINAL
from dask_gpuagg.engines.sorted import SortedRows, can_sort, counts, serves
from dask_gpuagg.plan import Output, Plan
from dask_gpuagg.runs import note_run
from dask_gpuagg.states import STATES

Partial = dict[str, Any]


def partial(
    keys: Sequence[Any],
    columns: Sequence[Any],
    index: Any,
    plan: Plan,
    ordinal: int | None = None,
) -> Partial:
    """Reduce one partition to one row per local group; see ``host.partial``."""
    tables: Partial = {}
    views = [view(c) for c in columns]
    if plan.grouped:
        grouping = _Grouping(keys, not plan.dropna)
        for use in plan.states:
            update(grouping.aggregator, use, [views[c] for c in use.columns])
        tables["groups"] = grouping.table(_state_columns(plan))
    for c in plan.pairs:
        tables[f"pairs{c}"] = _distinct(keys, columns[c], plan.dropna)
    if plan.rows:
        whole = {f"k{i}": k.reset_index(drop=True) for i, k in enumerate(keys)}
        whole |= {f"v{c}": columns[c].reset_index(drop=True) for c in plan.rows}
        rows = cudf.DataFrame(whole)
        if plan.dropna:
            rows = rows.dropna(subset=[f"k{i}" for i in range(len(keys))])
        tables["rows"] = rows
    if ordinal is not None:
        tables = {name: t.assign(**{ORDINAL: ordinal}) for name, t in tables.items()}
    return tables


def combine(partials: Sequence[Partial], plan: Plan) -> Partial:
    """Merge partials into one, of the same layout; see ``host.combine``."""
    tables: Partial = {}
    for name in plan.tables:
        stacked = _stack([p[name] for p in partials])
        keys = _keys_of(stacked, plan)
        if name == "groups":
            grouping = _Grouping(keys, keep_nulls=True)
            for i, use in enumerate(plan.states):
                merge(grouping.aggregator, use, stacked, f"s{i}.")
            stacked = grouping.table(_state_columns(plan))
        elif name.startswith("pairs"):
            stacked = _distinct(keys, stacked["v"], dropna=False)
        tables[name] = stacked
    return tables


def finalize(
    partials: Sequence[Partial],
    plan: Plan,
    meta: Any,
    bucket: tuple[int, int] | None = None,
) -> Any:
    """Merge partials and make the outputs; see ``host.finalize``."""
    stacked = {name: _stack([p[name] for p in partials]) for name in plan.tables}
    result = None
    mergeable = [i for i, o in enumerate(plan.outputs) if o.kind is Kind.MERGEABLE]
    if plan.grouped:
        grouping = _Grouping(_keys_of(stacked["groups"], plan), keep_nulls=True)
        for i in mergeable:
            finish(grouping.aggregator, plan.outputs[i], plan, stacked["groups"])
        result = grouping.table([f"o{i}" for i in mergeable])
    elif plan.states_from_rows and mergeable:
        rows = stacked["rows"]
        grouping = _Grouping(_keys_of(rows, plan), keep_nulls=True)
        views = {c: view(rows[f"v{c}"]) for c in plan.rows}
        for i in mergeable:
            finish_rows(grouping.aggregator, plan.outputs[i], plan, views)
        result = grouping.table([f"o{i}" for i in mergeable])
    by_sorting = cache(lambda: _sorted_rows(stacked["rows"], plan))
    for i, output in enumerate(plan.outputs):
        if output.kind is not Kind.MERGEABLE:
            column = _whole(output, stacked, plan, f"o{i}", by_sorting)
            result = column if result is None else _join(result, column, plan)
    return _shaped(result, plan, shape_of(meta))


@dataclass(frozen=True)
class Shape:
    """What the metadata promises of a result, read once when the query is planned.

    Attributes
    ----------
    index : tuple
        Names of the index levels.
    labels : pandas.Index or hashable
        Column labels, or the name of a Series.
    dtypes : tuple of dtypes
        Of the columns.
    series : bool
    """

    index: tuple[Any, ...]
    labels: Any
    dtypes: tuple[Any, ...]
    series: bool


def shape_of(meta: Any) -> Shape:
    """The shape of results with this metadata."""
    names = tuple(meta.index.names)
    if meta.ndim == 1:
        return Shape(names, meta.name, (meta.dtype,), True)
    return Shape(names, meta.columns, tuple(meta.dtypes), False)


def direct(keys: Sequence[Any], columns: Sequence[Any], plan: Plan, shape: Shape) -> Any:
    """One partition to its result in one pass, without a partial in between.

    Parameters
    ----------
    keys, columns : sequence of Series
        Of the partition's rows, as the plan names them.
    plan : Plan
        Of mergeable outputs only.
    shape : Shape

    Returns
    -------
    DataFrame or Series
    """
    grouping = _Grouping(keys, not plan.dropna)
    views = {i: view(column) for i, column in enumerate(columns)}
    for output in plan.outputs:
        finish_rows(grouping.aggregator, output, plan, views)
    labels = [f"o{i}" for i in range(len(plan.outputs))]
    if grouping.gathered or plan.sort:
        return _shaped(grouping.table(labels), plan, shape)
    made_keys, outputs = grouping.run()
    if len(made_keys) == 1:
        column = cudf.Series.from_pylibcudf(made_keys[0])
        index = cudf.Index(column, name=shape.index[0])
    else:
        names = [f"k{i}" for i in range(len(made_keys))]
        index = cudf.MultiIndex.from_frame(_frame(made_keys, names), names=shape.index)
    outputs = [_as_promised(o, d) for o, d in zip(outputs, shape.dtypes, strict=True)]
    if shape.series:
        return cudf.Series.from_pylibcudf(outputs[0], {"name": shape.labels, "index": index})
    result = cudf.DataFrame.from_pylibcudf(
        plc.Table(outputs), {"columns": list(shape.labels), "index": index}
    )
    if isinstance(shape.labels, pd.MultiIndex):
        result.columns = shape.labels
    return result


def _as_promised(column: plc.Column, dtype: Any) -> plc.Column:
    """Cast to a promised NumPy dtype, where the values are of another one."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biuf":
        return column
    wanted = plc.DataType.from_arrow(pa.from_numpy_dtype(dtype))
    return column if column.type() == wanted else plc.unary.cast(column, wanted)


def bucket_of(keys: Sequence[Any], buckets: int) -> Any:
    """The output that each row of key values belongs to, int64; see ``host.bucket_of``."""
    columns = {}
    for i, key in enumerate(keys):
        column = cudf.Series(key).reset_index(drop=True)
        if getattr(column.dtype, "kind", "") == "f":
            column = column.astype("float64") + 0.0  # -0.0 and 0.0 are one key
        columns[f"k{i}"] = column
    hashes = hash_object_dispatch(cudf.DataFrame(columns), index=False)
    return (hashes.astype("uint64") % buckets).astype("int64")


def split(tables: Partial, plan: Plan, buckets: int) -> list[Partial]:
    """Divide a partial by key hash into one partial per output; see ``host.split``."""
    parts: list[Partial] = [{} for _ in range(buckets)]
    for name, table in tables.items():
        of_row = bucket_of(_keys_of(table, plan), buckets).values
        order = cp.argsort(of_row, kind="stable")
        ends = cp.cumsum(cp.bincount(of_row, minlength=buckets)).get().tolist()
        ordered = table.take(order)
        for part, start, end in zip(parts, [0, *ends[:-1]], ends, strict=True):
            part[name] = ordered.iloc[start:end].reset_index(drop=True)
    return parts


def gather(outputs: Sequence[Any], plan: Plan, meta: Any) -> Any:
    """Concatenate finished outputs, sorted by key if the plan says so; see ``host.gather``."""
    filled = [o for o in outputs if len(o)] or list(outputs[:1])
    whole = cudf.concat(filled) if len(filled) > 1 else filled[0]
    return whole.sort_index(na_position="last") if plan.sort else whole


def select(whole: Any, plan: Plan, bucket: tuple[int, int]) -> Any:
    """The groups of a finished output that belong to one of several; see ``host.select``."""
    keys = [whole.index.get_level_values(i) for i in range(len(plan.keys))]
    return whole[(bucket_of(keys, bucket[1]) == bucket[0]).values]


class _Grouping:
    """One pass of the kernels over some rows, with the keys as users know them."""

    def __init__(self, keys: Sequence[Any], keep_nulls: bool) -> None:
        self._keys = list(keys)
        self.aggregator = Aggregator([view(k) for k in keys], keep_nulls)
        # libcudf knows no categories and no time zones: such keys are gathered by cuDF
        self.gathered = not all(_is_libcudfs_own(k.dtype) for k in keys)
        if self.gathered:
            self.aggregator.first_row(_everywhere(self.aggregator.keys[0]))

    def run(self) -> tuple[list[plc.Column], list[plc.Column]]:
        """Key columns and outputs as libcudf's, one row per group."""
        keys, outputs, run = self.aggregator.run(dask.config.get("gpuagg.kernel"))
        note_run(run)
        return keys, outputs

    def table(self, labels: Sequence[str]) -> Any:
        """The groups: key columns ``k0``, …, then the outputs by label."""
        keys, outputs = self.run()
        names = [f"k{i}" for i in range(len(self._keys))]
        if self.gathered:
            rows = cudf.Series.from_pylibcudf(outputs.pop(0))
            whole = cudf.DataFrame(
                {n: k.reset_index(drop=True) for n, k in zip(names, self._keys, strict=True)}
            )
            table = whole.take(rows).reset_index(drop=True)
            return cudf.concat([table, _frame(outputs, labels)], axis=1) if labels else table
        return _frame([*keys, *outputs], [*names, *labels])


def _frame(columns: Sequence[plc.Column], names: Sequence[str]) -> Any:
    return cudf.DataFrame.from_pylibcudf(plc.Table(list(columns)), {"columns": list(names)})


def _is_libcudfs_own(dtype: Any) -> bool:
    """Whether a column of libcudf comes back as this dtype by itself."""
    return isinstance(dtype, np.dtype | pd.StringDtype)


def _everywhere(column: plc.Column) -> plc.Column:
    """A view of a column of which every row counts as present."""
    return column.with_mask(None, 0)


def _state_columns(plan: Plan) -> list[str]:
    return [f"s{i}.{f}" for i, use in enumerate(plan.states) for f in STATES[use.state].fields]


def _keys_of(table: Any, plan: Plan) -> list[Any]:
    return [table[f"k{i}"] for i in range(len(plan.keys))]


def _distinct(keys: Sequence[Any], values: Any, dropna: bool) -> Any:
    """Distinct (key, value) pairs; a null value is a value."""
    names = [f"k{i}" for i in range(len(keys))]
    grouping = _Grouping([*keys, values], keep_nulls=True)
    pairs = grouping.table([])
    pairs.columns = [*names, "v"]
    return pairs.dropna(subset=names) if dropna else pairs


def _sorted_rows(rows: Any, plan: Plan) -> tuple[Any, SortedRows] | None:
    """The groups of some rows, and the rows sorted by group; None without kernels for it."""
    grouping = _Grouping(_keys_of(rows, plan), keep_nulls=True)
    grouping.aggregator.encode()
    groups = grouping.table([])
    codes = grouping.aggregator.codes
    return (groups, SortedRows(codes, len(groups))) if codes is not None and can_sort() else None


def _whole(
    output: Output,
    tables: dict[str, Any],
    plan: Plan,
    label: str,
    by_sorting: Callable[[], tuple[Any, SortedRows] | None],
) -> Any:
    """Keys and one output of the kinds that need pairs or whole rows."""
    names = [f"k{i}" for i in range(len(plan.keys))]
    if output.kind is Kind.DISTINCT:
        pairs = tables[f"pairs{output.column}"]
        in_order = _sorted_rows(pairs, plan) if counts(pairs["v"].dtype, len(pairs)) else None
        if in_order is not None:
            groups, sorted_pairs = in_order
            made = cudf.Series.from_pylibcudf(sorted_pairs.nunique(view(pairs["v"])))
            return groups.assign(**{label: made})
        distinct = _distinct(_keys_of(pairs, plan), pairs["v"], dropna=False)
        grouping = _Grouping(_keys_of(distinct, plan), keep_nulls=True)
        grouping.aggregator.count(view(distinct["v"]))
        return grouping.table([label])
    rows = tables["rows"]
    values = rows[f"v{output.column}"]
    in_order = by_sorting() if serves(output, values.dtype, len(rows)) else None
    if in_order is not None:
        groups, sorted_rows = in_order
        made = cudf.Series.from_pylibcudf(sorted_rows.output(output, view(values)))
        return groups.assign(**{label: made})
    grouped = rows.groupby(names, dropna=False, sort=False)[f"v{output.column}"]
    parameters = dict(output.parameters)
    if output.aggregation == "list":
        made = grouped.agg(list)
    elif output.aggregation == "quantile":
        made = grouped.quantile(**({"q": 0.5} | parameters))
    else:
        made = getattr(grouped, output.aggregation)(**parameters)
    return made.rename(label).reset_index()


def _join(left: Any, right: Any, plan: Plan) -> Any:
    names = [f"k{i}" for i in range(len(plan.keys))]
    return left.merge(right, on=names, how="left")


def _shaped(table: Any, plan: Plan, shape: Shape) -> Any:
    """Labels, dtypes, index and order that the metadata and the plan promise."""
    names = [f"k{i}" for i in range(len(plan.keys))]
    if plan.sort:
        table = table.sort_values(names, na_position="last", ignore_index=True)
    index: Any
    if len(names) == 1:
        index = cudf.Index(table[names[0]], name=shape.index[0])
    else:
        index = cudf.MultiIndex.from_frame(table[names], names=shape.index)
    columns = []
    for i, dtype in enumerate(shape.dtypes):
        column = table[f"o{i}"]
        columns.append(column if column.dtype == dtype else _cast(column, dtype))
    if shape.series:
        result = columns[0]
        result.index = index
        result.name = shape.labels
        return result
    result = cudf.DataFrame(dict(enumerate(columns)))
    result.index = index
    result.columns = shape.labels
    return result


def _cast(column: Any, dtype: Any) -> Any:
    if dtype_class(column.dtype) in ("category", "decimal", "other"):
        return column  # categories, precisions and lists are known only now
    return column.astype(dtype)


def _stack(tables: list[Any]) -> Any:
    """Concatenate in order of the partitions; categories are united."""
    if len(tables) > 1:
        tables = [t for t in tables if len(t)] or tables[:1]
    stacked = tables[0] if len(tables) == 1 else cudf.concat(tables, ignore_index=True)
    if ORDINAL in stacked.columns:
        stacked = stacked.sort_values(ORDINAL, kind="stable", ignore_index=True)
        stacked = stacked.drop(columns=ORDINAL)
    return stacked
