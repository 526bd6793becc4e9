"""Group-bys of a merge: rows of one side are reduced before they are merged.

Where all values come from one side, its rows are reduced to partials by the keys of the merge and
those keys of the group-by that lie on this side. The partials are joined with the other side, and
merged by the keys of the group-by. Rows are neither merged nor shuffled.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask.dataframe.dask_expr._expr import ColumnsSetter, Expr, Projection, RenameFrame
from dask.dataframe.dask_expr._merge import Merge

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import dtypes_of
from dask_gpuagg.engines.device.support import device_refusal
from dask_gpuagg.frontend.metadata import is_cudf
from dask_gpuagg.plan import Column, Unsupported
from dask_gpuagg.planning import nodes
from dask_gpuagg.planning.chunks import GroupByQuery
from dask_gpuagg.planning.derived import with_derived
from dask_gpuagg.planning.filters import within_bounds, without_filters
from dask_gpuagg.planning.lower import partials_of
from dask_gpuagg.planning.route import estimate_rows, merge_size, rows_of
from dask_gpuagg.tasks.tasks import Join

# Partials have at most this share of the rows, and of fewer rows a merge costs little.
MOST_LEFT = 1 / 4
ROWS_FROM = 1 << 17
# partials that a task combines, as Dask's trees do
_COMBINED = 8
# for each kind of merge, whether the left side can be reduced, or the right one: each row of that
# side is in the merge, or is left out for want of a partner
_LEFT_SIDES = {"left": (True,), "right": (False,), "inner": (True, False)}


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a merge, by which partials it is reduced, and the other side."""

    reduced: GroupByQuery
    other: Expr
    join: Join


def sides_below(query: GroupByQuery) -> tuple[list[Side], str] | None:
    """The sides of merges to reduce, from the group-by down, and how far; None for none."""
    plan = query.plan
    # states merge in any order, and as often as a row meets others
    if not plan.is_one_table or plan.order_sensitive or plan.shape == "values":
        return None
    sides: list[Side] = []
    while (side := _side_below(query)) is not None:
        sides.append(side)
        query = side.reduced
    reason = reduced_by(sides) if sides else None
    return None if reason is None else (sides, reason)


def _side_below(query: GroupByQuery) -> Side | None:
    """The side of the merge below a query that has all values; that of more partitions first."""
    merge, places = _places(query.frame)
    if merge is None or not _is_by_columns(merge):
        return None
    of_keys = [_places(b) if isinstance(b, Expr) else (merge, {b: places.get(b)}) for b in query.by]
    keys = [next(iter(of_key.values()), None) for _, of_key in of_keys]
    values = [places.get(column.label) for column in query.plan.columns]
    same = all(other is not None and other._name == merge._name for other, _ in of_keys)
    if not same or None in keys or None in values:
        return None
    sides = {True: merge.left, False: merge.right}
    for is_left in sorted(_LEFT_SIDES[merge.how], key=lambda is_left: -sides[is_left].npartitions):
        # a row has no partner if it has none in any partition of the other side
        if merge.how == "inner" or sides[not is_left].npartitions == 1:
            side = _side(query, merge, is_left, keys, values)
            if side is not None:
                return side
    return None


def _places(frame: Any) -> tuple[Any, dict[Hashable, int | None]]:
    """The merge below a frame, if only columns are chosen and renamed, and their places there."""
    labels = {label: label for label in frame.columns}
    while isinstance(frame, Projection | RenameFrame | ColumnsSetter):
        if not isinstance(frame, Projection):
            before = dict(zip(frame.columns, frame.frame.columns, strict=True))
            labels = {label: before[old] for label, old in labels.items()}
        frame = frame.frame
    if type(frame) is not Merge or not frame._meta.columns.is_unique:
        return None, {}
    place = {label: i for i, label in enumerate(frame.columns)}
    return frame, {label: place[old] for label, old in labels.items()}


def _labels(on: Any) -> list[Hashable]:
    return on if isinstance(on, list) else [on]


def _is_by_columns(merge: Merge) -> bool:
    """Whether a merge is by columns of both sides, and has their columns and no others."""
    if merge.left_index or merge.right_index or merge.indicator or merge.how not in _LEFT_SIDES:
        return False
    for side, on in ((merge.left, merge.left_on), (merge.right, merge.right_on)):
        if side.ndim == 1 or not side._meta.columns.is_unique:
            return False
        if any(isinstance(label, Expr) or label not in side.columns for label in _labels(on)):
            return False
    return True


def _side(
    query: GroupByQuery, merge: Merge, is_left: bool, keys: list[Any], values: list[Any]
) -> Side | None:
    """One side of a merge reduced; None where it has not all values as they are in the merge.

    ``keys`` and ``values`` are places among the columns of the merge: those of the left side come
    first, then those of the right side that are no keys with the same label on the left.
    """
    left_on, right_on = _labels(merge.left_on), _labels(merge.right_on)
    left = {label: i for i, label in enumerate(merge.left.columns)}
    shared = {a: left[a] for a, b in zip(left_on, right_on, strict=True) if a == b}
    rest = [label for label in merge.right.columns if label not in shared]
    right = shared | {label: len(left) + i for i, label in enumerate(rest)}
    own, other = (merge.left, merge.right) if is_left else (merge.right, merge.left)
    of_own, of_other = (left, right) if is_left else (right, left)
    on_own, on_other = (left_on, right_on) if is_left else (right_on, left_on)
    merged, dtypes = [dtype for _, dtype in dtypes_of(merge._meta)], dict(dtypes_of(own._meta))
    label_of = {place: label for label, place in of_own.items()}
    if len(left) + len(rest) != len(merged):
        return None
    if not all(p in label_of and dtypes[label_of[p]] == merged[p] for p in values):
        return None
    by = list(dict.fromkeys([*on_own, *(label_of[place] for place in keys if place in label_of)]))
    of_keys = (n for n, place in of_other.items() if place in keys and place not in label_of)
    plan = replace(
        query.plan,
        keys=tuple(Column(label, dtypes[label]) for label in by),
        columns=tuple(Column(label_of[place], merged[place]) for place in values),
        dropna=False,
        observed=True,
        sort=False,
    )
    if is_cudf(own._meta) and device_refusal(plan, own._meta.index.nlevels) is not None:
        return None
    join = Join(
        merge.how,
        is_left,
        own=tuple(_name(of_own[label]) for label in by),
        other=tuple((n, _name(of_other[n])) for n in dict.fromkeys([*on_other, *of_keys])),
        left_on=tuple(_name(left[label]) for label in left_on),
        right_on=tuple(_name(right[label]) for label in right_on),
        keys=tuple(map(_name, keys)),
        categories=tuple(_name(i) for i, d in enumerate(merged) if dtype_class(d) == "category"),
    )
    return Side(replace(query, plan=plan, frame=own, by=by, meta=own._meta), other, join)


def _name(place: int) -> str:
    return f"m{place}"


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
