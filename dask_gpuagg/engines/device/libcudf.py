"""The outputs of a query by libcudf's own group-by, where kernels cannot run, or not yet.

It takes several times as long and as much memory, and gives the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import cupy as cp
import pylibcudf as plc
from pylibcudf.types import (
    DataType,
    NanEquality,
    NullEquality,
    NullOrder,
    NullPolicy,
    Order,
    Sorted,
    TypeId,
)

from dask_gpuagg import exact_sums
from dask_gpuagg.cuda.call import Run
from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import EXACT_BINS, KernelOutput, KernelState
from dask_gpuagg.cuda.runtime.compiler import KernelsUnavailable
from dask_gpuagg.engines.device.columns import (
    BOOL8,
    CTYPES,
    FLOAT64,
    INT64,
    array_of,
    binary,
    column_of,
    fill_nulls,
    gather_rows,
    is_positive,
    keep_where,
    nans_to_nulls,
    reinterpreted,
    scalar,
)
from dask_gpuagg.reporting.events import Fallback, FellBack, emit
from dask_gpuagg.reporting.fallbacks import warn_user
from dask_gpuagg.settings import task_settings

# The bins that the lowest bit and the last but one stand for; the last marks unusual values.
_LOWEST, _HIGHEST = 3, 65
# More than ``digits.LOSS_AT_MOST``.
_LOSS = 1e300

Reduce = Callable[[plc.Column, Any], plc.Column]


def decoded(used: cp.ndarray, bins: Sequence[cp.ndarray]) -> exact_sums.Digits | None:
    """The bins of all groups by their places; None where those of a group are too far apart.

    ``used`` has the bits of the bins between which a group's values lie.
    """
    lowest = used & -used
    if bool(((used < 0) | (used // cp.maximum(lowest, 1) >= 1 << EXACT_BINS)).any()):
        return None
    digits: exact_sums.Digits = {}
    held = used != 0
    if not bool(held.any()):
        return digits
    # the exponent of a power of two
    first = _LOWEST + (lowest.astype(cp.float64).view(cp.int64) >> 52) - 1023
    for j in range(int(first[held].min()), int(first[held].max()) + EXACT_BINS):
        inside = held & (j >= first) & (j < first + EXACT_BINS)
        values = cp.where(inside, bins[j % EXACT_BINS], 0)
        if bool(values.any()):
            digits[j] = values
    return digits


def exact_sum(reduced: Reduce, column: plc.Column) -> tuple[plc.Column, ...]:
    """The fields of the kernels' ``ExactSum`` of rows: which bins are used, and the bins.

    ``reduced`` reduces a column to one row for each group.
    """
    values = array_of(fill_nulls(column, 0))
    floats = values.dtype.kind == "f"
    if floats:
        values = values.astype(cp.float64)
        place, slices = exact_sums.sliced(values, cp)
    else:
        digits = exact_sums.of_integers(
            values.astype(cp.uint64 if values.dtype.kind == "u" else cp.int64)
        )
        place, slices = cp.full(len(values), min(digits), dtype=cp.int64), list(digits.values())
    some = cp.zeros(len(values), dtype=bool)
    first, last = cp.full_like(place, _HIGHEST), cp.full_like(place, _LOWEST)
    bins = [cp.zeros_like(place) for _ in range(EXACT_BINS)]
    for i, part in enumerate(slices):
        filled = part != 0
        first = cp.where(filled & ~some, place, first)
        last = cp.where(filled, place + i, last)
        some |= filled
        for k in range(EXACT_BINS):
            bins[k] += cp.where((place + i) % EXACT_BINS == k, part, 0)
    unusual = some & ((first < _LOWEST) | (last > _HIGHEST))
    if floats:
        unusual |= ~cp.isfinite(values)
    sums = [reduced(column_of(part), plc.aggregation.sum()) for part in bins]
    least = array_of(reduced(column_of(first), plc.aggregation.min()))
    most = array_of(reduced(column_of(last), plc.aggregation.max()))
    any_unusual = array_of(reduced(column_of(unusual.astype(cp.int8)), plc.aggregation.max()))
    one = cp.ones_like(least)
    used = (one << (least - _LOWEST)) | (one << (most - _LOWEST))
    used = cp.where(most >= least, used, 0)
    used = cp.where(any_unusual > 0, cp.int64(-(1 << 63)), used)
    return column_of(used), *sums


def exact_total(fields: Sequence[plc.Column]) -> plc.Column:
    """The sums of such fields, rounded once; anything where bins are too far apart."""
    used, *bins = map(array_of, fields)
    digits = decoded(used, bins)
    if digits is None:
        return column_of(cp.zeros(len(used)))
    labelled = {exact_sums.label(j): values for j, values in digits.items()}
    return column_of(exact_sums.total({exact_sums.COUNT: used} | labelled, cp))


def exact_loss(fields: Sequence[plc.Column]) -> plc.Column:
    """More than may be lost where bins are too far apart."""
    used, *bins = map(array_of, fields)
    return column_of(cp.full(len(used), _LOSS if decoded(used, bins) is None else 0.0))


KERNEL = "libcudf"

# the type of plain numbers for each ctype: the first of those that share it
_PLAIN: dict[str, TypeId] = {ctype: kind for kind, ctype in reversed(CTYPES.items())}
_NO_ROW = 0x7FFFFFFF
_DECIMAL128 = DataType(TypeId.DECIMAL128, 0)
_LIMB = 1 << 32


# States that are one reduction of one column: who gives it, and the reduction.
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
# States for which rows need not be sorted.
_HASHED = frozenset(("Size", "Count", *_REDUCTIONS))


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
        spread = plc.unary.unary_operation(spread, plc.unary.UnaryOperator.SQRT)
    if power == 2:
        root = plc.unary.unary_operation(plc.unary.cast(n, FLOAT64), plc.unary.UnaryOperator.SQRT)
        spread = binary("TRUE_DIV", spread, root)
    return keep_where(spread, is_positive(free))


def _cast(column: plc.Column, dtype: DataType) -> plc.Column:
    return column if column.type() == dtype else plc.unary.cast(column, dtype)


def _finished(state: KernelState, reduced: plc.Column) -> plc.Column:
    match state.policy:
        case "Size" | "Count":
            return _cast(reduced, INT64)
        case "Any":
            return fill_nulls(reduced, 0)
        case "All":
            return fill_nulls(reduced, 1)
    return reduced


class _Groups:
    """The groups of a query's rows, their states and outputs."""

    keys: plc.Table
    # numbers of the rows in the order in which columns are reduced, and a column without nulls
    _rows: plc.Column
    _numbers: plc.Column

    def __init__(self, query: Query, inputs: Sequence[plc.Column]) -> None:
        self._query = query
        self._inputs = list(inputs)
        self._columns: dict[int, plc.Column] = {}
        self._states: dict[int, tuple[plc.Column, ...]] = {}

    # ---- columns in the order in which they are reduced --------------------------------------

    def _in_order(self, column: plc.Column) -> plc.Column:
        return column

    def _ordered(self, i: int) -> plc.Column:
        if i not in self._columns:
            self._columns[i] = self._in_order(self._inputs[i])
        return self._columns[i]

    def _reduced(self, column: plc.Column, how: plc.aggregation.Aggregation) -> plc.Column:
        raise NotImplementedError

    def _plain(self, i: int) -> plc.Column:
        """The values of an input as the numbers that they are made of."""
        return reinterpreted(self._ordered(i), DataType(_PLAIN[self._query.inputs[i].ctype]))

    def _integers(self, i: int) -> plc.Column:
        return _cast(self._plain(i), INT64)

    def _floats(self, i: int) -> plc.Column:
        return _cast(self._plain(i), FLOAT64)

    def _wide(self, i: int) -> plc.Column:
        """Integers, durations and decimals as integers of 128 bits."""
        if self._query.inputs[i].ctype == "i128":
            return reinterpreted(self._ordered(i), _DECIMAL128)
        return plc.unary.cast(self._plain(i), _DECIMAL128)

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

    def _sum(self, column: plc.Column) -> plc.Column:
        return self._reduced(column, plc.aggregation.sum())

    # ---- states ------------------------------------------------------------------------------

    def _state(self, i: int) -> tuple[plc.Column, ...]:
        if i not in self._states:
            self._states[i] = self._made(self._query.states[i])
        return self._states[i]

    def _made(self, state: KernelState) -> tuple[plc.Column, ...]:
        if state.policy in _HASHED:
            return (_finished(state, self._reduced(*self._request(state))),)
        match state.policy:
            case "WideSum":
                return (self._sum(self._wide(*state.inputs)),)
            case "ExactSum":
                return exact_sum(self._reduced, self._plain(*state.inputs))
            case "Moments":
                return self._moments(*state.inputs)
            case "MergedMoments":
                return self._merged_moments(*state.inputs)
        raise NotImplementedError(f"{KERNEL} does not make {state.policy}")

    def _request(self, state: KernelState) -> tuple[plc.Column, plc.aggregation.Aggregation]:
        """The column and the reduction that make a state of ``_HASHED``."""
        if state.policy == "Size":
            return self._numbers, plc.aggregation.count(NullPolicy.INCLUDE)
        if state.policy == "Count":
            return self._row_numbers(*state.inputs), plc.aggregation.count(NullPolicy.EXCLUDE)
        column, reduction = _REDUCTIONS[state.policy]
        return getattr(self, column)(*state.inputs), getattr(plc.aggregation, reduction)()

    def _moments(self, i: int) -> tuple[plc.Column, ...]:
        values = self._floats(i)
        n = _cast(self._reduced(values, plc.aggregation.count(NullPolicy.EXCLUDE)), INT64)
        mean = binary("TRUE_DIV", self._sum(values), n)
        off = binary("SUB", values, gather_rows(mean, self._numbers, all_there=True))
        return n, mean, self._sum(binary("MUL", off, off))

    def _limbs(self, i: int) -> tuple[plc.Column, plc.Column]:
        """Sums of 64-bit integers in two halves."""
        values = self._integers(i)
        low = self._sum(_lower_half(values))
        high = binary("ADD", self._sum(_upper_half(values)), _upper_half(low), INT64)
        return fill_nulls(high, 0), fill_nulls(_lower_half(low), 0)

    def _exact_mean(self, i: int, n: plc.Column) -> plc.Column:
        ctype = self._query.inputs[i].ctype
        if ctype == "i128":
            count = plc.unary.cast(n, _DECIMAL128)
            mean = binary("DIV", self._sum(self._wide(i)), count, _DECIMAL128)
            return keep_where(mean, is_positive(n))
        return plc.unary.cast(_limb_mean(*self._limbs(i), n), DataType(_PLAIN[ctype]))

    def _merged_moments(self, n: int, mean: int, m2: int) -> tuple[plc.Column, ...]:
        weights = self._floats(n)
        total = self._sum(self._integers(n))
        # partials of no values have a mean of NaN
        some = binary("NOT_EQUAL", weights, scalar(0, weights), BOOL8)
        means = keep_where(self._floats(mean), some)
        merged = binary("TRUE_DIV", self._sum(binary("MUL", weights, means)), total)
        off = binary("SUB", means, gather_rows(merged, self._numbers, all_there=True))
        between = self._sum(binary("MUL", weights, binary("MUL", off, off)))
        return total, merged, binary("ADD", self._sum(self._floats(m2)), fill_nulls(between, 0))

    # ---- outputs -----------------------------------------------------------------------------

    def output(self, output: KernelOutput) -> plc.Column:
        """One row per group."""
        policy, (first, *others) = output.policy, output.states
        state = self._state(first)
        match policy:
            case "Field" | "FieldOf" | "WideField" | "WideFieldOf" | "ExactUsed" | "MomentRows":
                return state[0]
            case "Extreme":
                return self._extreme(state[0], others)
            case "RowNumber":
                return fill_nulls(state[0], _NO_ROW)
            case "WideUpper" | "WideLower":
                (i,) = self._query.states[first].inputs
                return self._limbs(i)[policy == "WideLower"]
            case "WideMean":
                (i,) = self._query.states[first].inputs
                return self._exact_mean(i, self._state(*others)[0])
            case "LimbMean":
                upper, lower, n = (self._state(i)[0] for i in output.states)
                return _limb_mean(upper, lower, n)
            case "ExactBin":
                return state[1 + output.constants[0]]
            case "ExactLoss":
                return exact_loss(state)
            case "ExactTotal" | "ExactMean":
                return self._exact_total(exact_total(state), policy, others)
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

    def _exact_total(self, sums: plc.Column, policy: str, count: Sequence[int]) -> plc.Column:
        if not count:
            return sums
        (n,) = self._state(*count)
        totals = binary("TRUE_DIV", sums, n) if policy == "ExactMean" else sums
        return keep_where(totals, is_positive(n))

    def _extreme(self, extremes: plc.Column, count: Sequence[int]) -> plc.Column:
        if extremes.type().id() not in (TypeId.FLOAT32, TypeId.FLOAT64):
            return extremes
        # null where there is no value but NaN; that is NaN, unless there is no value at all
        filled = fill_nulls(extremes, float("nan"))
        if not count:
            return filled
        return keep_where(filled, is_positive(self._state(*count)[0]))


