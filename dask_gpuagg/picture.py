"""A picture of a plan: partitions, chunks, the merge, outputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dask_gpuagg.planning.lower import Physical
from dask_gpuagg.planning.query import Route
from dask_gpuagg.reporting.text import escaped, html_table, page

if TYPE_CHECKING:
    from dask_gpuagg.explain import Explained

# boxes that a column has at most; the last of more stands for the rest
_BOXES = 6
# runs that are shown
_RUNS = 5
_WIDTH, _HEIGHT, _STEP = 64, 18, 26
_APART, _TOP = 176, 34


@dataclass(frozen=True)
class Column:
    """Boxes above each other: so many of something.

    Attributes
    ----------
    number : int
    title : str
        Above.
    under : str
        Below.
    every : bool
        Whether each is reached from each of the column before.
    """

    number: int
    title: str
    under: str = ""
    every: bool = False

    @property
    def boxes(self) -> int:
        """How many are drawn."""
        return max(1, min(self.number, _BOXES))


def report(off: str, groupbys: Iterable[Explained]) -> str:
    """An explanation as HTML."""
    parts = [f'<p class="off">{escaped(off)}</p>'] if off else []
    for one in groupbys:
        parts.append(f"<h4>group-by {escaped(one.what)}</h4>")
        if one.physical is not None:
            parts.append(drawn(columns_of(one.physical, one.groups)))
        lines = [*one.lines(), *(("ran", text) for text in one.ran()[-_RUNS:])]
        rows = [[escaped(title), escaped(text)] for title, text in lines]
        parts.append(html_table(("", ""), rows, text=True))
    return page(*(parts or ["<p>no group-by aggregation</p>"]))


def columns_of(physical: Physical, groups: str) -> list[Column]:
    """The columns of a plan's picture.

    Parameters
    ----------
    physical : Physical
    groups : str
        How many are expected; empty if nothing is.
    """
    route, outputs = physical.route, physical.outputs
    expected = f"{groups} groups" if groups else ""
    partitions = Column(physical.partitions, "partitions")
    last = Column(outputs, "outputs", expected, True)
    if route is Route.DIRECT:
        return [partitions, Column(1, "one task", "groups and finishes", True), last]
    if route is Route.NARROWED:
        return [partitions, Column(1, "narrowed", "quantiles; rows stay", True), last]
    under = "one of each partition"
    if physical.partials < physical.partitions:
        under = f"of {physical.partitions / physical.partials:.3g} partitions each"
    partials = Column(physical.partials, "partials", under)
    if route is Route.TREE:
        combines = dict(physical.tasks).get("combine", 0)
        under = f"{combines:,} combine, then finalize" if combines else "finalize"
        return [partitions, partials, Column(1, "tree", under, True), last]
    if route is Route.EXCHANGE:
        merge = Column(physical.pieces, "exchange", "by key hash, then finalize", True)
    else:
        merge = Column(physical.partials, "aligned", "nothing is exchanged")
    return [partitions, partials, merge, replace(last, every=merge.number != outputs)]


def drawn(columns: Sequence[Column]) -> str:
    """Columns as an SVG image, connected from left to right."""
    height = _TOP + _STEP * max(column.boxes for column in columns) + 24
    width = _APART * (len(columns) - 1) + 150
    shapes = []
    for place, (before, after) in enumerate(itertools.pairwise(columns)):
        for i, j in _links(before, after):
            y1, y2 = _middle(before, i, height), _middle(after, j, height)
            x1, x2 = _left(place) + _WIDTH, _left(place + 1)
            shapes.append(
                f'<line x1="{x1}" y1="{y1:g}" x2="{x2}" y2="{y2:g}" '
                'stroke="currentColor" stroke-opacity=".35"/>'
            )
    for place, column in enumerate(columns):
        shapes += _boxes(column, place, height)
    label = " to ".join(f"{column.number:,} {column.title}" for column in columns)
    return (
        f'<svg role="img" aria-label="{escaped(label)}" viewBox="0 0 {width} {height}" '
        f'style="width:{width}px;max-width:100%;height:auto" font-family="system-ui,sans-serif" '
        f'font-size="11" fill="currentColor">{"".join(shapes)}</svg>'
    )


def _boxes(column: Column, place: int, height: int) -> list[str]:
    x = _left(place)
    centre = x + _WIDTH / 2
    shapes = [_text(centre, 14, f"{column.number:,} {column.title}", bold=True)]
    if column.number == 1:
        single = column.title.removesuffix("s")
        title = column.title if column.title in _MERGES else f"1 {single}"
        shapes = [_text(centre, 14, title, bold=True)]
    elif column.title in _MERGES:
        shapes = [_text(centre, 14, f"{column.title} into {column.number:,}", bold=True)]
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


_MERGES = ("tree", "exchange", "aligned", "one task", "narrowed")


def _text(x: float, y: float, text: str, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle"{weight}>{escaped(text)}</text>'


def _left(place: int) -> int:
    return 43 + place * _APART


def _middle(column: Column, i: int, height: int) -> float:
    """The height of a box's middle: columns are centred."""
    room = height - _TOP - 24
    return _TOP + (room - _STEP * column.boxes) / 2 + _STEP * (i + 0.5)


def _links(before: Column, after: Column) -> list[tuple[int, int]]:
    if after.every:
        return [(i, j) for i in range(before.boxes) for j in range(after.boxes)]
    links = max(before.boxes, after.boxes)
    return [(k * before.boxes // links, k * after.boxes // links) for k in range(links)]
