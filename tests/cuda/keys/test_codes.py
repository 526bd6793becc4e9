"""Keys of few possible values as numbers: the plan, and what the kernels make of it, in Python."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dask_gpuagg.cuda.keys.codes import codes_of, codes_of_seen
from dask_gpuagg.cuda.keys.ranges import SAFE_BITS
from dask_gpuagg.cuda.query.structs import Codes, Seen
from dask_gpuagg.cuda.query.tuning import PIECES
from dask_gpuagg.cuda.query.types import KeyPart

PLACES = 8 * PIECES
NOTHING = 0xFFFFFFFF
TEXT = KeyPart("i32", False, string=True)
NUMBER = KeyPart("i64", False)


def seen_texts(texts: Sequence[bytes]) -> Seen:
    """``see`` of kernels/estimate/bytes.cuh."""
    seen = Seen()
    seen.low[:] = seen.below[:] = [NOTHING] * (PLACES + 1)
    for text in texts:
        for i, byte in enumerate(text[:PLACES].ljust(PLACES, b"\0")):
            seen.low[i] = min(seen.low[i], byte)
            seen.below[i] = min(seen.below[i], 255 - byte)
        seen.low[PLACES] = min(seen.low[PLACES], len(text))
        seen.below[PLACES] = min(seen.below[PLACES], 0x7FFFFFFF - len(text))
    return seen


def seen_numbers(numbers: Sequence[int]) -> Seen:
    """``range_of`` of kernels/estimate/ranges.cuh."""
    seen = Seen()
    seen.least = min(n + 2**63 for n in numbers)
    seen.greatest = min(2**63 - 1 - n for n in numbers)
    return seen


def borrowed(taken: int, of: int) -> bool:
    """``borrowed`` of kernels/key/coded.cuh, at the ends of bytes."""
    difference = (of - taken) % 2**32
    return bool((~of & taken | (~of | taken) & difference) & 0x80808080)


def word_of(codes: Codes, keys: Sequence[bytes | int | None]) -> int | None:
    """``Coded::make`` of kernels/key/coded.cuh; None if the row is odd."""
    word = 0
    for key, code in zip(keys, codes.column, strict=False):
        if key is None:
            continue
        if isinstance(key, int):
            made = (key - code.base) % 2**64
            if made > code.range:
                return None
        else:
            made = 0
            if not 0 <= len(key) - code.base <= code.range:
                return None
            # what lies behind a string is no 0 but where lengths differ
            rest = b"\0" if code.range else b"?"
            padded = key.ljust(PLACES, rest)
            for q, quad in enumerate(code.quad[: 2 * code.pieces]):
                four = int.from_bytes(padded[4 * q : 4 * q + 4], "little")
                if not code.range and q // 2 == code.pieces - 1:
                    four &= code.tail >> 32 * (q % 2) & 0xFFFFFFFF
                if quad.all == 1:
                    if four != quad.least:
                        return None
                    continue
                if borrowed(quad.least, four) or borrowed(four, quad.greatest):
                    return None
                digits = (four - quad.least).to_bytes(4, "little")
                value = digits[0]
                for digit, values in zip(digits[1:], quad.values, strict=True):
                    value = value * values + digit
                made = made * quad.all + value
            if code.range:
                made = made * (code.range + 1) + len(key) - code.base
        word += (made + code.nullable) * code.scale
    return word


def test_pieces_that_are_always_the_same() -> None:
    codes = codes_of([TEXT], False, [seen_texts([b"a" * 24 + b"%020d" % n for n in range(99)])])
    assert codes is not None
    assert codes.column[0].constant == 0b011111  # digits differ in the last three bytes of 44


def text_of(codes: Codes, column: int, word: int) -> bytes | None:
    """``write_texts`` of kernels/output/coded.cuh."""
    code = codes.column[column]
    made = word // code.scale % code.all
    if code.nullable and made == 0:
        return None
    made -= code.nullable
    length = code.base + (made % (code.range + 1) if code.range else 0)
    made //= code.range + 1
    text = b""
    for quad in reversed(code.quad[: 2 * code.pieces]):
        four, value = quad.least, made % quad.all
        made //= quad.all
        for i in (3, 2, 1):
            four += value % quad.values[i - 1] << 8 * i
            value //= quad.values[i - 1]
        text = (four + value).to_bytes(4, "little") + text
    return text[:length]


numbered = st.integers(0, 10**7).map(lambda n: b"id%d" % n)
padded = st.integers(0, 10**9).map(lambda n: b"%040d" % n)
any_text = st.binary(max_size=70)
columns = st.one_of(*(st.lists(t, min_size=1, max_size=20) for t in (numbered, padded, any_text)))


@given(columns, st.data())
def test_different_strings_have_different_codes(texts: list[bytes], data: st.DataObject) -> None:
    sampled = data.draw(st.lists(st.sampled_from(texts), min_size=1))
    codes = codes_of([TEXT], False, [seen_texts(sampled)])
    assume(codes is not None)
    assert codes is not None
    found = {text: word_of(codes, [text]) for text in texts}
    assert all(found[text] is not None for text in sampled)
    for text, word in found.items():
        if word is not None:
            assert 0 <= word < 2**SAFE_BITS
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
        assert word < 2**SAFE_BITS
        assert of.setdefault(key, word) == word
        assert text_of(codes, 0, word) == key[0]
        code = codes.column[1]
        made = word // code.scale % code.all - code.nullable
        assert (code.base + made) % 2**64 == number % 2**64
    assert len(set(of.values())) == len(of)


def test_numbers_of_one_length_are_their_own_codes() -> None:
    """As dense as integers are, whose tables are the quickest."""
    for texts in (
        [b"id%09d" % n for n in range(0, 999, 7)],
        [b"%02d-%02d" % (n // 99, n % 99) for n in range(9801)],
    ):
        codes = codes_of([TEXT], False, [seen_texts(texts)])
        assert codes is not None
        found = [word_of(codes, [t]) for t in texts]
        assert found == [int(t.strip(b"id").replace(b"-", b"")) for t in texts]


@pytest.mark.parametrize(
    ("sampled", "later"),
    [
        ([b"id001", b"id013"], [b"id999", b"id640"]),
        ([b"id00123", b"id00998"], [b"id01000", b"id00777"]),
        ([b"x7", b"x9"], [b"x0"]),
        ([b"user_1042", b"user_77345", b"user_98760", b"user_53199"], [b"user_7", b"user_45"]),
    ],
)
def test_digits_outside_of_the_sample_have_codes(sampled: list[bytes], later: list[bytes]) -> None:
    codes = codes_of([TEXT], False, [seen_texts(sampled)])
    assert codes is not None
    assert all(word_of(codes, [text]) is not None for text in sampled + later)


@pytest.mark.parametrize("other", [b"id0x1", b"id01", b"id0001", b"ie001", b"", b"id001\0"])
def test_unlike_strings_are_marked_odd(other: bytes) -> None:
    codes = codes_of([TEXT], False, [seen_texts([b"id001", b"id013"])])
    assert codes is not None
    assert word_of(codes, [other]) is None


def test_strings_without_a_code() -> None:
    long, random = [b"a" * 65], [bytes(range(i, i + 20)) for i in range(0, 200, 7)]
    for texts in (long, [b"", b"a" * 64, b"a" * 65], random):
        assert codes_of([TEXT], False, [seen_texts(texts)]) is None
    # too many bits together
    texts = [b"%08d" % n for n in range(0, 10**8, 123_457)]
    assert codes_of([TEXT, NUMBER], False, [seen_texts(texts), seen_numbers([0, 2**31])]) is None
    assert codes_of([TEXT, NUMBER], False, [seen_texts(texts), seen_numbers([0, 2**20])])


def test_no_string_in_the_sample() -> None:
    codes = codes_of([KeyPart("i32", True, string=True)], True, [seen_texts([])])
    assert codes is not None
    assert word_of(codes, [None]) == 0
    assert word_of(codes, [b""]) == 1
    assert word_of(codes, [b"a"]) is None


def test_near_codes_are_of_what_the_sample_has() -> None:
    sample = [seen_texts([b"%04d" % n for n in range(300)]), seen_numbers(range(50))]
    near = codes_of([TEXT, NUMBER], False, sample, near=True)
    wide = codes_of([TEXT, NUMBER], False, sample)
    assert near is not None
    assert wide is not None
    # of which slots of their own may be made
    assert 300 * 50 < near.count < 2 * 300 * 50 < wide.count
    words = [word_of(near, [b"%04d" % n, i]) for n in range(300) for i in range(50)]
    assert None not in words
    assert len(set(words)) == 300 * 50
    assert max(word for word in words if word is not None) < near.count
    # as many more integers as of a near range, and no other digits
    assert word_of(near, [b"0000", 53]) is not None
    for outside in ([b"0000", 60], [b"0300", 0], [b"1000", 0]):
        assert word_of(near, outside) is None
        assert word_of(wide, outside) is not None


def test_codes_are_near_where_they_may_have_slots() -> None:
    seen = (Seen * 1)(seen_texts([b"%06d" % n for n in range(2_000)]))
    counts = []
    for dense in (0, 1_999, 2_000, 10**8):
        codes = codes_of_seen((TEXT,), False, seen, dense)
        assert codes is not None
        assert codes.near == (codes.count == 2_000)
        counts.append(codes.count)
    assert counts == [100_000, 100_000, 2_000, 2_000]


def test_codes_of_the_same_bytes_are_made_once() -> None:
    def seen(*texts: bytes) -> Any:
        return (Seen * 1)(seen_texts(list(texts)))

    first = codes_of_seen((TEXT,), False, seen(b"id001", b"id013"))
    assert first is not None
    assert bytes(first) == bytes(codes_of([TEXT], False, [seen_texts([b"id001", b"id013"])]))
    assert codes_of_seen((TEXT,), False, seen(b"id001", b"id013")) is first
    # decisions are looked up by them
    copy = codes_of([TEXT], False, [seen_texts([b"id001", b"id013"])])
    assert {first: 1}.get(first) == 1
    assert {first: 1}.get(copy) is None
    others = (
        codes_of_seen((TEXT,), False, seen(b"id001", b"id023")),
        codes_of_seen((TEXT,), True, seen(b"id001", b"id013")),
        codes_of_seen((TEXT._replace(masked=True),), True, seen(b"id001", b"id013")),
    )
    assert all(other is not first for other in others)
