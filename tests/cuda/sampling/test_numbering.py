"""When keys are numbered by what their columns hold."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dask_gpuagg.cuda.choice.choose import decide
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.sampling.numbering import numbering_of
from tests.cuda.choice.test_choose import H200
from tests.cuda.choice.test_window import SUM, dense

ROWS = 50_000_000
STEP = 10**9
SPREAD = KeySummary(20_000, 20_000, 0.0, 1e-4, bounds=(0, 19_999 * STEP))


def numbered(estimate: KeySummary, rows: int = ROWS, kernel: str = "auto") -> Any:
    call: Any = SimpleNamespace(query=SUM, rows=rows, about=())
    keys = np.arange(0, estimate.groups, 7) * STEP
    sample: Any = SimpleNamespace(some_words=lambda: keys)
    return numbering_of(call, sample, decide(SUM, rows, estimate, H200, kernel))


def test_keys_in_steps_get_slots() -> None:
    made = numbered(SPREAD)
    assert made.step == STEP * 7
    assert made.query.stepped
    assert numbered(SPREAD, kernel="hgb").step == STEP * 7


@pytest.mark.parametrize(
    ("estimate", "rows", "kernel"),
    [
        (dense(20_000), ROWS, "auto"),
        (SPREAD, ROWS // 100, "auto"),
        (replace(SPREAD, skewed=True), ROWS, "auto"),
        (replace(SPREAD, groups=500, most=500), ROWS, "auto"),
        (SPREAD, ROWS, "sgb"),
    ],
)
def test_keys_that_have_slots_or_gain_nothing_by_them(
    estimate: KeySummary, rows: int, kernel: str
) -> None:
    assert numbered(estimate, rows, kernel) is None
