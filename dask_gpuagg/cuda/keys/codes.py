"""Keys of few possible values as numbers: which values, encoding, decoding."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.call import Call, Made
from dask_gpuagg.cuda.choice import summary
from dask_gpuagg.cuda.choice.summary import BEYOND
from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.structs import Codes, ColumnCode, Seen, Target, Texts
from dask_gpuagg.cuda.query.tuning import (
    PIECES,
    SCAN_THREADS,
    SMALL_BLOCK,
    TEXT_TILE,
)
from dask_gpuagg.cuda.query.types import TYPE_BYTES, KeyPart
from dask_gpuagg.cuda.runtime.driver import fill, read_back

# No word of so few bits is mixed to the one that stands for an empty slot.
WORD_BITS = 59
# Bits that integers get beyond those of the sampled values: as many values again below them, and
# twice as many above.
_MARGIN = 2
# Values at either end of a near range that a sample may have missed, beside a share of the range.
_NEAR = 4
_PLACES = 8 * PIECES
# From so many characters on offsets have 64 bits.
_LARGE = (1 << 31) - 1


# ---- which values --------------------------------------------------------------------------------


def seen_bytes(call: Call) -> ctypes.Array[Seen]:
    """Bytes and values of each key column that a sample of the rows has."""
    seen = (Seen * len(call.query.keys))()
    call.summarised("bytes", summary.SEGMENTS, tuning.SEGMENT, seen, 0xFF)
    return seen


def range_of(least: int, greatest: int, margin: int = _MARGIN) -> tuple[int, int]:
    """Base and bits of integers, with room around what a sample has seen.

    Of no values the least is above the greatest. ``margin`` bits are added: a third of that room
    lies below what was seen.
    """
    needed = (greatest - least + 1).bit_length() if greatest >= least else 0
    below = ((1 << margin) - 1 << needed) // 3
    return (least - below if greatest >= least else 0), needed + margin


def _wide(least: int, greatest: int) -> tuple[int, int]:
    """Base and number of values."""
    base, bits = range_of(least, greatest)
    return base, 1 << bits


def range_near(least: int, greatest: int) -> tuple[int, int]:
    """Base and number of values, with little room around what a sample has seen, and a null."""
    span = max(0, greatest - least + 1)
    beyond = span // BEYOND + _NEAR
    return (least - beyond if span else 0), span + 2 * beyond + 1


def bounds_of(least: int, greatest: int) -> tuple[int, int]:
    """Least and greatest value, from how kernels/estimate/ranges.cuh keeps them."""
    half = 1 << 63
    return least - half, half - 1 - greatest


# Partitions of a table mostly show the same bytes, and their numbers take longer than a kernel.
_known: Cache[tuple[tuple[KeyPart, ...], bool, bytes, bool], Codes | None] = Cache(64)


def codes_of_seen(
    keys: tuple[KeyPart, ...], keep_nulls: bool, seen: ctypes.Array[Seen], dense: int = 0
) -> Codes | None:
    """``codes_of``, computed once for the same bytes; it is not to be written to.

    Up to ``dense`` numbers have little room around what was seen: keys may then have slots of their
    own.
    """

    def made(near: bool) -> Codes | None:
        key = keys, keep_nulls, bytes(seen), near
        return _known.of(key, lambda: codes_of(keys, keep_nulls, list(seen), near))

    near = made(near=True) if dense else None
    return near if near is not None and near.count <= dense else made(near=False)


def codes_of(
    keys: Sequence[KeyPart], keep_nulls: bool, seen: Sequence[Seen], near: bool = False
) -> Codes | None:
    """Numbers for the values of every column, and together for the keys; None beyond a word.

    Where there is room, values that the sample did not show have one too; if ``near``, little room
    for integers around what the sample has seen, and none for strings.
    """
    if any(k.string and _longest(s) > _PLACES for k, s in zip(keys, seen, strict=True)):
        return None
    range_ = range_near if near else _wide
    ranges = [None if k.string else range_(*_bounds(s)) for k, s in zip(keys, seen, strict=True)]
    nulls = [int(k.masked and keep_nulls) for k in keys]

    def places(margin: _Margin) -> list[_Places | None]:
        return [_places(s, margin) if k.string else None for k, s in zip(keys, seen, strict=True)]

    def values(texts: Sequence[_Places | None]) -> list[int]:
        counts = []
        for text, numbers, null in zip(texts, ranges, nulls, strict=True):
            counts.append(null + (text.values if text else numbers[1] if numbers else 0))
        return counts

    # more margin makes more values, so that without any they are fewest
    fewest = places(_Margin.NOTHING)
    if math.prod(values(fewest)) > 1 << WORD_BITS:
        return None
    texts = next(
        texts
        for texts in (*map(places, () if near else reversed(_Margin)), fewest)
        if math.prod(values(texts)) <= 1 << WORD_BITS
    )
    codes, scale = Codes(), 1
    columns = zip(texts, ranges, nulls, values(texts), codes.column, strict=False)
    # from the last column on, so that words order as the keys do
    for text, numbers, null, count, code in reversed(list(columns)):
        if text is not None:
            _fill(code, text)
        elif numbers is not None:
            base, among = numbers
            code.base, code.range = base % 2**64, min(among, 1 << 64) - 1
        code.nullable, code.scale, code.all = null, scale % 2**64, count % 2**64
        scale *= count
    codes.count, codes.near = scale, near
    return codes


def _bounds(seen: Seen) -> tuple[int, int]:
    return bounds_of(seen.least, seen.greatest)


class _Margin(IntEnum):
    """What strings may have beyond what a sample has seen, each with those before it."""

    NOTHING = 0
    # any digit where all were digits, any letter where all were such
    LIKE = 1
    # and in the place before digits that differ: numbers become longer
    NEXT_DIGIT = 2
    # and none, if lengths differ: few numbers are short
    SHORTER = 3


# The least and the greatest byte of digits and letters.
_DIGITS = (48, 57)
_ALIKE = (_DIGITS, (65, 90), (97, 122))
_NOTHING = 0xFFFFFFFF
_MOST_LENGTH = 0x7FFFFFFF


def _longest(seen: Seen) -> int:
    """Of the strings; 0 if none was seen."""
    below = int(seen.below[_PLACES])
    return 0 if below == _NOTHING else _MOST_LENGTH - below


class _Places(NamedTuple):
    """What strings may be: lengths, and the least and the greatest byte of each place."""

    shortest: int
    longest: int
    bytes_of: list[tuple[int, int]]

    @property
    def values(self) -> int:
        """How many strings these are."""
        each = (greatest - least + 1 for least, greatest in self.bytes_of)
        return math.prod(each, start=self.longest - self.shortest + 1)


def _places(seen: Seen, margin: _Margin) -> _Places:
    """The strings of a column with a margin around what a sample has seen."""
    longest = _longest(seen)
    shortest = min(int(seen.low[_PLACES]), longest)
    low, below = seen.low[:longest], seen.below[:longest]
    places = [(least, 255 - least_below) for least, least_below in zip(low, below, strict=True)]
    places = _with_margin(places, margin, shortest < longest)
    if shortest < longest and margin >= _Margin.SHORTER:
        shortest = 0
    return _Places(shortest, longest, places)


def _fill(code: ColumnCode, text: _Places) -> None:
    """Number the strings of a column."""
    longest = text.longest
    code.base, code.range = text.shortest, longest - text.shortest
    code.pieces = math.ceil(longest / 8)
    code.tail = 2 ** (8 * (longest - 8 * (code.pieces - 1))) - 1 if longest else 0
    for q, quad in enumerate(code.quad):
        four = [text.bytes_of[i] if i < longest else (0, 0) for i in range(4 * q, 4 * q + 4)]
        values = [greatest - least + 1 for least, greatest in four]
        quad.least = int.from_bytes(bytes(least for least, _ in four), "little")
        quad.greatest = int.from_bytes(bytes(greatest for _, greatest in four), "little")
        quad.values = tuple(values[1:])
        quad.all = math.prod(values)
    pieces = range(code.pieces)
    code.constant = sum(
        1 << p for p in pieces if code.quad[2 * p].all * code.quad[2 * p + 1].all == 1
    )


def _with_margin(
    seen: Sequence[tuple[int, int]], margin: _Margin, shorter: bool
) -> list[tuple[int, int]]:
    """The least and the greatest byte that each place may have, from those that it had."""
    if margin < _Margin.LIKE:
        return list(seen)
    places = [_alike(*place) if place[0] < place[1] else place for place in seen]
    for i, (least, greatest) in enumerate(places):
        if greatest != _DIGITS[1] or least not in (0, _DIGITS[0]) or seen[i][0] == seen[i][1]:
            continue
        if margin >= _Margin.NEXT_DIGIT and i and _alike(*places[i - 1]) == _DIGITS:
            places[i - 1] = _DIGITS
        if margin >= _Margin.SHORTER and shorter:
            places[i] = (0, greatest)
    return places


def _alike(least: int, greatest: int) -> tuple[int, int]:
    """All digits or letters, if that is what the ends are; some strings may end before."""
    for first, last in _ALIKE:
        if first <= greatest <= last and (least == 0 or first <= least):
            return (first if least else 0), last
    return least, greatest


# ---- words and keys ------------------------------------------------------------------------------


def make_codes(call: Call) -> None:
    """Fill the column behind the inputs with the words of the keys."""
    call.columns[len(call.columns) - 1].data = call.allocate(8 * call.rows).ptr
    blocks = call.spread(call.rows, SMALL_BLOCK)
    call.launch("make_codes", blocks, SMALL_BLOCK, call.args, call.columns, call.codes)


def decoded(call: Call, words: Any, groups: int) -> list[Made]:
    """The key columns of the groups, from a buffer of their codes."""
    columns = []
    for key, code in zip(call.query.keys, call.codes.column, strict=False):
        mask = call.mask(groups) if code.nullable else None
        write = _texts if key.string else _integers
        columns.append(write(call, key, code, words, groups, mask))
    return columns


def _integers(
    call: Call, key: KeyPart, code: ColumnCode, words: Any, groups: int, mask: Any
) -> Made:
    import rmm

    size = TYPE_BYTES[key.ctype]
    data = rmm.DeviceBuffer(size=groups * size, stream=call.stream)
    if groups:
        target = Target(data.ptr, mask.ptr if mask else None)
        arguments = ctypes.c_void_p(words.ptr), ctypes.c_uint32(groups), code, target
        blocks = call.spread(groups, SMALL_BLOCK)
        call.launch("write_integers", blocks, SMALL_BLOCK, *arguments, ctypes.c_uint32(size))
    return Made(data, mask, None if mask else 0)


def _texts(call: Call, key: KeyPart, code: ColumnCode, words: Any, groups: int, mask: Any) -> Made:
    import rmm

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
    offsets = rmm.DeviceBuffer(size=size, stream=call.stream)
    text = rmm.DeviceBuffer(size=characters, stream=call.stream)
    if groups:
        to = Texts(offsets.ptr, text.ptr, mask.ptr if mask else None, starts, large)
        call.launch("write_texts", tiles, TEXT_TILE, *of_groups, to)
    else:
        fill(offsets.ptr, 0, size, call.handle)
    return Made(offsets, mask, None if mask else 0, text, large)