class Hashed(_Groups):
    """By one group-by of libcudf, which hashes the keys."""

    def __init__(
        self, query: Query, keys: Sequence[plc.Column], inputs: Sequence[plc.Column]
    ) -> None:
        super().__init__(query, inputs)
        self._numbers = keys[0]
        reductions = [self._request(state) for state in query.states]
        # groups without states need a request too
        reductions = reductions or [(self._numbers, plc.aggregation.count(NullPolicy.INCLUDE))]
        by = plc.groupby.GroupBy(
            plc.Table([_as_key(key) for key in keys]),
            NullPolicy.INCLUDE if query.keep_nulls else NullPolicy.EXCLUDE,
        )
        requests = [plc.groupby.GroupByRequest(column, [how]) for column, how in reductions]
        self.keys, tables = by.aggregate(requests)
        for i, (state, table) in enumerate(zip(query.states, tables, strict=False)):
            self._states[i] = (_finished(state, table.columns()[0]),)

    @cached_property
    def _rows(self) -> plc.Column:
        first, step = (plc.Scalar.from_py(n, DataType(TypeId.INT32)) for n in (0, 1))
        return plc.filling.sequence(self._numbers.size(), first, step)


class InOrder(_Groups):
    """By rows in the order of their groups.

    Sorted once by the number of their group, every reduction gives one row per group in the order
    of the keys, whatever its type.
    """

    def __init__(
        self, query: Query, keys: Sequence[plc.Column], inputs: Sequence[plc.Column]
    ) -> None:
        super().__init__(query, inputs)
        table = plc.Table([_as_key(key) for key in keys])
        every = list(range(len(keys)))
        key_table = table
        if not query.keep_nulls:
            key_table = plc.stream_compaction.drop_nulls(table, every, len(every))
        self.keys = plc.stream_compaction.distinct(
            key_table,
            every,
            plc.stream_compaction.DuplicateKeepOption.KEEP_ANY,
            NullEquality.EQUAL,
            NanEquality.ALL_EQUAL,
        )
        rows, numbers = plc.join.inner_join(table, self.keys, NullEquality.EQUAL)
        self._rows, self._numbers = plc.sorting.sort_by_key(
            plc.Table([rows, numbers]), plc.Table([numbers]), [Order.ASCENDING], [NullOrder.AFTER]
        ).columns()
        self._groupby = plc.groupby.GroupBy(
            plc.Table([self._numbers]), NullPolicy.EXCLUDE, Sorted.YES
        )

    def _in_order(self, column: plc.Column) -> plc.Column:
        return gather_rows(column, self._rows, all_there=True)

    def _reduced(self, column: plc.Column, how: plc.aggregation.Aggregation) -> plc.Column:
        requests = [plc.groupby.GroupByRequest(column, [how])]
        _, (reduced,) = self._groupby.aggregate(requests)
        return reduced.columns()[0]


def aggregate(
    query: Query, keys: Sequence[plc.Column], inputs: Sequence[plc.Column], why: str
) -> tuple[list[plc.Column], list[plc.Column], Run]:
    """Group rows and reduce every group; outputs are the plain numbers that kernels would write.

    ``why`` says why the kernels do not do it; see ``dask_gpuagg.cuda.aggregate.aggregate``.
    """
    started = time.perf_counter()
    groups = (Hashed if hashes(query) else InOrder)(query, keys, inputs)
    outputs = [groups.output(output) for output in query.outputs]
    rows, number = keys[0].size(), groups.keys.num_rows()
    run = Run(
        Decision(kernel=KERNEL, why=why),
        rows,
        number,
        bytes_read=query.row_bytes * rows,
        seconds=time.perf_counter() - started,
    )
    return list(groups.keys.columns()), outputs, run


def hashes(query: Query) -> bool:
    """Whether one group-by of libcudf makes all states; for the others rows are sorted first."""
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
