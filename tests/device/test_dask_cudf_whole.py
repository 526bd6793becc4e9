"""Aggregations of every class of column on dask-cudf collections, against plain Python."""

import functools
from decimal import ROUND_DOWN, Decimal, localcontext
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.device.frames import (
    LETTERS,
    arrow,
    assert_equal,
    by_key,
    collection,
    expected,
    frame,
    groups_of,
    on_device,
    python,
)

pytestmark = pytest.mark.usefixtures("raising")

# one partition goes in one pass, several through partials, several outputs through an exchange
HOW = pytest.mark.parametrize(("npartitions", "split_out"), [(1, 1), (6, 1), (6, 3)])


def agg(column: str, name: Any, npartitions: int, split_out: int, keys: Any = "k") -> Any:
    grouped = collection(npartitions).groupby(keys)
    return grouped.agg({column: name}, split_out=split_out).compute()[column]


def total_of(values: list[Any]) -> Any:
    with localcontext(prec=60):
        return sum(values)


def quotient(values: list[Any]) -> Any:
    """A mean in the unit of the values, rounded towards zero."""
    if isinstance(values[0], Decimal):
        unit = Decimal(1).scaleb(values[0].as_tuple().exponent)
        with localcontext(prec=60):
            return (sum(values) / len(values)).quantize(unit, ROUND_DOWN)
    total = sum(values)
    return total // len(values) if total >= 0 else -(-total // len(values))


@HOW
@pytest.mark.parametrize("column", ["t", "td", "d32", "d64", "d128"])
def test_exact_means(column: str, npartitions: int, split_out: int) -> None:
    ours = agg(column, "mean", npartitions, split_out)
    assert_equal(by_key(ours), expected(groups_of(arrow(), ["k"], column), quotient))
    assert ours.dtype == frame(arrow())[column].dtype


@HOW
@pytest.mark.parametrize("column", ["td", "d32", "d64", "d128"])
def test_exact_sums(column: str, npartitions: int, split_out: int) -> None:
    ours = agg(column, "sum", npartitions, split_out)
    assert_equal(by_key(ours), expected(groups_of(arrow(), ["k"], column), total_of))
    assert ours.dtype == frame(arrow()).groupby("k")[column].sum().dtype


def test_sums_that_leave_their_type_are_wider() -> None:
    import cudf

    dtype = cudf.Decimal32Dtype(9, 2)
    largest = cudf.Series([Decimal("9999999.99")] * 1000).astype(dtype)
    ddf = on_device({"k": [1] * 1000, "d": largest}, 4)
    ours = ddf.groupby("k").agg({"d": ["sum", "mean"]}).compute()
    assert ours["d", "sum"].to_arrow().to_pylist() == [Decimal("9999999990.00")]
    assert ours["d", "mean"].to_arrow().to_pylist() == [Decimal("9999999.99")]


@HOW
@pytest.mark.parametrize("column", ["d32", "d128"])
def test_spread_of_decimals(column: str, npartitions: int, split_out: int) -> None:
    groups = groups_of(arrow(), ["k"], column)
    for name, power in (("var", 1.0), ("std", 0.5)):
        ours = agg(column, name, npartitions, split_out)
        theirs = expected(
            groups, lambda v, p=power: float(np.var(np.array(v, dtype=float), ddof=1)) ** p
        )
        assert_equal(by_key(ours), theirs, rtol=1e-9)


@HOW
@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("column", ["s", "d32", "d64", "d128", "t", "td", "b"])
def test_extremes(column: str, name: str, npartitions: int, split_out: int) -> None:
    ours = agg(column, name, npartitions, split_out)
    function = {"min": min, "max": max}[name]
    assert_equal(by_key(ours), expected(groups_of(arrow(), ["k"], column), function))
    # a collection may hold strings in another dtype than the frame that it was made of
    held = collection(npartitions)[column].compute()
    assert ours.dtype == held.dtype


@HOW
@pytest.mark.parametrize("name", ["first", "last", "min", "max"])
def test_categories_stay_categories(name: str, npartitions: int, split_out: int) -> None:
    ours = agg("o", name, npartitions, split_out)
    functions = {
        "first": lambda v: v[0],
        "last": lambda v: v[-1],
        "min": lambda v: min(v, key=LETTERS.index),
        "max": lambda v: max(v, key=LETTERS.index),
    }
    assert_equal(by_key(ours), expected(groups_of(arrow(), ["k"], "s"), functions[name]))
    assert list(ours.dtype.categories.to_pandas()) == LETTERS
    # Dask itself concatenates several outputs
    assert ours.dtype.ordered or split_out > 1


