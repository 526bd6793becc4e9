"""The outputs of a query by libcudf's own group-by, where kernels cannot run, or not yet.

It takes several times as long and as much memory, and gives the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import cupy as cp
import pylibcudf as plc
from pylibcudf.types import DataType, NanEquality, NullEquality, NullPolicy, TypeId

from dask_gpuagg.cuda.call import Run
from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelOutput, KernelState
from dask_gpuagg.cuda.runtime.compiler import KernelsUnavailable
from dask_gpuagg.engines.device.columns import (
    BOOL8,
    CTYPES,
    FLOAT64,
    INT64,
    as_type,
    binary,
    column_of,
    fill_nulls,
    gather,
    is_positive,
    keep_where,
    nans_to_nulls,
    reinterpreted,
    scalar,
)
from dask_gpuagg.engines.device.numbering import Numbering
from dask_gpuagg.reporting.events import Fallback, FellBack, emit
from dask_gpuagg.reporting.fallbacks import warn_user
from dask_gpuagg.settings import task_settings

KERNEL = "libcudf"

# the type of plain numbers for each ctype: the first of those that share it
_PLAIN: dict[str, TypeId] = {ctype: kind for kind, ctype in reversed(CTYPES.items())}
_NO_ROW = 0x7FFFFFFF
_DECIMAL128 = DataType(TypeId.DECIMAL128, 0)
_LIMB = 1 << 32
_SQRT = plc.unary.UnaryOperator.SQRT

# States that are one reduction of one column: the method that gives it, the reduction, and what
# groups without values have, if that is not null.
_REDUCTIONS: dict[str, tuple[str, str, int | None]] = {
    "IntegerSum": ("_integers", "sum", None),
    "FloatSum": ("_floats", "sum", None),
    "IntegerProduct": ("_integers", "product", None),
    "FloatProduct": ("_floats", "product", None),
    "Min": ("_comparable", "min", None),
    "Max": ("_comparable", "max", None),
    "Any": ("_truths", "max", 0),
    "All": ("_truths", "min", 1),
    "FirstRow": ("_row_numbers", "min", None),
    "LastRow": ("_row_numbers", "max", None),
}
# States that one group-by makes, which hashes the keys.
_HASHED = frozenset(("Size", "Count", "ExactSum", *_REDUCTIONS))

# Outputs of ``ExactSum``: bins that are full say that the rows have to be added in another way
# (``digits.py``), and so does a loss of all digits.
_EXACT: dict[str, tuple[float, str]] = {
    "ExactUsed": (-(1 << 63), "int64"),
    "ExactBin": (0, "int64"),
    "ExactTotal": (0.0, "float64"),
    "ExactMean": (0.0, "float64"),
    "ExactLoss": (1e300, "float64"),
}


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


def _shifted(column: plc.Column) -> plc.Column:
    return binary("MUL", column, scalar(_LIMB, column), INT64)


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


class Groups:
    """The groups of a query's rows, their states and outputs.

    One group-by makes all states of ``_HASHED``. For the others the rows are numbered by their
    groups, as moments need them for their distances from the mean.
    """

    def __init__(
        self, query: Query, keys: Sequence[plc.Column], inputs: Sequence[plc.Column]
    ) -> None:
        self._query = query
        self._inputs = inputs
        # those that were read, in the order of ``_rows``, the numbers of the rows that are reduced
        self._columns: dict[int, plc.Column] = {}
        self._states: dict[int, tuple[plc.Column, ...]] = {}
        keys = [_as_key(key) for key in keys]
        self._numbering = None if hashes(query) else self._number(keys)
        if self._numbering is None:
            first, step = (plc.Scalar.from_py(n, DataType(TypeId.INT32)) for n in (0, 1))
            self._rows = plc.filling.sequence(keys[0].size(), first, step)
            self._hash(keys)
        else:
            self._rows = column_of(self._numbering.rows)

    def _number(self, keys: list[plc.Column]) -> Numbering:
        places, table = list(range(len(keys))), plc.Table(keys)
        if not self._query.keep_nulls:
            table = plc.stream_compaction.drop_nulls(table, places, len(places))
        self.keys = plc.stream_compaction.distinct(
            table,
            places,
            plc.stream_compaction.DuplicateKeepOption.KEEP_ANY,
            NullEquality.EQUAL,
            NanEquality.ALL_EQUAL,
        )
        return Numbering.of_columns(keys, self.keys.columns())

    def _hash(self, keys: list[plc.Column]) -> None:
        states = [i for i, s in enumerate(self._query.states) if s.policy != "ExactSum"]
        reductions = [self._request(self._query.states[i]) for i in states]
        # groups without states need a request too
        reductions = reductions or [(self._rows, plc.aggregation.count(NullPolicy.INCLUDE))]
        nulls = NullPolicy.INCLUDE if self._query.keep_nulls else NullPolicy.EXCLUDE
        requests = [plc.groupby.GroupByRequest(column, [how]) for column, how in reductions]
        self.keys, tables = plc.groupby.GroupBy(plc.Table(keys), nulls).aggregate(requests)
        for i, table in zip(states, tables, strict=False):
            self._states[i] = (self._finished(i, table.columns()[0]),)

    # ---- columns in the order in which they are reduced --------------------------------------

    def _in_order(self, column: plc.Column) -> plc.Column:
        if self._numbering is None:
            return column
        return gather(column, self._numbering.rows, all_there=True)

    def _plain(self, i: int) -> plc.Column:
        """The values of an input as the numbers that they are made of."""
        if i not in self._columns:
            self._columns[i] = self._in_order(self._inputs[i])
        return reinterpreted(self._columns[i], DataType(_PLAIN[self._query.inputs[i].ctype]))

    def _integers(self, i: int) -> plc.Column:
        return as_type(self._plain(i), INT64)

    def _floats(self, i: int) -> plc.Column:
        return as_type(self._plain(i), FLOAT64)

    def _wide(self, i: int) -> plc.Column:
        """Integers, durations and decimals as integers of 128 bits."""
        return as_type(self._plain(i), _DECIMAL128)

    def _comparable(self, i: int) -> plc.Column:
        return nans_to_nulls(self._plain(i))

    def _truths(self, i: int) -> plc.Column:
        return reinterpreted(plc.unary.cast(self._plain(i), BOOL8), DataType(TypeId.UINT8))

    def _row_numbers(self, i: int) -> plc.Column:
        """Numbers of the rows, null where the input is: its own type may be one of no numbers."""
        column = self._inputs[i]
        if not column.null_count():
            return self._rows
        return keep_where(self._rows, self._in_order(plc.unary.is_valid(column)))

    # ---- states ------------------------------------------------------------------------------

    def _reduced(self, column: plc.Column, how: plc.aggregation.Aggregation) -> plc.Column:
        assert self._numbering is not None
        return self._numbering.reduce(column, how)

    def _sum(self, column: plc.Column) -> plc.Column:
        return self._reduced(column, plc.aggregation.sum())

    def _distances(self, column: plc.Column, means: plc.Column) -> plc.Column:
        """Values less the mean of their group."""
        assert self._numbering is not None
        return binary("SUB", column, gather(means, self._numbering.codes, all_there=True))

    def _state(self, i: int) -> tuple[plc.Column, ...]:
        if i not in self._states:
            state = self._query.states[i]
            match state.policy:
                case "WideSum":
                    self._states[i] = (self._sum(self._wide(*state.inputs)),)
                case "Moments":
                    self._states[i] = self._moments(*state.inputs)
                case "MergedMoments":
                    self._states[i] = self._merged_moments(*state.inputs)
                case _:
                    reduced = self._reduced(*self._request(state))
                    self._states[i] = (self._finished(i, reduced),)
        return self._states[i]

    def _request(self, state: KernelState) -> tuple[plc.Column, plc.aggregation.Aggregation]:
        """The column and the reduction that make a state of ``_HASHED``."""
        if state.policy == "Size":
            return self._rows, plc.aggregation.count(NullPolicy.INCLUDE)
        if state.policy == "Count":
            return self._row_numbers(*state.inputs), plc.aggregation.count(NullPolicy.EXCLUDE)
        column, reduction, _ = _REDUCTIONS[state.policy]
        return getattr(self, column)(*state.inputs), getattr(plc.aggregation, reduction)()

    def _finished(self, i: int, reduced: plc.Column) -> plc.Column:
        policy = self._query.states[i].policy
        if policy in ("Size", "Count"):
            return as_type(reduced, INT64)
        _, _, of_none = _REDUCTIONS[policy]
        return reduced if of_none is None else fill_nulls(reduced, of_none)

    def _moments(self, i: int) -> tuple[plc.Column, ...]:
        values = self._floats(i)
        n = as_type(self._reduced(values, plc.aggregation.count(NullPolicy.EXCLUDE)), INT64)
        mean = binary("TRUE_DIV", self._sum(values), n)
        off = self._distances(values, mean)
        return n, mean, self._sum(binary("MUL", off, off))

    def _merged_moments(self, n: int, mean: int, m2: int) -> tuple[plc.Column, ...]:
        weights = self._floats(n)
        total = self._sum(self._integers(n))
        # partials of no values have a mean of NaN
        some = binary("NOT_EQUAL", weights, scalar(0, weights), BOOL8)
        means = keep_where(self._floats(mean), some)
        merged = binary("TRUE_DIV", self._sum(binary("MUL", weights, means)), total)
        off = self._distances(means, merged)
        between = self._sum(binary("MUL", weights, binary("MUL", off, off)))
        return total, merged, binary("ADD", self._sum(self._floats(m2)), fill_nulls(between, 0))

    def _limbs(self, i: int) -> tuple[plc.Column, plc.Column]:
        """Sums of 64-bit integers in two halves."""
        values = self._integers(i)
        low = self._sum(_lower_half(values))
        high = binary("ADD", self._sum(_upper_half(values)), _upper_half(low), INT64)
        return fill_nulls(high, 0), fill_nulls(_lower_half(low), 0)

    # ---- outputs -----------------------------------------------------------------------------

    def output(self, output: KernelOutput) -> plc.Column:
        """One row per group."""
        policy, (first, *others) = output.policy, output.states
        if policy in _EXACT:
            return column_of(cp.full(self.keys.num_rows(), *_EXACT[policy]))
        state = self._state(first)
        match policy:
            case "Field" | "FieldOf" | "WideField" | "WideFieldOf" | "MomentRows":
                return state[0]
            case "Extreme":
                return self._extreme(state[0], others)
            case "RowNumber":
                return fill_nulls(state[0], _NO_ROW)
            case "WideUpper" | "WideLower":
                (i,) = self._query.states[first].inputs
                return self._limbs(i)[policy == "WideLower"]
            case "WideMean":
                (i,), (n,) = self._query.states[first].inputs, self._state(*others)
                return self._exact_mean(i, state[0], n)
            case "LimbMean":
                return _limb_mean(*(self._state(i)[0] for i in output.states))
            case "MomentMean":
                return fill_nulls(state[1], float("nan"))
            case "MomentM2":
                return fill_nulls(state[2], 0)
            case "MomentLoss":  # its sums are of distances from the mean
                n = plc.unary.cast(state[0], FLOAT64)
                return binary("MUL", n, scalar(0, n))
            case "Mean":
                (n,) = self._state(*others)
                return keep_where(binary("TRUE_DIV", state[0], n), is_positive(n))
            case "Spread":
                n, _, m2 = state
                return _spread_of(n, m2, *output.constants)
        raise NotImplementedError(f"{KERNEL} does not make {policy}")

    def _exact_mean(self, i: int, total: plc.Column, n: plc.Column) -> plc.Column:
        ctype = self._query.inputs[i].ctype
        if ctype == "i128":
            mean = binary("DIV", total, plc.unary.cast(n, _DECIMAL128), _DECIMAL128)
            return keep_where(mean, is_positive(n))
        return plc.unary.cast(_limb_mean(*self._limbs(i), n), DataType(_PLAIN[ctype]))

    def _extreme(self, extremes: plc.Column, count: Sequence[int]) -> plc.Column:
        if extremes.type().id() not in (TypeId.FLOAT32, TypeId.FLOAT64):
            return extremes
        # null where there is no value but NaN; that is NaN, unless there is no value at all
        filled = fill_nulls(extremes, float("nan"))
        if not count:
            return filled
        return keep_where(filled, is_positive(self._state(*count)[0]))


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
    groups = Groups(query, keys, inputs)
    outputs = [groups.output(output) for output in query.outputs]
    rows, number = keys[0].size(), groups.keys.num_rows()
    seconds, decision = time.perf_counter() - started, Decision(kernel=KERNEL, why=why)
    run = Run(decision, rows, number, bytes_read=query.row_bytes * rows, seconds=seconds)
    return Served(list(groups.keys.columns()), outputs, run)


def hashes(query: Query) -> bool:
    """Whether one group-by of libcudf makes all states; for the others rows are numbered first."""
    return all(state.policy in _HASHED for state in query.states)


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
