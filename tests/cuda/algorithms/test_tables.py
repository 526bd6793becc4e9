"""One table in global memory, without a GPU."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dask_gpuagg.cuda.algorithms import tables
from dask_gpuagg.cuda.choice.decision import Lphga, SpEga, safe_slots
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


@pytest.mark.parametrize("exponent", [0.0, 1.0])
@pytest.mark.parametrize("estimated", [50_000, 300_000])
def test_a_full_table_grows_to_about_the_groups(
    estimated: int, exponent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is taken, memory is short. The most frequent keys come first."""
    groups, rows = 1_000_000, 10**8
    weights = np.arange(1, groups + 1) ** -exponent
    placed = np.cumsum(weights) / weights.sum()
    slots: list[int] = [estimated]

    def collect(_: Any) -> Counters:
        there = min(slots[-1], groups)
        return Counters(unplaced=rows - round(rows * placed[there - 1]), groups=there)

    call: Any = SimpleNamespace(
        args=Args(counters=4096), rows=rows, launch_over=lambda *_: None, counters=Counters
    )
    monkeypatch.setattr(tables, "table_of", lambda _, n: Table(None, None, n, n))
    monkeypatch.setattr(tables, "_first_places", lambda _: SimpleNamespace())
    for name in ("_next_places", "reset"):
        monkeypatch.setattr(tables, name, lambda *_: None)
    monkeypatch.setattr(tables, "_transfer", lambda _, n: slots.append(n))
    monkeypatch.setattr(tables, "collect", collect)
    monkeypatch.setattr(tables, "run_of", lambda *_, **more: more)
    done = tables.sp_ega(call, SpEga(why="", global_slots=estimated))
    assert done is not None
    assert done[0]["restarted"]
    assert groups <= slots[-1] <= 2.3 * groups
    assert len(slots) <= (2 if exponent == 0 else 5)
