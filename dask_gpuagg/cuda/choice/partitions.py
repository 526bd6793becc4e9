"""From a number of groups to partitions: how many, how large, which scatter, which table.

The geometry of PGB-TR, PGB-UR and folding; ``choose`` chooses among all kernels.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

from dask_gpuagg.cuda.choice.decision import (
    FEWEST_SLOTS,
    PARTITION_SIGMAS,
    Case,
    Partitioned,
    Pgb,
    PgbFold,
    PgbUr,
    deviation,
    even,
    margin,
    power_of_two,
    shared_bytes,
)
from dask_gpuagg.cuda.choice.summary import SEGMENTS, KeySummary, null_slot, window
from dask_gpuagg.cuda.query import tuning
from dask_gpuagg.cuda.query.forms import BY_ROW, PACKED
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import TYPE_BYTES
from dask_gpuagg.cuda.runtime.driver import Device

# Places in the partitions are counted in 32 bits.
_MOST_PLACES = (1 << 32) - (1 << 24)
# Partitions for which the scatter's tiles are the large ones.
_WIDE_FROM = 800
# More of them would leave the tiles in runs too short; then a table takes several turns instead.
_MOST_PARTITIONS = 5_900
# Share of a partition's table that is expected to be claimed.
_PARTITION_LOAD = 0.65
# More where slots get copies, and still more where so many partitions leave short runs of a tile's
# rows to each: fewer partitions are worth longer probes.
_CROWDED_LOAD, _CROWDED_LOAD_OF_MANY = 0.75, 0.8
_SHORT_RUNS_FROM = 2_000
# Slots of that table for each expected group, where shared memory has room, and rows of a partition
# for each slot from which the table takes all of shared memory: clearing it costs nothing then, and
# an estimate far too low, as of sorted keys, does no harm.
_PARTITION_ROOMY = 4
_ROWS_FOR_EACH_SLOT = 8
# Keys of a window for each expected group, at most: a key has a byte where a hashed group has its
# word, and a table full of them needs no room to spare.
_STRIPED = 2.0
# Slots and partitions are numbers of 16 bits, and a slot that no key has stands for no place.
_MOST_SLOTS = 65_500
# Squared relative deviation of the frequencies of keys that count as even.
_UNLIKE = 0.05
# Copies of the states, one for each lane at most.
_MOST_COPIES = 32
# Narrow words are below this.
NARROW = 1 << 32
# Bytes of shared memory for each slot beside its key: where a group's rows start, their count.
_FOLD_SLOT = 2 + 4
# Share of the slots that may be claimed, and the share as far as partitions do not become too many:
# of tables filled to 0.85 all have keys too far from their first slots, so that partitions begin
# again in halves, at 0.7 three in a hundred. Slots for each expected group where there is room.
_FOLD_LOAD = 0.92
FOLD_EASY = 0.7
_FOLD_ROOMY = 2
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


def scatter_tile(
    query: Query, device: Device, partitions: int, hot: tuple[int, int, int] = (0, 0, 0)
) -> tuple[str, int, int]:
    """Kernel, rows of a tile and shared memory of the scatter; 0 rows if there is too little.

    A block holds one column of its tile, two counters for each partition, and perhaps a table of
    hot keys: so many, buckets, replicas.
    """
    threads, few, many = query.scatter
    kernels = [("scatter", threads * few)]
    if hot[1]:
        kernels = [("scatter_hot", threads * few)]
    elif partitions >= _WIDE_FROM:
        kernels.insert(0, ("scatter_wide", threads * many))
    beside = hot_bytes(query, *hot) if hot[1] else 0
    for kernel, tile in kernels:
        shared = (tile * query.widest + 6 * partitions + 7) // 8 * 8 + beside
        if shared <= shared_bytes(device) - 128:
            return kernel, tile, shared
    return "scatter", 0, 0


def scatter_of(query: Query, device: Device, decision: Partitioned) -> tuple[str, int, int]:
    """``scatter_tile`` of a decision."""
    hot = len(decision.hot), decision.hot_buckets, decision.hot_replicas
    return scatter_tile(query, device, decision.partitions, hot)


def in_partitions(case: Case, folds: bool = False) -> Partitioned | None:
    """PGB-TR, its rows folded or not, or PGB-UR of a query by number; None where it cannot run."""
    query, device = case.query, case.device
    if folds and not query.can_fold:
        return None
    fields = _by_window(case, folds) or _by_hash(case, folds)
    if fields is None:
        return None
    fields["estimate"] = case.estimate
    fields["blocks"] = min(device.multiprocessors, fields["partitions"])
    if folds:
        # how often the widest column of a turn fills shared memory
        fills = query.widest * fields["capacity"] / fields["slices"] / fold_bytes(device)
        return PgbFold(**fields, fills=math.ceil(fills))
    return PgbUr(**fields, gathered=case.values) if query.untransformed else Pgb(**fields)


def _most_partitions(device: Device) -> int:
    """Partitions at most, as many for every multiprocessor."""
    return _MOST_PARTITIONS // device.multiprocessors * device.multiprocessors


def _partitions(case: Case, folds: bool, tables: int, slices: int) -> int | None:
    """Partitions with so many tables in all, ``slices`` each; None if too many to fold."""
    least = math.ceil(tables / slices)
    if folds:
        least = max(least, partitions_of_rows(case))
        if least > _most_partitions(case.device):
            return None
    # every multiprocessor aggregates as many partitions as the others
    step = case.device.multiprocessors
    return math.ceil(least / step) * step


def _fits(
    case: Case, folds: bool, partitions: int, capacity: int, table: tuple[int, int, int] = (0, 0, 0)
) -> bool:
    """Whether a tile fits beside a table of hot keys, and all places and rows have numbers."""
    tile = scatter_tile(case.query, case.device, partitions, table)[1]
    # a turn has places for so many rows
    numbered = partitions * capacity <= _MOST_PLACES and not (folds and capacity > FOLD_ROWS)
    return tile > 0 and numbered


def _by_hash(case: Case, folds: bool) -> dict[str, Any] | None:
    """The geometry of partitions whose tables find keys by hash."""
    query, rows, estimate, device, _ = case
    base = _base(query, estimate)
    skewed = estimate is not None and estimate.skewed
    copies, available = crowd_bytes(query), shared_bytes(device)
    has_replicated_slots = skewed and not folds and _CROWDS_OF * copies <= available
    if folds:
        # beside the slots: where the last group ends
        slot, load = _FOLD_SLOT + (8 if base is None else 4), _FOLD_LOAD
        most_slots = (fold_bytes(device) - 8) // slot // 2 * 2
    else:
        available -= copies + _CROWD_BYTES if has_replicated_slots else 0
        most_slots = available // hashed_bytes(query, base) // 2 * 2
        load = _CROWDED_LOAD if has_replicated_slots else _PARTITION_LOAD
    if query.form == BY_ROW or most_slots < FEWEST_SLOTS:
        return None
    groups = max(1, case.groups)
    tables = math.ceil(margin(groups) / (most_slots * load))
    if has_replicated_slots and tables > _SHORT_RUNS_FROM:
        tables = math.ceil(margin(groups) / (most_slots * _CROWDED_LOAD_OF_MANY))
    limit = _most_partitions(device) if folds else _MOST_PARTITIONS
    slices = power_of_two(2 * math.ceil(tables / limit) - 1)
    if folds:
        easy = math.ceil(margin(groups) / (most_slots * FOLD_EASY))
        tables = max(tables, min(easy, slices * limit))
    partitions = _partitions(case, folds, tables, slices)
    if partitions is None:
        return None
    hot: tuple[tuple[int, float], ...] = ()
    if estimate is not None and skewed:
        hot = tuple(hot_of(estimate.hot, partitions, folds))
    # a null key of 64 bits has no word that partitions could hold
    nulls = null_slot(query)
    table = 0, 0, 0
    if hot or nulls:
        keys, buckets, replicas = _hot_table(query, device, partitions, len(hot))
        hot = found_in(hot[:keys], buckets)
        if nulls and not buckets:
            return None
        if nulls or hot:
            table = len(hot), buckets, replicas
    counted = False
    if estimate is not None and skewed:
        # room by a count of one row in sixteen, which runs would mislead
        by_chance = estimate.collision_probability + sum(share**2 for _, share in estimate.hot)
        counted = estimate.repeats < by_chance + _IN_RUNS
    if counted:
        capacity = counted_capacity(rows, partitions, sum(share for _, share in hot))
    else:
        collision = 1 / groups
        if estimate is not None and skewed:
            left_in = set(estimate.hot).difference(hot)
            collision = max(
                collision, estimate.collision_probability + sum(share**2 for _, share in left_in)
            )
        capacity = _capacity(rows, partitions, collision)
    crowd = rows * largest_in(estimate, set(hot))
    too_large = folds and crowd > _LARGEST * FOLD_ROWS
    if too_large or not _fits(case, folds, partitions, capacity, table):
        return None
    per_partition = margin(groups) / partitions / slices
    for_each = _FOLD_ROOMY if folds else _PARTITION_ROOMY
    slots = int(for_each * per_partition + 8 * math.sqrt(per_partition))
    if rows / partitions >= _ROWS_FOR_EACH_SLOT * most_slots and not folds:
        slots = most_slots
    fields = {
        "why": f"{groups:,} groups exceed shared memory",
        "partitions": partitions,
        "capacity": capacity,
        "shared_slots": min(most_slots, max(FEWEST_SLOTS, slots // 2 * 2)),
        "slices": slices,
        "global_slots": _room(groups, rows),
        "base": base,
        "hot": tuple(word for word, _ in hot),
        "hot_buckets": table[1],
        "hot_replicas": table[2],
        "counted": counted,
    }
    return fields if folds else fields | {"has_replicated_slots": has_replicated_slots}


def _by_window(case: Case, folds: bool) -> dict[str, Any] | None:
    """The geometry of partitions of keys of a narrow range, which have their own slots."""
    query, rows, estimate, device, _ = case
    around = window(query, estimate)
    if around is None or estimate is None or estimate.skewed:
        return None
    base, keys = around
    once, copied = striped_bytes(query)
    room = shared_bytes(device)
    most_slots = room // (once + copied) // 2 * 2 - 8
    if folds:
        # beside the slots: where the last group ends
        most_slots = (fold_bytes(device) - 8) // _FOLD_SLOT // 2 * 2
    most_slots = min(most_slots, _MOST_SLOTS)
    if keys > _STRIPED * estimate.groups + 64 or most_slots < FEWEST_SLOTS:
        return None
    tables = math.ceil(keys / most_slots)
    slices = math.ceil(tables / _most_partitions(device))
    partitions = _partitions(case, folds, tables, slices)
    # the inverse of one has more than 64 bits
    if partitions is None or partitions == 1:
        return None
    # all partitions have as many keys of the window; they vary with those that do not occur, and
    # with how unlike the frequencies of even keys may be
    absent = max(0.0, 1 - estimate.groups / keys)
    capacity = _capacity(rows, partitions, (absent + _UNLIKE) / estimate.groups)
    stripes = math.ceil(keys / partitions)
    if stripes > _MOST_SLOTS or not _fits(case, folds, partitions, capacity):
        return None
    slots = even(math.ceil(stripes / slices))
    fields = {
        "why": f"{estimate.groups:,} groups of a narrow range",
        "partitions": partitions,
        "capacity": capacity,
        "shared_slots": slots,
        "slices": slices,
        "global_slots": min(_room(estimate.groups, rows), even(keys)),
        "base": base,
        "window": keys,
    }
    if folds:  # in columns: there are no states in the table
        return fields
    copies = _MOST_COPIES if copied == 0 else (room - 8 - slots * once) // (slots * copied)
    return fields | {"replicas": power_of_two(min(copies, _MOST_COPIES))}


def hashed_bytes(query: Query, base: int | None) -> int:
    """Shared memory of a slot of hashed keys, whose words are narrow where they have a base."""
    return sum(query.slot_bytes) - (0 if base is None else 4)


def striped_bytes(query: Query) -> tuple[int, int]:
    """Shared memory of a slot for one key of a window: once, and for each copy of its states."""
    fixed, replica = query.slot_bytes
    # a byte says that the key has occurred
    return fixed - 8 + 1, replica


def moved_bytes(query: Query, decision: Partitioned) -> int:
    """Bytes of a row in partitions; ``query`` is that of the decision's partitions."""
    word = 2 if decision.window else 8 if decision.base is None else 4
    masked = sum(value.masked for value in query.all_inputs)
    validity = 0 if not masked else 1 if masked <= 8 else 4 if masked <= 32 else 8
    return word + copied_bytes(query) + 4 * query.has_row_numbers + validity


