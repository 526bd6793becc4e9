"""Specifications, against pandas and stock Dask."""

from functools import partial
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.frontend.specification import WithArguments, label_of, read_function
from dask_gpuagg.plan import Unsupported
from tests.comparison import assert_same, compare

pytestmark = pytest.mark.usefixtures("synchronous")

NULLS = pd.DataFrame(
    {"k": [1, 2, 1, 2, 1, 3], "x": [1.0, np.nan, 3.0, 4.0, 5.0, 6.0], "y": [1, 2, 3, 4, 5, 6]}
)


def lazily(frame: pd.DataFrame) -> Any:
    return dd.from_pandas(frame, npartitions=3, sort=False)


def stock(query, frame: pd.DataFrame) -> Any:
    with dask.config.set({"gpuagg.enabled": False}):
        return query(lazily(frame)).compute()


QUERIES = {
    "several functions": lambda g: g.agg(["sum", "nunique"]),
    "one function": lambda g: g.agg("nunique"),
    "stock Dask's functions": lambda g: g.agg(["sum", "max"]),
    "method": lambda g: g.max(),
    "method of numbers": lambda g: g.last(numeric_only=True),
}


@pytest.mark.usefixtures("plugin")
class TestColumns:
    @pytest.mark.parametrize("name", QUERIES)
    def test_a_key_that_is_a_column_of_the_frame_is_no_value(self, name):
        query = QUERIES[name]
        compare(lambda d: query(d[["k", "x"]].groupby(d.k)), lazily(NULLS))
        compare(lambda d: query(d[["k", "x"]].groupby([d.k, d.y])), lazily(NULLS))

    def test_a_key_that_only_has_the_name_of_a_column_leaves_it_a_value(self):
        spec = ["sum", "nunique"]
        compare(lambda d: d[["k", "x"]].groupby((d.k + 1).rename("k")).agg(spec), lazily(NULLS))

    def test_a_key_that_was_chosen_is_a_value(self):
        compare(lambda d: d.groupby("k")[["k", "x"]].agg("nunique"), lazily(NULLS))
        compare(lambda d: d.groupby("k", sort=True)[["k", "x"]].median(), lazily(NULLS))

    @pytest.mark.parametrize("spec", [{"y": "sum", "x": "max"}, {"y": ["sum"], "x": ["max"]}])
    def test_chosen_columns_in_another_order_have_their_own_values(self, spec):
        def query(d):
            return d.groupby("k")[["x", "y"]].agg(spec)

        got = query(lazily(NULLS)).compute()
        want = query(NULLS)
        assert_same(got[list(want.columns)], want)
        assert_same(got, stock(query, NULLS))

    def test_names_of_chosen_columns_in_another_order(self):
        named = {"b": ("y", "sum"), "a": ("x", "max")}
        compare(lambda d: d.groupby("k")[["x", "y"]].agg(**named), lazily(NULLS))

    def test_two_functions_of_one_name(self):
        both = [partial(np.var, ddof=0), partial(np.var, ddof=1)]
        for query in (
            lambda d: d.groupby("k").agg(both),
            lambda d: d.groupby("k").x.agg(both),
            lambda d: d.groupby("k").agg({"x": [np.std, "std"]}),
        ):
            got, want = query(lazily(NULLS)).compute(), query(NULLS)
            pd.testing.assert_frame_equal(got.sort_index(), want)


@pytest.mark.usefixtures("plugin")
class TestLabels:
    @pytest.mark.parametrize("function", ["sum", "nunique"])
    def test_tuples_of_a_flat_index_stay_flat(self, function):
        frame = NULLS.set_axis(
            pd.Index(["k", ("a", "b"), ("a", "c")], tupleize_cols=False), axis="columns"
        )
        got = compare(lambda d: d.groupby("k").agg(function), lazily(frame))
        assert got.columns.nlevels == 1
        spec = {("a", "b"): "nunique", ("a", "c"): "sum"}
        got = lazily(frame).groupby("k").agg(spec).compute()
        assert got.columns.nlevels == 1
        assert list(got.columns) == list(spec)

    @pytest.mark.parametrize(
        "spec",
        ["nunique", ["nunique", "sum"], {("x", "a"): "nunique"}, {("x", "a"): ["nunique", "max"]}],
        ids=str,
    )
    def test_functions_are_one_more_level_of_several(self, spec):
        columns = pd.MultiIndex.from_tuples([("k", ""), ("x", "a"), ("x", "b")])
        frame = NULLS.set_axis(columns, axis="columns")
        got = compare(lambda d: d.groupby([("k", "")]).agg(spec), lazily(frame))
        nested = "[" in str(spec)
        assert got.columns.nlevels == 2 + nested


def named(name: str, function) -> Any:
    function.__name__ = name
    return function


