"""Kernels that need less memory, chosen without a GPU."""

from __future__ import annotations

import pytest

from dask_gpuagg.cuda.choice.choose import decide, needed_bytes, with_less_memory
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Partitioned, SpEga
from dask_gpuagg.cuda.choice.summary import KeySummary
from tests.cuda.choice.test_choose import H200, exact
from tests.cuda.choice.test_tables import SUM, dense

ROWS = 10**8


def smaller(estimate: KeySummary) -> tuple[Partitioned, Decision]:
    """The decision, which is for partitions, and the one that needs less memory."""
    first = decide(SUM, ROWS, estimate, H200)
    assert isinstance(first, Partitioned)
    less = with_less_memory(SUM, ROWS, first, H200)
    assert less is not None
    assert needed_bytes(SUM, ROWS, less) < needed_bytes(SUM, ROWS, first)
    return first, less


@pytest.mark.parametrize("groups", [10**6, 10**7])
def test_rows_whose_copies_have_no_room_go_to_one_table(groups: int) -> None:
    first, less = smaller(exact(groups))
    assert isinstance(less, SpEga)
    assert less.why.endswith(f"device memory has no room for {first.kernel}")


def test_dense_keys_keep_slots_of_their_own() -> None:
    partitions = decide(SUM, ROWS, dense(1_500_000), H200, "pgb")
    assert isinstance(partitions, Partitioned)
    assert partitions.window
    assert isinstance(with_less_memory(SUM, ROWS, partitions, H200), Direct)


def test_none_needs_less_than_the_smallest_table() -> None:
    decision: Decision | None = decide(SUM, ROWS, exact(6 * 10**7), H200)
    tried = []
    while decision is not None:
        tried.append(decision)
        decision = with_less_memory(SUM, ROWS, decision, H200)
    assert len(tried) >= 2
    assert "device memory has no room for" in tried[-1].why
