"""Partitions whose keys have slots of their own, and columns that partitions write themselves."""

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.cuda.choice import partitions
from tests.device.test_kernels import WANTED, check, frame_of, in_sample

ROWS = 2_000_000
SUM = {"f": ["sum"]}
# no output can be null, so partitions write columns
FIVE = {"i": ["sum", "min", "max", "count", "mean"]}
NULLABLE = WANTED | {"v": ["sum", "min", "first", "last"]}
KERNELS = ("pgb", "pgb_ur", "pgb_fold")


@pytest.mark.parametrize("wanted", [SUM, FIVE, WANTED], ids=["sum", "five", "many"])
@pytest.mark.parametrize("groups", [200, 25_000, 200_000, 1_500_000])
@pytest.mark.parametrize("least", [0, -1_000_000, 2**62])
@pytest.mark.parametrize("kernel", KERNELS)
def test_windows_anywhere(
    kernel: str, least: int, groups: int, wanted: dict[str, list[str]]
) -> None:
    rng = np.random.default_rng(groups)
    frame = frame_of(rng.integers(0, groups, ROWS) + least)
    run = check(frame, ["k"], wanted, kernel)
    assert run.decision.kernel == kernel
    assert run.decision.window > groups


@pytest.mark.parametrize("wanted", [SUM, FIVE, WANTED], ids=["sum", "five", "many"])
@pytest.mark.parametrize("groups", [2, 200, 25_000, 200_000, 1_500_000])
@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_far_apart_are_hashed(kernel: str, groups: int, wanted: dict[str, list[str]]) -> None:
    rng = np.random.default_rng(groups)
    keys = rng.integers(-(2**62), 2**62, groups)[rng.integers(0, groups, ROWS)]
    frame = frame_of(keys)
    run = check(frame, ["k"], wanted, kernel)
    assert not getattr(run.decision, "window", 0)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("step", [1, 66, 528])
def test_keys_at_a_distance(step: int, kernel: str) -> None:
    """Two of three keys: by remainder alone they would meet in some of the partitions."""
    rng = np.random.default_rng(step)
    keys = rng.integers(0, 400_000, ROWS)
    keys = keys // (2 * step) * 3 * step + keys % (2 * step)
    frame = frame_of(keys)
    run = check(frame, ["k"], FIVE, kernel)
    assert run.decision.window > 500_000
    assert run.spilled == 0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", ["sorted", "distinct", "backwards"])
def test_orders(shape: str, kernel: str) -> None:
    rng = np.random.default_rng(5)
    keys = np.sort(rng.integers(0, 700_000, ROWS))
    if shape == "distinct":
        keys = rng.permutation(ROWS)
    elif shape == "backwards":
        keys = keys[::-1].copy()
    frame = frame_of(keys)
    check(frame, ["k"], FIVE, kernel)


@pytest.mark.parametrize("kernel", KERNELS)
def test_states_that_take_several_turns(kernel: str) -> None:
    """A slot of so many bytes that the keys of a partition exceed shared memory."""
    rng = np.random.default_rng(6)
    rows, columns = 3_000_000, 12
    frame = pd.DataFrame({"k": rng.integers(0, 2_400_000, rows)})
    wanted = {}
    for i in range(columns):
        frame[f"v{i}"] = rng.integers(0, 1_000, rows)
        wanted[f"v{i}"] = ["sum", "min", "max", "count", "var"]
    run = check(frame, ["k"], wanted, kernel)
    assert run.decision.window > 0
    if kernel != "pgb_fold":
        assert run.decision.slices > 1


@pytest.mark.parametrize("spread", [1, 2**33], ids=["slots", "hashed"])
@pytest.mark.parametrize("wanted", [SUM, FIVE, NULLABLE], ids=["sum", "five", "nulls"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_partition_that_overflows(kernel: str, wanted: dict[str, list[str]], spread: int) -> None:
    """Groups in columns are final, so they are made again where rows were left over."""
    rng = np.random.default_rng(15)
    keys = rng.integers(0, 400_000, ROWS)
    # the sample does not see the hot key
    keys[~in_sample(ROWS) & (rng.random(ROWS) < 0.03)] = 7
    frame = frame_of(keys * spread)
    nullable = pd.Series(rng.integers(0, 99, ROWS)).astype("Int32")
    frame["v"] = nullable.mask(rng.random(ROWS) < 0.1)
    run = check(frame, ["k"], wanted, kernel)
    assert (run.decision.window > 0) == (spread == 1)
    assert run.spilled > 0


@pytest.mark.parametrize("spread", [1, 2**33], ids=["slots", "hashed"])
@pytest.mark.parametrize("wanted", [SUM, FIVE, WANTED], ids=["sum", "five", "many"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_more_groups_than_there_is_room_for(
    kernel: str, wanted: dict[str, list[str]], spread: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "_room", lambda groups, rows: 10_000)
    rng = np.random.default_rng(16)
    frame = frame_of(rng.integers(0, 200_000, ROWS) * spread)
    run = check(frame, ["k"], wanted, kernel)
    assert run.decision.kernel == kernel
    assert (run.decision.window > 0) == (spread == 1)
    assert run.restarted


@pytest.mark.parametrize("kernel", ["pgb", "pgb_fold"])
def test_keys_outside_of_the_window(kernel: str) -> None:
    rng = np.random.default_rng(17)
    rows = 1 << 21
    keys = rng.integers(0, 300_000, rows)
    strays = np.flatnonzero(~in_sample(rows))[::97]
    keys[strays] = rng.integers(-(2**63), 2**63 - 1, len(strays))
    frame = frame_of(keys)
    run = check(frame, ["k"], FIVE, kernel)
    assert run.decision.window > 0
    assert run.spilled >= len(strays) - 10


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", ["int32", "uint64", "datetime64[ns]"])
def test_keys_of_other_types(dtype: str, kernel: str) -> None:
    rng = np.random.default_rng(18)
    frame = frame_of(rng.integers(0, 300_000, ROWS).astype(dtype))
    run = check(frame, ["k"], FIVE, kernel)
    assert run.decision.window > 0
