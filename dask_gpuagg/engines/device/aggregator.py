"""A pass of the kernels over columns: its inputs, states and outputs; or libcudf in its place."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pylibcudf as plc
from pylibcudf.types import DataType, TypeId
from pylibcudf.utils import _get_stream

from dask_gpuagg.cuda.aggregate import Aggregated, Made, NeedsWholeColumns, Part, Run, aggregate
from dask_gpuagg.cuda.ahead import compile_ahead
from dask_gpuagg.cuda.query.canonical import Canonical, canonical
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import EXACT_BINS, KernelOutput, KernelState
from dask_gpuagg.cuda.runtime.compiler import KernelsCompiling, KernelsUnavailable, waiting
from dask_gpuagg.cuda.runtime.driver import Stopwatch
from dask_gpuagg.engines.device import libcudf
from dask_gpuagg.engines.device.columns import (
    BOOL8,
    CTYPES,
    FLOAT64,
    FLOATS,
    INT32,
    INT64,
    Pieces,
    ctype_of,
    gather_columns,
    identity,
    kernel_column,
    key_part,
    masked,
    reinterpreted,
    together,
    value_part,
    view_of,
    wide,
)
from dask_gpuagg.settings import task_settings


def waits() -> bool:
    """Whether the running task waits for kernels that have to be compiled."""
    return task_settings().compile == "wait"


def grouped(
    query: Query,
    keys: Sequence[Any],
    inputs: Sequence[Any],
    forced: str = "auto",
    stopwatch: Stopwatch | None = None,
    **options: Any,
) -> Aggregated | libcudf.Served:
    """Group rows and reduce every group; the columns are as the query describes them, or in pieces.

    Under ``gpuagg.compile: background`` a query whose kernels have to be compiled is served by
    libcudf meanwhile, unless it is forced or measured, or device memory does not suffice for that:
    then the compiler is waited for. See ``cuda.aggregate.aggregate`` for the ``options``.
    """
    why, measured = "", forced != "auto" or stopwatch is not None
    options |= {"forced": forced, "stopwatch": stopwatch}
    for waits_for_kernels in [True] if measured or waits() else [False, True]:
        try:
            with waiting(waits_for_kernels):
                return _by_kernels(query, keys, inputs, options)
        except KernelsCompiling as error:
            why = str(error)
        except KernelsUnavailable as error:
            why = libcudf.cause_of(error)
            break
        # outside of the handlers, in which the error keeps the attempt's allocations alive
        compile_ahead(query, keys[0].size())
        try:
            served = _served(query, keys, inputs, why)
        except MemoryError:
            for column in (*keys, *inputs):
                if isinstance(column, Pieces):
                    column.forget()
        else:
            compile_ahead(query, keys[0].size(), served.run.groups)
            return served
    return _served(query, keys, inputs, why)


def _served(query: Query, keys: Sequence[Any], inputs: Sequence[Any], why: str) -> libcudf.Served:
    return libcudf.aggregate(query, list(map(together, keys)), list(map(together, inputs)), why)


def _by_kernels(
    query: Query, keys: Sequence[Any], inputs: Sequence[Any], options: dict[str, Any]
) -> Aggregated:
    pieces = [c.columns if isinstance(c, Pieces) else (c,) for c in (*keys, *inputs)]
    parts = []
    for own in zip(*pieces, strict=True):
        views = list(map(view_of, own))
        parts.append(Part(views[: len(keys)], views[len(keys) :], own[0].size()))
    try:
        return aggregate(query, parts, _get_stream(), **options)
    except NeedsWholeColumns:
        if len(parts) == 1:
            raise
    return _by_kernels(query, list(map(together, keys)), list(map(together, inputs)), options)


# An equal query reuses what the first one has computed for calls.
_query = lru_cache(1024)(Query)


class Pass(NamedTuple):
    """A pass over any columns of some types: what is compiled, and what becomes of its outputs."""

    shape: Canonical
    # types of the outputs, and of row numbers the places of the inputs that they are gathered from
    outputs: tuple[tuple[DataType, int | None], ...]

    def run(
        self, keys: Sequence[Any], inputs: Sequence[Any], **options: Any
    ) -> tuple[list[plc.Column], list[plc.Column], Aggregated | libcudf.Served]:
        """Group and reduce: key columns and outputs, one row per group; see ``grouped``."""
        query, order, places = self.shape
        result = grouped(query, keys, [inputs[i] for i in order], **options)
        outputs = []
        for i, (dtype, of) in zip(places, self.outputs, strict=True):
            output = result.outputs[i]
            if isinstance(output, Made):
                output = kernel_column(output, dtype, result.run.groups)
            output = reinterpreted(output, dtype)
            if of is not None:
                output = gather_columns([together(inputs[of])], output)[0]
            outputs.append(output)
        return _key_columns(result, keys), outputs, result


def _key_columns(
    result: Aggregated | libcudf.Served, keys: Sequence[plc.Column]
) -> list[plc.Column]:
    if isinstance(result, libcudf.Served):
        return result.keys
    groups = result.run.groups
    if result.gathered:
        rows = kernel_column(result.keys[0], INT32, groups)
        return gather_columns(list(map(together, keys)), rows, all_there=True)
    # what was compiled for nulls makes a mask for every column
    pairs = [
        (m if m.mask is None or key_part(k).nullable else m._replace(mask=None), k.type())
        for m, k in zip(result.keys, keys, strict=True)
    ]
    return [kernel_column(m, dtype, groups) for m, dtype in pairs]


class Aggregator:
    """One pass over some columns, and what is asked of it: inputs, states and outputs.

    ``keys`` are columns or ``Pieces``; with ``keep_nulls`` null keys (NaN is one) form groups;
    there are at least ``least`` groups. Inputs are read once and states kept once.
    """

    def __init__(self, keys: Sequence[plc.Column], keep_nulls: bool, least: int = 0) -> None:
        self.keys = list(keys)
        self.keep_nulls, self._least = keep_nulls, least
        # as if every column had nulls, because one has some: which one makes no other kernels then
        self.nulls = False
        # each with whether only its validity is read
        self._inputs: list[tuple[plc.Column, bool]] = []
        # where they are, by the memory that they are views of
        self._places: dict[tuple[Any, bool], int] = {}
        self._states: list[KernelState] = []
        self._outputs: list[tuple[KernelOutput, DataType, int | None]] = []
        self._encoded = False
        # the number of every row's group, int32 and -1 for none, once a pass has encoded the rows
        self.codes: plc.Column | None = None

    def encode(self) -> None:
        """Let the pass make ``codes``, unless libcudf runs it."""
        self._encoded = True

    @property
    def query(self) -> Query:
        """The query that is compiled."""
        return self.described.shape.query

    @property
    def inputs(self) -> list[plc.Column]:
        """The columns that are read."""
        return [column for column, _ in self._inputs]

    @property
    def described(self) -> Pass:
        """The pass without its columns."""
        keys = tuple([key_part(k) for k in self.keys])
        inputs = tuple([value_part(c, present) for c, present in self._inputs])
        outputs = tuple([output for output, _, _ in self._outputs])
        query = _query(keys, self.keep_nulls, inputs, tuple(self._states), outputs)
        return Pass(canonical(query), tuple([(dtype, of) for _, dtype, of in self._outputs]))

    def run(
        self,
        forced: str = "auto",
        stopwatch: Stopwatch | None = None,
        key_labels: tuple[str, ...] = (),
    ) -> tuple[list[plc.Column], list[plc.Column], Run]:
        """Group and reduce: key columns and outputs, one row per group, and the run.

        ``forced`` is ``auto`` or one of ``choose.KERNELS``; a stopwatch takes the device time of
        every kernel. Rows of the same types and ``key_labels`` are expected to be alike.
        """
        keys, outputs, result = self.described.run(
            self.keys,
            self.inputs,
            forced=forced,
            stopwatch=stopwatch,
            encoded=self._encoded,
            key_labels=key_labels,
            least=self._least,
        )
        if self._encoded and isinstance(result, Aggregated):
            self.codes = plc.Column(INT32, self.keys[0].size(), result.codes, None, 0, 0, [])
        return keys, outputs, result.run

    @property
    def outputs(self) -> int:
        """Number of columns beside the keys."""
        return len(self._outputs)

    # ---- inputs and states -------------------------------------------------------------------

    def _input(self, column: plc.Column, present: bool = False) -> int:
        # the inputs keep their columns alive, so no other column gets the identity of one
        place = self._places.setdefault((identity(column), present), len(self._inputs))
        if place == len(self._inputs):
            self._inputs.append((column, present))
        return place

    def _state(self, policy: str, *columns: plc.Column, ctype: str | None = None) -> int:
        return self._place_of(KernelState(policy, tuple(self._input(c) for c in columns), ctype))

    def _presence_state(self, policy: str, column: plc.Column) -> int:
        """A state that does not look at the values, whatever their type."""
        if column.type().id() in CTYPES:
            # read all the same: another state may need the values, and inputs are not read twice
            return self._state(policy, column)
        memory = identity(column)
        places = [i for i, (c, _) in enumerate(self._inputs) if identity(c) == memory]
        place = places[0] if places else self._input(column, True)
        return self._place_of(KernelState(policy, (place,)))

    def _place_of(self, state: KernelState) -> int:
        if state not in self._states:
            self._states.append(state)
        return self._states.index(state)

    def _masked(self, column: plc.Column) -> bool:
        """Whether groups may have no values."""
        return self.nulls or masked(column)

    def _counted(self, column: plc.Column) -> int:
        return (
            self._presence_state("Count", column) if self._masked(column) else self._state("Size")
        )

    def _counts(self, column: plc.Column) -> tuple[int, ...]:
        """The number of values, as a state, where groups may have none."""
        return (self._counted(column),) if self._masked(column) else ()

    def _add(
        self,
        policy: str,
        states: int | tuple[int, ...],
        ctype: str,
        dtype: DataType,
        nullable: bool = False,
        constants: tuple[int, ...] = (),
        of: int | None = None,
    ) -> None:
        states = states if isinstance(states, tuple) else (states,)
        self._outputs.append((KernelOutput(policy, states, ctype, nullable, constants), dtype, of))

    # ---- outputs -----------------------------------------------------------------------------

    def size(self) -> None:
        """Rows of each group, int64."""
        self._add("Field", self._state("Size"), "i64", INT64)

    def count(self, column: plc.Column) -> None:
        """Values of each group that are not null, int64."""
        self._add("Field", self._counted(column), "i64", INT64)

    def sum(self, column: plc.Column) -> None:
        """Sums: integers modulo 2**64, floats in float64, durations and decimals in their type.

        As in cuDF, null for groups without values.
        """
        ctype, dtype = ctype_of(column), column.type()
        if ctype == "i128":
            self.wide_sum(column)
        elif ctype in FLOATS:
            self.float_sum(column)
        else:
            self._add_reduced("IntegerSum", column, *wide(ctype, dtype))

    def total(self, column: plc.Column) -> None:
        """Sums of integers of partials that are never null, as counts are."""
        types = wide(ctype_of(column), column.type())
        self._add_reduced("IntegerSum", column, *types, nullable=masked(column))

    def wide_sum(self, column: plc.Column) -> None:
        """Sums of a decimal as decimal128; null for groups without values."""
        dtype = DataType(TypeId.DECIMAL128, column.type().scale())
        self._add_reduced("WideSum", column, "i128", dtype, "WideField")

    def float_sum(self, column: plc.Column) -> None:
        """Sums in float64 whatever the column is; null for groups without values."""
        self._add_reduced("FloatSum", column, "f64", FLOAT64)

    def prod(self, column: plc.Column) -> None:
        """Products: integers modulo 2**64, floats in float64; null for groups without values."""
        ctype = ctype_of(column)
        if ctype in FLOATS:
            self._add_reduced("FloatProduct", column, "f64", FLOAT64)
        else:
            self._add_reduced("IntegerProduct", column, *wide(ctype, column.type()))

    def _add_reduced(
        self,
        policy: str,
        column: plc.Column,
        ctype: str,
        dtype: DataType,
        output: str = "Field",
        nullable: bool | None = None,
    ) -> None:
        nullable = self._masked(column) if nullable is None else nullable
        states: tuple[int, ...] = (self._state(policy, column),)
        if nullable:
            output, states = f"{output}Of", (*states, self._presence_state("Count", column))
        self._add(output, states, ctype, dtype, nullable)

    def exact_sum(self, column: plc.Column) -> None:
        """Five outputs, int64: which bins of a sum are used, and the bins; see ``digits.py``."""
        state = self._state("ExactSum", column)
        self._add("ExactUsed", state, "i64", INT64)
        for k in range(EXACT_BINS):
            self._add("ExactBin", state, "i64", INT64, constants=(k,))

    def exact_total(self, column: plc.Column) -> None:
        """Sums of numbers without rounding, rounded once; null for groups without values."""
        states = (self._state("ExactSum", column), *self._counts(column))
        self._add("ExactTotal", states, "f64", FLOAT64, self._masked(column))

    def exact_total_mean(self, column: plc.Column) -> None:
        """Means of such sums."""
        self._mean("ExactMean", "ExactSum", "f64", FLOAT64, column)

    def exact_loss(self, column: plc.Column) -> None:
        """More than ``digits.LOSS_AT_MOST`` where the bins do not hold all of a sum."""
        self._add("ExactLoss", self._state("ExactSum", column), "f64", FLOAT64)

    def min(self, column: plc.Column) -> None:
        """Smallest values, NaN only where there is nothing else; null for groups without any."""
        self._extreme("Min", column)

    def max(self, column: plc.Column) -> None:
        """Largest values; see ``min``."""
        self._extreme("Max", column)

    def _extreme(self, policy: str, column: plc.Column) -> None:
        ctype = ctype_of(column)
        states = (self._state(policy, column, ctype=ctype), *self._counts(column))
        self._add("Extreme", states, ctype, column.type(), self._masked(column))

    def any(self, column: plc.Column) -> None:
        """Whether any value is true; of none: false."""
        self._add("Field", self._state("Any", column), "u8", BOOL8)

    def all(self, column: plc.Column) -> None:
        """Whether all values are true; of none: true."""
        self._add("Field", self._state("All", column), "u8", BOOL8)

    def first(self, column: plc.Column) -> None:
        """First values that are not null, of any type that can be gathered."""
        self._row_number("FirstRow", False, column)

    def last(self, column: plc.Column) -> None:
        """Last values that are not null."""
        self._row_number("LastRow", True, column)

    def _row_number(self, policy: str, last: bool, column: plc.Column) -> None:
        state = self._presence_state(policy, column)
        self._add(
            "RowNumber", state, "i32", INT32, constants=(last,), of=self._states[state].inputs[0]
        )

    def mean(self, column: plc.Column, counts: plc.Column | None = None) -> None:
        """Means in float64, null for groups without values; of partials from sums and counts."""
        self._mean("Mean", "FloatSum", "f64", FLOAT64, column, counts)

    def exact_mean(self, column: plc.Column, counts: plc.Column | None = None) -> None:
        """Means of datetimes, durations or decimals, in their type and rounded towards zero."""
        self._mean("WideMean", "WideSum", ctype_of(column), column.type(), column, counts)

    def _mean(
        self, policy: str, sums: str, ctype: str, dtype: DataType, column: Any, counts: Any = None
    ) -> None:
        total = self._state(sums, column)
        count = self._counted(column) if counts is None else self._state("IntegerSum", counts)
        nullable = counts is not None or self._masked(column)
        self._add(policy, (total, count), ctype, dtype, nullable)

    def limbs(self, column: plc.Column) -> None:
        """Two outputs: the exact sum of 64-bit integers, in halves that can be summed again."""
        state = self._state("WideSum", column)
        self._add("WideUpper", state, "i64", INT64)
        self._add("WideLower", state, "i64", INT64)

    def limb_mean(
        self, upper: plc.Column, lower: plc.Column, counts: plc.Column, dtype: DataType
    ) -> None:
        """Means of datetimes or durations of a type from ``limbs`` and counts of partials."""
        states = tuple(self._state("IntegerSum", c) for c in (upper, lower, counts))
        self._add("LimbMean", states, "i64", dtype, True)

    def spread(self, ddof: int, power: int, *columns: plc.Column) -> None:
        """Variance (power 0), standard deviation (1) or standard error of the mean (2).

        The columns are values, or ``moments`` of partials.
        """
        state = self._moment_state(*columns)
        self._add("Spread", state, "f64", FLOAT64, True, (operator.index(ddof), power))

    def moments(self, *columns: plc.Column) -> None:
        """Three outputs: count, mean, centred second moment, of values or of these of partials."""
        state = self._moment_state(*columns)
        self._add("MomentRows", state, "i64", INT64)
        self._add("MomentMean", state, "f64", FLOAT64)
        self._add("MomentM2", state, "f64", FLOAT64)

    def loss(self, *columns: plc.Column) -> None:
        """Factor by which rounding errors of ``moments`` or ``spread`` are larger, float64."""
        self._add("MomentLoss", self._moment_state(*columns), "f64", FLOAT64)

    def _moment_state(self, *columns: plc.Column) -> int:
        return self._state("Moments" if len(columns) == 1 else "MergedMoments", *columns)
