"""Reuse the previous partition's decision: partitions of a collection are mostly alike.

A decision waits for the sample, and the kernel for the decision, while the device is idle. Where
an earlier call asked for the same, its decision is launched right behind the sample, and the device
itself compares both samples (kernels/estimate/check.cuh): where they differ by more than chance
explains, the kernels do nothing, and a new decision is made.
"""

import ctypes
import math
from dataclasses import dataclass, replace
from typing import Any

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.call import Call, Run
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Hgb, Partitioned
from dask_gpuagg.cuda.choice.partitions import NARROW
from dask_gpuagg.cuda.choice.summary import SEGMENTS, KeySummary, Numbers
from dask_gpuagg.cuda.keys import ranges
from dask_gpuagg.cuda.keys.ranges import RangedKeys
from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.structs import Expected, ExpectedHot
from dask_gpuagg.cuda.query.tuning import HOT_AT_MOST, HOT_ROWS, TOLD_COLUMNS
from dask_gpuagg.cuda.runtime.kernels import Kernels
from dask_gpuagg.cuda.sampling.sample import Sample

# Standard deviations of a Poisson variable by which counts of two samples may differ.
_DEVIATIONS = 4
# Fewer pairs mean more groups, for which there must be room.
_FEWER_PAIRS = 3
# Most calls for which no decision is repeated: each refusal in a row doubles their number.
_LEFT_OUT = 64
# Decisions that are kept, of one process's lifetime of queries.
_KEPT = 512
# Share of the rows by which partitions may differ, and of the keys' range that a sample's ends may.
_ROWS_SHARE = 1 / 16
_RANGE_SHARE = 1 / 8
# Values of a row that are not null, on average.
_VALUES = 0.05
# Share of the rows of hot keys that these must have again.
_HOT_AGAIN = 0.75
# Rows that found no place, at most, of a decision worth repeating.
_SPILLED = 1 / 64
_WORDS, _HALF = 1 << 64, 1 << 63


@dataclass(frozen=True)
class Expectation:
    """A decision, and the rows that it was made for."""

    decision: Decision
    rows: int
    # of a row that were not null, on average
    values: float
    expected: Expected
    # where keys are numbered by their ranges
    ranged: RangedKeys | None = None
    # where keys are kept out of partitions
    hot: ExpectedHot | None = None


# Calls that are alike have these in common: kernels, what is forced, what is grouped by, and the
# numbers of coded keys, by identity.
_Key = tuple[Kernels, str, tuple[str, ...], Any]
_known: Cache[_Key, Expectation] = Cache(_KEPT)
# Refusals in a row, and for how many calls no decision is repeated.
_refused: Cache[_Key, tuple[int, int]] = Cache(_KEPT)


def _key(call: Call, forced: str) -> _Key:
    return call.kernels, forced, call.key_labels, call.codes


def expectation(call: Call, forced: str) -> Expectation | None:
    """The decision for earlier rows like those of a call, if there is one."""
    before = _known.get(_key(call, forced))
    if before is None or abs(before.values - (call.values or 0.0)) > _VALUES:
        return None
    more, share = call.rows - before.rows, _ROWS_SHARE * before.rows
    # partitions have room for so many rows
    if not -share <= more <= (0 if isinstance(before.decision, Partitioned) else share):
        return None
    row, left = _refused.get(_key(call, forced)) or (0, 0)
    if left:
        _refused.put(_key(call, forced), (row, left - 1))
        return None
    return before


def check(call: Call, sample: Sample, before: Expectation, counters: int) -> None:
    """Launch the comparison of a sample with what a decision was made for.

    ``counters`` is the address of those that say that the kernels have nothing to do. The call is
    that of the sample, whose kernels are loaded.
    """
    to = ctypes.c_void_p(counters)
    call.launch("check", 1, 32, ctypes.c_void_p(sample.summary), before.expected, to)
    if before.hot is not None:
        table = ctypes.c_void_p(sample.table)
        call.launch("check_hot", 1, HOT_AT_MOST, table, before.hot, to)


def refused(call: Call, forced: str) -> None:
    """Note that rows were unlike those before; after several refusals no decision is repeated."""
    row = (_refused.get(_key(call, forced)) or (0, 0))[0] + 1
    _refused.put(_key(call, forced), (row, min(_LEFT_OUT, 2 ** min(row, 30)) - 1))


def judge(call: Call, forced: str, run: Run) -> None:
    """Drop a repeated decision that did not do well."""
    _refused.drop(_key(call, forced))
    if run.restarted or run.spilled > _SPILLED * call.rows:
        _known.drop(_key(call, forced))


