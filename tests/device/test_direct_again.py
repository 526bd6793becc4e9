"""Tasks of one plan on columns of several kinds: what is remembered of a plan is of one kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

SPEC = {"v": ["sum", "count", "min", "max", "first"], "w": ["mean", "var"], "x": ["sum", "any"]}
ROWS = 300_000


def rows_of(seed: int, nulls: str = "", key: str = "int64") -> Any:
    """A frame of cuDF with nulls in some columns."""
    import cudf

    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "k": rng.integers(0, 500, ROWS).astype(key),
            "v": rng.normal(size=ROWS),
            "w": rng.normal(size=ROWS).astype("float32"),
            "x": rng.integers(-9, 9, ROWS),
        }
    )
    made = cudf.from_pandas(frame)
    for name in nulls:
        kept = cudf.Series(rng.random(ROWS) < 0.7)
        made[name] = made[name].where(kept, None)
    return made


def planned(frame: Any, spec: Any, **how: Any) -> Any:
    """A function from a frame to its result, all by one plan."""
    import dask_cudf

    from dask_gpuagg import enabled
    from dask_gpuagg.engines.device.engine import shape_of
    from dask_gpuagg.frontend import logical
    from dask_gpuagg.tasks.tasks import gpuagg_direct

    with enabled():
        lazy = dask_cudf.from_cudf(frame.head(10), npartitions=1)
        read = logical.read(lazy.groupby("k", sort=False, **how).agg(spec).expr)
    assert read is not None
    shape = shape_of(read.meta)
    return lambda frame: gpuagg_direct(frame, "k", plan=read.plan, shape=shape)


def assert_like_stock(found: Any, frame: Any, spec: Any, **how: Any) -> None:
    wanted = frame.groupby("k", sort=True, **how).agg(spec)
    assert type(found) is type(wanted)
    assert found.index.name == "k"
    if found.ndim == 2:
        assert found.columns.equals(wanted.columns)
        assert list(found.columns.names) == list(wanted.columns.names)
    pd_found, pd_wanted = found.sort_index().to_pandas(), wanted.to_pandas()
    compare = pd.testing.assert_frame_equal if found.ndim == 2 else pd.testing.assert_series_equal
    compare(pd_found, pd_wanted, check_dtype=False, rtol=1e-4)


def test_nulls_that_come_and_go() -> None:
    run = planned(rows_of(0), SPEC)
    for nulls in ("", "v", "", "vw", "k", "kvwx", "v", ""):
        frame = rows_of(len(nulls) + 1, nulls)
        assert_like_stock(run(frame), frame, SPEC)


def test_columns_that_become_the_same() -> None:
    """Two columns of one memory are one input, and then are two again."""
    import cudf

    spec = {"v": ["sum"], "x": ["sum"]}
    frame = rows_of(1)
    frame["x"] = frame["v"] + 1
    run = planned(frame, spec)
    assert_like_stock(run(frame), frame, spec)
    column = frame["v"]._column
    shared = cudf.DataFrame._from_data({"k": frame["k"]._column, "v": column, "x": column})
    assert_like_stock(run(shared), shared, spec)
    assert_like_stock(run(frame), frame, spec)


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize("key", ["float32", "float64"])
def test_keys_that_are_nan(key: str, dropna: bool) -> None:
    """They are null, and one group where these are kept."""
    frame = rows_of(2, key=key)
    frame.loc[::7, "k"] = np.nan
    found = planned(frame, {"x": ["sum"]}, dropna=dropna)(frame)
    assert len(found) == 500 + (not dropna)
    assert found.index.isna().sum() == (not dropna)
    assert_like_stock(found, frame.nans_to_nulls(), {"x": ["sum"]}, dropna=dropna)


def test_results_can_be_written_to() -> None:
    """A column is no view of another one, nor of anything that is kept."""
    frame = rows_of(3)
    run = planned(frame, SPEC)
    first = run(frame)
    before = first.copy(deep=True)
    second = run(frame)
    second[("v", "count")] = 0
    second[("v", "sum")] += 1
    assert first.sort_index().equals(before.sort_index())
    assert second.sort_index()[("v", "max")].equals(before.sort_index()[("v", "max")])
    third = run(frame)
    assert third.columns.equals(before.columns)
    third.columns = [f"c{i}" for i in range(third.shape[1])]
    assert run(frame).columns.equals(before.columns)


def test_labels_of_one_level_and_a_series() -> None:
    frame = rows_of(4)
    assert_like_stock(planned(frame, "sum")(frame), frame, "sum")
    series = planned(frame[["k", "v"]], {"v": "max"})(frame[["k", "v"]])
    assert_like_stock(series, frame[["k", "v"]], {"v": "max"})
