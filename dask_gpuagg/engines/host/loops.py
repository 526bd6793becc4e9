"""The compiled loops of the host engine: one read of the rows for all that a call asks for.

Every array comes in one dtype and read-only where it is only read, so that each function is
compiled for one signature (``reduce_integers`` for two). Steps that write to arrays are repeated in
each loop: a call with arrays for every row takes a hundred times as long. Machine code is kept on
disk: beside this file, or in the user's cache directory where that cannot be written. Importing
this module imports Numba.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

F = TypeVar("F", bound=Callable[..., Any])
Array = npt.NDArray[Any]

log = logging.getLogger(__name__)


def compiled(function: F) -> F:
    """Compile at the first call, without the GIL; the machine code is kept if it can be."""
    try:
        return cast(F, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError as error:
        # no directory can be written: every process compiles for itself
        if "cannot cache" not in str(error):
            raise
        log.warning("%s", error)
        return cast(F, numba.njit(nogil=True)(function))


# columns of the accumulators of reduce_floats; one row per group, so that a group's
# fields share a cache line
COUNT, LOST, SUM, MIN, MAX, MEAN, M2 = range(7)
PLACES = {"count": COUNT, "sum": SUM, "min": MIN, "max": MAX, "m2": M2}


@compiled
def reduce_floats(
    codes: Array,
    values: Array,
    acc: Array,
    lanes: int,
    skipna: bool,
    sums: bool,
    extremes: bool,
    spread: bool,
) -> None:
    """Add rows to float64 accumulators of shape (groups * lanes, up to the last field).

    An addition to the group of the row before waits for that one; with several ``lanes`` per
    group, a power of two, it need not.
    """
    for i in range(len(codes)):
        x = values[i]
        if skipna and x != x:
            continue
        # unsigned: no test for a negative index
        g = np.uint64(codes[i] * lanes + (i & (lanes - 1)))
        count = acc[g, COUNT] + 1.0
        acc[g, COUNT] = count
        if sums:
            # Kahan 1965, as pandas sums; what an infinity loses is dropped
            before = acc[g, SUM]
            y = x - acc[g, LOST]
            after = before + y
            lost = after - before - y
            acc[g, SUM] = after
            acc[g, LOST] = lost if lost - lost == 0.0 else 0.0
        if extremes:
            # always stored: a branch would be mispredicted where groups have few rows
            low, high = acc[g, MIN], acc[g, MAX]
            acc[g, MIN] = x if x < low else low
            acc[g, MAX] = x if x > high else high
        if spread:
            # Welford 1962: of equal values every deviation is exactly 0
            mean = acc[g, MEAN]
            deviation = x - mean
            mean += deviation / count
            acc[g, MEAN] = mean
            acc[g, M2] += deviation * (x - mean)


@compiled
def reduce_integers(codes: Array, values: Array, acc: Array, sums: bool, extremes: bool) -> None:
    """Add rows to accumulators (sum, min, max) in the dtype of the values; sums wrap."""
    for i in range(len(codes)):
        x = values[i]
        g = np.uint64(codes[i])
        if sums:
            acc[g, 0] += x
        if extremes:
            low, high = acc[g, 1], acc[g, 2]
            acc[g, 1] = x if x < low else low
            acc[g, 2] = x if x > high else high


@compiled
def count_rows(codes: Array, counts: Array) -> None:
    """Add rows to the counts of their groups."""
    for i in range(len(codes)):
        counts[np.uint64(codes[i])] += 1


@compiled
def number_integers(
    values: Array, low: int, numbers: Array, present: Array, distinct: int, codes: Array
) -> int:
    """Number distinct integers in order of appearance, by direct addressing.

    ``numbers[value - low]`` is the value's number plus one, 0 where it has none yet;
    ``present`` holds ``value - low`` of every number. Returns how many there are now.
    """
    for i in range(len(values)):
        slot = np.uint64(values[i] - low)
        number = numbers[slot]
        if number == 0:
            present[distinct] = slot
            distinct += 1
            number = np.int32(distinct)
            numbers[slot] = number
        codes[i] = number - 1
    return distinct


@compiled
def first_of_slots(
    codes: Array, values: Array, low: int, span: int, bitmap: Array, rows: Array
) -> int:
    """Find the first row of each distinct pair; returns how many ``rows`` were written.

    ``bitmap`` has one bit, initially 0, for each ``code * span + value - low``.
    """
    distinct = 0
    for i in range(len(codes)):
        slot = np.uint64(codes[i] * span + (values[i] - low))
        word, bit = slot >> np.uint64(6), slot & np.uint64(63)
        old = bitmap[word]
        bitmap[word] = old | (np.uint64(1) << bit)
        # always stored: a branch would be mispredicted
        rows[distinct] = i
        distinct += int((old >> bit) & np.uint64(1) == 0)
    return distinct


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)


@compiled
def _mixed(code: Any, bits: Any) -> Any:
    """A hash whose highest bits depend on all bits: the mixing of Steele, Lea, Flood 2014."""
    h = np.uint64(bits) + np.uint64(code) * _GOLDEN
    h ^= h >> np.uint64(32)
    h *= _MIXER
    h ^= h >> np.uint64(29)
    return h * _GOLDEN


@compiled
def first_of_pairs(codes: Array, bits: Array, table: Array, shift: int, rows: Array) -> int:
    """Find the first row of each distinct pair; returns how many ``rows`` were written.

    ``table`` has ``2 ** (64 - shift)`` slots, more than there are rows: 0, or one plus the row
    of a pair. Row numbers instead of pairs keep it small: most look-ups that leave the cache are
    those of pairs that are new, which read nothing else.
    """
    distinct = 0
    last = np.uint64(len(table) - 1)
    for i in range(len(codes)):
        code, of_row = codes[i], bits[i]
        slot = _mixed(code, of_row) >> np.uint64(shift)
        while True:
            row = table[slot]
            if row == 0:
                table[slot] = i + 1
                rows[distinct] = i
                distinct += 1
                break
            first = np.uint64(row - 1)
            if bits[first] == of_row and codes[first] == code:
                break
            slot = (slot + np.uint64(1)) & last
    return distinct


@compiled
def number_hashed(
    values: Array, table: Array, shift: int, present: Array, distinct: int, codes: Array
) -> int:
    """Number distinct integers in order of appearance, by hashing.

    ``table`` has ``2 ** (64 - shift)`` slots, more than there will be numbers: 0, or one plus a
    number; ``present`` holds the integer of every number. Returns how many there are now.
    """
    last = np.uint64(len(table) - 1)
    for i in range(len(values)):
        value = values[i]
        slot = _mixed(0, value) >> np.uint64(shift)
        while True:
            number = table[slot]
            if number == 0:
                present[distinct] = value
                distinct += 1
                table[slot] = distinct
                codes[i] = distinct - 1
                break
            if present[np.uint64(number - 1)] == value:
                codes[i] = number - 1
                break
            slot = (slot + np.uint64(1)) & last
    return distinct


# rows of a step of the string loops: their temporaries stay in the first-level cache
_STEP = 1024


@compiled
def _word(text: Array, at: int) -> Any:
    """Eight bytes from any address, little-endian; the compiler makes one load of it."""
    b = np.uint64(at)
    word = np.uint64(text[b])
    for k in range(1, 8):
        word |= np.uint64(text[b + np.uint64(k)]) << np.uint64(8 * k)
    return word


@compiled
def short_words(text: Array, offsets: Array, words: Array) -> None:
    """Strings of fewer than eight bytes as words, with their lengths in the highest byte.

    ``text`` has eight bytes behind the last string.
    """
    for i in range(len(words)):
        begin, end = offsets[i], offsets[i + 1]
        length = np.uint64(end - begin)
        mask = (np.uint64(1) << (np.uint64(8) * length)) - np.uint64(1)
        words[i] = (_word(text, begin) & mask) | (length << np.uint64(56))


@compiled
def differing_bits(text: Array, start: int, length: int, rows: int) -> Any:
    """The bits in which any word at ``start + i * length`` differs from the first one."""
    first = _word(text, start)
    differing = np.uint64(0)
    for i in range(rows):
        differing |= _word(text, start + i * length) ^ first
    return differing


@compiled
def same_lengths(offsets: Array, length: int) -> bool:
    """Whether every string has the length."""
    other = False
    for i in range(len(offsets) - 1):
        other |= offsets[i + 1] - offsets[i] != length
    return not other


@compiled
def pack_strings(text: Array, first: int, length: int, runs: Array, codes: Array) -> None:
    """Pack strings of one length, the first of which begins at ``first``, into integers.

    ``runs`` has rows (first byte of the word, position in the word, mask, position in the
    code), those of one word next to each other; see ``strings.Packed``.
    """
    words = np.empty(_STEP, np.uint64)
    for begin in range(0, len(codes), _STEP):
        rows = min(_STEP, len(codes) - begin)
        codes[begin : begin + rows] = 0
        loaded = np.int64(-1)
        for k in range(len(runs)):
            start, at, mask, to = runs[k, 0], runs[k, 1], runs[k, 2], runs[k, 3]
            if start != loaded:
                for j in range(rows):
                    words[j] = _word(text, first + start + (begin + j) * length)
                loaded = start
            for j in range(rows):
                part = (words[j] >> np.uint64(at)) & np.uint64(mask)
                codes[np.uint64(begin + j)] |= part << np.uint64(to)


_EXPONENT = np.uint64(0x7FF)
_MANTISSA = np.uint64((1 << 52) - 1)
_IMPLICIT = np.uint64(1 << 52)
_LOW = np.uint64(0xFFFFFFFF)
_ONE, _BIN, _WIDTH, _SIGN = np.uint64(1), np.uint64(5), np.uint64(32), np.uint64(63)
_IN_BIN, _DIGITS = np.uint64(31), np.uint64(52)


@compiled
def exponents(bits: Array) -> tuple[np.uint64, np.uint64]:
    """The lowest and the highest exponent of float64 that are not zero; 0x7ff and 0 of none."""
    lowest, highest = _EXPONENT, np.uint64(0)
    for i in range(len(bits)):
        exponent = (bits[i] >> _DIGITS) & _EXPONENT
        zero = (bits[i] << _ONE) == np.uint64(0)
        lowest = min(lowest, _EXPONENT if zero else exponent)
        highest = max(highest, exponent)
    return lowest, highest


@compiled
def add_slices(codes: Array, bits: Array, acc: Array, low: int) -> None:
    """Add the slices of float64 to bins of int64 of shape (groups, bins), from bin ``low`` on."""
    for i in range(len(codes)):
        word = bits[i]
        exponent = (word >> _DIGITS) & _EXPONENT
        mantissa = word & _MANTISSA
        if exponent == np.uint64(0):
            if mantissa == np.uint64(0):
                continue
            exponent = _ONE
        elif exponent == _EXPONENT:
            continue
        else:
            mantissa |= _IMPLICIT
        start = exponent - _ONE
        shift = start & _IN_BIN
        lower = mantissa << shift
        upper = (mantissa >> _ONE) >> (_SIGN - shift)
        sign = np.int64(1) - np.int64(word >> _SIGN << _ONE)
        g = np.uint64(codes[i])
        j = np.uint64(np.int64(start >> _BIN) - low)
        acc[g, j] += sign * np.int64(lower & _LOW)
        acc[g, j + _ONE] += sign * np.int64(lower >> _WIDTH)
        acc[g, j + _ONE + _ONE] += sign * np.int64(upper)


@compiled
def scatter(places: Array, starts: Array, values: Array, out: Array) -> None:
    """Write values to the places that they belong to, one after the other in each.

    ``starts`` has the position of the first value of each place, and is moved to the last's end.
    """
    for i in range(len(places)):
        place = np.uint64(places[i])
        at = starts[place]
        starts[place] = at + 1
        out[np.uint64(at)] = values[i]


@compiled
def select_in(values: Array, left: int, right: int, at: int) -> None:
    """Reorder a run so that ``at`` holds what it would if the run were sorted.

    Hoare's selection, as pandas has it. Places from ``left`` to ``right``, which is in it.
    """
    while left < right:
        x = values[at]
        i, j = left, right
        while True:
            while values[i] < x:
                i += 1
            while x < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
            if i > j:
                break
        if j < at:
            left = i
        if at < i:
            right = j


@compiled
def select(values: Array, ends: Array, ranks: Array, out: Array) -> None:
    """The values of each run that have ranks, unless these are negative; runs are reordered.

    ``ranks`` and ``out`` have shape (statistics, runs); a run's ranks descend.
    """
    start = 0
    for g in range(len(ends)):
        last = ends[g] - 1
        for j in range(len(ranks)):
            if ranks[j, g] < 0:
                continue
            at = start + ranks[j, g]
            if at == last:
                # the largest of the values below the rank before
                for i in range(start, last):
                    if values[i] > values[last]:
                        values[i], values[last] = values[last], values[i]
            elif at < last:
                select_in(values, start, last, at)
            out[j, g] = values[at]
            last = at - 1
        start = ends[g]


@compiled
def count_sides(
    codes: Array,
    values: Array,
    lows: Array,
    highs: Array,
    counts: Array,
    of_row: Array,
    inside: Array,
    at: int,
) -> int:
    """Count rows below, at and between the ends of their group's bracket; keep those between.

    ``counts`` has a row of five sides for each group. Group and value of a row that is kept are
    written from ``at`` on; the place behind the last one is returned. NaN are no values.
    """
    for i in range(len(codes)):
        x = values[i]
        if x != x:
            continue
        g = np.uint64(codes[i])
        low, high = lows[g], highs[g]
        # without a branch, which would be mispredicted for every other row; where both ends are
        # one value, it is the low end
        beyond = np.uint64(x > low)
        side = np.uint64(x >= low) + beyond
        side += beyond * (np.uint64(x >= high) + np.uint64(x > high))
        counts[g, side] += 1
        of_row[at] = codes[i]
        inside[at] = x
        at += side == np.uint64(2)
    return at
