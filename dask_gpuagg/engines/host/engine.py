"""The host engine: pandas partitions in, pandas results out.

A *partial* is a dictionary of tables: ``groups`` with one row per group and the fields of
every state, ``pairs<c>`` with the distinct (key, value) pairs of column ``c``, ``sketch<i>`` with
the entries of a sketch, and ``rows`` with whole rows. Every table carries the keys as columns
``k0``, ``k1``, … and every group appears in every table. Partials combine in the order of their
partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dask_gpuagg.dtypes import NUMERIC, TEMPORAL, dtype_class, is_plain
from dask_gpuagg.engines.host import sketches
from dask_gpuagg.engines.host.conform import holds_objects, series_of
from dask_gpuagg.engines.host.distinct import first_rows, repeated
from dask_gpuagg.engines.host.exchange import (
    concatenated_outputs,
    divided_outputs,
    keys_of,
    split,
)
from dask_gpuagg.engines.host.finish import finish_groups, finish_matrix, finish_values
from dask_gpuagg.engines.host.found_dtypes import (
    common_dtype,
    compatible,
    durations,
    of_categories,
    unmasked,
)
from dask_gpuagg.engines.host.grouping import Groups, group
from dask_gpuagg.engines.host.merge import expect, merge
from dask_gpuagg.engines.host.promised_keys import as_promised, as_text, of_no_group
from dask_gpuagg.engines.host.reducer import Fields, Reducer
from dask_gpuagg.engines.host.stacking import (
    alike,
    bytes_of,
    divided,
    is_categorical,
    stack,
    stack_series,
    stacked,
)
from dask_gpuagg.engines.host.unobserved import complete, expected_groups
from dask_gpuagg.engines.host.update import update
from dask_gpuagg.plan import Column, Plan, Sketched
from dask_gpuagg.states import STATES

__all__ = [
    "alike", "bytes_of", "combine", "common_dtype", "compatible", "concatenated_outputs",
    "divided", "divided_outputs", "finalize", "of_categories", "partial", "split", "stack",
    "stacked",
]  # fmt: skip

Partial = dict[str, pd.DataFrame]

# from this many columns on, those of one dtype are joined in memory
_JOINED_COLUMNS = 5
_JOINED_VALUES = 1 << 20
# Classes of keys and fields that no merge changes.
_PLAIN = frozenset((*NUMERIC, *TEMPORAL, "category", "string"))
# To find the distinct pairs of a partition pays where so many of its rows repeat one.
_LEAST_REPEATED = 0.3


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
    given, promised = keys, plan.keys
    if plan.shape == "values":
        # the value joins the keys, and rows without one leave; but every category of a group is
        # counted, those of a group whose values are all null too
        categorical = is_categorical(columns[0])
        wanted = [*(keys if plan.dropna else []), *([] if categorical else columns)]
        keys, columns = [*keys, durations(columns[0], plan.columns[0].dtype)], []
        # NaN alone are no floats that are counted, whatever was promised
        given, promised = keys, (*plan.keys, Column(plan.columns[0].label, np.dtype(object)))
        if wanted:
            valid = np.logical_and.reduce([k.notna() for k in wanted])
            keys, index = [k[valid] for k in keys], index[valid]
    dropna = plan.dropna and not plan.drops_late and plan.shape != "values"
    groups = group(keys, dropna)
    if groups.kept is not None:
        columns = [c[groups.kept] for c in columns]
        index = index[groups.kept]
        keys = [k[groups.kept] for k in keys]
    if groups.n == 0:
        keys = [of_no_group(*pair) for pair in zip(given, promised, strict=True)]
        groups = replace(groups, keys=[key.array for key in keys])
    held = columns
    columns = [durations(v, c.dtype) for v, c in zip(held, plan.columns, strict=False)]
    # of value_counts the value is the last key
    texts = [as_text(*pair) for pair in zip(groups.keys, promised, strict=False)]
    groups = replace(groups, keys=[*texts, *groups.keys[len(texts) :]])
    tables: Partial = {}
    if plan.grouped:
        reducer = Reducer(groups.codes, groups.n)
        fields = _states(reducer, dict(enumerate(columns)), index, plan, dict(enumerate(held)))
        tables["groups"] = _table(_key_columns(groups.keys) | fields)
    for c in plan.pairs:
        tables[f"pairs{c}"] = _distinct(groups, keys, columns[c], at_least=_LEAST_REPEATED)
    for i, kept in enumerate(plan.sketches):
        made = sketches.update(kept, groups.codes, groups.n, columns[kept.column])
        tables[f"sketch{i}"] = _entries(groups, *made)
    if plan.rows:
        whole = {f"v{c}": columns[c].array for c in plan.rows}
        rows = _key_columns([k.array for k in keys]) | {n: _held(v) for n, v in whole.items()}
        tables["rows"] = pd.DataFrame(rows, copy=False)
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
        stacked = stack(alike([p[name] for p in partials], plan))
        keys = keys_of(stacked)
        if name == "groups":
            groups = group(keys, dropna=False)
            fields = _merge_states(Reducer(groups.codes, groups.n), stacked, plan)
            stacked = _table(_key_columns(groups.keys) | fields)
        elif name.startswith("pairs"):
            stacked = _distinct(group(keys, dropna=False), keys, stacked["v"])
        elif name.startswith("sketch"):
            groups = group(keys, dropna=False)
            made = sketches.merge(_sketched(plan, name), groups.codes, groups.n, _fields(stacked))
            stacked = _entries(groups, *made)
        tables[name] = stacked
    return tables


def finalize(
    partials: Sequence[Partial],
    plan: Plan,
    meta: Any,
    bucket: tuple[int, int] | None = None,
    owned: bool = False,
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
    owned : bool
        Whether nobody else needs the partials: an output may take its memory from them.

    Returns
    -------
    DataFrame or Series
    """
    if len(partials) == 1 and _is_plain(partials[0], plan):
        return _finished_alone(partials[0]["groups"], plan, meta, owned)
    stacked = {name: stack(alike([p[name] for p in partials], plan)) for name in plan.tables}
    expected: list[Any] = []
    if not plan.observed and plan.shape != "values":
        expected = expected_groups(_keys_together(stacked), plan.dropna)
        if plan.drops_late:
            stacked = {name: t[_complete_keys(t)] for name, t in stacked.items()}
    groups = group(_keys_together(stacked), dropna=False)
    # of value_counts the value is the last key
    levels = [meta.index.get_level_values(i).dtype for i in range(len(plan.keys))]
    keys = [as_promised(*each) for each in zip(groups.keys, plan.keys, levels, strict=False)]
    if plan.gathered:  # outputs have no categories yet that they all share
        pairs = zip(keys, groups.keys, strict=False)
        keys = [g if is_categorical(k) and not is_categorical(g) else k for k, g in pairs]
    if plan.shape == "values":
        counted = plan.columns[0].dtype
        values = groups.keys[-1] if groups.n else pd.Series(groups.keys[-1]).astype(counted).array
        keys.append(unmasked(values, counted))
    n = groups.n
    if expected:
        keys = complete(keys, expected, bucket, [key.dtype for key in plan.keys])
        n = len(keys[0])
    ends = np.cumsum([len(table) for table in stacked.values()])[:-1]
    codes = dict(zip(stacked, np.split(groups.codes, ends), strict=True))
    for name in (name for name in stacked if name.startswith("pairs")):
        rows = first_rows(codes[name], n, stacked[name]["v"])
        if len(rows) < len(codes[name]):
            stacked[name] = _table({"v": stacked[name]["v"].array.take(rows)})
            codes[name] = codes[name].take(rows)
    for name in (name for name in stacked if name.startswith("sketch")):
        made = sketches.merge(_sketched(plan, name), codes[name], n, _fields(stacked[name]))
        codes[name], stacked[name] = made[0], _table(made[1])
    reducers = {name: Reducer(codes[name], n) for name in stacked}
    fields = {}
    if plan.grouped:
        fields = _merge_states(reducers["groups"], stacked["groups"], plan)
    elif plan.states:
        rows = stacked["rows"]
        fields = _states(reducers["rows"], {c: rows[f"v{c}"] for c in plan.rows}, rows.index, plan)
    if plan.shape == "values":
        return finish_values(keys, fields, plan, meta)
    if plan.shape == "matrix":
        return finish_matrix(keys, fields, plan, meta)
    return finish_groups(keys, fields, stacked, reducers, plan, meta)