@pytest.mark.usefixtures("plugin")
class TestFunctions:
    @pytest.mark.parametrize(
        "function",
        [np.median, np.std, np.var, np.nanstd, np.nanmedian, np.nansum, np.mean, np.amax, np.any],
    )
    def test_of_numpy(self, function):
        compare(lambda d: d.groupby("k").x.agg(function), lazily(NULLS))
        compare(lambda d: d.groupby("k").agg([function, "nunique"]), lazily(NULLS))
        compare(lambda d: d.groupby("k").agg(o=("x", function)), lazily(NULLS))

    @pytest.mark.parametrize("function", [pd.Series.quantile, np.quantile, np.nanquantile])
    def test_of_quantiles(self, function):
        spec = {"x": [partial(function, q=0.3), "sum"]}
        compare(lambda d: d.groupby("k").agg(spec), lazily(NULLS))

    def test_of_dask_may_not_take_the_label_of_another(self):
        own = dd.Aggregation("sum", lambda s: s.sum(), lambda s: s.sum())
        with pytest.raises(ValueError, match="conflicting"):
            lazily(NULLS).groupby("k").agg({"x": ["sum", own]})

    def test_len_counts_rows(self):
        compare(lambda d: d.groupby("k").agg({"x": ["count", len]}), lazily(NULLS))

    @pytest.mark.parametrize("spec", [lambda f: f, lambda f: {"x": [f, "sum"]}])
    def test_of_the_users_own_is_refused_as_stock_dask_refuses_it(self, spec):
        own = named("nunique", lambda s: 42)
        with pytest.raises(ValueError, match="unknown aggregate nunique") as failure:
            lazily(NULLS).groupby("k").agg(spec(own))
        assert "of your own" in str(failure.value)

    @pytest.mark.parametrize("spec", [lambda f: f, lambda f: ["median", f]])
    def test_of_the_users_own_runs_as_stock_dask_runs_it(self, spec):
        own = named("sum", lambda s: 42)

        def query(d):
            return d.groupby("k").agg(spec(own))

        with dask.config.set({"gpuagg.fallback": "silent"}):
            assert_same(query(lazily(NULLS)).compute(), stock(query, NULLS))


@pytest.mark.usefixtures("plugin")
class TestArguments:
    @pytest.mark.parametrize("name", ["sum", "prod", "min", "max", "first", "last"])
    def test_min_count(self, name):
        compare(lambda d: d.groupby("k").agg(name, min_count=3), lazily(NULLS))
        compare(lambda d: d.groupby("k").x.agg(name, min_count=2), lazily(NULLS))
        compare(lambda d: d.groupby("k").x.agg(name, min_count=0), lazily(NULLS))

    def test_min_count_of_several(self):
        compare(lambda d: d.groupby("k").agg(["sum", "prod"], min_count=3), lazily(NULLS))
        spec, data, options = ["sum", "max"], lazily(NULLS), {"split_out": 2}
        compare(lambda d, **o: d.groupby("k").agg(spec, min_count=3, **o), data, options=options)

    @pytest.mark.skipif(pd.__version__ < "3", reason="pd.NamedAgg takes no arguments")
    def test_min_count_of_a_named_aggregation(self):
        got = lazily(NULLS).groupby("k").agg(o=pd.NamedAgg("x", "sum", min_count=2)).compute()
        want = NULLS.groupby("k").x.sum(min_count=2).to_frame("o")
        assert_same(got, want)

    @pytest.mark.parametrize("name", ["sum", "min", "mean", "var", "median"])
    def test_skipna(self, name):
        for skipna in (False, True):
            compare(lambda d, s=skipna: d.groupby("k").x.agg(name, skipna=s), lazily(NULLS))

    def test_beside_a_dict_they_are_ignored_as_by_pandas_and_dask(self):
        compare(lambda d: d.groupby("k").agg({"x": "sum"}, min_count=3), lazily(NULLS))
        compare(lambda d: d.groupby("k").agg({"x": ["nunique", "var"]}, ddof=0), lazily(NULLS))

    def test_numeric_only(self):
        frame = NULLS.assign(s=list("abcdef"), t=pd.Timestamp(0))
        compare(lambda d: d.groupby("k").agg("mean", numeric_only=True), lazily(frame))


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("spec", [[], {}, {"x": []}], ids=str)
@pytest.mark.parametrize("npartitions", [1, 3])
def test_no_aggregation_gives_the_groups(spec, npartitions):
    got = compare(
        lambda d: d.groupby("k").agg(spec), dd.from_pandas(NULLS, npartitions=npartitions)
    )
    assert got.columns.nlevels == NULLS.groupby("k").agg(spec).columns.nlevels
    ddf = lazily(NULLS)
    got = ddf.groupby(ddf.k > 1).x.agg([]).compute()
    assert_same(got, NULLS.groupby(NULLS.k > 1).x.agg([]))


def test_a_specification_that_fails_has_the_error_of_stock_dask():
    with dask_gpuagg.enabled(), pytest.raises(TypeError, match="Must provide 'func'"):
        lazily(NULLS).groupby("k").agg()


class TestReadFunction:
    def test_arguments_of_the_user_come_before_what_a_function_means(self):
        assert read_function(partial(np.std, ddof=1)) == ("std", (("ddof", 1),), None)
        function = WithArguments("quantile", (("q", 0.1),))
        assert read_function(function) == ("quantile", (("q", 0.1),), None)

    @pytest.mark.parametrize(
        ("function", "reason"),
        [
            *((f, "not supported in") for f in (lambda v: v.sum(), np.ptp, set, np.percentile)),
            (partial(np.var, 0), "positional"),
            (None, "not an aggregation"),
        ],
    )
    def test_what_stands_for_no_aggregation_is_refused(self, function, reason):
        with pytest.raises(Unsupported, match=reason):
            read_function(function)

    def test_labels_are_those_of_pandas(self):
        functions = [np.nansum, len, "max", partial(np.var, ddof=0), np.min, sum, pd.Series.mean]
        labels = pd.DataFrame({"k": [1], "v": [1.0]}).groupby("k").v.agg(functions).columns
        assert [label_of(f) for f in functions] == list(labels)
