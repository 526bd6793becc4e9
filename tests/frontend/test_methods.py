"""Methods that pandas' group-bys have and Dask's lack, refuse, or answer otherwise."""

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.dataframe.dask_expr._groupby import SeriesGroupBy

import dask_gpuagg
from tests.comparison import equal, same

pytestmark = pytest.mark.usefixtures("synchronous", "plugin")
Query = Callable[[Any], Any]


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    pdf = pd.DataFrame(
        {
            "k": rng.integers(0, 5, 120),
            "j": rng.integers(0, 2, 120),
            "x": rng.random(120),
            "i": rng.integers(0, 9, 120),
            "b": rng.random(120) < 0.5,
            "s": rng.choice(list("abc"), 120),
        }
    )
    pdf.loc[::7, "x"] = np.nan
    return pdf


def check(query: Query, data: pd.DataFrame, npartitions: int, ordered: bool = False) -> None:
    """Compare values, dtypes, labels and metadata with pandas'; rows of one key in its order."""
    lazy = query(dd.from_pandas(data, npartitions=npartitions, sort=False))
    expected = query(data)
    result, expected = (
        series.sort_index(kind="stable", level=0 if ordered else None)
        for series in (lazy.compute(), expected)
    )
    equal(result, expected)
    meta = lazy._meta
    if result.ndim == 1:
        assert (meta.name, meta.dtype) == (result.name, result.dtype)
    else:
        assert list(meta.dtypes.items()) == list(result.dtypes.items())
    assert list(meta.index.names) == list(result.index.names)


ADDED: dict[str, Query] = {
    "a quantile": lambda d: d.groupby("k").x.quantile(0.9),
    "quantiles": lambda d: d.groupby("k").x.quantile([0.1, 0.9]),
    "quantiles of a frame": lambda d: d.groupby(["k", "j"])[["x", "i"]].quantile([0.1, 0.5, 0.9]),
    "interpolation": lambda d: d.groupby("k").i.quantile([0.3], interpolation="lower"),
    "a median of a frame": lambda d: (
        d[["k", "x", "i", "s"]].groupby("k").quantile(numeric_only=True)
    ),
    "any": lambda d: d.groupby("k").b.any(),
    "all of a frame": lambda d: d.groupby("k")[["b", "i"]].all(),
    "sem": lambda d: d.groupby("k").x.sem(),
    "sem of a frame": lambda d: d.groupby("k")[["x", "i"]].sem(ddof=0),
    "nunique of a frame": lambda d: d.groupby("k").nunique(),
    "describe": lambda d: d.groupby("k").x.describe(),
    "describe a frame": lambda d: d.groupby("k")[["x", "i"]].describe(),
    "percentiles": lambda d: d.groupby("k").i.describe(percentiles=[0.1, 0.333]),
    "shares": lambda d: d.groupby("k").i.value_counts(normalize=True),
}


@pytest.mark.parametrize("npartitions", [1, 4])
@pytest.mark.parametrize("query", ADDED.values(), ids=ADDED)
def test_a_method_answers_as_pandas(query: Query, npartitions: int) -> None:
    check(query, frame(), npartitions)


def test_shares_of_a_category_without_rows_are_zero() -> None:
    data = frame().assign(k=pd.Categorical(frame().k.map("abcde".__getitem__), list("abcdef")))
    with dask.config.set({"gpuagg.fallback": "silent"}):
        check(lambda d: d.groupby("k", observed=False).b.value_counts(normalize=True), data, 3)


@pytest.mark.parametrize("keep", ["first", "last", "all"])
@pytest.mark.parametrize("name", ["nlargest", "nsmallest"])
@pytest.mark.parametrize("column", ["x", "i"])
def test_rows_of_the_extreme_values(column: str, name: str, keep: str) -> None:
    check(lambda d: getattr(d.groupby("k")[column], name)(3, keep=keep), frame(), 4, ordered=True)
    check(lambda d: getattr(d.groupby(["k", "j"])[column], name)(40), frame(), 4)


