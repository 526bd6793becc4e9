"""Strings as numbers of a dictionary, whatever they are and however many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.cuda.query.tuning import TEXT_WORDS
from dask_gpuagg.cuda.sampling import repeat
from tests.cuda.test_dictionary import colliding
from tests.device.test_kernels import check, values
from tests.device.test_wide_keys import random_texts

ROWS = 1_500_000
WANTED = {"i": ["sum", "count", "min"], "f": ["sum"]}


def frame_of(texts: Any, codes: Any, rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({"k": np.array(texts, object)[codes]} | values(rng, len(codes)))


def assert_grouped(
    frame: pd.DataFrame, keep_nulls: bool = False, by_numbers: bool | None = True
) -> None:
    run = check(frame, ["k"], WANTED, keep_nulls=keep_nulls)
    if by_numbers is not None:
        assert ("numbers of a dictionary" in run.decision.why) == by_numbers, run.decision.why


@pytest.mark.parametrize("groups", [7, 2_000, 20_000, 80_000])
@pytest.mark.parametrize(("low", "high"), [(16, 44), (10, 66)])
def test_lengths(groups: int, low: int, high: int) -> None:
    """Of one word of copies and of many, and longer than the copies."""
    rng = np.random.default_rng(groups)
    texts = random_texts(groups, low, high, rng)
    codes = rng.integers(0, groups, ROWS)
    # so that strings differ in more bits than a number of them has
    texts[0] = "".join(chr(33 + i % 90) for i in range(high))
    # the second time it is known how many there are
    for _ in range(2):
        assert_grouped(frame_of(texts, codes, rng))


@pytest.mark.parametrize("keep_nulls", [False, True])
@pytest.mark.parametrize("groups", [300, 60_000])
def test_nulls(groups: int, keep_nulls: bool) -> None:
    rng = np.random.default_rng(groups)
    texts = random_texts(groups, 16, 50, rng)
    frame = frame_of([*texts, ""], rng.integers(0, groups + 1, ROWS), rng)
    frame["k"] = frame["k"].mask(rng.random(ROWS) < 0.1)
    assert_grouped(frame, keep_nulls)


@pytest.mark.parametrize("order", ["ascending", "skewed"])
def test_orders(order: str) -> None:
    """Strings that come late have no copies; skewed ones may be more than there is room for."""
    rng = np.random.default_rng(1)
    texts = random_texts(50_000, 16, 40, rng)
    codes = np.sort(rng.integers(0, 50_000, ROWS)) if order == "ascending" else None
    if codes is None:
        codes = np.minimum(49_999, rng.pareto(0.7, ROWS) * 5).astype("int64")
    assert_grouped(frame_of(texts, codes, rng), by_numbers=True if order == "ascending" else None)


def test_more_strings_than_before() -> None:
    """There are too few slots for them, and the call starts again."""
    rng = np.random.default_rng(2)
    texts = random_texts(80_000, 16, 40, rng)
    for groups in (100, 80_000, 100):
        assert_grouped(frame_of(texts, rng.integers(0, groups, ROWS), rng))


def test_strings_that_hardly_repeat() -> None:
    rng = np.random.default_rng(3)
    texts = random_texts(1_000_000, 16, 40, rng)
    for _ in range(2):
        assert_grouped(frame_of(texts, rng.integers(0, 10**6, ROWS), rng), by_numbers=False)


def test_strings_that_differ_anywhere() -> None:
    rng = np.random.default_rng(4)
    texts = [""] + ["\0" * n for n in range(1, 20)] + random_texts(50, 16, 70, rng)
    for n in (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 47, 56, 57, 64, 65, 129):
        texts += ["x" * i + "ä" + "x" * (n - i - 1) for i in range(n)] + ["x" * n]
    # long strings are rare: on average they have fewer bytes than a dictionary is made for
    weights = np.array([1 / (8 + len(text.encode())) ** 1.5 for text in texts])
    codes = rng.choice(len(texts), ROWS, p=weights / weights.sum())
    assert_grouped(frame_of(texts, codes, rng))


@pytest.mark.parametrize("groups", [300, 80_000])
def test_hashes_of_two_strings_with_one_value(groups: int) -> None:
    rng = np.random.default_rng(5)
    texts = random_texts(groups, 20, 8 * TEXT_WORDS + 1, rng)
    texts[:2] = colliding(TEXT_WORDS, rng)
    assert_grouped(frame_of(texts, rng.integers(0, groups, ROWS), rng))


@pytest.mark.parametrize("exponent", [0.8, 1.2])
def test_skewed_keys_as_for_rows_before(exponent: float) -> None:
    """Hot keys are those of the rows before, unless some of them do not occur."""
    rng = np.random.default_rng(9)
    groups, rows = 60_000, 1 << 21
    chances = np.cumsum(np.arange(1, groups + 1) ** -exponent)
    keys = rng.permutation(groups) * 7_919

    def run_of(missing: int | None = None) -> Any:
        # after a refusal the next guess would be left out
        repeat._refused.clear()
        column = keys[np.searchsorted(chances, rng.random(rows) * chances[-1])]
        if missing is not None:
            column[column == keys[missing]] = keys[-1]
        frame = pd.DataFrame({"k": column} | values(rng, rows))
        return check(frame, ["k"], WANTED)

    first, again = run_of(), run_of()
    assert first.decision.hot
    assert "as for rows before" not in first.decision.why
    assert again.decision.why == f"{first.decision.why}; as for rows before"
    assert "as for rows before" not in run_of(missing=3).decision.why
    keys = rng.permutation(groups) * 7_919
    assert "as for rows before" not in run_of().decision.why
