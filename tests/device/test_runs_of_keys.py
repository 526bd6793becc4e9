"""Ascending keys, whose runs are reduced without a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.device.test_kernels import (
    WANTED,
    aggregated,
    assert_equal,
    by_pandas,
)

ROWS = 300_000


def run_frame(keys: Any) -> pd.DataFrame:
    rows = len(keys)
    rng = np.random.default_rng(rows)
    return pd.DataFrame(
        {
            "k": keys,
            "i": rng.integers(-(2**40), 2**40, rows),
            "f": rng.normal(1.0, 1.0, rows),
            "n": pd.Series(rng.integers(0, 9, rows)).astype("Int32").mask(rng.random(rows) < 0.5),
        }
    )


@pytest.mark.parametrize("groups", [20_000, 300_000, 1_900_000])
def test_ascending_keys_need_no_table(groups: int) -> None:
    rng = np.random.default_rng(groups)
    frame = run_frame(np.sort(rng.integers(-groups // 2, groups // 2, 2_000_000)))
    ours, run = aggregated(frame, ["k"], WANTED)
    assert run.decision.kernel == "sgb"
    assert_equal(ours, by_pandas(frame, ["k"], WANTED))


@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("dtype", ["Int32", "float32"])
def test_ascending_keys_with_nulls_last(dtype: str, keep_nulls: bool) -> None:
    rng = np.random.default_rng(4)
    k = pd.Series(np.sort(rng.integers(-100_000, 100_000, 1_000_000))).astype(dtype)
    k[950_000:] = None
    frame = run_frame(k)
    ours, run = aggregated(frame, ["k"], WANTED, keep_nulls=keep_nulls)
    assert run.decision.kernel == "sgb"
    assert_equal(ours, by_pandas(frame, ["k"], WANTED, keep_nulls))


def test_ascending_columns() -> None:
    rng = np.random.default_rng(5)
    frame = run_frame(rng.integers(-500, 500, 1_000_000).astype("int16"))
    frame["j"] = rng.integers(-300, 300, 1_000_000).astype("int32")
    frame = frame.sort_values(["k", "j"], ignore_index=True)
    ours, run = aggregated(frame, ["k", "j"], WANTED)
    assert run.decision.kernel == "sgb"
    assert_equal(ours, by_pandas(frame, ["k", "j"], WANTED))


def test_keys_that_ascend_in_the_sample_only() -> None:
    rows = 2_000_000
    k = np.arange(rows) // 3
    k[1_000] = 7
    k[1_500_000:] -= 400_000
    frame = run_frame(k)
    ours, run = aggregated(frame, ["k"], WANTED)
    assert run.decision.kernel != "sgb"
    assert_equal(ours, by_pandas(frame, ["k"], WANTED))


@pytest.mark.parametrize("rows", [1, 32, 2_047, 2_048, 2_049, 70_000])
@pytest.mark.parametrize("run", [1, 3, 64, 5_000])
def test_runs_across_steps_and_warps(run: int, rows: int) -> None:
    frame = run_frame(np.arange(rows) // run)
    ours, made = aggregated(frame, ["k"], WANTED, "sgb")
    assert made.decision.kernel == "sgb"
    assert_equal(ours, by_pandas(frame, ["k"], WANTED))


def test_rows_that_do_not_ascend_go_another_way() -> None:
    rng = np.random.default_rng(6)
    frame = run_frame(rng.integers(-(2**40), 2**40, 50_000)[rng.integers(0, 50_000, ROWS)])
    ours, run = aggregated(frame, ["k"], WANTED, "sgb")
    assert run.decision.kernel == "lphga"
    assert_equal(ours, by_pandas(frame, ["k"], WANTED))
