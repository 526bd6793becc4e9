"""How many parts there are, and which are loaded together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.streaming.parts import loads, parts_of


@pytest.mark.parametrize(("groups", "capacity"), [(10**6, 50_000), (10**5, 20_000), (4_000, 900)])
def test_no_part_has_more_groups_than_fit(groups: int, capacity: int) -> None:
    parts = parts_of(groups, capacity)
    rng = np.random.default_rng(groups)
    for _ in range(20):
        assert np.bincount(rng.integers(0, parts, groups)).max() < capacity
    # about e times as many as would hold them if all were equal
    assert groups / capacity < parts <= 3 * groups / capacity + 1


def test_the_bound_at_its_ends() -> None:
    assert parts_of(100, 100) == 1
    assert parts_of(0, 1) == 1
    assert parts_of(10**12, 1) == 256
    assert parts_of(10**9, 10**8) == 28


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 100))
def test_loads(rows: list[int], capacity: int) -> None:
    found = loads(rows, capacity)
    assert [part for load in found for part in load] == [i for i, n in enumerate(rows) if n]
    sizes = [sum(rows[part] for part in load) for load in found]
    for load, size in zip(found, sizes, strict=True):
        assert len(load) == 1 or size <= capacity
    for size, following in zip(sizes, found[1:], strict=False):
        assert size + rows[following[0]] > capacity
