"""Keys that lie whole steps apart: numbered by them, and taken as they are where one does not."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.device.frames import on_device
from tests.device.test_kernels import aggregated, assert_equal, by_pandas, check, frame_of
from tests.device.test_pieces import check_pieces, frames

ROWS = 2_000_000
DAY = 86_400 * 10**9
STEPS = [2, 1_000, 2**20, 3 * 2**32, DAY]
FIVE = {"i": ["sum", "count", "min", "max"], "f": ["mean"]}
SUM = {"f": ["sum"]}


@pytest.fixture(autouse=True)
def _of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from dask_gpuagg.cuda.keys import ranges

    monkeypatch.setattr(ranges, "STEPPED_ROWS", 0)


def drawn(groups: int, step: int, first: int = 0, seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(0, groups, ROWS) * step + first


@pytest.mark.parametrize("wanted", [SUM, FIVE], ids=["sum", "five"])
@pytest.mark.parametrize("groups", [3_000, 12_000, 90_000, 600_000])
@pytest.mark.parametrize("step", STEPS)
def test_steps(step: int, groups: int, wanted: dict[str, list[str]]) -> None:
    groups = min(groups, 2**62 // step)
    frame = frame_of(drawn(groups, step, -(groups // 2) * step + 7))
    run = check(frame, ["k"], wanted)
    if step > 2:  # a range of twice the groups may have slots as it is
        assert f"keys lie {step:,} apart" in run.decision.why


@pytest.mark.parametrize("keep_nulls", [False, True])
def test_nulls(keep_nulls: bool) -> None:
    keys = pd.Series(drawn(20_000, 10**6, -(10**9))).astype("Int64")
    # no more than rows of other keys: a frequent one has no part in this
    frame = frame_of(keys.mask(np.random.default_rng(3).random(ROWS) < 1e-4))
    for _ in range(2):  # the second time as for rows before
        run = check(frame, ["k"], FIVE, keep_nulls=keep_nulls)
        assert "keys lie 1,000,000 apart" in run.decision.why
    assert "as for rows before" in run.decision.why


@pytest.mark.parametrize("other", [5_000_001, -1, -(2**63), 2**63 - 1, 4_999_999_999])
@pytest.mark.parametrize("when", ["first", "later"])
def test_a_key_between_the_steps_or_beyond_them(when: str, other: int) -> None:
    """One row that no sample sees: its group is there, and later calls take keys as they are."""
    frame = frame_of(drawn(20_000, 1_000_000))
    if when == "later":
        assert "apart" in aggregated(frame, ["k"], SUM)[1].decision.why
    unlike = frame.copy()
    unlike.loc[ROWS // 3 + 17, "k"] = other
    for _ in range(2):
        ours, run = aggregated(unlike, ["k"], SUM)
        assert_equal(ours, by_pandas(unlike, ["k"], SUM))
        assert other in ours.index
        assert "apart" not in run.decision.why
    check(frame, ["k"], SUM)


def test_partitions_whose_keys_move_on() -> None:
    """Each has other days than the one before, and some the same."""
    for i, first in enumerate([0, 0, 10, 5_000, 5_050, -300]):
        frame = frame_of(drawn(3_000, DAY, first * DAY, seed=i), i)
        check(frame, ["k"], FIVE)


def test_days() -> None:
    """Datetimes in nanoseconds, as a frame with its index."""
    days = pd.Timestamp("2000-01-01") + pd.to_timedelta(np.arange(9_000), unit="D")
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"day": days[rng.integers(0, 9_000, ROWS)], "v": rng.random(ROWS)})
    frame["day"] = frame["day"].astype("datetime64[ns]")
    with dask_gpuagg.enabled():
        lazy = on_device(frame, 1)
        found = lazy.groupby("day").v.agg(["sum", "max"]).compute()
    assert "apart" in dask_gpuagg.last_runs()[-1].decision.why
    wanted = frame.groupby("day").v.agg(["sum", "max"])
    pd.testing.assert_frame_equal(found.to_pandas().sort_index(), wanted, check_freq=False)


@pytest.mark.parametrize("nulls", [False, True])
def test_columns_in_pieces(nulls: bool) -> None:
    parts = frames(lambda rng, n: {"k": rng.integers(0, 30_000, n) * 2**40 - 2**50}, nulls)
    for _ in range(2):
        assert "apart" in check_pieces(parts, "auto", False).decision.why
