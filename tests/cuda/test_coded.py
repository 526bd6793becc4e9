"""Keys as the bits in which they differ: the plan, and what the kernels do with it, in Python."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dask_gpuagg.cuda.coded import PIECES, WORD_BITS, Codes, Seen, codes_of, moves_of
from dask_gpuagg.cuda.source import KeyPart

ALL = 2**64 - 1
TEXT = KeyPart("i32", False, string=True)
NUMBER = KeyPart("i64", False)
words = st.integers(0, ALL)


def compressed(x: int, mask: int) -> int:
    """``compressed`` of kernels/key/coded.cuh."""
    x &= mask
    for i, moves in enumerate(moves_of(mask)):
        moved = x & moves
        x = (x ^ moved) | moved >> (1 << i)
    return x


def expanded(x: int, mask: int) -> int:
    """``expanded`` of kernels/key/coded.cuh."""
    for i, moves in reversed(list(enumerate(moves_of(mask)))):
        x = (x & ~moves) | (x << (1 << i) & ALL & moves)
    return x & mask


@given(words, words, words)
def test_bits_move_together_and_back(x: int, mask: int, above: int) -> None:
    bits = [x >> i & 1 for i in range(64) if mask >> i & 1]
    code = compressed(x, mask)
    assert code == sum(bit << i for i, bit in enumerate(bits))
    # whatever else stands above the code
    assert expanded((code | above << len(bits)) & ALL, mask) == x & mask


def pieces(text: bytes) -> list[int]:
    padded = text.ljust(8 * PIECES, b"\0")
    return [int.from_bytes(padded[8 * i : 8 * i + 8], "big") for i in range(PIECES)]


def seen_texts(texts: Sequence[bytes]) -> Seen:
    """``see`` of kernels/estimate/bits.cuh."""
    seen = Seen()
    seen.all[:] = seen.none[:] = [ALL] * (PIECES + 1)
    for text in texts:
        length = len(text) if len(text) <= 8 * PIECES else ALL
        for i, word in enumerate([*pieces(text), length]):
            seen.all[i] &= word
            seen.none[i] &= ~word & ALL
    return seen


def seen_numbers(numbers: Sequence[int]) -> Seen:
    """``range_of`` of kernels/estimate/ranges.cuh."""
    seen = Seen()
    seen.all[0] = min(n + 2**63 for n in numbers)
    seen.none[0] = min(2**63 - 1 - n for n in numbers)
    return seen


def word_of(codes: Codes, keys: Sequence[bytes | int | None]) -> int | None:
    """``Coded::make`` of kernels/key/coded.cuh; None if the row is odd."""
    word = 0
    for key, code in zip(keys, codes.column, strict=False):
        if key is None:
            word |= 1 << code.null_bit
        elif isinstance(key, int):
            above = (key - code.base) % 2**64
            if above > code.range:
                return None
            word |= above << code.from_bit
        else:
            if len(key) & ~code.range != code.base or len(key) > 8 * code.pieces:
                return None
            word |= (len(key) & code.range) << code.from_bit
            for piece, x in list(zip(code.piece, pieces(key), strict=True))[: code.pieces]:
                if x & ~piece.varying != piece.constant:
                    return None
                word |= compressed(x, piece.varying) << piece.from_bit
    return word


def text_of(codes: Codes, column: int, word: int) -> bytes:
    """``write_texts`` of kernels/output/coded.cuh."""
    code = codes.column[column]
    length = code.base | (word >> code.from_bit & code.range)
    made = [p.constant | expanded(word >> p.from_bit, p.varying) for p in code.piece]
    return b"".join(p.to_bytes(8, "big") for p in made)[:length]


numbered = st.integers(0, 10**7).map(lambda n: b"id%d" % n)
padded = st.integers(0, 10**9).map(lambda n: b"%040d" % n)
any_text = st.binary(max_size=70)
columns = st.one_of(*(st.lists(t, min_size=1, max_size=20) for t in (numbered, padded, any_text)))


@given(columns, st.data())
def test_codes_of_a_column_tell_its_strings_apart(texts: list[bytes], data: st.DataObject) -> None:
    sampled = data.draw(st.lists(st.sampled_from(texts), min_size=1))
    codes = codes_of([TEXT], False, [seen_texts(sampled)])
    assume(codes is not None)
    assert codes is not None
    found = {text: word_of(codes, [text]) for text in texts}
    assert all(found[text] is not None for text in sampled)
    for text, word in found.items():
        if word is not None:
            assert 0 <= word < 2**WORD_BITS
            assert text_of(codes, 0, word) == text


@given(
    st.lists(st.tuples(numbered, st.integers(-(2**20), 2**20), st.booleans()), min_size=1),
    st.booleans(),
)
def test_codes_of_several_columns(rows: list[tuple[bytes, int, bool]], keep_nulls: bool) -> None:
    texts, numbers, present = zip(*rows, strict=True)
    keys = [KeyPart("i32", True, string=True), KeyPart("i64", True)]
    codes = codes_of(keys, keep_nulls, [seen_texts(texts), seen_numbers(numbers)])
    assume(codes is not None)
    assert codes is not None
    of: dict[object, int] = {}
    for text, number, there in zip(texts, numbers, present, strict=True):
        key = (text if there or not keep_nulls else None, number)
        word = word_of(codes, key)
        assert word is not None
        assert word < 2**WORD_BITS
        assert of.setdefault(key, word) == word
        if key[0] is not None:
            assert text_of(codes, 0, word) == text
        code = codes.column[1]
        assert (code.base + (word >> code.from_bit & code.range)) % 2**64 == number % 2**64
    assert len(set(of.values())) == len(of)


def test_words_order_as_the_strings_do() -> None:
    """Runs and ranges of keys are those of their codes."""
    texts = sorted({b"%012d" % (n * n) for n in range(2000)})
    codes = codes_of([TEXT], False, [seen_texts(texts)])
    assert codes is not None
    found = [word_of(codes, [t]) for t in texts]
    assert found == sorted(found, key=lambda word: word or -1)


@pytest.mark.parametrize(
    ("sampled", "later"),
    [
        ([b"id001", b"id013"], [b"id999", b"id640"]),
        ([b"id00123", b"id00998"], [b"id01000", b"id00777"]),
        ([b"x7", b"x9"], [b"x0"]),
        ([b"user_1042", b"user_77345", b"user_98760", b"user_53199"], [b"user_7", b"user_45"]),
    ],
)
def test_digits_that_no_sample_saw(sampled: list[bytes], later: list[bytes]) -> None:
    codes = codes_of([TEXT], False, [seen_texts(sampled)])
    assert codes is not None
    assert all(word_of(codes, [text]) is not None for text in sampled + later)


@pytest.mark.parametrize("other", [b"id0x1", b"id01", b"id0001", b"ie001", b"", b"id001\0"])
def test_other_strings_are_odd(other: bytes) -> None:
    codes = codes_of([TEXT], False, [seen_texts([b"id001", b"id013"])])
    assert codes is not None
    assert word_of(codes, [other]) is None


def test_strings_without_a_code() -> None:
    long, random = [b"a" * 65], [bytes(range(i, i + 20)) for i in range(0, 200, 7)]
    for texts in (long, [b"", b"a" * 64, b"a" * 65], random):
        assert codes_of([TEXT], False, [seen_texts(texts)]) is None
    # too many bits together
    texts = [b"%08d" % n for n in range(0, 10**8, 123_457)]
    assert codes_of([TEXT, NUMBER], False, [seen_texts(texts), seen_numbers([0, 2**26])]) is None
    assert codes_of([TEXT, NUMBER], False, [seen_texts(texts), seen_numbers([0, 2**20])])


def test_no_string_in_the_sample() -> None:
    codes = codes_of([KeyPart("i32", True, string=True)], True, [seen_texts([])])
    assert codes is not None
    assert word_of(codes, [None]) == 1
    assert word_of(codes, [b""]) == 0
    assert word_of(codes, [b"a"]) is None