@lru_cache(maxsize=1024)
def copied_bytes(query: Query) -> int:
    """Bytes of the values that partitions hold copies of."""
    return sum(TYPE_BYTES[value.ctype] for _, value in query.copied)


def writes_columns(query: Query, decision: Partitioned) -> bool:
    """Whether partitions write columns themselves, in which there are no nulls.

    Their groups are final only if no other rows have the same keys.
    """
    if isinstance(decision, PgbFold) and not query.can_fold_outputs:
        return False
    return not any(nullable for _, nullable in query.columns_out)


def _capacity(rows: int, partitions: int, collision: float) -> int:
    """Rows that a partition has room for; ``collision`` is the chance that two rows share a key."""
    # they vary with the number of its keys, and with how frequent these are
    spread = partitions * collision + partitions / max(rows, 1)
    return math.ceil(rows / partitions * (1 + PARTITION_SIGMAS * math.sqrt(spread))) + 64


def _room(groups: int, rows: int) -> int:
    """Groups that there is room for at first."""
    return even(min(rows, int(margin(groups) * (1 + 4 * deviation(groups, rows))) + 1024))


def _base(query: Query, estimate: KeySummary | None) -> int | None:
    """Lowest word, from which words are counted where 32 bits hold the differences."""
    if not query.form.has_numbers or estimate is None:
        return None
    least, greatest = estimate.bounds
    # words of fewer than 64 bits are no negative numbers
    if least >= 0 and greatest < NARROW and query.form == PACKED and query.word_bits <= 32:
        return 0
    # as much again on both sides of what the sample saw
    return least - NARROW // 4 if greatest - least < NARROW // 2 else None


