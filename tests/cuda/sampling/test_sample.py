"""Groups from a sample, and keys counted by their hashes."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dask_gpuagg.cuda.choice.choose import decide
from dask_gpuagg.cuda.choice.summary import ANY_WORD, KeySummary, estimate_groups
from dask_gpuagg.cuda.query.tuning import HOT_ROWS, HOT_TOLD
from dask_gpuagg.cuda.sampling import sample
from dask_gpuagg.cuda.sampling.sample import REGISTERS, distinct_keys, ranged_keys_of
from tests.cuda.choice.test_choose import H200, counts_of
from tests.cuda.choice.test_tables import SUM, dense

ROWS = 10**8
SEGMENT = 256
HALF = 1 << 63


def ranks_of(hashes: np.ndarray) -> np.ndarray:
    """Registers of hashes, as kernels/estimate/count.cuh makes them."""
    registers = np.zeros(REGISTERS, dtype=np.uint32)
    bits = REGISTERS.bit_length() - 1
    high = (hashes >> np.uint64(bits)).astype(np.float64)
    ranks = 64 - bits - np.floor(np.log2(np.maximum(high, 1))).astype(np.uint32)
    np.maximum.at(registers, (hashes & np.uint64(REGISTERS - 1)).astype(np.int64), ranks)
    return registers


@pytest.mark.parametrize("keys", [0, 1, 1_000, 20_000, 1_000_000])
def test_keys_are_counted(keys: int) -> None:
    hashes = np.random.default_rng(1).integers(0, 2**64, keys, dtype=np.uint64)
    # five standard errors
    assert distinct_keys(ranks_of(hashes)) == pytest.approx(keys, rel=5 * 1.04 / REGISTERS**0.5)


def zipf(exponent: float, rows: int, keys: int, rng: np.random.Generator) -> np.ndarray:
    u = rng.random(rows)
    if exponent == 1.0:
        return np.exp(u * np.log(keys)).astype(np.int64)
    power = 1 - exponent
    return ((u * (keys**power - 1) + 1) ** (1 / power)).astype(np.int64)


def sampled(keys: np.ndarray) -> KeySummary:
    """What the kernels of the sample tell of these keys, 256 to a segment."""
    segments = keys.reshape(-1, SEGMENT)
    seen = np.concatenate([np.unique(s) for s in segments])
    words, in_segments = np.unique(seen, return_counts=True)
    rows = np.unique(keys, return_counts=True)[1]
    hot = [
        (int(w), int(n), int(s))
        for w, n, s in zip(words, rows, in_segments, strict=True)
        if n >= HOT_ROWS and s >= 4
    ]
    numbers = counts_of(
        rows=keys.size,
        distinct=words.size,
        once=int((in_segments == 1).sum()),
        twice=int((in_segments == 2).sum()),
        most=int(rows.max()),
        repeats=int((segments[:, 1:] == segments[:, :-1]).sum()),
        segment_keys=seen.size,
        pairs=int((in_segments * (in_segments - 1)).sum()),
    )
    return estimate_groups(ROWS, numbers, lambda: hot[:HOT_TOLD])


@pytest.mark.parametrize("groups", [10, 1_000, 30_000, 1_000_000, 16_000_000])
def test_even_keys(groups: int) -> None:
    made = sampled(np.random.default_rng(2).integers(0, groups, 65_536))
    assert not made.skewed
    assert made.groups == pytest.approx(groups, rel=0.3)


@pytest.mark.parametrize("exponent", [0.5, 0.75, 1.0, 1.25, 1.5])
def test_skewed_keys(exponent: float) -> None:
    """Zipf's law over 16 million keys: the sample sees that it misses most of them."""
    made = sampled(zipf(exponent, 65_536, 2**24, np.random.default_rng(3)))
    assert made.skewed
    shares = [share for _, share in made.hot]
    assert shares == sorted(shares, reverse=True)
    # the rows left to the partitions are far more even than all of them
    assert made.collision_probability < 2e-4


