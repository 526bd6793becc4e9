"""Code of queries that were dropped is unloaded while other threads group rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.runtime import kernels
from tests.device.test_kernels import check

AGGREGATIONS = ("sum", "count", "min", "max")
ROWS = 200_000


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The libraries that were unloaded, where a process keeps three queries."""
    from cuda.bindings import driver

    found: list[Any] = []
    unload = driver.cuLibraryUnload

    def noted(handle: Any) -> Any:
        found.append(int(handle))
        return unload(handle)

    monkeypatch.setattr(driver, "cuLibraryUnload", noted)
    monkeypatch.setattr(kernels, "_known", Cache(3))
    return found


@pytest.mark.parametrize("threads", [1, 4])
def test_answers_are_right_meanwhile(threads: int, unloaded: list[Any]) -> None:
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"k": rng.integers(0, 3_000, ROWS), "v": rng.normal(size=ROWS)})
    wanted = [{"v": list(some)} for n in (1, 2, 3) for some in combinations(AGGREGATIONS, n)]

    def ask(which: dict[str, list[str]]) -> None:
        check(frame, ["k"], which)

    with ThreadPoolExecutor(threads) as pool:
        # each query is dropped and loaded again
        list(pool.map(ask, wanted * 2))
    assert len(unloaded) > len(wanted)
