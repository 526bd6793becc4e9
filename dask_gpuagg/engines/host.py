"""The host engine: pandas partitions in, pandas results out.

A *partial* is a dictionary of tables: ``groups`` with one row per group and the fields of
every state, ``pairs<c>`` with the distinct (key, value) pairs of column ``c``, and ``rows``
with whole rows. Every table carries the keys as columns ``k0``, ``k1``, … and every group
appears in every table. Partials combine in the order of their partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from dask.dataframe.dispatch import concat as dask_concat
from pandas.api.types import union_categoricals

from dask_gpuagg.dtypes import dtype_class, is_plain
from dask_gpuagg.engines.buckets import bucket_of
from dask_gpuagg.engines.finish import (
    categories_of,
    finish_groups,
    finish_matrix,
    finish_values,
    sort_order,
)
from dask_gpuagg.engines.grouping import Groups, group
from dask_gpuagg.engines.merging import merge
from dask_gpuagg.engines.reduce import Fields, Reducer, update
from dask_gpuagg.engines.unify import as_found, common_dtype, retyped
from dask_gpuagg.plan import Column, CustomFunctions, Plan
from dask_gpuagg.states import STATES

__all__ = [
    "as_found", "combine", "common_dtype", "finalize", "gather", "partial", "retyped", "select",
    "split",
]  # fmt: skip

Partial = dict[str, pd.DataFrame]


def partial(
    keys: Sequence[pd.Series],
    columns: Sequence[pd.Series],
    index: pd.Index,
    plan: Plan,
) -> Partial:
    """Reduce one partition to one row per local group.

    Parameters
    ----------
    keys : sequence of Series
        One per key of the plan, of the partition's rows.
    columns : sequence of Series
        One per column of the plan, of the partition's rows.
    index : Index
        The partition's row labels.
    plan : Plan

    Returns
    -------
    dict of str to DataFrame
        The tables named by ``plan.tables``.
    """
    if plan.shape == "values":
        # the value joins the keys, and rows without one leave; but every category of a group is
        # counted, those of a group whose values are all null too
        categorical = _is_categorical(columns[0])
        wanted = [*(keys if plan.dropna else []), *([] if categorical else columns)]
        keys, columns = [*keys, columns[0]], []
        if wanted:
            valid = np.logical_and.reduce([k.notna() for k in wanted])
            keys, index = [k[valid] for k in keys], index[valid]
    dropna = plan.dropna and not plan.drops_late and plan.shape != "values"
    groups = group(keys, dropna)
    if groups.kept is not None:
        columns = [c[groups.kept] for c in columns]
        index = index[groups.kept]
        keys = [k[groups.kept] for k in keys]
    tables: Partial = {}
    if plan.grouped:
        reducer = Reducer(groups.codes, groups.n)
        _expect(reducer, plan, columns)
        fields: Fields = {}
        for i, use in enumerate(plan.states):
            inputs = [columns[c] for c in use.columns]
            if use.custom is None:
                state = update(reducer, use.state, inputs, index)
            else:
                state = _chunk_custom(use.custom, inputs[0], groups)
            fields |= {f"s{i}.{name}": values for name, values in state.items()}
        tables["groups"] = _table(_key_columns(groups.keys) | fields)
    for c in plan.pairs:
        tables[f"pairs{c}"] = _distinct(keys, columns[c])
    if plan.rows:
        whole = {f"v{c}": columns[c].array for c in plan.rows}
        tables["rows"] = _table(_key_columns([k.array for k in keys]) | whole)
    return tables


def combine(partials: Sequence[Partial], plan: Plan) -> Partial:
    """Merge partials into one, of the same layout.

    Parameters
    ----------
    partials : sequence of partials, in the order of their partitions
    plan : Plan

    Returns
    -------
    dict of str to DataFrame
    """
    tables: Partial = {}
    for name in plan.tables:
        stacked = _stack([p[name] for p in partials])
        keys = _keys_of(stacked)
        if name == "groups":
            groups = group(keys, dropna=False)
            fields = _merge_states(Reducer(groups.codes, groups.n), stacked, plan)
            stacked = _table(_key_columns(groups.keys) | fields)
        elif name.startswith("pairs"):
            stacked = _distinct(keys, stacked["v"])
        tables[name] = stacked
    return tables


def finalize(
    partials: Sequence[Partial],
    plan: Plan,
    meta: Any,
    bucket: tuple[int, int] | None = None,
) -> Any:
    """Merge partials and make the outputs.

    Parameters
    ----------
    partials : sequence of partials, in the order of their partitions
        All partials of every group that they contain.
    plan : Plan
    meta : DataFrame or Series
        Empty; gives the result's labels, names and dtypes.
    bucket : (int, int), optional
        Number of this output and number of outputs, when there are several. Unobserved
        categories then appear only in the output that their hash names.

    Returns
    -------
    DataFrame or Series
    """
    stacked = {name: _stack([p[name] for p in partials]) for name in plan.tables}
    for name in stacked:
        if name.startswith("pairs"):
            stacked[name] = _distinct(_keys_of(stacked[name]), stacked[name]["v"])
    expected: list[Any] = []
    if not plan.observed and plan.shape == "groups":
        expected = _expected(_keys_together(stacked), plan.dropna)
        if plan.drops_late:
            stacked = {name: t[_complete_keys(t)] for name, t in stacked.items()}
    groups = group(_keys_together(stacked), dropna=False)
    # of value_counts the value is the last key
    promised = [*plan.keys, *plan.columns] if plan.shape == "values" else plan.keys
    keys = [_as_promised(key, column) for key, column in zip(groups.keys, promised, strict=True)]
    n = groups.n
    if expected:
        keys = _complete(keys, expected, bucket, _dtypes(plan))
        n = len(keys[0])
    ends = np.cumsum([len(table) for table in stacked.values()])[:-1]
    codes = dict(zip(stacked, np.split(groups.codes, ends), strict=True))
    reducers = {name: Reducer(codes[name], n) for name in stacked}
    fields = {}
    if plan.grouped:
        fields = _merge_states(reducers["groups"], stacked["groups"], plan)
    elif plan.states:
        fields = _states_of_rows(reducers["rows"], stacked["rows"], plan)
    if plan.shape == "values":
        return finish_values(keys, fields, plan, meta)
    if plan.shape == "matrix":
        return finish_matrix(keys, fields, plan, meta)
    return finish_groups(keys, fields, stacked, reducers, plan, meta)


def split(tables: Partial, plan: Plan, buckets: int) -> list[Partial]:
    """Divide a partial by key hash into one partial per output.

    Parameters
    ----------
    tables : dict of str to DataFrame
    plan : Plan
    buckets : int

    Returns
    -------
    list of partials, of length ``buckets``
    """
    parts: list[Partial] = [{} for _ in range(buckets)]
    for name, table in tables.items():
        keys = _keys_of(table)[: len(plan.keys)]
        of_row = bucket_of([k.array for k in keys], _dtypes(plan), buckets)
        order = np.argsort(of_row, kind="stable")
        ends = np.cumsum(np.bincount(of_row, minlength=buckets))
        starts = [0, *ends[:-1]]
        for part, start, end in zip(parts, starts, ends, strict=True):
            part[name] = table.take(order[start:end])
    return parts


def _chunk_custom(functions: CustomFunctions, values: pd.Series, groups: Groups) -> Fields:
    """Fields of a ``dd.Aggregation``: what its ``chunk`` returns, one field per Series."""
    return _custom_fields(functions.chunk(values.groupby(groups.codes, sort=True)), groups.n)


def _custom_fields(returned: Any, n: int) -> Fields:
    series = returned if isinstance(returned, tuple) else (returned,)
    return {str(i): s.reindex(pd.RangeIndex(n)).array for i, s in enumerate(series)}


def _merge_states(reducer: Reducer, table: pd.DataFrame, plan: Plan) -> Fields:
    merged: Fields = {}
    for i, use in enumerate(plan.states):
        prefix = f"s{i}."
        if use.custom is None:
            fields = {f: table[prefix + f] for f in STATES[use.state].fields}
            state = merge(reducer, use.state, fields)
        else:
            names = [c for c in table.columns if c.startswith(prefix)]
            level = pd.Index(reducer.codes)
            grouped = [table[c].set_axis(level).groupby(level=0, sort=True) for c in names]
            state = _custom_fields(use.custom.agg(*grouped), reducer.n)
        merged |= {prefix + name: values for name, values in state.items()}
    return merged


def _states_of_rows(reducer: Reducer, table: pd.DataFrame, plan: Plan) -> Fields:
    """The states of whole rows, named as merged ones are."""
    columns = {c: table[f"v{c}"] for c in plan.rows}
    _expect(reducer, plan, columns)
    fields: Fields = {}
    for i, use in enumerate(plan.states):
        state = update(reducer, use.state, [columns[c] for c in use.columns], table.index)
        fields |= {f"s{i}.{name}": values for name, values in state.items()}
    return fields


def _expect(reducer: Reducer, plan: Plan, columns: Any) -> None:
    """Announce all states, so that each column is read once for those of its own."""
    for use in plan.states:
        for c in use.columns:
            reducer.expect(use.state, columns[c])


def _distinct(keys: Sequence[pd.Series], values: pd.Series) -> pd.DataFrame:
    """Distinct (key, value) pairs in order of appearance; a null value is a value."""
    groups = group([*keys, values], dropna=False)
    rows = np.arange(len(groups.codes))
    first = Reducer(groups.codes, groups.n).first_row(rows)
    order = np.sort(first)
    columns = _key_columns([k.array.take(order) for k in keys])
    return _table(columns | {"v": values.array.take(order)})


def _expected(keys: list[pd.Series], dropna: bool) -> list[Any]:
    """The groups that ``observed=False`` asks for; none without categorical keys.

    As in pandas: every combination of the categories, with every combination of the other keys
    that occurs.
    """
    categorical = [isinstance(k.dtype, pd.CategoricalDtype) for k in keys]
    if not any(categorical):
        return []
    levels = [_categories(k, dropna) for k, c in zip(keys, categorical, strict=True) if c]
    product = pd.MultiIndex.from_product([np.arange(len(level)) for level in levels])
    plain = [k for k, c in zip(keys, categorical, strict=True) if not c]
    if dropna and plain:
        complete = np.logical_and.reduce([k.notna() for k in plain])
        plain = [k[complete] for k in plain]
    combinations = group(plain, dropna=False) if plain else None
    repeats = combinations.n if combinations is not None else 1
    of_product = np.tile(np.arange(len(product)), repeats)
    of_plain = np.repeat(np.arange(repeats), len(product))
    codes = iter([product.get_level_values(i).to_numpy() for i in range(len(levels))])
    tops, others = iter(levels), iter(combinations.keys if combinations is not None else ())
    return [
        next(tops).take(next(codes)[of_product]) if c else next(others).take(of_plain)
        for c in categorical
    ]


def _complete(
    keys: list[Any], expected: list[Any], bucket: tuple[int, int] | None, dtypes: Sequence[Any]
) -> list[Any]:
    """Append the expected groups that are not there behind those that are."""
    pairs = zip(keys, expected, strict=True)
    together = [_stack_series([pd.Series(k), pd.Series(e)]) for k, e in pairs]
    codes = group(together, dropna=False).codes
    there = len(keys[0])
    missing = np.flatnonzero(~np.isin(codes[there:], codes[:there]))
    columns = [e.take(missing) for e in expected]
    if bucket is not None and len(missing):
        mine = bucket_of(columns, dtypes, bucket[1]) == bucket[0]
        columns = [c[mine] for c in columns]
    return [
        _stack_series([pd.Series(k), pd.Series(c)]).array
        for k, c in zip(keys, columns, strict=True)
    ]


def _categories(key: pd.Series, dropna: bool) -> Any:
    """All categories of a categorical key as its values; null if it occurs."""
    null = [] if dropna or key.notna().all() else [None]
    return pd.Categorical([*key.cat.categories, *null], dtype=key.dtype)


def _as_promised(key: Any, promised: Column) -> Any:
    """A key of the groups, with categories only where the metadata has them.

    Outputs of one result may have met different partitions: those that hold categories, text or
    Python objects. They have to agree, or Dask cannot concatenate them.
    """
    wanted = dtype_class(promised.dtype)
    found = dtype_class(key.dtype)
    if wanted == "category":
        return key if found == "category" else categories_of(key, promised.dtype)
    if found == "category":
        return pd.Series(key).astype(key.categories.dtype).array
    if found != "object" or wanted == "object":
        return key
    values = pd.Series(key)
    return pd.Index(values.where(values.notna(), np.nan).tolist()).array


def _keys_together(tables: dict[str, pd.DataFrame]) -> list[pd.Series]:
    """The keys of all tables, one behind the other."""
    parts = [_keys_of(table) for table in tables.values()]
    return [_stack_series(columns) for columns in zip(*parts, strict=True)]


def _complete_keys(table: pd.DataFrame) -> Any:
    return np.logical_and.reduce([k.notna() for k in _keys_of(table)])


def _keys_of(table: pd.DataFrame) -> list[pd.Series]:
    return [table[c] for c in table.columns if c.startswith("k")]


def _key_columns(keys: Iterable[Any]) -> dict[str, Any]:
    return {f"k{i}": key for i, key in enumerate(keys)}


def _table(columns: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(columns, copy=False)


def _dtypes(plan: Plan) -> list[Any]:
    return [key.dtype for key in plan.keys]


def _stack(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate in order of the partitions."""
    if len(tables) == 1:
        return tables[0]
    # fields without a row must not widen the others'
    filled = [t for t in tables if len(t)] or tables[:1]
    columns = {
        # keys have the dtype of all partitions, and the categories of all
        name: [t[name] for t in (tables if name.startswith("k") else filled)]
        for name in filled[0].columns
    }
    kinds = [{c.dtype for c in parts} for parts in columns.values()]
    if all(len(kind) == 1 and not _holds_categories(kind) for kind in kinds):
        return pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0]
    stacked = {
        name: _stack_categories(parts)
        if any(map(_is_categorical, parts))
        else pd.concat(parts, ignore_index=True).array
        for name, parts in columns.items()
    }
    return _table(stacked)


