"""Estimates and tables that are too small for the keys: full partitions, full tables, growth."""

import numpy as np
import pandas as pd
import pytest

from tests.device.test_kernels import WANTED, check, in_sample, unmixed, values


@pytest.mark.parametrize("kernel", ["auto", "pgb", "pgb_ur", "sp_ega"])
def test_an_estimate_far_too_low_costs_time_only(kernel: str) -> None:
    """The sampled segments hold one key, all other rows a key each."""
    rows = 4_000_000
    k = np.arange(rows, dtype=np.int64)
    k[in_sample(rows)] = -1
    frame = pd.DataFrame({"k": k} | values(np.random.default_rng(13), rows))
    run = check(frame, ["k"], WANTED, kernel)
    assert run.decision.kernel.startswith("hgb" if kernel == "auto" else kernel)
    assert run.spilled > 0 or run.restarted


@pytest.mark.parametrize("kernel", ["pgb", "pgb_fold"])
def test_tables_of_partitions_far_too_small(kernel: str) -> None:
    """The sampled segments hold 5,000 keys, all other rows a key each."""
    rng = np.random.default_rng(19)
    rows = 2_000_000
    k = np.arange(rows, dtype=np.int64) * 3 + 2**40
    seen = in_sample(rows)
    k[seen] = rng.integers(0, 5_000, seen.sum())
    frame = pd.DataFrame({"k": k} | values(rng, rows))
    run = check(frame, ["k"], WANTED, kernel)
    assert run.decision.kernel == kernel
    assert run.restarted


@pytest.mark.parametrize("cycles", [2, 4, 16])
def test_keys_that_come_in_cycles(cycles: int) -> None:
    """Each month all customers: at equal distances all segments would have the same keys."""
    rows = 4_000_000
    rng = np.random.default_rng(20)
    k = np.tile(rng.permutation(rows // cycles) << 33, cycles)
    run = check(pd.DataFrame({"k": k} | values(rng, rows)), ["k"], WANTED)
    assert rows // cycles < 2 * run.decision.estimate.groups
    assert not run.restarted


def test_a_full_table() -> None:
    """As many keys as slots: every slot is found."""
    rng = np.random.default_rng(17)
    rows = 1_000_000
    frame = pd.DataFrame({"k": rng.permutation(rows) * 3, "s": rng.permutation(rows)})
    frame["s"] = frame["s"].astype(str)
    frame = frame.assign(**values(rng, rows))
    for key in ("k", "s"):
        run = check(frame, [key], WANTED, "sp_ega")
        assert (run.decision.global_slots, run.restarted) == (rows, False)


def test_equal_homes_that_exceed_the_estimate() -> None:
    """The table must grow, and its keys all want one slot of the larger one."""
    rng = np.random.default_rng(18)
    rows = 1 << 20
    clustered = np.array([unmixed((0xABCDEF << 40) | i) for i in range(8_000)], dtype=np.uint64)
    k = rng.choice(clustered, rows)
    sampled = in_sample(rows)
    k[sampled] = rng.choice(clustered[:2_000], sampled.sum())
    frame = pd.DataFrame({"k": k} | values(rng, rows))
    run = check(frame, ["k"], WANTED, "sp_ega")
    assert run.restarted
    assert run.decision.global_slots < 8_000
