"""libcudf's group-by, and the outputs of a query by it where kernels cannot run, or not yet.

It takes several times as long and as much memory, and gives the same answer. What no reduction of
libcudf makes, bins of exact sums and second moments, it marks as lost: ``digits.py`` restores that,
as where the kernels lose digits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import cupy as cp
import pylibcudf as plc
from pylibcudf.types import DataType, NullPolicy, TypeId

from dask_gpuagg.cuda.call import Run
from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelOutput, KernelState
from dask_gpuagg.cuda.runtime.compiler import KernelsUnavailable
from dask_gpuagg.engines.device.columns import (
    BOOL8,
    CTYPES,
    FLOAT64,
    INT32,
    INT64,
    as_type,
    binary,
    column_of,
    fill_nulls,
    is_positive,
    keep_where,
    nans_to_nulls,
    reinterpreted,
    scalar,
)
from dask_gpuagg.reporting.events import Fallback, FellBack, emit
from dask_gpuagg.reporting.fallbacks import warn_user
from dask_gpuagg.settings import task_settings

KERNEL = "libcudf"

# A column and the reduction of it.
Request = tuple[plc.Column, Any]

# the type of plain numbers for each ctype: the first of those that share it
_PLAIN: dict[str, TypeId] = {ctype: kind for kind, ctype in reversed(CTYPES.items())}
_NO_ROW = 0x7FFFFFFF
_DECIMAL128 = DataType(TypeId.DECIMAL128, 0)
_LIMB = 1 << 32
_SQRT = plc.unary.UnaryOperator.SQRT
# More than ``digits.LOSS_AT_MOST``.
_LOST = 1e300

# States that are one reduction of one column: the method that gives it, and the reduction.
_REDUCTIONS = {
    "IntegerSum": ("_integers", "sum"),
    "FloatSum": ("_floats", "sum"),
    "IntegerProduct": ("_integers", "product"),
    "FloatProduct": ("_floats", "product"),
    "Min": ("_comparable", "min"),
    "Max": ("_comparable", "max"),
    "Any": ("_truths", "max"),
    "All": ("_truths", "min"),
    "FirstRow": ("_row_numbers", "min"),
    "LastRow": ("_row_numbers", "max"),
}
# What outputs of ``ExactSum`` are instead; a negative ``used`` says that bins do not suffice.
_EXACT: dict[str, tuple[float, str]] = {
    "ExactUsed": (-1, "int64"),
    "ExactBin": (0, "int64"),
    "ExactTotal": (0.0, "float64"),
    "ExactMean": (0.0, "float64"),
    "ExactLoss": (_LOST, "float64"),
}


def reduced(
    keys: Sequence[plc.Column], requests: Sequence[Request], keep_nulls: bool = False
) -> tuple[list[plc.Column], list[plc.Column]]:
    """Group by key columns: the keys of the groups, in no order, and a column for each request."""
    nulls = NullPolicy.INCLUDE if keep_nulls else NullPolicy.EXCLUDE
    by = plc.groupby.GroupBy(plc.Table(list(keys)), nulls)
    groups, tables = by.aggregate([plc.groupby.GroupByRequest(c, [how]) for c, how in requests])
    return list(groups.columns()), [table.columns()[0] for table in tables]


def _as_key(column: plc.Column) -> plc.Column:
    """A key of which NaN is null, and -0.0 is 0.0."""
    if column.type().id() not in (TypeId.FLOAT32, TypeId.FLOAT64):
        return column
    return nans_to_nulls(plc.replace.normalize_nans_and_zeros(column))


def _upper_half(column: plc.Column) -> plc.Column:
    """The upper 32 bits of 64-bit integers, with their sign."""
    return binary("SHIFT_RIGHT", column, scalar(32, column), INT64)


def _lower_half(column: plc.Column) -> plc.Column:
    """The lower 32 bits of 64-bit integers."""
    return binary("BITWISE_AND", column, scalar(_LIMB - 1, column), INT64)


def _shifted(column: plc.Column) -> plc.Column:
    return binary("MUL", column, scalar(_LIMB, column), INT64)


def _limb_mean(upper: plc.Column, lower: plc.Column, n: plc.Column) -> plc.Column:
    """Quotients rounded towards zero of sums in two halves, by long division."""
    first, rest = binary("FLOOR_DIV", upper, n, INT64), binary("PYMOD", upper, n, INT64)
    lower = binary("ADD", _shifted(rest), lower, INT64)
    second, rest = binary("FLOOR_DIV", lower, n, INT64), binary("PYMOD", lower, n, INT64)
    quotient = binary("ADD", _shifted(first), second, INT64)
    negative = binary("LESS", quotient, scalar(0, quotient), BOOL8)
    inexact = binary("NOT_EQUAL", rest, scalar(0, rest), BOOL8)
    up = plc.unary.cast(binary("LOGICAL_AND", negative, inexact, BOOL8), INT64)
    return keep_where(binary("ADD", quotient, up, INT64), is_positive(n))


def _spread_of(n: plc.Column, m2: plc.Column, ddof: int, power: int) -> plc.Column:
    """Variance (power 0), standard deviation (1) or standard error of the mean (2)."""
    free = binary("SUB", n, scalar(ddof, n))
    spread = binary("TRUE_DIV", m2, free)
    if power:
        spread = plc.unary.unary_operation(spread, _SQRT)
    if power == 2:
        root = plc.unary.unary_operation(plc.unary.cast(n, FLOAT64), _SQRT)
        spread = binary("TRUE_DIV", spread, root)
    return keep_where(spread, is_positive(free))


class _Groups:
    """The groups of a query's rows, their states and outputs, by one group-by."""

    def __init__(
        self, query: Query, keys: Sequence[plc.Column], inputs: Sequence[plc.Column]
    ) -> None:
        self._query = query
        self._inputs = inputs
        self._key = keys[0]
        requests = [self._requests(state) for state in query.states]
        flat = [request for of_state in requests for request in of_state]
        # groups without states need a request too
        flat = flat or [(keys[0], plc.aggregation.count(NullPolicy.INCLUDE))]
        self.keys, columns = reduced(list(map(_as_key, keys)), flat, query.keep_nulls)
        self.n = self.keys[0].size()
        rest = iter(columns)
        self._states = [[next(rest) for _ in of_state] for of_state in requests]

    # ---- columns and their reductions --------------------------------------------------------

    def _plain(self, i: int) -> plc.Column:
        """The values of an input as the numbers that they are made of."""
        return reinterpreted(self._inputs[i], DataType(_PLAIN[self._query.inputs[i].ctype]))

    def _integers(self, i: int) -> plc.Column:
        return as_type(self._plain(i), INT64)

    def _floats(self, i: int) -> plc.Column:
        return as_type(self._plain(i), FLOAT64)

    def _comparable(self, i: int) -> plc.Column:
        return nans_to_nulls(self._plain(i))

    def _truths(self, i: int) -> plc.Column:
        return reinterpreted(plc.unary.cast(self._plain(i), BOOL8), DataType(TypeId.UINT8))

    @cached_property
    def _numbers(self) -> plc.Column:
        first, step = (plc.Scalar.from_py(n, INT32) for n in (0, 1))
        return plc.filling.sequence(self._key.size(), first, step)

    def _row_numbers(self, i: int) -> plc.Column:
        """Numbers of the rows, null where the input is: its own type may be one of no numbers."""
        column = self._inputs[i]
        if not column.null_count():
            return self._numbers
        return keep_where(self._numbers, plc.unary.is_valid(column))

    def _is_wide(self, state: KernelState) -> bool:
        return self._query.inputs[state.inputs[0]].ctype == "i128"

    def _requests(self, state: KernelState) -> list[Request]:
        """What a state is made of."""
        total, count = plc.aggregation.sum, plc.aggregation.count
        match state.policy:
            case "Size":
                return [(self._key, count(NullPolicy.INCLUDE))]
            case "Count":
                return [(self._row_numbers(*state.inputs), count(NullPolicy.EXCLUDE))]
            case "ExactSum":
                return []
            case "WideSum" if self._is_wide(state):
                return [(self._plain(*state.inputs), total())]
            case "WideSum":
                values = self._integers(*state.inputs)
                return [(_upper_half(values), total()), (_lower_half(values), total())]
            case "Moments":
                values = self._floats(*state.inputs)
                return [(values, count(NullPolicy.EXCLUDE)), (values, total())]
            case "MergedMoments":
                n, mean, m2 = state.inputs
                weights = self._floats(n)
                # partials of no values have a mean of NaN
                means = keep_where(self._floats(mean), is_positive(weights))
                parts = binary("MUL", weights, means)
                requests = [(self._integers(n), total()), (parts, total())]
                return [*requests, (self._floats(m2), total()), (parts, count(NullPolicy.EXCLUDE))]
        column, reduction = _REDUCTIONS[state.policy]
        return [(getattr(self, column)(*state.inputs), getattr(plc.aggregation, reduction)())]

    # ---- outputs -----------------------------------------------------------------------------

    def output(self, output: KernelOutput) -> plc.Column:
        """One row per group."""
        policy, (first, *others) = output.policy, output.states
        if policy in _EXACT:
            return column_of(cp.full(self.n, *_EXACT[policy]))
        state = self._query.states[first]
        reduced_column, *more = self._states[first]
        match policy:
            case "Field" | "FieldOf":
                return self._field(state, reduced_column)
            case "RowNumber":
                return fill_nulls(reduced_column, _NO_ROW)
            case "Extreme":
                return self._extreme(reduced_column, others)
            case "Mean":
                n = self._count(*others)
                return keep_where(binary("TRUE_DIV", reduced_column, n), is_positive(n))
            case "LimbMean":
                return _limb_mean(*(self._states[i][0] for i in output.states))
            case "WideField" | "WideFieldOf" | "WideMean" if self._is_wide(state):
                if policy != "WideMean":
                    return reduced_column
                n = self._count(*others)
                mean = binary("DIV", reduced_column, as_type(n, _DECIMAL128), _DECIMAL128)
                return keep_where(mean, is_positive(n))
            case "WideField" | "WideFieldOf" | "WideMean" | "WideUpper" | "WideLower":
                return self._of_halves(output, reduced_column, *more)
            case "MomentRows":
                return as_type(reduced_column, INT64)
            case "MomentMean":
                return fill_nulls(binary("TRUE_DIV", more[0], reduced_column), float("nan"))
            case "MomentM2":
                return self._m2(more)
            case "MomentLoss":  # of what is not made of a single value or part
                parts = as_type(more[-1] if len(more) > 1 else reduced_column, FLOAT64)
                return binary("MUL", binary("SUB", parts, scalar(1, parts)), scalar(_LOST, parts))
            case "Spread":
                n = as_type(reduced_column, INT64)
                return _spread_of(n, self._m2(more), *output.constants)
        raise NotImplementedError(f"{KERNEL} does not make {policy}")

    def _count(self, state: int) -> plc.Column:
        return as_type(self._states[state][0], INT64)

    def _m2(self, more: Sequence[plc.Column]) -> plc.Column:
        """Second moments of groups of one value, or one part."""
        return fill_nulls(more[1], 0) if len(more) > 1 else column_of(cp.zeros(self.n))

    def _field(self, state: KernelState, column: plc.Column) -> plc.Column:
        if state.policy in ("Size", "Count"):
            return as_type(column, INT64)
        # whether any, or all, of no values are true
        empty = {"Any": 0, "All": 1}.get(state.policy)
        return column if empty is None else fill_nulls(column, empty)

    def _of_halves(self, output: KernelOutput, upper: plc.Column, lower: plc.Column) -> plc.Column:
        """An output of sums of 64-bit integers, from sums of their halves."""
        upper, lower = binary("ADD", upper, _upper_half(lower), INT64), _lower_half(lower)
        match output.policy:
            case "WideUpper":
                return fill_nulls(upper, 0)
            case "WideLower":
                return fill_nulls(lower, 0)
            case "WideMean":
                first, count = output.states
                (i,) = self._query.states[first].inputs
                mean = _limb_mean(fill_nulls(upper, 0), fill_nulls(lower, 0), self._count(count))
                return plc.unary.cast(mean, DataType(_PLAIN[self._query.inputs[i].ctype]))
        limb = as_type(column_of(cp.full(self.n, _LIMB)), _DECIMAL128)
        wide = binary("MUL", as_type(upper, _DECIMAL128), limb, _DECIMAL128)
        return binary("ADD", wide, as_type(lower, _DECIMAL128), _DECIMAL128)

    def _extreme(self, extremes: plc.Column, count: Sequence[int]) -> plc.Column:
        if extremes.type().id() not in (TypeId.FLOAT32, TypeId.FLOAT64):
            return extremes
        # null where there is no value but NaN; that is NaN, unless there is no value at all
        filled = fill_nulls(extremes, float("nan"))
        return keep_where(filled, is_positive(self._count(*count))) if count else filled


