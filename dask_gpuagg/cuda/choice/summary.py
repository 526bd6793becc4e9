"""The summary of the keys, estimated from a sample: number of groups, hot keys, range."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

from dask_gpuagg.cuda.query.forms import PACKED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import HOT_AT_MOST
from dask_gpuagg.cuda.query.types import TYPE_BYTES

# Inputs of fewer rows are grouped in the global table: the sample would cost more than it saves.
SAMPLED_FROM = 1 << 18
SEGMENTS = 256
# A sample in which so many more pairs of rows share a key than the estimate of the groups explains
# comes from skewed keys, of which the estimate sees too few. Even keys give 0.96 to 1.02.
_SKEWED = 1.05
# No bounds.
ANY_WORD = (-(1 << 63), (1 << 63) - 1)
# The part of a range that a sample may miss at either end: where values rise with the rows, a 256th
# of them lies behind its last segment.
BEYOND = 192
_WORD, _HALF = 1 << 64, 1 << 63
# The word that core/types.cuh mixes to that of an empty slot.
EMPTY_PLAIN = 0x0E217C1E68E9F0DD


@dataclass(frozen=True)
class KeySummary:
    """Properties of the keys, expected from a sample."""

    # the likely number of groups (Chao 1984)
    groups: int
    # the larger of ``groups`` and the guaranteed-error estimator (Charikar et al. 2000), expected
    # within about the root of rows over sampled rows times; skewed keys can exceed it
    most: int
    # share of the sampled rows whose key is that of the row before
    repeats: float
    # share of the most frequent key
    heaviest: float
    # whether some keys are so much more frequent than others that ``groups`` misses many
    skewed: bool = False
    # words and shares of hot keys, the hottest first
    hot: tuple[tuple[int, float], ...] = ()
    # probability that two rows, or runs of equal ones, share a key, those of hot keys left out
    collision_probability: float = 0.0
    # least and greatest unmixed word of the sample, as signed numbers
    bounds: tuple[int, int] = ANY_WORD
    # whether no sampled row has a key less than that of the row before
    ascending: bool = False

    def within(self, words: int) -> KeySummary:
        """The summary of keys that are so many at most."""
        return replace(self, groups=min(self.groups, words), most=min(self.most, words))


class Numbers(NamedTuple):
    """The counts of a sample, in the order in which the device compares them."""

    # ordered pairs of different segments that share a key, for every key
    pairs: int
    # of unmixed words, as kernels/estimate/ranges.cuh keeps them
    least: int
    greatest: int
    # rows that belong to a group, and keys: those in one segment, those in two
    rows: int
    distinct: int
    once: int
    twice: int
    # rows of the most frequent key, rows whose key is that of the row before
    most: int
    repeats: int
    # keys of all segments together
    segment_keys: int
    hot_keys: int
    # rows whose key is less than that of the row before
    descents: int

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest unmixed word, as signed numbers."""
        return self.least - _HALF, _HALF - 1 - self.greatest


def estimate_groups(
    rows: int, counts: Numbers, hot: Callable[[], Sequence[tuple[int, int, int]]] = tuple
) -> KeySummary:
    """Summarise the keys of so many rows, which a sample is of.

    ``hot`` gives words of frequent keys, their rows and their segments; of even keys it is not
    called.
    """
    sampled, distinct, once = counts.rows, counts.distinct, counts.once
    if sampled == 0:
        return KeySummary(0, 0, 0.0, 0.0)
    chao = distinct + once * (once - 1) // (2 * (counts.twice + 1))
    guaranteed = math.ceil(math.sqrt(rows / sampled) * once) + distinct - once
    # the first row of each warp has no neighbour to compare with
    repeats = min(1.0, counts.repeats / (sampled * 31 / 32))
    # where equal keys lie side by side there are no more groups than runs of them
    runs = max(distinct, math.ceil(1.25 * rows * (1 - repeats)))
    groups = min(rows, chao, runs)
    if counts.descents == 0:
        # every run is a group
        groups = min(rows, max(distinct, math.ceil(rows * (1 - repeats))))
    # of rows in the order of a key column a sample sees hardly any key twice, however few they are;
    # keys that are all null have no words
    span = max(0, counts.bounds[1] - counts.bounds[0] + 1)
    words = span + 2 * (span // BEYOND + 16)
    groups = min(groups, words)
    chances = max(1, counts.segment_keys * (counts.segment_keys - 1))
    skewed = groups * counts.pairs / chances > _SKEWED
    hottest = sorted(hot(), key=itemgetter(1), reverse=True)[:HOT_AT_MOST] if skewed else []
    cold = max(0, counts.pairs - sum(segments * (segments - 1) for _, _, segments in hottest))
    return KeySummary(
        groups,
        most=min(rows, words, max(groups, guaranteed)),
        repeats=repeats,
        heaviest=counts.most / sampled,
        skewed=skewed,
        hot=tuple((word, n / sampled) for word, n, _ in hottest),
        collision_probability=cold / chances,
        bounds=counts.bounds,
        ascending=counts.descents == 0,
    )


def window(query: Query, estimate: KeySummary | None) -> tuple[int, int] | None:
    """The least word and the number of words of a window around all keys.

    None where nothing is known of the keys' range, or where they have no word of their own.
    """
    if estimate is None or not query.form.has_numbers or null_slot(query):
        return None
    least, greatest = estimate.bounds
    if estimate.bounds == ANY_WORD or least > greatest:
        return None
    span = greatest - least + 1
    beyond = span // BEYOND + 16
    base, slots = least - beyond, span + 2 * beyond
    slots += slots % 2
    return None if (EMPTY_PLAIN - base) % _WORD < slots else (base, slots)


def null_slot(query: Query) -> bool:
    """Whether the null key has no word, but an extra slot behind the table."""
    nullable = query.form == PACKED and query.keep_nulls and query.keys[0].nullable
    return nullable and TYPE_BYTES[query.keys[0].ctype] == 8