def test_added_methods_are_there_only_while_the_plugin_is_on() -> None:
    groups = dd.from_pandas(frame(), npartitions=2).groupby("k")
    assert groups.quantile.__doc__
    with dask.config.set({"gpuagg.enabled": False}):
        for name in ("quantile", "any", "all", "sem", "nunique", "describe"):
            with pytest.raises(AttributeError, match=f"Column not found: {name}"):
                getattr(groups, name)
        with pytest.raises(AttributeError):
            _ = groups.x.nlargest
        # a column of that name is chosen, as ever
        renamed = dd.from_pandas(frame().rename(columns={"x": "any"}), npartitions=2)
        assert isinstance(renamed.groupby("k").any, SeriesGroupBy)


CHOSEN: dict[str, Query] = {
    name: lambda d, name=name: getattr(d.groupby("k")[["x", "i"]], name)()
    for name in ("sum", "mean", "var", "std", "cov", "corr")
}
KEYS: dict[str, Query] = {
    name: lambda d, name=name: getattr(d.groupby("k")[["k", "x"]], name)()
    for name in ("sum", "mean", "var", "std", "cov", "corr")
}
KEYS |= {
    f"the key's {name}": lambda d, name=name: getattr(d.groupby("k").k, name)()
    for name in ("mean", "var", "std", "nunique")
}
COLUMNS: dict[str, Query] = {
    f"{name} of {by} {column}": lambda d, by=by, name=name, column=column: getattr(
        d.groupby(by)[["x", "i"]], name
    )()[column]
    for by in ("k", ["k", "j"])
    for name in ("cov", "corr")
    for column in ("i", ["i"])
}


@pytest.mark.parametrize("query", (CHOSEN | KEYS | COLUMNS).values(), ids=CHOSEN | KEYS | COLUMNS)
def test_chosen_columns_come_as_they_were_chosen(query: Query) -> None:
    data = frame()[["k", "j", "i", "x"]]
    lazy, expected = query(dd.from_pandas(data, npartitions=3)), query(data)
    result = lazy.compute().sort_index()
    if expected.ndim == 2:
        assert list(lazy.columns) == list(expected.columns)
    equal(result, expected.sort_index(), check_names=False)


@pytest.mark.parametrize("name", ["cov", "corr"])
def test_matrices_keep_the_name_of_the_columns_index(name: str) -> None:
    data = frame()[["k", "i", "x"]].rename_axis(columns="c")
    lazy = getattr(dd.from_pandas(data, npartitions=2).groupby("k"), name)()
    result, expected = lazy.compute(), getattr(data.groupby("k"), name)()
    assert lazy.columns.name == "c"
    pd.testing.assert_frame_equal(result.sort_index(), expected.sort_index())


def test_values_of_the_key_itself_are_counted() -> None:
    data = frame()
    result = dd.from_pandas(data, npartitions=3).groupby("k").k.value_counts().compute()
    assert result.droplevel(0).sort_index().to_dict() == data.k.value_counts().to_dict()


@pytest.mark.parametrize(("column", "name"), [("d", "mean"), ("b", "var"), ("b", "std")])
def test_arrows_dtypes_by_method_as_by_agg(column: str, name: str) -> None:
    decimals = [Decimal("1.25"), Decimal("2.50"), None, Decimal("3.10")]
    data = pd.DataFrame(
        {
            "k": [1, 1, 2, 2],
            "d": pd.array(decimals, dtype=pd.ArrowDtype(pa.decimal128(9, 2))),
            "b": pd.array([True, False, None, True], dtype="bool[pyarrow]"),
        }
    )
    result = getattr(dd.from_pandas(data, npartitions=2).groupby("k")[column], name)()
    expected = getattr(data.groupby("k")[column], name)()
    pd.testing.assert_series_equal(result.compute().sort_index(), expected)


