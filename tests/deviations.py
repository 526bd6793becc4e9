"""Hypothesis strategies: partitions whose dtypes are not those of the metadata, and group-bys.

A family is a kind of data with the forms that a partition may hold it in. What the metadata
promises is one form; which form a partition takes depends on its values, as it does with readers
of files, left joins, ``where`` and ``map``.
"""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
from hypothesis import strategies as st

from tests.data import arrow, in_pieces
from tests.judging import together
from tests.strategies import functions

Form = Callable[[list[Any]], pd.Series]


def _as(dtype: Any) -> Form:
    return lambda values: pd.Series(values, dtype=dtype)


def _category(values: list[Any]) -> pd.Series:
    """Categories are those that the partition has, in order of appearance, and one it has not."""
    seen = list(dict.fromkeys(v for v in values if v is not None))
    return pd.Series(pd.Categorical(values, categories=[*seen, f"unused{len(seen)}"]))


def _numpy_float(dtype: str) -> Form:
    return lambda values: pd.Series(values, dtype="float64").astype(dtype)


@dataclass(frozen=True)
class Family:
    """Values of one kind and the dtypes that hold them.

    Attributes
    ----------
    values : tuple
        From which columns are filled; few, so that groups and ties occur.
    promised : Form
        The metadata's.
    complete, nullable : mapping of str to Form
        What partitions without nulls hold, and what those with nulls do; the first is what the
        metadata promises, where that has nulls at all.
    methods : tuple of str
        Aggregations that make sense of the values.
    """

    values: tuple[Any, ...]
    promised: Form
    complete: Mapping[str, Form]
    nullable: Mapping[str, Form]
    methods: tuple[str, ...]


_COUNTS = ("count", "size", "nunique", "list", "first", "last", "value_counts", "unique")
_ORDER = (*_COUNTS, "min", "max")
_SUMS = (*_ORDER, "sum", "mean", "median")
_NUMBERS = (*_SUMS, "prod", "var", "std", "any", "all", "cov", "idxmin", "idxmax")

_days = tuple(datetime.date(2020, 2, 27) + datetime.timedelta(days=i) for i in range(4))
_moments = tuple(
    datetime.datetime(2020, 2, 28) + datetime.timedelta(hours=13 * i) for i in range(4)
)
_lengths = tuple(datetime.timedelta(hours=7 * i - 7) for i in range(4))
_quarters = tuple(Decimal(i) / 4 for i in (-3, 0, 1, 6))


def _moment(unit: str, tz: str | None = None) -> Form:
    return lambda values: (
        pd.Series(values, dtype="datetime64[us]").dt.as_unit(unit).dt.tz_localize(tz)
    )


def _length(unit: str) -> Form:
    return lambda values: pd.Series(values, dtype="timedelta64[us]").dt.as_unit(unit)


_ints = {"int64": _as("int64"), "int32": _as("int32")}
_floats = {"float64": _numpy_float("float64"), "float32": _numpy_float("float32")}
_object = {"object": _as(object)}
_strings = {"str": _as("str"), "string": _as("string")}
_dates = {"date32": _as(arrow(pa.date32())), **_object}
_decimals = {"decimal": _as(arrow(pa.decimal128(10, 2))), **_object}
_units = {unit: _moment(unit) for unit in ("us", "s", "ns")}
_zoned = {unit: _moment(unit, "Europe/Berlin") for unit in ("us", "ns")}
_spans = {unit: _length(unit) for unit in ("us", "s", "ns")}
_masked = {"Int64": _as("Int64"), "Int32": _as("Int32")}
_arrow_ints = {"int64[pyarrow]": _as("int64[pyarrow]"), "int32[pyarrow]": _as("int32[pyarrow]")}

FAMILIES: dict[str, Family] = {
    "int": Family(
        (-3, 0, 1, 2, 7), _as("int64"), _ints | {"float64": _floats["float64"]}, _floats, _NUMBERS
    ),
    "int or object": Family((0, 1, 5), _as("int64"), _ints, _object | _floats, _ORDER),
    "bool": Family(
        (False, True),
        _as("bool"),
        {"bool": _as("bool"), **_object},
        _object,
        (*_SUMS, "any", "all"),
    ),
    "float": Family((-1.5, 0.0, 0.25, 2.0), _as("float64"), _floats, _floats, _NUMBERS),
    "float32": Family((-1.5, 0.0, 0.25, 2.0), _as("float32"), _floats, _floats, _NUMBERS),
    "masked": Family(
        (-3, 0, 1, 2), _as("Int64"), _masked | {"int64": _as("int64")}, _masked, _SUMS
    ),
    "arrow int": Family((-3, 0, 1, 2), _as("int64[pyarrow]"), _arrow_ints, _arrow_ints, _SUMS),
    "datetime": Family(_moments, _moment("us"), _units, _units, (*_ORDER, "mean", "median")),
    "zoned": Family(_moments, _moment("us", "Europe/Berlin"), _zoned, _zoned, _ORDER),
    "timedelta": Family(
        _lengths, _length("us"), _spans, _spans | _object, (*_ORDER, "sum", "mean")
    ),
    "string": Family(
        ("a", "b", "", "ccc"),
        _as("str"),
        _strings | {"category": _category},
        _strings | {"category": _category},
        _ORDER,
    ),
    "category": Family(
        ("a", "b", "d"), _category, {"category": _category, "str": _as("str")},
        {"category": _category, "str": _as("str")}, _COUNTS,
    ),
    "date": Family(_days, _as(object), _dates, _dates, _ORDER),
    "decimal": Family(_quarters, _as(object), _decimals, _decimals, (*_ORDER, "sum", "mean")),
}  # fmt: skip

