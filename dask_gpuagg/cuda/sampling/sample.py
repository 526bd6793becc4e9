"""The summary of the keys before they are grouped: from a sample, or by a count of skewed keys."""

from __future__ import annotations

import ctypes
import math
import statistics
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_gpuagg.cuda.call import Call
from dask_gpuagg.cuda.choice import summary as cardinality
from dask_gpuagg.cuda.choice import tables
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Hgb, Partitioned, Sgb
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.keys import ranges
from dask_gpuagg.cuda.keys.ranges import (
    Numbering,
    bounds_of,
    numbered_by_ranges,
    numbered_by_steps,
)
from dask_gpuagg.cuda.query.structs import HotSeen, Summary
from dask_gpuagg.cuda.query.tuning import (
    COUNT_KEYS_THREADS,
    COUNTED_PARTS,
    HOT_TOLD,
    REGISTERS_BITS,
    SAMPLE_SLOTS,
    SEGMENT,
    SEGMENTS_FROM_BIT,
    SMALL_BLOCK,
)
from dask_gpuagg.cuda.runtime.driver import fill, read_back

REGISTERS = 1 << REGISTERS_BITS
# Slots of the sample that are looked at for some of its keys, and the words that are none
# (kernels/estimate/sample.cuh).
_SOME_SLOTS = 8192
_NO_KEYS = (1 << 64) - 2
_GOLDEN_INVERSE = 0xF1DE83E19937733D
# How much more than before the growth of the number of keys, as a logarithm, falls or rises in each
# further doubling of the rows: as for Zipf's laws.
_BENT_MORE = (1.25, 1.5)
# Groups that lie in steps, at least: fewer have one hash table in shared memory either way.
_STEPPED_GROUPS = 1000
_Ranks = npt.NDArray[Any]
_Words = npt.NDArray[Any]


class _Registers(ctypes.Structure):
    _fields_ = [("ranks", ctypes.c_uint32 * (COUNTED_PARTS * REGISTERS))]


class Numbers(NamedTuple):
    """What a ``Summary`` says: counts, and ``least`` and ``greatest`` as the device has them."""

    pairs: int
    least: int
    greatest: int
    rows: int
    distinct: int
    once: int
    twice: int
    most: int
    repeats: int
    met: int
    hots: int
    falls: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest unmixed word, as signed numbers."""
        return bounds_of(self.least, self.greatest)


class Sample:
    """A sample of a call's rows: launched at once, waited for when its numbers are read.

    Attributes
    ----------
    table, summary : int
        Addresses of the ``Sample`` and of the ``Summary``.
    """

    def __init__(self, call: Call) -> None:
        import rmm

        self._call = call
        size = ctypes.sizeof(Summary) + ctypes.sizeof(HotSeen)
        self._memory = rmm.DeviceBuffer(size=12 * SAMPLE_SLOTS + size, stream=call.stream)
        self.table = table = self._memory.ptr
        self.summary = table + 12 * SAMPLE_SLOTS
        self._hot = self.summary + ctypes.sizeof(Summary)
        fill(table, 0xFF, 12 * SAMPLE_SLOTS + size, call.handle)
        pointers = ctypes.c_void_p(table), ctypes.c_void_p(self.summary)
        for columns, first, end in call.pieces:
            segments = segments_of(first, end, call.rows)
            if segments:
                piece = columns, ctypes.c_uint32(first), ctypes.c_uint32(end)
                call.launch("sample", segments, SEGMENT, *piece, *pointers)
        blocks = SAMPLE_SLOTS // 4 // SMALL_BLOCK
        call.launch("summarise", blocks, SMALL_BLOCK, *pointers, ctypes.c_void_p(self._hot))

    @cached_property
    def _seen(self) -> Summary:
        seen = Summary()
        read_back(self.summary, seen, self._call.handle)
        return seen

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Least and greatest value of each key column, where ``Query.may_fill``."""
        of = self._seen.ranges
        return [bounds_of(of[2 * i], of[2 * i + 1]) for i in range(len(self._call.query.keys))]

    def some_words(self) -> _Words:
        """Unmixed words of some of the keys, int64: those of as many slots as lie first."""
        slots = (ctypes.c_uint64 * _SOME_SLOTS)()
        read_back(self.table, slots, self._call.handle)
        mixed: _Words = np.frombuffer(bytes(slots), dtype=np.uint64)
        # as unmix() of kernels/core/types.cuh
        words: _Words = mixed[mixed < _NO_KEYS] * np.uint64(_GOLDEN_INVERSE)
        words ^= words >> np.uint64(32)
        return words.view(np.int64)

    @cached_property
    def numbers(self) -> Numbers:
        """Waits for all that was launched."""
        seen = self._seen
        # counted from one below zero: see estimate/sample.cuh
        return Numbers(
            (seen.pairs + 1) & 0xFFFFFFFFFFFFFFFF,
            seen.least,
            seen.greatest,
            (seen.rows + 1) & 0xFFFFFFFF,
            (seen.distinct + 1) & 0xFFFFFFFF,
            (seen.once + 1) & 0xFFFFFFFF,
            (seen.twice + 1) & 0xFFFFFFFF,
            max(seen.most, 0),
            (seen.repeats + 1) & 0xFFFFFFFF,
            (seen.met + 1) & 0xFFFFFFFF,
            (seen.hots + 1) & 0xFFFFFFFF,
            (seen.falls + 1) & 0xFFFFFFFF,
        )

    def estimate(self) -> KeySummary:
        """The summary of the keys."""
        n = self.numbers
        return cardinality.estimate_groups(
            self._call.rows,
            n.rows,
            n.distinct,
            n.once,
            n.twice,
            n.most,
            n.repeats,
            n.met,
            n.pairs,
            lambda: _hot_keys(self._hot, n.hots, self._call),
            n.bounds,
            n.falls,
        )


