"""The specialisations that the tests compile, by name: one table for all of them.

Outputs are written as ``engines/device/aggregator.py`` writes them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dask_gpuagg.cuda.query.forms import BY_ROW, CODED, RANGED, STEPPED, WIDE_RANGED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import (
    EXACT_BINS,
    PRESENT,
    TYPE_BYTES,
    KernelOutput,
    KernelState,
    KeyPart,
    ValuePart,
)

FLOATS = ("f32", "f64")
# One of each family of types whose code differs in more than how a value is read.
FAMILIES = ("i8", "i64", "u64", "f32", "f64")
# decimal128 is summed and is a key, but has no extremes and no products
ORDERED = [ctype for ctype in TYPE_BYTES if ctype != "i128"]


class Builder:
    """Collects inputs, states and outputs of a query."""

    def __init__(self, *keys: KeyPart, keep_nulls: bool = False) -> None:
        self.keys = keys
        self.keep_nulls = keep_nulls
        self.inputs: list[ValuePart] = []
        self.states: list[KernelState] = []
        self.outputs: list[KernelOutput] = []

    def input(self, ctype: str, masked: bool = False) -> int:
        """A further input column."""
        self.inputs.append(ValuePart(ctype, masked))
        return len(self.inputs) - 1

    def state(self, policy: str, *inputs: int, ctype: str | None = None) -> int:
        """The state's position, added if it is new."""
        state = KernelState(policy, inputs, ctype)
        if state not in self.states:
            self.states.append(state)
        return self.states.index(state)

    def output(
        self,
        policy: str,
        states: int | tuple[int, ...],
        ctype: str,
        nullable: bool = False,
        constants: tuple[int, ...] = (),
    ) -> None:
        """A further output."""
        states = states if isinstance(states, tuple) else (states,)
        self.outputs.append(KernelOutput(policy, states, ctype, nullable, constants))

    def counted(self, i: int) -> int:
        """The state that counts the values of an input."""
        return self.state("Count", i) if self.inputs[i].masked else self.state("Size")

    def counts(self, i: int) -> tuple[int, ...]:
        """The same where groups of an input may have no values."""
        return (self.counted(i),) if self.inputs[i].masked else ()

    def add(self, name: str, i: int) -> None:
        """The output of one aggregation of an input."""
        ctype, masked = self.inputs[i].ctype, self.inputs[i].masked
        kind = "Float" if ctype in FLOATS else "Integer"
        wide = "f64" if ctype in FLOATS else "u64" if ctype[0] == "u" else "i64"
        if name == "size":
            self.output("Field", self.state("Size"), "i64")
        elif name == "count":
            self.output("Field", self.counted(i), "i64")
        elif name in ("sum", "prod"):
            policy = kind + ("Sum" if name == "sum" else "Product")
            self.output("Field", self.state(policy, i), wide)
        elif name == "sum or null":
            self.output("FieldOf", (self.state(kind + "Sum", i), self.counted(i)), wide, True)
        elif name in ("min", "max"):
            count = self.counts(i)
            state = self.state(name.capitalize(), i, ctype=ctype)
            self.output("Extreme", (state, *count), ctype, masked)
        elif name in ("any", "all"):
            self.output("Field", self.state(name.capitalize(), i), "u8")
        elif name in ("first", "last"):
            state = self.state(name.capitalize() + "Row", i)
            self.output("RowNumber", state, "i32", constants=(name == "last",))
        elif name == "wide sum":
            self.output("WideField", self.state("WideSum", i), "i128")
        elif name == "wide sum or null":
            self.output("WideFieldOf", (self.state("WideSum", i), self.counted(i)), "i128", True)
        elif name == "exact sum":
            state = self.state("ExactSum", i)
            self.output("ExactUsed", state, "i64")
            for k in range(EXACT_BINS):
                self.output("ExactBin", state, "i64", constants=(k,))
        elif name == "total":
            count = self.counts(i)
            self.output("ExactTotal", (self.state("ExactSum", i), *count), "f64", masked)
            self.output("ExactLoss", self.state("ExactSum", i), "f64")
        elif name == "total mean":
            self.output("ExactMean", (self.state("ExactSum", i), self.counted(i)), "f64", masked)
        elif name == "mean":
            self.output("Mean", (self.state("FloatSum", i), self.counted(i)), "f64", masked)
        elif name == "wide mean":
            self.output("WideMean", (self.state("WideSum", i), self.counted(i)), ctype, masked)
        elif name == "limbs":
            self.output("WideUpper", self.state("WideSum", i), "i64")
            self.output("WideLower", self.state("WideSum", i), "i64")
        elif name in ("var", "std", "sem"):
            power = ("var", "std", "sem").index(name)
            self.output("Spread", self.state("Moments", i), "f64", True, (1, power))
        elif name == "population var":
            self.output("Spread", self.state("Moments", i), "f64", True, (0, 0))
        elif name == "moments":
            self.moments(self.state("Moments", i))
        else:
            raise ValueError(name)

    def moments(self, state: int) -> None:
        """The three fields of moments."""
        self.output("MomentRows", state, "i64")
        self.output("MomentMean", state, "f64")
        self.output("MomentM2", state, "f64")
        self.output("MomentLoss", state, "f64")

    @property
    def query(self) -> Query:
        """What was collected."""
        return Query(
            self.keys, self.keep_nulls, tuple(self.inputs), tuple(self.states), tuple(self.outputs)
        )


