"""When quantiles are selected and distinct values divided, and how: the tuning of ``select/``."""

from __future__ import annotations

import math

from dask_gpuagg.cuda.query.tuning import SIDES

# More groups are sorted, and so are groups of fewer bytes of values on average: a sample has
# too few rows of each, and narrow values sort in few passes. One H200, 50 million rows: at
# 5,000 rows a group selecting takes 0.36 of the time of a sort (float64) and 0.70 (int32), at 769
# rows 1.19 and 1.97.
GROUPS_AT_MOST = 1 << 16
BYTES_OF_A_GROUP = 16 << 10
# Fewer rows are sorted in the time that the launches of a selection take.
ROWS_FROM = 1 << 21

# A bracket's width on either side, in standard deviations of a rank in the sample, and in ranks:
# one of 150,000 brackets misses its quantile, which a second count then finds.
ERRORS = 4.5
SPARE = 3.0
# Rows that a bracket holds beyond those expected.
SLACK = 1.25
_ROOM_AT_LEAST = 1 << 16

# A group of more words, and of more than this share of all, is sorted instead of being one block's.
WIDE_GROUP = 1 << 16
WIDE_SHARE = 1 / 8
# Words of the widest group from which on a block has all the threads it can.
BUSY_GROUP = 1 << 14

_COPIES_AT_MOST = 32
_BYTES_OF_COPIES = 32 << 10

# Of distinct values: rows of a part, and one sampled row of so many.
PART_ROWS = 2048
PART_STRIDE = 64
# Values of fewer bytes are so few that their sort has few passes and some parts most of the rows.
DIVIDED_BYTES = 4
# Distinct values of so few bytes, in fewer groups, are sorted. One H200, 50 million int32: in one
# group 1.80 ms sorted and 3.36 in parts, in 1,000 groups 2.96 and 2.17.
NARROW_BYTES = 4
GROUPS_OF_NARROW = 100
# Bytes of the table of a part.
TABLE_BYTES = 64 << 10
# A part is one block's. Wider ones, as a share of all rows, would take longer than a sort.
WIDEST_PART = 1 / 16


def selects(rows: int, groups: int, width: int) -> bool:
    """Whether a quantile of each group is selected.

    Parameters
    ----------
    rows, groups : int
    width : int
        Bytes of a value.

    Returns
    -------
    bool
    """
    return (
        0 < groups <= GROUPS_AT_MOST
        and rows >= ROWS_FROM
        and rows * width >= BYTES_OF_A_GROUP * groups
    )


def divides(rows: int, groups: int, width: int) -> bool:
    """Whether distinct values of ``width`` bytes are counted in parts."""
    fewest = GROUPS_OF_NARROW if width <= NARROW_BYTES else 1
    return fewest <= groups <= GROUPS_AT_MOST and rows >= ROWS_FROM and width >= DIVIDED_BYTES


def stride_of(rows: int, groups: int) -> int:
    """Rows of which one is sampled, a power of two.

    A sample of one row in r is r times smaller than the input, and brackets of a group of n rows
    hold ``ERRORS * sqrt(r / n)`` of them. Both are sorted by group, so their sum is minimised.
    """
    of_group = max(rows / max(groups, 1), 1.0)
    best = (2.0 * math.sqrt(of_group) / ERRORS) ** (2.0 / 3.0)
    return int(2 ** max(1, round(math.log2(max(best, 1.0)))))


def inside(rows: int, groups: int, stride: int) -> float:
    """Share of the rows that brackets are expected to hold, at most.

    Exact for a median and groups of one size. The square root is concave, so skewed groups have
    less in all.
    """
    of_group = max(rows / max(groups, 1), 1.0)
    return min(1.0, (ERRORS * math.sqrt(of_group / stride) + 2 * SPARE + 2) * stride / of_group)


def room_of(rows: int, groups: int, stride: int) -> int:
    """Rows that there is room for inside of brackets."""
    return min(rows, int(SLACK * rows * inside(rows, groups, stride)) + _ROOM_AT_LEAST)


def sorts_words(widest: int, rows: int) -> bool:
    """Whether words are sorted where the widest group has so many of ``rows``."""
    return widest > WIDE_GROUP + WIDE_SHARE * rows


def copies_of(groups: int) -> int:
    """Copies of the counts of a block, a power of two: threads side by side have their own."""
    room = _BYTES_OF_COPIES // (4 * SIDES * max(groups, 1))
    return int(min(_COPIES_AT_MOST, 2 ** (max(room, 1).bit_length() - 1)))
