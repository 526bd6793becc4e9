"""A pass of the kernels over libcudf's columns: views in, columns out, no copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import pylibcudf as plc
from pylibcudf.types import DataType

from dask_gpuagg.cuda.aggregate import Aggregated, Run
from dask_gpuagg.cuda.query.canonical import Canonical, canonical
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelOutput
from dask_gpuagg.cuda.runtime.driver import Stopwatch
from dask_gpuagg.engines.device.asked import Asked
from dask_gpuagg.engines.device.calls import How, Served, grouped
from dask_gpuagg.engines.device.layout import (
    INT32,
    column_of,
    gather,
    key_part,
    sorted_order,
    value_part,
)
from dask_gpuagg.engines.device.operations import reinterpreted
from dask_gpuagg.engines.device.pieces import whole

# An equal query reuses what the first one has computed for calls.
_query = lru_cache(1024)(Query)


class Template(NamedTuple):
    """What a pass computes of columns by their positions.

    Attributes
    ----------
    shape : Canonical
    inputs : tuple of (int, bool)
        Positions of the columns, and whether only the validity of one is read.
    outputs : tuple of (KernelOutput, DataType, int or None)
        As they were asked for; of those that are gathered the position of the column.
    """

    shape: Canonical
    inputs: tuple[tuple[int, bool], ...]
    outputs: tuple[tuple[KernelOutput, DataType, int | None], ...]


class Aggregator(Asked):
    """What is asked of one pass over some columns, and the pass.

    Parameters
    ----------
    keys : sequence of pylibcudf.Column or of Pieces
    keep_nulls : bool
        Whether null keys (NaN is one) form groups.
    least : int
        How many groups there are at least.
    """

    def __init__(self, keys: Sequence[plc.Column], keep_nulls: bool, least: int = 0) -> None:
        super().__init__()
        self.keys = list(keys)
        self.keep_nulls, self._least = keep_nulls, least
        self._encoded = self._in_order = False
        self._template: Template | None = None
        # the number of every row's group, int32 and -1 for none, once a pass has encoded the rows
        self.codes: plc.Column | None = None
        for key in keys:
            key_part(key)

    def encode(self, in_order: bool = False) -> None:
        """Let the pass make ``codes``, unless libcudf runs it.

        Parameters
        ----------
        in_order : bool
            Whether groups come out in the order of their keys, nulls last; codes then sort as the
            keys do.
        """
        self._encoded, self._in_order = True, in_order

    @property
    def query(self) -> Query:
        """What is compiled."""
        return self._shape.query

    @property
    def _shape(self) -> Canonical:
        if self._template is not None:
            return self._template.shape
        asked = _query(
            tuple([key_part(k) for k in self.keys]),
            self.keep_nulls,
            tuple([value_part(c, present) for c, present in self._inputs]),
            tuple(self._states),
            tuple([output for output, _, _ in self._outputs]),
        )
        return canonical(asked)

    def template(self, columns: Sequence[plc.Column]) -> Template | None:
        """What the pass computes, for other columns of the same types; None if it cannot be told.

        Parameters
        ----------
        columns : sequence of pylibcudf.Column
            Of which all inputs are to be.
        """
        places = {id(column): i for i, column in enumerate(columns)}
        inputs = [(places.get(id(column)), present) for column, present in self._inputs]
        outputs = [
            (output, dtype, None if of is None else places.get(id(of)))
            for output, dtype, of in self._outputs
        ]
        made = [place for place, _ in inputs if place is not None]
        gathered = [of for _, _, of in self._outputs if of is not None]
        if len(made) < len(inputs) or not all(id(of) in places for of in gathered):
            return None
        present = [present for _, present in inputs]
        return Template(self._shape, tuple(zip(made, present, strict=True)), tuple(outputs))

    def repeat(self, template: Template, columns: Sequence[plc.Column]) -> None:
        """Compute the same of other columns, which have the same types."""
        self._template = template
        self._inputs = [(columns[place], present) for place, present in template.inputs]
        self._outputs = [
            (output, dtype, None if of is None else columns[of])
            for output, dtype, of in template.outputs
        ]

    def run(
        self,
        forced: str = "auto",
        stopwatch: Stopwatch | None = None,
        about: tuple[str, ...] = (),
        meanwhile: Callable[[], None] | None = None,
    ) -> tuple[list[plc.Column], list[plc.Column], Run]:
        """Group and reduce.

        Parameters
        ----------
        forced : str
            ``auto`` or one of ``choose.KERNELS``.
        stopwatch : Stopwatch, optional
            Takes the device time of every kernel.
        about : tuple of str
            What is grouped by: rows of the same types that are about something else are expected
            to be alike among themselves.
        meanwhile : callable, optional
            Called while kernels run.

        Returns
        -------
        keys, outputs : list of pylibcudf.Column, one row per group, groups in no order,
            unless they were to be encoded in order
        run : Run
        """
        how = How(forced, stopwatch, self._encoded, about, self._least, meanwhile)
        query, inputs, places = self._shape
        made = grouped(query, self.keys, [self._inputs[i][0] for i in inputs], how)
        run = made.run
        if isinstance(made, Served):
            keys, plain = made.keys, [made.outputs[i] for i in places]
        else:
            keys = self._key_columns(made, run.groups)
            pairs = zip(places, self._outputs, strict=True)
            plain = [column_of(made.outputs[i], dtype, run.groups) for i, (_, dtype, _) in pairs]
        outputs = []
        for column, (_, dtype, of) in zip(plain, self._outputs, strict=True):
            output = reinterpreted(column, dtype)
            outputs.append(output if of is None else gather([whole(of)], output)[0])
        if self._encoded and isinstance(made, Aggregated):
            # codes that the pass made already follow the order of the keys
            order = sorted_order(keys) if self._in_order and made.codes is None else None
            codes = made.encode(order.data().ptr if order is not None and run.groups else 0)
            self.codes = plc.Column(INT32, self.keys[0].size(), codes, None, 0, 0, [])
            if order is not None:
                keys, outputs = gather(keys, order), gather(outputs, order)
        return keys, outputs, run

    def _key_columns(self, made: Aggregated, groups: int) -> list[plc.Column]:
        if made.gathered:
            rows = column_of(made.keys[0], INT32, groups)
            return gather(list(map(whole, self.keys)), rows, all_there=True)
        # what was compiled for nulls makes a mask for every column
        pairs = [
            (m if m.mask is None or key_part(k).nullable else m._replace(mask=None), k.type())
            for m, k in zip(made.keys, self.keys, strict=True)
        ]
        return [column_of(m, dtype, groups) for m, dtype in pairs]
