"""Strings of few bytes in each place, and integers beside them, as the digits of one number."""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.call import Call, Columns, Made
from dask_gpuagg.cuda.keys import ranges
from dask_gpuagg.cuda.keys.words import Keys, make_words
from dask_gpuagg.cuda.query.forms import CODED
from dask_gpuagg.cuda.query.structs import Codes, ColumnCode, Seen, Target, Texts
from dask_gpuagg.cuda.query.tuning import PIECES, SCAN_THREADS, TEXT_TILE
from dask_gpuagg.cuda.query.types import TYPE_BYTES, KeyPart
from dask_gpuagg.cuda.runtime.driver import fill, read_back

_PLACES = 8 * PIECES
# From so many characters on offsets have 64 bits.
_LARGE = (1 << 31) - 1


@dataclass
class CodedKeys(Keys):
    """Keys that are one number of what occurs in each place of their columns."""

    numbers: Codes

    @property
    def codes(self) -> Codes:
        """The numbers of the values of each column."""
        return self.numbers

    def make(self, call: Call) -> None:
        """The column of the words."""
        make_words(call, "make_codes", self.numbers)

    def wider(self, columns: Columns) -> Keys | None:
        """Codes with more room where they had little, then the keys in their own form."""
        own = replace(self.query, chosen=None)
        if self.numbers.near:
            ranges.remember_out_of_range(own, columns.key_labels)
            return coded(columns.call(own), True) or Keys(own)
        return Keys(own)

    def decoded(self, call: Call, columns: list[Made], groups: int) -> list[Made]:
        """The key columns of the groups, from the column of their codes."""
        words = columns[0].data
        columns = []
        for key, code in zip(call.query.keys, self.numbers.column, strict=False):
            mask = call.mask(groups) if code.nullable else None
            write = _texts if key.string else _integers
            columns.append(write(call, key, code, words, groups, mask))
        return columns


def coded(call: Call, slots: bool) -> CodedKeys | None:
    """Strings of up to 64 bytes, and integers, whose sampled bytes and values are few."""
    query = call.query
    if not query.may_be_coded:
        return None
    seen = (Seen * len(query.keys))()
    call.summarise("bytes", seen)
    dense = (
        ranges.FILLING * call.rows
        if slots and not ranges.is_out_of_range(query, call.key_labels)
        else 0
    )
    codes = codes_of_seen(query.keys, query.keep_nulls, seen, dense)
    return None if codes is None else CodedKeys(replace(query, chosen=CODED), codes)


# ---- numbers of values ---------------------------------------------------------------------------

# Partitions of a table mostly show the same bytes, and their numbers take longer than a kernel.
_known: Cache[tuple[tuple[KeyPart, ...], bool, bytes, bool], Codes | None] = Cache(64)


def codes_of_seen(
    keys: tuple[KeyPart, ...], keep_nulls: bool, seen: ctypes.Array[Seen], dense: int = 0
) -> Codes | None:
    """``codes_of``, computed once for the same bytes; it is not to be written to.

    Up to ``dense`` numbers have little room around those of the sample: keys may then have slots of
    their own.
    """

    def codes(near: bool) -> Codes | None:
        key = keys, keep_nulls, bytes(seen), near
        return _known.of(key, lambda: codes_of(keys, keep_nulls, list(seen), near))

    few = codes(near=True) if dense else None
    return few if few is not None and few.count <= dense else codes(near=False)


def codes_of(
    keys: Sequence[KeyPart], keep_nulls: bool, seen: Sequence[Seen], near: bool = False
) -> Codes | None:
    """Numbers for the values of every column, and together for the keys; None beyond a word.

    Where there is room, values that the sample did not show have one too; if ``near``, a few more
    integers and no strings.
    """
    columns = list(zip(keys, seen, strict=True))
    if any(key.string and _longest(of) > _PLACES for key, of in columns):
        return None
    integers = ranges.range_near if near else ranges.range_wide
    nulls = [int(key.masked and keep_nulls) for key in keys]

    def with_margin(margin: int) -> list[_Places | _Integers]:
        return [
            _places(of, margin)
            if key.string
            else _Integers(*integers(*ranges.bounds_of(of.least, of.greatest)))
            for key, of in columns
        ]

    def numbers(parts: Sequence[_Places | _Integers]) -> int:
        return math.prod(null + part.values for null, part in zip(nulls, parts, strict=True))

    # more margin makes more values
    parts = with_margin(_NO_MARGIN)
    if numbers(parts) > 1 << ranges.SAFE_BITS:
        return None
    roomier = () if near else map(with_margin, (_SHORTER, _NEXT_DIGIT, _LIKE))
    parts = next((more for more in roomier if numbers(more) <= 1 << ranges.SAFE_BITS), parts)
    codes, scale = Codes(), 1
    # from the last column on, so that words order as the keys do
    for part, null, code in reversed(list(zip(parts, nulls, codes.column, strict=False))):
        part.fill(code)
        count = null + part.values
        code.nullable, code.scale, code.all = null, scale % 2**64, count % 2**64
        scale *= count
    codes.count, codes.near = scale, near
    return codes


# Values of strings beyond those of a sample: none; any digit where all were digits, any letter
# where all were letters; also a digit before those that differ, for numbers become longer; also no
# digit if lengths differ, for few numbers are short.
_NO_MARGIN, _LIKE, _NEXT_DIGIT, _SHORTER = range(4)
# The least and the greatest byte of digits and letters.
_DIGITS = (48, 57)
_ALIKE = (_DIGITS, (65, 90), (97, 122))
_NOTHING = 0xFFFFFFFF
_MOST_LENGTH = 0x7FFFFFFF