@pytest.mark.parametrize("split_every", [2, 8])
@pytest.mark.parametrize("npartitions", [1, 3])
def test_a_median_has_the_partitions_that_it_announces(npartitions: int, split_every: int) -> None:
    """Above the number of partitions Dask's node says that it has no outputs."""
    data = frame()
    groups = dd.from_pandas(data, npartitions=npartitions).groupby("k").i
    lazy = groups.median(split_every=split_every)
    assert lazy.npartitions == len(lazy.divisions) - 1 >= 1
    medians = data.groupby("k").i.median()
    same(lazy.compute(), medians)
    same((lazy + 1).compute(), medians + 1)
    assert groups.median(split_every=split_every, split_out=2).npartitions == 2


def test_a_description_changes_no_other_result() -> None:
    """An equal aggregation has its rows and metadata to itself."""
    groups = dd.from_pandas(frame(), npartitions=2).groupby("k").x
    shares = {f"{q}%": partial(pd.Series.quantile, q=q / 100) for q in (25, 50, 75)}
    names = {name: name for name in ("count", "mean", "std", "min")}
    described, own = groups.describe(), groups.agg(**names, **shares, max="max")
    result, other = dask.compute(own, described)
    assert other["count"].dtype == "float64"
    assert own._meta["count"].dtype == result["count"].dtype == "int64"


def test_keys_of_a_categorical_index() -> None:
    index = pd.CategoricalIndex(list("abbcc"), name="id")
    data = pd.DataFrame({"v": [1, 2, 3, 4, 5.0]}, index=index)
    lazy = dd.from_pandas(data, npartitions=2, sort=False)
    result = lazy.groupby(lazy.index).v.sum().compute().sort_index()
    assert result.to_dict() == data.groupby(data.index, observed=True).v.sum().to_dict()


def test_the_built_in_sum_of_nan_is_nan() -> None:
    data = pd.DataFrame({"k": [1, 1, 2], "x": [0.5, np.nan, 2.0]})
    result = dd.from_pandas(data, npartitions=2).groupby("k").x.agg(sum).compute().sort_index()
    pd.testing.assert_series_equal(result, data.groupby("k").x.agg(sum))


@pytest.mark.parametrize("spec", [{None: "sum", ("x",): "nunique"}, ["sum", "nunique"]])
def test_a_column_called_none(spec: Any) -> None:
    data = pd.DataFrame({"k": [1, 1, 2, 2], "x": [0.25, 0.5, 1.5, 2.25], "y": [1, 2, 3, 4]})
    data.columns = pd.Index([1.5, None, ("x",)], tupleize_cols=False, dtype=object)
    result = dd.from_pandas(data, npartitions=2, sort=False).groupby(1.5).agg(spec).compute()
    assert (
        result.sort_index().to_numpy().tolist() == data.groupby(1.5).agg(spec).to_numpy().tolist()
    )


@pytest.mark.parametrize("name", ["mean", "value_counts", "var"])
def test_arguments_that_nobody_knows_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        getattr(dd.from_pandas(frame(), npartitions=2).groupby("k").x, name)(foo=1)


@pytest.mark.parametrize("how", ["right", "inner"])
def test_numeric_only_of_booleans_that_a_join_makes_objects(how: str) -> None:
    left = pd.DataFrame({"j": [1, 2], "b": [True, False], "y": [1, 2]})
    right = pd.DataFrame({"j": [1, 2, 3], "x": [1.0, 2.0, 3.0]})

    def query(a: Any, b: Any) -> Any:
        return a.merge(b, on="j", how=how).groupby("j").max(numeric_only=True)

    with dask.config.set({"gpuagg.fallback": "silent"}):
        result = query(dd.from_pandas(left, 1), dd.from_pandas(right, 1))
        assert bool(dask_gpuagg.why_not(result)) is (how == "right")
        assert list(result.compute().columns) == list(query(left, right).columns)
