"""Group-bys of a merge: rows of one side are reduced before they are merged.

Where all values come from one side, its rows are reduced to partials by the keys of the merge and
those keys of the group-by that lie on this side. The partials are joined with the other side, and
merged by the keys of the group-by. Rows are neither merged nor shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dask.dataframe.dask_expr._expr import Expr

from dask_gpuagg.plan import Plan, Unsupported
from dask_gpuagg.planning import nodes
from dask_gpuagg.planning.chunks import GroupByQuery
from dask_gpuagg.planning.derived import with_derived
from dask_gpuagg.planning.filters import without_filters
from dask_gpuagg.planning.lower import partials_of
from dask_gpuagg.planning.route import estimate_rows, merge_size, rows_of
from dask_gpuagg.planning.row_groups import within_bounds
from dask_gpuagg.tasks.joining import Join

# Partials have at most this share of the rows, and of fewer rows a merge costs little.
MOST_LEFT = 1 / 4
ROWS_FROM = 1 << 17
# partials that a task combines, as Dask's trees do
_COMBINED = 8


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a merge, by which partials it is reduced, and the other side."""

    reduced: GroupByQuery
    other: Expr
    join: Join


def is_mergeable(plan: Plan) -> bool:
    """Whether partials are states that merge in any order, and as often as a row meets others."""
    return plan.is_one_table and not plan.order_sensitive and plan.shape != "values"


def reduced_by(sides: Sequence[Side]) -> str | None:
    """Say how far the innermost of several sides is reduced; None where that would not pay."""
    query = sides[-1].reduced
    held = rows_of(query.frame)
    if held is not None and held < ROWS_FROM:
        return None
    estimate = estimate_rows(query)
    groups, rows = estimate.groups, estimate.rows
    if groups is None or rows is None or rows < ROWS_FROM or groups > rows * MOST_LEFT:
        return None
    # all partials are combined before they meet a side of several partitions
    if any(side.other.npartitions > 1 for side in sides) and groups > merge_size(query).groups:
        return None
    return f"about {groups:,} groups of {rows:,} rows ({estimate.how})"


def with_steps(query: GroupByQuery) -> GroupByQuery:
    """The query with filters and derived columns below it, of the row groups that it needs."""
    return with_derived(within_bounds(without_filters(query)))


def with_partials(
    query: GroupByQuery,
    sides: Sequence[Side],
    reason: str,
    lower: Callable[[GroupByQuery], GroupByQuery],
) -> GroupByQuery:
    """The query on partials of one side of a merge, which may be a merge itself.

    ``lower`` puts a query on physical inputs.
    """
    below = with_steps(lower(sides[-1].reduced))
    partials = partials_of(below, below.chunks)
    plans = [query.plan, *(side.reduced.plan for side in sides)]
    for place in reversed(range(len(sides))):
        side, plan, own = sides[place], plans[place], plans[place + 1]
        other = lower(replace(below, frame=side.other, by=[])).frame
        if not (partials.npartitions and other.npartitions):
            raise Unsupported("no partitions are left of the input")
        while other.npartitions > 1 and partials.npartitions > 1:
            number = -(-partials.npartitions // _COMBINED)
            partials = nodes.GroupByJoined(partials, own, number)
        labels = ", ".join(str(key.label) for key in own.keys)
        text = f"by {labels} before the merge"
        if place == len(sides) - 1:
            text += f": {reason}"
        partials = nodes.GroupByJoinSide(partials, other, plan, side.join, text)
    return replace(query, frame=partials, by=[], reduced=True, rows=below.rows)
