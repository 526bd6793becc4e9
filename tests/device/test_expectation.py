"""Decisions for rows before, launched without waiting for the sample of these."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.device.test_kernels import check, in_sample

ROWS = 2_000_000
FIVE = {"v": ["sum", "count", "min", "max"], "w": ["mean"]}
SUM = {"v": ["sum"]}
TOLD = "as for rows before"


def frame_of(keys: Any, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = len(keys)
    return pd.DataFrame(
        {"k": keys, "v": rng.random(rows), "w": pd.Series(rng.random(rows)).astype("Float32")}
    )


def drawn(groups: int, seed: int, rows: int = ROWS, spread: bool = False) -> Any:
    """Even keys, those that are spread over all 64 bits the same for every seed."""
    keys = np.random.default_rng(seed).integers(0, groups, rows)
    if spread:
        return np.random.default_rng(7).integers(-(2**63), 2**63 - 1, groups)[keys]
    return keys


def grouped(keys: Any, wanted: dict[str, list[str]], kernel: str, seed: int = 1) -> Any:
    return check(frame_of(keys, seed), ["k"], wanted, kernel)


CASES = [
    ("direct", 100, False, SUM),
    ("direct", 100, False, FIVE),
    ("direct", 200_000, False, SUM),
    ("hgb", 100, True, FIVE),
    ("hgb", 5_000, True, SUM),
    ("pgb", 100_000, True, FIVE),
    ("pgb", 100_000, False, FIVE),
    ("pgb_ur", 100_000, True, FIVE),
    ("pgb_fold", 400_000, True, FIVE),
    ("pgb_fold", 400_000, False, FIVE),
]


@pytest.mark.parametrize(("kernel", "groups", "spread", "wanted"), CASES)
def test_rows_alike_are_grouped_as_rows_before(
    kernel: str, groups: int, spread: bool, wanted: dict[str, list[str]]
) -> None:
    first = grouped(drawn(groups, 1, spread=spread), wanted, kernel)
    assert TOLD not in first.decision.why
    assert first.decision.kernel == kernel
    again = grouped(drawn(groups, 2, ROWS - 1_000, spread), wanted, kernel, 2)
    assert again.decision.why == f"{first.decision.why}; {TOLD}"
    assert again.decision.estimate == first.decision.estimate
    assert again.rows == ROWS - 1_000


def test_runs_alike_are_grouped_as_rows_before() -> None:
    runs = [np.repeat(drawn(50, seed, ROWS // 1_000), 1_000) for seed in (1, 2)]
    first, again = (grouped(keys, FIVE, "hgb", i) for i, keys in enumerate(runs))
    assert first.decision.kernel == "hgb_runs"
    assert TOLD in again.decision.why


def changed(keys: Any) -> dict[str, Any]:
    """Rows unlike those before, each in one way."""
    rng = np.random.default_rng(3)
    hot = keys.copy()
    hot[rng.random(len(keys)) < 0.3] = keys[0]
    return {
        "more keys": keys * 8 + rng.integers(0, 8, len(keys)),
        "fewer keys": keys // 8,
        "other keys": keys + 10_000_000,
        "a hot key": hot,
        "sorted": np.sort(keys),
        "runs": np.repeat(keys[: len(keys) // 100], 100),
        "a key each": np.arange(len(keys)) * 1_000_003,
    }


@pytest.mark.parametrize(("kernel", "groups", "spread", "wanted"), CASES)
@pytest.mark.parametrize("how", changed(np.zeros(200, dtype=np.int64)))
def test_rows_unlike_those_before_are_decided_anew(
    kernel: str, groups: int, spread: bool, wanted: dict[str, list[str]], how: str
) -> None:
    keys = drawn(groups, 1, spread=spread)
    first = grouped(keys, wanted, kernel)
    assert first.decision.kernel == kernel
    # the same rows are like themselves: something is expected
    assert TOLD in grouped(keys, wanted, kernel).decision.why
    run = grouped(changed(keys)[how], wanted, kernel, 2)
    # a range of other keys is no surprise to a table that hashes them, if it is as wide
    assert TOLD not in run.decision.why or (spread and how in ("other keys", "fewer keys"))


def test_without_a_kernel_forced_decisions_are_expected_too() -> None:
    runs = [grouped(drawn(g, i, spread=True), FIVE, "auto", i) for i, g in enumerate([100] * 3)]
    assert [TOLD in run.decision.why for run in runs] == [False, True, True]


KEYS = {
    "two of 64 bits": lambda k: {"k": k, "j": k * 2**33},
    "three of 32 bits": lambda k: {
        n: (k % m).astype("int32") for n, m in zip("kji", (7, 5, 3), strict=True)
    },
    "strings": lambda k: {"k": pd.Series(k).astype(str) + " is a name of some length"},
    "nullable": lambda k: {"k": pd.Series(k).astype("Int64").mask(k % 11 == 0)},
    "nulls alone": lambda k: {"k": pd.Series(k).astype("Int64").mask(k >= 0)},
}


@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_form_are_grouped_as_rows_before(kind: str, keep_nulls: bool) -> None:
    for seed in (1, 2, 3):
        frame = pd.DataFrame(KEYS[kind](drawn(90, seed))).assign(
            **frame_of(drawn(90, seed), seed)[["v", "w"]]
        )
        keys = [label for label in frame if label not in "vw"]
        run = check(frame, keys, FIVE, "auto", keep_nulls)
        assert run.groups == frame.groupby(keys, dropna=not keep_nulls).ngroups


def test_keys_that_only_the_sample_is_like(raising: None) -> None:
    """The sampled segments are those of the rows before, all other rows have a key each."""
    before = drawn(100, 1, spread=True)
    first = grouped(before, FIVE, "auto")
    keys = np.arange(ROWS) * 1_000_003
    seen = in_sample(ROWS)
    keys[seen] = before[seen]
    for seed in (2, 3):
        run = grouped(keys, FIVE, "auto", seed)
        assert run.groups > ROWS * 0.9
        assert run.spilled > 0 or run.restarted
    assert first.decision.kernel == "hgb"
