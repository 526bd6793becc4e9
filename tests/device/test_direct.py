"""Keys from a narrow range: slots by distance, and keys outside of what the sample saw."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.device.test_kernels import (
    WANTED,
    aggregated,
    assert_equal,
    by_pandas,
    check,
    frame_of,
    in_sample,
)

ROWS = 2_000_000
SUM = {"f": ["sum"]}


def fitting(groups: int) -> int:
    """As large a share of this device's shared memory as so many groups are of an H200's."""
    from dask_gpuagg.cuda.runtime.driver import current_device

    return groups * current_device().shared_bytes // 232_448


@pytest.mark.parametrize("wanted", [SUM, {"i": ["sum", "min", "max", "count", "mean"]}])
@pytest.mark.parametrize("groups", [5, 3_000, 25_000, 200_000, 1_500_000])
@pytest.mark.parametrize("least", [0, -1_000_000, 2**62, -(2**63) + 100])
def test_windows_anywhere(least: int, groups: int, wanted: dict[str, list[str]]) -> None:
    rng = np.random.default_rng(groups)
    frame = frame_of(rng.integers(0, fitting(groups), ROWS) + least)
    run = check(frame, ["k"], wanted, "direct")
    assert run.decision.kernel == "direct"
    assert run.spilled == 0


@pytest.mark.parametrize("groups", [25_000, 200_000])
def test_few_keys_outside(groups: int) -> None:
    rng = np.random.default_rng(groups)
    keys = rng.integers(0, groups, ROWS)
    keys[rng.choice(ROWS, 500, replace=False)] = rng.integers(-(2**63), 2**63 - 1, 500)
    keys[np.flatnonzero(~in_sample(ROWS))[:10]] = 10**12
    frame = frame_of(keys)
    run = check(frame, ["k"], WANTED, "auto")
    bounds = run.decision.estimate.bounds
    if bounds[0] >= 0 and bounds[1] < groups:
        check(frame, ["k"], WANTED, "direct")


def test_rows_outside_are_grouped() -> None:
    """The sample's segments lie at fixed places: between them are keys that it cannot know."""
    rows = 1 << 21
    rng = np.random.default_rng(3)
    keys = rng.integers(0, 20_000, rows)
    between = ~in_sample(rows)
    strays = np.flatnonzero(between)[::97]
    keys[strays] = 10**9 + np.arange(len(strays)) % 1_000
    frame = frame_of(keys)
    run = check(frame, ["k"], SUM, "direct")
    assert run.decision.kernel == "direct"
    assert run.spilled == len(strays)
    assert run.groups == 21_000


def test_too_many_rows_outside_go_another_way() -> None:
    rows = 1 << 21
    rng = np.random.default_rng(4)
    keys = rng.integers(0, 20_000, rows)
    between = ~in_sample(rows)
    keys[between] = rng.integers(10**9, 2 * 10**9, between.sum())
    frame = frame_of(keys)
    for kernel in ("auto", "direct"):
        run = check(frame, ["k"], SUM, kernel)
        assert run.decision.kernel != "direct"


WIDE = [1e-300, -1e-300, 1e300, -1e300, 5e-324, np.inf, -np.inf]
# values whose extremes are easily missed
FLOATS: dict[str, Callable[[np.random.Generator], Any]] = {
    "both signs": lambda rng: rng.normal(0, 1e3, ROWS),
    "rising": lambda _: np.arange(ROWS) / 7,
    "falling": lambda _: -np.arange(ROWS) / 7,
    "constant": lambda _: np.full(ROWS, 0.1),
    "zeros": lambda rng: rng.choice([0.0, -0.0], ROWS),
    "near": lambda rng: 1.0 + rng.integers(0, 2**12, ROWS) * 2.0**-52,
    "wide": lambda rng: rng.choice(WIDE, ROWS),
    "mostly NaN": lambda rng: np.where(rng.random(ROWS) < 0.999, np.nan, rng.random(ROWS)),
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", FLOATS)
def test_extremes(kind: str, masked: bool) -> None:
    rng = np.random.default_rng(11)
    v = pd.Series(FLOATS[kind](rng))
    if masked:
        v = v.astype("Float64").mask(rng.random(ROWS) < 0.3)
    w = pd.Series(rng.normal(0, 1, ROWS))
    # means of infinities are no numbers, and pandas counts NaN as missing
    frame = pd.DataFrame({"k": rng.integers(0, fitting(5_000), ROWS), "v": v, "w": w})
    wanted = {"v": ["min", "max", "size"], "w": ["mean", "sum"]}
    ours, run = aggregated(frame, ["k"], wanted, "direct")
    assert run.decision.kernel == "direct"
    assert run.decision.in_shared
    theirs = by_pandas(frame, ["k"], wanted)
    assert_equal(ours, theirs)
    for label in ("v.min", "v.max"):
        # values may be nearer to each other than ``assert_equal`` looks
        ordered = [f[label].to_numpy(float, na_value=np.nan) for f in (ours, theirs)]
        np.testing.assert_array_equal(*ordered)


@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "Int16", "Int32"])
def test_types_and_nulls(dtype: str, keep_nulls: bool) -> None:
    rng = np.random.default_rng(5)
    info = np.iinfo(dtype.lower())
    span = min(int(info.max) - int(info.min), 9_000)
    keys = pd.Series(rng.integers(0, span, ROWS) + (info.min if span < 9_000 else 0), dtype=dtype)
    if dtype[0] == "I":
        keys = keys.mask(rng.random(ROWS) < 0.1)
    frame = frame_of(keys)
    run = check(frame, ["k"], SUM, "direct", keep_nulls)
    assert run.decision.kernel == "direct"
