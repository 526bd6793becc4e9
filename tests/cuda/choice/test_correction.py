"""Corrections by what calls took, of kernels whose times are made up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dask_gpuagg.cuda import attempts
from dask_gpuagg.cuda.choice import choose, correction, costs
from dask_gpuagg.cuda.choice.cost_model import expected_kernel_ms, least_ms
from dask_gpuagg.cuda.choice.decision import Decision, Partitioned, Sgb
from dask_gpuagg.cuda.choice.partitions import tile_of
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import ValuePart
from dask_gpuagg.cuda.runtime.driver import Device
from tests.cuda.choice.test_choose import exact
from tests.cuda.choice.test_window import SUM

B200 = Device(0, "NVIDIA B200", "sm_100", 148, 232_448)
ROWS = 50_000_000
# the kernels' names on the host
LAUNCHED = {"scatter": "scatter_wide", "aggregate": "aggregate"}


class Times:
    """A stopwatch that has measured these milliseconds."""

    def __init__(self, ms: dict[str, float], laps: int = 1, done: bool = True) -> None:
        self.ms, self.done, self._laps = ms, done, laps
        self.destroyed = False

    def laps(self) -> Counter[str]:
        return Counter(dict.fromkeys(self.ms, self._laps))

    def is_done(self) -> bool:
        return self.done

    def milliseconds(self) -> dict[str, float]:
        return self.ms

    def destroy(self) -> None:
        self.destroyed = True


@pytest.fixture(autouse=True)
def fresh(cache: Path) -> Iterator[None]:
    correction.forget()
    costs.uncorrected.cache_clear()
    yield
    correction.forget()
    costs.uncorrected.cache_clear()


def decided(query: Query = SUM) -> Decision:
    return choose.decide(query, ROWS, exact(10**6), B200, "pgb")


def expected(decision: Decision, of: Device = B200) -> dict[str, float]:
    """By the derived constants."""
    tile = tile_of(SUM, of, decision)
    derived = costs.shipped(of).costs
    return expected_kernel_ms(derived, SUM, ROWS, decision, of.multiprocessors, tile)


def noted(factors: dict[str, float], calls: int, laps: int = 1, done: bool = True) -> list[bool]:
    """Calls whose kernels take so many times as long as expected."""
    decision = decided()
    ms = expected(decision)
    times = {LAUNCHED.get(name, name): ms[name] * factors.get(name, 1.0) for name in ms}
    found = []
    for _ in range(calls):
        assert correction.stopwatch_of(B200, ROWS) is not None
        watch: Any = Times(times, laps, done)
        found.append(correction.note(B200, SUM, ROWS, decision, watch))
    return found


def test_only_derived_constants_are_corrected() -> None:
    h200 = replace(B200, name="NVIDIA H200")
    assert correction.stopwatch_of(h200, ROWS) is None
    assert correction.stopwatch_of(B200, 1_000_000) is None
    assert correction.stopwatch_of(B200, ROWS) is not None
    path = costs.path_of(B200)
    assert path is not None
    costs.write(path, B200, costs.shipped(B200).costs, {"date": "today"})
    assert correction.stopwatch_of(B200, ROWS) is None


def test_kernels_that_take_longer_are_expected_to() -> None:
    # the first call loads kernels, and is not looked at; five are needed
    assert noted({"scatter": 2.0, "aggregate": 1.2}, 6) == [False] * 5 + [True]
    known = costs.known(B200)
    assert known.costs.corrections == {"scatter": pytest.approx(2.0)}
    assert "kernels take so many times as long: scatter 2" in known.source
    decision = decided()
    before = expected(decision)
    tile = tile_of(SUM, B200, decision)
    after = expected_kernel_ms(known.costs, SUM, ROWS, decision, B200.multiprocessors, tile)
    assert after == before | {"scatter": pytest.approx(2 * before["scatter"])}
    # all else of the constants is as derived
    derived = asdict(costs.shipped(B200).costs)
    assert {n: v for n, v in asdict(known.costs).items() if n != "factors"} == derived
    # the same again is nothing new
    assert noted({"scatter": 2.0}, 3) == [False] * 3


@pytest.mark.parametrize(("factor", "corrected"), [(0.01, 1 / 3), (0.6, 0.6), (0.9, 1), (50, 3)])
def test_corrections_are_bounded(factor: float, corrected: float) -> None:
    noted({"scatter": factor, "aggregate": 1.0}, 6)
    found = costs.known(B200).costs
    assert found.corrections.get("scatter", 1) == pytest.approx(corrected)
    assert least_ms(found, SUM, ROWS) <= least_ms(costs.shipped(B200).costs, SUM, ROWS)


def test_what_is_not_comparable_is_left_out() -> None:
    assert not any(noted({"scatter": 3.0}, 10, laps=2))
    for decision in (Sgb(why=""), None):
        watch: Any = Times({"scatter": 99.0})
        assert correction.stopwatch_of(B200, ROWS) is not None
        for _ in range(8):
            assert not correction.note(B200, SUM, ROWS, decision, watch)
    assert costs.known(B200) == costs.shipped(B200)


def test_kernels_that_still_run_are_not_waited_for() -> None:
    assert not any(noted({"scatter": 2.0}, 20, done=False))
    assert costs.known(B200) == costs.shipped(B200)


def test_calls_that_are_forgotten_give_their_events_back() -> None:
    waiting, late = Times({}, done=False), Times({})
    decision = decided()
    assert correction.stopwatch_of(B200, ROWS) is not None
    watches: list[Any] = [waiting, late]
    assert not correction.note(B200, SUM, ROWS, decision, watches[0])
    correction.forget()
    assert waiting.destroyed
    # a call that began before
    assert not correction.note(B200, SUM, ROWS, decision, watches[1])
    assert late.destroyed


def test_factors_count_also_where_another_thread_reads_the_constants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that has begun with the old factors ends after the new ones are there."""
    as_dict, later = asdict, [{"scatter": 2.9}]

    def overtaken(constants: Any) -> Any:
        if later:
            costs.correct(B200, later.pop())
        return as_dict(constants)

    assert correction.stopwatch_of(B200, ROWS) is not None  # so that they are forgotten later
    costs.correct(B200, {"scatter": 1.7})
    monkeypatch.setattr(costs, "asdict", overtaken)
    costs.known(B200)
    assert not later
    assert costs.known(B200).costs.corrections == {"scatter": 2.9}