def keep(
    call: Call,
    forced: str,
    decision: Decision | None,
    numbers: Numbers,
    spilled: int,
    ranged: RangedKeys | None = None,
) -> None:
    """Remember a decision that did well; drop the one before otherwise.

    The decision is None if the rows were not grouped by the first one; ``spilled`` counts rows that
    had no place at first. ``ranged`` is what it is for, where that is not the call's query.
    """
    if isinstance(decision, Partitioned):
        # room for skewed keys is made by a count of the rows themselves
        worth = decision.counted or not (decision.estimate and decision.estimate.skewed)
    else:
        # beside the time of other kernels that of waiting for the sample does not count
        worth = isinstance(decision, Hgb | Direct)
    if decision is None or not worth or spilled > _SPILLED * call.rows:
        _known.drop(_key(call, forced))
        return
    again = replace(decision, why=f"{decision.why}; as for rows before")
    expected = bounds_of(numbers, decision, ranged)
    hot = None
    if isinstance(decision, Partitioned) and decision.hot and decision.estimate:
        shares = dict(decision.estimate.hot)
        sampled = _HOT_AGAIN * numbers.rows * sum(shares[word] for word in decision.hot)
        words = (ctypes.c_uint64 * HOT_AT_MOST)(*decision.hot)
        hot = ExpectedHot(words, len(decision.hot), int(sampled))
    repeatable = Expectation(again, call.rows, call.values or 0.0, expected, ranged, hot)
    _known.put(_key(call, forced), repeatable)


def forget() -> None:
    """Drop all decisions."""
    _known.clear()
    _refused.clear()
    ranges.forget_out_of_range()


def _window_of(decision: Decision) -> tuple[int, int] | None:
    """The least and the greatest word that a decision has room for; None if any may come."""
    match decision:
        case Direct():
            return decision.base, decision.base + decision.keys - 1
        case Partitioned() if decision.base is not None:
            return decision.base, decision.base + (decision.window or NARROW) - 1
    return None


def _window_of_steps(ranged: RangedKeys) -> tuple[int, int] | None:
    """The least and the greatest key that may come again, where keys are multiples of a step."""
    if not ranged.step:
        return None
    ((base, codes),) = ranged.ranges
    beyond = _room_left(codes)
    # the last code may stand for null
    return base + beyond * ranged.step, base + (codes - 2 - beyond) * ranged.step


def _room_left(codes: int) -> int:
    """Half of the room that a range has beyond a sample."""
    return codes // 400 + 2


def _deviation_of_pairs(numbers: Numbers, estimate: KeySummary) -> int:
    """Deviation of the pairs of skewed keys: its segments vary like draws with replacement."""
    variance, pairs = 0.0, 0.0
    for _, share in estimate.hot:
        absent = math.exp(-share * numbers.rows / SEGMENTS)
        segments = SEGMENTS * (1 - absent)
        variance += 4 * segments**3 * absent
        pairs += segments**2
    # the square of a Poisson variable: a key that is not hot has so few segments
    variance += (4 * HOT_ROWS + 2) * max(0.0, numbers.pairs - pairs)
    return math.isqrt(int(variance))


def bounds_of(numbers: Numbers, decision: Decision, ranged: RangedKeys | None = None) -> Expected:
    """Bounds within which a sample counts as like one with these numbers.

    Keys must not leave the window of the decision; of numbered keys, whose window has all numbers,
    no value may come near the ends of the ranges.
    """
    # adjacent equal keys are not independent, nor are the pairs of one key, which are counted in
    # both orders
    run = min(tuning.SEGMENT, numbers.rows / max(1.0, numbers.rows - numbers.repeats * 32 / 31))
    pairs = max(2.0, 4 * numbers.segment_keys / max(1, numbers.distinct) - 2)
    together = {"pairs": pairs, "rows": run, "most": run}
    allowed: dict[str, tuple[int, int]] = {}
    for name, n in numbers._asdict().items():
        deviation = math.isqrt(int(n * together.get(name, 1)))
        if name == "pairs" and decision.estimate is not None and decision.estimate.skewed:
            deviation = _deviation_of_pairs(numbers, decision.estimate)
        beyond = _DEVIATIONS * deviation + 8
        below = beyond if name != "pairs" else _FEWER_PAIRS * deviation
        # no descents at all are sorted keys
        fewest = 1 if name == "descents" and n else 0
        allowed[name] = max(fewest, n - below), n + beyond
    low, high = numbers.bounds
    beyond = int((high - low) * _RANGE_SHARE) + 16
    first, last = low - beyond, high + beyond
    window = _window_of(decision) if ranged is None else _window_of_steps(ranged)
    if window is not None:
        first, last = max(first, window[0]), min(last, window[1])
    allowed["least"] = max(0, first + _HALF), min(_WORDS - 1, low + beyond + _HALF)
    allowed["greatest"] = max(0, _HALF - 1 - last), min(_WORDS - 1, _HALF - 1 - high + beyond)
    if low > high:
        # no key has a word, and so it must be again
        allowed |= {"least": (numbers.least,) * 2, "greatest": (numbers.greatest,) * 2}
    least, most = zip(*allowed.values(), strict=True)
    words = ctypes.c_uint64 * len(numbers)
    codes_at_ends = []
    # of one column the words are told
    for base, codes in ranged.ranges if ranged and not ranged.step else ():
        beyond = _room_left(codes)
        codes_at_ends += [base + beyond + _HALF, _HALF + 1 - base - codes + beyond]
    return Expected(
        words(*least), words(*most), (ctypes.c_uint64 * (2 * TOLD_COLUMNS))(*codes_at_ends)
    )
