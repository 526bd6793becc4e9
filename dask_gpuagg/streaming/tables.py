"""Tables of groups on the device: in the order of their rows, and divided by key hash once large.

A billion groups have no kernel that reads their rows once: partitions whose tables fit shared
memory hold some ten million. So tables of many groups are divided first, and each part is grouped
by itself, after MP-EGA (section 4.2 of Wang and Shen, EGA, 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

# Parts of divided tables: a power of two, which libcudf divides by with a mask. With more of them
# the calls of the kernels take longer than they save.
PARTS = 16
# Groups of an undivided table: beyond them a part has enough for a pass of the kernels.
MOST_GROUPS = 1 << 27


@dataclass
class Tables:
    """Tables that the device holds.

    Attributes
    ----------
    parts : list of list
        The tables of each part, in the order of their rows. No two parts share a group. One part
        until they are divided.
    merged_rows : int
        Groups after the last merge.
    """

    parts: list[list[Any]] = field(default_factory=lambda: [[]])
    merged_rows: int = 0

    def __iter__(self) -> Any:
        return (table for part in self.parts for table in part)

    def __bool__(self) -> bool:
        return any(self.parts)

    @property
    def number(self) -> int:
        """How many parts there are."""
        return len(self.parts)

    @property
    def can_merge(self) -> bool:
        """Whether some part has several tables."""
        return any(len(part) > 1 for part in self.parts)

    def add(self, made: Sequence[Any]) -> None:
        """Add a table to each part."""
        if not self:
            self.parts = [[] for _ in made]
        for part, table in zip(self.parts, made, strict=True):
            part.append(table)

    def merge(self, merged: Callable[[list[Any]], Any], rows: Callable[[Any], int]) -> None:
        """Make one table of each part; those merged before memory lacks stay so."""
        for part in self.parts:
            if len(part) > 1:
                part[:] = [merged(part)]
        self.merged_rows = sum(map(rows, self))

    def divide(self, divided: Callable[[Any], list[Any]]) -> None:
        """Divide the only table."""
        (part,) = self.parts
        (table,) = part
        self.parts = [[piece] for piece in divided(table)]

    def take(self) -> list[Any]:
        """All tables, of which none stays; undivided ones follow."""
        tables = list(self)
        self.parts, self.merged_rows = [[]], 0
        return tables
