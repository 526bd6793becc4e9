"""Ascending keys, whose runs are reduced without a table."""

import numpy as np
import pandas as pd
import pytest

from tests.device.test_kernels import WANTED, check, frame_of

ROWS = 300_000


@pytest.mark.parametrize("groups", [20_000, 300_000, 1_900_000])
def test_ascending_keys_need_no_table(groups: int) -> None:
    rng = np.random.default_rng(groups)
    frame = frame_of(np.sort(rng.integers(-groups // 2, groups // 2, 2_000_000)))
    run = check(frame, ["k"], WANTED)
    assert run.decision.kernel == "sgb"


@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("dtype", ["Int32", "float32"])
def test_ascending_keys_with_nulls_last(dtype: str, keep_nulls: bool) -> None:
    rng = np.random.default_rng(4)
    k = pd.Series(np.sort(rng.integers(-100_000, 100_000, 1_000_000))).astype(dtype)
    k[950_000:] = None
    frame = frame_of(k)
    run = check(frame, ["k"], WANTED, keep_nulls=keep_nulls)
    assert run.decision.kernel == "sgb"


def test_ascending_columns() -> None:
    rng = np.random.default_rng(5)
    frame = frame_of(rng.integers(-500, 500, 1_000_000).astype("int16"))
    frame["j"] = rng.integers(-300, 300, 1_000_000).astype("int32")
    frame = frame.sort_values(["k", "j"], ignore_index=True)
    run = check(frame, ["k", "j"], WANTED)
    assert run.decision.kernel == "sgb"


def test_keys_that_ascend_in_the_sample_only() -> None:
    rows = 2_000_000
    k = np.arange(rows) // 3
    k[1_000] = 7
    k[1_500_000:] -= 400_000
    frame = frame_of(k)
    run = check(frame, ["k"], WANTED)
    assert run.decision.kernel != "sgb"


@pytest.mark.parametrize("rows", [1, 32, 2_047, 2_048, 2_049, 70_000])
@pytest.mark.parametrize("run", [1, 3, 64, 5_000])
def test_runs_across_steps_and_warps(run: int, rows: int) -> None:
    frame = frame_of(np.arange(rows) // run)
    made = check(frame, ["k"], WANTED, "sgb")
    assert made.decision.kernel == "sgb"


def test_rows_that_do_not_ascend_go_another_way() -> None:
    rng = np.random.default_rng(6)
    frame = frame_of(rng.integers(-(2**40), 2**40, 50_000)[rng.integers(0, 50_000, ROWS)])
    run = check(frame, ["k"], WANTED, "sgb")
    assert run.decision.kernel == "lphga"