class Served(NamedTuple):
    """Key columns, outputs as the plain numbers that kernels would write, and the report."""

    keys: list[plc.Column]
    outputs: list[plc.Column]
    run: Run


def aggregate(
    query: Query, keys: Sequence[plc.Column], inputs: Sequence[plc.Column], why: str
) -> Served:
    """Group rows and reduce every group; ``why`` says why the kernels do not do it."""
    started = time.perf_counter()
    groups = _Groups(query, keys, inputs)
    outputs = [groups.output(output) for output in query.outputs]
    rows, number = keys[0].size(), groups.n
    seconds, decision = time.perf_counter() - started, Decision(kernel=KERNEL, why=why)
    run = Run(decision, rows, number, bytes_read=query.row_bytes * rows, seconds=seconds)
    return Served(groups.keys, outputs, run)


def cause_of(error: KernelsUnavailable) -> str:
    """The line that says what is wrong, of a message that may be a compiler's log.

    Under ``gpuagg.fallback: raise`` the error is raised; under ``warn`` each cause is a warning,
    once in each process.
    """
    policy = task_settings().fallback
    if policy == "raise":
        raise error
    lines = str(error).splitlines() or [type(error).__name__]
    cause = next((line for line in lines if "error" in line), lines[0])
    emit(FellBack(Fallback("a group-by on the device", f"runs by {KERNEL}", cause)))
    if policy == "warn":
        _warn(cause)
    return cause


@lru_cache(1000)
def _warn(cause: str) -> None:
    warn_user(
        f"group-bys on the device run by {KERNEL}, which is slower, because the kernels of this "
        f"package cannot run: {cause}"
    )
