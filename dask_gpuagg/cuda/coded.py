"""Keys as the bits in which their values differ: which bits, their words, and the keys again."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from dask_gpuagg.cuda import cardinality
from dask_gpuagg.cuda.call import SMALL_BLOCK, Call, Made, Target
from dask_gpuagg.cuda.driver import fill, read_back
from dask_gpuagg.cuda.source import CODED_COLUMNS, TYPE_BYTES, KeyPart

# No word of so few bits is mixed to the one that stands for an empty slot.
WORD_BITS = 59
# Words of eight bytes that a string may have, and groups whose strings a block lays out.
PIECES = 8
TEXT_TILE = 256
# Bits that integers get beyond those of the sampled values: as many values again below them, and
# twice as many above.
_MARGIN = 2
_PIECE_BITS = 64
_ALL = (1 << _PIECE_BITS) - 1
_SCAN_THREADS = 1024
# From so many characters on offsets have 64 bits.
_LARGE = (1 << 31) - 1


class Piece(ctypes.Structure):
    """``Piece`` of kernels/key/coded.cuh."""

    _fields_ = [
        ("constant", ctypes.c_uint64),
        ("varying", ctypes.c_uint64),
        ("moves", ctypes.c_uint64 * 6),
        ("from_bit", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    ]


class ColumnCode(ctypes.Structure):
    """``ColumnCode`` of kernels/key/coded.cuh."""

    _fields_ = [
        ("piece", Piece * PIECES),
        ("base", ctypes.c_uint64),
        ("range", ctypes.c_uint64),
        ("from_bit", ctypes.c_uint32),
        ("null_bit", ctypes.c_uint32),
        ("pieces", ctypes.c_uint32),
        ("nullable", ctypes.c_uint32),
    ]


class Codes(ctypes.Structure):
    """``Codes`` of kernels/key/coded.cuh."""

    _fields_ = [("column", ColumnCode * CODED_COLUMNS)]


class Seen(ctypes.Structure):
    """``Seen`` of kernels/estimate/bits.cuh."""

    _fields_ = [
        ("all", ctypes.c_uint64 * (PIECES + 1)),
        ("none", ctypes.c_uint64 * (PIECES + 1)),
    ]


class Texts(ctypes.Structure):
    """``Texts`` of kernels/output/coded.cuh."""

    _fields_ = [
        ("offsets", ctypes.c_void_p),
        ("characters", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        ("starts", ctypes.c_void_p),
        ("large", ctypes.c_uint32),
    ]


# ---- which bits ----------------------------------------------------------------------------------


def seen_bits(call: Call) -> list[Seen]:
    """What a sample of the rows tells of each key column."""
    import rmm

    class AllSeen(ctypes.Structure):
        _fields_ = [("of", Seen * len(call.query.keys))]

    seen = AllSeen()
    size = ctypes.sizeof(seen)
    buffer = rmm.DeviceBuffer(size=size, stream=call.stream)
    fill(buffer.ptr, 0xFF, size, call.handle)
    arguments = call.columns, ctypes.c_uint32(call.rows), ctypes.c_void_p(buffer.ptr)
    call.launch("bits", cardinality.SEGMENTS, cardinality.SEGMENT, *arguments)
    read_back(buffer.ptr, seen, call.handle)
    return list(seen.of)


def range_of(least: int, greatest: int) -> tuple[int, int]:
    """Base and bits of integers, with room around what a sample has seen.

    Of no values the least is above the greatest.
    """
    needed = (greatest - least + 1).bit_length() if greatest >= least else 0
    base = least - (1 << needed) if greatest >= least else 0
    return base, needed + _MARGIN


def bounds_of(least: int, greatest: int) -> tuple[int, int]:
    """Least and greatest value, from how kernels/estimate/ranges.cuh keeps them."""
    half = 1 << 63
    return least - half, half - 1 - greatest


def codes_of(keys: Sequence[KeyPart], keep_nulls: bool, seen: Sequence[Seen]) -> Codes | None:
    """Places for the bits of every column in one word, the first column's highest.

    Parameters
    ----------
    keys : sequence of KeyPart
    keep_nulls : bool
    seen : sequence of Seen
        Of each key.

    Returns
    -------
    Codes or None
        None if the bits exceed a word. Where there is room, digits that the sample did not show
        have a code too.
    """
    for margin in reversed(_Margin):
        codes, place = Codes(), 0
        # from the last column and its last bytes on, so that words order as the keys do
        for key, column, code in reversed(list(zip(keys, seen, codes.column, strict=False))):
            code.nullable = int(key.masked and keep_nulls)
            code.null_bit = place
            place += code.nullable
            if key.string:
                taken = _place_text(code, column, place, margin)
            else:
                taken = _place_integers(code, column, place)
            if taken is None:
                return None
            place += taken
        if place <= WORD_BITS:
            return codes
    return None


def _place_integers(code: ColumnCode, seen: Seen, place: int) -> int:
    base, bits = range_of(*bounds_of(seen.all[0], seen.none[0]))
    code.base, code.range, code.from_bit = base % 2**64, (1 << min(bits, 64)) - 1, min(place, 63)
    return bits


class _Margin(IntEnum):
    """What strings may have beyond what a sample has seen, each with those before it."""

    NOTHING = 0
    # any digit where digits differ
    DIGITS = 1
    # and in the place before them: numbers become longer
    NEXT_DIGIT = 2
    # and none, if lengths differ: few numbers are short
    SHORTER = 3


def _place_text(code: ColumnCode, seen: Seen, place: int, margin: _Margin) -> int | None:
    """The bits that a column of strings takes; None if some are too long."""
    always, never = _whole(seen.all), _whole(seen.none)
    differing = ~(always | never) & ((1 << _PIECE_BITS * PIECES) - 1)
    always &= ~never  # both are set where no string was seen
    lengths = ~(seen.all[PIECES] | seen.none[PIECES]) & _ALL
    code.range = (1 << lengths.bit_length()) - 1
    code.base = seen.all[PIECES] & ~seen.none[PIECES] & ~code.range
    # a string that is too long has all bits of a length
    if code.base > 8 * PIECES or (code.base | code.range) >= 16 * PIECES:
        return None
    if code.range and margin >= _Margin.SHORTER:
        code.range, code.base = (1 << (code.base | code.range).bit_length()) - 1, 0
    varying = _with_margin(differing, always, margin, code.range > 0)
    code.pieces = min(PIECES, math.ceil((code.base | code.range) / 8))
    first = place
    for i in reversed(range(PIECES)):
        piece, shift = code.piece[i], _PIECE_BITS * (PIECES - 1 - i)
        piece.varying = (varying >> shift & _ALL) if i < code.pieces else 0
        piece.constant = always >> shift & _ALL & ~piece.varying
        piece.moves = moves_of(piece.varying)
        piece.from_bit = min(place, 63)
        place += piece.varying.bit_count()
    code.from_bit = min(place, 63)
    return place - first + int(code.range).bit_count()


def _whole(words: Sequence[int]) -> int:
    """The first bytes of a string as one number, the first one highest."""
    return int(sum(words[i] << _PIECE_BITS * (PIECES - 1 - i) for i in range(PIECES)))


# Of every byte its low four bits, by which digits differ, and those that digits have in common.
_LOW = int("0f" * 8 * PIECES, 16)
_DIGIT = int("30" * 8 * PIECES, 16)


def _with_margin(varying: int, always: int, margin: _Margin, shorter: bool) -> int:
    """The bits that may differ, of those that do and those that all strings have."""
    differs = _low_digits(varying | varying >> 4 & _LOW)
    # bytes that always begin as a digit does
    digits = ~_low_digits((varying | always ^ _DIGIT) >> 4 & _LOW) & _LOW
    if margin >= _Margin.DIGITS:
        varying |= differs
    if margin >= _Margin.NEXT_DIGIT:
        varying |= differs << 8 & digits
    if margin >= _Margin.SHORTER and shorter:
        # the byte itself is then 0
        varying |= (digits & differs) << 4 & _DIGIT
    return varying


def _low_digits(bits: int) -> int:
    """The low four bits of every byte that has one of them."""
    bits |= bits >> 1 | bits >> 2 | bits >> 3
    return (bits & _LOW // 15) * 15


def moves_of(mask: int) -> tuple[int, ...]:
    """Bits of a masked word that move by 1, 2, 4, ... places to lie together.

    Warren, Hacker's Delight, section 7-4.
    """
    moves = []
    rest = ~mask << 1 & _ALL
    for i in range(6):
        parity = rest
        for shift in (1, 2, 4, 8, 16, 32):
            parity ^= parity << shift & _ALL
        moved = parity & mask
        mask = (mask ^ moved) | moved >> (1 << i)
        rest &= ~parity
        moves.append(moved)
    return tuple(moves)


# ---- words and keys ------------------------------------------------------------------------------


def make_codes(call: Call) -> None:
    """Fill the column behind the inputs with the words of the keys."""
    call.columns[len(call.columns) - 1].data = call.allocate(8 * call.rows).ptr
    blocks = call.spread(call.rows, SMALL_BLOCK)
    call.launch("make_codes", blocks, SMALL_BLOCK, call.args, call.columns, call.codes)


def decoded(call: Call, words: Any, groups: int) -> list[Made]:
    """The key columns of the groups.

    Parameters
    ----------
    call : Call
    words : rmm.DeviceBuffer
        The groups' codes.
    groups : int
    """
    made = []
    for key, code in zip(call.query.keys, call.codes.column, strict=False):
        mask = call.mask(groups) if code.nullable else None
        make = _texts if key.string else _integers
        made.append(make(call, key, code, words, groups, mask))
    return made


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
        call.launch("scan_texts", 1, _SCAN_THREADS, scanned, ctypes.c_uint32(tiles))
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
