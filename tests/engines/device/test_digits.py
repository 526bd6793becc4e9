"""Moments computed again around a mean, against exact arithmetic."""

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.device import stand_ins
from tests.engines.device.stand_ins import without_rapids

with without_rapids():
    _DIGITS = stand_ins.module("digits")
centred = _DIGITS.centred


def exact(values: Any) -> tuple[float, float]:
    fractions = [Fraction(float(v)) for v in values]
    mean = sum(fractions) / len(fractions)
    return float(mean), float(sum((f - mean) ** 2 for f in fractions))


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
