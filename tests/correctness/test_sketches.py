"""Aggregations of bounded entries through whole queries: approximate ones, and first values."""

import dask
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.dtypes import dtype_class
from tests.data import ROWS, VALUES, partitioned

pytestmark = pytest.mark.usefixtures("plugin", "synchronous")

_rng = np.random.default_rng(81)
_N = 40_000
DATA = pd.DataFrame(
    {
        "k": _rng.integers(0, 6, _N),
        "j": pd.Series(_rng.choice(["a", "b", None], _N), dtype="str"),
        "v": _rng.integers(0, 9_000, _N),
        "x": np.where(_rng.random(_N) < 0.2, np.nan, _rng.normal(size=_N)),
    }
)
SPEC = {"v": ["nunique_approx", "sum"], "x": ["quantile_approx", "nunique_approx", "median"]}


def keys_of(result: pd.DataFrame) -> pd.DataFrame:
    return result.index.to_frame(index=False)


def check(result: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Exact columns are equal, approximate ones within what the documentation states."""
    result, expected = result.sort_index(), expected.sort_index()
    assert keys_of(result).equals(keys_of(expected))
    result.index = expected.index
    for column, name in result.columns:
        got, theirs = result[column, name], expected[column, name]
        if name == "nunique_approx":
            assert got.dtype == np.int64
            # five times the standard error; small groups have at most a few values
            assert ((got - theirs).abs() <= 0.081 * theirs).all()
        else:
            tolerance = {"atol": 0.02} if name == "quantile_approx" else {"rtol": 1e-9}
            pd.testing.assert_series_equal(got, theirs, **tolerance)


def exact(frame: pd.DataFrame, keys: str | list[str], **options: bool) -> pd.DataFrame:
    spec = {
        column: [REGISTRY[n].exact or n if n in REGISTRY else n for n in names]
        for column, names in SPEC.items()
    }
    result = frame.groupby(keys, **options).agg(spec)
    result.columns = pd.MultiIndex.from_tuples([(c, n) for c, names in SPEC.items() for n in names])
    return result


@pytest.mark.parametrize("npartitions", [1, 12])
@pytest.mark.parametrize(("split_out", "method"), [(None, None), (3, "tasks"), (3, "disk")])
def test_under_every_plan(npartitions: int, split_out: int | None, method: str | None):
    query = partitioned(DATA, npartitions).groupby("k")
    result = query.agg(SPEC, split_out=split_out, shuffle_method=method).compute()
    check(result, exact(DATA, "k"))


@pytest.mark.parametrize("dropna", [True, False])
def test_several_keys_with_nulls(dropna: bool):
    lazy = partitioned(DATA, 5)
    result = lazy.groupby(["k", "j"], dropna=dropna, sort=True).agg(SPEC).compute()
    # text in the dtype that Dask gives it
    expected = exact(lazy.compute(), ["k", "j"], dropna=dropna)
    assert keys_of(result).equals(keys_of(expected))
    check(result, expected)


def test_unobserved_categories_have_no_values():
    data = DATA.assign(k=DATA["k"].astype(pd.CategoricalDtype(range(9))))
    result = partitioned(data, 5).groupby("k", observed=False).agg(SPEC).compute()
    check(result, exact(data, "k", observed=False))


@pytest.mark.parametrize("key", ["bool", "boolean", "category", "int8"])
def test_keys_whose_codes_have_few_bits(key: str):
    data = DATA.assign(k=(DATA["k"] % 2).astype(key))
    check(partitioned(data, 5).groupby("k", observed=True).agg(SPEC).compute(), exact(data, "k"))
    for name, best in (("nlargest", "max"), ("nsmallest", "min")):
        got = partitioned(data, 5).groupby("k", observed=True)["x"].agg(name, n=1).compute()
        expected = data.groupby("k", observed=True)["x"].agg(best)
        assert got.sort_index().tolist() == [[value] for value in expected]


def test_groups_without_values_and_frames_without_rows():
    data = DATA.assign(x=DATA["x"].where(DATA["k"] != 2))
    check(partitioned(data, 5).groupby("k").agg(SPEC).compute(), exact(data, "k"))
    empty = partitioned(DATA, 5)
    query = empty[empty["v"] < 0].groupby("k").agg({"v": "nunique_approx", "x": "quantile_approx"})
    result = query.compute()
    assert result.shape == (0, 2)
    assert list(result.dtypes) == [np.int64, np.float64]


@pytest.mark.parametrize(
    "dtype",
    [
        d
        for d, values in VALUES.items()
        if dtype_class(partitioned(values.to_frame("x"), 1)._meta["x"].dtype)
        in REGISTRY["nunique_approx"].accepts
    ],
)
def test_few_distinct_values_of_every_dtype_are_counted_exactly(dtype: str):
    data = pd.DataFrame({"k": pd.Series(range(ROWS)) * 7 % 5, "x": VALUES[dtype]})
    lazy = partitioned(data, 5).groupby("k")["x"]
    result = lazy.agg("nunique_approx")
    want = lazy.nunique().compute().sort_index()
    assert result.dtype == lazy.nunique().dtype
    pd.testing.assert_series_equal(result.compute().sort_index(), want)


def test_partitions_of_other_dtypes_than_promised():
    # a null makes floats of one file's integers
    parts = [DATA["v"].iloc[:20_000].astype("float64"), DATA["v"].iloc[20_000:]]
    meta = DATA[["k", "v"]].iloc[:0]

    def part(number: int) -> pd.DataFrame:
        return pd.DataFrame({"k": DATA["k"].loc[parts[number].index], "v": parts[number]})

    lazy = dask.dataframe.from_map(part, [0, 1], meta=meta, enforce_metadata=False)
    result = lazy.groupby("k").agg({"v": ["nunique_approx", "quantile_approx"]}).compute()
    expected = DATA.groupby("k")["v"].nunique()
    assert ((result["v", "nunique_approx"] - expected).abs() <= 0.081 * expected).all()
    median = DATA.groupby("k")["v"].median()
    assert ((result["v", "quantile_approx"] - median).abs() < 100).all()


def test_quantiles_are_named_by_q():
    data = partitioned(DATA, 5).groupby("k")
    spelled = data.agg(a=pd.NamedAgg("x", "quantile_approx", q=0.9)).compute()["a"].sort_index()
    expected = DATA.groupby("k")["x"].quantile(0.9).rename("a")
    pd.testing.assert_series_equal(spelled, expected, atol=0.05)
    by_series = data["x"].agg("quantile_approx", q=0.9).compute().sort_index()
    pd.testing.assert_series_equal(by_series.rename("a"), spelled)
    both = data.agg(
        low=pd.NamedAgg("x", "quantile_approx", q=0.1),
        high=pd.NamedAgg("x", "quantile_approx", q=0.9),
    )
    assert "sketches quantile_approx of x\n" in str(dask_gpuagg.explain(both))
    with pytest.raises(ValueError, match="unknown aggregate") as refused:
        data["x"].agg("quantile_approx", q=[0.1, 0.9])
    assert "several quantiles at once" in str(refused.value)


@pytest.mark.parametrize(("npartitions", "split_out"), [(1, None), (7, 3)])
@pytest.mark.parametrize("dtype", ["float64", "int64", "Int64", "double[pyarrow]"])
def test_first_values(npartitions: int, split_out: int | None, dtype: str):
    values = DATA["x"] if "double" in dtype or "float" in dtype else DATA["v"]
    data = DATA[["k"]].assign(x=values.astype(dtype)).iloc[:3000]
    groups = partitioned(data, npartitions).groupby("k")
    result = groups.agg(
        high=pd.NamedAgg("x", "nlargest", n=2),
        low=pd.NamedAgg("x", "nsmallest", n=1),
        five=("x", "nlargest"),
        split_out=split_out,
    )
    assert list(result.dtypes) == [object] * 3
    result = result.compute().sort_index()
    by = data.dropna().groupby("k")["x"]
    for name, how, n in (("high", "nlargest", 2), ("low", "nsmallest", 1), ("five", "nlargest", 5)):
        expected = getattr(by, how)(n).groupby(level=0).agg(lambda s: s.tolist())
        assert result[name].tolist() == expected.tolist()
    exploded = groups["x"].agg("nlargest", n=2).explode().compute().sort_index(kind="stable")
    assert exploded.tolist() == by.nlargest(2).tolist()


def test_first_values_of_groups_without_values():
    data = DATA.assign(x=DATA["x"].where(DATA["k"] != 2))
    result = partitioned(data, 5).groupby("k")["x"].agg("nlargest", n=1).compute()
    assert result[2] == []
    assert len(result) == 6


def test_what_is_refused_has_a_reason():
    data = partitioned(DATA.assign(d=VALUES["decimal128"].reindex(DATA.index)), 2).groupby("k")
    with pytest.raises(ValueError, match="unknown aggregate") as refused:
        data.agg({"d": "nunique_approx"})
    assert "nunique_approx of dtype decimal128" in str(refused.value)
    with pytest.raises(TypeError, match="quantile"):  # pandas' own
        data.agg({"j": "quantile_approx"})
    with pytest.raises(AttributeError):
        data.nunique_approx()
