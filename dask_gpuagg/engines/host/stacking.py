"""Tables and columns of several pandas partitions, concatenated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.types import union_categoricals

from dask_gpuagg import exact_sums
from dask_gpuagg.dtypes import dtype_class, is_plain
from dask_gpuagg.engines.host.compiled import can_read
from dask_gpuagg.engines.host.grouping import rows_of_each
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

    def where(self, rows: Array) -> Columns:
        """The columns of some rows."""
        return Columns(self._frame[rows], self._places)

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
    if all(map(can_read, set(columns.dtypes))):
        return columns
    return [frame.iloc[:, place] for place in places]


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
