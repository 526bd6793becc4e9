"""Groups of rows on the device: a pass of the kernels, and the number of each row's group.

What the kernels do not make is left to libcudf, on the numbers of the groups that the kernels
found: so it meets neither null keys nor categories, and its results need no join.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import cupy as cp
import pylibcudf as plc
from cudf.core.column import ColumnBase

from dask_gpuagg.cuda.query.tuning import OUTPUTS_AT_MOST
from dask_gpuagg.engines.device import layout
from dask_gpuagg.engines.device.aggregator import Aggregator, Template
from dask_gpuagg.engines.device.columns import (
    NOWHERE,
    array_of,
    as_column,
    column_of,
    frame_of,
    gather,
    view,
    wrapped,
)
from dask_gpuagg.engines.device.operations import nans_to_nulls
from dask_gpuagg.engines.device.whole_groups import SortedRows
from dask_gpuagg.reporting.runs import note_run, subject
from dask_gpuagg.settings import task_settings

# Outputs of a pass before the next one begins: one more state may have six.
_FULL = OUTPUTS_AT_MOST - 6


class Grouping:
    """The kernels over some rows, with the keys as users know them.

    Parameters
    ----------
    keys : sequence of Series
    keep_nulls : bool
        Whether null keys form groups.
    least : int
        How many groups there are at least: of partials the rows of the largest one.

    Notes
    -----
    One pass writes ``OUTPUTS_AT_MOST`` outputs. More are made by several passes over the same
    keys; the groups of the first one are the result's, and those of the others are found by key.
    """

    def __init__(self, keys: Sequence[Any], keep_nulls: bool, least: int = 0) -> None:
        self._keys = list(keys)
        self.views = [view(k) for k in keys]
        self._keep_nulls, self._least = keep_nulls, least
        self._passes = [Aggregator(self.views, keep_nulls, least)]
        self._nulls = False

    def read(self, columns: Iterable[plc.Column]) -> None:
        """Tell the passes which columns they will read, before outputs are added.

        Then kernels are compiled for columns that all have nulls, or none, not for some of them.
        """
        self._nulls = any(map(layout.masked, columns))
        self._passes[-1].nulls = self._nulls

    @property
    def aggregator(self) -> Aggregator:
        """The pass that takes the outputs of one more state."""
        return self.another() if self._passes[-1].outputs > _FULL else self._passes[-1]

    def another(self) -> Aggregator:
        """A new pass: kernels of few states compile faster, and equal passes share them."""
        self._passes.append(Aggregator(self.views, self._keep_nulls, self._least))
        self._passes[-1].nulls = self._nulls
        return self._passes[-1]

    def template(self, columns: Sequence[plc.Column]) -> Template | None:
        """What is computed of these columns, where one pass does it."""
        return self._passes[0].template(columns) if len(self._passes) == 1 else None

    def run(
        self, meanwhile: Callable[[], None] | None = None
    ) -> tuple[list[plc.Column], list[plc.Column]]:
        """Key columns and outputs as libcudf's, one row per group.

        What is to be done ``meanwhile``, while kernels run, may be done several times or never.
        """
        keys, outputs = _run(self._passes[0], meanwhile)
        for another in self._passes[1:]:
            others, made = _run(another)
            rows, codes = _joined(_key_table(others), _key_table(keys))
            assert len(rows) == keys[0].size(), "passes over the same rows find the same groups"
            places = cp.empty(len(rows), dtype=cp.int32)
            places[codes] = rows
            outputs += [gather(column, places) for column in made]
        return keys, outputs

    def table(self, labels: Sequence[str], dtypes: Mapping[str, Any] | None = None) -> Any:
        """The groups: key columns ``k0``, …, then the outputs by label.

        Parameters
        ----------
        labels : sequence of str
        dtypes : mapping of str to dtype, optional
            Of the outputs whose dtype libcudf does not know.
        """
        keys, outputs = self.run()
        if self._keep_nulls:  # a NaN key is a null one
            keys = [nans_to_nulls(key) for key in keys]
        wanted = dtypes or {}
        # libcudf has no categories and no time zones, but what they are stored as
        columns = {
            f"k{i}": as_column(key, known.dtype)
            for i, (key, known) in enumerate(zip(keys, self._keys, strict=True))
        }
        for label, made in zip(labels, outputs, strict=True):
            known = label in wanted
            columns[label] = ColumnBase.create(made, wanted[label]) if known else wrapped(made)
        return frame_of(columns)


def _run(
    one: Aggregator, meanwhile: Callable[[], None] | None = None
) -> tuple[list[plc.Column], list[plc.Column]]:
    kernel = task_settings().kernel
    keys, outputs, run = one.run(kernel, about=subject(), meanwhile=meanwhile)
    note_run(run)
    return keys, outputs


class Numbering:
    """The rows that belong to groups, in their order, and the numbers of their groups.

    Parameters
    ----------
    n : int
        Number of groups.
    pairs : tuple of arrays, optional
        The rows and the numbers of their groups.
    of_rows : pylibcudf.Column, optional
        In their place: the numbers of all rows' groups, int32, -1 for rows of none.
    """

    def __init__(
        self,
        n: int,
        pairs: tuple[cp.ndarray, cp.ndarray] | None = None,
        of_rows: plc.Column | None = None,
    ) -> None:
        self.n = n
        self._taken = pairs
        # an array of it only when asked for: the kernels that sort and select take the column
        self._column = of_rows
        self._sorted: SortedRows | None = None

    @classmethod
    def of_keys(cls, keys: Sequence[Any], groups: Sequence[Any]) -> Numbering:
        """From the keys of all rows, and those of the groups in the order of their numbers."""
        rows, codes = matches(keys, groups)
        order = cp.argsort(rows)
        return cls(len(groups[0]), (rows[order], codes[order]))

    @property
    def rows(self) -> cp.ndarray:
        """The rows that belong to groups."""
        return self._pairs()[0]

    @property
    def codes(self) -> cp.ndarray:
        """The numbers of their groups."""
        return self._pairs()[1]

    def _pairs(self) -> tuple[cp.ndarray, cp.ndarray]:
        if self._taken is None:  # only when asked for: a sort needs the codes of all rows
            assert self._column is not None
            codes = array_of(self._column)
            rows = cp.flatnonzero(codes >= 0).astype(cp.int32)
            self._taken = (rows, codes[rows])
        return self._taken

    def sorted(self, rows: int) -> SortedRows:
        """All rows, this many, for the kernels that select and sort."""
        if self._sorted is None:
            known = self._column
            column = column_of(self.of_rows(rows)) if known is None else known
            self._sorted = SortedRows(column, self.n)
        return self._sorted

    def of_rows(self, rows: int) -> cp.ndarray:
        """The numbers of the groups of all rows, this many; -1 for rows of none."""
        if self._column is not None:
            return array_of(self._column)
        codes = cp.full(rows, -1, dtype=cp.int32)
        codes[self.rows] = self.codes
        return codes

    def where(self, kept: cp.ndarray) -> Numbering:
        """The same groups, of some of the rows."""
        return Numbering(self.n, (self.rows[kept], self.codes[kept]))

    def take(self, column: Any) -> plc.Column:
        """Values of a column of all rows, for those that belong to groups."""
        return gather(view(column), self.rows)

    def reduce(self, values: plc.Column, aggregation: Any) -> plc.Column:
        """One aggregation of libcudf; ``values`` are of the rows that belong to groups.

        Returns
        -------
        pylibcudf.Column
            One row per group, null for groups without rows.
        """
        by = plc.groupby.GroupBy(plc.Table([column_of(self.codes)]))
        keys, made = by.aggregate([plc.groupby.GroupByRequest(values, [aggregation])])
        return self.spread(array_of(keys.columns()[0]), made[0].columns()[0])

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
    """How often each of ``n`` numbers occurs, int64; CuPy before 14.2 refuses to count nothing."""
    if len(codes) == 0:
        return cp.zeros(n, dtype=cp.int64)
    return cp.bincount(codes, minlength=n).astype(cp.int64)


def matches(keys: Sequence[Any], groups: Sequence[Any]) -> tuple[cp.ndarray, cp.ndarray]:
    """Rows whose keys are those of a group, in no order, and the numbers of their groups.

    A null key is itself, and a NaN key is a null one.
    """
    return _joined(_key_table([view(k) for k in keys]), _key_table([view(g) for g in groups]))


def _joined(keys: plc.Table, groups: plc.Table) -> tuple[cp.ndarray, cp.ndarray]:
    rows, codes = plc.join.inner_join(keys, groups, plc.types.NullEquality.EQUAL)
    return array_of(rows), array_of(codes)


def _key_table(keys: Sequence[plc.Column]) -> plc.Table:
    return plc.Table([nans_to_nulls(key) for key in keys])
