"""Outputs of whole groups: selected among the rows of few groups, or read from sorted rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import cupy as cp
import numpy as np
import pandas as pd
import pylibcudf as plc
from pylibcudf.types import DataType, TypeId
from pylibcudf.utils import _get_stream

from dask_gpuagg.cuda.algorithms import distinct, select, sgb
from dask_gpuagg.cuda.call.call import ColumnStruct
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime import background
from dask_gpuagg.cuda.runtime.background import KernelsCompiling, waiting
from dask_gpuagg.cuda.runtime.compiler import KernelsUnavailable
from dask_gpuagg.cuda.runtime.driver import Stopwatch
from dask_gpuagg.dtypes import NUMERIC, TEMPORAL, dtype_class
from dask_gpuagg.engines.device import libcudf
from dask_gpuagg.engines.device.calls import waits
from dask_gpuagg.engines.device.layout import (
    FLOAT64,
    INT32,
    INT64,
    UnsupportedType,
    ctype_of,
    view_of,
)
from dask_gpuagg.plan import Output

# The types of which whole groups are reduced here; the others are cuDF's.
_SORTED = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64")
# Of which quantiles are whole ticks.
_TICKS = (
    *(TypeId.TIMESTAMP_SECONDS, TypeId.TIMESTAMP_MILLISECONDS),
    *(TypeId.TIMESTAMP_MICROSECONDS, TypeId.TIMESTAMP_NANOSECONDS),
    *(TypeId.DURATION_SECONDS, TypeId.DURATION_MILLISECONDS),
    *(TypeId.DURATION_MICROSECONDS, TypeId.DURATION_NANOSECONDS),
)
HOW = ("auto", "sort", "select")

_Made = TypeVar("_Made")


def _parameters(output: Output, ticks: bool = False) -> dict[str, Any]:
    # for ticks the exact midpoint; for numbers what cuDF's own median is
    between = "midpoint" if ticks and output.aggregation == "median" else "linear"
    return {"q": 0.5, "interpolation": between} | dict(output.parameters)


def is_chrono(dtype: Any) -> bool:
    """Whether values are ticks, and so are their quantiles."""
    return dtype_class(dtype) in TEMPORAL


def serves(output: Output, dtype: Any, rows: int) -> bool:
    """Whether an output of whole rows is made here; the others are cuDF's.

    Parameters
    ----------
    output : Output
    dtype : numpy dtype or pandas extension dtype
        Of the values.
    rows : int

    Returns
    -------
    bool
    """
    if rows > sgb.ROWS_AT_MOST:
        return False
    if output.aggregation == "list":
        # libcudf has no lists of categories, nor of times in a zone
        return isinstance(dtype, np.dtype | pd.StringDtype)
    parameters = _parameters(output)
    q = parameters.pop("q")
    between = parameters.pop("interpolation")
    return (
        output.aggregation in ("median", "quantile")
        and dtype_class(dtype) in (*NUMERIC, *TEMPORAL)
        and isinstance(q, int | float)
        and 0 <= q <= 1
        and between in sgb.BETWEEN
        and not parameters
    )


def counts(dtype: Any, rows: int) -> bool:
    """Whether distinct values of this dtype are counted here."""
    return rows <= sgb.ROWS_AT_MOST and dtype_class(dtype) in (*NUMERIC, *TEMPORAL)


def can_sort() -> bool:
    """Whether the kernels that sort are compiled, or can be; if not, libcudf's group-by serves."""
    kernels = sgb.launcher(_get_stream()).kernels
    if not background.waits():
        return kernels.begin()
    try:
        kernels.prepare()
    except KernelsUnavailable as error:
        libcudf.cause_of(error)
        return False
    return True


def by_kernels(make: Callable[[], _Made]) -> _Made | None:
    """What the kernels that sort and select make; None while, or where, they cannot run."""
    with waiting(waits()):
        if not can_sort():
            return None
        try:
            return make()
        except KernelsCompiling:
            return None
        except KernelsUnavailable as error:  # memory was full when a kernel was to be loaded
            libcudf.cause_of(error)
    return None


