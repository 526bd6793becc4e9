"""Groups of rows: found by the kernels, numbered, and sorted or selected from.

What the kernels do not make is left to libcudf, on the numbers of the groups that the kernels
found: so it meets neither null keys nor categories, and its results need no join.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import cupy as cp
import numpy as np
import pylibcudf as plc
from pylibcudf.utils import _get_stream

from dask_gpuagg.cuda.algorithms import select, sgb
from dask_gpuagg.cuda.query.structs import Chunk, ColumnStruct
from dask_gpuagg.cuda.query.tuning import OUTPUTS_AT_MOST
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import Stopwatch
from dask_gpuagg.engines.device.aggregator import Aggregator, Pass
from dask_gpuagg.engines.device.columns import (
    DTYPES,
    FLOAT64,
    INT32,
    INT64,
    LIST,
    NOWHERE,
    array_of,
    as_column,
    column_of,
    ctype_of,
    frame_of,
    gather,
    gather_columns,
    identity,
    masked,
    nans_to_nulls,
    view,
    view_of,
)
from dask_gpuagg.engines.device.libcudf import reduced
from dask_gpuagg.narrowing import rows_inside, stride_of
from dask_gpuagg.reporting.runs import note_run, subject
from dask_gpuagg.settings import task_settings

# Rows whose numbers are looked up together.
_ROWS_OF_A_JOIN = 1 << 27
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
        quantiles, width = None, TYPE_BYTES[ctype_of(column)]
        if self._skips_sort(column, select.selects(self._rows, self._groups, width)):
            quantiles = self._selected(column, q, interpolation, ticks)
        if quantiles is None:
            segments = self._values(column)
            quantiles = sgb.quantiles(self._on, segments, ctype_of(column), q, interpolation, ticks)
        data, mask, nulls = quantiles
        dtype = column.type() if ticks else FLOAT64
        return plc.Column(dtype, self._groups, data, mask if nulls else None, nulls, 0, [])

    def nunique(self, column: plc.Column) -> plc.Column:
        """Number of distinct values of each group, int64. Nulls are none, all NaN are one."""
        ctype, counts = ctype_of(column), None
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
        size = self._on.read_number(segments.starts.ptr + 4 * self._groups)
        numbers = plc.Column(INT32, size, segments.words.buffer, None, 0, 0, [])
        (child,) = gather_columns([column], numbers, all_there=True)
        return plc.Column(LIST, self._groups, None, None, 0, 0, [offsets, child])

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
        stride = stride_of(self._rows, self._groups)
        room = select.room_of(self._rows, rows_inside(self._rows, self._groups, stride))
        selector = select.Selector(self._on, ctype_of(column), self._groups, q, ticks)
        return select.quantiles(selector, [self._chunk(column)], interpolation, stride, room)

    def _chunk(self, column: plc.Column) -> Chunk:
        return Chunk(column_struct(column), self._address(), self._rows, self._groups, 0)

    def _values(self, column: plc.Column) -> sgb.Segments:
        # one column at a time: sorted rows take as much memory as the column does
        if self._sorted is None or self._sorted[0] is not column:
            self._sorted = None
            struct, ctype = column_struct(column), ctype_of(column)
            rows = self._address(), self._rows, self._groups
            self._sorted = (column, sgb.sort_values(self._on, struct, ctype, *rows))
        return self._sorted[1]

    def _address(self) -> int:
        return int(self._codes.data().ptr) if self._rows else 0


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


# Outputs of a pass before the next one begins: one more state may have six.
_FULL = OUTPUTS_AT_MOST - 6


class Grouping:
    """The kernels over some rows, with the keys as users know them.

    One pass writes ``OUTPUTS_AT_MOST`` outputs. More are made by several passes over the same keys;
    the groups of the first one are the result's, with which those of the others are joined. There
    are at least ``least`` groups: of partials the rows of the largest one.
    """

    def __init__(self, keys: Sequence[Any], keep_nulls: bool, least: int = 0) -> None:
        self._dtypes = [key.dtype for key in keys]
        self._views = [view(k) for k in keys]
        self._keep_nulls, self._least = keep_nulls, least
        self._passes = [Aggregator(self._views, keep_nulls, least)]
        self._nulls = False

    def read(self, columns: Iterable[plc.Column]) -> None:
        """Tell the passes which columns they will read, before outputs are added.

        Then kernels are compiled for columns that all have nulls, or none, not for some of them.
        """
        self._nulls = any(map(masked, columns))
        self._passes[-1].nulls = self._nulls

    @property
    def aggregator(self) -> Aggregator:
        """The pass that takes the outputs of one more state."""
        return self.another() if self._passes[-1].outputs > _FULL else self._passes[-1]

    def another(self) -> Aggregator:
        """A new pass: kernels of few states compile faster, and equal passes share them."""
        self._passes.append(Aggregator(self._views, self._keep_nulls, self._least))
        self._passes[-1].nulls = self._nulls
        return self._passes[-1]

    def run(self) -> tuple[list[plc.Column], list[plc.Column]]:
        """Key columns and outputs as libcudf's, one row per group."""
        keys, outputs = _run(self._passes[0])
        for another in self._passes[1:]:
            others, columns = _run(another)
            rows, codes = _joined(others, keys)
            assert len(rows) == keys[0].size(), "passes over the same rows find the same groups"
            places = cp.empty(len(rows), dtype=cp.int32)
            places[codes] = rows
            outputs += [gather(column, places) for column in columns]
        return keys, outputs

    def repeated(self, columns: Sequence[plc.Column]) -> Repeated | None:
        """The pass without its columns, which are some of these; None if it is no such pass."""
        memory = [identity(column) for column in columns]
        inputs = [identity(column) for column in self._passes[0].inputs]
        if (
            len(self._passes) > 1
            or len(set(memory)) < len(memory)
            or not set(inputs) <= set(memory)
        ):
            return None
        return Repeated(self._passes[0].described, tuple(map(memory.index, inputs)))

    def table(self, labels: Sequence[str], dtypes: Mapping[str, Any] | None = None) -> Any:
        """The groups: key columns ``k0``, …, then the outputs by label.

        ``dtypes`` are of the outputs whose dtype libcudf may not know.
        """
        keys, outputs = self.run()
        if self._keep_nulls:  # a NaN key is a null one
            keys = [nans_to_nulls(key) for key in keys]
        # libcudf has no categories and no time zones, but what they are stored as
        pairs = zip(keys, self._dtypes, strict=True)
        columns = {f"k{i}": as_column(key, dtype) for i, (key, dtype) in enumerate(pairs)}
        promised = dtypes or {}
        for label, output in zip(labels, outputs, strict=True):
            columns[label] = as_column(output, promised.get(label))
        return frame_of(columns)


