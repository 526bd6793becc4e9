"""Rows of partitions in batches, and in halves of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.streaming.batches import Sizes, Slice, batches, halves

PARTS = st.lists(st.lists(st.integers(), max_size=50), min_size=1, max_size=8)


@given(parts=PARTS, nbytes=st.integers(1, 900), kinds=st.lists(st.booleans(), min_size=8))
def test_each_row_is_in_one_batch_in_order(
    parts: list[list[int]], nbytes: int, kinds: list[bool]
) -> None:
    numbered = list(zip(parts, kinds, strict=False))

    class Part(list[int]):
        kind = False

    made = []
    for rows, kind in numbered:
        part = Part(rows)
        part.kind = kind
        made.append(part)
    found = list(
        batches(iter(made), Sizes(nbytes, 900), lambda p: 8 * len(p), lambda a, b: a.kind == b.kind)
    )
    rows = [row for batch in found for each in batch for row in each.part[each.start : each.stop]]
    assert rows == [row for part in parts for row in part]
    for batch in found:
        assert len({each.part.kind for each in batch}) == 1
        assert all(len(each) > 0 for each in batch)
        assert sum(map(len, batch)) <= max(nbytes // 8, 1)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6).filter(lambda n: sum(n) > 1))
def test_halves(lengths: list[int]) -> None:
    batch = [Slice(list(range(n)), 0, n) for n in lengths]
    first, second = halves(batch)
    assert sum(map(len, first)) == sum(lengths) // 2
    both = [each.part[row] for each in (*first, *second) for row in range(each.start, each.stop)]
    assert both == [row for each in batch for row in each.part]


def test_batches_grow_by_many_groups_and_shrink_where_memory_lacks() -> None:
    sizes = Sizes.of_memory(120 << 30, 12)
    assert (sizes.nbytes, sizes.most, sizes.kept) == (256 << 20, 10 << 30, 30 << 30)
    for gibibytes in (0.5, 1, 2, 2, 2):
        sizes.grouped(rows=1_000, groups=10, nbytes=sizes.nbytes)
        assert sizes.nbytes == gibibytes * (1 << 30)
    for _ in range(9):
        sizes.grouped(rows=1_000, groups=900, nbytes=sizes.nbytes)
    assert sizes.nbytes == sizes.most
    sizes.refused()
    assert sizes.nbytes == sizes.most == 5 << 30
    sizes.grouped(rows=1_000, groups=900, nbytes=sizes.nbytes)
    assert sizes.nbytes == 5 << 30


def test_groups_are_compared_with_the_rows_of_the_next_batch() -> None:
    """Batches that are on their way have been made larger already."""
    sizes = Sizes(4_000, 1 << 20)
    sizes.grouped(rows=100, groups=40, nbytes=1_000)
    assert sizes.nbytes == 4_000
    sizes.grouped(rows=100, groups=60, nbytes=1_000)
    assert sizes.nbytes == 8_000


def test_batches_are_as_large_as_they_may_be() -> None:
    sizes = Sizes.of_memory(12 << 30, 12)
    for _ in range(4):
        sizes.grouped(rows=1_000, groups=10, nbytes=sizes.nbytes)
    assert sizes.nbytes == 1 << 30
    sizes.limit(100 << 20)
    sizes.grouped(rows=1_000, groups=900, nbytes=sizes.nbytes)
    assert sizes.nbytes == 100 << 20
    sizes.limit(0)
    assert sizes.nbytes == 1


def test_short_memory_leaves_batches_worth_a_call() -> None:
    """They had 1,250 rows, then one, and thousands of calls took minutes."""
    sizes = Sizes.of_memory(320_000, 16)
    assert sizes.most == 1 << 20
    for _ in range(30):
        sizes.refused()
    assert sizes.nbytes == 1 << 20