def _longest(seen: Seen) -> int:
    """Length of the longest string; 0 without strings."""
    below = int(seen.below[_PLACES])
    return 0 if below == _NOTHING else _MOST_LENGTH - below


class _Integers(NamedTuple):
    """Values of an integer column: the least one, and how many there are."""

    base: int
    values: int

    def fill(self, code: ColumnCode) -> None:
        """Number the integers."""
        code.base, code.range = self.base % 2**64, min(self.values, 1 << 64) - 1


class _Places(NamedTuple):
    """Values of a string column: lengths, and the least and the greatest byte of each place."""

    shortest: int
    longest: int
    bytes_of: list[tuple[int, int]]

    @property
    def values(self) -> int:
        """Number of strings."""
        in_place = (greatest - least + 1 for least, greatest in self.bytes_of)
        return math.prod(in_place, start=self.longest - self.shortest + 1)

    def fill(self, code: ColumnCode) -> None:
        """Number the strings."""
        longest = self.longest
        code.base, code.range = self.shortest, longest - self.shortest
        code.pieces = math.ceil(longest / 8)
        code.tail = 2 ** (8 * (longest - 8 * (code.pieces - 1))) - 1 if longest else 0
        bytes_of = self.bytes_of + [(0, 0)] * (_PLACES - longest)
        for q, quad in enumerate(code.quad):
            least, greatest = zip(*bytes_of[4 * q : 4 * q + 4], strict=True)
            values = [last - first + 1 for first, last in zip(least, greatest, strict=True)]
            quad.least = int.from_bytes(bytes(least), "little")
            quad.greatest = int.from_bytes(bytes(greatest), "little")
            quad.values = tuple(values[1:])
            quad.all = math.prod(values)
        for p in range(code.pieces):
            if code.quad[2 * p].all * code.quad[2 * p + 1].all == 1:
                code.constant |= 1 << p


def _places(seen: Seen, margin: int) -> _Places:
    """The strings of a column with a margin around what a sample has seen."""
    longest = _longest(seen)
    shortest = min(int(seen.low[_PLACES]), longest)
    low, below = seen.low[:longest], seen.below[:longest]
    places = [(least, 255 - least_below) for least, least_below in zip(low, below, strict=True)]
    places = _with_margin(places, margin, shortest < longest)
    if shortest < longest and margin >= _SHORTER:
        shortest = 0
    return _Places(shortest, longest, places)


def _with_margin(
    seen: Sequence[tuple[int, int]], margin: int, shorter: bool
) -> list[tuple[int, int]]:
    """The least and the greatest byte that each place may have, from those that it had."""
    if margin < _LIKE:
        return list(seen)
    places = [_alike(*place) if place[0] < place[1] else place for place in seen]
    for i, (least, greatest) in enumerate(places):
        if greatest != _DIGITS[1] or least not in (0, _DIGITS[0]) or seen[i][0] == seen[i][1]:
            continue
        if margin >= _NEXT_DIGIT and i and _alike(*places[i - 1]) == _DIGITS:
            places[i - 1] = _DIGITS
        if margin >= _SHORTER and shorter:
            places[i] = (0, greatest)
    return places


def _alike(least: int, greatest: int) -> tuple[int, int]:
    """All digits or letters, if that is what the ends are; some strings may end before."""
    for first, last in _ALIKE:
        if first <= greatest <= last and (least == 0 or first <= least):
            return (first if least else 0), last
    return least, greatest


# ---- key columns of words ------------------------------------------------------------------------


def _integers(
    call: Call, key: KeyPart, code: ColumnCode, words: Any, groups: int, mask: Any
) -> Made:
    size = TYPE_BYTES[key.ctype]
    data = call.buffer(groups * size)
    if groups:
        target = Target(data.ptr, mask.ptr if mask else None)
        arguments = ctypes.c_void_p(words.ptr), ctypes.c_uint32(groups), code, target
        call.launch_over("write_integers", groups, *arguments, ctypes.c_uint32(size))
    return Made(data, mask, None if mask else 0)


def _texts(call: Call, key: KeyPart, code: ColumnCode, words: Any, groups: int, mask: Any) -> Made:
    tiles = math.ceil(groups / TEXT_TILE)
    of_groups = ctypes.c_void_p(words.ptr), ctypes.c_uint32(groups), code
    starts, characters = None, groups * code.base
    if groups and (code.range or code.nullable):
        starts = call.allocate(8 * (tiles + 1)).ptr
        scanned = ctypes.c_void_p(starts)
        call.launch("measure_texts", tiles, TEXT_TILE, *of_groups, scanned)
        sums = ctypes.c_uint32(tiles), ctypes.c_void_p(starts + 8 * tiles)
        call.launch("scan_texts", 1, SCAN_THREADS, scanned, *sums)
        total = ctypes.c_uint64()
        read_back(starts + 8 * tiles, total, call.handle)
        characters = total.value
    large = characters > _LARGE
    size = (8 if large else 4) * (groups + 1)
    offsets, text = call.buffer(size), call.buffer(characters)
    if groups:
        to = Texts(offsets.ptr, text.ptr, mask.ptr if mask else None, starts, large)
        call.launch("write_texts", tiles, TEXT_TILE, *of_groups, to)
    else:
        fill(offsets.ptr, 0, size, call.handle)
    return Made(offsets, mask, None if mask else 0, text, large)
