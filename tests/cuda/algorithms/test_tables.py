"""One table in global memory, without a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest

from dask_gpuagg.cuda.algorithms import tables
from dask_gpuagg.cuda.choice.decision import Lphga, safe_slots
from dask_gpuagg.cuda.query.structs import Args, Counters, Table
from tests.cuda.choice.test_tables import SUM


def test_a_failed_table_is_released_before_the_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = ["words"]
    seen: list[tuple[int, list[Any], Any]] = []
    call: Any = SimpleNamespace(
        args=Args(), query=SUM, rows=1_000, held=held, early=["columns"],
        spread=lambda *_: 1, launch=lambda *_, **__: None, launch_over=lambda *_: None,
        over=lambda args: [(args, None, 1_000)],
    )  # fmt: skip

    def table_of(of: Any, slots: int) -> Table:
        seen.append((slots, list(held), of.early))
        held.append(f"table of {slots}")
        return Table(None, None, slots, slots)

    def collect_early(of: Any) -> Counters:
        held.append("order")
        of.early = ["columns"]
        return Counters(unplaced=1 if len(seen) == 1 else 0, groups=900)

    monkeypatch.setattr(tables, "table_of", table_of)
    monkeypatch.setattr(tables, "collect_early", collect_early)
    monkeypatch.setattr(tables, "run_of", lambda *_, **more: more)
    run, _ = tables.lphga(call, Lphga(why="", global_slots=64))
    assert run == {"restarted": True}
    assert seen[1:] == [(safe_slots(1_000), ["words"], None)]
    assert held == ["words", f"table of {safe_slots(1_000)}", "order"]
