"""Results of dask-cudf with the plugin on, beside the same without it: index, dtypes and values."""

import functools
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.device.frames import on_device

ROWS = 600

# how many keys, of which kinds
KEYS = [
    ["i"], ["t"], ["s"], ["c"], ["i", "t"], ["i", "s"], ["s", "c"], ["t", "c"], ["c", "i"],
    ["i", "t", "s", "c"],
]  # fmt: skip
# whether keys have nulls, and whether these form groups
NULLS = [(False, None), (True, None), (True, True), (True, False)]

EVERY = ["count", "min", "max", "first", "last"]
SPECS: dict[str, Any] = {
    "one": {"x": "sum"},
    "numbers": {"x": ["sum", "mean", "var", "std", *EVERY], "y": ["sum", "mean", *EVERY]},
    "strings": {"z": ["count", "first", "last", "min", "max"]},
    "times": {"d": EVERY},
    "all at once": {"x": ["mean", "std"], "y": ["sum"], "z": ["first"], "d": ["max", "last"]},
}
METHODS = ["sum", "count", "mean", "min", "max", "first", "last", "var", "std"]
NUMERIC = ["sum", "mean", "var", "std"]


@functools.cache
def frame(nulls: bool) -> Any:
    import cudf

    rng = np.random.default_rng(5)
    pdf = pd.DataFrame(
        {
            "i": rng.integers(0, 6, ROWS),
            "t": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 5, ROWS), unit="h"),
            "s": rng.choice(["ada", "bob", "cyd", ""], ROWS),
            "c": pd.Categorical(rng.choice(["u", "v", "w"], ROWS), categories=list("wxvu")),
            "x": rng.normal(0.0, 1.0, ROWS),
            "y": rng.integers(-9, 9, ROWS).astype("int32"),
            "z": rng.choice(["one", "two", "three"], ROWS),
            "d": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 99, ROWS), unit="D"),
        }
    )
    if nulls:
        for name in ("t", "s", "c"):
            pdf.loc[rng.random(ROWS) < 0.2, name] = None
    gdf = cudf.DataFrame(pdf)
    if nulls:
        gdf["i"] = gdf["i"].where(cudf.Series(rng.random(ROWS) < 0.8), None)
    return gdf


def collection(nulls: bool, npartitions: int = 4) -> Any:
    return on_device(frame(nulls), npartitions)


def assert_as_stock(query: Callable[[Any], Any], nulls: bool, npartitions: int = 4) -> None:
    """The same as stock dask-cudf but for values: those of one partition, which no shuffle lost.

    Stock's ``first`` is another row's after its shuffle through the disk.
    """
    with dask.config.set({"scheduler": "synchronous", "gpuagg.fallback": "raise"}):
        try:
            stock = query(collection(nulls)).compute()
            values = query(collection(nulls, 1)).compute()
        except Exception as error:  # whatever it is, there is nothing to be like
            pytest.skip(f"stock dask-cudf: {type(error).__name__}: {error}")
        with dask_gpuagg.enabled():
            lazy = query(collection(nulls, npartitions))
            ours = lazy.compute()
    # a MultiIndex of cuDF has a name beside its levels' names
    assert ours.index.name == lazy._meta.index.name
    assert_like(ours, stock, values)


def assert_like(ours: Any, stock: Any, values: Any = None) -> None:
    import cudf

    assert type(ours) is type(stock)
    assert type(ours.index) is type(stock.index)
    assert list(ours.index.names) == list(stock.index.names)
    if isinstance(stock.index, cudf.MultiIndex):
        assert list(map(str, ours.index.dtypes)) == list(map(str, stock.index.dtypes))
        mine, theirs = ours.index.levels, stock.index.levels
        assert [str(level.dtype) for level in mine] == [str(level.dtype) for level in theirs]
        assert [level.name for level in mine] == [level.name for level in theirs]
    else:
        assert str(ours.index.dtype) == str(stock.index.dtype)
    if stock.ndim == 2:
        assert list(ours.columns) == list(stock.columns)
        assert ours.columns.names == stock.columns.names
        assert list(map(str, ours.dtypes)) == list(map(str, stock.dtypes))
    else:
        assert ours.name == stock.name
        assert str(ours.dtype) == str(stock.dtype)
    right = on_host(stock if values is None else values)
    pd.testing.assert_frame_equal(on_host(ours), right, rtol=1e-6)


def on_host(result: Any) -> pd.DataFrame:
    """Keys and values as columns, in the order of the keys."""
    table = result.rename("value").to_frame() if result.ndim == 1 else result
    table = table.copy(deep=False)
    table.columns = [str(label) for label in table.columns]
    keys = [f"key{i}" for i in range(table.index.nlevels)]
    table.index.names = keys
    pdf = table.reset_index().to_pandas()
    for key in keys:  # nulls are sorted like all others
        pdf[key] = pdf[key].astype("object").map(lambda v: "" if pd.isna(v) else f"={v}")
    return pdf.sort_values(keys, ignore_index=True)


@pytest.mark.parametrize(("nulls", "dropna"), NULLS)
@pytest.mark.parametrize("keys", KEYS, ids="+".join)
@pytest.mark.parametrize(
    ("spec", "npartitions"), [("numbers", 4), ("all at once", 4), ("numbers", 1), ("times", 1)]
)
def test_agg(
    spec: str, npartitions: int, keys: list[str], nulls: bool, dropna: bool | None
) -> None:
    assert_as_stock(lambda d: d.groupby(keys, dropna=dropna).agg(SPECS[spec]), nulls, npartitions)


@pytest.mark.parametrize("split_out", [1, 2])
@pytest.mark.parametrize("spec", ["one", "strings", "times"])
@pytest.mark.parametrize("keys", [["s"], ["t", "s"], ["c"]], ids="+".join)
def test_agg_of_other_forms(keys: list[str], spec: str, split_out: int) -> None:
    assert_as_stock(
        lambda d: d.groupby(keys, dropna=False).agg(SPECS[spec], split_out=split_out), True
    )


@pytest.mark.parametrize(("nulls", "dropna"), NULLS[1:])
@pytest.mark.parametrize("keys", [["t"], ["s", "i"]], ids="+".join)
@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str, keys: list[str], nulls: bool, dropna: bool | None) -> None:
    if dropna is None and name in ("mean", "var", "std"):
        dropna = True  # without it stock keeps the null key in these three
    columns = ["x", "y"] if name in NUMERIC else ["x", "y", "z", "d"]
    columns = [*keys, *columns]
    assert_as_stock(lambda d: getattr(d[columns].groupby(keys, dropna=dropna), name)(), nulls)


@pytest.mark.parametrize("name", ["first", "last", "min", "max"])
@pytest.mark.parametrize("npartitions", [1, 3])
def test_strings_stay_strings(name: str, npartitions: int) -> None:
    import cudf

    gdf = cudf.DataFrame({"k": [1, 1, 2, 2, 3], "v": ["a", "b", None, "c", "d"]})
    for dtype in (gdf.v.dtype, np.dtype("object")):
        typed = gdf.assign(v=gdf.v.astype(dtype))
        with dask.config.set({"scheduler": "synchronous"}):
            grouped = on_device(typed, npartitions).groupby("k")
            theirs = grouped.agg({"v": name}).v.compute()
            with dask_gpuagg.enabled():
                of_method = getattr(grouped.v, name)().compute()
                of_agg = grouped.agg({"v": name}).v.compute()
        assert of_method.dtype == of_agg.dtype == theirs.dtype
        assert on_host(of_agg).equals(on_host(theirs))
