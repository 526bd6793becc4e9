"""Exact sums of one partition: with and without the compiled loop."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dask_gpuagg import exact_sums
from dask_gpuagg.engines.host import exact, fused

ROWS, GROUPS = 3_000, 13
_rng = np.random.default_rng(2)
_codes = fused.frozen(_rng.integers(0, GROUPS - 1, ROWS), np.int32)
_x = _rng.normal(size=ROWS) * 10.0 ** _rng.integers(-30, 30, ROWS)
_words = _rng.integers(0, 2**53, ROWS, dtype=np.uint64).view(np.float64)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("block", [1 << 30, 700])
@pytest.mark.parametrize("values", [_x, _words, _x * 0, _x.round(), np.full(ROWS, 0.1)])
def test_sums_are_those_of_fsum(
    values: np.ndarray, block: int, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact, "_ROWS", block)
    fields = exact.sums(_codes, GROUPS, values, True, compiled)
    assert fields.keys().isdisjoint(exact_sums.SPECIAL)
    made = exact_sums.total({exact_sums.COUNT: np.zeros(GROUPS, np.int64)} | fields, np)
    assert made.tolist() == [math.fsum(values[_codes == g]) for g in range(GROUPS)]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("nan_is_null", [True, False])
def test_values_that_are_not_finite_are_counted(nan_is_null: bool, compiled: bool) -> None:
    values = _x.copy()
    values[::7], values[1::7], values[2::7] = np.nan, np.inf, -np.inf
    fields = exact.sums(_codes, GROUPS, values, nan_is_null, compiled)
    assert ("nan" in fields) is not nan_is_null
    for name, which in {"above": values == np.inf, "below": values == -np.inf}.items():
        assert fields[name].tolist() == [which[_codes == g].sum() for g in range(GROUPS)]
    rest = np.where(np.isfinite(values), values, 0.0)
    finite = exact.sums(_codes, GROUPS, rest, nan_is_null, compiled)
    n = {exact_sums.COUNT: np.zeros(GROUPS, np.int64)}
    bins = {name: v for name, v in fields.items() if name not in exact_sums.SPECIAL}
    sums = exact_sums.total(n | bins, np), exact_sums.total(n | finite, np)
    assert sums[0].tolist() == sums[1].tolist()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("fill", [np.nan, np.inf, 0.0])
def test_no_number_at_all(fill: float, compiled: bool) -> None:
    fields = exact.sums(_codes, GROUPS, np.full(ROWS, fill), True, compiled)
    assert list(fields) == (["above"] if fill == np.inf else [])
