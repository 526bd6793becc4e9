"""Sums that are the same to the last bit on the device and on the host."""

import math
from collections.abc import Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_gpuagg import last_runs
from dask_gpuagg.cuda.choice.choose import KERNELS
from dask_gpuagg.reporting.runs import forget
from tests.device.frames import on_device
from tests.device.test_library import broken

__all__ = ["broken"]

ROWS = 60_000
ASKED = {
    "x": ["sum", "mean", "max"], "f": ["sum", "mean"], "i": ["mean", "sum"], "u": ["mean"],
    "b": ["mean"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def deterministic(raising: None) -> Iterator[None]:
    forget()
    with dask.config.set({"gpuagg.deterministic": True}):
        yield


def frame(groups: int = 100, rows: int = ROWS) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    x = rng.normal(size=rows) * 10.0 ** rng.integers(-3, 4, rows)
    return pd.DataFrame(
        {
            "k": rng.integers(0, groups, rows) * 2**33,
            "x": x,
            "f": x.astype("float32"),
            "i": rng.integers(-(2**62), 2**62, rows),
            "u": rng.integers(0, 2**64 - 1, rows, dtype=np.uint64),
            "b": rng.random(rows) < 0.3,
        }
    )


def bits(result: Any) -> pd.DataFrame:
    """A result by key, on the host, in one form."""
    made = result.compute()
    made = made.to_pandas() if hasattr(made, "to_pandas") else made
    return made.sort_index().astype(dict.fromkeys(made.columns, "float64"))


def by_host(rows: pd.DataFrame, asked: Any = ASKED, **flags: Any) -> pd.DataFrame:
    made = bits(dd.from_pandas(rows, npartitions=3).groupby("k", **flags).agg(asked))
    want = rows.groupby("k", **flags)["x"].apply(lambda v: math.fsum(v.dropna()))
    assert made["x"]["sum"].tolist() == want.tolist()
    return made


@pytest.mark.parametrize("groups", [100, 20_000])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_gives_the_bits_of_the_host(kernel: str, groups: int) -> None:
    rows = frame(groups)
    asked = {"x": ["sum", "mean", "max"], "f": ["sum"]}
    with dask.config.set({"gpuagg.kernel": kernel}):
        ours = bits(on_device(rows, 1).groupby("k").agg(asked))
    pd.testing.assert_frame_equal(ours, by_host(rows, asked), check_exact=True)


@pytest.mark.parametrize("npartitions", [1, 2, 13])
@pytest.mark.parametrize("flags", [{}, {"split_out": 3}, {"split_every": 2}])
def test_partitions_and_order_do_not_matter(npartitions: int, flags: dict[str, int]) -> None:
    rows = frame()
    mixed = rows.sample(frac=1, random_state=npartitions)
    ours = bits(on_device(mixed, npartitions).groupby("k").agg(ASKED, **flags))
    pd.testing.assert_frame_equal(ours, by_host(rows), check_exact=True)


@pytest.mark.parametrize("npartitions", [1, 5])
@pytest.mark.parametrize("spread", [40, 300])
def test_values_of_any_size(spread: int, npartitions: int) -> None:
    """More bins than a slot has."""
    rng = np.random.default_rng(spread)
    rows = frame()
    rows["x"] = rng.normal(size=ROWS) * 10.0 ** rng.integers(-spread, spread, ROWS)
    rows.loc[::7, "x"] *= 1e-24
    pd.testing.assert_frame_equal(
        bits(on_device(rows, npartitions).groupby("k").agg(ASKED)), by_host(rows), check_exact=True
    )


def test_subnormal_and_largest_values() -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(0, 2**53, ROWS, dtype=np.uint64).view(np.float64) * rng.choice([-1, 1], ROWS)
    x[::50] = 1e308 * rng.choice([-1, 1], len(x[::50]))
    rows = frame(20).assign(x=x)
    asked = {"x": ["sum", "mean"]}
    made = bits(on_device(rows, 5).groupby("k").agg(asked))
    by_hand = dd.from_pandas(rows, npartitions=2).groupby("k").agg(asked)
    pd.testing.assert_frame_equal(made, bits(by_hand), check_exact=True)


def test_infinities_nan_and_nulls() -> None:
    import cudf

    x = [1.5, np.inf, np.inf, -np.inf, -np.inf, np.nan, 1.0, None, None, -0.0]
    keys = [0, 0, 1, 1, 2, 3, 3, 4, 0, 5]
    rows = cudf.DataFrame({"k": keys, "x": cudf.Series(x, nan_as_null=False)})
    made = on_device(rows, 3).groupby("k").x.agg(["sum", "mean"]).compute()
    for name in ("sum", "mean"):
        values = made[name].sort_index().to_arrow().to_pylist()
        assert values[:1] == [math.inf]
        assert math.isnan(values[1])
        assert values[2] == -math.inf
        assert math.isnan(values[3])
        assert values[4:] == [None, 0.0]
        assert math.copysign(1, values[5]) == 1


def test_nulls_are_left_out() -> None:
    rows = frame()
    rows.loc[np.random.default_rng(1).random(ROWS) < 0.2, "x"] = np.nan
    rows.loc[rows["k"] == 0, "x"] = np.nan
    asked = {"x": ["sum", "mean"]}
    ours = bits(on_device(rows, 5).groupby("k").agg(asked))
    theirs = by_host(rows, asked)
    # cuDF's sum of no values is null
    assert math.isnan(ours["x"]["sum"][0])
    assert theirs["x"]["sum"][0] == 0
    pd.testing.assert_frame_equal(ours[1:], theirs[1:], check_exact=True)


@pytest.mark.parametrize("npartitions", [1, 4])
@pytest.mark.parametrize("spread", [0, 200])
def test_libcudf_gives_the_same(spread: int, npartitions: int, broken: Any) -> None:
    rows = frame()
    rows["x"] *= 10.0 ** np.random.default_rng(2).integers(-spread, spread + 1, ROWS)
    broken()
    ours = bits(on_device(rows, npartitions).groupby("k").agg(ASKED))
    assert any(run.decision.kernel == "libcudf" for run in last_runs())
    pd.testing.assert_frame_equal(ours, by_host(rows), check_exact=True)


@pytest.mark.parametrize("spread", [0, 200])
def test_streamed_through_the_device(spread: int) -> None:
    rows = frame()
    rows["x"] *= 10.0 ** np.random.default_rng(2).integers(-spread, spread + 1, ROWS)
    rows.loc[::11, "x"] = np.nan
    with dask.config.set({"gpuagg.engine": "device"}):
        ours = bits(dd.from_pandas(rows, npartitions=4).groupby("k").agg(ASKED))
    assert any(run.decision.kernel not in ("host", "libcudf") for run in last_runs())
    pd.testing.assert_frame_equal(ours, by_host(rows), check_exact=True)


def test_partitions_of_other_dtypes() -> None:
    import cudf

    rows = frame(10, 4000).assign(x=lambda d: d["x"].round())
    meta = cudf.DataFrame(rows[:0][["k", "x"]])

    def part(i: int) -> Any:
        made = cudf.DataFrame(rows[["k", "x"]].iloc[1000 * i : 1000 * (i + 1)])
        return made.astype({"x": "int64"}) if i % 2 else made

    collection = dd.from_map(part, range(4), meta=meta)
    ours = bits(collection.groupby("k").agg({"x": ["sum", "mean"]}))
    theirs = by_host(rows, {"x": ["sum", "mean"]})
    pd.testing.assert_frame_equal(ours, theirs, check_exact=True)
