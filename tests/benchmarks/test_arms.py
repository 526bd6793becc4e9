"""Rounds of arms, and what their ratios say."""

from __future__ import annotations

import itertools
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


def test_an_error_ends_the_rounds():
    failing = itertools.count()

    def run(name: str) -> Run:
        if next(failing) == 4:
            return Run(None, None, "ValueError: no")
        return Run(1.0, None, None, 1.0)

    timed = rounds(NAMES, run, 9, lambda: False)
    assert {one.name: one.error for one in timed} == {"a": None, "b": None, "c": "ValueError: no"}
    assert sum(len(one.wall) for one in timed) == 4


def test_ratios_are_of_one_round():
    found = compared([2.0, 9.0, 4.0], [1.0, 3.0, 4.0])
    assert found == {"ratios": [2.0, 3.0, 1.0], "ratio": 2.0, "interval": [1.0, 3.0]}
    assert compared([], []) == {"ratios": [], "ratio": None, "interval": None}


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
