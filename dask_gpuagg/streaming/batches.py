"""Rows of host partitions in batches: the unit that is copied and grouped by one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

# The first batches are small, so that the kernels begin soon.
LEAST_BYTES = 256 << 20
# Later ones are that large: each costs some milliseconds, which its copies take longer.
USUAL_BYTES = 2 << 30
# A batch whose groups are more than this share of its rows is merged again with most of its rows:
# later ones are larger yet.
_REPEATED = 1 / 8
# Smaller ones do not pay for their calls, however short memory is: the host takes those rows.
_FLOOR_BYTES = 1 << 20
# Groups that stay: they are held twice while those of a batch are added, and where they leave.
_SHARE_OF_GROUPS = 4
# Rows of one call.
_MOST_ROWS = 1 << 30


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``start`` to ``stop`` of a partition."""

    part: Any
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


Batch = Sequence[Slice]


@dataclass
class Sizes:
    """How large the next batch is.

    Attributes
    ----------
    nbytes : int
        Of the next batch.
    most : int
        Of any batch.
    usual : int
        To which batches grow, whatever their groups.
    kept : int
        Of groups that stay on the device where they are more than those of a batch; 0: none.
    """

    nbytes: int
    most: int
    usual: int = 0
    kept: int = 0

    @classmethod
    def of_memory(cls, total: int, share: int) -> Sizes:
        """For a device with this much memory, of which two batches take a share each."""
        most = max(total // share, _FLOOR_BYTES)
        return cls(min(LEAST_BYTES, most), most, USUAL_BYTES, total // _SHARE_OF_GROUPS)

    def limit(self, most: int) -> None:
        """Let no batch be larger than so many bytes."""
        self.most = max(min(self.most, most), 1)
        self.nbytes = min(self.nbytes, self.most)

    def grouped(self, rows: int, groups: int, nbytes: float) -> None:
        """Say how many groups the rows of a batch had, and how large it was.

        Those that are on their way are larger already, and have more rows.
        """
        next_rows = rows * max(self.nbytes / max(nbytes, 1.0), 1.0)
        if groups > _REPEATED * next_rows or self.nbytes < self.usual:
            self.nbytes = min(2 * self.nbytes, self.most)

    def refused(self) -> None:
        """Say that device memory did not suffice for a batch."""
        self.limit(max(min(self.most, self.nbytes) // 2, _FLOOR_BYTES))


def batches(
    parts: Iterator[Any], sizes: Sizes, bytes_of: Callable[[Any], int], alike: Callable[..., bool]
) -> Iterator[list[Slice]]:
    """Divide partitions into batches, in their order.

    Parameters
    ----------
    parts : iterator of sized
        A partition is cut where it is larger than a batch.
    sizes : Sizes
        Asked for each batch: it may change meanwhile.
    bytes_of : callable
        Of a partition.
    alike : callable
        Whether two partitions may be in one batch.
    """
    batch: list[Slice] = []
    size = rows = 0
    for part in parts:
        if batch and not alike(batch[-1].part, part):
            yield batch
            batch, size, rows = [], 0, 0
        start, of_row = 0, max(bytes_of(part) / max(len(part), 1), 1.0)
        while start < len(part):
            room = min(int((sizes.nbytes - size) / of_row), _MOST_ROWS - rows)
            stop = min(start + max(room, 1), len(part))
            batch.append(Slice(part, start, stop))
            size, rows = size + int((stop - start) * of_row), rows + stop - start
            start = stop
            if size + of_row > sizes.nbytes or rows >= _MOST_ROWS:
                yield batch
                batch, size, rows = [], 0, 0
    if batch:
        yield batch


def halves(batch: Batch) -> tuple[list[Slice], list[Slice]]:
    """A batch in two, by its rows."""
    left = sum(map(len, batch)) // 2
    first: list[Slice] = []
    second: list[Slice] = []
    for each in batch:
        taken = min(left, len(each))
        if taken:
            first.append(replace(each, stop=each.start + taken))
        if taken < len(each):
            second.append(replace(each, start=each.start + taken))
        left -= taken
    return first, second
