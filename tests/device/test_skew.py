"""Skewed keys: hot ones, rows beside the partitions, nulls that have a slot of their own."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.cuda import aggregate as attempts
from dask_gpuagg.cuda.choice import partitions as partitioning
from dask_gpuagg.cuda.choice.decision import Lphga
from tests.cuda.sampling.test_sample import zipf as ranks
from tests.device.test_kernels import (
    WANTED,
    aggregated,
    assert_equal,
    by_pandas,
    check,
    in_sample,
    unmixed,
    values,
)

ROWS = 4_000_000
WITH_NULLS = WANTED | {"v": ["sum", "count", "min", "max", "mean", "first", "last"]}


def zipf(exponent: float, keys: int, rng: np.random.Generator) -> np.ndarray:
    return ranks(exponent, ROWS, keys, rng) * 0x9E3779B1 % 2**40


def nullable_rows(keys: Any, rng: np.random.Generator) -> pd.DataFrame:
    v = pd.Series(rng.integers(0, 99, ROWS)).astype("Int32").mask(rng.random(ROWS) < 0.3)
    return pd.DataFrame({"k": keys, "v": v}).assign(**values(rng, ROWS))


@pytest.mark.parametrize("kernel", ["auto", "pgb", "pgb_ur", "pgb_fold", "hgb", "lphga"])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.25, 1.5])
def test_zipf(exponent: float, kernel: str) -> None:
    rng = np.random.default_rng(1)
    frame = nullable_rows(zipf(exponent, 2_000_000, rng), rng)
    run = check(frame, ["k"], WITH_NULLS, kernel)
    assert run.groups == frame.k.nunique()
    if kernel in ("auto", "pgb", "pgb_ur", "pgb_fold"):
        assert run.decision.kernel in (["pgb", "pgb_fold"] if kernel == "auto" else [kernel])
        assert len(run.decision.hot) > 0 or exponent == 0.5
        assert run.decision.counted
        assert getattr(run.decision, "has_replicated_slots", False) == (
            run.decision.kernel != "pgb_fold"
        )
        assert not run.restarted
        assert run.decision.estimate is not None
        assert 0.8 < run.decision.estimate.groups / run.groups < 1.3


@pytest.mark.parametrize("wanted", [WITH_NULLS, {"v": ["sum"]}], ids=["many", "one"])
@pytest.mark.parametrize("kernel", ["pgb", "pgb_ur", "pgb_fold"])
@pytest.mark.parametrize("exponent", [0.5, 1.5])
def test_zipf_of_narrow_words(exponent: float, kernel: str, wanted: dict[str, list[str]]) -> None:
    rng = np.random.default_rng(8)
    run = check(nullable_rows(zipf(exponent, 2_000_000, rng) % 2**30, rng), ["k"], wanted, kernel)
    assert run.decision.base is not None
    assert getattr(run.decision, "has_replicated_slots", False) == (kernel != "pgb_fold")


@pytest.mark.parametrize("kernel", ["pgb", "pgb_ur", "pgb_fold"])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_zipf_without_nulls(exponent: float, kernel: str) -> None:
    """Groups go into columns at once, those of hot keys behind the others."""
    rng = np.random.default_rng(10)
    frame = pd.DataFrame({"k": zipf(exponent, 2_000_000, rng)} | values(rng, ROWS))
    run = check(frame, ["k"], WANTED, kernel)
    assert (run.decision.kernel, run.spilled, run.restarted) == (kernel, 0, False)
    assert run.decision.counted
    assert len(run.decision.hot) > 0 or exponent == 0.5


@pytest.mark.parametrize("wanted", [WITH_NULLS, WANTED], ids=["nulls", "no nulls"])
def test_partitions_that_a_count_leaves_too_little_room(
    wanted: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places run out for the last ones, whose rows join the groups made already."""
    enough = partitioning.counted_capacity
    monkeypatch.setattr(partitioning, "counted_capacity", lambda *of: int(0.9 * enough(*of)))
    rng = np.random.default_rng(11)
    frame = nullable_rows(zipf(1.0, 2_000_000, rng), rng)
    run = check(frame, ["k"], wanted, "pgb")
    assert run.decision.hot
    assert 0 < run.spilled < 0.2 * ROWS


@pytest.mark.parametrize("wanted", [WITH_NULLS, WANTED], ids=["nulls", "no nulls"])
def test_the_empty_pattern_beside_hot_keys(wanted: dict[str, list[str]]) -> None:
    rng = np.random.default_rng(12)
    k = zipf(1.0, 2_000_000, rng).astype(np.uint64)
    k[rng.random(ROWS) < 0.001] = unmixed(2**64 - 1)
    frame = nullable_rows(k, rng)
    run = check(frame, ["k"], wanted, "pgb")
    assert run.decision.hot
    assert run.spilled > 0