# what is left of a column's type where a partition has no value at all
NOTHING = {"float64": _numpy_float("float64"), "object": _as(object)}
KEYS = tuple(name for name in FAMILIES if name not in ("float32", "timedelta"))
# what is a method and no aggregation by name, and the other way round
METHODS_ALONE = ("value_counts", "unique", "cov")
NAMES_ALONE = ("any", "all", "list")


@dataclass(frozen=True)
class Deviating:
    """Partitions, what the metadata says of them, and a group-by of them."""

    pieces: list[pd.DataFrame]
    meta: pd.DataFrame
    kinds: dict[str, str]
    by: list[Any]
    spec: Any
    flags: dict[str, bool]

    def __repr__(self) -> str:
        # all that is needed to build it again by hand
        pieces = [{c: (str(s.dtype), s.tolist()) for c, s in p.items()} for p in self.pieces]
        return (
            f"Deviating(pieces={pieces}, meta={self.meta.dtypes.astype(str).to_dict()}, "
            f"by={self.by}, spec={self.spec}, flags={self.flags})"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    @property
    def ordered(self) -> bool:
        """Whether pandas' order of the groups is asked for, and one to go by.

        Values are counted in an order of ours; pandas does not sort objects of which some are null,
        and has no categories to go by where only some partitions do.
        """
        if not self.flags.get("sort") or "value_counts" in self.spec:
            return False
        keys = [name for name in self.kinds if name.startswith("k")]
        dtypes = [[piece[name].dtype for piece in self.pieces] for name in keys]
        categories = [{isinstance(d, pd.CategoricalDtype) for d in of_key} for of_key in dtypes]
        objects = map(pd.api.types.is_object_dtype, together(self.pieces)[keys].dtypes)
        return not any(objects) and not any(len(of_key) > 1 for of_key in categories)

    def collection(self) -> Any:
        """The partitions as they are, under metadata that says otherwise."""
        # converted, they would be what the metadata says
        with dask.config.set({"dataframe.convert-string": False}):
            return in_pieces(self.pieces, self.meta)

    def query(self, frame: Any, **options: Any) -> Any:
        """The group-by of a frame, Dask's or pandas'."""
        by = [frame[key[1]] if isinstance(key, tuple) else key for key in self.by]
        groups = frame.groupby(by if len(by) > 1 else by[0], **self.flags)
        column, name = self.spec if isinstance(self.spec, tuple) else (None, None)
        if column is None:
            return groups.agg(functions(self.spec), **options)
        if name == "cov":
            return groups[column].cov(**options)
        return getattr(groups[column], name)(**options)


def thirds(label: int) -> int:
    """A key that is computed from the row labels."""
    return label % 3


@st.composite
def deviating(draw: Callable[..., Any]) -> Deviating:
    """Random partitions that deviate from their metadata, and a random group-by."""
    keys = [f"k{i}" for i in range(draw(st.sampled_from([1, 1, 2, 3])))]
    values = [f"x{i}" for i in range(draw(st.integers(1, 2)))]
    kinds = {name: draw(st.sampled_from(KEYS)) for name in keys}
    kinds |= {name: draw(st.sampled_from(tuple(FAMILIES))) for name in values}
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.sampled_from([3, 5, 1, 0, 8]), min_size=2, max_size=4))
    columns = {name: _column(draw, FAMILIES[kind], sizes, rng) for name, kind in kinds.items()}
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    pieces = [
        pd.DataFrame({name: parts[i] for name, parts in columns.items()}).set_index(
            pd.RangeIndex(start, start + size)
        )
        for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    meta = pd.DataFrame({name: FAMILIES[kind].promised([]) for name, kind in kinds.items()})
    by: list[Any] = list(keys)
    form = draw(st.sampled_from(["label", "label", "label", "series", "callable"]))
    if form == "series":
        by[-1] = ("column", by[-1])
    elif form == "callable":
        by[-1] = thirds
    flags = {
        name: value
        for name in ("dropna", "observed", "sort")
        if (value := draw(st.sampled_from([None, None, True, False]))) is not None
    }
    # unobserved categories of a key that some partition holds as something else: pandas forgets
    # them in a concatenation, the metadata does not
    held = {str(piece[key].dtype) == "category" for key in keys for piece in pieces}
    if flags.get("observed") is False and len(held) > 1:
        flags["observed"] = True
    return Deviating(pieces, meta, kinds, by, _spec(draw, kinds, values), flags)


def _column(
    draw: Callable[..., Any], family: Family, sizes: list[int], rng: np.random.Generator
) -> list[pd.Series]:
    """One column, a series for each partition."""
    parts = []
    for size in sizes:
        share = draw(st.sampled_from([0.0, 0.0, 0.3, 1.0]))
        drawn = [family.values[i] for i in rng.integers(0, len(family.values), size)]
        null = rng.random(size) < share
        values = [None if n else v for v, n in zip(drawn, null, strict=True)]
        forms = dict(family.nullable if null.any() else family.complete)
        if null.all():  # no rows, or none with a value
            forms |= NOTHING
        # the form that was promised comes first, and most often
        names = list(forms)
        parts.append(forms[draw(st.sampled_from([names[0], *names]))](values))
    return parts


def _spec(draw: Callable[..., Any], kinds: dict[str, str], values: list[str]) -> Any:
    if draw(st.booleans()):
        methods = [n for n in FAMILIES[kinds[values[0]]].methods if n not in NAMES_ALONE]
        name = draw(st.sampled_from(methods))
        return (values if name == "cov" else values[0]), name
    spec = {}
    for column in values:
        allowed = [n for n in FAMILIES[kinds[column]].methods if n not in METHODS_ALONE]
        spec[column] = draw(st.lists(st.sampled_from(allowed), min_size=1, max_size=3, unique=True))
    return spec
