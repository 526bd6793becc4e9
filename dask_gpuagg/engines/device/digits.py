"""States that may lose digits in the kernels, made again: exact sums and second moments.

**Exact sums**, in the bins of ``exact_sums.py``: those of a slot of the kernels are enough for a
group whose values differ by a factor of 2**44 at least. Where a group needs more, or has
values that are not finite, the rows are read again, and each bin is a sum of integers.

**Second moments**: the kernels sum distances from a pivot, the first value of a group that they
meet. Of ``n`` rows near each other and a pivot at a distance ``d``, the sum of squares is near
``n * d * d`` and the second moment that remains of it near ``d * d``: log10(n) digits are lost.
Distances from the mean that the first pass gave lose none: that mean is nearer than the spread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import cupy as cp
import pylibcudf as plc
from pylibcudf.types import TypeId

from dask_gpuagg import exact_sums
from dask_gpuagg.cuda.query.types import EXACT_BINS
from dask_gpuagg.engines.device.columns import (
    FLOAT64,
    INT64,
    UINT64,
    array_of,
    as_one,
    as_type,
    column_of,
    floats_of,
    is_positive,
    keep_where,
    names_of,
    present,
    series_from,
    table,
    take_rows,
    to_series,
    together,
    view_at,
)
from dask_gpuagg.engines.device.groups import Grouping, Numbering
from dask_gpuagg.plan import Plan
from dask_gpuagg.states import STATES

Fields = dict[str, Any]

# Fields of rows: which bins are used, as bits from a lowest bin on, then the bins.
_USED, _BIN, _LOWEST = "used", "bin", 3
# Fields that are merged in one pass: most sums have fewer.
_FIELDS = 8


def alike(tables: Sequence[Any], plan: Plan) -> list[Any]:
    """Tables of groups with the same columns: some lack bins of exact sums."""
    if not plan.deterministic or not any(name.startswith("s") for name in names_of(tables[0])):
        return list(tables)
    names = exact_sums.united(map(names_of, tables))
    results = []
    for groups in tables:
        zeros, own = series_from(cp.zeros(len(groups), dtype=cp.int64)), names_of(groups)
        results.append(table({name: groups[name] if name in own else zeros for name in names}))
    return results


def add_exact_sum(grouping: Grouping, column: plc.Column, unusual: bool) -> list[str]:
    """Add the state ``xsum`` of a column of rows to a pass; the names of its outputs."""
    grouping.aggregator.count(column)
    if not unusual:
        grouping.aggregator.exact_sum(column)
        return [exact_sums.COUNT, _USED, *(f"{_BIN}{k}" for k in range(EXACT_BINS))]
    addends = _addends(together(column))
    _add_totals(grouping, [column_of(part) for part in addends.values()])
    return [exact_sums.COUNT, *addends]


def _addends(column: plc.Column) -> dict[str, cp.ndarray]:
    """Integers that add up to the fields of an exact sum: the bins of each row's value."""
    kind = column.type().id()
    if kind not in (TypeId.FLOAT32, TypeId.FLOAT64):
        integers = as_type(column, UINT64 if kind is TypeId.UINT64 else INT64)
        return _labelled(exact_sums.of_integers(array_of(integers, 0)))
    values = array_of(as_type(column, FLOAT64), 0.0)
    addends = {}
    for name, test in zip(exact_sums.SPECIAL, (cp.isnan, cp.isposinf, cp.isneginf), strict=True):
        is_special = test(values)
        if bool(is_special.any()):
            addends[name] = is_special.astype(cp.int64)
    place, slices = exact_sums.sliced(values, cp)
    some = place[cp.isfinite(values) & (values != 0)]
    if len(some) == 0:
        return addends
    for j in range(int(some.min()), int(some.max()) + len(slices)):
        part = sum(cp.where(place + i == j, digits, 0) for i, digits in enumerate(slices))
        if bool(part.any()):
            addends[exact_sums.label(j)] = part
    return addends


def _add_totals(grouping: Grouping, columns: Sequence[plc.Column]) -> None:
    """Add sums of integers to passes: an exact sum may have 70."""
    for i, column in enumerate(columns):
        aggregator = grouping.another() if i and i % _FIELDS == 0 else grouping.aggregator
        aggregator.total(column)


