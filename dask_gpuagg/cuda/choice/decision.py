"""The decision for one call, a record for each kernel; arithmetic that all decisions share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from dask_gpuagg.cuda.choice.summary import SEGMENTS, KeySummary
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.tuning import SEGMENT
from dask_gpuagg.cuda.runtime.driver import Device

# Of a table in shared memory, at least.
FEWEST_SLOTS = 32
# Capacity of a partition beyond the mean, in standard deviations of its rows: one in three million
# overflows. The rows beyond it cost little, but then columns are written in a second step.
PARTITION_SIGMAS = 5


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The kernel of one call; of the kernels that have a geometry, their own record has it.

    Attributes
    ----------
    kernel : str
        One of ``choose.KERNELS``, ``hgb_runs``, ``range`` where only the rows' groups are numbered,
        or ``libcudf``.
    why : str
    estimate : KeySummary or None
        None where no sample was taken.
    expected_ms : float or None
        Device time by the model (``choice/cost_model.py``), where it chose among several.
    """

    kernel: str
    why: str
    estimate: KeySummary | None = None
    expected_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Lphga(Decision):
    """One table in global memory, of so many slots."""

    kernel: str = "lphga"
    global_slots: int


@dataclass(frozen=True, kw_only=True)
class SpEga(Decision):
    """One table in global memory that may be filled to its last slot."""

    kernel: str = "sp_ega"
    global_slots: int


@dataclass(frozen=True, kw_only=True)
class Sgb(Decision):
    """Runs of equal keys that ascend."""

    kernel: str = "sgb"


@dataclass(frozen=True, kw_only=True)
class Hgb(Decision):
    """A hash table in the shared memory of each multiprocessor: ``hgb``, or ``hgb_runs``.

    Attributes
    ----------
    shared_slots, replicas, blocks : int
        Slots of a block's table, copies of its accumulators.
    global_slots : int
        Of the table that the blocks' tables are merged into.
    """

    kernel: str = "hgb"
    shared_slots: int
    replicas: int
    blocks: int
    global_slots: int


@dataclass(frozen=True, kw_only=True)
class Direct(Decision):
    """A slot for each key of a narrow range, by its distance from the least one.

    Attributes
    ----------
    base, keys : int
        The least word of the window, and how many words it has.
    blocks : int
    in_shared : bool
        Whether states lie in shared memory.
    replicas : int
        Copies of them there.
    shift : int
        By how many bits slots of the global table are farther apart than keys.
    """

    kernel: str = "direct"
    base: int
    keys: int
    blocks: int
    in_shared: bool
    replicas: int = 1
    shift: int = 0

    @property
    def global_slots(self) -> int:
        """Of the global table."""
        return self.keys << self.shift

    @property
    def shared_slots(self) -> int:
        """Of a block's table; 0 without."""
        return self.keys if self.in_shared else 0


@dataclass(frozen=True, kw_only=True)
class Partitioned(Decision):
    """Partitions of the rows first, then a table in shared memory for each of them.

    Attributes
    ----------
    partitions, capacity : int
        How many, and the rows of each that there is room for.
    shared_slots, blocks : int
        Slots of a partition's table.
    slices : int
        How often a partition fills its table.
    global_slots : int
        Groups that there is room for at first.
    base : int or None
        What narrow words are counted from, None for whole ones; with a window its least word.
    window : int
        Keys of a narrow range from ``base`` on, each with its own slot; 0 where keys are hashed.
    hot : tuple of int
        Words of keys that are kept out of the partitions.
    hot_buckets, hot_replicas : int
        Of the table for these; 0 without one.
    counted : bool
        Whether partitions have room by a count of their rows; ``capacity`` is then the mean.
    """

    partitions: int
    capacity: int
    shared_slots: int
    slices: int
    blocks: int
    global_slots: int
    base: int | None
    window: int = 0
    hot: tuple[int, ...] = ()
    hot_buckets: int = 0
    hot_replicas: int = 0
    counted: bool = False

    def partition_query(self, query: Query) -> Query:
        """The query that the kernels of partitions are compiled for."""
        return query


@dataclass(frozen=True, kw_only=True)
class Pgb(Partitioned):
    """PGB-TR: partitions hold copies of keys and values.

    Attributes
    ----------
    replicas : int
        Copies of the states, of slots in a window.
    crowded : bool
        Whether slots that many rows want at once get copies.
    """

    kernel: str = "pgb"
    replicas: int = 1
    crowded: bool = False


@dataclass(frozen=True, kw_only=True)
class PgbUr(Pgb):
    """PGB-UR: partitions hold the numbers of their rows, by which ``gathered`` values are read.

    ``gathered`` is how many of a row, on average.
    """

    kernel: str = "pgb_ur"
    gathered: float

    def partition_query(self, query: Query) -> Query:
        """The query whose partitions hold numbers of rows."""
        return query.by_number


@dataclass(frozen=True, kw_only=True)
class PgbFold(Partitioned):
    """PGB-TR whose rows are folded, one column after the other.

    ``fills`` is how often the widest column of a partition fills shared memory.
    """

    kernel: str = "pgb_fold"
    fills: int


# The record of each kernel.
RECORDS: dict[str, type[Decision]] = {
    "lphga": Lphga,
    "sp_ega": SpEga,
    "sgb": Sgb,
    "hgb": Hgb,
    "hgb_runs": Hgb,
    "direct": Direct,
    "pgb": Pgb,
    "pgb_ur": PgbUr,
    "pgb_fold": PgbFold,
}


class Case(NamedTuple):
    """What is decided about: a query, its rows, their summary if there is one, the device.

    ``values`` is how many values of a row are not null, on average.
    """

    query: Query
    rows: int
    estimate: KeySummary | None
    device: Device
    values: float

    @property
    def groups(self) -> int:
        """Groups that are expected."""
        return self.rows if self.estimate is None else self.estimate.groups

    @property
    def by_number(self) -> Case:
        """The case of partitions that hold the numbers of their rows."""
        return self._replace(query=self.query.by_number)


def safe_slots(rows: int) -> int:
    """Slots of a global table that cannot fill up."""
    return even(2 * rows + 64)


def doubt(groups: int, rows: int) -> float:
    """Relative standard deviation of Chao's estimate.

    It deviates by the square root of the keys that it expects to be seen twice.
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