def of(
    keys: Sequence[KeyPart], wanted: dict[tuple[str, bool], list[str]], keep_nulls: bool = False
) -> Query:
    """A query of aggregations by input: type and whether it has a null mask."""
    builder = Builder(*keys, keep_nulls=keep_nulls)
    for (ctype, masked), names in wanted.items():
        i = builder.input(ctype, masked)
        for name in names:
            builder.add(name, i)
    return builder.query


def key(ctype: str, masked: bool = False) -> KeyPart:
    """A key of fixed width."""
    return KeyPart(ctype, masked)


def string(offsets: str = "i32", masked: bool = False) -> KeyPart:
    """A key of strings."""
    return KeyPart(offsets, masked, string=True)


INT64 = (key("i64"),)
ONE = {("f64", False): ["sum"]}
# what most tests on a device ask for
USUAL = {
    ("i64", False): ["sum", "min", "max", "count", "size", "mean"],
    ("f64", False): ["sum", "min", "max", "var"],
}
EVERY = ["sum", "count", "min", "max", "mean", "var", "std", "sem", "any", "all", "first", "last"]

SEVERAL_KEYS = {
    "two of 32 bits": (key("i32"), key("i32")),
    "null flags fit": (key("i32", True), key("i8", True), key("u8")),
    "one bit too many for the flags": (key("i32", True), key("f32")),
    "eight of 8 bits": tuple(key("u8") for _ in range(8)),
    "wide and narrow": (key("i64"), key("i32", True)),
    "two of 64 bits": (key("i64"), key("f64")),
    "decimal128": (key("i128"),),
    "decimal128 with nulls": (key("i128", True),),
    "decimal128 and int32": (key("i128", True), key("i32")),
    "string": (string(),),
    "string with nulls": (string(masked=True),),
    "large string": (string("i64"),),
    "large string with nulls": (string("i64", masked=True),),
    "string and int32": (string(masked=True), key("i32", True)),
    "two strings": (string(), string("i64", masked=True)),
    "string, decimal128, float, int8": (string(), key("i128"), key("f64"), key("i8", True)),
}


def _keys() -> Iterator[tuple[str, Query]]:
    for keep_nulls in (False, True):
        nulls = "nulls kept" if keep_nulls else "nulls dropped"
        for ctype in TYPE_BYTES:
            # nulls are kept or dropped in the same way whatever the type
            for masked in (False, True) if ctype == "i64" else (keep_nulls,):
                name = f"key {ctype}{' masked' if masked else ''}, {nulls}"
                yield name, of([key(ctype, masked)], ONE, keep_nulls)
        for label, keys in SEVERAL_KEYS.items():
            yield f"keys {label}, {nulls}", of(keys, ONE, keep_nulls)


def _values() -> Iterator[tuple[str, Query]]:
    for ctype in ORDERED:
        if ctype in FAMILIES:
            yield f"every aggregation of {ctype}", of(INT64, {(ctype, False): EVERY})
        masked = {(ctype, True): [*EVERY, "prod", "sum or null"]}
        yield f"every aggregation of {ctype} masked", of(INT64, masked)
    for masked in (False, True):
        name = f"sum of decimal128{' masked' if masked else ''}"
        yield name, of(INT64, {("i128", masked): ["wide sum", "count"]})


