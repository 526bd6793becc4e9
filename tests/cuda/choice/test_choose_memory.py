"""Kernels that device memory has room for, chosen without a GPU: the memory is a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dask_gpuagg.cuda import aggregate as attempts
from dask_gpuagg.cuda.choice.choose import (
    decide,
    fit_to_memory,
    global_bytes,
    with_less_memory,
)
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Partitioned, SpEga
from dask_gpuagg.cuda.choice.summary import KeySummary
from tests.cuda.choice.test_choose import H200, exact, query
from tests.cuda.choice.test_tables import SUM, dense
from tests.cuda.test_attempts import Columns

ROWS = 10**8
Asked = list[list[int]]


def memory(free: int) -> tuple[Callable[[Sequence[int]], bool], Asked]:
    """An allocator with so many bytes, and what it is asked for."""
    asked: Asked = []

    def has_room(sizes: Sequence[int]) -> bool:
        asked.append(list(sizes))
        return sum(sizes) <= free

    return has_room, asked


def fitting(free: int, estimate: KeySummary, rows: int = ROWS) -> tuple[Decision, Decision, Asked]:
    """The decision without limits, the one with so much memory, and what was asked for."""
    first = decide(SUM, rows, estimate, H200)
    has_room, asked = memory(free)
    return first, fit_to_memory(SUM, rows, first, H200, has_room), asked


@pytest.mark.parametrize("groups", [10**6, 10**7])
def test_rows_whose_copies_have_no_room_go_to_one_table(groups: int) -> None:
    first, made, asked = fitting(15 * ROWS, exact(groups))
    assert isinstance(first, Partitioned)
    assert isinstance(made, SpEga)
    assert made.why.endswith(f"device memory has no room for {first.kernel}")
    # of the columns of copies each is a buffer of its own
    assert sum(asked[0]) == global_bytes(SUM, first)
    assert max(asked[0]) == 8 * first.partitions * first.capacity
    assert first.why.split(":")[0] in made.why


def test_dense_keys_keep_slots_of_their_own() -> None:
    """In global memory, where they get slots in partitions otherwise."""
    first, made, _ = fitting(2 * ROWS, dense(3_000_000))
    assert isinstance(first, Partitioned)
    assert first.window
    assert isinstance(made, Direct | SpEga)
    assert global_bytes(SUM, made) <= 2 * ROWS


def test_what_fits_is_kept() -> None:
    first, made, asked = fitting(100 * ROWS, exact(10**7))
    assert made is first
    assert len(asked) == 1


def test_small_copies_are_not_asked_for() -> None:
    first, made, asked = fitting(0, exact(10**6), rows=10**7)
    assert isinstance(first, Partitioned)
    assert made is first
    assert asked == []


def test_where_nothing_fits_the_least_is_tried() -> None:
    _, made, asked = fitting(0, exact(6 * 10**7))
    assert len(asked) >= 2
    assert with_less_memory(SUM, ROWS, made, H200) is None
    assert "device memory has no room for" in made.why


@pytest.mark.parametrize("forced", ["auto", "pgb"])
def test_a_call_asks_the_allocator_before_it_decides(
    forced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forced kernel is not asked about."""
    call: Any = Columns().call(query(*SUM.states))
    call.has_room, asked = memory(15 * ROWS)
    monkeypatch.setattr(attempts, "estimated", lambda *_: exact(10**7))
    sample: Any = object()
    made = attempts.decide(call, forced, sample)
    assert made.kernel == ("pgb" if forced == "pgb" else "sp_ega")
    assert bool(asked) == (forced == "auto")


def test_copies_of_nearly_as_many_bytes_are_not_tried() -> None:
    estimate = exact(9 * 10**7)
    whole, folded = (decide(SUM, ROWS, estimate, H200, kernel) for kernel in ("pgb", "pgb_fold"))
    more, less = sorted((whole, folded), key=lambda made: -global_bytes(SUM, made))
    assert 0.95 < global_bytes(SUM, less) / global_bytes(SUM, more) < 1
    assert isinstance(with_less_memory(SUM, ROWS, more, H200), SpEga)
