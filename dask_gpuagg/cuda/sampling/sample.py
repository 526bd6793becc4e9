"""The summary of the keys before they are grouped: from a sample, or by a count of skewed keys."""

import ctypes
import math
import statistics
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_gpuagg.cuda.call import Call
from dask_gpuagg.cuda.choice import summary, tables
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Hgb, Partitioned, Sgb
from dask_gpuagg.cuda.choice.summary import KeySummary, Numbers
from dask_gpuagg.cuda.keys import ranges
from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.structs import HotSeen, Summary
from dask_gpuagg.cuda.runtime.driver import fill, read_back

REGISTERS = 1 << tuning.REGISTERS_BITS
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
_Array = npt.NDArray[Any]


class Sample:
    """A sample of a call's rows: launched at once, waited for when its numbers are read.

    ``table`` and ``summary`` are the addresses of the device's ``Sample`` and ``Summary``.
    """

    def __init__(self, call: Call) -> None:
        import rmm

        self._call = call
        size = ctypes.sizeof(Summary) + ctypes.sizeof(HotSeen)
        self._memory = rmm.DeviceBuffer(size=12 * tuning.SAMPLE_SLOTS + size, stream=call.stream)
        self.table = table = self._memory.ptr
        self.summary = table + 12 * tuning.SAMPLE_SLOTS
        self._hot = self.summary + ctypes.sizeof(Summary)
        fill(table, 0xFF, 12 * tuning.SAMPLE_SLOTS + size, call.handle)
        pointers = ctypes.c_void_p(table), ctypes.c_void_p(self.summary)
        for columns, first, end in call.pieces:
            segments = segments_of(first, end, call.rows)
            if segments:
                piece = columns, ctypes.c_uint32(first), ctypes.c_uint32(end)
                call.launch("sample", segments, tuning.SEGMENT, *piece, *pointers)
        blocks = tuning.SAMPLE_SLOTS // 4 // tuning.SMALL_BLOCK
        call.launch("summarise", blocks, tuning.SMALL_BLOCK, *pointers, ctypes.c_void_p(self._hot))

    @cached_property
    def _counts(self) -> Summary:
        counts = Summary()
        read_back(self.summary, counts, self._call.handle)
        return counts

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Least and greatest value of each key column, where ``Query.may_fill``."""
        of = self._counts.ranges
        return [
            ranges.bounds_of(of[2 * i], of[2 * i + 1]) for i in range(len(self._call.query.keys))
        ]

    def some_words(self) -> _Array:
        """Unmixed words of some of the keys, int64: those of as many slots as lie first."""
        slots = (ctypes.c_uint64 * _SOME_SLOTS)()
        read_back(self.table, slots, self._call.handle)
        mixed: _Array = np.frombuffer(bytes(slots), dtype=np.uint64)
        # as unmix() of kernels/core/types.cuh
        words: _Array = mixed[mixed < _NO_KEYS] * np.uint64(_GOLDEN_INVERSE)
        words ^= words >> np.uint64(32)
        return words.view(np.int64)

    @cached_property
    def numbers(self) -> Numbers:
        """Waits for all that was launched."""
        own = self._counts
        plain = {"least": own.least, "greatest": own.greatest, "most": max(own.most, 0)}
        # others are counted from one below zero: see estimate/sample.cuh
        counts = {
            name: (getattr(own, name) + 1) % (1 << 8 * getattr(Summary, name).size)
            for name in Numbers._fields
            if name not in plain
        }
        return Numbers(**plain, **counts)

    def estimate(self) -> KeySummary:
        """The summary of the keys."""
        hot = partial(_hot_keys, self._hot, self.numbers.hot_keys, self._call)
        return summary.estimate_groups(self._call.rows, self.numbers, hot)


def segments_of(first: int, end: int, rows: int) -> int:
    """Number of the sample's segments that begin in a piece; segments lie evenly over all rows."""
    of = summary.SEGMENTS
    return -(-end * of // rows) - -(-first * of // rows)


def estimated(call: Call, forced: str, sample: Sample) -> KeySummary:
    """The summary of the keys.

    Skewed keys are counted, not only sampled, where partitions may be made of them.
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
    return call.rows >= summary.SAMPLED_FROM or (forced == "direct" and call.rows > 0)


def ranged_keys_of(call: Call, sample: Sample, decision: Decision) -> ranges.RangedKeys | None:
    """The numbers by which keys may have slots that they have not as they are.

    None where there are too many numbers, or where another than ``decision``, which is for the keys
    as they are, would be no better.
    """
    query, estimate = call.query, decision.estimate
    if estimate is None or isinstance(decision, Sgb):
        return None
    if query.may_fill:
        # one hash table in shared memory takes packed words faster than their numbers are made
        if isinstance(decision, Hgb):
            return None
        return ranges.numbered_by_ranges(query, sample.ranges, call.rows, call.key_labels)
    dense = isinstance(decision, Direct) or (isinstance(decision, Partitioned) and decision.window)
    few = call.rows < ranges.STEPPED_ROWS or estimate.groups < _STEPPED_GROUPS
    if dense or few or estimate.skewed:
        return None
    return ranges.numbered_by_steps(
        query, sample.some_words(), estimate.bounds, call.rows, call.key_labels
    )


def _hot_keys(address: int, hot_keys: int, call: Call) -> list[tuple[int, int, int]]:
    """Words, rows and segments of the hot keys that the sample reports."""
    if not hot_keys:
        return []
    hot, reported = HotSeen(), min(hot_keys, tuning.HOT_TOLD)
    read_back(address, hot, call.handle)
    words = np.frombuffer(hot.words, np.uint64, reported)
    counts = np.frombuffer(hot.counts, np.uint32, reported)
    rows, segments = counts % (1 << tuning.SEGMENTS_FROM_BIT), counts >> tuning.SEGMENTS_FROM_BIT
    return list(zip(words.tolist(), rows.tolist(), segments.tolist(), strict=True))


def _counted(call: Call) -> int:
    """The number of keys by a count of every fourth row's."""
    registers = (ctypes.c_uint32 * (tuning.COUNTED_PARTS * REGISTERS))()

    def launch(memory: ctypes.c_void_p) -> None:
        for columns, first, end in call.pieces:
            blocks = call.spread(end - first, tuning.COUNT_KEYS_THREADS, waves=4)
            blocks += -blocks % tuning.COUNTED_PARTS
            piece = columns, ctypes.c_uint32(first), ctypes.c_uint32(end)
            call.launch("count_keys", blocks, tuning.COUNT_KEYS_THREADS, *piece, memory)

    call.read_summary(launch, registers, 0)
    ranks = np.frombuffer(bytes(registers), dtype=np.uint32).reshape(-1, REGISTERS)
    return min(call.rows, keys_of_all(ranks))


def keys_of_all(ranks: _Array) -> int:
    """The number of keys in all rows, from registers of four sixteenths of them.

    How much twice the rows show is seen twice, of one sixteenth and of two, and extrapolated for
    the two doublings that are left, between none but new keys and no new one. For Zipf's law over
    16 million keys, of 4 to 100 million rows and with exponents from 0.3 to 1.5, the mean error is
    between -2 and 6 %.
    """
    parts = range(tuning.COUNTED_PARTS)
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


def distinct_keys(ranks: _Array) -> float:
    """The estimate of HyperLogLog's registers (Flajolet et al. 2007, section 4).

    A register has the highest position of a first one bit, 0 for none. The standard error is 1.1 %.
    """
    m = len(ranks)
    counts = np.bincount(ranks)
    unused = int(counts[0])
    raw = 0.7213 / (1 + 1.079 / m) * m * m / float(counts @ 2.0 ** -np.arange(counts.size))
    if raw <= 2.5 * m and unused:
        return m * math.log(m / unused)
    return raw
