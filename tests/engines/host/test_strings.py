"""Strings of one length as integers: lossless, and declined where it does not apply."""

from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.engines.host import compiled, grouping

_CHARACTERS = ["a", "b", "z", "0", " ", "\0", "\x7f", "é", "ß", "漢", "🦆"]
LENGTHS = (1, 3, 7, 8, 9, 16, 31, 32)


@st.composite
def words_of_one_length(draw: st.DrawFn) -> list[str]:
    """Words of equally many bytes, of characters of one to four bytes."""
    length = draw(st.integers(1, 32))
    return [_fit(draw(st.lists(st.sampled_from(_CHARACTERS), max_size=32)), length) for _ in "1234"]


def _fit(characters: list[str], length: int) -> str:
    word = ""
    for character in characters:
        if len((word + character).encode()) <= length:
            word += character
    return word + "x" * (length - len(word.encode()))


def many(words: list[str], rows: int = 1100) -> pd.Series:
    rng = np.random.default_rng(len(words))
    return pd.Series([words[i] for i in rng.integers(0, len(words), rows)], dtype="str")


def check(column: pd.Series) -> None:
    """Assert that codes are below the size they claim and give the strings back."""
    packed = grouping.pack(column)
    assert packed is not None
    codes = packed.codes()
    assert len(codes) == len(column)
    assert codes.min() >= 0
    assert int(codes.max()) < 1 << packed.bits
    back = packed.unpack(codes, column.dtype)
    assert back.dtype == column.dtype
    assert list(back) == list(column)


@given(words_of_one_length())
def test_round_trip_and_as_few_codes_as_words(words):
    column = many(words)
    packed = grouping.pack(column)
    if packed is not None:  # None: more than 62 bits differ
        check(column)
        assert len(set(packed.codes().tolist())) == column.nunique()


@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_and_every_place(length):
    # words that differ in one byte, once in every place
    words = ["a" * i + "c" + "a" * (length - i - 1) for i in range(length)]
    check(many(["a" * length, *words]))


def test_constant_columns_need_no_bits():
    packed = grouping.pack(many(["constant"]))
    assert packed.bits == 0
    assert not packed.codes().any()
    check(many(["constant"]))


def test_all_bits_of_the_highest_byte():
    check(many(["\0" * 4, "🦆", "~~~~"]))


def test_the_widest_code_that_is_packed():
    # the top bit of ASCII never differs: eight bytes make 56 bits, nine would make 63
    everything = ["\0" * 8, "\x7f" * 8]
    assert grouping.pack(many(everything)).bits == 56
    check(many(everything))
    assert grouping.pack(many([w + w[:1] for w in everything])) is None


@pytest.mark.parametrize("length", [1, 7, 8, 9, 31])
def test_slices_read_nothing_beside_them(length):
    words = ["a" * length, "b" * length, "a" + "b" * (length - 1)]
    inner = many(words)
    column = pd.concat([pd.Series(["longer" * 9, ""]), inner, pd.Series(["", None])])
    data = pd.Series(column.tolist(), dtype="str")
    check(data.iloc[2:-2])
    check(data.iloc[7:-2])
    # the end of the slice is the end of the buffer
    check(pd.Series(["longer" * 9, *inner], dtype="str").iloc[1:])


def test_a_null_outside_the_slice_does_not_matter():
    check(pd.Series([None, *many(["aa", "bb"]), None], dtype="str").iloc[1:-1])


def test_several_chunks():
    column = pd.concat([many(["a", "b"]).iloc[5:], many(["b", "c"]).iloc[3:900]])
    check(column)


@pytest.mark.parametrize("rows", [(1 << 15) - 1, 1 << 15, (1 << 15) + 1, 3 << 15])
def test_columns_of_several_blocks(rows):
    values = many(["id1", "id2", "ie9"], rows)
    values.iloc[-1] = "zzz"  # differs in the last block only
    check(values)


def test_another_length_in_the_last_block():
    values = many(["aa", "bb"], 3 << 15).tolist()
    # the mean length stays two
    column = pd.Series([*values, "a", "aaa"], dtype="str")
    assert grouping.pack(column) is None


@pytest.mark.parametrize(
    "values",
    [
        ["a", "bb"] * 1000,
        ["a", "bb", "ccc"] * 1000,
        [""] * 2000,
        ["a", None] * 1000,
        [None] * 2000,
        ["x" * 33] * 2000,
    ],
    ids=["two", "of mean length", "empty", "null", "only null", "long"],
)
def test_declined(values):
    assert grouping.pack(pd.Series(values, dtype="str")) is None


@pytest.mark.parametrize("encode", [grouping._encode_text, grouping._encode_short])
@pytest.mark.parametrize("dtype", ["str", "string[pyarrow]"])
@given(data=st.data())
def test_texts_are_numbered_as_they_are_equal(dtype, encode, data):
    letters = st.sampled_from([*_CHARACTERS, "1234567", "12345678"])
    words = data.draw(st.lists(st.lists(letters, max_size=5).map("".join), min_size=1))
    nulls = data.draw(st.booleans())
    column = pd.Series(words * 3 + [None] * (3 * nulls), dtype=dtype)
    start = data.draw(st.integers(0, len(words)))
    column = column.iloc[start:]
    with mock.patch.object(compiled, "LEAST_ROWS", 1):
        encoded = encode(column)
    if encoded is None:  # some text has eight bytes or more
        assert encode is grouping._encode_short
        assert max(len(word.encode()) for word in column.dropna()) > 7
        return
    expected, uniques = pd.factorize(column)
    if not nulls:
        assert encoded.codes.tolist() == expected.tolist()
        assert list(encoded.decode(np.arange(encoded.size))) == list(uniques)
    back = encoded.decode(encoded.codes)
    assert back.dtype == column.dtype
    assert back.isna().tolist() == column.isna().tolist()
    assert list(back[~back.isna()]) == list(column.dropna())


def test_many_short_texts_make_the_table_grow():
    column = pd.Series([f"{i % 70_000}" for i in range(150_000)], dtype="str")
    encoded = grouping._encode_short(column)
    assert encoded.size == 70_000
    assert encoded.codes.tolist() == [i % 70_000 for i in range(150_000)]