def settled_rows(groups: Any, plan: Plan) -> tuple[Any, frozenset[int]]:
    """The table of a pass over rows with the fields of exact sums.

    Also the numbers of the states that were unusual, whose rows have to be read again.
    """
    unusual = []
    for i in _binned(plan):
        fields = _fields(groups, i)
        if _USED in fields:
            bins = [fields[f"{_BIN}{k}"] for k in range(EXACT_BINS)]
            digits = _decoded(fields[_USED], bins)
            if digits is None:
                unusual.append(i)
                continue
            fields = {exact_sums.COUNT: fields[exact_sums.COUNT]} | _labelled(digits)
        groups = _replaced(groups, i, exact_sums.settled(fields, cp))
    return groups, frozenset(unusual)


def _decoded(used: cp.ndarray, bins: Sequence[cp.ndarray]) -> exact_sums.Digits | None:
    """The bins of all groups by their places; None where those of a group are too far apart.

    ``used`` has the bits of the bins between which a group's values lie.
    """
    lowest = used & -used
    if bool(((used < 0) | (used // cp.maximum(lowest, 1) >= 1 << EXACT_BINS)).any()):
        return None
    digits: exact_sums.Digits = {}
    held = used != 0
    if not bool(held.any()):
        return digits
    # the exponent of a power of two
    first = _LOWEST + (lowest.astype(cp.float64).view(cp.int64) >> 52) - 1023
    for j in range(int(first[held].min()), int(first[held].max()) + EXACT_BINS):
        inside = held & (j >= first) & (j < first + EXACT_BINS)
        values = cp.where(inside, bins[j % EXACT_BINS], 0)
        if bool(values.any()):
            digits[j] = values
    return digits


def _labelled(digits: exact_sums.Digits) -> Fields:
    return {exact_sums.label(j): digits[j] for j in sorted(digits)}


def merge_exact_sum(grouping: Grouping, stacked: Any, prefix: str) -> list[str]:
    """Add an exact sum of partials to passes; their labels."""
    labels = [name for name in names_of(stacked) if name.startswith(prefix)]
    _add_totals(grouping, [view_at(stacked, name) for name in labels])
    return labels


def settled_partials(groups: Any, plan: Plan) -> Any:
    """The table of merged partials, whose bins may be full, with carries done."""
    for i in _binned(plan):
        groups = _replaced(groups, i, exact_sums.settled(_fields(groups, i), cp))
    return groups


def with_sums(groups: Any, plan: Plan) -> Any:
    """The table of merged partials with the outputs that are made of exact sums."""
    states = _binned(plan)
    for i, output in enumerate(plan.outputs):
        if not output.custom and output.states and output.states[0] in states:
            fields = _fields(groups, output.states[0])
            sums = exact_sums.total(fields, cp)
            n = fields[exact_sums.COUNT]
            if output.aggregation == "mean":
                sums = sums / cp.maximum(n, 1)
            # as in cuDF, null of no values
            nullable = keep_where(column_of(sums), is_positive(column_of(n)))
            groups[f"o{i}"] = to_series(nullable)
    return groups


def _binned(plan: Plan) -> list[int]:
    return [i for i, use in enumerate(plan.states) if STATES[use.state].binned]


def _fields(groups: Any, state: int) -> Fields:
    """The fields of one exact sum, all int64 without nulls."""
    prefix = f"s{state}."
    names = [name for name in names_of(groups) if name.startswith(prefix)]
    return {name.removeprefix(prefix): array_of(view_at(groups, name), 0) for name in names}


def _replaced(groups: Any, state: int, fields: Fields) -> Any:
    prefix = f"s{state}."
    columns = {n: groups[n] for n in names_of(groups) if not n.startswith(prefix)}
    replacements = {prefix + name: series_from(values) for name, values in fields.items()}
    return table(columns | replacements)


# Losses of more than four of sixteen digits are repaired.
LOSS_AT_MOST = 1e4


def centred(
    xp: Any, codes: Any, groups: int, weights: Any, means: Any, m2: Any, near: Any
) -> tuple[Any, Any]:
    """Means and second moments of groups from parts; NaN for groups without parts.

    Parts have the number of their group, their number of values, their mean and the sum of squared
    distances from it; ``near`` is a value near the mean of each group. ``xp`` is NumPy or CuPy.
    """

    def sums(values: Any) -> Any:
        if len(codes) == 0:
            return xp.zeros(groups)
        return xp.bincount(codes, weights=values, minlength=groups)

    off = means - near[codes]
    total = sums(weights)
    filled = total > 0
    total = xp.where(filled, total, xp.nan)
    shift = sums(weights * off) / total
    squares = sums(m2 + weights * off * off)
    return near + shift, xp.maximum(squares - total * shift * shift, 0.0)


# rows or partials of the groups, and their counts, means and second moments
Parts = tuple[Numbering, list[cp.ndarray]]

# labels of the columns of losses are ``l<number of the state>``
_LOSS = "l"


def loss_label(state: int) -> str:
    """Label of the column that says how many digits a state lost."""
    return f"{_LOSS}{state}"


def is_lost(losses: Sequence[plc.Column]) -> bool:
    """Whether any group lost more digits than may be."""
    if not losses or losses[0].size() == 0:
        return False
    return bool((reduce(cp.fmax, map(array_of, losses)) > LOSS_AT_MOST).any())


def losses_of(groups: Any) -> list[plc.Column]:
    """The columns of losses."""
    return [view_at(groups, name) for name in names_of(groups) if name.startswith(_LOSS)]


def without_losses(groups: Any) -> Any:
    """The table without them."""
    names = names_of(groups)
    others = [name for name in names if not name.startswith(_LOSS)]
    return groups if len(others) == len(names) else groups[others]


def repaired_rows(groups: Any, keys: Sequence[Any], columns: Mapping[int, Any], plan: Plan) -> Any:
    """The states of rows, the moments that lost digits made again."""

    def parts(state: int, numbering: Numbering) -> Parts:
        (c,) = plan.states[state].columns
        column = as_one(columns[c])
        some = numbering.where(present(numbering.take(column)))
        values = floats_of(some.take(column))
        return some, [cp.ones(len(values)), values, cp.zeros(len(values))]

    return _repaired(groups, keys, plan, parts)


def repaired_partials(groups: Any, stacked: Any, keys: Sequence[Any], plan: Plan) -> Any:
    """The states of partials, the moments that lost digits made again."""

    def parts(state: int, numbering: Numbering) -> Parts:
        counts = floats_of(numbering.take(stacked[f"s{state}.n"]))
        some = numbering.where(counts > 0)
        return some, [floats_of(some.take(stacked[f"s{state}.{f}"])) for f in ("n", "mean", "m2")]

    return _repaired(groups, keys, plan, parts)


def _repaired(
    groups: Any, keys: Sequence[Any], plan: Plan, parts: Callable[[int, Numbering], Parts]
) -> Any:
    labels = {i: loss_label(i) for i in range(len(plan.states))}
    names = names_of(groups)
    losses = {i: array_of(view_at(groups, n)) for i, n in labels.items() if n in names}
    if not losses:
        return groups
    rows = cp.flatnonzero(reduce(cp.fmax, losses.values()) > LOSS_AT_MOST).astype(cp.int32)
    if len(rows):
        lost = [take_rows(groups[f"k{i}"], rows) for i in range(len(keys))]
        numbering = Numbering.of_keys(list(map(as_one, keys)), lost)
        for i, loss in losses.items():
            some, (counts, means, m2) = parts(i, numbering)
            fields = {f: array_of(view_at(groups, f"s{i}.{f}")).copy() for f in ("mean", "m2")}
            repaired = centred(cp, some.codes, some.n, counts, means, m2, fields["mean"][rows])
            for (field, old), new in zip(fields.items(), repaired, strict=True):
                # groups that lost no digits of this state keep theirs
                old[rows] = cp.where(loss[rows] > LOSS_AT_MOST, new, old[rows])
                groups[f"s{i}.{field}"] = series_from(old)
    return without_losses(groups)
