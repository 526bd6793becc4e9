"""Bins: sums without rounding, which are rounded once, to what ``math.fsum`` gives."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg import exact_sums
from dask_gpuagg.exact_sums import COUNT, carried, label, of_integers, settled, sliced, total

_rng = np.random.default_rng(11)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def rounded(values: list[float]) -> float:
    """The sum by fractions, infinite beyond the largest float."""
    exact = sum(map(Fraction, values), Fraction(0))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def fields_of(values: list[float]) -> dict[str, Any]:
    """One group of these values."""
    place, slices = sliced(np.asarray(values, np.float64), np)
    fields = {COUNT: np.array([len(values)])}
    for j in range(67):
        parts = [part[place + i == j].sum() for i, part in enumerate(slices)]
        if any(parts):
            fields[label(j)] = np.array([sum(parts)])
    return settled(fields, np)


def added(some: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """The state of two partials."""
    names = exact_sums.united([some, others])
    return settled({name: some.get(name, 0) + others.get(name, 0) for name in names}, np)


@given(st.lists(FLOATS, max_size=20))
def test_a_sum_is_rounded_once(values: list[float]) -> None:
    (result,) = total(fields_of(values), np)
    assert result == rounded(values)
    assert result != 0 or math.copysign(1.0, result) == 1


@given(st.lists(FLOATS, max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_partials_merge_in_any_order(values: list[float], i: int, j: int) -> None:
    parts = [fields_of(values[:i]), fields_of(values[i : i + j]), fields_of(values[i + j :])]
    first = added(added(parts[0], parts[1]), parts[2])
    second = added(parts[2], added(parts[1], parts[0]))
    assert total(first, np).tolist() == total(second, np).tolist() == [rounded(values)]


@pytest.mark.parametrize("exponent", [-960, -30, 0, 31, 32, 900])
def test_a_tie_goes_to_the_even_number(exponent: int) -> None:
    one, half = 2.0**exponent, 2.0**exponent * 2.0**-53
    above = one + 2 * half  # the next one, which is odd
    assert total(fields_of([one, half]), np) == one
    assert total(fields_of([above, half]), np) == above + 2 * half
    # what lies hundreds of bits below decides
    assert total(fields_of([one, half, 5e-324]), np) == above
    assert total(fields_of([-above, -half, 5e-324]), np) == -above


def test_sums_of_any_magnitude_and_subnormal_ones() -> None:
    for _ in range(300):
        words = _rng.integers(0, 2**64 - 1, 30, dtype=np.uint64)
        values = words.view(np.float64)
        finite = values[np.isfinite(values)].tolist()
        assert total(fields_of(finite), np) == rounded(finite)
        small = (words >> np.uint64(9)).view(np.float64) * _rng.choice([-1.0, 1.0], 30)
        assert total(fields_of(small.tolist()), np) == rounded(small.tolist())


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers(dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = _rng.integers(limits.min, limits.max, 1000, dtype=dtype, endpoint=True)
    values[:4] = limits.min, limits.max, 0, 1
    fields = {COUNT: values} | {label(j): part for j, part in of_integers(values).items()}
    assert total(settled(fields, np), np).tolist() == [float(int(v)) for v in values]


def test_carries_keep_the_sum_and_leave_room() -> None:
    full = np.array([2**63 - 2**33, -(2**63) + 2**33, -1, 0])
    digits = {3: full, 4: full, 7: np.array([-1, 1, 0, -5])}

    def exact(digits: dict[int, Any]) -> list[int]:
        return [sum(int(values[i]) << 32 * j for j, values in digits.items()) for i in range(4)]

    result = carried(digits, np)
    assert exact(result) == exact(digits)
    top = max(result)
    for j, values in result.items():
        assert (np.abs(values) < 2**40).all() if j == top else (values >> 32 == 0).all()
    # more partials than bits are left in the highest bin
    again = carried({j: values * 2**20 for j, values in result.items()}, np)
    assert exact(again) == [n * 2**20 for n in exact(digits)]
    assert all((np.abs(values) < 2**40).all() for values in again.values())


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"above": 1}, math.inf),
        ({"below": 2}, -math.inf),
        ({"above": 1, "below": 1}, math.nan),
        ({"nan": 1, "above": 1}, math.nan),
        ({"nan": 0, "above": 0, "below": 0}, 1.5),
    ],
)
def test_what_is_not_finite(counts: dict[str, int], expected: float) -> None:
    fields = fields_of([1.5]) | {name: np.array([n]) for name, n in counts.items()}
    np.testing.assert_array_equal(total(fields, np), [expected])


def test_an_overflow_beside_an_infinity() -> None:
    fields = fields_of([1.7e308, 1.7e308])
    assert total(fields, np) == math.inf
    assert total(fields | {"below": np.array([1])}, np) == -math.inf


@pytest.mark.parametrize("groups", [0, 3])
def test_of_no_values(groups: int) -> None:
    result = total(settled({COUNT: np.zeros(groups, np.int64)}, np), np)
    assert result.tolist() == [0.0] * groups
