"""Rows by the numbers of their groups: reduced by libcudf, sorted or selected from by our kernels.

libcudf meets only numbers of groups here, neither null keys nor categories, and its results need
no join.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy as cp
import numpy as np
import pylibcudf as plc
from pylibcudf.types import DataType, TypeId
from pylibcudf.utils import _get_stream

from dask_gpuagg.cuda.algorithms import select, sgb
from dask_gpuagg.cuda.query.structs import Chunk, ColumnStruct
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import Stopwatch
from dask_gpuagg.engines.device.columns import (
    DTYPES,
    FLOAT64,
    INT32,
    INT64,
    NOWHERE,
    UnsupportedType,
    array_of,
    column_of,
    ctype_of,
    gather,
    gather_columns,
    nans_to_nulls,
    view,
    view_of,
)

# Types whose quantiles are ticks.
_TICKS = tuple(kind for kind, dtype in DTYPES.items() if dtype.kind in "mM")


class SortedRows:
    """Rows of numbered groups, sorted where an output needs it, once for each column.

    ``codes`` are the numbers of all rows' groups, int32, -1 for none. ``how`` is ``auto``, ``sort``
    or ``select``: quantiles and distinct values of unsorted rows are read from sorted ones, or
    selected and counted without a sort where that can be. A stopwatch takes the device time of
    every kernel.
    """

    def __init__(
        self, codes: plc.Column, groups: int, stopwatch: Stopwatch | None = None, how: str = "auto"
    ) -> None:
        self._codes = codes
        self._groups = groups
        self._rows = codes.size()
        self._on = sgb.launcher(_get_stream(), stopwatch)
        self._sorted: tuple[plc.Column, sgb.Segments] | None = None
        self._how = how

    def quantile(self, column: plc.Column, q: float, interpolation: str) -> plc.Column:
        """One quantile of each group, null for groups without values.

        It is float64, or of the column's type for datetimes and durations, whose unit is a tick.
        """
        ticks = column.type().id() in _TICKS
        quantiles, width = None, TYPE_BYTES[sortable(column)]
        if self._skips_sort(column, select.selects(self._rows, self._groups, width)):
            quantiles = self._selected(column, q, interpolation, ticks)
        if quantiles is None:
            segments = self._values(column)
            quantiles = sgb.quantiles(self._on, segments, sortable(column), q, interpolation, ticks)
        data, mask, nulls = quantiles
        dtype = column.type() if ticks else FLOAT64
        return plc.Column(dtype, self._groups, data, mask if nulls else None, nulls, 0, [])

    def nunique(self, column: plc.Column) -> plc.Column:
        """Number of distinct values of each group, int64. Nulls are none, all NaN are one."""
        ctype, counts = sortable(column), None
        width = TYPE_BYTES[ctype]
        pays = select.divides(self._rows, self._groups, width)
        if width >= select.DIVIDED_BYTES and self._skips_sort(column, pays):
            counts = select.count_distinct(self._on, self._chunk(column), ctype)
        if counts is None:
            counts = sgb.count_distinct(self._on, self._values(column))
        return plc.Column(INT64, self._groups, counts, None, 0, 0, [])

    def list(self, column: plc.Column) -> plc.Column:
        """The values of each group in the order of the rows, nulls among them; of any type."""
        segments = sgb.sort_rows(self._on, self._address(), self._rows, self._groups)
        offsets = plc.Column(INT32, self._groups + 1, segments.starts, None, 0, 0, [])
        size = sgb.rows_of_groups(self._on, segments)
        numbers = plc.Column(INT32, size, segments.words.buffer, None, 0, 0, [])
        (child,) = gather_columns([column], numbers, all_there=True)
        return plc.Column(DataType(TypeId.LIST), self._groups, None, None, 0, 0, [offsets, child])

    def ascending(self, column: plc.Column) -> tuple[cp.ndarray, cp.ndarray]:
        """The values of each group in ascending order, as words of ``values_of``, without nulls.

        Also where each group begins, uint32 of shape (groups + 1,).
        """
        segments = self._values(column)
        width = segments.words.width
        words = cp.asarray(segments.words.buffer)[: self._rows * width].view(f"u{width}")
        return words, cp.asarray(segments.starts).view("u4")

    def _skips_sort(self, column: plc.Column, pays: bool) -> bool:
        """Whether an output is made without a sort."""
        if not self._rows or not self._groups or self._how == "sort":
            return False
        is_sorted = self._sorted is not None and self._sorted[0] is column
        return self._how == "select" or (pays and not is_sorted)

    def _selected(self, column: plc.Column, q: float, interpolation: str, ticks: bool) -> Any:
        # by itself, so that what it has allocated is released before a sort
        stride = select.stride_of(self._rows, self._groups)
        room = select.room_of(self._rows, self._groups, stride)
        selector = select.Selector(self._on, sortable(column), self._groups, q, ticks)
        return select.quantiles(selector, [self._chunk(column)], interpolation, stride, room)

    def _chunk(self, column: plc.Column) -> Chunk:
        return Chunk(column_struct(column), self._address(), self._rows, self._groups, 0)

    def _values(self, column: plc.Column) -> sgb.Segments:
        # one column at a time: sorted rows take as much memory as the column does
        if self._sorted is None or self._sorted[0] is not column:
            self._sorted = None
            struct, ctype = column_struct(column), sortable(column)
            segments = sgb.sort_values(
                self._on, struct, ctype, self._address(), self._rows, self._groups
            )
            self._sorted = (column, segments)
        return self._sorted[1]

    def _address(self) -> int:
        return int(self._codes.data().ptr) if self._rows else 0


def sortable(column: plc.Column) -> str:
    """C++ name of values that words sort as; the kernels sort no 128 bits."""
    ctype = ctype_of(column)
    if ctype == "i128":
        raise UnsupportedType(f"sorting values of type {column.type().id().name}")
    return ctype


def values_of(words: cp.ndarray, dtype: Any) -> cp.ndarray:
    """The numbers that words stand for (``Sortable`` of kernels/sgb/order.cuh)."""
    dtype = np.dtype(dtype)
    if dtype.kind == "u":
        return words.astype(dtype)
    sign = words.dtype.type(1 << (8 * dtype.itemsize - 1))
    if dtype.kind == "f":
        return cp.where(words & sign, words ^ sign, ~words).view(dtype)
    return (words ^ sign).astype(dtype)


def column_struct(column: plc.Column) -> ColumnStruct:
    """A column as kernels take it."""
    pointers = view_of(column)
    return ColumnStruct(pointers.data, pointers.mask, pointers.offset)


class Numbering:
    """The rows that belong to groups, in their order, and the numbers of their ``n`` groups.

    They come as ``pairs``, or ``of_rows``: the numbers of all rows' groups, int32, -1 for none.
    """

    def __init__(
        self,
        n: int,
        pairs: tuple[cp.ndarray, cp.ndarray] | None = None,
        of_rows: plc.Column | None = None,
    ) -> None:
        self.n = n
        self._pairs = pairs
        # an array of it only when asked for: the kernels that sort and select take the column
        self._column = of_rows
        self._sorted: SortedRows | None = None

    @classmethod
    def of_keys(cls, keys: Sequence[Any], groups: Sequence[Any]) -> Numbering:
        """From the keys of all rows, and those of the groups in the order of their numbers."""
        return cls.of_columns([view(k) for k in keys], [view(g) for g in groups])

    @classmethod
    def of_columns(cls, keys: Sequence[plc.Column], groups: Sequence[plc.Column]) -> Numbering:
        """See ``of_keys``; the columns are libcudf's."""
        rows, codes = joined(keys, groups)
        order = cp.argsort(rows)
        return cls(groups[0].size(), (rows[order], codes[order]))

    @property
    def rows(self) -> cp.ndarray:
        """The rows that belong to groups."""
        return self._rows_and_codes()[0]

    @property
    def codes(self) -> cp.ndarray:
        """The numbers of their groups."""
        return self._rows_and_codes()[1]

    def _rows_and_codes(self) -> tuple[cp.ndarray, cp.ndarray]:
        if self._pairs is None:  # only when asked for: a sort needs the codes of all rows
            assert self._column is not None
            codes = array_of(self._column)
            rows = cp.flatnonzero(codes >= 0).astype(cp.int32)
            self._pairs = (rows, codes[rows])
        return self._pairs

    def sorted(self, rows: int) -> SortedRows:
        """All rows, this many, for the kernels that select and sort."""
        if self._sorted is None:
            column = column_of(self.of_rows(rows)) if self._column is None else self._column
            self._sorted = SortedRows(column, self.n)
        return self._sorted

    def of_rows(self, rows: int) -> cp.ndarray:
        """The numbers of the groups of all rows, this many; -1 for rows of none."""
        if self._column is not None:
            return array_of(self._column)
        codes = cp.full(rows, -1, dtype=cp.int32)
        codes[self.rows] = self.codes
        return codes

    def where(self, chosen: cp.ndarray) -> Numbering:
        """A numbering of some of the rows, with all groups."""
        return Numbering(self.n, (self.rows[chosen], self.codes[chosen]))

    def take(self, column: Any) -> plc.Column:
        """Values of a column of all rows, for those that belong to groups."""
        return gather(view(column), self.rows)

    def reduce(self, values: plc.Column, aggregation: Any) -> plc.Column:
        """One aggregation of libcudf, null for groups without rows.

        ``values`` are of the rows that belong to groups.
        """
        by = plc.groupby.GroupBy(plc.Table([column_of(self.codes)]))
        keys, tables = by.aggregate([plc.groupby.GroupByRequest(values, [aggregation])])
        return self.spread(array_of(keys.columns()[0]), tables[0].columns()[0])

    def spread(self, codes: cp.ndarray, values: plc.Column) -> plc.Column:
        """Values of some groups in a column of all groups; null for the others."""
        if len(codes) == 0:
            return plc.Column.all_null_like(values, self.n)
        places = cp.full(self.n, NOWHERE, dtype=cp.int32)
        places[codes] = cp.arange(len(codes), dtype=cp.int32)
        return gather(values, places)

    def sums(self, values: cp.ndarray) -> cp.ndarray:
        """Sums in float64 of values of the rows that belong to groups; of none 0."""
        if len(values) == 0:
            return cp.zeros(self.n)
        return cp.bincount(self.codes, weights=values, minlength=self.n)

    @property
    def size(self) -> cp.ndarray:
        """Rows of each group, int64."""
        return counts_of(self.codes, self.n)


def counts_of(codes: cp.ndarray, n: int) -> cp.ndarray:
    """Occurrences of each of ``n`` numbers, int64; CuPy before 14.2 refuses to count nothing."""
    if len(codes) == 0:
        return cp.zeros(n, dtype=cp.int64)
    return cp.bincount(codes, minlength=n).astype(cp.int64)


def matches(keys: Sequence[Any], groups: Sequence[Any]) -> tuple[cp.ndarray, cp.ndarray]:
    """Join the keys of rows with those of groups; see ``joined``."""
    return joined([view(k) for k in keys], [view(g) for g in groups])


def joined(
    keys: Sequence[plc.Column], groups: Sequence[plc.Column]
) -> tuple[cp.ndarray, cp.ndarray]:
    """Rows whose keys are those of a group, in no order, and the numbers of their groups.

    A null key is itself, and a NaN key is a null one.
    """
    tables = [plc.Table([nans_to_nulls(key) for key in side]) for side in (keys, groups)]
    rows, codes = plc.join.inner_join(*tables, plc.types.NullEquality.EQUAL)
    return array_of(rows), array_of(codes)
