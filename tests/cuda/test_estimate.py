"""Groups from a sample, and keys counted by their hashes."""

from __future__ import annotations

import numpy as np
import pytest

from dask_gpuagg.cuda.cardinality import HOT_ROWS, Estimate, estimate_groups
from dask_gpuagg.cuda.estimate import HOT_TOLD, REGISTERS, distinct_keys

ROWS = 10**8
SEGMENT = 256


def ranks_of(keys: int, rng: np.random.Generator) -> list[int]:
    """Registers of so many random hashes, as kernels/estimate/count.cuh makes them."""
    registers = np.zeros(REGISTERS, dtype=np.int64)
    hashes = rng.integers(0, 2**64, keys, dtype=np.uint64)
    high = (hashes >> np.uint64(12)).astype(np.float64)
    ranks = 52 - np.floor(np.log2(np.maximum(high, 1))).astype(np.int64)
    np.maximum.at(registers, (hashes & np.uint64(REGISTERS - 1)).astype(np.int64), ranks)
    return [int(r) for r in registers]


@pytest.mark.parametrize("keys", [0, 1, 1_000, 20_000, 1_000_000, 8_000_000])
def test_keys_are_counted(keys: int) -> None:
    # five standard errors
    assert distinct_keys(ranks_of(keys, np.random.default_rng(1))) == pytest.approx(
        keys, rel=5 * 1.04 / REGISTERS**0.5
    )


def sampled(keys: np.ndarray) -> Estimate:
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
    return estimate_groups(
        ROWS,
        keys.size,
        words.size,
        int((in_segments == 1).sum()),
        int((in_segments == 2).sum()),
        int(rows.max()),
        int((segments[:, 1:] == segments[:, :-1]).sum()),
        seen.size,
        int((in_segments * (in_segments - 1)).sum()),
        lambda: hot[:HOT_TOLD],
    )


@pytest.mark.parametrize("groups", [10, 1_000, 30_000, 1_000_000, 16_000_000])
def test_even_keys(groups: int) -> None:
    made = sampled(np.random.default_rng(2).integers(0, groups, 65_536))
    assert not made.uneven
    assert made.groups == pytest.approx(groups, rel=0.3)


@pytest.mark.parametrize("exponent", [0.5, 0.75, 1.0, 1.25, 1.5])
def test_uneven_keys(exponent: float) -> None:
    """Zipf's law over 16 million keys: the sample sees that it misses most of them."""
    u, n = np.random.default_rng(3).random(65_536), 2**24
    if exponent == 1.0:
        ranks = np.exp(u * np.log(n))
    else:
        ranks = (u * (n ** (1 - exponent) - 1) + 1) ** (1 / (1 - exponent))
    made = sampled(ranks.astype(np.int64))
    assert made.uneven
    shares = [share for _, share in made.hot]
    assert shares == sorted(shares, reverse=True)
    # the rows left to the partitions are far more even than all of them
    assert made.alike < 2e-4


def test_runs_of_equal_keys_are_not_hot() -> None:
    runs = np.random.default_rng(4).integers(0, 2**40, (256, 2))
    made = sampled(np.repeat(runs, SEGMENT // 2, axis=1).ravel())
    assert made.hot == ()
    assert made.alike < 1e-4