def _is_plain(partial: Partial, plan: Plan) -> bool:
    """Whether a partial is groups alone, of numbers, times, categories and text of Arrow."""
    if plan.tables != ("groups",) or plan.shape != "groups" or not plan.observed or plan.found:
        return False
    promised = [key.dtype for key in plan.keys]
    table = partial["groups"]
    if [table[f"k{i}"].dtype for i in range(len(promised))] != promised:
        return False
    return not any(use.custom for use in plan.states) and all(
        dtype_class(dtype) in _PLAIN for dtype in {*promised, *table.dtypes}
    )


def _finished_alone(table: pd.DataFrame, plan: Plan, meta: Any, owned: bool) -> Any:
    """The output of one partial, each of whose rows is a group: nothing is merged."""
    arrays = {name: _values(table[name], owned) for name in table.columns}
    keys = [arrays.pop(f"k{i}") for i in range(len(plan.keys))]
    return finish_groups(keys, arrays, {}, {}, plan, meta)


def _values(column: pd.Series, owned: bool) -> Any:
    """The array of a column; one that can be written to, where it is owned and memory is."""
    if not is_plain(column.dtype):
        return column.array
    values = column.to_numpy()
    if owned:
        # pandas shows its memory read-only; that of a message is
        with suppress(ValueError):
            values.flags.writeable = True
    return values


