"""From a sample of the keys to the kernel and its geometry: numbers, no launching.

Tuning lives here and in ``Query.threads`` and ``Query.unroll``; the kernels take it as it comes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dask_gpuagg.cuda.cardinality import ANY_WORD, SEGMENT, SEGMENTS, Estimate
from dask_gpuagg.cuda.costs import shipped
from dask_gpuagg.cuda.driver import Device
from dask_gpuagg.cuda.model import Costs, laps
from dask_gpuagg.cuda.source import Query
from dask_gpuagg.cuda.window import null_slot, window

# What may be forced.
KERNELS = ("hgb", "direct", "pgb", "pgb_ur", "pgb_fold", "sgb", "sp_ega", "lphga")

# Slots behind every table, for the empty and the null key (kernels/key/probe.cuh).
EXTRA_SLOTS = 2
# A key that is farther than this from its first slot of a global table says that the table is too
# small for the keys it gets.
PROBES = 1024
# Places in the partitions are counted in 32 bits.
_MOST_PLACES = (1 << 32) - (1 << 24)
# Partitions for which the scatter's tiles are the large ones.
_WIDE_FROM = 800
# More of them would leave the tiles in runs too short; then a table takes several turns instead.
_MOST_PARTITIONS = 5_900

# Keys of a window for each expected group, at most, and likewise where it is forced.
_DENSE = 2.0
_LOOSEST = 64.0
# Keys of a window in global memory up to which their states lie in sectors of their own, because
# atomics on one sector wait for each other.
_APART_BELOW = 1 << 17
# Copies of a state that uneven keys need.
_UNEVEN_REPLICAS = 8
# Share of a shared table that may be claimed: a longer probe costs less than another pass.
_SHARED_LOAD = 0.85
# Copies of few groups' accumulators: beyond the lanes of a warp they keep warps apart.
_MOST_REPLICAS = 256
# Slots for each expected group, the best first.
_ROOMY = (2, 1.5)
_MOST_SLICES = 2
_GLOBAL_LOAD = 0.6
_FEWEST_SLOTS = 32
# Inputs of fewer rows are not worth a second pass.
_PARTITIONED_FROM = 1 << 20
# Share of a partition's table that is expected to be claimed.
_PARTITION_LOAD = 0.65
# More where slots get copies: longer runs of rows in fewer partitions are worth longer probes.
_CROWDED_LOAD = 0.75
# Slots of that table for each expected group, where shared memory has room, and rows of a partition
# for each slot from which the table takes all of shared memory: clearing it costs nothing then, and
# an estimate far too low, as of sorted keys, does no harm.
_PARTITION_ROOMY = 4
_ROWS_FOR_EACH_SLOT = 8
# Capacity of a partition beyond the mean, in standard deviations of its rows: one in thirty
# thousand overflows, and the few rows beyond it cost little.
_PARTITION_SIGMAS = 4
# Of partitions whose rows are folded: threads of a block (kernels/pgb_tr/fold.cuh), bytes of shared
# memory for each slot (where a group's rows start, its word, their count), share of the slots that
# may be claimed, slots for each expected group where there is room, the most rows of a partition,
# whose places have 16 bits, and how often the widest column may fill shared memory.
FOLD_THREADS = 1024
_FOLD_SLOT = 2 + 8 + 4
_FOLD_LOAD = 0.92
_FOLD_ROOMY = 2
_FOLD_ROWS = 65_000
_FOLD_FILLS = 2
# Narrow words are below this.
_NARROW = 1 << 32
# A hot key with more than this share of a mean partition's rows is kept out of it, and so is one
# with this share of all rows: one block alone would add them up.
_HOT = 0.25
_HOT_ANYWHERE = 1e-4
# Buckets of a table of hot keys for each of them: one in sixteen keys finds its own taken.
_HOT_BUCKETS = 8
_FEWEST_BUCKETS = 32
# Hot keys whose states have copies (kernels/pgb_tr/hot.cuh): those of which there are more than a
# few at a time in a warp.
HOT_COPIED = 16
# Copies take less than this part of shared memory, or there are none.
_CROWDS_OF = 4
# What a block has where crowded slots get copies, beside these: tags, owners, a counter.
_CROWD_BYTES = 4 * (256 + 16 + 1)
# Share of a row's values below which gathering them may be faster than moving all.
_GATHERED = 0.5
# A warp whose neighbours share a key in more than this share of the rows keeps its sums in
# registers.
_RUNS_FROM = 0.9
# What a table in global memory must be expected to take of the time of one in shared memory: it
# suffers more from keys that the sample did not show.
_WORTH = 0.9


@dataclass(frozen=True)
class Decision:
    """The kernel of one call and its geometry.

    Attributes
    ----------
    kernel : str
        One of ``KERNELS``, ``hgb_runs``, or ``range`` where only the rows' groups are numbered.
    why : str
    estimate : Estimate or None
        None where no sample was taken.
    shared_slots, replicas, slices, blocks : int
        Of the shared-memory tables; 0 without. A partition fills its table ``slices``
        times.
    global_slots : int
        Of the global table; of partitions the groups that there is room for at first; of ``direct``
        the keys of the window.
    partitions, capacity : int
        How many, and the rows of each that there is room for.
    base : int or None
        What narrow words of partitions are counted from, None for whole ones; the window's least
        word.
    hot : tuple of int
        Words of keys that are kept out of the partitions.
    hot_buckets, hot_replicas : int
        Of the table for these; 0 without one.
    crowded : bool
        Whether slots that many rows want at once get copies.
    gathered : float
        Of ``pgb_ur``: values that are gathered for a row, on average.
    shift : int
        Of ``direct``: by how many bits slots are farther apart than keys.
    fills : int
        Of ``pgb_fold``: how often the widest column of a partition fills shared memory.
    expected_ms : float or None
        Device time by the model (``cuda/model.py``), where it chose among several.
    """

    kernel: str
    why: str
    estimate: Estimate | None
    shared_slots: int
    replicas: int
    slices: int
    blocks: int
    global_slots: int
    partitions: int = 0
    capacity: int = 0
    base: int | None = None
    hot: tuple[int, ...] = ()
    hot_buckets: int = 0
    hot_replicas: int = 0
    crowded: bool = False
    gathered: float = 0.0
    shift: int = 0
    fills: int = 0
    expected_ms: float | None = None

    def form(self, query: Query) -> Query:
        """The query with partitions that hold what this kernel moves."""
        return query.by_number if self.kernel == "pgb_ur" else query


def shared_capacity(query: Query, device: Device) -> int:
    """Groups that one block's table can hold without replicas."""
    fixed, replica = query.slot_bytes
    return int((_shared_bytes(device) // (fixed + replica) - EXTRA_SLOTS) * _SHARED_LOAD)


def decide(
    query: Query,
    rows: int,
    estimate: Estimate | None,
    device: Device,
    forced: str = "auto",
    costs: Costs | None = None,
    values: float | None = None,
) -> Decision:
    """Choose the kernel of one call.

    Parameters
    ----------
    query : Query
    rows : int
    estimate : Estimate, optional
        Without it the input is small.
    device : Device
    forced : str
        ``auto`` or one of ``KERNELS``.
    costs : Costs, optional
        Constants of the device; those shipped for it by default.
    values : float, optional
        Values that the states read of a row and that are not null, on average; all by default.

    Returns
    -------
    Decision

    Raises
    ------
    ValueError
        If there is no kernel of the forced name.
    """
    if forced not in ("auto", *KERNELS):
        raise ValueError(f"there is no kernel {forced!r}: auto, {', '.join(KERNELS)}")
    values = query.values if values is None else values
    expected = rows if estimate is None else estimate.groups
    capacity = shared_capacity(query, device)
    slices = max(1, math.ceil(_margin(expected) / capacity)) if capacity > 0 else 0
    if forced == "lphga" or (forced == "auto" and estimate is None):
        why = "forced" if forced == "lphga" else f"{rows:,} rows are few"
        return _in_global(rows, estimate, why)
    if forced == "sp_ega":
        return _in_two_phases(rows, estimate, "forced")
    ascending = estimate is not None and estimate.ascending and slices != 1
    if forced == "sgb" or (forced == "auto" and ascending):
        if _admits_runs(query):
            why = "forced" if forced == "sgb" else f"{expected:,} groups, keys that ascend"
            return replace(_in_global(rows, estimate, why), kernel="sgb")
        if forced == "sgb":
            return _in_global(rows, estimate, "the keys have no word that orders as they do")
    if forced == "direct":
        decision = _in_window(query, rows, estimate, device, "forced", _LOOSEST)
        return decision or _in_global(rows, estimate, "the keys lie in no narrow range")
    if forced == "auto":
        known = costs or shipped(device).costs
        return _cheapest(query, rows, estimate, device, slices, known, values)
    if forced in ("pgb", "pgb_ur", "pgb_fold"):
        why = f"{expected:,} groups exceed shared memory"
        form = query.by_number if forced == "pgb_ur" else query
        folds = forced == "pgb_fold"
        decision = _in_partitions(form, rows, estimate, device, True, values, folds)
        return decision or _in_global(rows, estimate, why)
    if capacity <= 0:
        return _in_global(rows, estimate, "a group's states exceed shared memory")
    slices = min(slices, _MOST_SLICES)
    return _in_shared(query, rows, estimate, device, slices, "forced")


def _cheapest(
    query: Query,
    rows: int,
    estimate: Estimate | None,
    device: Device,
    slices: int,
    costs: Costs,
    values: float,
) -> Decision:
    """The kernel that is expected to be the fastest of those that can take the groups."""
    expected = rows if estimate is None else estimate.groups
    why = f"{expected:,} groups exceed shared memory"
    candidates: list[Decision] = []
    narrow = _in_window(query, rows, estimate, device, f"{expected:,} groups of a narrow range")
    if narrow is not None and slices != 1 and not _crowded(narrow):
        candidates.append(narrow)
    if 1 <= slices <= _MOST_SLICES:
        why = f"{expected:,} groups fit shared memory"
        if slices == 1 and narrow is not None and narrow.shared_slots and not _in_runs(estimate):
            return narrow
        shared = _in_shared(query, rows, estimate, device, slices, why)
        if slices == 1:
            # the same updates as in partitions, and nothing moved first: no time is worth reckoning
            # where the host's own counts most
            return shared
        candidates.append(shared)
    forms = [query, query.by_number] if values < _GATHERED * query.values else [query]
    for form in forms:
        partitioned = _in_partitions(form, rows, estimate, device, False, values)
        if partitioned is not None:
            candidates.append(partitioned)
    if not (estimate and estimate.uneven):
        # one thread folds all rows of a group
        folded = _in_partitions(query, rows, estimate, device, False, values, True)
        if folded is not None:
            candidates.append(folded)
    if slices and rows >= _PARTITIONED_FROM:
        candidates.append(_in_two_phases(rows, estimate, why))
    if not candidates or not (estimate and estimate.uneven):
        # skew makes estimates too low, and this table does not grow
        candidates.append(_in_global(rows, estimate, why))
    times = [expected_ms(query, rows, device, costs, each) for each in candidates]
    handicap = [1.0 if each.shared_slots or each is narrow else 1 / _WORTH for each in candidates]
    best = min(range(len(times)), key=lambda i: times[i] * handicap[i])
    told = [f"{times[best]:.2g} ms expected"]
    told += [f"{c.kernel} {ms:.2g}" for c, ms in zip(candidates, times, strict=True)]
    del told[best + 1]
    chosen = candidates[best]
    return replace(chosen, why=f"{chosen.why}: {', '.join(told)}", expected_ms=times[best])


def expected_ms(query: Query, rows: int, device: Device, costs: Costs, decision: Decision) -> float:
    """Device milliseconds that the model gives a decision for any kernel but ``sgb``."""
    tile = tile_of(query, device, decision)
    return sum(laps(costs, query, rows, decision, device.multiprocessors, tile).values())


def _in_shared(
    query: Query, rows: int, estimate: Estimate | None, device: Device, slices: int, why: str
) -> Decision:
    """HGB."""
    expected = rows if estimate is None else estimate.groups
    capacity = shared_capacity(query, device)
    held = min(math.ceil(_margin(expected) / slices), capacity)
    runs = slices == 1 and _in_runs(estimate)
    if runs:
        # registers take what replicas are for, and a sample of long runs shows few of the groups
        held = capacity
    slots, replicas = _shared_table(query, held, device)
    wanted = math.ceil(rows / (query.threads * query.unroll))
    blocks = max(1, min(device.multiprocessors, wanted * slices) // slices) * slices
    return Decision(
        "hgb_runs" if runs else "hgb",
        why,
        estimate,
        slots,
        replicas,
        slices,
        blocks,
        # blocks that meet different keys fill it beyond the estimate; it is small all the same
        even(max(4 * _margin(held if runs else expected), 2048)),
    )


def decide_again(
    query: Query,
    rows: int,
    decision: Decision,
    device: Device,
    forced: str,
    costs: Costs | None = None,
    values: float | None = None,
) -> Decision:
    """Choose another kernel than one that the rows turned out not to admit.

    ``sgb`` found rows that are not sorted, or that it cannot sort, ``direct`` many keys outside of
    its window.
    """
    if forced == decision.kernel or decision.estimate is None:
        return decide(query, rows, decision.estimate, device, "lphga", costs, values)
    estimate = replace(decision.estimate, ascending=False)
    if decision.kernel == "direct":
        estimate = replace(estimate, bounds=ANY_WORD)
    return decide(query, rows, estimate, device, forced, costs, values)


def direct_bytes(query: Query, decision: Decision) -> int:
    """Shared memory of a block of ``direct``: a bit for each slot, and the states if they fit."""
    fixed, replica = query.slot_bytes
    each = fixed - 8 + decision.replicas * replica
    return ((decision.global_slots >> decision.shift) + 63) // 64 * 8 + decision.shared_slots * each


def _in_window(
    query: Query,
    rows: int,
    estimate: Estimate | None,
    device: Device,
    why: str,
    loosest: float = _DENSE,
) -> Decision | None:
    """The slot of a key by its distance from the least one, or None where it cannot be."""
    found = window(query, estimate)
    if estimate is None or found is None:
        return None
    base, keys = found
    if keys > loosest * estimate.groups + 64:
        return None
    fixed, replica = query.slot_bytes
    room = _shared_bytes(device) - (keys + 63) // 64 * 8
    each = room // keys - (fixed - 8)
    replicas, shift, held = 1, 0, 0
    if room >= 0 and each >= replica:
        most = _MOST_REPLICAS if replica == 0 else min(_MOST_REPLICAS, each // replica)
        replicas, held = _power_of_two(most), keys
    elif room < 0 or estimate.uneven:
        # atomics on one address wait for each other
        return None
    elif keys < _APART_BELOW:
        shift = 2
    blocks = min(device.multiprocessors, math.ceil(rows / (query.threads * query.unroll)))
    geometry = (held, replicas, 1, max(1, blocks), keys << shift)
    return Decision("direct", why, estimate, *geometry, base=base, shift=shift)


def _in_runs(estimate: Estimate | None) -> bool:
    return estimate is not None and estimate.repeats >= _RUNS_FROM


def _crowded(decision: Decision) -> bool:
    """Whether uneven keys would wait for each other more than hot keys that leave the stream."""
    uneven = decision.estimate is not None and decision.estimate.uneven
    return uneven and decision.replicas < _UNEVEN_REPLICAS


def safe_slots(rows: int) -> int:
    """Slots of a global table that cannot fill up."""
    return even(2 * rows + 64)


def scatter_tile(
    query: Query, device: Device, partitions: int, hot: tuple[int, int, int] = (0, 0, 0)
) -> tuple[str, int, int]:
    """Kernel, rows of a tile and shared memory of the scatter; 0 rows if there is too little.

    The block holds one column of its tile, and two counters for each partition, and perhaps a
    table of hot keys: so many, buckets, replicas.
    """
    threads, few, many = query.scatter
    kernels = [("scatter", threads * few)]
    if hot[1]:
        kernels = [("scatter_hot", threads * few)]
    elif partitions >= _WIDE_FROM:
        kernels.insert(0, ("scatter_wide", threads * many))
    for kernel, tile in kernels:
        shared = tile_bytes(query, tile, partitions)
        if hot[1]:
            shared += hot_bytes(query, *hot)
        if shared <= _shared_bytes(device) - 128:
            return kernel, tile, shared
    return "scatter", 0, 0


def scatter_of(query: Query, device: Device, decision: Decision) -> tuple[str, int, int]:
    """``scatter_tile`` of a decision."""
    hot = len(decision.hot), decision.hot_buckets, decision.hot_replicas
    return scatter_tile(query, device, decision.partitions, hot)


def tile_of(query: Query, device: Device, decision: Decision) -> int:
    """Rows of a tile of the decision's scatter."""
    return scatter_of(decision.form(query), device, decision)[1]


def tile_bytes(query: Query, tile: int, partitions: int) -> int:
    """Shared memory of a scatter's tile and counters, up to what can be laid behind them."""
    return (tile * query.widest + 6 * partitions + 7) // 8 * 8


def _in_partitions(
    query: Query,
    rows: int,
    estimate: Estimate | None,
    device: Device,
    forced: bool,
    values: float,
    folds: bool = False,
) -> Decision | None:
    """PGB-TR, its rows folded or not, or PGB-UR of a query by number.

    None where it cannot or should not run.
    """
    crowded = estimate is not None and estimate.uneven and not folds
    crowded = crowded and _CROWDS_OF * crowd_bytes(query) <= _shared_bytes(device)
    if folds:
        # beside the slots: where the last group ends
        most_slots, load = (fold_bytes(device) - 8) // _FOLD_SLOT // 2 * 2, _FOLD_LOAD
    else:
        room = _crowded_room(query, device) if crowded else _shared_bytes(device)
        most_slots = room // sum(query.slot_bytes) // 2 * 2
        load = _CROWDED_LOAD if crowded else _PARTITION_LOAD
    if query.family == "ByRow" or most_slots < _FEWEST_SLOTS or (folds and not query.folds):
        return None
    groups = max(1, rows if estimate is None else estimate.groups)
    # every multiprocessor aggregates as many partitions as the others
    step = device.multiprocessors
    most = _MOST_PARTITIONS // step * step if folds else _MOST_PARTITIONS
    wanted = math.ceil(_margin(groups) / (most_slots * load))
    parts = _power_of_two(2 * math.ceil(wanted / most) - 1)
    wanted = math.ceil(wanted / parts)
    if folds:
        wanted = max(wanted, _partitions_of_rows(query, rows, groups, device))
        if wanted > most:
            return None
    partitions = math.ceil(wanted / step) * step
    if rows < _PARTITIONED_FROM and not forced:
        return None
    hot: tuple[tuple[int, float], ...] = ()
    if estimate is not None and estimate.uneven:
        least = min(_HOT / partitions, _HOT_ANYWHERE)
        hot = tuple(told for told in estimate.hot if told[1] > least)
    # a null key of 64 bits has no word that could travel
    nulls = null_slot(query)
    table = 0, 0, 0
    if hot or nulls:
        table = _hot_table(query, device, partitions, len(hot))
        hot = hot[: table[0]]
        if nulls and not table[1]:
            return None
        if not (nulls or hot):  # there was room for none of them
            table = 0, 0, 0
    alike = 1 / groups
    if estimate is not None and estimate.uneven:
        left_in = (share**2 for _, share in estimate.hot[len(hot) :])
        alike = max(alike, estimate.alike + sum(left_in))
    # the rows of a partition vary with the number of its keys, and with how frequent these are
    spread = partitions * alike + partitions / max(rows, 1)
    capacity = math.ceil(rows / partitions * (1 + _PARTITION_SIGMAS * math.sqrt(spread))) + 64
    fits = scatter_tile(query, device, partitions, table)[1]
    if not fits or partitions * capacity > _MOST_PLACES or (folds and capacity > _FOLD_ROWS):
        return None
    per_partition = _margin(groups) / partitions / parts
    for_each = _FOLD_ROOMY if folds else _PARTITION_ROOMY
    roomy = int(for_each * per_partition + 8 * math.sqrt(per_partition))
    if rows / partitions >= _ROWS_FOR_EACH_SLOT * most_slots and not folds:
        roomy = most_slots
    return Decision(
        "pgb_fold" if folds else "pgb_ur" if query.untransformed else "pgb",
        "forced" if forced else f"{groups:,} groups exceed shared memory",
        estimate,
        min(most_slots, max(_FEWEST_SLOTS, roomy // 2 * 2)),
        1,
        parts,
        min(device.multiprocessors, partitions),
        even(min(rows, int(_margin(groups) * (1 + 4 * _doubt(groups, rows))) + 1024)),
        partitions,
        capacity,
        _base(query, estimate),
        tuple(word for word, _ in hot),
        table[1],
        table[2],
        crowded,
        values if query.untransformed else 0.0,
        fills=math.ceil(query.widest * capacity / parts / fold_bytes(device)) if folds else 0,
    )


def _partitions_of_rows(query: Query, rows: int, groups: int, device: Device) -> int:
    """So many that the widest column of a partition fills shared memory ``_FOLD_FILLS`` times."""
    # where the groups start, and the nulls
    beside = 2 * _margin(groups) + (rows / 8 if any(v.masked for v in query.read) else 0)
    column = query.widest * rows / _FOLD_FILLS
    partitions = max(1.0, (beside + column) / fold_bytes(device), rows / _FOLD_ROWS)
    # rows of a partition beyond the mean
    spread = partitions / groups + partitions / max(rows, 1)
    return math.ceil(partitions * (1 + _PARTITION_SIGMAS * math.sqrt(spread)) + 1)


def fold_bytes(device: Device) -> int:
    """Shared memory of a block that folds: all of it, for keys first and for columns then."""
    # the block's own counters are some words more than those of others
    return (_shared_bytes(device) - 192) // 16 * 16


def _admits_runs(query: Query) -> bool:
    # a null key of 64 bits has no word that could be sorted
    return query.family == "Packed" and not null_slot(query)


def _base(query: Query, estimate: Estimate | None) -> int | None:
    """What words are counted from if 32 bits suffice for what they have above it."""
    if query.family in ("Wide", "Hashed") or estimate is None:  # their words are no numbers
        return None
    least, greatest = estimate.bounds
    # words of fewer than 64 bits are no negative numbers
    if least >= 0 and greatest < _NARROW and query.family == "Packed" and query.word_bits <= 32:
        return 0
    # as much again on both sides of what the sample saw
    return least - _NARROW // 4 if greatest - least < _NARROW // 2 else None


def hot_bytes(query: Query, keys: int, buckets: int, replicas: int) -> int:
    """Shared memory of a table of hot keys: words, buckets, states."""
    cells = even(EXTRA_SLOTS + keys)
    fixed, replica = query.slot_bytes
    states = (cells + HOT_COPIED * replicas) * (fixed - 8 + replica)
    return 8 * cells + 4 * (buckets + EXTRA_SLOTS) + states


def _hot_table(query: Query, device: Device, partitions: int, keys: int) -> tuple[int, int, int]:
    """Hot keys that there is room for, buckets and replicas; no buckets where there is no room."""
    while True:
        buckets = even(max(_FEWEST_BUCKETS, _HOT_BUCKETS * keys))
        for replicas in (32, 16, 8, 4, 2, 1):
            table = keys, buckets, replicas
            if scatter_tile(query, device, partitions, table)[1]:
                return table
        if not keys:
            return 0, 0, 0
        keys //= 2


def crowd_bytes(query: Query) -> int:
    """Shared memory of copies of crowded slots (kernels/pgb_tr/crowds.cuh): one for each lane."""
    return 32 * query.crowds * (sum(query.slot_bytes) - 8)


def _crowded_room(query: Query, device: Device) -> int:
    """Shared memory for the slots of a table of which crowded ones get copies."""
    return _shared_bytes(device) - crowd_bytes(query) - _CROWD_BYTES


def _in_global(rows: int, estimate: Estimate | None, why: str) -> Decision:
    slots = safe_slots(rows)
    if estimate is not None:
        slots = min(slots, even(int(_margin(estimate.most) / _GLOBAL_LOAD) + 1024))
    return Decision("lphga", why, estimate, 0, 1, 1, 0, slots)


def _in_two_phases(rows: int, estimate: Estimate | None, why: str) -> Decision:
    """SP-EGA: a table as large as the groups, which grows where they are more."""
    slots = rows
    if estimate is not None:
        doubtful = _margin(estimate.groups) * (1 + 2 * _doubt(estimate.groups, rows))
        slots = min(rows, int(doubtful))
    return Decision("sp_ega", why, estimate, 0, 1, 1, 0, even(max(slots, 64)))


def _doubt(groups: int, rows: int) -> float:
    """Relative standard deviation of Chao's estimate.

    It strays by the square root of the keys that it expects to be seen twice.
    """
    return math.sqrt(2 * groups) / max(min(rows, SEGMENT * SEGMENTS), 1)


def _margin(groups: int) -> int:
    return groups + groups // 16 + 8


def _shared_table(query: Query, groups: int, device: Device) -> tuple[int, int]:
    """Slots and replicas.

    A warp probes as long as the unluckiest of its rows, so a low load comes before replicas
    beyond those that keep lanes apart; both end where the memory does.
    """
    fixed, replica = query.slot_bytes
    available = _shared_bytes(device)
    for slots_per_group in _ROOMY:
        slots = max(_FEWEST_SLOTS, even(int(groups * slots_per_group)))
        room = available // (slots + EXTRA_SLOTS) - fixed
        if room >= replica:
            most = _MOST_REPLICAS if replica == 0 else min(_MOST_REPLICAS, room // replica)
            return slots, _power_of_two(most)
    return (available // (fixed + replica) - EXTRA_SLOTS) // 2 * 2, 1


def _power_of_two(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


def _shared_bytes(device: Device) -> int:
    # the block's own counters; a few words
    return device.shared_bytes - 64


def even(slots: int) -> int:
    """The next even number of slots."""
    # 4-byte fields of an even number of slots keep the fields behind them aligned
    return min(slots + slots % 2, (1 << 32) - 8)