def _hot_table(query: Query, device: Device, partitions: int, keys: int) -> tuple[int, int, int]:
    """Hot keys that there is room for, buckets and replicas; no buckets where there is no room."""
    while True:
        buckets = even(max(FEWEST_BUCKETS, HOT_BUCKETS * keys))
        for replicas in (32, 16, 8, 4, 2, 1):
            table = keys, buckets, replicas
            if scatter_tile(query, device, partitions, table)[1]:
                return table
        if not keys:
            return 0, 0, 0
        keys //= 2


def fold_bytes(device: Device) -> int:
    """Shared memory of a block that folds: all of it, for keys first and for columns then."""
    # the block's own counters are some words more than those of others
    return (shared_bytes(device) - 192) // 16 * 16


def most_rows(decision: Partitioned) -> int:
    """Rows that any partition has room for."""
    if not decision.counted:
        return decision.capacity
    if not isinstance(decision, PgbFold):
        return (1 << 32) - 1
    room = _ROOM * decision.capacity
    return max(room, min(2 * room, FOLD_ROWS))


def partitions_of_rows(case: Case) -> int:
    """Number of partitions of rows to fold: their widest column fills shared memory twice."""
    query, rows, estimate, device, _ = case
    groups = max(1, case.groups)
    masked = any(v.masked for v in query.all_inputs)
    collision, sigmas, shares = 1 / groups, PARTITION_SIGMAS, [0.0]
    if estimate is not None and estimate.skewed:
        collision, sigmas = max(collision, estimate.collision_probability), _SKEWED_SIGMAS
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
        alike_left = (collision + squares[cool]) * (rows / left) ** 2
        spread = partitions * alike_left + partitions / left
    return math.ceil(partitions + 1)


# ---- skewed keys: hot ones beside the partitions, crowded slots, room by a count -----------------

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
    return 32 * query.replicated_slots * (sum(query.slot_bytes) - 8)
