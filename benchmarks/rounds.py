"""Arms that run in turns, several rounds long, beside the noise that the same rounds show.

A difference of a few percent between two arms says nothing unless it is known how much an arm
differs from itself. So one of them runs twice in each round, under two names, and the order of the
arms is shifted by one from round to round.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.arms import Run

CONFIDENCE = 0.95


@dataclass(slots=True)
class Timed:
    """What the rounds of one arm took, in seconds: on the clock, and of all cores together."""

    name: str
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    error: str | None = None


def rounds(
    names: Sequence[str], run: Callable[[str], Run], count: int, is_over: Callable[[], bool]
) -> list[Timed]:
    """Run arms in turns; after an error of one of them there are no further rounds."""
    timed = [Timed(name) for name in names]
    for number in range(count):
        if any(one.error for one in timed) or (number and is_over()):
            break
        shift = number % len(timed)
        for one in (*timed[shift:], *timed[:shift]):
            done = run(one.name)
            if done.error is not None or done.seconds is None or done.cpu is None:
                one.error = done.error
                break
            one.wall.append(done.seconds)
            one.cpu.append(done.cpu)
    return timed


def compared(base: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Times of one arm divided by another's, round by round; their median and its interval."""
    ratios = [a / b for a, b in zip(base, other, strict=False)]
    return {
        "ratios": ratios,
        "ratio": statistics.median(ratios) if ratios else None,
        "interval": interval(ratios),
    }


def interval(values: Sequence[float]) -> list[float] | None:
    """A confidence interval of the median by order statistics, whatever the distribution.

    A value lies below the median with a probability of one half, so how many do is binomial (Hahn
    and Meeker, Statistical Intervals, 1991). Of fewer than six values it is their range, which is
    less certain than ``CONFIDENCE``.
    """
    ordered = sorted(values)
    if not ordered:
        return None
    n, outside, tail = len(ordered), 0, 0.0
    while outside < (n - 1) // 2:
        tail += math.comb(n, outside) / 2**n
        if tail > (1 - CONFIDENCE) / 2:
            break
        outside += 1
    cut = max(outside - 1, 0)
    return [ordered[cut], ordered[n - 1 - cut]]


def is_slower(found: dict[str, Any], noise: dict[str, Any]) -> bool | None:
    """Whether an arm is slower than the noise explains; ``None`` without a round."""
    mine, band = found["interval"], noise["interval"]
    return None if mine is None or band is None else bool(mine[1] < min(1.0, band[0]))
