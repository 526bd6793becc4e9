"""Quantiles of groups by selection: brackets from a sample, counts, and the rows inside.

A ``Selector`` has the steps, so that rows may come in several chunks, and the counts of several
devices may be added before they narrow the brackets: ``aim``, then ``count`` for each chunk,
``narrow``, and ``pick`` among what was kept. ``quantiles`` takes them for chunks of one device.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dask_gpuagg.cuda.algorithms import sgb
from dask_gpuagg.cuda.algorithms.sgb import BETWEEN, Segments, Words, array_of
from dask_gpuagg.cuda.call.call import ColumnStruct, Launcher, Target
from dask_gpuagg.cuda.query import instantiations
from dask_gpuagg.cuda.query.instantiations import CORE, TranslationUnit
from dask_gpuagg.cuda.query.tuning import (
    COUNT_BLOCKS,
    COUNT_ITEMS,
    COUNT_THREADS,
    ONE_BLOCK_THREADS,
    SIDES,
    SMALL_BLOCK,
)
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import Device, fill, read_back
from dask_gpuagg.cuda.runtime.kernels import Kernels

# More groups are sorted, and so are groups of fewer bytes of values on average: a sample has
# too few rows of each, and narrow values sort in few passes. One H200, 50 million rows: at
# 5,000 rows a group selecting takes 0.36 of the time of a sort (float64) and 0.70 (int32), at 769
# rows 1.19 and 1.97.
GROUPS_AT_MOST = 1 << 16
BYTES_OF_A_GROUP = 16 << 10
# Fewer rows are sorted in the time that the launches of a selection take.
ROWS_FROM = 1 << 21

# A bracket's width on either side, in standard deviations of a rank in the sample, and in ranks:
# one of 150,000 brackets misses its quantile, which a second count then finds.
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
    """Whether a quantile of each group is selected.

    Parameters
    ----------
    rows, groups : int
    width : int
        Bytes of a value.

    Returns
    -------
    bool
    """
    return (
        0 < groups <= GROUPS_AT_MOST
        and rows >= ROWS_FROM
        and rows * width >= BYTES_OF_A_GROUP * groups
    )


def stride_of(rows: int, groups: int) -> int:
    """Rows of which one is sampled, a power of two.

    A sample of one row in r is r times smaller than the input, and brackets of a group of n rows
    hold ``ERRORS * sqrt(r / n)`` of them. Both are sorted by group, so their sum is minimised.
    """
    of_group = max(rows / max(groups, 1), 1.0)
    best = (2.0 * math.sqrt(of_group) / ERRORS) ** (2.0 / 3.0)
    return int(2 ** max(1, round(math.log2(max(best, 1.0)))))


def inside(rows: int, groups: int, stride: int) -> float:
    """Share of the rows that brackets are expected to hold, at most.

    Exact for a median and groups of one size. The square root is concave, so skewed groups have
    less in all.
    """
    of_group = max(rows / max(groups, 1), 1.0)
    return min(1.0, (ERRORS * math.sqrt(of_group / stride) + 2 * SPARE + 2) * stride / of_group)


def room_of(rows: int, groups: int, stride: int) -> int:
    """Rows that there is room for inside of brackets."""
    return min(rows, int(SLACK * rows * inside(rows, groups, stride)) + _ROOM_AT_LEAST)


def sorts_words(widest: int, rows: int) -> bool:
    """Whether words are sorted where the widest group has so many of ``rows``."""
    return widest > WIDE_GROUP + WIDE_SHARE * rows


def copies_of(groups: int) -> int:
    """Copies of the counts of a block, a power of two: threads side by side have their own."""
    room = _BYTES_OF_COPIES // (4 * SIDES * max(groups, 1))
    return int(min(_COPIES_AT_MOST, 2 ** (max(room, 1).bit_length() - 1)))


@dataclass(frozen=True)
class Selecting:
    """The translation unit of the kernels that select, for values of one type.

    Attributes
    ----------
    ctype : str
    ticks : bool
        Whether quantiles are ticks of the values' type, as of datetimes, or numbers in float64.
    """

    ctype: str
    ticks: bool = False
    units = (CORE,)

    def source(self, *units: str) -> TranslationUnit:
        """All of it."""
        return instantiations.selecting(self.ctype, self.ticks)


@cache
def _kernels(what: Selecting, device: Device) -> Kernels:
    return Kernels(what, device)


class Chunk(ctypes.Structure):
    """``Chunk`` of kernels/select/rows.cuh."""

    _fields_ = [
        ("values", ColumnStruct),
        ("codes", ctypes.c_void_p),
        ("rows", ctypes.c_uint32),
        ("groups", ctypes.c_uint32),
        ("skips_nan", ctypes.c_uint32),
    ]


class _Kept(ctypes.Structure):
    """``Kept`` of kernels/select/count.cuh."""

    _fields_ = [
        ("words", ctypes.c_void_p),
        ("of_row", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("room", ctypes.c_uint32),
    ]


class Tally(ctypes.Structure):
    """Results of a count and of narrowing its brackets, for the host."""

    _fields_ = [("kept", ctypes.c_uint32), ("missed", ctypes.c_uint32)]


@dataclass
class Candidates:
    """Rows inside of brackets.

    Attributes
    ----------
    words, of_row : Words
    room : int
    tally : rmm.DeviceBuffer
        A ``Tally``: how many rows there are, more than ``room`` if that was too little, and how
        many groups ``narrow`` could not settle.
    """

    words: Words
    of_row: Words
    room: int
    tally: Any


def selecting(on: Launcher, ctype: str, ticks: bool = False) -> Launcher:
    """The kernels that select values of a type, where and when those of ``on`` run."""
    return replace(on, kernels=_kernels(Selecting(ctype, ticks), on.device), held=[])


class Selector:
    """The steps that find one quantile of each group.

    Parameters
    ----------
    sorts : Launcher
        Of ``sorting.launcher``.
    ctype : str
        Of the values: a name of ``TYPE_BYTES`` of at most 8 bytes.
    groups : int
        At least one.
    q : float
        From 0 to 1.
    ticks : bool
        Whether the quantiles are ticks of the values' type.
    """

    def __init__(
        self, sorts: Launcher, ctype: str, groups: int, q: float, ticks: bool = False
    ) -> None:
        self._sorts = sorts
        self._on = selecting(sorts, ctype, ticks)
        self._width = max(4, TYPE_BYTES[ctype])
        self._groups = groups
        self._q = q
        self._made_width = TYPE_BYTES[ctype] if ticks else 8
        # of each group: the words on either side, their ranks among the candidates, its rows
        self._found = self._pairs()
        self._ranks = array_of(sorts, groups, 8)
        self._sizes = array_of(sorts, groups, 8)

    def aim(self, chunks: Sequence[Chunk], stride: int) -> Words:
        """Brackets that are likely to hold the quantiles, from one row of each ``stride``.

        Returns
        -------
        Words
            Two words of each group: the ends of its bracket.
        """
        samples = [math.ceil(chunk.rows / stride) for chunk in chunks]
        words, of_row = (array_of(self._on, sum(samples), w) for w in (self._width, 4))
        first = 0
        for chunk, count in zip(chunks, samples, strict=True):
            places = (words.buffer.ptr + first * self._width, of_row.buffer.ptr + first * 4)
            sample(self._on, chunk, stride, count, *places)
            first += count
        segments, widest = self._grouped(words, of_row, first)
        brackets = self._pairs()
        self._launch(
            "aim",
            *(ctypes.c_void_p(segments.starts.ptr), ctypes.c_uint32(self._groups)),
            *(ctypes.c_double(x) for x in (self._q, ERRORS, SPARE)),
            *(brackets.pointer, self._ranks.pointer),
        )
        self._pick(segments, widest, brackets)
        return brackets

    def counts(self) -> Any:
        """Zero counts, uint64: for each of the ``SIDES`` of a bracket, one for each group."""
        size = 8 * SIDES * self._groups
        counts = array_of(self._on, SIDES * self._groups, 8).buffer
        fill(counts.ptr, 0, size, self._on.handle)
        return counts

    def candidates(self, room: int) -> Candidates:
        """Room for rows inside of brackets, without any."""
        words, of_row = array_of(self._on, room, self._width), array_of(self._on, room, 4)
        tally = array_of(self._on, 2, 4).buffer
        fill(tally.ptr, 0, 8, self._on.handle)
        return Candidates(words, of_row, room, tally)

    def count(self, chunk: Chunk, brackets: Words, counts: Any, kept: Candidates | None) -> None:
        """Add a chunk's rows to the counts, and append those inside of brackets to ``kept``."""
        if chunk.rows == 0:
            return
        place = _Kept(None, None, None, 0)
        if kept is not None:
            place = _Kept(kept.words.buffer.ptr, kept.of_row.buffer.ptr, kept.tally.ptr, kept.room)
        device, copies = self._on.device, copies_of(self._groups)
        shared = 4 * SIDES * self._groups * copies
        name, threads, blocks = "count_in_blocks", COUNT_THREADS, COUNT_BLOCKS
        if shared + _RESERVED > device.shared_bytes:
            name, shared = "count_in_memory", 0
        elif COUNT_BLOCKS * (shared + _RESERVED) > device.shared_bytes:
            name, threads, blocks = "count_in_one_block", ONE_BLOCK_THREADS, 1
        arguments = [chunk, brackets.pointer, ctypes.c_void_p(counts.ptr), place]
        if shared:
            arguments.append(ctypes.c_uint32(copies))
        spread = self._on.spread(chunk.rows, threads * COUNT_ITEMS, waves=blocks)
        self._on.launch(name, spread, threads, *arguments, shared=shared)

    def kept(self, kept: Candidates) -> int:
        """How many rows were inside, more than there is room for if that was too little."""
        tally = Tally()
        read_back(kept.tally.ptr, tally, self._on.handle)
        return int(tally.kept)

    def narrow(self, counts: Any, brackets: Words, kept: Candidates) -> Tally:
        """Settle the groups whose brackets hold their quantiles, and widen the other brackets.

        Parameters
        ----------
        counts : rmm.DeviceBuffer
            Of all rows of all chunks.
        brackets : Words
            Those that were counted by. Afterwards they are for a second count, which settles all.
        kept : Candidates
            Takes how many groups are not settled.

        Returns
        -------
        Tally
        """
        missed = ctypes.c_void_p(kept.tally.ptr + Tally.missed.offset)
        self._launch(
            "narrow",
            *(ctypes.c_void_p(counts.ptr), ctypes.c_uint32(self._groups), ctypes.c_double(self._q)),
            *(brackets.pointer, self._found.pointer, self._ranks.pointer, self._sizes.pointer),
            missed,
        )
        tally = Tally()
        read_back(kept.tally.ptr, tally, self._on.handle)
        return tally

    def pick(self, kept: Candidates, rows: int) -> None:
        """Find the words of the settled groups among the rows kept, whose order is lost."""
        self._pick(*self._grouped(kept.words, kept.of_row, rows), self._found)

    def made(self, between: str) -> tuple[Any, Any, int]:
        """The quantiles, once all groups are settled.

        Parameters
        ----------
        between : str
            Of ``BETWEEN``.

        Returns
        -------
        data, mask : rmm.DeviceBuffer
            float64, or the values' type for ticks.
        nulls : int
            Groups without a value.
        """
        data = array_of(self._on, self._groups, self._made_width).buffer
        mask = array_of(self._on, sgb.mask_bytes(self._groups), 1).buffer
        nulls = array_of(self._on, 1, 4)
        fill(nulls.buffer.ptr, 0, 4, self._on.handle)
        self._launch(
            "quantiles_found",
            *(self._found.pointer, self._sizes.pointer, ctypes.c_uint32(self._groups)),
            *(ctypes.c_double(self._q), ctypes.c_uint32(BETWEEN.index(between))),
            *(Target(data.ptr, mask.ptr), nulls.pointer),
        )
        count = ctypes.c_uint32()
        read_back(nulls.buffer.ptr, count, self._on.handle)
        return data, mask, count.value

    def _pairs(self) -> Words:
        return array_of(self._sorts, self._groups, 2 * self._width)

    def _launch(self, name: str, *arguments: Any) -> None:
        self._on.launch(name, self._on.spread(self._groups, SMALL_BLOCK), SMALL_BLOCK, *arguments)

    def _grouped(self, words: Words, of_row: Words, rows: int) -> tuple[Segments, int]:
        """Rows by group, in the order of their words if a group is large, and its rows."""
        segments = self._together(words, of_row, rows)
        widest = self._widest(segments)
        if sorts_words(widest, rows):
            words, of_row = segments.words, segments.of_row
            words, of_row = sgb.radix_sort(self._sorts, words, of_row, rows, 8 * self._width)
            segments = self._together(words, of_row, rows)
        return segments, widest

    def _pick(self, segments: Segments, widest: int, pairs: Words) -> None:
        """Find the words of each group's ranks."""
        arguments = (
            *(segments.words.pointer, ctypes.c_void_p(segments.starts.ptr)),
            *(self._ranks.pointer, ctypes.c_uint32(self._groups), pairs.pointer),
        )
        if sorts_words(widest, segments.rows):
            self._launch("read_ranks", *arguments)
            return
        threads = ONE_BLOCK_THREADS if widest > BUSY_GROUP else SMALL_BLOCK
        blocks = self._on.device.multiprocessors * (_SM_THREADS // threads)
        self._on.launch("pick", min(blocks, self._groups), threads, *arguments)

    def _together(self, words: Words, of_row: Words, rows: int) -> Segments:
        bits = self._groups.bit_length()
        of_row, words = sgb.radix_sort(self._sorts, of_row, words, rows, bits)
        return sgb.segmented(self._sorts, words, of_row, rows, self._groups)

    def _widest(self, segments: Segments) -> int:
        """Words of the largest group; those of all where they are few."""
        if segments.rows <= BUSY_GROUP:
            return segments.rows
        told = array_of(self._on, 1, 4).buffer
        fill(told.ptr, 0, 4, self._on.handle)
        counted = ctypes.c_void_p(segments.starts.ptr), ctypes.c_uint32(self._groups)
        self._launch("find_widest", *counted, ctypes.c_void_p(told.ptr))
        widest = ctypes.c_uint32()
        read_back(told.ptr, widest, self._on.handle)
        return int(widest.value)


def sample(on: Launcher, chunk: Chunk, stride: int, samples: int, words: int, of_row: int) -> None:
    """Write words and groups of one row of each ``stride``; ``on`` of ``selecting``."""
    if samples:
        on.launch(
            "sample_rows",
            *(on.spread(samples, SMALL_BLOCK), SMALL_BLOCK, chunk),
            *(ctypes.c_uint32(n) for n in (stride, samples)),
            *(ctypes.c_void_p(place) for place in (words, of_row)),
        )


def quantiles(
    selector: Selector, chunks: Sequence[Chunk], between: str, stride: int, room: int
) -> tuple[Any, Any, int] | None:
    """One quantile of each group of the rows of all chunks; see ``Selector.made``.

    Parameters
    ----------
    selector : Selector
    chunks : sequence of Chunk
    between : str
        Of ``BETWEEN``.
    stride, room : int
        One row of each ``stride``, a power of two, is sampled; ``room`` rows inside of brackets are
        kept.

    Returns
    -------
    data, mask, nulls
        Or None where brackets hold more rows than there is room for.
    """
    brackets = selector.aim(chunks, stride)
    missed = 1
    while missed:
        counts, kept = selector.counts(), selector.candidates(room)
        for chunk in chunks:
            selector.count(chunk, brackets, counts, kept)
        tally = selector.narrow(counts, brackets, kept)
        if tally.kept > room:
            return None
        selector.pick(kept, tally.kept)
        missed = tally.missed
    return selector.made(between)
