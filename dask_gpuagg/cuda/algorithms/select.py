"""Quantiles of groups by selection: brackets from a sample, counts, and the rows inside.

A ``Selector`` has the steps: ``aim``, ``count`` for each chunk of rows, ``narrow``, and ``pick``
among the rows that were kept. ``quantiles`` takes them.
"""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dask_gpuagg.cuda.algorithms import sgb
from dask_gpuagg.cuda.algorithms.sgb import Segments, Words, array_of, zeros_of
from dask_gpuagg.cuda.call import Launcher
from dask_gpuagg.cuda.query import instantiations, tuning
from dask_gpuagg.cuda.query.structs import Chunk, Inside
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import Device, read_back
from dask_gpuagg.cuda.runtime.kernels import Kernels, OneUnit

# More groups are sorted, and so are groups of fewer bytes: a sample has too few rows of each, and
# narrow values sort in few passes. One H200, 50 million rows: at 5,000 rows a group selecting takes
# 0.36 of the time of a sort (float64) and 0.70 (int32), at 769 rows 1.19 and 1.97.
GROUPS_AT_MOST = 1 << 16
BYTES_OF_A_GROUP = 16 << 10
# Fewer rows are sorted in the time that the launches of a selection take.
ROWS_FROM = 1 << 21

# The width of brackets, as ``dask_gpuagg.narrowing`` has it.
ERRORS = 4.5
SPARE = 3.0
# Rows that a bracket holds beyond those expected.
SLACK = 1.25
_ROOM_AT_LEAST = 1 << 16

# A group of more words, and of more than this share of all, is sorted instead of being one block's.
WIDE_GROUP = 1 << 16
WIDE_SHARE = 1 / 8
# Words of the widest group from which on a block has all the threads it can.
BUSY_GROUP = 1 << 14

_COPIES_AT_MOST = 32
_BYTES_OF_COPIES = 32 << 10
# Shared memory of an SM is shared by the blocks of the count, each of which has some of its own.
_RESERVED = 1 << 10
_SM_THREADS = 2048


def selects(rows: int, groups: int, width: int) -> bool:
    """Whether a quantile of each group, of values of so many bytes, is selected."""
    enough = rows >= ROWS_FROM and rows * width >= BYTES_OF_A_GROUP * groups
    return enough and 0 < groups <= GROUPS_AT_MOST


def room_of(rows: int, inside: int) -> int:
    """Rows that there is room for inside of brackets that are expected to hold so many."""
    return min(rows, int(SLACK * inside) + _ROOM_AT_LEAST)


def sorts_words(widest: int, rows: int) -> bool:
    """Whether words are sorted where the widest group has so many of ``rows``."""
    return widest > WIDE_GROUP + WIDE_SHARE * rows


def copies_of(groups: int) -> int:
    """Copies of the counts of a block, a power of two: threads side by side have their own."""
    room = _BYTES_OF_COPIES // (4 * tuning.SIDES * max(groups, 1))
    return int(min(_COPIES_AT_MOST, 2 ** (max(room, 1).bit_length() - 1)))


@cache
def _kernels(ctype: str, ticks: bool, device: Device) -> Kernels:
    return Kernels(OneUnit(instantiations.selecting(ctype, ticks)), device)


class Tally(ctypes.Structure):
    """Rows inside of brackets, and groups that ``narrow`` could not settle."""

    _fields_ = [("kept", ctypes.c_uint32), ("missed", ctypes.c_uint32)]


@dataclass
class Candidates:
    """Rows inside of brackets; the ``Tally`` counts those without room too."""

    words: Words
    of_row: Words
    room: int
    tally: Any


def selecting(on: Launcher, ctype: str, ticks: bool = False) -> Launcher:
    """The kernels that select values of a type, where and when those of ``on`` run."""
    return replace(on, kernels=_kernels(ctype, ticks, on.device), held=[])