@pytest.mark.parametrize("wanted", [WITH_NULLS, WANTED], ids=["nulls", "no nulls"])
@pytest.mark.parametrize(("share", "parts"), [(0.013, True), (0.05, False)])
def test_a_frequent_key_in_a_partition_that_is_folded(
    share: float, parts: bool, wanted: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows beyond the places of one turn take several, those of one key another kernel."""
    monkeypatch.setattr(partitioning, "HOT", 1e9)
    monkeypatch.setattr(partitioning, "_LARGEST", 1e9)
    monkeypatch.setattr(partitioning, "_ROOM", 10)
    rng = np.random.default_rng(17)
    k = zipf(0.5, 2_000_000, rng)
    k[rng.random(ROWS) < share] = 2**41
    frame = nullable_rows(k, rng)
    others: list[Any] = []
    lphga = attempts.lphga
    monkeypatch.setitem(attempts._ALGORITHMS, Lphga, lambda *of: others.append(of) or lphga(*of))
    run = check(frame, ["k"], wanted, "pgb_fold")
    assert (run.decision.kernel, run.decision.hot) == ("pgb_fold", ())
    assert share * ROWS + ROWS / run.decision.partitions > 1 << 16
    assert run.spilled == 0
    assert len(others) == (not parts)


@pytest.mark.parametrize("columns", [0, 12])
def test_more_crowded_keys_than_a_block_has_copies_for(columns: int) -> None:
    """Dozens of keys share half of each partition's rows, most of them not told as hot."""
    rng = np.random.default_rng(9)
    few, many = rng.integers(0, 4_000, ROWS), rng.integers(0, 1_500_000, ROWS)
    k = np.where(rng.random(ROWS) < 0.5, few, many) * 0x9E3779B1 % 2**40
    frame = nullable_rows(k, rng)
    # states so wide that a block has copies for one key only
    more = {f"f{i}": frame.f + i for i in range(columns)}
    wanted = WITH_NULLS | {name: ["var"] for name in more}
    frame = frame.assign(**more)
    run = check(frame, ["k"], wanted, "pgb")
    assert run.decision.has_replicated_slots


@pytest.mark.parametrize("share", [0.1, 0.9, 0.999])
@pytest.mark.parametrize("keys", [["k"], ["k", "j"], ["s"]], ids="+".join)
def test_one_hot_key(keys: list[str], share: float) -> None:
    rng = np.random.default_rng(2)
    k = np.where(rng.random(ROWS) < share, 7, rng.integers(0, 300_000, ROWS))
    names = np.array([f"name {i} of some length" for i in range(300_000)], object)
    frame = nullable_rows(k, rng).assign(j=k * 3, s=names[k])
    run = check(frame, keys, WITH_NULLS, "pgb")
    assert len(run.decision.hot) >= 1


@pytest.mark.parametrize("others", [0.0, 0.3])
@pytest.mark.parametrize("kernel", ["pgb", "pgb_ur"])
@pytest.mark.parametrize("group", ["of the hottest key", "of the null key"])
def test_a_group_beside_the_partitions_that_is_all_null(
    group: str, kernel: str, others: float
) -> None:
    """Its nulls are counted, whether other groups have any or not."""
    rng = np.random.default_rng(14)
    k = pd.Series(zipf(1.0, 2_000_000, rng)).astype("Int64")
    mine = k == k.mode()[0]
    if group == "of the null key":
        k = k.mask(mine)
    v = pd.Series(rng.integers(0, 99, ROWS)).astype("Int32").mask(rng.random(ROWS) < others)
    frame = pd.DataFrame({"k": k, "v": v.mask(mine.to_numpy(bool))}).assign(**values(rng, ROWS))
    ours, run = aggregated(frame, ["k"], WITH_NULLS, kernel, keep_nulls=True)
    assert run.decision.hot_buckets > 0
    assert run.spilled == 0
    theirs = by_pandas(frame, ["k"], WITH_NULLS, keep_nulls=True)
    assert ours["v.min"].isna().sum() == theirs["v.min"].isna().sum() > 0
    assert_equal(ours, theirs)


@pytest.mark.parametrize("length", [4, 100])
def test_skewed_keys_in_runs(length: int) -> None:
    """What a few rows side by side tell of partitions is too little, so none are counted."""
    rng = np.random.default_rng(15)
    k = np.repeat(zipf(1.0, 2_000_000, rng)[: ROWS // length], length)
    frame = nullable_rows(k, rng)
    run = check(frame, ["k"], WITH_NULLS, "pgb")
    assert run.decision.partitions > 0
    assert not run.decision.counted


def test_hot_keys_of_two_words_without_nulls() -> None:
    rng = np.random.default_rng(16)
    k = zipf(1.0, 2_000_000, rng)
    frame = pd.DataFrame({"k": k, "j": k * 0x5851F42D4C957F2D} | values(rng, ROWS))
    run = check(frame, ["k", "j"], WANTED, "pgb")
    assert run.decision.hot
    assert run.spilled == 0


@pytest.mark.parametrize("nulls", [0.001, 0.5])
@pytest.mark.parametrize("dtype", ["Int64", "Float64"])
def test_null_keys_of_64_bits(dtype: str, nulls: float) -> None:
    rng = np.random.default_rng(3)
    k = pd.Series(rng.integers(0, 500_000, ROWS)).astype(dtype).mask(rng.random(ROWS) < nulls)
    frame = nullable_rows(k, rng)
    run = check(frame, ["k"], WITH_NULLS, "auto", keep_nulls=True)
    assert run.decision.kernel in ("pgb", "pgb_fold")
    assert run.spilled == 0


def test_the_empty_pattern_among_many_keys() -> None:
    """Its rows are listed, and their group comes behind all others."""
    rng = np.random.default_rng(4)
    k = rng.integers(0, 2**63, 500_000, dtype=np.uint64)[rng.integers(0, 500_000, ROWS)]
    k[rng.random(ROWS) < 0.001] = unmixed(2**64 - 1)
    frame = nullable_rows(k, rng)
    run = check(frame, ["k"], WITH_NULLS)
    assert run.decision.kernel in ("pgb", "pgb_fold")
    assert run.spilled > 0


@pytest.mark.parametrize("start", [0, -300_000, 2**63 - 600_000, -(2**63)])
@pytest.mark.parametrize("outside", [0, 1, 5_000])
def test_narrow_words(start: int, outside: int) -> None:
    """Keys of a narrow range, but for some rows that the sample does not see."""
    rng = np.random.default_rng(6)
    k = rng.integers(0, 500_000, ROWS) + start
    unseen = np.flatnonzero(~in_sample(ROWS))
    k[rng.choice(unseen, outside, replace=False)] = rng.integers(-(2**63), 2**63 - 1, outside)
    frame = nullable_rows(k, rng)
    run = check(frame, ["k"], WITH_NULLS)
    assert run.decision.kernel in ("pgb", "pgb_fold")
    assert run.decision.base is not None
    assert run.spilled == outside


@pytest.mark.parametrize("dtype", ["int32", "uint32", "float32"])
def test_keys_of_32_bits(dtype: str) -> None:
    rng = np.random.default_rng(7)
    k = rng.integers(-(2**31), 2**31, 400_000)[rng.integers(0, 400_000, ROWS)]
    frame = nullable_rows(k.astype(dtype), rng)
    run = check(frame, ["k"], WITH_NULLS)
    assert run.decision.kernel in ("pgb", "pgb_fold")
    assert (run.decision.base, run.spilled) == (0, 0)


@pytest.mark.parametrize("kernel", ["pgb", "pgb_ur", "pgb_fold"])
@pytest.mark.parametrize(("key", "listed"), [(-1, False), (0xE1C88646 - 2**32, True)])
def test_the_narrow_word_of_an_empty_slot(key: int, listed: bool, kernel: str) -> None:
    """One key of 32 bits cannot be in a partition's table."""
    rng = np.random.default_rng(13)
    k = rng.integers(-(2**31), 2**31, 400_000)[rng.integers(0, 400_000, ROWS)]
    # too few to be hot
    mine = rng.random(ROWS) < 2e-5
    k = np.where(k == key, 0, k)
    k[mine] = key
    frame = nullable_rows(k.astype("int32"), rng)
    run = check(frame, ["k"], WITH_NULLS, kernel)
    assert run.decision.kernel == kernel
    assert (run.decision.base, run.decision.hot) == (0, ())
    assert run.spilled == (mine.sum() if listed else 0)


def test_a_group_of_nulls_alone_until_rows_beside_its_partition_join() -> None:
    """Nulls are counted after groups have been folded together."""
    rng = np.random.default_rng(5)
    k = rng.integers(0, 400_000, ROWS)
    k[rng.random(ROWS) < 0.03] = 7
    v = pd.Series(np.where(k == 7, 1, 0)).astype("Int32").mask((k != 7) | (rng.random(ROWS) < 0.5))
    frame = pd.DataFrame({"k": k, "v": v}).assign(**values(rng, ROWS))
    ours, _ = aggregated(frame, ["k"], WITH_NULLS, "pgb")
    assert ours["v.min"].notna().sum() == 1
    assert_equal(ours, by_pandas(frame, ["k"], WITH_NULLS))
