"""Outputs that need a group's rows together, from rows sorted by the number of their group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pylibcudf as plc
from pylibcudf.types import DataType, TypeId
from pylibcudf.utils import _get_stream

from dask_gpuagg.cuda import sorting
from dask_gpuagg.cuda.call import Column
from dask_gpuagg.cuda.compiler import KernelsUnavailable
from dask_gpuagg.cuda.driver import Stopwatch
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import library
from dask_gpuagg.engines.layout import (
    FLOAT64,
    INT32,
    INT64,
    UnsupportedType,
    ctype_of,
    view_of,
)
from dask_gpuagg.plan import Output

_RANKED = ("int", "uint", "float")
# The types of which whole groups are reduced here; the others are cuDF's.
_SORTED = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64")


def _parameters(output: Output) -> dict[str, Any]:
    return {"q": 0.5, "interpolation": "linear"} | dict(output.parameters)


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
    if rows > sorting.ROWS_AT_MOST:
        return False
    if output.aggregation == "list":
        # lists of categories and of times in a zone are more to cuDF than to libcudf
        return isinstance(dtype, np.dtype | pd.StringDtype)
    parameters = _parameters(output)
    q = parameters.pop("q")
    between = parameters.pop("interpolation")
    return (
        output.aggregation in ("median", "quantile")
        and dtype_class(dtype) in _RANKED
        and isinstance(q, int | float)
        and 0 <= q <= 1
        and between in sorting.BETWEEN
        and not parameters
    )


def counts(dtype: Any, rows: int) -> bool:
    """Whether distinct values of this dtype are counted here."""
    return rows <= sorting.ROWS_AT_MOST and dtype_class(dtype) in (
        *_RANKED,
        "datetime",
        "timedelta",
    )


def can_sort() -> bool:
    """Whether the kernels that sort can be compiled here; if not, libcudf's group-by serves."""
    try:
        sorting.launcher(_get_stream()).kernels.prepare()
    except KernelsUnavailable as error:
        library.cause_of(error)
        return False
    return True


class SortedRows:
    """Rows of numbered groups, sorted when an output asks for it, once for each column.

    Parameters
    ----------
    codes : pylibcudf.Column
        The number of every row's group, int32, -1 for rows of no group.
    groups : int
    stopwatch : Stopwatch, optional
        Takes the device time of every kernel.
    """

    def __init__(self, codes: plc.Column, groups: int, stopwatch: Stopwatch | None = None) -> None:
        self._codes = codes
        self._groups = groups
        self._rows = codes.size()
        self._on = sorting.launcher(_get_stream(), stopwatch)
        self._sorted: tuple[plc.Column, sorting.Segments] | None = None

    def quantile(self, column: plc.Column, q: float, interpolation: str) -> plc.Column:
        """One quantile of each group, float64, null for groups without values.

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
        """
        segments = self._values(column)
        data, mask, nulls = sorting.quantiles(
            self._on, segments, ctype_of(column), q, interpolation
        )
        return plc.Column(FLOAT64, self._groups, data, mask if nulls else None, nulls, 0, [])

    def nunique(self, column: plc.Column) -> plc.Column:
        """How many different values each group has, int64. Nulls are none, all NaN are one."""
        counts = sorting.count_distinct(self._on, self._values(column))
        return plc.Column(INT64, self._groups, counts, None, 0, 0, [])

    def list(self, column: plc.Column) -> plc.Column:
        """The values of each group in the order of the rows, nulls among them; of any type."""
        segments = sorting.sort_rows(self._on, self._address(), self._rows, self._groups)
        offsets = plc.Column(INT32, self._groups + 1, segments.starts, None, 0, 0, [])
        kept = sorting.rows_of_groups(self._on, segments)
        numbers = plc.Column(INT32, kept, segments.words.buffer, None, 0, 0, [])
        (child,) = plc.copying.gather(
            plc.Table([column]), numbers, plc.copying.OutOfBoundsPolicy.DONT_CHECK
        ).columns()
        return plc.Column(DataType(TypeId.LIST), self._groups, None, None, 0, 0, [offsets, child])

    def output(self, output: Output, column: plc.Column) -> plc.Column:
        """An output that ``serves`` admits."""
        if output.aggregation == "list":
            return self.list(column)
        parameters = _parameters(output)
        return self.quantile(column, parameters["q"], parameters["interpolation"])

    def _values(self, column: plc.Column) -> sorting.Segments:
        # one column at a time: sorted rows take as much memory as the column does
        if self._sorted is None or self._sorted[0] is not column:
            if column.type().id() is TypeId.DECIMAL128 or ctype_of(column) not in _SORTED:
                raise UnsupportedType(f"sorting values of type {column.type().id().name}")
            view = view_of(column)
            self._sorted = None
            segments = sorting.sort_values(
                self._on,
                Column(view.data, view.mask, view.offset),
                ctype_of(column),
                self._address(),
                self._rows,
                self._groups,
            )
            self._sorted = (column, segments)
        return self._sorted[1]

    def _address(self) -> int:
        return int(self._codes.data().ptr) if self._rows else 0
