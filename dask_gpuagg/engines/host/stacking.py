"""Tables and columns of several pandas partitions, concatenated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import union_categoricals

from dask_gpuagg import exact_sums
from dask_gpuagg.dtypes import dtype_class, is_plain
from dask_gpuagg.engines.host import compiled
from dask_gpuagg.engines.host.compiled import Fields, Reducer
from dask_gpuagg.engines.host.grouping import group, rows_of_each
from dask_gpuagg.engines.host.states import sums_fit
from dask_gpuagg.plan import Plan

Array = npt.NDArray[Any]

# rows up to which stacking partitions costs less than a call of the loops for each
_ROWS_OF_A_CALL = 1 << 18
# where groups have fewer rows in each partition, merging costs more than stacking more rows
_ROWS_OF_A_GROUP = 8
_ROWS_OF_MANY_GROUPS = 1 << 23
# from here on pandas' work per column is all of the time of a small partition
MANY_COLUMNS = 32


def keys_of(table: pd.DataFrame) -> list[pd.Series]:
    """The key columns of a table of a partial."""
    return [table[c] for c in table.columns if c.startswith("k")]


class Columns(Sequence[pd.Series]):
    """Many columns of plain numbers of a frame, which are no Series before they are asked for.

    pandas spends some ten microseconds on each Series.
    """

    def __init__(self, frame: pd.DataFrame, places: Array) -> None:
        self._frame, self._places = frame, places
        dtypes = frame.dtypes.to_list()
        self.dtypes = [dtypes[place] for place in places]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return Columns(self._frame, self._places[position])
        return self._frame.iloc[:, self._places[position]]

    def take(self, rows: Array) -> Columns:
        """The columns of rows by number."""
        return Columns(self._frame.take(rows), self._places)

    def block(self, positions: Sequence[int]) -> Array:
        """The values of some columns, shape (columns, rows)."""
        places = self._places[list(positions)]
        side_by_side = (np.diff(places) == 1).all()  # these are not copied
        taken: Any = slice(places[0], places[-1] + 1) if side_by_side else places
        values: Array = self._frame.iloc[:, taken].to_numpy().T
        return values


def columns_of(frame: pd.DataFrame, labels: Sequence[Any]) -> Sequence[pd.Series]:
    """Columns of a frame by their labels."""
    if len(labels) < MANY_COLUMNS or not frame.columns.is_unique:
        return [frame[label] for label in labels]
    places = frame.columns.get_indexer_for(labels)
    if (places < 0).any():
        raise KeyError([label for label, place in zip(labels, places, strict=True) if place < 0])
    columns = Columns(frame, places)
    if all(map(compiled.can_read, set(columns.dtypes))):
        return columns
    return [frame.iloc[:, place] for place in places]


def filtered(
    keys: Sequence[pd.Series], columns: Sequence[pd.Series], index: pd.Index, mask: Any, plan: Plan
) -> tuple[Sequence[pd.Series], Sequence[pd.Series], pd.Index]:
    """Leave out the rows for which ``mask`` is not true; see ``Engine.filtered``."""
    # row numbers cost a third of what a mask costs, where every second row stays
    rows = _rows_where(mask)
    if len(rows) == len(mask):
        return keys, columns, index
    labels = index.take(rows) if plan.reads_labels else pd.RangeIndex(len(rows))

    def of_rows(column: pd.Series) -> pd.Series:
        return pd.Series(column.array.take(rows), index=labels, name=column.name, copy=False)

    if isinstance(columns, Columns):
        return list(map(of_rows, keys)), columns.take(rows), labels
    distinct = {id(column): column for column in (*keys, *columns)}
    taken = {name: of_rows(column) for name, column in distinct.items()}
    return [taken[id(key)] for key in keys], [taken[id(column)] for column in columns], labels


def _rows_where(mask: pd.Series) -> Array:
    """Numbers of the rows for which a mask is true; what is no mask for pandas is an error."""
    if mask.dtype == bool or not len(mask):
        return np.flatnonzero(mask)
    numbers = pd.DataFrame({"row": np.arange(len(mask))}, mask.index)
    rows: Array = numbers[mask]["row"].to_numpy()
    return rows


def stack(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate in order of the partitions."""
    if len(tables) == 1:
        return tables[0]
    # fields without a row must not widen the others'
    filled = [t for t in tables if len(t)] or tables[:1]
    dtypes = list(tables[0].dtypes)
    plain = not any(isinstance(dtype, pd.CategoricalDtype) for dtype in dtypes)
    if plain and all(list(t.dtypes) == dtypes for t in tables[1:]):
        return pd.concat(filled, ignore_index=True) if len(filled) > 1 else filled[0]
    columns = {
        # keys have the dtype of all partitions, and the categories of all
        name: _stack_columns([t[name] for t in (tables if name.startswith("k") else filled)])
        for name in filled[0].columns
    }
    return pd.DataFrame(columns, copy=False)


