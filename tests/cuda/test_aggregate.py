"""What becomes of a call that fails, without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_gpuagg.cuda import aggregate
from dask_gpuagg.cuda.aggregate import Run
from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.cuda.query.query import Query
from tests.cuda.choice.test_choose import H200
from tests.cuda.choice.test_correction import Times
from tests.cuda.specialisations import TABLE

DECISION = Decision(kernel="hgb", why="")


@pytest.mark.parametrize("fails", ["group", "write"])
def test_a_call_that_raises_gives_its_events_back(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def prepared(query: Query, device: Any) -> Any:
        return query, None

    monkeypatch.setattr(aggregate, "current_device", lambda: H200)
    monkeypatch.setattr(aggregate, "prepared", prepared)
    watch: Any = Times({})

    def fail(*given: Any) -> Any:
        raise MemoryError(fails)

    monkeypatch.setattr(aggregate.correction, "stopwatch_of", lambda device, rows: watch)
    monkeypatch.setattr(aggregate, "Columns", lambda *given: SimpleNamespace(rows=1))
    monkeypatch.setattr(aggregate, "group", lambda *given: (None, Run(DECISION, 1, 1), None))
    monkeypatch.setattr(aggregate, fails, fail)
    with pytest.raises(MemoryError, match=fails):
        aggregate.aggregate(TABLE["5 aggregations by int64"], [], None)
    assert watch.destroyed