def segments_of(first: int, end: int, rows: int) -> int:
    """How many of the sample's segments, evenly over all rows, begin in a piece of them."""
    of = cardinality.SEGMENTS
    return -(-end * of // rows) - -(-first * of // rows)


def estimated(call: Call, forced: str, sample: Sample) -> KeySummary:
    """The summary of the keys; skewed keys are counted, not only sampled.

    Parameters
    ----------
    call : Call
    forced : str
        The kernel that is wanted. Skewed keys are counted only where partitions may be made of
        them.
    sample : Sample
    """
    estimate = sample.estimate()
    if estimate.groups < call.least:
        # tables of groups may be in one order, and then segments of two have the same keys
        most = max(estimate.most, call.least)
        estimate = replace(estimate, groups=call.least, most=most, skewed=False, hot=())
    many = estimate.most > tables.shared_capacity(call.query, call.device)
    if estimate.skewed and many and forced in ("auto", "pgb", "pgb_ur", "pgb_fold"):
        groups = max(estimate.groups, _counted(call))
        estimate = replace(estimate, groups=groups, most=groups + groups // 16)
    return estimate


def sampled(call: Call, forced: str) -> bool:
    """Whether a sample is taken: of few rows it would cost more than it saves."""
    return call.rows >= cardinality.SAMPLED_FROM or (forced == "direct" and call.rows > 0)


def numbering_of(call: Call, sample: Sample, decision: Decision) -> Numbering | None:
    """The numbers by which keys may have slots that they have not as they are.

    Parameters
    ----------
    call : Call
    sample : Sample
        Of its rows.
    decision : Decision
        For the keys as they are.

    Returns
    -------
    Numbering or None
        None where there are too many numbers, or where another decision would be no better.
    """
    query, estimate = call.query, decision.estimate
    if estimate is None or isinstance(decision, Sgb):
        return None
    if query.may_fill:
        # one hash table in shared memory takes packed words faster than their numbers are made
        if isinstance(decision, Hgb):
            return None
        return numbered_by_ranges(query, sample.ranges, call.rows, call.about)
    dense = isinstance(decision, Direct) or (isinstance(decision, Partitioned) and decision.window)
    few = call.rows < ranges.STEPPED_ROWS or estimate.groups < _STEPPED_GROUPS
    if dense or few or estimate.skewed:
        return None
    return numbered_by_steps(query, sample.some_words(), estimate.bounds, call.rows, call.about)


def _hot_keys(address: int, hots: int, call: Call) -> list[tuple[int, int, int]]:
    """Words, rows and segments of the hot keys that the sample reports."""
    if not hots:
        return []
    hot, told = HotSeen(), min(hots, HOT_TOLD)
    read_back(address, hot, call.handle)
    words = np.frombuffer(hot.words, np.uint64, told)
    counts = np.frombuffer(hot.counts, np.uint32, told)
    rows, segments = counts % (1 << SEGMENTS_FROM_BIT), counts >> SEGMENTS_FROM_BIT
    return list(zip(words.tolist(), rows.tolist(), segments.tolist(), strict=True))


def _counted(call: Call) -> int:
    """The number of keys by a count of every fourth row's."""
    registers = _Registers()

    def launch(memory: ctypes.c_void_p) -> None:
        for columns, first, end in call.pieces:
            blocks = call.spread(end - first, COUNT_KEYS_THREADS, waves=4)
            blocks += -blocks % COUNTED_PARTS
            piece = columns, ctypes.c_uint32(first), ctypes.c_uint32(end)
            call.launch("count_keys", blocks, COUNT_KEYS_THREADS, *piece, memory)

    call.read_summary(launch, registers, 0)
    ranks = np.frombuffer(bytes(registers), dtype=np.uint32).reshape(COUNTED_PARTS, REGISTERS)
    return min(call.rows, keys_of_all(ranks))


def keys_of_all(ranks: _Ranks) -> int:
    """The number of keys in all rows, from registers of four sixteenths of them.

    How much twice the rows show is seen twice, of one sixteenth and of two, and extrapolated for
    the two doublings that are left, between none but new keys and no new one. For Zipf's law over
    16 million keys, of 4 to 100 million rows and with exponents from 0.3 to 1.5, the mean error is
    between -2 and 6 %.

    Parameters
    ----------
    ranks : array of shape (4, REGISTERS)
    """
    parts = range(COUNTED_PARTS)
    one = statistics.fmean(distinct_keys(ranks[i]) for i in parts)
    pairs = [np.maximum(ranks[i], ranks[j]) for i in parts for j in parts if i < j]
    two = statistics.fmean(distinct_keys(pair) for pair in pairs)
    four = distinct_keys(ranks.max(axis=0))
    if not one:
        return 0
    growing = math.log2(four / two)
    bent = growing - math.log2(two / one)
    doublings = 0.0
    for more in _BENT_MORE:
        growing = min(1.0, max(0.0, growing + more * bent))
        doublings += growing
    return round(four * 2**doublings)


def distinct_keys(ranks: _Ranks) -> float:
    """The estimate of HyperLogLog's registers (Flajolet et al. 2007, section 4).

    Its standard error is 1.1 %.

    Parameters
    ----------
    ranks : array of int
        Of each register the highest position of a first one bit, 0 for none.
    """
    m = len(ranks)
    counts = np.bincount(ranks)
    unused = int(counts[0])
    raw = 0.7213 / (1 + 1.079 / m) * m * m / float(counts @ 2.0 ** -np.arange(counts.size))
    if raw <= 2.5 * m and unused:
        return m * math.log(m / unused)
    return raw
