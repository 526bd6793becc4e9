"""Tasks of one plan on columns of several kinds."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.comparison import same
from tests.device.frames import on_device

SPEC = {"v": ["sum", "count", "min", "max"], "w": ["mean", "var"], "x": ["sum"]}
ROWS = 300_000


def rows_of(seed: int, nulls: str = "", key: str = "int64") -> Any:
    """A frame of cuDF with nulls in some columns; every seventh key that is a float is NaN."""
    import cudf

    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "k": rng.integers(0, 500, ROWS).astype(key),
            "v": rng.normal(size=ROWS),
            # sums of these are exact, which cuDF adds up in float32
            "w": (rng.integers(-40, 40, ROWS) / 8).astype("float32"),
            "x": rng.integers(-9, 9, ROWS),
        }
    )
    if key != "int64":
        frame.loc[::7, "k"] = np.nan
    made = cudf.from_pandas(frame, nan_as_null=False)
    for name in nulls:
        kept = cudf.Series(rng.random(ROWS) < 0.7)
        made[name] = made[name].where(kept, None)
    return made


def planned(frame: Any, spec: Any, **how: Any) -> Any:
    """A function from a frame to its result, all by one plan."""

    from dask_gpuagg import enabled
    from dask_gpuagg.engines.device.engine import shape_of
    from dask_gpuagg.frontend import logical
    from dask_gpuagg.tasks.tasks import gpuagg_direct

    with enabled():
        lazy = on_device(frame.head(10), 1)
        read = logical.read(lazy.groupby("k", sort=False, **how).agg(spec).expr)
    assert read is not None
    shape = shape_of(read.meta)
    return lambda frame: gpuagg_direct(frame, None, "k", plan=read.plan, shape=shape)


def assert_like_stock(found: Any, frame: Any, spec: Any, **how: Any) -> None:
    wanted = frame.groupby("k", sort=True, **how).agg(spec)
    assert type(found) is type(wanted)
    assert found.index.name == "k"
    assert list(found.columns) == list(wanted.columns)
    assert list(found.columns.names) == list(wanted.columns.names)
    loosely: Any = {"check_dtype": False, "check_column_type": False, "rtol": 1e-4, "atol": 1e-5}
    same(found.to_pandas(), wanted.to_pandas(), **loosely)


def test_nulls_that_come_and_go() -> None:
    run = planned(rows_of(0), SPEC)
    for nulls in ("", "v", "", "kvx", "v", ""):
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
    found = planned(frame, {"x": ["sum"]}, dropna=dropna)(frame)
    assert len(found) == 500 + (not dropna)
    assert found.index.isna().sum() == (not dropna)
    assert_like_stock(found, frame.nans_to_nulls(), {"x": ["sum"]}, dropna=dropna)


def test_results_have_labels_and_values_of_their_own() -> None:
    frame = rows_of(3)
    run = planned(frame, SPEC)
    first = run(frame)
    before, labels = first.to_pandas(), list(first.columns)
    second = run(frame)
    second.columns = [f"c{i}" for i in range(second.shape[1])]
    second["c0"] = 0
    second["c1"] += 1
    third = run(frame)
    assert list(third.columns) == labels
    pd.testing.assert_frame_equal(first.to_pandas(), before)
    assert_like_stock(third, frame, SPEC)


def test_labels_of_one_level() -> None:
    frame = rows_of(4)
    assert_like_stock(planned(frame, "sum")(frame), frame, "sum")
    two = frame[["k", "v"]]
    assert_like_stock(planned(two, {"v": "max"})(two), two, {"v": "max"})


def test_a_frame_as_promised_needs_no_series(monkeypatch: pytest.MonkeyPatch) -> None:
    from dask_gpuagg.tasks import tasks

    spec = {"v": ["sum", "count"], "x": ["median", "nunique"]}
    frame = rows_of(5, "v")
    runs = [planned(frame, each) for each in ({"v": spec["v"]}, {"x": spec["x"]})]

    def refused(*_: Any) -> None:
        raise AssertionError("the columns are as the plan has them")

    monkeypatch.setattr(tasks, "inputs_of", refused)
    for run, name in zip(runs, "vx", strict=True):
        assert_like_stock(run(frame), frame, {name: spec[name]})


def test_a_frame_unlike_its_promise_gets_its_columns_converted() -> None:
    """An integer where a float was promised, and keys that are a level of the index."""
    spec = {"v": ["sum"]}
    frame = rows_of(6)
    run = planned(frame, spec)
    other = frame.assign(v=frame["x"])
    assert_like_stock(run(other), other.astype({"v": "float64"}), spec)
    assert_like_stock(run(frame.set_index("k")), frame, spec)


def test_a_frame_for_which_memory_lacks_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from dask_gpuagg.engines.device import engine

    once = iter([True])
    whole = engine.direct_of_columns

    def scarce(*given: Any) -> Any:
        if next(once, False):
            raise MemoryError("std::bad_alloc")
        return whole(*given)

    monkeypatch.setattr(engine, "direct_of_columns", scarce)
    frame = rows_of(7)
    assert_like_stock(planned(frame, {"v": ["sum"]})(frame), frame, {"v": ["sum"]})
    assert not list(once)


def test_results_have_the_fields_that_cudf_gives_a_frame() -> None:
    import cudf

    from dask_gpuagg.engines.device.columns import column_at

    frame = rows_of(8)
    found = [planned(frame, {"v": ["sum"]})(frame), column_at(frame, "v")]
    for made, own in zip(found, (cudf.DataFrame({"a": [1]}), cudf.Series([1])), strict=True):
        assert vars(made).keys() == vars(own).keys()
        assert made.flags.allows_duplicate_labels
        made.attrs["unit"] = "m"
    assert found[0].attrs is not found[1].attrs
    copied = found[0].copy()
    assert copied.attrs == {"unit": "m"}
    assert len(copied.reset_index()) == 500
