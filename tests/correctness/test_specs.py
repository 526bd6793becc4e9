"""Every form of specification, and column names that could get in our way."""

from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.aggregations import REGISTRY, Kind
from tests.comparison import compare
from tests.data import partitioned

pytestmark = pytest.mark.usefixtures("plugin", "synchronous")

_rng = np.random.default_rng(3)
_N = 90
DATA = pd.DataFrame(
    {
        "k": _rng.integers(0, 5, _N),
        "x": np.where(_rng.random(_N) < 0.2, np.nan, _rng.normal(size=_N)),
        "y": _rng.integers(-9, 9, _N),
    }
)
IN_AGG = [
    n
    for n, record in REGISTRY.items()
    if record.in_agg and n != "size" and record.kind is not Kind.SKETCH
]
FORMS: dict[str, Any] = {
    "one name": "sum",
    "names": ["sum", "nunique", "sem"],
    "dict of names": {"x": "nunique", "y": "mean"},
    "dict of lists": {"x": ["any", "std"], "y": ["idxmax", "first"]},
    "mixed dict": {"x": "var", "y": ["sum", "all"]},
    "reversed columns": {"y": "sem", "x": "sum"},
    "functions": {"x": [np.sum, np.min, np.max, np.mean], "y": [sum, min, max]},
    "all kinds": {"x": ["sum", "nunique", "median", list], "y": ["quantile", "prod", "count"]},
}


def spread(values: pd.Series) -> Any:
    return values.max() - values.min()


def custom() -> dd.Aggregation:
    return dd.Aggregation(
        "spread",
        chunk=lambda g: (g.max(), g.min()),
        agg=lambda high, low: (high.max(), low.min()),
        finalize=lambda high, low: high - low,
    )


@pytest.mark.parametrize("split_out", [None, 3])
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, split_out: int | None):
    data, options = partitioned(DATA, 7), {"split_out": split_out}
    compare(lambda f, **o: f.groupby("k").agg(FORMS[form], **o), data, options=options)


@pytest.mark.parametrize("name", [n for n in IN_AGG if n not in ("list", "quantile")])
def test_the_same_pair_twice(name: str):
    data = partitioned(DATA, 7)
    twice = data.groupby("k").agg({"x": [name, name]}).compute()
    once = data.groupby("k").agg({"x": [name]}).compute()
    assert list(twice.columns) == [("x", name), ("x", name)]
    for i in range(2):
        pd.testing.assert_series_equal(twice.iloc[:, i], once.iloc[:, 0])
    compare(lambda f: f.groupby("k").agg(a=("x", name), b=("x", name), c=("y", "sum")), data)


@pytest.mark.parametrize("other", ["sum", "nunique", "median", "sem"])
def test_named_aggregation(other: str):
    data = partitioned(DATA, 7)
    named = {"b": pd.NamedAgg(column="y", aggfunc=other), "a": pd.NamedAgg("x", "max")}
    compare(lambda f: f.groupby("k").agg(**named, c=("x", "count")), data)
    compare(lambda f: f.groupby("k")["x"].agg(b=other, a="max"), data)


@pytest.mark.parametrize("split_out", [None, 3])
@pytest.mark.parametrize("other", IN_AGG)
def test_custom_aggregation_beside(other: str, split_out: int | None):
    function = list if other == "list" else other
    spec = {"x": [function, custom()], "y": [custom(), "sum"]}
    result = partitioned(DATA, 7).groupby("k").agg(spec, split_out=split_out).compute()
    want = DATA.groupby("k").agg({"x": [function, spread], "y": [spread, "sum"]})
    for label in want.columns:
        got = result[label].sort_index()
        pd.testing.assert_series_equal(got, want[label], check_dtype=other != "list")


def test_custom_aggregation_alone():
    data = partitioned(DATA, 7)
    for query in (
        lambda g: g["x"].agg(custom()),
        lambda g: g["x"].agg(["sum", custom()])["spread"],
        lambda g: g.agg({"x": custom()})["x"],
    ):
        result = query(data.groupby("k")).compute().sort_index()
        want = DATA.groupby("k")["x"].agg(spread)
        pd.testing.assert_series_equal(result, want, check_names=False)