def _states(
    reducer: Reducer,
    columns: Mapping[int, pd.Series],
    index: pd.Index,
    plan: Plan,
    held: Mapping[int, pd.Series] | None = None,
) -> Fields:
    """The states of rows, named as merged ones are; ``held`` has durations that are objects."""
    for use in plan.states:  # so that each column is read once for all of its states
        for c in use.columns:
            reducer.expect(use.state, columns[c])
    fields: Fields = {}
    for i, use in enumerate(plan.states):
        read = held if held is not None and use.state == "osum" else columns
        inputs = [read[c] for c in use.columns]
        if use.custom is None:
            state = update(reducer, use.state, inputs, index)
        else:
            grouped = inputs[0].groupby(reducer.codes, sort=True)
            state = _custom_fields(use.custom.chunk(grouped), reducer.n)
        fields |= {f"s{i}.{name}": values for name, values in state.items()}
    return fields


def _custom_fields(returned: Any, n: int) -> Fields:
    """Fields of a ``dd.Aggregation``: one for each Series that its function returns."""
    series = returned if isinstance(returned, tuple) else (returned,)
    return {str(i): s.reindex(pd.RangeIndex(n)).array for i, s in enumerate(series)}


def _merge_states(reducer: Reducer, table: pd.DataFrame, plan: Plan) -> Fields:
    merged: Fields = {}
    fields = [
        {f: table[f"s{i}.{f}"] for f in STATES[use.state].fields_in(table.columns, f"s{i}.")}
        for i, use in enumerate(plan.states)
    ]
    for use, of_state in zip(plan.states, fields, strict=True):
        expect(reducer, use.state, of_state)
    for i, use in enumerate(plan.states):
        prefix = f"s{i}."
        if use.custom is None:
            state = merge(reducer, use.state, fields[i])
        else:
            names = [c for c in table.columns if c.startswith(prefix)]
            level = pd.Index(reducer.codes)
            grouped = [table[c].set_axis(level).groupby(level=0, sort=True) for c in names]
            state = _custom_fields(use.custom.agg(*grouped), reducer.n)
        merged |= {prefix + name: values for name, values in state.items()}
    return merged


def _distinct(
    groups: Groups, keys: Sequence[pd.Series], values: pd.Series, at_least: float = 0.0
) -> pd.DataFrame:
    """Distinct (key, value) pairs in order of appearance; a null value is a value.

    All rows, where about less than ``at_least`` of them repeat a pair: they are merged anyway.
    """
    columns = [*keys, values]
    rows = None
    if repeated(groups.codes, values) >= at_least:
        rows = first_rows(groups.codes, groups.n, values)
    if rows is None or len(rows) == len(values):
        *arrays, array = (column.array for column in columns)
    else:
        *arrays, array = (column.array.take(rows) for column in columns)
    return _table(_key_columns(arrays) | {"v": array})


def _entries(groups: Groups, codes: Any, fields: Fields) -> pd.DataFrame:
    """The table of a sketch."""
    return _table(_key_columns(key.take(codes) for key in groups.keys) | fields)


def _fields(table: pd.DataFrame) -> Fields:
    """The fields of a sketch's table, without the keys."""
    return {c: table[c].to_numpy() for c in table.columns if not c.startswith("k")}


def _sketched(plan: Plan, table: str) -> Sketched:
    """What a table has the entries of."""
    return plan.sketches[int(table.removeprefix("sketch"))]


def _keys_together(tables: dict[str, pd.DataFrame]) -> list[pd.Series]:
    """The keys of all tables, stacked."""
    parts = [keys_of(table) for table in tables.values()]
    return [stack_series(columns) for columns in zip(*parts, strict=True)]


def _complete_keys(table: pd.DataFrame) -> Any:
    return np.logical_and.reduce([k.notna() for k in keys_of(table)])


def _key_columns(keys: Iterable[Any]) -> dict[str, Any]:
    return {f"k{i}": key for i, key in enumerate(keys)}


def _table(columns: dict[str, Any]) -> pd.DataFrame:
    # columns of one dtype next to each other are stacked, and sent, by one call
    rows = len(next(iter(columns.values())))
    joined = len(columns) >= _JOINED_COLUMNS and rows * len(columns) <= _JOINED_VALUES
    held = {n: c if n.startswith("k") else _held(c) for n, c in columns.items()}
    return pd.DataFrame(held, copy=joined)


def _held(values: Any) -> Any:
    """A field or value column of a partial: Python objects stay what they are."""
    return series_of(values) if holds_objects(values) else values
