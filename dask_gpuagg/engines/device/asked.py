"""What is asked of columns, as the inputs, states and outputs of the kernels."""

from __future__ import annotations

import operator
from typing import Any

import pylibcudf as plc
from pylibcudf.types import DataType, TypeId

from dask_gpuagg.cuda.query.types import EXACT_BINS, KernelOutput, KernelState
from dask_gpuagg.engines.device.layout import (
    BOOL8,
    CTYPES,
    FLOAT64,
    FLOATS,
    INT32,
    INT64,
    UnsupportedType,
    ctype_of,
    identity,
    masked,
    wide,
)


class Asked:
    """Collects outputs, and the states and inputs that they are made of.

    Inputs are read once and states kept once, however many outputs need them.

    Attributes
    ----------
    nulls : bool
        Whether outputs are made as if every column had nulls, because one has some: which one it
        is makes no other kernels then.
    """

    def __init__(self) -> None:
        self.nulls = False
        # each with whether only its validity is read
        self._inputs: list[tuple[plc.Column, bool]] = []
        # where they are, by the columns themselves and by the memory that they are views of
        self._places: dict[tuple[Any, bool], int] = {}
        self._states: list[KernelState] = []
        self._outputs: list[tuple[KernelOutput, DataType, plc.Column | None]] = []

    @property
    def outputs(self) -> int:
        """How many columns are made beside the keys."""
        return len(self._outputs)

    # ---- inputs and states -------------------------------------------------------------------

    def _input(self, column: plc.Column, present: bool = False) -> int:
        # the inputs keep their columns alive, so no other column gets the identity of one
        place = self._places.get((id(column), present))
        if place is not None:
            return place
        memory = identity(column)
        place = self._places.get((memory, present), len(self._inputs))
        if place == len(self._inputs):
            if not present:
                ctype_of(column)
            self._inputs.append((column, present))
            self._places[memory, present] = self._places[id(column), present] = place
        return place

    def _state(self, policy: str, *columns: plc.Column, ctype: str | None = None) -> int:
        return self._kept(KernelState(policy, tuple(self._input(c) for c in columns), ctype))

    def _of_present(self, policy: str, column: plc.Column) -> int:
        """A state that does not look at the values, whatever their type."""
        if column.type().id() in CTYPES:
            # read all the same: another state may need the values, and inputs are not read twice
            return self._state(policy, column)
        wanted = identity(column)
        known = [i for i, (c, _) in enumerate(self._inputs) if identity(c) == wanted]
        return self._kept(KernelState(policy, (known[0] if known else self._input(column, True),)))

    def _kept(self, state: KernelState) -> int:
        if state not in self._states:
            self._states.append(state)
        return self._states.index(state)

    def _masked(self, column: plc.Column) -> bool:
        """Whether groups may have no values."""
        return self.nulls or masked(column)

    def _counted(self, column: plc.Column) -> int:
        return self._of_present("Count", column) if self._masked(column) else self._state("Size")

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
        of: plc.Column | None = None,
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
            self._add_reduced("IntegerSum", "Field", *wide(ctype, dtype), column)

    def total(self, column: plc.Column) -> None:
        """Sums of integers of partials that are never null, as counts are."""
        policy, types = "IntegerSum", wide(ctype_of(column), column.type())
        self._add_reduced(policy, "Field", *types, column, masked(column))

    def wide_sum(self, column: plc.Column) -> None:
        """Sums of a decimal as decimal128; null for groups without values."""
        dtype = DataType(TypeId.DECIMAL128, column.type().scale())
        self._add_reduced("WideSum", "WideField", "i128", dtype, column)

    def float_sum(self, column: plc.Column) -> None:
        """Sums in float64 whatever the column is; null for groups without values."""
        self._add_reduced("FloatSum", "Field", "f64", FLOAT64, column)

    def exact_sum(self, column: plc.Column) -> None:
        """Five outputs, int64: which bins of a sum are used, and the bins; see ``exact.py``."""
        state = self._state("ExactSum", column)
        self._add("ExactUsed", state, "i64", INT64)
        for k in range(EXACT_BINS):
            self._add("ExactBin", state, "i64", INT64, constants=(k,))

    def exact_total(self, column: plc.Column) -> None:
        """Sums of numbers without rounding, rounded once; null for groups without values."""
        count = self._counts(column)
        states = (self._state("ExactSum", column), *count)
        self._add("ExactTotal", states, "f64", FLOAT64, self._masked(column))

    def exact_total_mean(self, column: plc.Column) -> None:
        """Means of such sums."""
        states = self._state("ExactSum", column), self._counted(column)
        self._add("ExactMean", states, "f64", FLOAT64, self._masked(column))

    def exact_loss(self, column: plc.Column) -> None:
        """More than ``centred.LOSS_AT_MOST`` where the bins do not hold all of a sum."""
        self._add("ExactLoss", self._state("ExactSum", column), "f64", FLOAT64)

    def prod(self, column: plc.Column) -> None:
        """Products: integers modulo 2**64, floats in float64; null for groups without values."""
        ctype = ctype_of(column)
        if ctype == "i128":
            raise UnsupportedType("products of decimal128")
        if ctype in FLOATS:
            self._add_reduced("FloatProduct", "Field", "f64", FLOAT64, column)
        else:
            self._add_reduced("IntegerProduct", "Field", *wide(ctype, column.type()), column)

    def _add_reduced(
        self,
        policy: str,
        output: str,
        made: str,
        dtype: DataType,
        column: plc.Column,
        nullable: bool | None = None,
    ) -> None:
        nullable = self._masked(column) if nullable is None else nullable
        states: tuple[int, ...] = (self._state(policy, column),)
        if nullable:
            output, states = f"{output}Of", (*states, self._of_present("Count", column))
        self._add(output, states, made, dtype, nullable)

    def min(self, column: plc.Column) -> None:
        """Smallest values, NaN only where there is nothing else; null for groups without any."""
        self._extreme("Min", column)

    def max(self, column: plc.Column) -> None:
        """Largest values; see ``min``."""
        self._extreme("Max", column)

    def _extreme(self, policy: str, column: plc.Column) -> None:
        ctype = ctype_of(column)
        if ctype == "i128":
            raise UnsupportedType("extremes of decimal128")
        count = self._counts(column)
        states = (self._state(policy, column, ctype=ctype), *count)
        self._add("Extreme", states, ctype, column.type(), self._masked(column))

    def any(self, column: plc.Column) -> None:
        """Whether any value is true; of none: false."""
        self._add("Field", self._state("Any", column), "u8", BOOL8)

    def all(self, column: plc.Column) -> None:
        """Whether all values are true; of none: true."""
        self._add("Field", self._state("All", column), "u8", BOOL8)

    def first(self, column: plc.Column) -> None:
        """First values that are not null, of any type that can be gathered."""
        state = self._of_present("FirstRow", column)
        self._add("RowNumber", state, "i32", INT32, constants=(False,), of=column)

    def last(self, column: plc.Column) -> None:
        """Last values that are not null."""
        state = self._of_present("LastRow", column)
        self._add("RowNumber", state, "i32", INT32, constants=(True,), of=column)

    def first_row(self, column: plc.Column) -> None:
        """Number of the first row of each group whose value is not null, int32."""
        state = self._of_present("FirstRow", column)
        self._add("RowNumber", state, "i32", INT32, constants=(False,))

    def mean(self, column: plc.Column) -> None:
        """Means in float64, null for groups without values."""
        states = self._state("FloatSum", column), self._counted(column)
        self._add("Mean", states, "f64", FLOAT64, self._masked(column))

    def exact_mean(self, column: plc.Column) -> None:
        """Means of datetimes, durations or decimals, in their type and rounded towards zero."""
        ctype = ctype_of(column)
        states = self._state("WideSum", column), self._counted(column)
        self._add("WideMean", states, ctype, column.type(), self._masked(column))

    def limbs(self, column: plc.Column) -> None:
        """Two outputs: the exact sum of 64-bit integers, in halves that can be summed again."""
        state = self._state("WideSum", column)
        self._add("WideUpper", state, "i64", INT64)
        self._add("WideLower", state, "i64", INT64)

    def spread(self, column: plc.Column, ddof: int, power: int) -> None:
        """Variance (power 0), standard deviation (1) or standard error of the mean (2)."""
        self._spread(self._state("Moments", column), ddof, power)

    def _spread(self, state: int, ddof: int, power: int) -> None:
        self._add("Spread", state, "f64", FLOAT64, True, (operator.index(ddof), power))

    def merged_mean(self, sums: plc.Column, counts: plc.Column) -> None:
        """Means from the sums and counts of partials."""
        states = self._state("FloatSum", sums), self._state("IntegerSum", counts)
        self._add("Mean", states, "f64", FLOAT64, True)

    def merged_exact_mean(self, sums: plc.Column, counts: plc.Column) -> None:
        """Means of decimals, in the type of the sums and rounded towards zero."""
        ctype = ctype_of(sums)
        count = self._state("IntegerSum", counts)
        states = self._state("WideSum", sums), count
        self._add("WideMean", states, ctype, sums.type(), True)

    def merged_limb_mean(
        self, upper: plc.Column, lower: plc.Column, counts: plc.Column, dtype: DataType
    ) -> None:
        """Means of datetimes or durations of a type from ``limbs`` and counts of partials."""
        states = tuple(self._state("IntegerSum", c) for c in (upper, lower, counts))
        self._add("LimbMean", states, "i64", dtype, True)

    def merged_spread(
        self, n: plc.Column, mean: plc.Column, m2: plc.Column, ddof: int, power: int
    ) -> None:
        """Variance and its relatives (see ``spread``) from the moments of partials."""
        self._spread(self._state("MergedMoments", n, mean, m2), ddof, power)

    def moments(self, column: plc.Column) -> None:
        """Three outputs: count, mean, centred second moment."""
        self._moments(self._state("Moments", column))

    def merged_moments(self, n: plc.Column, mean: plc.Column, m2: plc.Column) -> None:
        """Three outputs from the same three of partials."""
        self._moments(self._state("MergedMoments", n, mean, m2))

    def _moments(self, state: int) -> None:
        self._add("MomentRows", state, "i64", INT64)
        self._add("MomentMean", state, "f64", FLOAT64)
        self._add("MomentM2", state, "f64", FLOAT64)

    def loss(self, column: plc.Column) -> None:
        """How many times larger the rounding errors of ``moments`` or ``spread`` are, float64."""
        self._add("MomentLoss", self._state("Moments", column), "f64", FLOAT64)

    def merged_loss(self, n: plc.Column, mean: plc.Column, m2: plc.Column) -> None:
        """The same of ``merged_moments`` or ``merged_spread``."""
        state = self._state("MergedMoments", n, mean, m2)
        self._add("MomentLoss", state, "f64", FLOAT64)
