"""The host engine: pandas partitions in, pandas results out; see ``engines.Engine``."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from dask_gpuagg.aggregations import Kind
from dask_gpuagg.dtypes import NUMERIC, TEMPORAL, dtype_class, is_plain
from dask_gpuagg.engines.host.compiled import Fields, Reducer
from dask_gpuagg.engines.host.dtypes import (
    common_dtype,
    compatible,
    holds_objects,
    key_as_promised,
    key_as_text,
    key_of_no_group,
    of_categories,
    series_of,
    unmasked,
)
from dask_gpuagg.engines.host.exchange import (
    bucket_of,
    concatenated_outputs,
    divided_outputs,
    split,
)
from dask_gpuagg.engines.host.finish import WHOLE, finish_groups, finish_matrix, finish_values
from dask_gpuagg.engines.host.grouping import Codes, Groups, first_rows, group, repeated
from dask_gpuagg.engines.host.sketches import SKETCHES
from dask_gpuagg.engines.host.stacking import (
    MANY_COLUMNS,
    Columns,
    States,
    alike,
    bytes_of,
    columns_of,
    divided,
    filtered,
    is_categorical,
    join,
    keys_of,
    merge_many,
    stack,
    stack_series,
    stacked,
    update_many,
)
from dask_gpuagg.engines.host.states import expect, merge, update
from dask_gpuagg.expressions import derived
from dask_gpuagg.plan import Column, Output, Partial, Plan, Sketched
from dask_gpuagg.states import STATES

__all__ = [
    "NAME", "alike", "bytes_of", "combine", "common_dtype", "compatible", "concatenated_outputs",
    "derived", "direct", "direct_of_frame", "divided", "divided_outputs", "filtered", "finalize",
    "of_categories", "partial", "regrouped", "restored", "sampled", "shape_of", "split", "stack",
    "stacked",
    "within_memory",
]  # fmt: skip

NAME = "host"
T = TypeVar("T")

# from this many columns on, those of one dtype are joined in memory
_JOINED_COLUMNS = 5
_JOINED_VALUES = 1 << 20
# classes of keys and fields that no merge changes
_PLAIN = frozenset((*NUMERIC, *TEMPORAL, "category", "string"))
# to find the distinct pairs of a partition pays where so many of its rows repeat one
_LEAST_REPEATED = 0.3


def partial(
    keys: Sequence[pd.Series],
    columns: Sequence[pd.Series],
    index: pd.Index,
    plan: Plan,
) -> Partial:
    """Reduce rows to one row per local group; see ``Engine.partial``."""
    all_keys, promised = keys, plan.keys
    if plan.shape == "values":
        # the value joins the keys, and rows without one leave; but every category of a group is
        # counted, those of a group whose values are all null too
        valued = [] if is_categorical(columns[0]) else columns
        required = [*(keys if plan.dropna else []), *valued]
        keys, columns = [*keys, columns[0]], []
        # NaN alone are no floats that are counted, whatever was promised
        all_keys, promised = keys, (*plan.keys, Column(plan.columns[0].label, np.dtype(object)))
        if required:
            valid = np.logical_and.reduce([k.notna() for k in required])
            keys, index = [k[valid] for k in keys], index[valid]
    dropna = plan.dropna and not plan.drops_late and plan.shape != "values"
    groups = group(keys, dropna)
    if groups.has_group is not None:
        if isinstance(columns, Columns):
            columns = columns.take(np.flatnonzero(groups.has_group))
        else:
            columns = [c[groups.has_group] for c in columns]
        index = index[groups.has_group]
        keys = [k[groups.has_group] for k in keys]
    if groups.n == 0:
        keys = [key_of_no_group(*pair) for pair in zip(all_keys, promised, strict=True)]
        groups = replace(groups, keys=[key.array for key in keys])
    # the last key of value_counts is the value
    texts = [key_as_text(*pair) for pair in zip(groups.keys, promised, strict=False)]
    groups = replace(groups, keys=[*texts, *groups.keys[len(texts) :]])
    tables: Partial = {}
    if plan.grouped:
        reducer = Reducer(groups.codes, groups.n)
        states = _states(reducer, columns, index, plan)
        tables["groups"] = _table(groups.keys, _columns_of_states(states))
    for c in plan.pairs:
        tables[f"pairs{c}"] = _distinct(groups, keys, columns[c], at_least=_LEAST_REPEATED)
    for i, sketched in enumerate(plan.sketches):
        of_rows = SKETCHES[sketched.aggregation].update
        values, parameters = columns[sketched.column], dict(sketched.parameters)
        codes, fields = of_rows(groups.codes, groups.n, values, **parameters)
        tables[f"sketch{i}"] = _table([key.take(codes) for key in groups.keys], fields)
    if plan.rows:
        values_of = {f"v{c}": _field(columns[c].array) for c in plan.rows}
        rows = _key_columns(k.array for k in keys) | values_of
        tables["rows"] = pd.DataFrame(rows, copy=False)
    return tables


def combine(partials: Sequence[Partial], plan: Plan, owned: bool = False) -> Partial:
    """Merge partials into one of the same layout; see ``Engine.combine``."""
    tables: Partial = {}
    for layout in plan.tables:
        table = stack(alike([p[layout.name] for p in partials], plan))
        if layout.kind is not Kind.WHOLE:
            keys = keys_of(table)
            groups = group(keys, dropna=False)
            if layout.kind is Kind.MERGEABLE:
                states = _merged_states(Reducer(groups.codes, groups.n), table, plan)
                table = _table(groups.keys, _columns_of_states(states))
            elif layout.kind is Kind.DISTINCT:
                table = _distinct(groups, keys, table["v"])
            else:
                codes, fields = _merged_sketch(layout.sketch, groups.codes, groups.n, table)
                table = _table([key.take(codes) for key in groups.keys], fields)
        tables[layout.name] = table
    return tables


def regrouped(tables: Partial, plan: Plan) -> Partial:
    """Merge the rows of each group; see ``Engine.regrouped``."""
    return combine([tables], plan)


def finalize(
    partials: Sequence[Partial],
    plan: Plan,
    meta: Any,
    bucket: tuple[int, int] | None = None,
    owned: bool = False,
) -> Any:
    """Merge partials and compute the outputs; see ``Engine.finalize``."""
    if len(partials) == 1 and _is_plain(partials[0], plan):
        # each row is a group: nothing is merged
        table = partials[0]["groups"]
        arrays = {name: _array(table[name], owned) for name in table.columns}
        keys = [arrays[f"k{i}"] for i in range(len(plan.keys))]
        return finish_groups(keys, _states_in(arrays, plan), None, plan, meta)
    tables = {
        layout.name: stack(alike([p[layout.name] for p in partials], plan))
        for layout in plan.tables
    }
    expected: list[Any] = []
    if not plan.observed and plan.shape != "values":
        expected = _expected_groups(_keys_together(tables), plan.dropna)
        if plan.drops_late:
            complete = {
                name: np.logical_and.reduce([key.notna() for key in keys_of(table)])
                for name, table in tables.items()
            }
            tables = {name: table[complete[name]] for name, table in tables.items()}
    groups = group(_keys_together(tables), dropna=False)
    # the last key of value_counts is the value
    levels = [meta.index.get_level_values(i).dtype for i in range(len(plan.keys))]
    keys = [key_as_promised(*of) for of in zip(groups.keys, plan.keys, levels, strict=False)]
    if plan.gathered:  # outputs have no categories yet that they all share
        pairs = zip(keys, groups.keys, strict=False)
        keys = [g if is_categorical(k) and not is_categorical(g) else k for k, g in pairs]
    if plan.shape == "values":
        counted = plan.columns[0].dtype
        values = groups.keys[-1] if groups.n else pd.Series(groups.keys[-1]).astype(counted).array
        keys.append(unmasked(values, counted))
    n = groups.n
    if expected:
        keys = _with_expected(keys, expected, bucket, [key.dtype for key in plan.keys])
        n = len(keys[0])
    ends = np.cumsum([len(table) for table in tables.values()])[:-1]
    codes = dict(zip(tables, np.split(groups.codes, ends), strict=True))
    for layout in plan.tables:
        name, table = layout.name, tables[layout.name]
        if layout.kind is Kind.DISTINCT:
            rows = first_rows(codes[name], n, table["v"])
            if len(rows) < len(table):
                tables[name] = _table([], {"v": table["v"].array.take(rows)})
                codes[name] = codes[name].take(rows)
        elif layout.kind is Kind.SKETCH:
            codes[name], fields = _merged_sketch(layout.sketch, codes[name], n, table)
            tables[name] = _table([], fields)
    reducers = {name: Reducer(codes[name], n) for name in tables}
    states: States = {}
    if plan.grouped:
        states = _merged_states(reducers["groups"], tables["groups"], plan)
    elif plan.states:
        table = tables["rows"]
        columns = {c: table[f"v{c}"] for c in plan.rows}
        states = _states(reducers["rows"], columns, table.index, plan)
    if plan.shape == "values":
        return finish_values(keys, states, plan, meta)
    if plan.shape == "matrix":
        return finish_matrix(keys, states, plan, meta)

    def from_table(i: int, output: Output) -> Any:
        name, parameters = plan.table_of(output), dict(output.parameters)
        table, reducer = tables[name], reducers[name]
        if output.kind is Kind.SKETCH:
            finish = SKETCHES[output.aggregation].finish
            return finish(reducer.codes, n, _fields_of(table), **parameters)
        if output.kind is Kind.WHOLE and plan.narrowed:
            # one row of a group at most
            values = table[f"o{i}"].to_numpy()
            placed = np.full(n, np.nan, values.dtype)
            placed[reducer.codes] = values
            return placed
        column = f"v{output.column}" if output.kind is Kind.WHOLE else "v"
        return WHOLE[output.aggregation](reducer, table[column], parameters)

    return finish_groups(keys, states, from_table, plan, meta)


def _is_plain(partial: Partial, plan: Plan) -> bool:
    """Whether a partial is groups alone, of numbers, times, categories and text of Arrow."""
    if not plan.is_one_table or plan.shape != "groups" or not plan.observed or plan.deviating:
        return False
    promised = [key.dtype for key in plan.keys]
    table = partial["groups"]
    if [table[f"k{i}"].dtype for i in range(len(promised))] != promised:
        return False
    return not any(use.custom for use in plan.states) and all(
        dtype_class(dtype) in _PLAIN for dtype in {*promised, *table.dtypes}
    )


def _array(column: pd.Series, owned: bool) -> Any:
    """The array of a column; one that can be written to, where it is owned and memory is."""
    if not is_plain(column.dtype):
        return column.array
    values = column.to_numpy()
    if owned:
        # pandas shows its memory read-only; that of a message is
        with suppress(ValueError):
            values.flags.writeable = True
    return values


# Functions of the protocol that the host needs nothing for.


def direct(parts: Sequence[Any], plan: Plan, meta: Any) -> None:
    """Return None: partials are as fast."""


def direct_of_frame(frame: Any, by: Sequence[Any], plan: Plan, meta: Any) -> None:
    """Return None: partials are as fast."""


def shape_of(meta: Any) -> Any:
    """Return the metadata, which pandas sends as it is."""
    return meta


def within_memory(
    what: str,
    step: Callable[[], T],
    smaller: Callable[[], T] | None = None,
    held: list[Any] | None = None,
) -> T:
    """Return the result of the step: systems end a process rather than refuse it memory."""
    return step()


def restored(partials: list[Any]) -> list[Partial]:
    """Return the partials: none is spilled."""
    return partials


def sampled(column: pd.Series, step: int) -> pd.Series:
    """Return every ``step``-th row; see ``Engine``."""
    return column.iloc[::step]


# States, distinct pairs and sketches of tables.


def _states(
    reducer: Reducer,
    columns: Mapping[int, pd.Series] | Sequence[pd.Series],
    index: pd.Index,
    plan: Plan,
) -> States:
    """The states of rows."""
    reduced = update_many(reducer, columns, plan)
    rest = [(i, use) for i, use in enumerate(plan.states) if i not in reduced]
    for _, use in rest:  # so that each column is read once for all of its states
        for c in use.columns:
            reducer.expect(use.state, columns[c])
    for i, use in rest:
        inputs = [columns[c] for c in use.columns]
        if use.custom is None:
            reduced[i] = update(reducer, use.state, inputs, index)
        else:
            named = inputs[0].rename(plan.columns[use.columns[0]].label)
            grouped = named.groupby(reducer.codes, sort=True)
            reduced[i] = _custom_fields(use.custom.chunk(grouped), reducer.n)
    return reduced


def _columns_of_states(states: States) -> Fields:
    """The fields of states by their names in a partial, in the order of the plan."""
    return {f"s{i}.{name}": values for i in sorted(states) for name, values in states[i].items()}


def _states_in(columns: Mapping[str, Any], plan: Plan, but: Container[int] = ()) -> States:
    """The states among the columns of a partial, without those at some positions of the plan."""
    return {
        i: {f: columns[f"s{i}.{f}"] for f in STATES[use.state].fields_in(columns, f"s{i}.")}
        for i, use in enumerate(plan.states)
        if i not in but
    }


def _custom_fields(returned: Any, n: int) -> Fields:
    """Fields of a ``dd.Aggregation``: one for each Series that its function returns."""
    series = returned if isinstance(returned, tuple) else (returned,)
    return {str(i): s.reindex(pd.RangeIndex(n)).array for i, s in enumerate(series)}


def _merged_states(reducer: Reducer, table: pd.DataFrame, plan: Plan) -> States:
    merged = merge_many(reducer, table, plan)
    if len(merged) == len(plan.states):
        return merged
    columns = dict(zip(table.columns, columns_of(table, list(table.columns)), strict=True))
    rest = _states_in(columns, plan, but=merged)
    for i, fields in rest.items():
        expect(reducer, plan.states[i].state, fields)
    for i, fields in rest.items():
        use = plan.states[i]
        if use.custom is None:
            merged[i] = merge(reducer, use.state, fields)
        else:
            names = [c for c in table.columns if c.startswith(f"s{i}.")]
            level = pd.Index(reducer.codes)
            grouped = [table[c].set_axis(level).groupby(level=0, sort=True) for c in names]
            merged[i] = _custom_fields(use.custom.agg(*grouped), reducer.n)
    return merged


def _distinct(
    groups: Groups, keys: Sequence[pd.Series], values: pd.Series, at_least: float = 0.0
) -> pd.DataFrame:
    """Distinct (key, value) pairs in order of appearance; a null value is a value.

    All rows, where about less than ``at_least`` of them repeat a pair: they are merged anyway.
    """
    arrays = [column.array for column in (*keys, values)]
    if repeated(groups.codes, values) >= at_least:
        rows = first_rows(groups.codes, groups.n, values)
        if len(rows) < len(values):
            arrays = [array.take(rows) for array in arrays]
    return _table(arrays[:-1], {"v": arrays[-1]})


def _merged_sketch(
    sketched: Sketched | None, codes: Codes, n: int, table: pd.DataFrame
) -> tuple[Codes, Fields]:
    """Group numbers and fields of the merged entries of a sketch's table."""
    assert sketched is not None
    merge_entries = SKETCHES[sketched.aggregation].merge
    return merge_entries(codes, n, _fields_of(table), **dict(sketched.parameters))


