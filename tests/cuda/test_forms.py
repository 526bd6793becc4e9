"""Narrower forms of wide keys."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.cuda.coded import WORD_BITS
from dask_gpuagg.cuda.forms import forms_of, packed_ranges, slot_words
from dask_gpuagg.cuda.parts import KeyPart
from dask_gpuagg.cuda.source import Query

GOLDEN = 0x9E3779B97F4A7C15
values = st.integers(-(2**63), 2**63 - 1)
bounds = st.lists(st.tuples(values, values), min_size=1, max_size=4)


@given(bounds)
def test_ranges_hold_what_was_seen_and_more(seen: list[tuple[int, int]]) -> None:
    made = packed_ranges(seen)
    if made is None:
        # one bit more than the values need, and two of margin
        assert sum(max(b - a + 1, 0).bit_length() + 2 for a, b in seen) > WORD_BITS
        return
    assert sum(bits for _, bits in made) <= WORD_BITS
    for (least, greatest), (base, bits) in zip(seen, made, strict=True):
        if least <= greatest:
            # as much below what was seen, twice as much above; the last code may stand for null
            span = greatest - least
            assert least - base >= span
            assert greatest + 2 * span - base < 2**bits - 1


def test_no_packed_key_is_mixed_to_the_empty_word() -> None:
    """The inverse of ``mix`` in kernels/core/types.cuh."""
    key = (2**64 - 1) * pow(GOLDEN, -1, 2**64) % 2**64
    assert key ^ key >> 32 >= 2**WORD_BITS


def test_the_forms_that_data_may_allow() -> None:
    text, number = KeyPart("i32", True, string=True), KeyPart("i64", False)
    wide = KeyPart("i128", True)

    def families(*keys: KeyPart) -> list[str]:
        return [q.family for q in forms_of(Query(keys, True, (), (), ()))]

    assert families(number) == ["Packed"]
    assert families(number, number) == ["Wide", "Ranged"]
    assert families(text) == ["Hashed", "Coded", "Wide"]
    assert families(text, number) == ["Hashed", "Coded"]
    assert families(text, text) == ["Hashed", "Coded"]
    assert families(text, wide) == ["Hashed"]
    assert families(*[text] * 5) == ["Hashed"]
    assert families(wide) == ["Hashed"]


def test_slots_of_the_index_have_room_for_most_keys() -> None:
    text, number = KeyPart("i32", False, string=True), KeyPart("i64", True)

    def words(*keys: KeyPart, mean: list[float]) -> int:
        return slot_words(Query(keys, True, (), (), ()), mean)

    # word and row, a length, five words
    assert words(text, mean=[40.0]) == 8
    assert words(text, mean=[41.0]) == 12
    # some are longer than the mean
    assert words(text, mean=[39.5]) == 12
    # a null has a word of its own
    assert words(text, number, mean=[24.0]) == 8
    assert words(text, number, mean=[25.0]) == 12
    assert words(text, text, mean=[24.0, 8.0]) == 8
    # no room: rows are compared with rows
    assert words(text, mean=[105.0]) == 2
