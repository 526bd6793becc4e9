"""A picture of a plan: partitions, chunks, the merge, outputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dask_gpuagg.planning.lower import Physical
from dask_gpuagg.planning.query import Route
from dask_gpuagg.reporting.text import count_text, escaped

# boxes that a column has at most; the last of more stands for the rest
_BOXES = 6
_WIDTH, _HEIGHT, _STEP = 64, 18, 26
_LEFT, _APART, _TOP, _BOTTOM = 43, 176, 34, 24


@dataclass(frozen=True)
class Column:
    """Boxes above each other, so many of something, with a text above and one below.

    ``every`` says whether each is reached from each of the column before.
    """

    number: int
    title: str
    under: str = ""
    every: bool = False

    @property
    def boxes(self) -> int:
        """Number of boxes that are drawn."""
        return max(1, min(self.number, _BOXES))


def columns_of(physical: Physical, groups: str) -> list[Column]:
    """The columns of a plan's picture; ``groups`` says how many are expected, or nothing."""
    route, inputs, outputs = physical.route, physical.partitions, physical.outputs
    partitions = Column(inputs, count_text(inputs, "partition"))
    under = "one of each partition"
    if 0 < physical.partials < inputs:
        under = f"of {inputs / physical.partials:.3g} partitions each"
    partials = Column(physical.partials, count_text(physical.partials, "partial"), under)
    every = True
    match route:
        case Route.DIRECT:
            middle = [Column(1, "one task", "groups and finishes", True)]
        case Route.NARROWED:
            middle = [Column(1, "narrowed", "quantiles; rows stay", True)]
        case Route.TREE:
            combines = dict(physical.tasks).get("combine", 0)
            under = f"{combines:,} combine, then finalize" if combines else "finalize"
            middle = [partials, Column(1, "tree", under, True)]
        case Route.EXCHANGE:
            title = f"exchange into {physical.pieces:,}"
            middle = [partials, Column(physical.pieces, title, "by key hash, then finalize", True)]
            every = physical.pieces != outputs
        case Route.ALIGNED:
            middle = [partials, Column(physical.partials, "aligned", "nothing is exchanged")]
            every = physical.partials != outputs
    expected = f"{groups} groups" if groups else ""
    return [partitions, *middle, Column(outputs, count_text(outputs, "output"), expected, every)]


def drawn(columns: Sequence[Column]) -> str:
    """Columns as an SVG image, connected from left to right."""
    height = _TOP + _STEP * max(column.boxes for column in columns) + _BOTTOM
    width = _APART * (len(columns) - 1) + 150
    shapes = []
    for place, (before, after) in enumerate(itertools.pairwise(columns)):
        x1, x2 = _LEFT + place * _APART + _WIDTH, _LEFT + (place + 1) * _APART
        for i, j in _links(before, after):
            y1, y2 = _middle(before, i, height), _middle(after, j, height)
            shapes.append(
                f'<line x1="{x1}" y1="{y1:g}" x2="{x2}" y2="{y2:g}" '
                'stroke="currentColor" stroke-opacity=".35"/>'
            )
    for place, column in enumerate(columns):
        shapes += _boxes(column, _LEFT + place * _APART, height)
    label = " to ".join(column.title for column in columns)
    return (
        f'<svg role="img" aria-label="{escaped(label)}" viewBox="0 0 {width} {height}" '
        f'style="width:{width}px;max-width:100%;height:auto" font-family="system-ui,sans-serif" '
        f'font-size="11" fill="currentColor">{"".join(shapes)}</svg>'
    )


def _boxes(column: Column, x: int, height: int) -> list[str]:
    centre = x + _WIDTH / 2
    shapes = [_text(centre, 14, column.title, ' font-weight="600"')]
    for i in range(column.boxes):
        y = _middle(column, i, height) - _HEIGHT / 2
        shapes.append(
            f'<rect x="{x}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="3" '
            'fill="#3b82c4" fill-opacity=".25" stroke="#3b82c4"/>'
        )
        rest = column.number - column.boxes + 1
        if i == column.boxes - 1 and rest > 1:
            shapes.append(_text(centre, y + 13, f"{rest:,} more"))
    shapes.append(_text(centre, height - 6, column.under))
    return shapes


def _text(x: float, y: float, text: str, weight: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle"{weight}>{escaped(text)}</text>'


def _middle(column: Column, i: int, height: int) -> float:
    """The height of a box's middle: columns are centred."""
    room = height - _TOP - _BOTTOM
    return _TOP + (room - _STEP * column.boxes) / 2 + _STEP * (i + 0.5)


def _links(before: Column, after: Column) -> list[tuple[int, int]]:
    """The boxes that are connected, by their places."""
    if after.every:
        return [*itertools.product(range(before.boxes), range(after.boxes))]
    links = max(before.boxes, after.boxes)
    return [(k * before.boxes // links, k * after.boxes // links) for k in range(links)]