def _fields_of(table: pd.DataFrame) -> Fields:
    """The fields of a sketch's table, without the keys."""
    return {c: table[c].to_numpy() for c in table.columns if not c.startswith("k")}


def _keys_together(tables: Partial) -> list[pd.Series]:
    """The keys of all tables, stacked."""
    parts = [keys_of(table) for table in tables.values()]
    return [stack_series(columns) for columns in zip(*parts, strict=True)]


def _table(keys: Sequence[Any], fields: Fields) -> pd.DataFrame:
    """A table of a partial."""
    columns = _key_columns(keys) | {name: _field(values) for name, values in fields.items()}
    rows = len(next(iter(columns.values())))
    # columns of one dtype next to each other are stacked, and sent, by one call
    joined = len(columns) >= _JOINED_COLUMNS and rows * len(columns) <= _JOINED_VALUES
    if not joined or len(columns) < MANY_COLUMNS:
        return pd.DataFrame(columns, copy=joined)
    return join(columns)  # pandas' work for each column would be all of the time


def _key_columns(keys: Iterable[Any]) -> dict[str, Any]:
    return {f"k{i}": key for i, key in enumerate(keys)}


def _field(values: Any) -> Any:
    """A field or value column of a partial: Python objects stay what they are."""
    return series_of(values) if holds_objects(values) else values


