"""States and outputs of groups by libcudf's reductions: of hashed keys, or of sorted rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

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

from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelOutput, KernelState
from dask_gpuagg.engines.device.exact_bins import exact_sum, loss, total
from dask_gpuagg.engines.device.layout import BOOL8, CTYPES, FLOAT64, INT64
from dask_gpuagg.engines.device.operations import (
    as_key,
    binary,
    fill_nulls,
    is_positive,
    keep_where,
    limb_mean,
    lower_half,
    nans_to_nulls,
    reinterpreted,
    scalar,
    spread_of,
    take_rows,
    upper_half,
)

KERNEL = "libcudf"

# the type of plain numbers for each ctype: the first of those that share it
_PLAIN: dict[str, TypeId] = {ctype: kind for kind, ctype in reversed(CTYPES.items())}
_NO_ROW = 0x7FFFFFFF
_DECIMAL128 = DataType(TypeId.DECIMAL128, 0)


# States that are one reduction of one column, which libcudf makes without sorting rows.
REDUCED = frozenset(
    (
        *("Size", "Count", "IntegerSum", "FloatSum", "IntegerProduct", "FloatProduct"),
        *("Min", "Max", "Any", "All", "FirstRow", "LastRow"),
    )
)


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
        self._states: dict[int, tuple[plc.Column, ...]] = {}

    # ---- columns in the order in which they are reduced --------------------------------------

    def _ordered(self, i: int) -> plc.Column:
        raise NotImplementedError

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

    def _truths(self, i: int) -> plc.Column:
        return reinterpreted(plc.unary.cast(self._plain(i), BOOL8), DataType(TypeId.UINT8))

    def _row_numbers(self, i: int) -> plc.Column:
        """Numbers of the rows, null where the input is: its own type may be one of no numbers."""
        column = self._inputs[i]
        if not column.null_count():
            return self._rows
        return keep_where(self._rows, take_rows(plc.unary.is_valid(column), self._rows))

    def _sum(self, column: plc.Column) -> plc.Column:
        return self._reduced(column, plc.aggregation.sum())

    # ---- states ------------------------------------------------------------------------------

    def _state(self, i: int) -> tuple[plc.Column, ...]:
        if i not in self._states:
            self._states[i] = self._made(self._query.states[i])
        return self._states[i]

    def _count(self, column: plc.Column) -> plc.Column:
        return _cast(self._reduced(column, plc.aggregation.count(NullPolicy.EXCLUDE)), INT64)

    def _made(self, state: KernelState) -> tuple[plc.Column, ...]:
        if state.policy in REDUCED:
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
        """The column and the reduction that make a state of ``REDUCED``."""
        of, agg = state.inputs, plc.aggregation
        match state.policy:
            case "Size":
                return self._numbers, agg.count(NullPolicy.INCLUDE)
            case "Count":
                return self._row_numbers(*of), agg.count(NullPolicy.EXCLUDE)
            case "IntegerSum":
                return self._integers(*of), agg.sum()
            case "FloatSum":
                return self._floats(*of), agg.sum()
            case "IntegerProduct":
                return self._integers(*of), agg.product()
            case "FloatProduct":
                return self._floats(*of), agg.product()
            case "Min":
                return nans_to_nulls(self._plain(*of)), agg.min()
            case "Max":
                return nans_to_nulls(self._plain(*of)), agg.max()
            case "Any":
                return self._truths(*of), agg.max()
            case "All":
                return self._truths(*of), agg.min()
            case "FirstRow":
                return self._row_numbers(*of), agg.min()
            case _:
                return self._row_numbers(*of), agg.max()

    def _moments(self, i: int) -> tuple[plc.Column, ...]:
        values = self._floats(i)
        n = self._count(values)
        mean = binary("TRUE_DIV", self._sum(values), n)
        off = binary("SUB", values, take_rows(mean, self._numbers))
        return n, mean, self._sum(binary("MUL", off, off))

    def _limbs(self, i: int) -> tuple[plc.Column, plc.Column]:
        """Sums of 64-bit integers in two halves."""
        values = self._integers(i)
        low = self._sum(lower_half(values))
        high = binary("ADD", self._sum(upper_half(values)), upper_half(low), INT64)
        return fill_nulls(high, 0), fill_nulls(lower_half(low), 0)

    def _exact_mean(self, i: int, n: plc.Column) -> plc.Column:
        ctype = self._query.inputs[i].ctype
        if ctype == "i128":
            count = plc.unary.cast(n, _DECIMAL128)
            mean = binary("DIV", self._sum(self._wide(i)), count, _DECIMAL128)
            return keep_where(mean, is_positive(n))
        return plc.unary.cast(limb_mean(*self._limbs(i), n), DataType(_PLAIN[ctype]))

    def _merged_moments(self, n: int, mean: int, m2: int) -> tuple[plc.Column, ...]:
        weights = self._floats(n)
        total = self._sum(self._integers(n))
        # partials of no values have a mean of NaN
        some = binary("NOT_EQUAL", weights, scalar(0, weights), BOOL8)
        means = keep_where(self._floats(mean), some)
        merged = binary("TRUE_DIV", self._sum(binary("MUL", weights, means)), total)
        off = binary("SUB", means, take_rows(merged, self._numbers))
        between = self._sum(binary("MUL", weights, binary("MUL", off, off)))
        return total, merged, binary("ADD", self._sum(self._floats(m2)), fill_nulls(between, 0))

    # ---- outputs -----------------------------------------------------------------------------

    def output(self, output: KernelOutput) -> plc.Column:
        """One row per group."""
        policy, (first, *others) = output.policy, output.states
        state = self._state(first)
        match policy:
            case "Field" | "FieldOf" | "WideField" | "WideFieldOf":
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
                return limb_mean(upper, lower, n)
            case "ExactUsed":
                return state[0]
            case "ExactBin":
                return state[1 + output.constants[0]]
            case "ExactLoss":
                return loss(state)
            case "ExactTotal" | "ExactMean":
                return self._exact_total(total(state), policy, others)
            case "MomentRows":
                return state[0]
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
                return spread_of(n, m2, *output.constants)
        raise NotImplementedError(f"{KERNEL} does not make {policy}")

    def _exact_total(self, sums: plc.Column, policy: str, count: Sequence[int]) -> plc.Column:
        if not count:
            return sums
        (n,) = self._state(*count)
        made = binary("TRUE_DIV", sums, n) if policy == "ExactMean" else sums
        return keep_where(made, is_positive(n))

    def _extreme(self, found: plc.Column, count: Sequence[int]) -> plc.Column:
        if found.type().id() not in (TypeId.FLOAT32, TypeId.FLOAT64):
            return found
        # null where there is no value but NaN; that is NaN, unless there is no value at all
        filled = fill_nulls(found, float("nan"))
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
        wanted = [self._request(state) for state in query.states]
        # groups without states need a request too
        wanted = wanted or [(self._numbers, plc.aggregation.count(NullPolicy.INCLUDE))]
        by = plc.groupby.GroupBy(
            plc.Table([as_key(key) for key in keys]),
            NullPolicy.INCLUDE if query.keep_nulls else NullPolicy.EXCLUDE,
        )
        requests = [plc.groupby.GroupByRequest(column, [how]) for column, how in wanted]
        self.keys, made = by.aggregate(requests)
        for i, (state, table) in enumerate(zip(query.states, made, strict=False)):
            self._states[i] = (_finished(state, table.columns()[0]),)

    @cached_property
    def _rows(self) -> plc.Column:
        first, step = (plc.Scalar.from_py(n, DataType(TypeId.INT32)) for n in (0, 1))
        return plc.filling.sequence(self._numbers.size(), first, step)

    def _ordered(self, i: int) -> plc.Column:
        return self._inputs[i]

    def _row_numbers(self, i: int) -> plc.Column:
        column = self._inputs[i]
        if not column.null_count():
            return self._rows
        return keep_where(self._rows, plc.unary.is_valid(column))


class InOrder(_Groups):
    """By rows in the order of their groups.

    Sorted once by the number of their group, every reduction gives one row per group in the order
    of the keys, whatever its type.
    """

    def __init__(
        self, query: Query, keys: Sequence[plc.Column], inputs: Sequence[plc.Column]
    ) -> None:
        super().__init__(query, inputs)
        self._columns: dict[int, plc.Column] = {}
        table = plc.Table([as_key(key) for key in keys])
        every = list(range(len(keys)))
        kept = table
        if not query.keep_nulls:
            kept = plc.stream_compaction.drop_nulls(table, every, len(every))
        self.keys = plc.stream_compaction.distinct(
            kept,
            every,
            plc.stream_compaction.DuplicateKeepOption.KEEP_ANY,
            NullEquality.EQUAL,
            NanEquality.ALL_EQUAL,
        )
        rows, numbers = plc.join.inner_join(table, self.keys, NullEquality.EQUAL)
        self._rows, self._numbers = plc.sorting.sort_by_key(
            plc.Table([rows, numbers]),
            plc.Table([numbers]),
            [Order.ASCENDING],
            [NullOrder.AFTER],
        ).columns()
        self._groupby = plc.groupby.GroupBy(
            plc.Table([self._numbers]), NullPolicy.EXCLUDE, Sorted.YES
        )

    def _ordered(self, i: int) -> plc.Column:
        if i not in self._columns:
            self._columns[i] = take_rows(self._inputs[i], self._rows)
        return self._columns[i]

    def _reduced(self, column: plc.Column, how: plc.aggregation.Aggregation) -> plc.Column:
        requests = [plc.groupby.GroupByRequest(column, [how])]
        _, (made,) = self._groupby.aggregate(requests)
        return made.columns()[0]