def alike(tables: Sequence[pd.DataFrame], plan: Plan) -> list[pd.DataFrame]:
    """Tables of one name with the same columns: of groups, some lack bins of exact sums."""
    if not plan.deterministic or not any(name.startswith("s") for name in tables[0].columns):
        return list(tables)
    names = exact_sums.united(table.columns for table in tables)
    return [
        table.assign(**dict.fromkeys(set(names) - set(table.columns), np.int64(0)))[names]
        for table in tables
    ]


def _stack_columns(columns: list[pd.Series]) -> Any:
    """One column of several; one without rows does not count if its dtype is that of objects."""
    columns = [c for c in columns if len(c) or dtype_class(c.dtype) != "object"] or columns[:1]
    if any(map(is_categorical, columns)):
        return _stack_categories(columns)
    return pd.concat(columns, ignore_index=True)


def is_categorical(column: pd.Series) -> bool:
    """Whether a column holds categories."""
    return isinstance(column.dtype, pd.CategoricalDtype)


def _stack_categories(columns: list[pd.Series]) -> Any:
    """Categories are united, those of empty partitions too: ``observed=False`` gives them all."""
    filled = [c for c in columns if len(c)] or columns[:1]
    text = any(dtype_class(c.dtype) == "string" for c in columns)
    if all(map(is_categorical, filled)) and not text:
        categorical = [c for c in columns if is_categorical(c)]
        # the metadata's placeholder for unknown categories does not unite with other dtypes
        of = {c.cat.categories.dtype for c in filled}
        if len(of) == 1:
            same = [c for c in categorical if len(c) or c.cat.categories.dtype in of]
            # ordered categories unite with the same ones only: those without rows may be others
            ordered = any(c.cat.ordered for c in same)
            united = filled if ordered and len({c.dtype for c in same}) > 1 else same
            return union_categoricals(united)
    plain = [
        c.astype(c.cat.categories.dtype) if is_categorical(c) and len(c.cat.categories) else c
        for c in filled
    ]
    return pd.concat(plain, ignore_index=True).array


def stack_series(columns: Sequence[pd.Series]) -> pd.Series:
    """One column of several."""
    if len(columns) == 1:
        return columns[0]
    return stack([c.to_frame(name="k") for c in columns])["k"]


def places_among(table: pd.DataFrame, among: pd.DataFrame) -> Array:
    """The row of each row's keys among those of another table, -1 for none; nulls are equal."""
    pairs = zip(keys_of(among), keys_of(table), strict=True)
    together = group([stack_series(pair) for pair in pairs], dropna=False)
    of_other, of_row = np.split(together.codes, [len(among)])
    places: Array = np.full(together.n, -1)
    places[of_other] = np.arange(len(among))
    return np.asarray(places[of_row])


def divided(run: Sequence[Any]) -> list[Sequence[Any]]:
    """Divide partitions of equal dtypes into those that are stacked."""
    limit = _ROWS_OF_A_CALL
    large = len(run) > 1 and len(run[0]) > limit
    if large and rows_of_each([key.array for key in run[0].keys]) < _ROWS_OF_A_GROUP:
        limit = _ROWS_OF_MANY_GROUPS
    ends = np.cumsum([len(part) for part in run])
    pieces: list[Sequence[Any]] = []
    start = 0
    while start < len(run):
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + limit, side="right")), start + 1)
        pieces.append(run[start:stop])
        start = stop
    return pieces


def bytes_of(columns: Iterable[pd.Series]) -> int:
    """Bytes of columns, roughly: of Python objects those of their addresses."""
    if isinstance(columns, Columns):
        return len(columns[0]) * sum(int(dtype.itemsize) for dtype in columns.dtypes)
    return sum(
        # every task of every query asks
        len(column) * column.dtype.itemsize
        if isinstance(column.dtype, np.dtype)
        else int(column.memory_usage(index=False))
        for column in columns
    )


def stacked(parts: Sequence[Sequence[pd.Series]], plan: Plan) -> list[pd.Series]:
    """Columns of several partitions, concatenated by position; dtypes are equal by position."""
    return [
        # without a look at indexes and dtypes, which are the same, for each of many columns
        pd.Series(np.concatenate([column.to_numpy() for column in columns]), copy=False)
        if is_plain(columns[0].dtype)
        else pd.concat(columns, ignore_index=True)
        for columns in zip(*parts, strict=True)
    ]


