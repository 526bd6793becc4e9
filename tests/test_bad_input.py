"""Bad input gets the error that pandas or Dask gives, as early as they give it."""

import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.comparison import equal

pytestmark = pytest.mark.usefixtures("raising")


def frame() -> pd.DataFrame:
    return pd.DataFrame({"k": [1, 2] * 4, "v": np.arange(8.0), "s": list("abcdabcd")})


@pytest.fixture(scope="module")
def ddf():
    return dd.from_pandas(frame(), npartitions=2)


def error_of(make: Callable[[], Any]) -> Exception:
    """The error that building a query raises; building, not computing."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what is asked
        make()
    return caught.value


# built with the plugin and without, and in pandas where it can be written there
CASES = {
    "unknown key": lambda d: d.groupby("missing").v.sum(),
    "unknown key of several": lambda d: d.groupby(["k", "missing"]).v.sum(),
    "unknown column": lambda d: d.groupby("k").missing.sum(),
    "unknown columns": lambda d: d.groupby("k")[["v", "missing"]].sum(),
    "unknown column in .agg": lambda d: d.groupby("k").agg({"missing": "sum"}),
    "unknown column of a named one": lambda d: d.groupby("k").agg(a=("missing", "sum")),
    "mean of strings": lambda d: d.groupby("k").agg({"s": "mean"}),
    "mean method of strings": lambda d: d.groupby("k").s.mean(),
    "level": lambda d: d.groupby(level="missing").v.sum(),
    "nothing to aggregate": lambda d: d.groupby("k").agg(),
    **{
        f"unknown aggregation in {spec}": lambda d, spec=spec: d.groupby("k").agg(spec)
        for spec in ("no_such", ["sum", "no_such"], {"v": "no_such"}, {"v": ["no_such"]})
    },
}


@pytest.mark.parametrize("name", CASES)
def test_the_type_of_error_is_stock_dasks_at_construction(ddf, name):
    with_plugin = error_of(lambda: CASES[name](ddf))
    dask_gpuagg.disable()
    stock = error_of(lambda: CASES[name](ddf))
    assert type(with_plugin) is type(stock), repr(with_plugin)
    assert ("missing" in str(with_plugin)) is ("missing" in str(stock))
    assert "aggregation" not in name or "no_such" in str(with_plugin)


@pytest.mark.parametrize(
    "spec",
    [{"missing": "nunique"}, {"missing": ["sum", "sem"]}, {"v": "sum", "missing": "idxmax"}],
    ids=str,
)
def test_an_unknown_column_of_an_extended_spec_is_a_key_error_that_names_it(ddf, spec):
    error = error_of(lambda: ddf.groupby("k").agg(spec))
    assert isinstance(error, KeyError)
    assert "missing" in str(error)


def test_the_error_of_an_unknown_aggregation_says_why_we_cannot_either(ddf):
    error = error_of(lambda: ddf.groupby("k").agg({"v": "no_such"}))
    reason = "the aggregation 'no_such' is not supported in .agg"
    assert str(error) == f"unknown aggregate no_such: {reason}"


class TestDdof:
    """Answers of stock Dask are given, here or there; the rest is refused before it runs."""

    @pytest.mark.parametrize("ddof", [2**70, 10**400, "1", None], ids=lambda d: repr(d)[:5])
    def test_a_matrix_as_stock_dask_has_it(self, ddf, ddof):
        with dask.config.set({"gpuagg.enabled": False}):
            stock = ddf.groupby("k")[["v"]].cov(ddof=ddof).compute()
        query = ddf.groupby("k")[["v"]].cov(ddof=ddof)
        with dask.config.set({"gpuagg.fallback": "silent"}):
            pd.testing.assert_frame_equal(query.compute(), stock)
        (reason,) = dask_gpuagg.why_not(query)
        assert reason.reason == "ddof must be a 64-bit number"

    @pytest.mark.parametrize("ddof", [True, 1.0, np.float32(1), np.int8(1), np.bool_(True), 1.5])
    def test_numbers_of_other_types(self, ddf, ddof):
        got = ddf.groupby("k").v.var(ddof=ddof).compute()
        with dask.config.set({"gpuagg.enabled": False}):
            stock = ddf.groupby("k").v.var(ddof=ddof if ddof == 1.5 else 1).compute()
        pd.testing.assert_series_equal(got, stock)

    @pytest.mark.parametrize("ddof", [2**70, 10**400, "1", [1]], ids=lambda d: repr(d)[:5])
    def test_an_error_before_planning_where_stock_dask_has_none_either(self, ddf, ddof):
        spec = {"v": ["nunique", partial(np.var, ddof=ddof)]}
        error = error_of(lambda: ddf.groupby("k").agg(spec))
        assert isinstance(error, (OverflowError, TypeError))  # pandas' own


class TestUnalignedKeys:
    def test_another_partitioning_at_construction(self, ddf):
        other = dd.from_pandas(frame().k, npartitions=3)
        with pytest.raises(NotImplementedError):
            ddf.groupby(other).v.sum()

    def test_another_index_inside_the_partitions(self, ddf):
        keys = ddf.k.map_partitions(lambda k: k.iloc[::-1].reset_index(drop=True), meta=ddf.k._meta)
        query = ddf.groupby(keys).v.sum()
        with pytest.raises(ValueError, match="unaligned"):
            query.compute()


def fail_on_zero(values):
    if (values == 0).any():
        raise ArithmeticError("a value is zero")
    return values.sum()


class TestUserFunctions:
    """An error of the user's function arrives as it is, with its own lines in the traceback."""

    def check(self, query, kind: type[Exception], words: str, function: str) -> None:
        with pytest.raises(kind, match=words) as caught:
            query.compute()
        names = [f.name for f in traceback.extract_tb(caught.value.__traceback__)]
        assert function in names
        assert __file__ in [f.filename for f in traceback.extract_tb(caught.value.__traceback__)]

    def aggregation(self, **kwargs) -> dd.Aggregation:
        good = {"chunk": lambda s: s.sum(), "agg": lambda s: s.sum()}
        return dd.Aggregation("mine", **(good | kwargs))

    def test_in_the_chunk(self, ddf):
        failing = self.aggregation(chunk=lambda grouped: grouped.apply(fail_on_zero))
        query = ddf.groupby("k").agg({"v": failing})
        self.check(query, ArithmeticError, "a value is zero", "fail_on_zero")

    def test_before_the_group_by(self, ddf):
        query = ddf.map_partitions(fail_in_partition, meta=frame().iloc[:0]).groupby("k").v.sum()
        self.check(query, LookupError, "not this partition", "fail_in_partition")

    def test_in_the_source_that_is_sampled(self):
        query = dd.from_map(fail_to_load, range(40), meta=frame().iloc[:0]).groupby("k").v.sum()
        self.check(query, LookupError, "cannot load", "fail_to_load")


