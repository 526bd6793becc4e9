"""Skewed keys in partitions: hot keys beside them, crowded slots, room by a count of the rows."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from dask_gpuagg.cuda.choice.decision import Partitioned, even, shared_bytes
from dask_gpuagg.cuda.choice.summary import SEGMENTS, KeySummary
from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.runtime.driver import Device

# A hot key with more than this share of a mean partition's rows is kept out of it. So is one with
# this share of all rows, which one block alone would add up, if all of these together are worth a
# table of hot keys.
HOT = 0.25
_HOT_ANYWHERE = 1e-4
_HOT_WORTH = 0.01
# The share of rows with the key of the row before, beyond what chance gives, from which on the rows
# that are counted, four side by side, are no independent draws.
_IN_RUNS = 0.05
# Buckets of a table of hot keys for each of them, and keys of a bucket: one key in 400 finds its
# own full, if their words are random.
HOT_BUCKETS = 8
_IN_BUCKET = 2
FEWEST_BUCKETS = 32
# Copies take less than this part of shared memory, or there are none.
_CROWDS_OF = 4
# What a block has where crowded slots get copies, beside these: tags, owners, a counter.
_CROWD_BYTES = 4 * (256 + 16 + 1)


def hot_bytes(query: Query, keys: int, buckets: int, replicas: int) -> int:
    """Shared memory of a table of hot keys: words, buckets, states."""
    cells = even(tuning.EXTRA_SLOTS + keys)
    fixed, replica = query.slot_bytes
    states = (cells + tuning.HOT_COPIED * replicas) * (fixed - 8 + replica)
    return 8 * cells + 4 * (buckets + tuning.EXTRA_SLOTS) + states


def hot_of(
    hot: Sequence[tuple[int, float]], partitions: int, folds: bool
) -> Sequence[tuple[int, float]]:
    """Those of frequent keys, the hottest first, that stay out of so many partitions.

    Of rows that are folded a warp has those of a large group, so no block adds them up alone.
    """
    count, left = 0, 1.0
    for _, share in hot:
        # of the rows that the hotter ones leave
        if share <= HOT / partitions * left:
            break
        left -= share
        count += 1
    if not folds:
        frequent = [share for _, share in hot if share > _HOT_ANYWHERE]
        if sum(frequent) > _HOT_WORTH:
            count = max(count, len(frequent))
    return hot[:count]


def found_in(hot: Sequence[tuple[int, float]], buckets: int) -> tuple[tuple[int, float], ...]:
    """Those of hot keys, the hottest first, that are found in so many buckets.

    A bucket holds the two hottest of its keys (kernels/pgb_tr/hot.cuh); rows of others are
    scattered.
    """
    placed: list[tuple[int, float]] = []
    held: dict[int, int] = {}
    for key in hot:
        bucket = (key[0] >> 32) * buckets >> 32
        held[bucket] = held.get(bucket, 0) + 1
        if held[bucket] <= _IN_BUCKET:
            placed.append(key)
    return tuple(placed)


def largest_in(estimate: KeySummary | None, hot: Collection[tuple[int, float]]) -> float:
    """The share of all rows that a skewed key which is not hot may have; 0 if keys are even."""
    if estimate is None or not estimate.skewed:
        return 0.0
    # the sample reports keys with so many of its rows, and so many keys
    unseen = tuning.HOT_ROWS / (tuning.SEGMENT * SEGMENTS)
    if len(estimate.hot) == tuning.HOT_AT_MOST:
        unseen = max(unseen, estimate.hot[-1][1])
    return max([unseen, *(key[1] for key in estimate.hot if key not in hot)])


def counts_rows(estimate: KeySummary) -> bool:
    """Whether partitions get room by a count of one row in sixteen, which runs would mislead."""
    by_chance = estimate.alike + sum(share**2 for _, share in estimate.hot)
    return estimate.skewed and estimate.repeats < by_chance + _IN_RUNS


def count_bytes(decision: Partitioned) -> int:
    """Shared memory of a block that counts rows by partition: hot keys, counters."""
    buckets = decision.hot_buckets or FEWEST_BUCKETS
    return 8 * even(tuning.EXTRA_SLOTS + len(decision.hot)) + 4 * (buckets + decision.partitions)


def counted_capacity(rows: int, partitions: int, hot: float) -> int:
    """The mean of the rooms that a count makes for partitions, at most.

    ``hot`` is the share of hot keys' rows in the sample. What is added is the most where all
    partitions are alike (Cauchy and Schwarz).
    """
    # a lower bound for the share of all rows
    hot = min(1.0, hot)
    least = max(0.0, hot - 2 * math.sqrt(hot * (1 - hot) / SEGMENTS))
    left = rows * (1 - least)
    deviation = tuning.ROOM_OF * math.sqrt(left / tuning.ROOM_OF / partitions + 1)
    # the count itself is off by as much of all rows
    total = left + tuning.ROOM_SIGMAS * (partitions * deviation + math.sqrt(tuning.ROOM_OF * left))
    return math.ceil(total / partitions) + tuning.ROOM_MORE


def crowd_bytes(query: Query) -> int:
    """Shared memory of copies of crowded slots (kernels/pgb_tr/crowds.cuh): one for each lane."""
    return 32 * query.crowds * (sum(query.slot_bytes) - 8)


def crowded_room(query: Query, device: Device) -> int:
    """Shared memory for slots of which crowded ones get copies; 0 if it is too small for these."""
    copies, available = crowd_bytes(query), shared_bytes(device)
    return 0 if _CROWDS_OF * copies > available else available - copies - _CROWD_BYTES