def test_runs_of_equal_keys_are_not_hot() -> None:
    runs = np.random.default_rng(4).integers(0, 2**40, (256, 2))
    made = sampled(np.repeat(runs, SEGMENT // 2, axis=1).ravel())
    assert made.hot == ()
    assert made.collision_probability < 1e-4


@pytest.mark.parametrize("least", [0, 400, 9_000])
def test_partials_have_at_least_the_groups_of_the_largest(
    least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tables of groups in one order: segments of a sample have the same keys."""
    monkeypatch.setattr(sample.tables, "shared_capacity", lambda query, device: 1_000)
    found = KeySummary(500, 600, 0.0, 0.1, skewed=True, hot=((7, 0.2),), bounds=(3, 9))
    taken: Any = SimpleNamespace(estimate=lambda: found)
    call: Any = SimpleNamespace(least=least, query=None, device=None, rows=10_000)
    made = sample.estimated(call, "lphga", taken)
    if least <= 500:
        assert made is found
    else:
        assert (made.groups, made.most, made.skewed, made.hot) == (9_000, 9_000, False, ())
        assert made.bounds == (3, 9)


def test_there_are_no_more_groups_than_words_between_those_seen() -> None:
    """Of rows in the order of a key column hardly any key is seen twice."""
    seen = {"rows": 65_536, "distinct": 60_000, "once": 55_000, "twice": 5_000, "most": 3}

    def between(least: int, greatest: int) -> KeySummary:
        ends = {"least": least + HALF, "greatest": HALF - 1 - greatest}
        return estimate_groups(ROWS, counts_of(**seen, **ends))

    wide = between(0, 2**60)
    assert wide.groups > 350_000
    near = between(-10_000, 63_000)
    # a 192nd beyond both ends, and some
    assert near.groups == near.most == 73_001 + 2 * (73_001 // 192 + 16)
    assert estimate_groups(ROWS, counts_of(**seen)) == replace(wide, bounds=ANY_WORD)
    few = near.within(70_000)
    assert (few.groups, few.most) == (70_000, 70_000)
    assert near.within(10**9) == near


def test_keys_that_are_all_null() -> None:
    empty = {"least": 2**64 - 1, "greatest": 2**64 - 1}
    counts = counts_of(rows=65_536, distinct=1, most=65_536, repeats=63_000, **empty)
    assert counts.bounds == (2**63 - 1, -(2**63))
    made = estimate_groups(ROWS, counts)
    assert made.groups == made.most == 1


# ---- numbers of steps ---------------------------------------------------------------------------

MANY_ROWS = 50_000_000
STEP = 10**9
SPREAD = KeySummary(20_000, 20_000, 0.0, 1e-4, bounds=(0, 19_999 * STEP))


def numbered(estimate: KeySummary, rows: int = MANY_ROWS, kernel: str = "auto") -> Any:
    call: Any = SimpleNamespace(query=SUM, rows=rows, key_labels=())
    keys = np.arange(0, estimate.groups, 7) * STEP
    sample: Any = SimpleNamespace(some_words=lambda: keys)
    return ranged_keys_of(call, sample, decide(SUM, rows, estimate, H200, kernel))


def test_keys_in_steps_get_slots() -> None:
    made = numbered(SPREAD)
    assert made.step == STEP * 7
    assert made.query.form.has_steps
    assert numbered(SPREAD, kernel="hgb").step == STEP * 7


@pytest.mark.parametrize(
    ("estimate", "rows", "kernel"),
    [
        (dense(20_000), MANY_ROWS, "auto"),
        (SPREAD, MANY_ROWS // 100, "auto"),
        (replace(SPREAD, skewed=True), MANY_ROWS, "auto"),
        (replace(SPREAD, groups=500, most=500), MANY_ROWS, "auto"),
        (SPREAD, MANY_ROWS, "sgb"),
    ],
)
def test_keys_that_have_slots_or_gain_nothing_by_them(
    estimate: KeySummary, rows: int, kernel: str
) -> None:
    assert numbered(estimate, rows, kernel) is None
