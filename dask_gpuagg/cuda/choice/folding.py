"""Partitions whose rows are folded: their number, and the shared memory of their tables."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate

from dask_gpuagg.cuda.choice.decision import (
    PARTITION_SIGMAS,
    Case,
    Partitioned,
    PgbFold,
    margin,
    shared_bytes,
)
from dask_gpuagg.cuda.choice.skew import HOT
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.runtime.driver import Device

# Bytes of shared memory for each slot beside its key: where a group's rows start, their count.
FOLD_SLOT = 2 + 4
# Share of the slots that may be claimed, and the share as far as partitions do not become too many:
# of tables filled to 0.85 all have keys too far from their first slots, so that partitions begin
# again in halves, at 0.7 three in a hundred. Slots for each expected group where there is room.
FOLD_LOAD = 0.92
FOLD_EASY = 0.7
FOLD_ROOMY = 2
# Rows of a partition, whose places have 16 bits, and how often their widest column may fill shared
# memory. Of skewed keys neither is to be exceeded by more than so many deviations: what is beyond
# costs a turn more.
FOLD_ROWS = 65_000
_FILLS = 2
_SKEWED_SIGMAS = 2
# Where rows are counted, a partition has room for so many times the mean, twice as many if one turn
# takes them.
_ROOM = 2
# The share of a turn's rows that one key may have.
_LARGEST = 0.5


def fold_bytes(device: Device) -> int:
    """Shared memory of a block that folds: all of it, for keys first and for columns then."""
    # the block's own counters are some words more than those of others
    return (shared_bytes(device) - 192) // 16 * 16


def fills_of(query: Query, capacity: float, device: Device) -> int:
    """How often the widest column of so many rows fills shared memory."""
    return math.ceil(query.widest * capacity / fold_bytes(device))


def most_rows(decision: Partitioned) -> int:
    """Rows that any partition has room for."""
    if not decision.counted:
        return decision.capacity
    if not isinstance(decision, PgbFold):
        return (1 << 32) - 1
    most = _ROOM * decision.capacity
    return max(most, min(2 * most, FOLD_ROWS))


def can_fold(rows: int, capacity: int, largest: float) -> bool:
    """Whether a turn has places for the rows of a partition.

    Parameters
    ----------
    rows : int
        Of all partitions.
    capacity : int
        Rows of a partition.
    largest : float
        Share of all rows that a key has at most.
    """
    return capacity <= FOLD_ROWS and rows * largest <= _LARGEST * FOLD_ROWS


def partitions_of_rows(case: Case) -> int:
    """Of rows to fold: so many that their widest column fills shared memory twice."""
    query, rows, estimate, device, _ = case
    groups = max(1, case.groups)
    masked = any(v.masked for v in query.read)
    even, sigmas, shares = 1 / groups, PARTITION_SIGMAS, [0.0]
    if estimate is not None and estimate.skewed:
        even, sigmas = max(even, estimate.alike), _SKEWED_SIGMAS
        shares = sorted(share for _, share in estimate.hot)
    sums, squares = ([0.0, *accumulate(of)] for of in (shares, [s * s for s in shares]))
    spread, partitions, left = 0.0, 1.0, float(rows)
    # rows of a partition beyond the mean, of which smaller partitions have more
    for _ in range(4):
        # but for those of hot keys
        cool = bisect_right(shares, HOT / partitions * left / max(rows, 1))
        left = max(1.0, rows * (1 - sums[-1] + sums[cool]))
        # where the groups start, and the nulls
        beside = 2 * margin(groups) + left / 8 * masked
        least = (beside + query.widest * left / _FILLS) / fold_bytes(device)
        least = max(1.0, least, (left + 64) / FOLD_ROWS)
        partitions = least * (1 + sigmas * math.sqrt(spread))
        alike = (even + squares[cool]) * (rows / left) ** 2
        spread = partitions * alike + partitions / left
    return math.ceil(partitions + 1)
