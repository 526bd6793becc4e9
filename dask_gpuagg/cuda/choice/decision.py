"""The decision for one call, a record for each kernel; arithmetic that all decisions share."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

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
    """The kernel of one call; of the kernels that have a geometry, their own record has it."""

    # one of ``choose.KERNELS``, ``hgb_runs``, ``range`` where only the rows' groups are numbered,
    # or ``libcudf``
    kernel: str
    why: str
    # None where no sample was taken
    estimate: KeySummary | None = None
    # device time by the model (``choice/cost_model.py``), where it chose among several
    expected_ms: float | None = None
    # whether it takes rows in several pieces, one after the other
    takes_pieces: ClassVar[bool] = True
    # whether it leaves a table in which rows can be looked up by linear probing
    leaves_table: ClassVar[bool] = True
    # whether rows unlike the sample need another kernel, and no larger table
    needs_sampled_keys: ClassVar[bool] = False


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
    takes_pieces = False
    leaves_table = False


@dataclass(frozen=True, kw_only=True)
class Sgb(Decision):
    """Runs of equal keys that ascend."""

    kernel: str = "sgb"
    takes_pieces = False
    leaves_table = False
    needs_sampled_keys = True


@dataclass(frozen=True, kw_only=True)
class Hgb(Decision):
    """A hash table in the shared memory of each multiprocessor: ``hgb``, or ``hgb_runs``."""

    kernel: str = "hgb"
    # of a block's table: slots, copies of its states
    shared_slots: int
    replicas: int
    blocks: int
    # of the table that the blocks' tables are merged into
    global_slots: int


@dataclass(frozen=True, kw_only=True)
class Direct(Decision):
    """A slot for each key of a narrow range, by its distance from the least one."""

    kernel: str = "direct"
    # the least word of the window, and how many words it has
    base: int
    keys: int
    blocks: int
    # whether states lie in shared memory, and how many copies of them
    in_shared: bool
    replicas: int = 1
    # by how many bits slots of the global table are farther apart than keys
    shift: int = 0
    needs_sampled_keys = True

    @property
    def global_slots(self) -> int:
        """Slots of the global table."""
        return self.keys << self.shift

    @property
    def shared_slots(self) -> int:
        """Slots of a block's table; 0 without."""
        return self.keys if self.in_shared else 0


@dataclass(frozen=True, kw_only=True)
class Partitioned(Decision):
    """Partitions of the rows first, then a table in shared memory for each of them."""

    partitions: int
    # rows that a partition has room for; the mean where they are ``counted``
    capacity: int
    # slots of a partition's table, and how often the partition fills it
    shared_slots: int
    slices: int
    blocks: int
    # groups that there is room for at first
    global_slots: int
    # what narrow words are counted from, None for full ones; with a window its least word
    base: int | None
    # keys of a narrow range from ``base`` on, each with its own slot; 0 where keys are hashed
    window: int = 0
    # words of keys that stay out of the partitions, and their table; no buckets without one
    hot: tuple[int, ...] = ()
    hot_buckets: int = 0
    hot_replicas: int = 0
    # whether partitions have room by a count of their rows
    counted: bool = False
    leaves_table = False

    def partition_query(self, query: Query) -> Query:
        """The query that the kernels of partitions are compiled for."""
        return query


@dataclass(frozen=True, kw_only=True)
class Pgb(Partitioned):
    """PGB-TR: partitions hold copies of keys and values."""

    kernel: str = "pgb"
    # copies of the states, of slots in a window
    replicas: int = 1
    # whether slots that many rows want at once get copies
    has_replicated_slots: bool = False


@dataclass(frozen=True, kw_only=True)
class PgbUr(Pgb):
    """PGB-UR: partitions hold the numbers of their rows, by which values are read.

    ``gathered`` is how many values of a row, on average.
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


class Case(NamedTuple):
    """Input of a decision: the query, the number of rows, a summary if there is one, the device."""

    query: Query
    rows: int
    estimate: KeySummary | None
    device: Device
    # of a row those that are not null, on average
    values: float

    @property
    def groups(self) -> int:
        """Groups that are expected."""
        return self.rows if self.estimate is None else self.estimate.groups


def safe_slots(rows: int) -> int:
    """Slots of a global table that cannot fill up."""
    return even(2 * rows + 64)


def deviation(groups: int, rows: int) -> float:
    """Relative deviation of Chao's estimate: one over the root of the keys expected twice."""
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