class SortedRows:
    """Rows of numbered groups, sorted where an output needs it, once for each column.

    Parameters
    ----------
    codes : pylibcudf.Column
        The number of every row's group, int32, -1 for rows of no group.
    groups : int
    stopwatch : Stopwatch, optional
        Takes the device time of every kernel.
    how : str
        Of ``HOW``: whether quantiles and distinct values of unsorted rows are read from sorted
        ones, or selected and counted without a sort where that can be.
    """

    def __init__(
        self,
        codes: plc.Column,
        groups: int,
        stopwatch: Stopwatch | None = None,
        how: str = "auto",
    ) -> None:
        self._codes = codes
        self._groups = groups
        self._rows = codes.size()
        self._on = sgb.launcher(_get_stream(), stopwatch)
        self._sorted: tuple[plc.Column, sgb.Segments] | None = None
        self._how = how

    def quantile(self, column: plc.Column, q: float, interpolation: str) -> plc.Column:
        """One quantile of each group, null for groups without values.

        Parameters
        ----------
        column : pylibcudf.Column
            Of a type that ``serves`` admits.
        q : float
            From 0 to 1.
        interpolation : str
            ``linear``, ``lower``, ``higher``, ``midpoint`` or ``nearest``, as libcudf has them.

        Returns
        -------
        pylibcudf.Column
            float64, or of the column's type for datetimes and durations: whole ticks.
        """
        ticks = column.type().id() in _TICKS
        made, width = None, TYPE_BYTES[sortable(column)]
        if self._unsorted(column, select.selects(self._rows, self._groups, width)):
            made = self._selected(column, q, interpolation, ticks)
        if made is None:
            segments = self._values(column)
            made = sgb.quantiles(self._on, segments, sortable(column), q, interpolation, ticks)
        data, mask, nulls = made
        dtype = column.type() if ticks else FLOAT64
        return plc.Column(dtype, self._groups, data, mask if nulls else None, nulls, 0, [])

    def nunique(self, column: plc.Column) -> plc.Column:
        """How many different values each group has, int64. Nulls are none, all NaN are one."""
        ctype, counts = sortable(column), None
        width = TYPE_BYTES[ctype]
        pays = distinct.divides(self._rows, self._groups, width)
        if width >= distinct.DIVIDED_BYTES and self._unsorted(column, pays):
            counts = distinct.count_distinct(self._on, self._chunk(column), ctype)
        if counts is None:
            counts = sgb.count_distinct(self._on, self._values(column))
        return plc.Column(INT64, self._groups, counts, None, 0, 0, [])

    def list(self, column: plc.Column) -> plc.Column:
        """The values of each group in the order of the rows, nulls among them; of any type."""
        segments = sgb.sort_rows(self._on, self._address(), self._rows, self._groups)
        offsets = plc.Column(INT32, self._groups + 1, segments.starts, None, 0, 0, [])
        kept = sgb.rows_of_groups(self._on, segments)
        numbers = plc.Column(INT32, kept, segments.words.buffer, None, 0, 0, [])
        (child,) = plc.copying.gather(
            plc.Table([column]), numbers, plc.copying.OutOfBoundsPolicy.DONT_CHECK
        ).columns()
        return plc.Column(DataType(TypeId.LIST), self._groups, None, None, 0, 0, [offsets, child])

    def ascending(self, column: plc.Column) -> tuple[cp.ndarray, cp.ndarray]:
        """The values of each group in ascending order, as words; nulls take no part.

        Parameters
        ----------
        column : pylibcudf.Column
            Of numbers.

        Returns
        -------
        words : ndarray of uint32 or uint64, shape (rows,)
            Of ``values_of``, group by group.
        starts : ndarray of uint32, shape (groups + 1,)
            Where each group begins.
        """
        segments = self._values(column)
        width = segments.words.width
        words = cp.asarray(segments.words.buffer)[: self._rows * width].view(f"u{width}")
        return words, cp.asarray(segments.starts).view("u4")

    def output(self, output: Output, column: plc.Column) -> plc.Column:
        """An output that ``serves`` admits."""
        if output.aggregation == "list":
            return self.list(column)
        parameters = _parameters(output, column.type().id() in _TICKS)
        return self.quantile(column, parameters["q"], parameters["interpolation"])

    def _unsorted(self, column: plc.Column, pays: bool) -> bool:
        """Whether an output is made without a sort."""
        if not self._rows or not self._groups or self._how == "sort":
            return False
        there = self._sorted is not None and self._sorted[0] is column
        return self._how == "select" or (pays and not there)

    def _selected(self, column: plc.Column, q: float, interpolation: str, ticks: bool) -> Any:
        stride = select.stride_of(self._rows, self._groups)
        room = select.room_of(self._rows, self._groups, stride)
        selector = select.Selector(self._on, sortable(column), self._groups, q, ticks)
        return select.quantiles(selector, [self._chunk(column)], interpolation, stride, room)

    def _chunk(self, column: plc.Column) -> select.Chunk:
        return select.Chunk(column_struct(column), self._address(), self._rows, self._groups, 0)

    def _values(self, column: plc.Column) -> sgb.Segments:
        # one column at a time: sorted rows take as much memory as the column does
        if self._sorted is None or self._sorted[0] is not column:
            self._sorted = None
            segments = sgb.sort_values(
                self._on,
                column_struct(column),
                sortable(column),
                self._address(),
                self._rows,
                self._groups,
            )
            self._sorted = (column, segments)
        return self._sorted[1]

    def _address(self) -> int:
        return int(self._codes.data().ptr) if self._rows else 0


def sortable(column: plc.Column) -> str:
    """C++ name of values that words sort as."""
    if column.type().id() is TypeId.DECIMAL128 or ctype_of(column) not in _SORTED:
        raise UnsupportedType(f"sorting values of type {column.type().id().name}")
    return ctype_of(column)


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
    view = view_of(column)
    return ColumnStruct(view.data, view.mask, view.offset)
