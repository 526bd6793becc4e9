"""What rows before let expect of the next: partitions of a collection are mostly alike.

A decision waits for the sample, and the kernel for the decision, while the device has nothing to
do. Where rows before asked for the same, their decision is launched right behind the sample, and
the device itself compares this sample with theirs (kernels/estimate/check.cuh): where it strays
farther than chance has it, nothing is done, and the decision is made anew.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dask_gpuagg.cuda.call.call import Call, Run
from dask_gpuagg.cuda.choice import summary
from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.cuda.choice.partitions import NARROW
from dask_gpuagg.cuda.keys.words import Ranges, forget_strayed
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import TOLD_COLUMNS
from dask_gpuagg.cuda.runtime.driver import Kernels
from dask_gpuagg.cuda.sampling.sample import Numbers

# Of the two sides, what a count may be off by: so many standard deviations of a Poisson variable.
_DEVIATIONS = 4
# Fewer pairs are more groups, which must not outgrow the room that there is for them.
_FEWER_PAIRS = 3
# Guesses that are left out after so many in a row were refused: twice as many each time, at most.
_LEFT_OUT = 64
# Decisions that are kept, of one process's lifetime of queries.
_KEPT = 512
# Share of the rows by which partitions may differ, and of the keys' range that a sample's ends may.
_ROWS_SHARE = 1 / 16
_RANGE_SHARE = 1 / 8
# Values of a row that are not null, on average.
_VALUES = 0.05
# Rows that found no place, at most, of a decision worth repeating.
_SPILLED = 1 / 64
_WORDS = 1 << 64
_HALF = 1 << 63


class Expected(ctypes.Structure):
    """``Expected`` of kernels/estimate/check.cuh: bounds of ``Numbers``, and of key columns."""

    _fields_ = [
        ("least", ctypes.c_uint64 * len(Numbers._fields)),
        ("most", ctypes.c_uint64 * len(Numbers._fields)),
        ("ends", ctypes.c_uint64 * (2 * TOLD_COLUMNS)),
    ]


@dataclass(frozen=True)
class Expectation:
    """A decision, and the rows that it was made for.

    Attributes
    ----------
    decision : Decision
    rows : int
    values : float
        Of a row that were not null, on average.
    expected : Expected
    form : tuple of Query and Ranges, optional
        Of the keys, where they are numbered by their ranges.
    """

    decision: Decision
    rows: int
    values: float
    expected: Expected
    form: tuple[Query, Ranges] | None = None


# Of what calls of the same kernels have in common: what was forced, and what is grouped by.
_Key = tuple[Kernels, str, tuple[str, ...]]
_known: dict[_Key, Expectation] = {}
# Guesses that were refused in a row, and those that are left out before the next.
_refused: dict[_Key, tuple[int, int]] = {}


def _key(call: Call, forced: str) -> _Key:
    return call.kernels, forced, call.about


def expectation(call: Call, forced: str) -> Expectation | None:
    """What to expect of a call, if rows like its own have been grouped."""
    known = _known.get(_key(call, forced))
    if known is None or abs(known.values - (call.values or 0.0)) > _VALUES:
        return None
    more = call.rows - known.rows
    # partitions have room for so many rows
    most = 0.0 if known.decision.partitions else _ROWS_SHARE * known.rows
    if not -_ROWS_SHARE * known.rows <= more <= most:
        return None
    row, left = _refused.get(_key(call, forced), (0, 0))
    if left:
        _refused[_key(call, forced)] = row, left - 1
        return None
    return known


def refused(call: Call, forced: str) -> None:
    """Rows were unlike those before: collections of which none is like the other are left alone."""
    row = _refused.get(_key(call, forced), (0, 0))[0] + 1
    _refused[_key(call, forced)] = row, min(_LEFT_OUT, 2 ** min(row, 30)) - 1


def judge(call: Call, forced: str, run: Run) -> None:
    """Forget a decision that was expected and did no longer do well."""
    _refused.pop(_key(call, forced), None)
    if run.restarted or run.spilled > _SPILLED * call.rows:
        _known.pop(_key(call, forced), None)


def keep(
    call: Call,
    forced: str,
    decision: Decision | None,
    numbers: Numbers,
    spilled: int,
    form: tuple[Query, Ranges] | None = None,
) -> None:
    """Remember a decision that did well; forget what was known otherwise.

    Parameters
    ----------
    call : Call
    forced : str
    decision : Decision, optional
        None if the rows were not grouped by the first one.
    numbers : Numbers
        Of the sample.
    spilled : int
        Rows that found no place at first.
    form : tuple of Query and Ranges, optional
        What the decision is for, where that is not the call's own query.
    """
    if decision is None or not _may_repeat(decision) or spilled > _SPILLED * call.rows:
        _known.pop(_key(call, forced), None)
        return
    told = replace(decision, why=f"{decision.why}; as for rows before")
    expected = bounds_of(numbers, decision, form[1] if form else None)
    if len(_known) >= _KEPT:
        _known.clear()
        _refused.clear()
    _known[_key(call, forced)] = Expectation(told, call.rows, call.values or 0.0, expected, form)


def _may_repeat(decision: Decision) -> bool:
    # which keys are hot no number tells, and the other kernels take so long that waiting is nothing
    uneven = decision.estimate is not None and decision.estimate.uneven
    fitting = decision.shared_slots > 0 or decision.kernel in ("direct", "pgb_fold")
    return fitting and not (decision.partitions and uneven)


def forget() -> None:
    """Expect nothing of any call."""
    _known.clear()
    _refused.clear()
    forget_strayed()


@contextmanager
def forgotten() -> Iterator[None]:
    """Calls inside are the first of their kind; what was expected before is so again afterwards."""
    known, row = dict(_known), dict(_refused)
    _known.clear()
    _refused.clear()
    try:
        yield
    finally:
        _known.clear()
        _refused.clear()
        _known.update(known)
        _refused.update(row)


def bounds_of(numbers: Numbers, decision: Decision, ranges: Ranges | None = None) -> Expected:
    """Between which bounds a sample is like one with these numbers.

    Parameters
    ----------
    numbers : Numbers
    decision : Decision
        Keys must not leave the window that it has found for them.
    ranges : Ranges, optional
        By which keys are numbered: no value may come near their ends. The window has all numbers.
    """
    # equal keys that lie side by side are counted together; pairs are counted both ways round, and
    # those of one key come together
    run = min(summary.SEGMENT, numbers.rows / max(1.0, numbers.rows - numbers.repeats * 32 / 31))
    together = {
        "pairs": max(2.0, 4 * numbers.met / max(1, numbers.distinct) - 2),
        "rows": run,
        "most": run,
    }
    least, most = [], []
    for name, n in zip(Numbers._fields, numbers, strict=True):
        deviation = math.isqrt(int(n * together.get(name, 1)))
        beyond = _DEVIATIONS * deviation + 8
        below = beyond if name != "pairs" else _FEWER_PAIRS * deviation
        # no falls at all are sorted keys
        fewest = 1 if name == "falls" and n else 0
        least.append(max(fewest, n - below))
        most.append(n + beyond)
    low, high = numbers.bounds
    beyond = int((high - low) * _RANGE_SHARE) + 16
    first, last = low - beyond, high + beyond
    if decision.base is not None and ranges is None:
        width = decision.window or (decision.keys if decision.kernel == "direct" else NARROW)
        first, last = max(first, decision.base), min(last, decision.base + width - 1)
    ends = {
        "least": (first + _HALF, low + beyond + _HALF),
        "greatest": (_HALF - 1 - last, _HALF - 1 - high + beyond),
    }
    if low > high:
        # no key has a word, and so it must be again
        ends = {"least": (numbers.least,) * 2, "greatest": (numbers.greatest,) * 2}
    for name, (fewest, greatest) in ends.items():
        place = Numbers._fields.index(name)
        least[place], most[place] = max(0, fewest), min(_WORDS - 1, greatest)
    words = ctypes.c_uint64 * len(numbers)
    codes_at_ends = []
    for base, codes in ranges or ():
        # half of the room that there is beyond a sample
        beyond = codes // 400 + 2
        codes_at_ends += [base + beyond + _HALF, _HALF + 1 - base - codes + beyond]
    return Expected(
        words(*least), words(*most), (ctypes.c_uint64 * (2 * TOLD_COLUMNS))(*codes_at_ends)
    )