# what cuDF refuses, and Dask with it when it makes the metadata
REFUSED = {
    ("t", "mean"): quotient,
    ("td", "median"): lambda v: (sorted(v)[(len(v) - 1) // 2] + sorted(v)[len(v) // 2]) // 2,
    ("d64", "var"): lambda v: float(np.var(np.array(v, dtype=float), ddof=1)),
    ("o", "first"): lambda v: v[0],
}


@pytest.mark.parametrize(("column", "name"), REFUSED)
def test_methods_that_cudf_refuses(column: str, name: str) -> None:
    ours = by_key(getattr(collection(4).groupby("k")[column], name)().compute())
    groups = groups_of(arrow(), ["k"], "s" if column == "o" else column)
    assert_equal(ours, expected(groups, REFUSED[column, name]), rtol=1e-9)


@HOW
def test_strings(npartitions: int, split_out: int) -> None:
    groups = groups_of(arrow(), ["k"], "s")
    assert_equal(by_key(agg("s", "sum", npartitions, split_out)), expected(groups, "".join))
    some = expected(groups, lambda v: any(v))
    assert_equal(by_key(agg("s", "any", npartitions, split_out)), some)
    every = expected(groups, lambda v: all(v))
    assert_equal(by_key(agg("s", "all", npartitions, split_out)), every)


def best(labels: list[int], values: list[Any], largest: bool) -> Any:
    """The label of the first best value; NaN is one only where there is nothing else."""
    pairs = [(v, i) for v, i in zip(values, labels, strict=True) if v is not None]
    real = [(v, i) for v, i in pairs if v == v]
    if not real:
        return pairs[0][1]
    top = (max if largest else min)(v for v, _ in real)
    return next(i for v, i in real if v == top)


@HOW
@pytest.mark.parametrize("name", ["idxmin", "idxmax"])
@pytest.mark.parametrize("column", ["i", "f", "t", "td", "b"])
def test_labels_of_extremes(column: str, name: str, npartitions: int, split_out: int) -> None:
    values = groups_of(arrow(), ["k"], column)
    labels = pa.array(range(100, 100 + 2 * len(arrow()), 2))
    labels = groups_of(arrow().append_column("label", [labels]), ["k"], "label")
    theirs = {g: best(labels[g], values[g], name == "idxmax") for g in values}
    assert_equal(by_key(agg(column, name, npartitions, split_out)), theirs)
    grouped = collection(npartitions).groupby("k")
    assert_equal(by_key(getattr(grouped[column], name)().compute()), theirs)
    assert_equal(by_key(getattr(grouped[[column]], name)().compute()[column]), theirs)


def test_labels_of_nothing_are_an_error() -> None:
    import cudf

    gdf = cudf.DataFrame({"k": [1, 1, 2, 2], "v": cudf.Series([1, None, None, None], dtype="i8")})
    grouped = on_device(gdf, 2).groupby("k").v
    with pytest.raises(ValueError, match="all NA"):
        grouped.idxmin().compute()
    with pytest.raises(ValueError, match="NA value"):
        grouped.idxmax(skipna=False).compute()


@HOW
@pytest.mark.parametrize("column", ["t", "td"])
def test_medians_of_ticks(column: str, npartitions: int, split_out: int) -> None:
    def median(values: list[int]) -> int:
        ordered = sorted(values)
        low, high = ordered[(len(values) - 1) // 2], ordered[len(values) // 2]
        return low + (high - low) // 2

    ours = agg(column, "median", npartitions, split_out)
    assert_equal(by_key(ours), expected(groups_of(arrow(), ["k"], column), median))
    assert ours.dtype == frame(arrow())[column].dtype


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("q", [0.0, 0.3, 1.0])
def test_quantiles_of_ticks(q: float, interpolation: str) -> None:
    def quantile(values: list[int]) -> int:
        ordered = sorted(values)
        # NumPy's rule, on small numbers that float64 holds
        small = np.array([v - ordered[0] for v in ordered], dtype=float)
        return ordered[0] + int(np.quantile(small, q, method=interpolation))

    if interpolation == "nearest" and q == 0.3:
        pytest.skip("NumPy and pandas differ on ties")
    function = functools.partial(pd.Series.quantile, q=q, interpolation=interpolation)
    ours = by_key(agg("td", function, 4, 1))
    theirs = expected(groups_of(arrow(), ["k"], "td"), quantile)
    assert ours.keys() == theirs.keys()
    # a product with 0.3 may round to either side of an integer
    slack = 1 if (interpolation, q) == ("linear", 0.3) else 0
    assert all(abs(ours[label] - theirs[label]) <= slack for label in theirs)


@pytest.mark.parametrize("npartitions", [1, 5])
def test_medians_and_quantiles_of_bools(npartitions: int) -> None:
    groups = groups_of(arrow(), ["k"], "b")
    for name in ("median", "quantile"):
        ours = agg("b", name, npartitions, 1)
        assert_equal(by_key(ours), expected(groups, lambda v: float(np.median(v))))
        assert ours.dtype == "float64"


@HOW
@pytest.mark.parametrize("column", ["i", "f", "s", "o", "t", "d64"])
def test_lists(column: str, npartitions: int, split_out: int) -> None:
    values = groups_of(arrow(), ["k"], "s" if column == "o" else column)
    ours = agg(column, list, npartitions, split_out)
    assert_lists(by_key(ours), values)


def assert_lists(ours: dict[Any, Any], theirs: dict[Any, list[Any]]) -> None:
    assert ours.keys() == theirs.keys()
    for label, values in theirs.items():
        mine = ticks(ours[label])
        assert list(map(repr, mine)) == list(map(repr, values)), label


def ticks(values: list[Any]) -> list[Any]:
    if any(isinstance(v, pd.Timestamp) for v in values):
        return [None if v is None else v.value for v in values]
    return values


@pytest.mark.parametrize("npartitions", [1, 5])
@pytest.mark.parametrize("column", ["i", "f", "s", "o", "d64"])
def test_unique(column: str, npartitions: int) -> None:
    ours = collection(npartitions).groupby("k")[column].unique().compute()
    values = groups_of(arrow(), ["k"], "s" if column == "o" else column)
    theirs = {g: [*dict.fromkeys("nan" if v != v else v for v in vs)] for g, vs in values.items()}
    mine = {g: ["nan" if v != v else v for v in vs] for g, vs in by_key(ours).items()}
    assert mine == theirs


@HOW
@pytest.mark.parametrize("column", ["i", "f", "s", "o", "t", "d128"])
def test_numbers_of_distinct_values(column: str, npartitions: int, split_out: int) -> None:
    values = groups_of(arrow(), ["k"], "s" if column == "o" else column)
    theirs = {g: len({"nan" if v != v else v for v in vs} - {None}) for g, vs in values.items()}
    assert_equal(by_key(agg(column, "nunique", npartitions, split_out)), theirs)


@pytest.mark.parametrize("split_out", [1, 3])
@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("keys", [["g"], ["t"], ["g", "t"], ["o"], ["s", "g"]], ids="+".join)
def test_keys(keys: list[str], dropna: bool, split_out: int) -> None:
    grouped = collection(6).groupby(keys, dropna=dropna)
    spec = {"td": ["mean", "median"], "d128": ["min", "mean"], "i": ["idxmin", "sum", "nunique"]}
    ours = grouped.agg(spec, split_out=split_out).compute()
    named = ["s" if k == "o" else k for k in keys]

    def groups(column: str) -> dict[Any, list[Any]]:
        return groups_of(arrow(), named, column, dropna)

    n = len(keys)
    assert_equal(by_key(ours["td", "mean"], n), expected(groups("td"), quotient))
    assert_equal(by_key(ours["d128", "min"], n), expected(groups("d128"), min))
    assert_equal(by_key(ours["d128", "mean"], n), expected(groups("d128"), quotient))
    assert_equal(by_key(ours["i", "sum"], n), expected(groups("i"), sum))
    distinct = expected(groups("i"), lambda v: len(set(v)))
    assert_equal(by_key(ours["i", "nunique"], n), distinct)


def test_sorted() -> None:
    spec = {"t": ["mean", "median"], "s": ["min", "nunique"]}
    ours = collection(5).groupby("g", sort=True, dropna=False).agg(spec).compute()
    labels = python(ours.index.to_arrow())
    assert labels[-1] is None
    assert labels[:-1] == sorted(labels[:-1])
    assert len(labels) == 9


@pytest.mark.parametrize("npartitions", [1, 4])
def test_zoned_datetimes(npartitions: int) -> None:
    gdf = frame(arrow())[["k", "t"]]
    gdf["z"] = gdf["t"].dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")
    ddf = on_device(gdf, npartitions)
    spec = ["min", "first", "mean", "median"]
    ours = ddf.groupby("k").agg({"z": spec, "t": spec}).compute()
    for name in spec:
        zoned, plain = ours["z", name], ours["t", name]
        assert zoned.dtype == gdf["z"].dtype
        instants = zoned.dt.tz_convert(None)
        assert python(instants.to_arrow()) == python(plain.to_arrow())