def test_custom_aggregation_beyond_the_promised_dtype():
    total = dd.Aggregation("total", lambda g: g.sum(), lambda sums: sums.sum())
    numbers = pd.DataFrame({"k": [1, 2] * 20, "x": np.full(40, 200, "uint8")})
    query = partitioned(numbers, 3).groupby("k")["x"].agg(total)
    assert query._meta.dtype == "uint8"
    assert query.compute().sort_index().tolist() == [4_000, 4_000]


NAMES = ["k0", "s0.sum", "ordinal", "_partitions", "v", "v0", "index", "level_0", "count", "size"]


@pytest.mark.parametrize(
    ("by", "method"),
    [
        ("k0", None),
        (["ordinal", "_partitions"], "tasks"),
        (["index", "v"], "disk"),
        (["v0"], "tasks"),
    ],
    ids=str,
)
def test_names_like_our_own(by: Any, method: str | None):
    data = pd.DataFrame({name: _rng.integers(0, 5, _N) for name in NAMES})
    values = [name for name in NAMES if name not in by and name != by]
    spec = {name: ["sum", "first", "nunique", "median", "var"] for name in values}

    options = {"split_out": 3, "shuffle_method": method}
    compare(lambda f, **o: f.groupby(by).agg(spec, **o), partitioned(data, 7), options=options)


LABELS = {
    "integers": [0, 1, 2],
    "floats": [0.5, 1.5, 2.5],
    "mixed": ["k", 3, 2.5],
}


@pytest.mark.parametrize("split_out", [None, 3])
@pytest.mark.parametrize("labels", LABELS)
def test_labels_that_are_no_strings(labels: str, split_out: int | None):
    key, x, y = LABELS[labels]
    data = DATA.set_axis(pd.Index([key, x, y], dtype=object), axis=1)
    ddf, options = partitioned(data, 7), {"split_out": split_out}
    compare(lambda f, **o: f.groupby(key).sum(**o), ddf, options=options)
    spec = {x: ["sum", "nunique"], y: ["median", "sem"]}
    compare(lambda f, **o: f.groupby(key).agg(spec, **o), ddf, options=options)
    compare(lambda f, **o: f.groupby([key])[y].mean(**o), ddf, options=options)


@pytest.mark.parametrize("names", [("sum", "mean"), ("nunique", "sem")])
def test_tuples_as_labels(names: tuple[str, str]):
    labels = [("a", 1), ("a", 2), ("b", 1)]
    data = DATA.set_axis(pd.Index(labels, tupleize_cols=False), axis=1)
    ddf = partitioned(data, 7)
    compare(lambda f: f.groupby([labels[0]]).sum(), ddf)
    spec = dict(zip(labels[1:], names, strict=True))
    # pandas itself fails on this, so its answer is taken under plain names
    result = ddf.groupby([labels[0]]).agg(spec).compute().sort_index()
    want = DATA.groupby("k").agg(dict(zip("xy", names, strict=True)))
    assert list(result.columns) == labels[1:]
    np.testing.assert_allclose(result.to_numpy(dtype=float), want.to_numpy(dtype=float))


OWN_LABELS: dict[str, Any] = {
    "aggregations": lambda g, **how: g.agg({"x": "sum", "y": "max"}, **how),
    "several levels": lambda g, **how: g.agg({"x": ["sum", "min"], "y": ["median"]}, **how),
    "a method": lambda g, **how: g[["x", "y"]].mean(**how),
    "a least number of values": lambda g, **how: g[["x", "y"]].agg("sum", min_count=2, **how),
    "matrix": lambda g, **how: g[["x", "y"]].corr(**how),
}


@pytest.mark.parametrize("npartitions", [1, 4])
@pytest.mark.parametrize("split_out", [1, 3])
@pytest.mark.parametrize("name", OWN_LABELS)
def test_naming_the_labels_of_a_result_changes_no_other(name, split_out, npartitions):
    query = OWN_LABELS[name](partitioned(DATA, npartitions).groupby("k"), split_out=split_out)
    planned = query.optimize()
    graph, keys = dict(planned.__dask_graph__()), planned.__dask_keys__()
    for _ in range(2):
        for part in dask.get(graph, keys):
            assert list(part.columns.names) == [None] * part.columns.nlevels
            part.columns.names = ["mine"] * part.columns.nlevels
    assert list(planned._meta.columns.names) == [None] * planned._meta.columns.nlevels
