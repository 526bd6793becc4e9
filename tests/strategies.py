"""Hypothesis strategies: frames of every dtype, cut into partitions, and aggregation specs."""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.aggregations import Kind as AggregationKind
from dask_gpuagg.dtypes import dtype_class
from tests.data import in_pieces

LONGEST = 30


@dataclass(frozen=True)
class Kind:
    """A dtype, the values to draw for it, and whether a column may hold nulls."""

    dtype: Any
    elements: st.SearchStrategy[Any]
    nullable: bool = True

    def series(self, values: list[Any]) -> pd.Series:
        if isinstance(self.dtype, str) and self.dtype.startswith(("float", "double")):
            # through float64: a NaN in a list of floats is what a null is there
            return pd.Series(values, dtype="float64").astype(self.dtype)
        if isinstance(self.dtype, pd.CategoricalDtype):
            return pd.Series(pd.Categorical(values, dtype=self.dtype))
        return pd.Series(values, dtype=self.dtype)


def _integers(bits: int, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.one_of(st.integers(max(low, -5), 5), st.integers(low, high))


def _floats() -> st.SearchStrategy[float]:
    small = st.integers(-8, 8).map(lambda i: i / 4)
    special = st.sampled_from([-0.0, 0.1, np.inf, -np.inf, 1e9, 1e9 + 1])
    return st.one_of(small, special, st.floats(-1e6, 1e6, allow_subnormal=False, width=32))


_moments = st.datetimes(datetime.datetime(1960, 1, 1), datetime.datetime(2050, 1, 1)).map(
    lambda t: t.replace(microsecond=0, fold=0)
)
_lengths = st.integers(-(10**6), 10**6).map(lambda s: datetime.timedelta(seconds=s))
_text = st.text("abÄ🙂 0", max_size=3)
_quarters = st.integers(-4000, 4000).map(lambda i: Decimal(i) / 4)
_letters = st.sampled_from("abcd")

KINDS: dict[str, Kind] = {
    "bool": Kind("bool", st.booleans(), nullable=False),
    "int8": Kind("int8", _integers(8), nullable=False),
    "int32": Kind("int32", _integers(32), nullable=False),
    "int64": Kind("int64", _integers(64), nullable=False),
    "uint64": Kind("uint64", _integers(64, signed=False), nullable=False),
    "float64": Kind("float64", _floats()),
    "float32": Kind("float32", _floats()),
    "boolean": Kind("boolean", st.booleans()),
    "Int16": Kind("Int16", _integers(16)),
    "Int64": Kind("Int64", _integers(40)),
    "Float64": Kind("Float64", _floats().filter(np.isfinite)),
    "int64[pyarrow]": Kind("int64[pyarrow]", _integers(40)),
    "double[pyarrow]": Kind("double[pyarrow]", _floats().filter(lambda v: v != 0)),
    "bool[pyarrow]": Kind("bool[pyarrow]", st.booleans()),
    "datetime64[us]": Kind("datetime64[us]", _moments),
    "datetime64[s]": Kind("datetime64[s]", _moments),
    "datetime64[us, UTC]": Kind(
        "datetime64[us, UTC]", _moments.map(lambda t: t.replace(tzinfo=datetime.UTC))
    ),
    "timedelta64[us]": Kind("timedelta64[us]", _lengths),
    "timestamp[pyarrow]": Kind(pd.ArrowDtype(pa.timestamp("us")), _moments),
    "str": Kind("str", _text),
    "string[pyarrow]": Kind(pd.ArrowDtype(pa.string()), _text),
    "decimal128": Kind(pd.ArrowDtype(pa.decimal128(12, 2)), _quarters),
    "category": Kind(pd.CategoricalDtype(list("dcbae")), _letters),
    "ordered category": Kind(pd.CategoricalDtype(list("dcbae"), ordered=True), _letters),
}

# what a column's class is once Dask has read it
CLASSES = {
    name: dtype_class(in_pieces([kind.series([]).to_frame("x")])._meta["x"].dtype)
    for name, kind in KINDS.items()
}


@dataclass(frozen=True)
class Case:
    """A frame, where it is cut, and a group-by of it."""

    frame: pd.DataFrame
    cuts: tuple[int, ...]
    kinds: dict[str, str]
    keys: list[str]
    spec: dict[str, list[str]]
    dropna: bool
    observed: bool
    sort: bool

    def __repr__(self) -> str:
        # all that is needed to build it again by hand
        columns = {c: (str(s.dtype), s.tolist()) for c, s in self.frame.items()}
        return (
            f"Case(frame={columns}, cuts={self.cuts}, keys={self.keys}, spec={self.spec}, "
            f"dropna={self.dropna}, observed={self.observed}, sort={self.sort})"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def pieces(self) -> list[pd.DataFrame]:
        edges = [0, *self.cuts, len(self.frame)]
        return [self.frame.iloc[a:b] for a, b in pairwise(edges)]

    def collection(self, cut: bool = True) -> Any:
        """The frame in Dask, in its partitions or in one."""
        return in_pieces(self.pieces if cut else [self.frame])

    def groupby(self, frame: Any) -> Any:
        flags = {"dropna": self.dropna, "observed": self.observed, "sort": self.sort}
        return frame.groupby(self.keys if len(self.keys) > 1 else self.keys[0], **flags)

    def functions(self) -> dict[str, list[Any]]:
        """The spec as pandas and Dask want it written."""
        return functions(self.spec)


def functions(spec: dict[str, list[str]]) -> dict[str, list[Any]]:
    """A spec as pandas and Dask want it written: ``list`` is known only as the type."""
    return {c: [list if n == "list" else n for n in names] for c, names in spec.items()}


def pools(kind: Kind, most: int) -> st.SearchStrategy[list[Any]]:
    """Distinct values, at most so many, from which a column is filled."""
    elements = st.one_of(st.none(), kind.elements) if kind.nullable else kind.elements
    return st.lists(elements, min_size=2, max_size=most)


@st.composite
def cases(
    draw: Callable[..., Any],
    admit: Callable[[str, str], bool] | None = None,
    value_columns: int = 3,
    value_kinds: Sequence[str] = tuple(KINDS),
) -> Case:
    """A random frame and a random group-by that the registry admits.

    ``admit`` admits a kind and an aggregation more narrowly than the registry.
    """
    keys = [f"key{i}" for i in range(draw(st.integers(1, 3)))]
    values = [f"value{i}" for i in range(draw(st.integers(1, value_columns)))]
    kinds = {name: draw(st.sampled_from(sorted(KINDS))) for name in keys}
    kinds |= {name: draw(st.sampled_from(sorted(value_kinds))) for name in values}
    pool = {n: draw(pools(KINDS[kind], 4 if n in keys else 8)) for n, kind in kinds.items()}
    # Values are drawn, their places come from a seed: drawing these as well makes hypothesis run
    # out of choices, and most frames empty. Fewer rows are the first rows of more.
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.sampled_from([3, 1, 0, 8, 12, 20, 30, 30]))
    data = {
        name: KINDS[kinds[name]].series([values[i] for i in rng.integers(0, len(values), LONGEST)])
        for name, values in pool.items()
    }
    spec = {}
    for name in values:
        allowed = [n for n in admitted(kinds[name]) if admit is None or admit(kinds[name], n)]
        if allowed:
            names = st.lists(st.sampled_from(allowed), min_size=1, max_size=4, unique=True)
            spec[name] = draw(names)
    # several cuts at one place make empty partitions
    cuts = sorted(
        rng.integers(0, rows, draw(st.sampled_from([2, 0, 1, 4, 6])), endpoint=True).tolist()
    )
    labels = draw(st.sampled_from(["numbers", "shuffled"]))
    index = pd.RangeIndex(rows) if labels == "numbers" else pd.Index(np.arange(rows) * 7 % 31)
    frame = pd.DataFrame(data).head(rows).set_axis(index, axis=0)
    flags = [draw(st.booleans()) for _ in range(3)]
    return Case(frame, tuple(cuts), kinds, keys, spec or {values[0]: ["count"]}, *flags)


def admitted(kind: str) -> list[str]:
    """The aggregations that ``.agg`` accepts for a column of this kind."""
    cls = CLASSES[kind]
    # pandas has none of the sketches in ``.agg``: they have tests of their own
    exact = {n: r for n, r in REGISTRY.items() if r.kind is not AggregationKind.SKETCH}
    return [n for n, r in exact.items() if r.in_agg and cls in r.accepts and n != "size"]
