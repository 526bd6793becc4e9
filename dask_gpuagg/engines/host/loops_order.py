"""Compiled loops that order rows by group or output; see ``loops.py``."""

from __future__ import annotations

import numpy as np

from dask_gpuagg.engines.host.loops import Array, compiled


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
    """The value of each run that has a rank, unless that is negative; runs are reordered."""
    start = 0
    for g in range(len(ends)):
        if ranks[g] >= 0:
            at = start + ranks[g]
            select_in(values, start, ends[g] - 1, at)
            out[g] = values[at]
        start = ends[g]


@compiled
def medians(values: Array, ends: Array, out: Array) -> None:
    """Medians of runs of values, which are reordered; a run ends where the next one begins."""
    start = 0
    for g in range(len(ends)):
        rows = ends[g] - start
        if rows > 0:
            middle = start + rows // 2
            select_in(values, start, ends[g] - 1, middle)
            out[g] = values[middle]
            if rows % 2 == 0:
                below = values[start]
                for i in range(start, middle):
                    below = max(below, values[i])
                out[g] = (out[g] + below) / 2.0
        start = ends[g]


@compiled
def buckets_of_bits(
    bits: Array, first: int, factor: int, last: int, number: int, out: Array
) -> None:
    """The output of each row by the hash of its only key: ``pandas.util.hash_array`` of float64.

    ``first``, ``factor`` and ``last`` make the hash of a row of that of its key.
    """
    for i in range(len(bits)):
        h = bits[i]
        # -0.0 is 0.0
        if h == np.uint64(0x8000000000000000):
            h = np.uint64(0)
        h ^= h >> np.uint64(30)
        h *= np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(27)
        h *= np.uint64(0x94D049BB133111EB)
        h ^= h >> np.uint64(31)
        h = (h ^ np.uint64(first)) * np.uint64(factor) + np.uint64(last)
        out[i] = h % np.uint64(number)


@compiled
def count_sides(
    codes: Array,
    values: Array,
    lows: Array,
    highs: Array,
    counts: Array,
    of_row: Array,
    kept: Array,
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
        kept[at] = x
        at += side == np.uint64(2)
    return at