def _single_states() -> Iterator[tuple[str, Query]]:
    """Each aggregation alone, so that nothing else aligns or fills the slot."""
    alone = {
        "size": "i64", "count": "i64", "sum": "i64", "prod": "f64", "min": "i8", "max": "f32",
        "any": "u8", "all": "u8", "first": "i64", "last": "i64", "wide sum": "i128", "mean": "f32",
        "population var": "f32", "moments": "i64",
    }  # fmt: skip
    for name, ctype in alone.items():
        yield f"{name} alone", of(INT64, {(ctype, True): [name]})
    merged = Builder(*INT64)
    merged.moments(merged.state("MergedMoments", *(merged.input(c) for c in ("i64", "f64", "f64"))))
    yield "merged moments alone", merged.query
    limbs = Builder(*INT64)
    sums = tuple(limbs.state("IntegerSum", limbs.input("i64")) for _ in range(3))
    limbs.output("LimbMean", sums, "i64", True)
    yield "mean of merged limbs alone", limbs.query
    for ctype in ("i32", "i64", "i128"):
        exact = {(ctype, True): ["wide mean", "wide sum or null"], (ctype, False): ["wide mean"]}
        yield f"exact means of {ctype}", of(INT64, exact)
    for ctype in FAMILIES:
        totals = ["exact sum", "total", "total mean"]
        wanted = {(ctype, False): totals, (ctype, True): ["count", *totals]}
        yield f"exact sums of {ctype}", of(INT64, wanted)
    yield "exact sum alone", of(INT64, {("f64", False): ["exact sum"]})
    yield "limbs alone", of(INT64, {("i64", True): ["limbs", "count"]})
    present = {(PRESENT, True): ["first", "last", "count"], (PRESENT, False): ["first"]}
    yield "validity alone", of(INT64, present)
    yield "wide sum or null alone", of(INT64, {("i128", True): ["wide sum or null"]})
    yield "nothing but the groups", of(INT64, {})
    yield "nothing but the groups of strings", of([string()], {})


def _counts() -> Iterator[tuple[str, Query]]:
    five = {("f64", False): ["sum", "count", "min", "max"], ("f32", False): ["mean"]}
    twenty = {
        ("i64", True): ["sum", "count", "min", "max", "mean"],
        ("f64", False): ["sum", "min", "max", "var", "std"],
        ("f32", True): ["sum", "count", "min", "max", "sem"],
        ("i8", False): ["size", "any", "all", "first", "last"],
    }
    for label, keys in {"int64": INT64, "strings": (string(),)}.items():
        yield f"1 aggregation by {label}", of(keys, ONE)
        yield f"5 aggregations by {label}", of(keys, five)
        yield f"20 aggregations by {label}", of(keys, twenty)
        yield f"the usual ones by {label}", of(keys, USUAL)
    for label, keys in {"strings": (string(),), "decimal128": (key("i128", True),)}.items():
        for number, wanted in {"1 aggregation": ONE, "the usual ones": USUAL}.items():
            yield f"{number} by {label}, by row", replace(of(keys, wanted), chosen=BY_ROW)
    ranged = {
        "two of 64 bits": INT64 * 2,
        "three with nulls": (key("i64", True), key("u8"), key("i32", True)),
        "two of a word": (key("i32"), key("u16", True)),
    }
    for label, keys in ranged.items():
        for keep_nulls in (False, True):
            nulls = "nulls kept" if keep_nulls else "nulls dropped"
            yield f"ranges of {label}, {nulls}", replace(of(keys, ONE, keep_nulls), chosen=RANGED)
            if keys == INT64 * 2:
                steps = replace(of(INT64, USUAL, keep_nulls), chosen=STEPPED)
                yield f"steps of int64, {nulls}", steps
                masked = replace(of((key("i64", True),), ONE, keep_nulls), chosen=STEPPED)
                yield f"steps of int64 with nulls, {nulls}", masked
            if len(keys) > 2:
                wide = replace(of(keys, ONE, keep_nulls), chosen=WIDE_RANGED)
                yield f"two words by ranges of {label}, {nulls}", wide
    coded = {
        "strings": (string(masked=True),),
        "large strings": (string("i64"),),
        "strings and integers": (string(), key("u64", True), string("i64", True), key("i8")),
    }
    for label, keys in coded.items():
        for keep_nulls in (False, True):
            nulls = "nulls kept" if keep_nulls else "nulls dropped"
            yield f"codes of {label}, {nulls}", replace(of(keys, ONE, keep_nulls), chosen=CODED)
    for keep_nulls in (False, True):
        # before a sample has shown the ranges
        nulls = "nulls kept" if keep_nulls else "nulls dropped"
        yield f"two of a word, {nulls}", of(ranged["two of a word"], USUAL, keep_nulls)
    yield "20 aggregations by codes", replace(of((string(),), twenty), chosen=CODED)
    yield "20 aggregations by two words", of((key("i64"), key("i64")), twenty)


def _by_number() -> Iterator[tuple[str, Query]]:
    """Partitions from which values are gathered, of every type."""
    for masked in (False, True):
        wanted = {(ctype, masked): ["max"] for ctype in ORDERED}
        wanted |= {("i128", masked): ["wide sum"], (PRESENT, masked): ["first"]}
        name = f"every type{' masked' if masked else ''} by number"
        yield name, of(INT64, wanted).by_number
    for label, keys in {"two words": INT64 * 2, "strings": (string(),)}.items():
        yield f"the usual ones by {label}, by number", of(keys, USUAL).by_number


TABLE: dict[str, Query] = {
    name: query
    for part in (_keys, _values, _single_states, _counts, _by_number)
    for name, query in part()
}