class Selector:
    """The steps that find one quantile of each group of values of up to 8 bytes.

    ``sorts`` is of ``sgb.launcher``; with ``ticks`` the quantiles are of the values' type.
    """

    def __init__(
        self, sorts: Launcher, ctype: str, groups: int, q: float, ticks: bool = False
    ) -> None:
        self._sorts = sorts
        self._on = selecting(sorts, ctype, ticks)
        self._width = max(4, TYPE_BYTES[ctype])
        self._groups = groups
        self._q = q
        self._quantile_width = TYPE_BYTES[ctype] if ticks else 8
        # of each group: the words on either side, their ranks among the candidates, its rows
        self._found = self._pairs()
        self._ranks = array_of(sorts, groups, 8)
        self._sizes = array_of(sorts, groups, 8)

    def aim(self, chunks: Sequence[Chunk], stride: int) -> Words:
        """Brackets that are likely to hold the quantiles, by a sample: two words of each group."""
        samples = [math.ceil(chunk.rows / stride) for chunk in chunks]
        words, of_row = (array_of(self._on, sum(samples), w) for w in (self._width, 4))
        first = 0
        for chunk, count in zip(chunks, samples, strict=True):
            places = (words.buffer.ptr + first * self._width, of_row.buffer.ptr + first * 4)
            sample(self._on, chunk, stride, count, *places)
            first += count
        segments, widest = self._grouped(words, of_row, first)
        brackets = self._pairs()
        starts, groups = ctypes.c_void_p(segments.starts.ptr), ctypes.c_uint32(self._groups)
        numbers = (ctypes.c_double(number) for number in (self._q, ERRORS, SPARE))
        operands = starts, groups, *numbers, brackets.pointer, self._ranks.pointer
        self._on.launch_over("aim", self._groups, *operands)
        self._pick(segments, widest, brackets)
        return brackets

    def counts(self) -> Any:
        """Zero counts, uint64: for each of the ``SIDES`` of a bracket, one for each group."""
        return zeros_of(self._on, tuning.SIDES * self._groups, 8).buffer

    def candidates(self, room: int) -> Candidates:
        """Room for rows inside of brackets, without any."""
        words, of_row = array_of(self._on, room, self._width), array_of(self._on, room, 4)
        return Candidates(words, of_row, room, zeros_of(self._on, 2, 4).buffer)

    def count(self, chunk: Chunk, brackets: Words, counts: Any, inside: Candidates) -> None:
        """Add a chunk's rows to the counts, and append those inside of brackets to ``inside``."""
        if chunk.rows == 0:
            return
        words, of_row = inside.words.buffer.ptr, inside.of_row.buffer.ptr
        place = Inside(words, of_row, inside.tally.ptr, inside.room)
        room, copies = self._on.device.shared_bytes, copies_of(self._groups)
        shared = 4 * tuning.SIDES * self._groups * copies
        operands = [chunk, brackets.pointer, ctypes.c_void_p(counts.ptr), place]
        name, threads, blocks = "count_in_blocks", tuning.COUNT_THREADS, tuning.COUNT_BLOCKS
        if shared + _RESERVED > room:
            name, shared = "count_in_memory", 0
        else:
            operands.append(ctypes.c_uint32(copies))
            if tuning.COUNT_BLOCKS * (shared + _RESERVED) > room:
                name, threads, blocks = "count_in_one_block", tuning.ONE_BLOCK_THREADS, 1
        spread = self._on.spread(chunk.rows, threads * tuning.COUNT_ITEMS, waves=blocks)
        self._on.launch(name, spread, threads, *operands, shared=shared)

    def narrow(self, counts: Any, brackets: Words, inside: Candidates) -> Tally:
        """Settle the groups whose brackets hold their quantiles, and widen the other brackets.

        A second count of all rows by these settles all groups.
        """
        missed = ctypes.c_void_p(inside.tally.ptr + Tally.missed.offset)
        groups, q = ctypes.c_uint32(self._groups), ctypes.c_double(self._q)
        results = self._found.pointer, self._ranks.pointer, self._sizes.pointer, missed
        counted = ctypes.c_void_p(counts.ptr), groups, q, brackets.pointer
        self._on.launch_over("narrow", self._groups, *counted, *results)
        tally = Tally()
        read_back(inside.tally.ptr, tally, self._on.handle)
        return tally

    def pick(self, inside: Candidates, rows: int) -> None:
        """Find the words of the settled groups among the rows kept, whose order is lost."""
        self._pick(*self._grouped(inside.words, inside.of_row, rows), self._found)

    def quantiles(self, between: str) -> tuple[Any, Any, int]:
        """The quantiles, once all groups are settled; see ``sgb.write_quantiles``."""
        operands, width = (self._found.pointer, self._sizes.pointer), self._quantile_width
        settled = operands, self._groups, width, self._q, between
        return sgb.write_quantiles(self._on, "quantiles_found", *settled)

    def _pairs(self) -> Words:
        return array_of(self._sorts, self._groups, 2 * self._width)

    def _grouped(self, words: Words, of_row: Words, rows: int) -> tuple[Segments, int]:
        """Rows by group, in the order of their words if a group is large; rows of the largest."""
        segments = self._together(words, of_row, rows)
        widest = rows
        if rows > BUSY_GROUP:  # of fewer rows it makes no difference
            largest, starts = zeros_of(self._on, 1, 4), ctypes.c_void_p(segments.starts.ptr)
            operands = starts, ctypes.c_uint32(self._groups), largest.pointer
            self._on.launch_over("find_widest", self._groups, *operands)
            widest = self._on.read_number(largest.buffer.ptr)
        if sorts_words(widest, rows):
            words, of_row = segments.words, segments.of_row
            words, of_row = sgb.radix_sort(self._sorts, words, of_row, rows, 8 * self._width)
            segments = self._together(words, of_row, rows)
        return segments, widest

    def _pick(self, segments: Segments, widest: int, pairs: Words) -> None:
        """Find the words of each group's ranks."""
        ranks = self._ranks.pointer, ctypes.c_uint32(self._groups), pairs.pointer
        operands = segments.words.pointer, ctypes.c_void_p(segments.starts.ptr), *ranks
        if sorts_words(widest, segments.rows):
            self._on.launch_over("read_ranks", self._groups, *operands)
            return
        threads = tuning.ONE_BLOCK_THREADS if widest > BUSY_GROUP else tuning.SMALL_BLOCK
        blocks = self._on.device.multiprocessors * (_SM_THREADS // threads)
        self._on.launch("pick", min(blocks, self._groups), threads, *operands)

    def _together(self, words: Words, of_row: Words, rows: int) -> Segments:
        bits = self._groups.bit_length()
        of_row, words = sgb.radix_sort(self._sorts, of_row, words, rows, bits)
        return sgb.segmented(self._sorts, words, of_row, rows, self._groups)


def sample(on: Launcher, chunk: Chunk, stride: int, samples: int, words: int, of_row: int) -> None:
    """Write words and groups of one row of each ``stride``; ``on`` of ``selecting``."""
    if samples:
        sizes = ctypes.c_uint32(stride), ctypes.c_uint32(samples)
        places = ctypes.c_void_p(words), ctypes.c_void_p(of_row)
        on.launch_over("sample_rows", samples, chunk, *sizes, *places)


def quantiles(
    selector: Selector, chunks: Sequence[Chunk], between: str, stride: int, room: int
) -> tuple[Any, Any, int] | None:
    """One quantile of each group of the rows of all chunks; see ``Selector.quantiles``.

    One row of each ``stride``, a power of two, is sampled. None where brackets hold more rows than
    there is ``room`` for.
    """
    brackets = selector.aim(chunks, stride)
    missed = 1
    while missed:
        counts, inside = selector.counts(), selector.candidates(room)
        for chunk in chunks:
            selector.count(chunk, brackets, counts, inside)
        tally = selector.narrow(counts, brackets, inside)
        if tally.kept > room:
            return None
        selector.pick(inside, tally.kept)
        missed = tally.missed
    return selector.quantiles(between)


# ---- distinct values -----------------------------------------------------------------------------

# Of distinct values: rows of a part, and one sampled row of so many.
PART_ROWS = 2048
PART_STRIDE = 64
# Values of fewer bytes are so few that their sort has few passes and some parts most of the rows.
DIVIDED_BYTES = 4
# Distinct values of so few bytes, in fewer groups, are sorted. One H200, 50 million int32: in one
# group 1.80 ms sorted and 3.36 in parts, in 1,000 groups 2.96 and 2.17.
NARROW_BYTES = 4
GROUPS_OF_NARROW = 100
# Bytes of the table of a part.
TABLE_BYTES = 64 << 10
# A part is one block's. Wider ones, as a share of all rows, would take longer than a sort.
WIDEST_PART = 1 / 16


def divides(rows: int, groups: int, width: int) -> bool:
    """Whether distinct values of ``width`` bytes are counted in parts."""
    fewest = GROUPS_OF_NARROW if width <= NARROW_BYTES else 1
    return fewest <= groups <= GROUPS_AT_MOST and rows >= ROWS_FROM and width >= DIVIDED_BYTES


def count_distinct(sorts: Launcher, chunk: Chunk, ctype: str) -> Any:
    """Count the distinct values of 4 or 8 bytes of each group, as int64; all NaN are one value.

    None where one value has so many of the rows that a sort is faster, or a part has more values
    than its table holds.
    """
    on, width, groups = selecting(sorts, ctype), TYPE_BYTES[ctype], chunk.groups
    firsts = _divided(on, chunk, width)
    parts = on.read_number(firsts.buffer.ptr + 4 * groups)
    words, of_row = array_of(on, chunk.rows, width), array_of(on, chunk.rows, 4)
    on.launch_over("find_parts", chunk.rows, chunk, firsts.pointer, words.pointer, of_row.pointer)
    of_row, words = sgb.radix_sort(sorts, of_row, words, chunk.rows, parts.bit_length())
    segments = sgb.segmented(sorts, words, of_row, chunk.rows, parts)
    # rows of the widest part, and whether a part has more values than its table holds
    tally = zeros_of(on, 2, 4)
    full = tally.buffer.ptr + 4
    counted = ctypes.c_void_p(segments.starts.ptr), ctypes.c_uint32(parts)
    on.launch_over("find_widest", parts, *counted, tally.pointer)
    if on.read_number(tally.buffer.ptr) > max(WIDEST_PART * chunk.rows, PART_ROWS):
        return None
    counts, distinct = array_of(on, parts, 4), array_of(on, groups, 8)
    on.launch(
        "count_parts",
        *(min(parts, on.device.multiprocessors * tuning.PARTS_BLOCKS), tuning.PARTS_THREADS),
        *(words.pointer, *counted, ctypes.c_uint32(TABLE_BYTES // width)),
        *(counts.pointer, ctypes.c_void_p(full)),
        shared=TABLE_BYTES,
    )
    operands = counts.pointer, firsts.pointer, ctypes.c_uint32(groups), distinct.pointer
    on.launch_over("sum_parts", groups, *operands)
    return None if on.read_number(full) else distinct.buffer


def _divided(on: Launcher, chunk: Chunk, width: int) -> Words:
    """The first part of each group, and how many parts there are."""
    groups = ctypes.c_uint32(chunk.groups)
    samples = math.ceil(chunk.rows / PART_STRIDE)
    words, of_row = array_of(on, samples, width), array_of(on, samples, 4)
    sample(on, chunk, PART_STRIDE, samples, words.buffer.ptr, of_row.buffer.ptr)
    firsts = zeros_of(on, chunk.groups + 1, 4)
    operands = of_row.pointer, ctypes.c_uint32(samples), groups, firsts.pointer
    on.launch_over("count_sampled", samples, *operands)
    sampled_rows = ctypes.c_uint32(PART_ROWS // PART_STRIDE)
    on.launch_over("divide_groups", chunk.groups, firsts.pointer, groups, sampled_rows)
    total = ctypes.c_void_p(firsts.buffer.ptr + 4 * chunk.groups)
    on.launch("scan_groups", 1, tuning.SCAN_THREADS, firsts.pointer, groups, total)
    return firsts