# values of a block, which may be a copy
_BLOCK = 1 << 23
# states of one field: its name, and how rows are reduced to it
_FIELDS = {
    "count": ("n", "count"),
    "isum": ("sum", "sum"),
    "fsum": ("sum", "sum"),
    "min": ("min", "min"),
    "max": ("max", "max"),
}


States = dict[int, Fields]


def update_many(
    reducer: Reducer, columns: Mapping[int, pd.Series] | Sequence[pd.Series], plan: Plan
) -> States:
    """Reduce rows to the states of many columns of one dtype, by their positions in the plan."""
    states: States = {}
    dtypes = getattr(columns, "dtypes", columns)

    def dtype_of(i: int, use: Any) -> Any:
        return getattr(dtypes[use.columns[0]], "dtype", dtypes[use.columns[0]])

    for state, dtype, positions in _alike_states(plan, dtype_of):
        field, how = _FIELDS[state]
        # sums have 64 bits
        wide = {"i": np.int64, "u": np.uint64, "f": np.float64}[dtype.kind]
        kind = wide if how == "sum" else dtype
        places = [plan.states[i].columns[0] for i in positions]
        # a sum of integers that leaves 64 bits is not rounded as one of float64 is
        is_rounded = state == "fsum" and dtype.kind in "iu"
        if is_rounded and not all(map(sums_fit, _blocks(columns, places))):
            continue
        reduced = _reduce(reducer, _blocks(columns, places), kind, how, {})
        if state == "fsum":
            reduced = reduced.astype(np.float64, copy=False)
        states |= {i: {field: row} for i, row in zip(positions, reduced, strict=True)}
    return states


def merge_many(reducer: Reducer, table: pd.DataFrame, plan: Plan) -> States:
    """Merge rows of the states of many columns, by their positions in the plan."""
    states: States = {}
    dtypes = dict(zip(table.columns, table.dtypes, strict=True))

    def dtype_of(i: int, use: Any) -> Any:
        return dtypes[f"s{i}.{_FIELDS[use.state][0]}"]

    for state, dtype, positions in _alike_states(plan, dtype_of):
        field, how = _FIELDS[state]
        block = table[[f"s{i}.{field}" for i in positions]].to_numpy().T
        # an inf - inf of a partition is NaN and has to stay NaN: partial sums are never skipped
        how, options = (how, {}) if how in ("min", "max") else ("sum", {"skipna": False})
        reduced = _reduce(reducer, [block], dtype, how, options)
        states |= {i: {field: row} for i, row in zip(positions, reduced, strict=True)}
    return states


def join(columns: Mapping[Any, Any], index: pd.Index | None = None) -> pd.DataFrame:
    """Join columns to a frame, those of one plain dtype next to each other in one block."""
    blocks: dict[Any, list[Any]] = {}
    for name, values in columns.items():
        plain = isinstance(values, np.ndarray)
        blocks.setdefault(values.dtype if plain else name, []).append(name)
    frames = [
        # pandas looks a Python string up faster than one of Arrow's
        pd.DataFrame(np.array([columns[n] for n in names]).T, index, pd.Index(names, dtype=object))
        if isinstance(dtype, np.dtype)
        else pd.DataFrame({name: columns[name] for name in names}, index, copy=False)
        for dtype, names in blocks.items()
    ]
    return pd.concat(frames, axis=1) if len(frames) > 1 else frames[0]


def _alike_states(
    plan: Plan, dtype_of: Callable[[int, Any], Any]
) -> list[tuple[str, np.dtype[Any], list[int]]]:
    """The states that are many of one name and plain dtype: name, dtype and positions."""
    if len(plan.states) < MANY_COLUMNS:
        return []
    alike: dict[tuple[str, Any], list[int]] = {}
    for i, use in enumerate(plan.states):
        if use.state in _FIELDS:
            alike.setdefault((use.state, dtype_of(i, use)), []).append(i)
    return [
        (state, dtype, positions)
        for (state, dtype), positions in alike.items()
        if len(positions) >= MANY_COLUMNS and compiled.can_read(dtype)
    ]


def _blocks(columns: Any, places: Sequence[int]) -> Iterator[Array]:
    """Values of columns, some of them at a time; shape (columns, rows)."""
    step = max(_BLOCK // max(len(columns[places[0]]), 1), 1)
    for start in range(0, len(places), step):
        some = places[start : start + step]
        if isinstance(columns, Columns):
            yield columns.block(some)
        else:
            yield np.array([columns[place].to_numpy() for place in some])


def _reduce(
    reducer: Reducer, blocks: Iterable[Array], dtype: Any, how: str, options: Mapping[str, Any]
) -> Array:
    """Reduce columns as a dtype; shape (columns, groups)."""
    parts = [reducer.reduce_block(b.astype(dtype, copy=False), how, options) for b in blocks]
    return np.concatenate(parts) if len(parts) > 1 else parts[0]
