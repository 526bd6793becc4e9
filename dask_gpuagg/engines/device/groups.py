"""Passes of the kernels over some rows: the groups with all that is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import cupy as cp
import pylibcudf as plc

from dask_gpuagg.cuda.query.tuning import OUTPUTS_AT_MOST
from dask_gpuagg.engines.device.aggregator import Aggregator, Template
from dask_gpuagg.engines.device.columns import (
    as_column,
    frame_of,
    gather,
    masked,
    nans_to_nulls,
    view,
)
from dask_gpuagg.engines.device.numbering import Numbering as Numbering
from dask_gpuagg.engines.device.numbering import joined
from dask_gpuagg.reporting.runs import note_run, subject
from dask_gpuagg.settings import task_settings

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
        self.views = [view(k) for k in keys]
        self._keep_nulls, self._least = keep_nulls, least
        self._passes = [Aggregator(self.views, keep_nulls, least)]
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
        self._passes.append(Aggregator(self.views, self._keep_nulls, self._least))
        self._passes[-1].nulls = self._nulls
        return self._passes[-1]

    def template(self, columns: Sequence[plc.Column]) -> Template | None:
        """The pass as a template for other columns; None where several passes are needed."""
        return self._passes[0].template(columns) if len(self._passes) == 1 else None

    def run(
        self, meanwhile: Callable[[], None] | None = None
    ) -> tuple[list[plc.Column], list[plc.Column]]:
        """Key columns and outputs as libcudf's, one row per group.

        What is to be done ``meanwhile``, while kernels run, may be done several times or never.
        """
        keys, outputs = _run(self._passes[0], meanwhile)
        for another in self._passes[1:]:
            others, columns = _run(another)
            rows, codes = joined(others, keys)
            assert len(rows) == keys[0].size(), "passes over the same rows find the same groups"
            places = cp.empty(len(rows), dtype=cp.int32)
            places[codes] = rows
            outputs += [gather(column, places) for column in columns]
        return keys, outputs

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


def _run(
    one: Aggregator, meanwhile: Callable[[], None] | None = None
) -> tuple[list[plc.Column], list[plc.Column]]:
    kernel = task_settings().kernel
    keys, outputs, run = one.run(kernel, about=subject(), meanwhile=meanwhile)
    note_run(run)
    return keys, outputs
