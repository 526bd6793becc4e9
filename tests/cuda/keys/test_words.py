"""Narrower forms of wide keys."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.choice.choose import decide
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.keys import narrowest_keys
from dask_gpuagg.cuda.keys import ranges as kept
from dask_gpuagg.cuda.keys.ranges import (
    SAFE_BITS,
    numbered_by_ranges,
    numbered_by_steps,
    packed_ranges,
    remember_out_of_range,
    two_word_ranges,
)
from dask_gpuagg.cuda.keys.words import representations_of
from dask_gpuagg.cuda.query.forms import HASHED, PACKED, RANGED, STEPPED, WIDE_RANGED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KeyPart
from tests.cuda.choice.test_choose import H200
from tests.cuda.choice.test_tables import FIVE, SUM

GOLDEN = 0x9E3779B97F4A7C15
values = st.integers(-(2**63), 2**63 - 1)
bounds = st.lists(st.tuples(values, values), min_size=1, max_size=4)


@given(bounds)
def test_ranges_hold_what_was_seen_and_more(seen: list[tuple[int, int]]) -> None:
    made = packed_ranges(seen)
    if made is None:
        # one bit more than the values need, and two of margin
        assert sum(max(b - a + 1, 0).bit_length() + 2 for a, b in seen) > SAFE_BITS
        return
    assert math.prod(codes for _, codes in made) <= 1 << SAFE_BITS
    for (least, greatest), (base, codes) in zip(seen, made, strict=True):
        if least <= greatest:
            # as much below what was seen, twice as much above; the last code may stand for null
            span = greatest - least
            assert least - base >= span
            assert greatest + 2 * span - base < codes - 1


@given(bounds, st.integers(1, 2**31))
def test_ranges_that_keys_may_fill_are_near(seen: list[tuple[int, int]], rows: int) -> None:
    made = packed_ranges(seen, rows)
    near = math.prod(max(b - a + 1, 0) + 2 * (max(b - a + 1, 0) // 192 + 4) + 1 for a, b in seen)
    if near > 2 * rows:
        assert made == packed_ranges(seen)
        return
    assert made is not None
    assert math.prod(codes for _, codes in made) == near <= 1 << SAFE_BITS
    for (least, greatest), (base, codes) in zip(seen, made, strict=True):
        if least <= greatest:
            span = greatest - least + 1
            # a 256th at both ends, and the last code may stand for null
            assert base <= least - span / 256 - 3
            assert base + codes - 1 > greatest + span / 256 + 3


def test_dense_pairs_are_addressed_directly() -> None:
    number = KeyPart("i64", False)
    query = replace(FIVE, keys=(number, number), chosen=RANGED)
    # 256 times 256 values, as a sample sees them, and as many rows of each
    ranges = packed_ranges([(0, 255), (-10, 245)], 10**8)
    assert ranges is not None
    sizes = [codes for _, codes in ranges]
    (a, _), (b, _) = ranges
    words = -a * sizes[1] - 10 - b, (255 - a) * sizes[1] + 245 - b
    estimate = KeySummary(65_536, 65_536, 0.0, 1e-5, bounds=words)
    made = decide(query, 10**8, estimate, H200)
    assert made.window > 65_536
    assert decide(query, 10**8, estimate, H200, "direct").kernel == "direct"


def test_keys_that_fit_a_word_may_be_numbered() -> None:
    short, number = KeyPart("i32", True), KeyPart("i64", False)

    def form(*keys: KeyPart, rows: int = 10**8, far: int = 255) -> Any:
        query = Query(keys, True, (), (), ())
        assert query.form == PACKED
        return numbered_by_ranges(query, [(-5, far)] * len(keys), rows)

    made = form(KeyPart("i32", False), KeyPart("u16", True))
    assert made is not None
    query = made.query
    assert (query.form, query.extra_columns, query.key_outputs) == (RANGED, 2, 2)
    assert not made.step
    assert [base for base, _ in made.ranges] == [-10, -10]
    assert [column.data for column in made.extra] == [2**64 - 10] * 2
    assert representations_of(replace(query, chosen=None))[1] == query
    # more combinations than twice the rows, one column, no integers
    assert form(KeyPart("i32", False), KeyPart("u16", True), rows=30_000) is None
    assert form(KeyPart("i32", False), KeyPart("u16", True), far=10**6) is None
    assert form(number) is None
    assert form(short) is None
    assert form(KeyPart("f32", False), KeyPart("i16", False)) is None


NUMBER = Query((KeyPart("i64", False),), False, (), (), ())


def code_of(value: int, columns: list[Any]) -> int:
    """``EveryStep::code`` of kernels/key/ranged.cuh."""
    step, range_ = columns
    product = (value - (range_.data or 0)) * step.data % 2**64
    power = step.mask or 0
    return (product >> power) | (product << (64 - power) % 64) % 2**64


@given(
    st.integers(2, 2**50),
    st.integers(-(2**62), 2**62),
    st.sets(st.integers(0, 5_000), min_size=16, max_size=200),
    st.integers(-(2**63), 2**63 - 1),
)
def test_keys_that_lie_whole_steps_apart(
    step: int, first: int, steps: set[int], other: int
) -> None:
    keys = [first + step * i for i in sorted(steps) if first + step * i < 2**63]
    made = numbered_by_steps(
        NUMBER, np.array(keys, dtype=np.int64), (keys[0], keys[-1]), 10**6
    ) if keys else None  # fmt: skip
    if made is None:
        span = (max(steps) + 200) * step
        assert len(keys) < 16 or not -(2**63) + span < first < 2**63 - span
        return
    ((base, codes),) = made.ranges
    assert (made.query.form, made.query.extra_columns) == (STEPPED, 2)
    # the step may be a multiple of the one that was meant
    assert made.step % step == 0
    columns = made.extra
    for key in keys:
        code = code_of(key, columns)
        assert base + code * made.step == key
        assert code < codes - 1
    is_number = base <= other < base + codes * made.step and (other - base) % made.step == 0
    assert (code_of(other, columns) < codes) == is_number


def test_keys_without_steps_have_no_numbers_of_them() -> None:
    def form(seen: Any, rows: int = 10**6, query: Query = NUMBER) -> Any:
        keys = np.array(seen, dtype=np.int64)
        return numbered_by_steps(query, keys, (int(keys.min()), int(keys.max())), rows)

    apart = np.arange(100) * 1_000
    assert form(apart) is not None
    assert form([*apart, 99_001]) is None
    assert form(np.arange(100)) is None
    assert form(apart[:15]) is None
    # more numbers than twice the rows
    assert form(np.arange(100) * 1_000 + (np.arange(100) == 99) * 10**12) is None
    assert form(apart, query=replace(NUMBER, keys=(KeyPart("i32", False),))) is None
    assert form(apart, query=replace(NUMBER, keys=(KeyPart("i64", False),) * 2)) is None
    # numbers that would end beyond those of 64 bits
    assert form(2**63 - 1 - apart) is None
    assert form([int(key) - 2**63 for key in apart]) is None


def test_keys_with_values_between_the_steps_are_taken_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "_out_of_range", Cache(2))
    keys = np.arange(100) * 1_000
    remember_out_of_range(NUMBER, ("a",))
    assert numbered_by_steps(NUMBER, keys, (0, 99_000), 10**6, ("a",)) is None
    assert numbered_by_steps(NUMBER, keys, (0, 99_000), 10**6, ("b",)) is not None


@pytest.mark.parametrize(
    "sizes", [(80, 80), (1_000, 12), (100, 100, 100), (128, 128, 128), (100_000, 31)]
)
def test_combinations_that_all_occur_have_slots(sizes: tuple[int, ...]) -> None:
    query = replace(SUM, keys=(KeyPart("i64", False),) * len(sizes), chosen=RANGED)
    ranges = packed_ranges([(1, size) for size in sizes], 10**8)
    assert ranges is not None
    groups, numbers = math.prod(sizes), math.prod(codes for _, codes in ranges)
    estimate = KeySummary(groups, groups, 0.0, 1 / groups, bounds=(0, numbers - 1))
    made = decide(query, 10**8, estimate, H200)
    assert made.kernel == "direct" or made.window > 0


def test_values_out_of_range_get_wider_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query((KeyPart("i64", False),) * 2, False, (), (), ())
    monkeypatch.setattr(kept, "_out_of_range", Cache(256))
    monkeypatch.setattr(kept, "_bounds", lambda call: [(0, 99), (0, 99)])
    call: Any = SimpleNamespace(query=query, rows=10**8, key_labels=("a", "b"))

    def codes(slots: bool = True) -> list[int]:
        return [column.offset for column in narrowest_keys(call, slots).extra]

    assert codes() == [109, 109]
    assert codes(False) == [512, 512]
    remember_out_of_range(query, ("a", "c"))
    assert codes() == [109, 109]
    remember_out_of_range(query, ("a", "b"))
    assert codes() == [512, 512]
    kept.forget_out_of_range()
    assert codes() == [109, 109]
    for i in range(1_000):
        remember_out_of_range(query, (str(i),))
    assert len(kept._out_of_range.keys()) <= 256


@given(bounds)
def test_two_words_hold_what_was_seen_and_more(seen: list[tuple[int, int]]) -> None:
    made = two_word_ranges(seen)
    needed = [max(b - a + 1, 0).bit_length() for a, b in seen]
    if made is None:
        assert max(needed) + 1 >= 64 or sum(needed) + len(seen) > 128
        return
    assert sum(bits for _, bits in made) <= 128
    for (least, greatest), (base, bits) in zip(seen, made, strict=True):
        assert bits < 64
        if least <= greatest:
            # as much room as the values take, a third of it below; one code more for null
            span = greatest - least
            assert least - base >= span // 3
            assert greatest + span // 3 - base < (1 << bits) - 1


def test_keys_wider_than_two_words_may_fit_them(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query((KeyPart("i64", True),) * 4, True, (), (), ())
    assert query.form == HASHED
    monkeypatch.setattr(kept, "_out_of_range", Cache(256))
    monkeypatch.setattr(kept, "_bounds", lambda call: [(-5, 10**9 - 6)] * 4)
    with_nulls = [SimpleNamespace(mask=1)] * 4
    call: Any = SimpleNamespace(query=query, rows=10**8, key_labels=(), columns=with_nulls)
    keys = narrowest_keys(call, True)
    made, columns = keys.query, keys.extra
    assert (made.form, made.form.made_words, made.extra_columns) == (WIDE_RANGED, 2, 6)
    assert keys.codes is None
    assert not made.form.is_gathered
    assert "ranges" not in made.units
    assert made in representations_of(query)
    assert [column.offset for column in columns] == [32] * 4
    assert [column.data for column in columns] == [2**64 - 5 - 2**30] * 4
    remember_out_of_range(query, ())
    assert narrowest_keys(call, True).query == query
    monkeypatch.setattr(kept, "_bounds", lambda call: [(-5, 10**9 - 6)] * 3 + [(0, 2**40)])
    kept.forget_out_of_range()
    assert narrowest_keys(call, True).query == query


def test_no_packed_key_is_mixed_to_the_empty_word() -> None:
    """The inverse of ``mix`` in kernels/core/types.cuh."""
    key = (2**64 - 1) * pow(GOLDEN, -1, 2**64) % 2**64
    assert key ^ key >> 32 >= 2**SAFE_BITS


def test_representations_of_a_query() -> None:
    text, number = KeyPart("i32", True, string=True), KeyPart("i64", False)
    wide = KeyPart("i128", True)

    def families(*keys: KeyPart) -> list[str]:
        return [q.form.name for q in representations_of(Query(keys, True, (), (), ()))]

    assert families(number) == ["Packed"]
    assert families(number, number) == ["Wide", "Ranged"]
    assert families(text) == ["Hashed", "Coded"]
    assert families(text, number) == ["Hashed", "Coded"]
    assert families(text, text) == ["Hashed", "Coded"]
    assert families(text, wide) == ["Hashed"]
    assert families(*[text] * 5) == ["Hashed"]
    assert families(wide) == ["Hashed"]