def _holds_categories(dtypes: set[Any]) -> bool:
    return any(isinstance(dtype, pd.CategoricalDtype) for dtype in dtypes)


def _is_categorical(column: pd.Series) -> bool:
    return isinstance(column.dtype, pd.CategoricalDtype)


def _stack_categories(columns: list[pd.Series]) -> Any:
    """Categories are united, those of empty partitions too: ``observed=False`` gives them all."""
    filled = [c for c in columns if len(c)] or columns[:1]
    text = any(dtype_class(c.dtype) == "string" for c in columns)
    if all(map(_is_categorical, filled)) and not text:
        categorical = [c for c in columns if _is_categorical(c)]
        # the metadata's placeholder for unknown categories, and other dtypes, unite with nothing
        of = {c.cat.categories.dtype for c in filled}
        if len(of) == 1:
            same = [c for c in categorical if len(c) or c.cat.categories.dtype in of]
            return union_categoricals(same)
    plain = [
        c.astype(c.cat.categories.dtype) if _is_categorical(c) and len(c.cat.categories) else c
        for c in filled
    ]
    return pd.concat(plain, ignore_index=True).array


def _stack_series(columns: Sequence[pd.Series]) -> pd.Series:
    if len(columns) == 1:
        return columns[0]
    return _stack([c.to_frame(name="k") for c in columns])["k"]


