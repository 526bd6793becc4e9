"""Rounds of arms, and what their ratios say."""

import statistics

import numpy as np
import pytest

from benchmarks.arms import CONFIDENCE, Run, compared, interval, is_slower, rounds

NAMES = ("a", "b", "c")


def test_each_round_begins_with_another_arm():
    order: list[str] = []

    def run(name: str) -> Run:
        order.append(name)
        return Run(1.0, None, None, 2.0)

    timed = rounds(NAMES, run, 4, lambda: False)
    assert "".join(order) == "abcbcacababc"
    assert [(one.name, len(one.wall), set(one.cpu)) for one in timed] == [
        (name, 4, {2.0}) for name in NAMES
    ]


@pytest.mark.parametrize("count", [6, 11, 15])
def test_the_interval_holds_the_median_as_often_as_it_says(count: int):
    rng = np.random.default_rng(count)
    held = [
        low <= 0.0 <= high
        for low, high in (interval(rng.standard_cauchy(count).tolist()) for _ in range(2000))
    ]
    assert statistics.mean(held) > CONFIDENCE - 0.01


def test_slower_is_beyond_the_noise():
    noise = compared([1.0] * 9, [1.02, 0.98, 1.0] * 3)
    assert is_slower(compared([1.0] * 9, [1.1] * 9), noise) is True
    assert is_slower(compared([1.0] * 9, [1.01] * 9), noise) is False
    assert is_slower(compared([1.1] * 9, [1.0] * 9), noise) is False
    assert is_slower(compared([], []), noise) is None
