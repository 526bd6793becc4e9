"""The outputs of a query by libcudf's own group-by, where kernels cannot be compiled or loaded.

It takes several passes and several times the memory, and gives the same answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property, lru_cache

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

from dask_gpuagg import task_settings
from dask_gpuagg.cuda.call.call import Run
from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelOutput, KernelState
from dask_gpuagg.cuda.runtime.compiler import KernelsUnavailable
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
from dask_gpuagg.reporting.fallbacks import Fallback, tally, warn_user

KERNEL = "libcudf"

# the type of plain numbers for each ctype: the first of those that share it
_PLAIN: dict[str, TypeId] = {ctype: kind for kind, ctype in reversed(CTYPES.items())}
_NO_ROW = 0x7FFFFFFF
_DECIMAL128 = DataType(TypeId.DECIMAL128, 0)


def aggregate(
    query: Query,
    keys: Sequence[plc.Column],
    inputs: Sequence[plc.Column],
    why: str,
) -> tuple[list[plc.Column], list[plc.Column], Run]:
    """Group rows and reduce every group; see ``dask_gpuagg.cuda.aggregate.aggregate``.

    Parameters
    ----------
    query : Query
    keys, inputs : sequence of pylibcudf.Column
        As the query describes them.
    why : str
        Why the kernels do not do it.

    Returns
    -------
    keys, outputs : list of pylibcudf.Column
        Outputs as the plain numbers that the kernels would write.
    run : Run
    """
    started = time.perf_counter()
    groups = _Groups(query, keys, inputs)
    outputs = [groups.output(output) for output in query.outputs]
    rows, found = keys[0].size(), groups.keys.num_rows()
    run = Run(
        Decision(kernel=KERNEL, why=why),
        rows,
        found,
        bytes_read=query.row_bytes * rows,
        seconds=time.perf_counter() - started,
    )
    return list(groups.keys.columns()), outputs, run


def cause_of(error: KernelsUnavailable) -> str:
    """The line that says what is wrong, of a message that may be a compiler's log.

    Under ``gpuagg.fallback: raise`` the error is raised; under ``warn`` each cause is a warning,
    once in each process.
    """
    policy = task_settings.current().fallback
    if policy == "raise":
        raise error
    lines = str(error).splitlines() or [type(error).__name__]
    cause = next((line for line in lines if "error" in line), lines[0])
    tally.count(Fallback("a group-by on the device", f"runs by {KERNEL}", cause))
    if policy == "warn":
        _warn(cause)
    return cause


@lru_cache(1000)
def _warn(cause: str) -> None:
    warn_user(
        f"group-bys on the device run by {KERNEL}, which is slower, because the kernels of this "
        f"package cannot run: {cause}"
    )


class _Groups:
    """The rows of a query, in the order of their groups.

    Sorted once by the number of their group, every reduction gives one row per group in the order
    of the keys, whatever its type.
    """

    def __init__(
        self, query: Query, keys: Sequence[plc.Column], inputs: Sequence[plc.Column]
    ) -> None:
        self._query = query
        self._inputs = list(inputs)
        self._columns: dict[int, plc.Column] = {}
        self._states: dict[int, tuple[plc.Column, ...]] = {}
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

    # ---- columns in the order of the groups --------------------------------------------------

    def _sorted(self, i: int) -> plc.Column:
        if i not in self._columns:
            self._columns[i] = take_rows(self._inputs[i], self._rows)
        return self._columns[i]

    def _plain(self, i: int) -> plc.Column:
        """The values of an input as the numbers that they are made of."""
        return reinterpreted(self._sorted(i), DataType(_PLAIN[self._query.inputs[i].ctype]))

    def _integers(self, i: int) -> plc.Column:
        return plc.unary.cast(self._plain(i), INT64)

    def _floats(self, i: int) -> plc.Column:
        return plc.unary.cast(self._plain(i), FLOAT64)

    def _wide(self, i: int) -> plc.Column:
        """Integers, durations and decimals as integers of 128 bits."""
        if self._query.inputs[i].ctype == "i128":
            return reinterpreted(self._sorted(i), _DECIMAL128)
        return plc.unary.cast(self._plain(i), _DECIMAL128)

    def _truths(self, i: int) -> plc.Column:
        return reinterpreted(plc.unary.cast(self._plain(i), BOOL8), DataType(TypeId.UINT8))

    def _row_numbers(self, i: int) -> plc.Column:
        """Numbers of the rows, null where the input is: its own type may be one of no numbers."""
        column = self._inputs[i]
        if not column.null_count():
            return self._rows
        return keep_where(self._rows, take_rows(plc.unary.is_valid(column), self._rows))

    def _reduced(self, column: plc.Column, how: plc.aggregation.Aggregation) -> plc.Column:
        requests = [plc.groupby.GroupByRequest(column, [how])]
        _, (made,) = self._groupby.aggregate(requests)
        return made.columns()[0]

    def _sum(self, column: plc.Column) -> plc.Column:
        return self._reduced(column, plc.aggregation.sum())

    # ---- states ------------------------------------------------------------------------------

    def _state(self, i: int) -> tuple[plc.Column, ...]:
        if i not in self._states:
            self._states[i] = self._made(self._query.states[i])
        return self._states[i]

    @cached_property
    def _size(self) -> plc.Column:
        count = plc.aggregation.count(NullPolicy.INCLUDE)
        return plc.unary.cast(self._reduced(self._numbers, count), INT64)

    def _count(self, column: plc.Column) -> plc.Column:
        count = plc.aggregation.count(NullPolicy.EXCLUDE)
        return plc.unary.cast(self._reduced(column, count), INT64)

    def _made(self, state: KernelState) -> tuple[plc.Column, ...]:
        of, agg = state.inputs, plc.aggregation
        match state.policy:
            case "Size":
                return (self._size,)
            case "Count":
                return (self._count(self._row_numbers(*of)),)
            case "IntegerSum":
                return (self._sum(self._integers(*of)),)
            case "FloatSum":
                return (self._sum(self._floats(*of)),)
            case "WideSum":
                return (self._sum(self._wide(*of)),)
            case "IntegerProduct":
                return (self._reduced(self._integers(*of), agg.product()),)
            case "FloatProduct":
                return (self._reduced(self._floats(*of), agg.product()),)
            case "Min":
                return (self._reduced(nans_to_nulls(self._plain(*of)), agg.min()),)
            case "Max":
                return (self._reduced(nans_to_nulls(self._plain(*of)), agg.max()),)
            case "Any":
                return (fill_nulls(self._reduced(self._truths(*of), agg.max()), 0),)
            case "All":
                return (fill_nulls(self._reduced(self._truths(*of), agg.min()), 1),)
            case "FirstRow":
                return (self._reduced(self._row_numbers(*of), agg.min()),)
            case "LastRow":
                return (self._reduced(self._row_numbers(*of), agg.max()),)
            case "Moments":
                return self._moments(*of)
            case "MergedMoments":
                return self._merged_moments(*of)
        raise NotImplementedError(f"{KERNEL} does not make {state.policy}")

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
        policy, arguments = output.policy, output.arguments
        state = self._state(int(arguments[0]))
        match policy:
            case "Field" | "FieldOf" | "WideField" | "WideFieldOf":
                return state[0]
            case "Extreme":
                return self._extreme(state[0], arguments[2])
            case "RowNumber":
                return fill_nulls(state[0], _NO_ROW)
            case "WideUpper" | "WideLower":
                (i,) = self._query.states[int(arguments[0])].inputs
                return self._limbs(i)[policy == "WideLower"]
            case "WideMean":
                (i,) = self._query.states[int(arguments[0])].inputs
                return self._exact_mean(i, self._state(int(arguments[1]))[0])
            case "LimbMean":
                upper, lower, n = (self._state(int(a))[0] for a in arguments[:3])
                return limb_mean(upper, lower, n)
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
                (n,) = self._state(int(arguments[1]))
                return keep_where(binary("TRUE_DIV", state[0], n), is_positive(n))
            case "Spread":
                n, _, m2 = state
                return spread_of(n, m2, int(arguments[1]), int(arguments[2]))
        raise NotImplementedError(f"{KERNEL} does not make {policy}")

    def _extreme(self, found: plc.Column, count: str) -> plc.Column:
        if found.type().id() not in (TypeId.FLOAT32, TypeId.FLOAT64):
            return found
        # null where there is no value but NaN; that is NaN, unless there is no value at all
        filled = fill_nulls(found, float("nan"))
        if count == "NO_STATE":
            return filled
        return keep_where(filled, is_positive(self._state(int(count))[0]))