def fail_in_partition(part: pd.DataFrame) -> pd.DataFrame:
    raise LookupError("not this partition")


def fail_to_load(i: int) -> pd.DataFrame:
    if i == 20:
        raise LookupError("cannot load")
    return frame()


class TestDtypesThatDiffer:
    """A partition that is not what the metadata promises is aggregated as it is."""

    @pytest.mark.parametrize(
        ("column", "dtype"),
        [("v", "int64"), ("v", "float32"), ("v", "Float64"), ("k", "float64"), ("k", "str")],
    )
    def test_columns_and_keys(self, column, dtype):
        def load(i: int) -> pd.DataFrame:
            part = frame()
            return part.astype({column: dtype}) if i == 1 else part

        ddf = dd.from_map(load, range(3), meta=frame().iloc[:0])
        got = ddf.groupby("k").agg({"v": ["sum", "std"]}).compute()
        parts = pd.concat(map(load, range(3)))
        if dtype == "str":  # text and numbers are different keys
            parts["k"] = pd.concat([load(i).k.astype(object) for i in range(3)])
        expected = parts.groupby("k", sort=False).agg({"v": ["sum", "std"]})
        equal(got.loc[expected.index], expected, check_index_type=False, check_dtype=False)

    def test_a_missing_column(self):
        parts = [frame(), frame().drop(columns="v"), frame()]
        ddf = dd.from_map(lambda part: part, parts, meta=frame().iloc[:0])
        with pytest.raises(KeyError, match="v"):
            ddf.groupby("k").v.sum().compute()


@pytest.mark.parametrize("split_every", [1, 0, -1])
def test_a_split_every_that_cannot_reduce(ddf, split_every):
    with pytest.raises(ValueError, match="split_every"):
        ddf.groupby("k").v.sum(split_every=split_every).compute()