def gather(outputs: Sequence[Any], plan: Plan, meta: Any) -> Any:
    """Concatenate finished outputs, sorted by key if the plan says so.

    Parameters
    ----------
    outputs : sequence of DataFrame or Series
        With disjoint groups.
    plan : Plan
    meta : DataFrame or Series

    Returns
    -------
    DataFrame or Series
    """
    filled = [o for o in outputs if len(o)] or list(outputs[:1])
    whole = dask_concat(filled) if len(filled) > 1 else filled[0]
    if not plan.sort:
        return whole
    return whole.take(sort_order(_index_keys(whole, plan)))


def select(whole: Any, plan: Plan, bucket: tuple[int, int]) -> Any:
    """The groups of a finished output that belong to one of several outputs.

    Parameters
    ----------
    whole : DataFrame or Series
    plan : Plan
    bucket : (int, int)
        Number of the output and number of outputs.

    Returns
    -------
    DataFrame or Series
    """
    return whole[bucket_of(_index_keys(whole, plan), _dtypes(plan), bucket[1]) == bucket[0]]


def _index_keys(result: Any, plan: Plan) -> list[Any]:
    levels = [result.index.get_level_values(i) for i in range(len(plan.keys))]
    return [level.to_numpy() if is_plain(level.dtype) else level.array for level in levels]