def test_calls_are_timed_for_a_while_only() -> None:
    watches = [correction.stopwatch_of(B200, ROWS) for _ in range(200)]
    assert sum(watch is not None for watch in watches) == 64


def test_a_median_of_calls_counts() -> None:
    noted({}, 8)
    noted({"scatter": 3.0}, 3)
    assert costs.known(B200) == costs.shipped(B200)


def test_threads_correct_together() -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: noted({"aggregate": 2.5}, 6), range(4)))
    assert costs.known(B200).costs.corrections == {"aggregate": pytest.approx(2.5)}


def test_decisions_follow_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where scattering takes three times as long, one table in memory is nearer."""
    monkeypatch.setattr(attempts, "estimated", lambda *_: exact(2 * 10**6))
    call: Any = SimpleNamespace(
        query=replace(SUM, inputs=(ValuePart("f64", False),)),
        rows=ROWS,
        device=B200,
        values=None,
        has_room=lambda sizes: True,
    )
    sample: Any = object()
    first = attempts.decide(call, "auto", sample)
    assert isinstance(first, Partitioned)
    assert "earlier calls" not in first.why
    noted({"scatter": 3.0, "aggregate": 3.0}, 6)
    then = attempts.decide(call, "auto", sample)
    assert "corrected by what earlier calls took" in then.why
    assert then.expected_ms is not None
    assert first.expected_ms is not None
    assert then.expected_ms > first.expected_ms
