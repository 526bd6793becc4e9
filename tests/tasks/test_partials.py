"""Partials of partitions, whole or in halves."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_gpuagg import enabled
from dask_gpuagg.frontend import logical
from dask_gpuagg.tasks import partials
from dask_gpuagg.tasks.merging import finalized
from dask_gpuagg.tasks.partials import Inputs, inputs_of, partials_of

ROWS = 400_000


@pytest.fixture
def query() -> tuple[pd.DataFrame, Any]:
    """Rows, and what is asked of them as Dask has read it."""
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"k": rng.integers(0, 50, ROWS), "v": rng.integers(0, 9, ROWS)})
    with enabled():
        read = logical.read(
            dd.from_pandas(frame, npartitions=1).groupby("k").agg({"v": "sum"}).expr
        )
    assert read is not None
    return frame, read


def test_nothing_is_cut_where_memory_suffices(
    query: tuple[pd.DataFrame, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*_: Any) -> Any:
        raise AssertionError("rows were cut for nothing")

    monkeypatch.setattr(Inputs, "rows", cut)
    frame, read = query
    assert len(partials_of([inputs_of(frame, ["k"], read.plan)], read.plan)) == 1


@pytest.mark.parametrize("most", [ROWS // 2, ROWS // 4 + 1])
def test_halves_where_memory_does_not_suffice(
    most: int, query: tuple[pd.DataFrame, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, read = query
    whole, seen = partials.partial_of, []

    def small(inputs: Inputs, *more: Any) -> Any:
        if len(inputs) > most:
            raise MemoryError("too many rows")
        seen.append(len(inputs))
        return whole(inputs, *more)

    monkeypatch.setattr(partials, "partial_of", small)
    made = partials_of([inputs_of(frame, ["k"], read.plan)], read.plan)
    assert sum(seen) == ROWS
    assert len(made) == len(seen) == (2 if most == ROWS // 2 else 4)
    found = finalized(made, read.plan, read.meta)
    pd.testing.assert_frame_equal(
        found.sort_index(), frame.groupby("k").agg({"v": "sum"}), check_dtype=False
    )
