"""Moments made again around a mean, against exact arithmetic; the kernels' own sums in NumPy."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.device import stand_ins
from tests.engines.device.stand_ins import without_rapids

with without_rapids():
    _DIGITS = stand_ins.module("digits")
LOSS_AT_MOST, centred = _DIGITS.LOSS_AT_MOST, _DIGITS.centred


def exact(values: Any) -> tuple[float, float]:
    fractions = [Fraction(float(v)) for v in values]
    mean = sum(fractions) / len(fractions)
    return float(mean), float(sum((f - mean) ** 2 for f in fractions))


def by_pivot(values: Any) -> tuple[float, float, float]:
    """Mean, second moment and loss as ``kernels/aggregate/states.cuh`` makes them."""
    pivot = values[0]
    off = values - pivot
    s1, s2 = 0.0, 0.0
    for d in off:  # one after the other, as atomics add
        s1, s2 = s1 + d, s2 + d * d
    m2 = max(s2 - s1 * (s1 / len(values)), 0.0)
    with np.errstate(divide="ignore"):
        loss = 0.0 if s1 == 0.0 else float(np.float64(s1 * (s1 / len(values))) / m2)
    return pivot + s1 / len(values), m2, loss


def again(values: Any, near: float) -> tuple[float, float]:
    n = len(values)
    codes, ones = np.zeros(n, dtype=np.int32), np.ones(n)
    mean, m2 = centred(np, codes, 1, ones, values, np.zeros(n), np.array([near]))
    return float(mean[0]), float(m2[0])


@pytest.mark.parametrize("outlier", [1e3, 1e6, 1e9, -1e12])
def test_an_outlier_as_pivot_costs_no_digits(outlier: float) -> None:
    values = np.random.default_rng(0).normal(3.0, 1.0, 200_000)
    values[0] = outlier
    mean, m2, loss = by_pivot(values)
    true_mean, true_m2 = exact(values)
    # the loss tells by how much rounding errors are larger
    assert loss > LOSS_AT_MOST
    made_mean, made_m2 = again(values, mean)
    # what is left is the rounding of a sum of so many addends, one after the other
    rounding = len(values) * np.finfo("f8").eps
    assert abs(made_m2 / true_m2 - 1) < rounding / 2
    assert abs(made_mean - true_mean) < rounding * abs(true_mean)
    assert abs(m2 / true_m2 - 1) > 10 * abs(made_m2 / true_m2 - 1)


def test_a_typical_pivot_loses_nothing() -> None:
    values = np.random.default_rng(1).normal(1e9, 1.0, 100_000)
    _, m2, loss = by_pivot(values)
    assert loss < 100
    assert abs(m2 / exact(values)[1] - 1) < 1e-11


def test_a_constant_has_no_spread() -> None:
    mean, m2, loss = by_pivot(np.full(1000, 0.1))
    assert (mean, m2, loss) == (0.1, 0.0, 0.0)
    assert again(np.full(1000, 0.1), 0.1) == (0.1, 0.0)


def test_groups_without_parts_are_nan() -> None:
    codes, empty = np.array([], dtype=np.int32), np.array([])
    mean, m2 = centred(np, codes, 2, empty, empty, empty, np.array([1.0, 2.0]))
    assert np.isnan(mean).all()
    assert np.isnan(m2).all()


finite = st.floats(-1e6, 1e6, allow_subnormal=False)


@given(st.lists(st.lists(finite, min_size=1, max_size=6), min_size=1, max_size=6), finite)
def test_parts_merge_to_the_moments_of_all_values(parts: list[list[float]], off: float) -> None:
    moments = [exact(part) for part in parts]
    weights = np.array([float(len(part)) for part in parts])
    means, m2 = (np.array(values) for values in zip(*moments, strict=True))
    true_mean, true_m2 = exact([v for part in parts for v in part])
    codes = np.ones(len(parts), dtype=np.int32)
    near = np.array([0.0, true_mean])
    made_mean, made_m2 = centred(np, codes, 2, weights, means, m2, near)
    assert np.isnan(made_mean[0])
    scale = max(abs(v) for part in parts for v in part)
    assert abs(made_mean[1] - true_mean) <= 1e-14 * scale
    assert abs(made_m2[1] - true_m2) <= 1e-12 * (true_m2 + scale**2 * 1e-3)