def _run(aggregator: Aggregator) -> tuple[list[plc.Column], list[plc.Column]]:
    keys, outputs, run = aggregator.run(task_settings().kernel, key_labels=subject())
    note_run(run)
    return keys, outputs


class Repeated(NamedTuple):
    """The only pass of a grouping, to be run over other columns of the same types."""

    described: Pass
    # of each input its place among the columns
    inputs: tuple[int, ...]

    def run(
        self, keys: Sequence[plc.Column], columns: Sequence[plc.Column]
    ) -> tuple[list[plc.Column], list[plc.Column]]:
        """Key columns and outputs as libcudf's, one row per group."""
        inputs = [columns[i] for i in self.inputs]
        forced, labels = task_settings().kernel, subject()
        group_keys, outputs, result = self.described.run(
            keys, inputs, forced=forced, key_labels=labels
        )
        note_run(result.run)
        return group_keys, outputs


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
        # an array of it only when asked for: the kernels that sort and select take the column
        self._column = of_rows
        if pairs is not None:
            self.rows, self.codes = pairs
        self._sorted: SortedRows | None = None

    @classmethod
    def of_keys(cls, keys: Sequence[Any], groups: Sequence[Any]) -> Numbering:
        """From the keys of all rows, and those of the groups in the order of their numbers."""
        codes, n = cp.full(len(keys[0]), -1, dtype=cp.int32), len(groups[0])
        columns, of_groups = plc.Table([view(k) for k in keys]), [view(g) for g in groups]
        # a join takes several times the memory of the numbers, and so do its pairs when sorted
        some = max(_ROWS_OF_A_JOIN, n)
        for start in range(0, len(codes), some):
            end = min(start + some, len(codes))
            (slice_of_rows,) = plc.copying.slice(columns, [start, end])
            rows, numbers = _joined(slice_of_rows.columns(), of_groups)
            codes[start:end][rows] = numbers
            del rows, numbers, slice_of_rows
        return cls(n, of_rows=column_of(codes))

    @cached_property
    def rows(self) -> cp.ndarray:
        """The rows that belong to groups."""
        return cp.flatnonzero(array_of(self._column) >= 0).astype(cp.int32)

    @cached_property
    def codes(self) -> cp.ndarray:
        """The numbers of their groups."""
        return array_of(self._column)[self.rows]

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
        (codes,), (column,) = reduced([column_of(self.codes)], [(values, aggregation)])
        return self.spread(array_of(codes), column)

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
    """Rows whose keys are those of a group, in no order, and the numbers of their groups.

    A null key is itself, and a NaN key is a null one.
    """
    return _joined([view(k) for k in keys], [view(g) for g in groups])


def _joined(
    keys: Sequence[plc.Column], groups: Sequence[plc.Column]
) -> tuple[cp.ndarray, cp.ndarray]:
    tables = [plc.Table([nans_to_nulls(key) for key in side]) for side in (keys, groups)]
    rows, codes = plc.join.inner_join(*tables, plc.types.NullEquality.EQUAL)
    return array_of(rows), array_of(codes)