# Groups that no row has, which ``observed=False`` asks for.


def _expected_groups(keys: list[pd.Series], dropna: bool) -> list[Any]:
    """The groups that ``observed=False`` asks for; none without categorical keys.

    As in pandas: every combination of the categories, with every combination of the other keys
    that occurs.
    """
    levels = [_categories(key, dropna) for key in keys if is_categorical(key)]
    if not levels:
        return []
    product = pd.MultiIndex.from_product([np.arange(len(level)) for level in levels])
    plain = [key for key in keys if not is_categorical(key)]
    if dropna and plain:
        complete = np.logical_and.reduce([k.notna() for k in plain])
        plain = [k[complete] for k in plain]
    combinations = group(plain, dropna=False) if plain else Groups(np.zeros(0), 1, [], None)
    of_product = np.tile(np.arange(len(product)), combinations.n)
    of_plain = np.repeat(np.arange(combinations.n), len(product))
    categorical = iter(
        level.take(product.get_level_values(i).to_numpy()[of_product])
        for i, level in enumerate(levels)
    )
    others = iter(key.take(of_plain) for key in combinations.keys)
    return [next(categorical if is_categorical(key) else others) for key in keys]


def _with_expected(
    keys: list[Any], expected: list[Any], bucket: tuple[int, int] | None, dtypes: Sequence[Any]
) -> list[Any]:
    """Append the expected groups that are not there behind those that are."""
    pairs = zip(keys, expected, strict=True)
    together = [stack_series([pd.Series(k), pd.Series(e)]) for k, e in pairs]
    codes = group(together, dropna=False).codes
    there = len(keys[0])
    missing = np.flatnonzero(~np.isin(codes[there:], codes[:there]))
    columns = [e.take(missing) for e in expected]
    if bucket is not None and len(missing):
        mine = bucket_of(columns, dtypes, bucket[1]) == bucket[0]
        columns = [c[mine] for c in columns]
    return [
        stack_series([pd.Series(k), pd.Series(c)]).array for k, c in zip(keys, columns, strict=True)
    ]


def _categories(key: pd.Series, dropna: bool) -> Any:
    """All categories of a categorical key as its values; null if it occurs."""
    null = [] if dropna or key.notna().all() else [None]
    return pd.Categorical([*key.cat.categories, *null], dtype=key.dtype)
