"""What is decided for one call, and the arithmetic that all decisions share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dask_gpuagg.cuda.choice.summary import SEGMENT, SEGMENTS, KeySummary
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS as EXTRA_SLOTS
from dask_gpuagg.cuda.runtime.driver import Device

# Capacity of a partition beyond the mean, in standard deviations of its rows: one in three million
# overflows. The few rows beyond it cost little, but then columns are written in a second step.
PARTITION_SIGMAS = 5


@dataclass(frozen=True)
class Decision:
    """The kernel of one call and its geometry.

    Attributes
    ----------
    kernel : str
        One of ``KERNELS``, ``hgb_runs``, or ``range`` where only the rows' groups are numbered.
    why : str
    estimate : KeySummary or None
        None where no sample was taken.
    shared_slots, replicas, slices, blocks : int
        Of the shared-memory tables; 0 without. A partition fills its table ``slices``
        times.
    global_slots : int
        Of the global table; of partitions the groups that there is room for at first.
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
    counted : bool
        Whether partitions have room by a count of their rows; ``capacity`` is then the mean.
    gathered : float
        Of ``pgb_ur``: values that are gathered for a row, on average.
    shift : int
        Of ``direct``: by how many bits slots are farther apart than keys.
    far : bool
        Of ``direct`` in shared memory: whether extremes of float64 lie in the global table.
    window : int
        Of partitions: keys of a narrow range, each of which has a slot of its own from ``base``
        on; 0 where they are hashed.
    fills : int
        Of ``pgb_fold``: how often the widest column of a partition fills shared memory.
    expected_ms : float or None
        Device time by the model (``cuda/model.py``), where it chose among several.
    """

    kernel: str
    why: str
    estimate: KeySummary | None
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
    counted: bool = False
    gathered: float = 0.0
    shift: int = 0
    far: bool = False
    fills: int = 0
    window: int = 0
    expected_ms: float | None = None

    @property
    def keys(self) -> int:
        """Of ``direct``: keys of the window."""
        return self.global_slots >> self.shift

    def form(self, query: Query) -> Query:
        """The query with partitions that hold what this kernel moves."""
        return query.by_number if self.kernel == "pgb_ur" else query


def safe_slots(rows: int) -> int:
    """Slots of a global table that cannot fill up."""
    return even(2 * rows + 64)


def doubt(groups: int, rows: int) -> float:
    """Relative standard deviation of Chao's estimate.

    It strays by the square root of the keys that it expects to be seen twice.
    """
    return math.sqrt(2 * groups) / max(min(rows, SEGMENT * SEGMENTS), 1)


def margin(groups: int) -> int:
    """Groups to have room for where so many are expected."""
    return groups + groups // 16 + 8


def power_of_two(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)


def shared_bytes(device: Device) -> int:
    """Dynamic shared memory that a block may have."""
    # the block's own counters; a few words
    return device.shared_bytes - 64


def even(slots: int) -> int:
    """The next even number of slots."""
    # 4-byte fields of an even number of slots keep the fields behind them aligned
    return min(slots + slots % 2, (1 << 32) - 8)
