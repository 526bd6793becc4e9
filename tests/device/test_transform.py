"""``transform`` by the name of an aggregation, of dask-cudf collections: a lookup by a join."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.frontend.ordered import GroupByLookup
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy
from tests.comparison import equal
from tests.device.frames import on_device

pytestmark = [
    pytest.mark.usefixtures("raising"),
    pytest.mark.filterwarnings("ignore:(?s).*`meta` is not specified"),
]

ROWS = 1_200


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    is_null = rng.random(ROWS) < 0.1
    data = pd.DataFrame(
        {
            "k": rng.integers(-9, 9, ROWS),
            "f": pd.Series(rng.integers(0, 5, ROWS) / 4).mask(is_null),
            "n": pd.Series(rng.integers(0, 5, ROWS), dtype="Int64").mask(is_null),
            "s": pd.Series(rng.choice(list("abc"), ROWS)).mask(is_null),
            "x": pd.Series(rng.random(ROWS)).mask(rng.random(ROWS) < 0.1),
            "i": (1 << 60) + rng.integers(0, 9, ROWS),
            "t": pd.Timestamp("2026-01-01") + pd.to_timedelta(np.arange(ROWS), unit="min"),
        }
    )
    return data.set_index(np.arange(ROWS) * 3)


def compare(query: Callable[[Any], Any]) -> None:
    """Compare rows in their order, labels and divisions with pandas and the input."""
    want, gpu = query(frame()), on_device(frame(), 4)
    lazy = query(gpu)
    assert isinstance(lazy.expr, GroupByLookup)
    assert lazy.divisions == gpu.divisions
    got = lazy.compute()
    equal(got.to_pandas(), want, check_dtype=False)


NAMES = ["sum", "mean", "count", "min", "max", "first", "last", "var", "std", "nunique", "median"]


@pytest.mark.parametrize("name", [*NAMES, "size"])
def test_every_name(name: str) -> None:
    compare(lambda d: d.groupby("k").x.transform(name))


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("by", ["f", "n", "s", ["k", "s"], ["f", "n"]])
def test_keys_that_may_be_null(by: Any, dropna: bool) -> None:
    compare(lambda d: d.groupby(by, dropna=dropna).x.transform("mean"))


def test_several_columns() -> None:
    compare(lambda d: d.groupby(["k", "s"])[["x", "f"]].transform("max"))


def test_integers_stay_exact_beside_nulls() -> None:
    data = frame()
    got = on_device(data, 4).groupby("n").i.transform("max").compute()
    want = data.astype({"i": "Int64"}).groupby("n").i.transform("max")
    assert got.to_pandas(nullable=True).tolist() == want.tolist()


def test_a_key_that_is_an_expression() -> None:
    compare(lambda d: d.groupby(d.k % 3).x.transform("sum"))


def test_no_row_has_a_key() -> None:
    data = frame().assign(n=pd.Series([None] * ROWS, dtype="Int64", index=frame().index))
    got = on_device(data, 4).groupby("n").x.transform("sum").compute()
    assert len(got) == ROWS
    assert bool(got.isna().all())


def test_bins_of_time_are_refused() -> None:
    with pytest.raises(UnsupportedGroupBy, match="pandas DataFrame"):
        on_device(frame(), 4).groupby(pd.Grouper(key="t", freq="D")).x.sum()
