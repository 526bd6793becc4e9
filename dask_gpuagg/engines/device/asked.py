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

    def _flag(self, column: plc.Column) -> str:
        """The same, as C++ says it."""
        return str(self._masked(column)).lower()

    def _counted(self, column: plc.Column) -> int:
        return self._of_present("Count", column) if self._masked(column) else self._state("Size")

    def _add(
        self, code: str, ctype: str, dtype: DataType, nullable: bool, of: plc.Column | None = None
    ) -> None:
        self._outputs.append((KernelOutput(code, ctype, nullable), dtype, of))

    # ---- outputs -----------------------------------------------------------------------------

    def size(self) -> None:
        """Rows of each group, int64."""
        self._add(f"Field<{self._state('Size')}, i64>", "i64", INT64, False)

    def count(self, column: plc.Column) -> None:
        """Values of each group that are not null, int64."""
        self._add(f"Field<{self._counted(column)}, i64>", "i64", INT64, False)

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
        self._add(f"ExactUsed<{state}>", "i64", INT64, False)
        for k in range(EXACT_BINS):
            self._add(f"ExactBin<{state}, {k}>", "i64", INT64, False)

    def exact_total(self, column: plc.Column) -> None:
        """Sums of numbers without rounding, rounded once; null for groups without values."""
        count = str(self._counted(column)) if self._masked(column) else "NO_STATE"
        code = f"ExactTotal<{self._state('ExactSum', column)}, {count}>"
        self._add(code, "f64", FLOAT64, self._masked(column))

    def exact_total_mean(self, column: plc.Column) -> None:
        """Means of such sums."""
        states = f"{self._state('ExactSum', column)}, {self._counted(column)}"
        self._add(
            f"ExactMean<{states}, {self._flag(column)}>", "f64", FLOAT64, self._masked(column)
        )

    def exact_loss(self, column: plc.Column) -> None:
        """More than ``centred.LOSS_AT_MOST`` where the bins do not hold all of a sum."""
        self._add(f"ExactLoss<{self._state('ExactSum', column)}>", "f64", FLOAT64, False)

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
        state = self._state(policy, column)
        types = [str(state)] if output == "WideField" else [str(state), made]
        if nullable:
            output, types = f"{output}Of", [*types, str(self._of_present("Count", column))]
        self._add(f"{output}<{', '.join(types)}>", made, dtype, nullable)

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
        count = str(self._counted(column)) if self._masked(column) else "NO_STATE"
        state = self._state(policy, column, ctype=ctype)
        code = f"Extreme<{state}, {ctype}, {count}>"
        self._add(code, ctype, column.type(), self._masked(column))

    def any(self, column: plc.Column) -> None:
        """Whether any value is true; of none: false."""
        self._add(f"Field<{self._state('Any', column)}, u8>", "u8", BOOL8, False)

    def all(self, column: plc.Column) -> None:
        """Whether all values are true; of none: true."""
        self._add(f"Field<{self._state('All', column)}, u8>", "u8", BOOL8, False)

    def first(self, column: plc.Column) -> None:
        """First values that are not null, of any type that can be gathered."""
        code = f"RowNumber<{self._of_present('FirstRow', column)}, false>"
        self._add(code, "i32", INT32, False, column)

    def last(self, column: plc.Column) -> None:
        """Last values that are not null."""
        code = f"RowNumber<{self._of_present('LastRow', column)}, true>"
        self._add(code, "i32", INT32, False, column)

    def first_row(self, column: plc.Column) -> None:
        """Number of the first row of each group whose value is not null, int32."""
        code = f"RowNumber<{self._of_present('FirstRow', column)}, false>"
        self._add(code, "i32", INT32, False)

    def mean(self, column: plc.Column) -> None:
        """Means in float64, null for groups without values."""
        states = f"{self._state('FloatSum', column)}, {self._counted(column)}"
        self._add(f"Mean<{states}, {self._flag(column)}>", "f64", FLOAT64, self._masked(column))

    def exact_mean(self, column: plc.Column) -> None:
        """Means of datetimes, durations or decimals, in their type and rounded towards zero."""
        ctype = ctype_of(column)
        states = f"{self._state('WideSum', column)}, {self._counted(column)}"
        code = f"WideMean<{states}, {ctype}, {self._flag(column)}>"
        self._add(code, ctype, column.type(), self._masked(column))

    def limbs(self, column: plc.Column) -> None:
        """Two outputs: the exact sum of 64-bit integers, in halves that can be summed again."""
        state = self._state("WideSum", column)
        self._add(f"WideUpper<{state}>", "i64", INT64, False)
        self._add(f"WideLower<{state}>", "i64", INT64, False)

    def spread(self, column: plc.Column, ddof: int, power: int) -> None:
        """Variance (power 0), standard deviation (1) or standard error of the mean (2)."""
        code = f"Spread<{self._state('Moments', column)}, {operator.index(ddof)}, {power}>"
        self._add(code, "f64", FLOAT64, True)

    def merged_mean(self, sums: plc.Column, counts: plc.Column) -> None:
        """Means from the sums and counts of partials."""
        total = self._state("FloatSum", sums)
        code = f"Mean<{total}, {self._state('IntegerSum', counts)}, true>"
        self._add(code, "f64", FLOAT64, True)

    def merged_exact_mean(self, sums: plc.Column, counts: plc.Column) -> None:
        """Means of decimals, in the type of the sums and rounded towards zero."""
        ctype = ctype_of(sums)
        count = self._state("IntegerSum", counts)
        code = f"WideMean<{self._state('WideSum', sums)}, {count}, {ctype}, true>"
        self._add(code, ctype, sums.type(), True)

    def merged_limb_mean(
        self, upper: plc.Column, lower: plc.Column, counts: plc.Column, dtype: DataType
    ) -> None:
        """Means of datetimes or durations of a type from ``limbs`` and counts of partials."""
        states = [str(self._state("IntegerSum", c)) for c in (upper, lower, counts)]
        code = f"LimbMean<{', '.join(states)}, i64>"
        self._add(code, "i64", dtype, True)

    def merged_spread(
        self, n: plc.Column, mean: plc.Column, m2: plc.Column, ddof: int, power: int
    ) -> None:
        """Variance and its relatives (see ``spread``) from the moments of partials."""
        code = (
            f"Spread<{self._state('MergedMoments', n, mean, m2)}, {operator.index(ddof)}, {power}>"
        )
        self._add(code, "f64", FLOAT64, True)

    def moments(self, column: plc.Column) -> None:
        """Three outputs: count, mean, centred second moment."""
        self._moments(self._state("Moments", column))

    def merged_moments(self, n: plc.Column, mean: plc.Column, m2: plc.Column) -> None:
        """Three outputs from the same three of partials."""
        self._moments(self._state("MergedMoments", n, mean, m2))

    def _moments(self, state: int) -> None:
        self._add(f"MomentRows<{state}>", "i64", INT64, False)
        self._add(f"MomentMean<{state}>", "f64", FLOAT64, False)
        self._add(f"MomentM2<{state}>", "f64", FLOAT64, False)

    def loss(self, column: plc.Column) -> None:
        """How many times larger the rounding errors of ``moments`` or ``spread`` are, float64."""
        self._add(f"MomentLoss<{self._state('Moments', column)}>", "f64", FLOAT64, False)

    def merged_loss(self, n: plc.Column, mean: plc.Column, m2: plc.Column) -> None:
        """The same of ``merged_moments`` or ``merged_spread``."""
        state = self._state("MergedMoments", n, mean, m2)
        self._add(f"MomentLoss<{state}>", "f64", FLOAT64, False)
