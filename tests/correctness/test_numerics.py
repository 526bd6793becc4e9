"""Where floating-point and fixed-width arithmetic go wrong if done naively."""

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.comparison import compare
from tests.data import partitioned

pytestmark = pytest.mark.usefixtures("plugin", "synchronous")

PARTITIONS = [1, 7]
SPREADS = ["var", "std", "sem"]
_rng = np.random.default_rng(5)


def grouped(values: Any, groups: int = 4, **columns: Any) -> pd.DataFrame:
    n = len(values)
    return pd.DataFrame({"k": np.arange(n) % groups, "x": values, **columns})


def agg(name: str) -> Any:
    return lambda f: f.groupby("k").agg({"x": name})


@pytest.mark.parametrize("npartitions", PARTITIONS)
@pytest.mark.parametrize("name", SPREADS)
@pytest.mark.parametrize("mean", [1e3, 1e9, -1e12])
def test_spread_around_a_large_mean(mean: float, name: str, npartitions: int):
    data = grouped(mean + _rng.normal(size=200))
    # the condition number is |mean| / std: no algorithm in float64 keeps more (Chan et al. 1983)
    compare(agg(name), partitioned(data, npartitions), rtol=1e-12 + 4e-16 * abs(mean))


@pytest.mark.parametrize("mean", [1.0, 1e3, 1e5])
@pytest.mark.parametrize("name", SPREADS)
def test_spread_of_float32(name: str, mean: float):
    data = grouped((mean + _rng.normal(size=200)).astype("float32"))

    def exact(f: pd.DataFrame) -> pd.DataFrame:
        # pandas works in float32 and loses digits that float64 keeps
        return agg(name)(f.astype({"x": "float64"}))

    compare(agg(name), partitioned(data, 7), reference=exact, dtypes=False, rtol=1e-6)


@pytest.mark.parametrize("name", SPREADS)
@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "Int8", "int16[pyarrow]"])
def test_spread_of_narrow_integers(dtype: str, name: str):
    limit = np.iinfo(dtype.removesuffix("[pyarrow]").lower()).max
    data = grouped(_rng.integers(limit // 2, limit, 200, endpoint=True))
    compare(agg(name), partitioned(data.astype({"x": dtype}), 7))


@pytest.mark.parametrize(("npartitions", "split_every"), [(1, 8), (7, 2)])
@pytest.mark.parametrize("constant", [0.1, 1 / 3, 1e9 + 0.1, 5.0, 1e-300, -7e22])
def test_spread_of_a_constant_is_zero(constant: float, split_every: int, npartitions: int):
    # groups of unequal sizes, so that means are sums of different numbers of terms
    data = pd.DataFrame({"k": _rng.integers(0, 5, 400) ** 2 % 7, "x": constant})
    spec = {"x": ["var", "std", "sem"]}
    ddf = partitioned(data, npartitions)
    result = ddf.groupby("k").agg(spec, split_every=split_every).compute()
    assert (result == 0.0).all(axis=None), result


@pytest.mark.parametrize("npartitions", PARTITIONS)
@pytest.mark.parametrize("dtype", ["int64", "uint64", "Int64", "int64[pyarrow]"])
def test_mean_near_the_end_of_int64(dtype: str, npartitions: int):
    data = grouped(np.full(80, 2**62)).astype({"x": dtype})
    for query in (agg("mean"), lambda f: f.groupby("k")["x"].mean()):
        result = compare(query, partitioned(data, npartitions), dtypes=False)
        assert np.allclose(result.to_numpy(dtype=float), 2.0**62)


@pytest.mark.parametrize("npartitions", PARTITIONS)
@pytest.mark.parametrize("name", ["sum", "prod"])
@pytest.mark.parametrize("dtype", ["int64", "uint64", "Int64"])
def test_integers_wrap_as_in_pandas(dtype: str, name: str, npartitions: int):
    data = grouped(_rng.integers(2**61, 2**62, 80)).astype({"x": dtype})
    compare(agg(name), partitioned(data, npartitions))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "Int8", "bool"])
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_narrow_integers_do_not_wrap(dtype: str, name: str):
    data = grouped(np.full(80, 1 if dtype == "bool" else 100)).astype({"x": dtype})
    compare(agg(name), partitioned(data, 7))


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "var", "std", "min", "max", "median"])
@pytest.mark.parametrize(
    ("dtype", "npartitions"), [("float64", 1), ("float64", 7), ("float32", 7), ("Float64", 7)]
)
def test_infinities(dtype: str, name: str, npartitions: int):
    inf, nan = np.inf, np.nan
    rows = [
        *[(0, -inf), (0, inf), (0, 1.0)],
        *[(1, inf), (1, inf), (1, 1.0)],
        *[(2, -inf), (2, nan), (2, -inf)],
        *[(3, nan), (3, nan), (3, nan)],
        *[(4, inf), (4, 0.0), (4, nan)],
    ] * 3
    data = pd.DataFrame(rows, columns=["k", "x"]).astype({"x": dtype})
    if dtype == "Float64":
        # a NaN that is no NA: pandas' own masked sums make one of inf - inf; leave it out
        data = data[data["k"].isin([1, 3])]
    compare(agg(name), partitioned(data, npartitions))


@pytest.mark.parametrize("ddof", [0, 1, 2, 5])
@pytest.mark.parametrize("name", ["var", "std"])
def test_ddof(name: str, ddof: int):
    data = pd.DataFrame({"k": [0, 0, 0, 1, 1, 2, 3, 3, 3, 3, 3, 3], "x": np.arange(12.0) ** 2})
    compare(lambda f: getattr(f.groupby("k")["x"], name)(ddof=ddof), partitioned(data, 4))
    function = getattr(np, name)
    result = partitioned(data, 4).groupby("k").agg({"x": partial(function, ddof=ddof)}).compute()
    want = getattr(data.groupby("k")["x"], name)(ddof=ddof)
    pd.testing.assert_series_equal(result["x"].sort_index(), want, check_names=False)


@pytest.mark.parametrize("name", ["cov", "corr"])
@pytest.mark.parametrize("mean", [0.0, 1e3, 1e8])
@pytest.mark.parametrize("npartitions", PARTITIONS)
def test_matrices(npartitions: int, mean: float, name: str):
    n = 120
    x = mean + _rng.normal(size=n)
    data = grouped(x, y=mean - x + _rng.normal(size=n), z=_rng.integers(0, 9, n))
    data.loc[_rng.random(n) < 0.2, "x"] = np.nan
    data.loc[_rng.random(n) < 0.2, "y"] = np.nan

    def reference(f: pd.DataFrame) -> pd.DataFrame:
        # shifting changes neither, and pandas' one-pass algorithm needs it
        return getattr(f.assign(x=f["x"] - mean, y=f["y"] + mean - mean).groupby("k"), name)()

    def query(f: Any) -> Any:
        return getattr(f.groupby("k"), name)()

    compare(query, partitioned(data, npartitions), reference=reference, rtol=1e-6, atol=1e-6)
