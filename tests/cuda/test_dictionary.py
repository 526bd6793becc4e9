"""Dictionaries of strings, without a GPU: how many slots, which launches, which hashes collide."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.cuda import dictionary
from dask_gpuagg.cuda.call import Columns, DeviceColumn, Part
from dask_gpuagg.cuda.choice.summary import KeySummary, window
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import TEXT_WORDS
from dask_gpuagg.cuda.query.types import KeyPart
from tests.cuda.choice.test_choose import H200
from tests.cuda.specialisations import INT64, ONE, of, string

TEXT = DeviceColumn(1, 0, 0, 2, 10**8)


def factors(words: int) -> list[int]:
    """Of 32 bits each: those of ``hash_words`` in kernels/key/dictionary.cuh."""
    made = [0x9E3779B9]
    while len(made) < 2 * words:
        made.append((made[-1] * 0x2C9277B5 + 2) % 2**32)
    return made


def hash_of(text: bytes, words: int) -> int:
    """Before it is scrambled, of a string of no more words."""
    halves = np.frombuffer(text.ljust(8 * words, b"\0"), "<u4").tolist()
    return sum(h * f for h, f in zip(halves, factors(words), strict=True)) % 2**64


def _digits(difference: int) -> list[int] | None:
    """Differences of four ASCII characters that make one of the words of 32 bits, if there are."""
    digits = []
    for _ in range(4):
        digit = (difference + 128) % 256 - 128
        digits.append(digit)
        difference = (difference - digit) // 256
    return digits if difference == 0 and max(map(abs, digits)) < 90 else None


def colliding(words: int, rng: np.random.Generator) -> list[str]:
    """Two texts of so many words that have one hash: differences by factors cancel out."""
    made = factors(words)
    for i, j in permutations(range(2 * words), 2):
        first, second = _digits(made[j]), _digits(-made[i])
        if first is None or second is None:
            continue
        texts = rng.integers(33, 123, (2, 8 * words), dtype=np.uint8)
        texts[1] = texts[0]
        for place, digits in ((4 * i, first), (4 * j, second)):
            for k, digit in enumerate(digits):
                low = 33 + max(0, -digit)
                texts[0, place + k], texts[1, place + k] = low, low + digit
        return [row.tobytes().decode() for row in texts]
    raise AssertionError("no two factors cancel out by characters")


def test_colliding_texts_collide() -> None:
    words = TEXT_WORDS
    a, b = colliding(words, np.random.default_rng(1))
    assert a != b
    assert a.isascii()
    assert len(a) == len(b) == 8 * words
    assert hash_of(a.encode(), words) == hash_of(b.encode(), words)


@given(st.integers(1, 2**31 - 1), st.integers(1, 2**28))
def test_launches_take_every_row_once(rows: int, groups: int) -> None:
    made = list(dictionary.launches(rows, groups))
    assert made[0][0] == 0
    assert made[-1][1] == rows
    assert [end for _, end in made[:-1]] == [first for first, _ in made[1:]]
    assert all(first < end for first, end in made)
    # whole words of a mask
    assert all(end % 32 == 0 for _, end in made[:-1])


@given(st.integers(10, 10**7))
def test_numbers_count_as_dense(groups: int) -> None:
    """Slots are so few for the groups that numbers have slots of their own in tables."""
    wanted = dictionary._groups(KeySummary(groups, groups, 0.0, 0.0), 10**9)
    slots = int(dictionary._ROOMY * wanted) + dictionary._MORE
    estimate = KeySummary(groups, groups, 0.0, 0.0, bounds=(0, slots))
    found = window(of([KeyPart("u32", False)], ONE), estimate)
    assert found is not None
    assert found[1] <= 2 * groups + 64


def test_strings_that_hardly_repeat_have_no_dictionary() -> None:
    even = KeySummary(10**6, 4 * 10**6, 0.0, 0.0)
    assert dictionary._groups(even, 2 * 10**7) > 10**6
    assert dictionary._groups(even, 15 * 10**6) == 0
    # of skewed ones the likely number misses many
    skewed = KeySummary(10**6, 4 * 10**6, 0.0, 0.0, skewed=True)
    assert dictionary._groups(skewed, 2 * 10**7) == 2 * 10**7 // 16
    assert dictionary._groups(skewed, 10**8) > 4 * 10**6
    assert dictionary._groups(skewed, 15 * 10**6) == 0


def columns_of(query: Query, rows: int = 10**7, parts: int = 1) -> Columns:
    keys = [TEXT for _ in query.keys]
    part = Part(keys, [DeviceColumn(3) for _ in query.inputs], rows // parts)
    return Columns([part] * parts, H200, None, None)


def test_one_column_of_short_strings_may_have_a_dictionary() -> None:
    strings = of([string()], ONE)
    assert dictionary.may_have_dictionary(columns_of(strings), strings)
    assert not dictionary.may_have_dictionary(columns_of(strings, 10**5), strings)
    assert not dictionary.may_have_dictionary(columns_of(strings, parts=2), strings)
    assert not dictionary.may_have_dictionary(columns_of(strings, 2 * 10**6), strings)
    for other in (of(INT64, ONE), of([string(), string()], ONE)):
        assert not dictionary.may_have_dictionary(columns_of(other), other)


def test_all_aggregations_share_the_kernels_of_their_strings() -> None:
    keys = [string("i64", masked=True)]
    one, more = of(keys, ONE, True), of(keys, {("i64", True): ["sum", "var"]}, True)
    assert one.texts == more.texts
    assert {"dictionary", "encode_near", "encode_far", "sample"} <= set(one.texts.units)
    assert "dictionary" not in one.units
    assert one.texts != of([string("i64")], ONE, True).texts
