"""Exact sums on the device, in the bins of ``exact_sums.py``.

The bins of a slot of the kernels are enough for a group whose values differ by a factor of 2**44 at
least. Where a group needs more, or has values that are not finite, the rows are read again: their
values are divided into columns that need no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy as cp
import pylibcudf as plc

from dask_gpuagg import exact_sums
from dask_gpuagg.cuda.query.types import EXACT_BINS
from dask_gpuagg.engines.device.columns import array_of, column_of, plain, table, view
from dask_gpuagg.engines.device.exact_bins import decoded
from dask_gpuagg.engines.device.groups import Grouping
from dask_gpuagg.engines.device.layout import FLOAT64
from dask_gpuagg.engines.device.operations import is_positive, keep_where
from dask_gpuagg.engines.device.pieces import whole
from dask_gpuagg.plan import Plan
from dask_gpuagg.states import STATES

Fields = dict[str, Any]

# Fields of rows: which bins are used, then the bins; of a column that holds parts of the values
# the first of its bins.
_USED, _BIN = "used", "bin"
# Fields that are merged in one pass: most sums have fewer.
_FIELDS = 8


def alike(tables: Sequence[Any], plan: Plan) -> list[Any]:
    """Tables of groups with the same columns: some lack bins of exact sums."""
    if not plan.deterministic or not any(name.startswith("s") for name in tables[0].columns):
        return list(tables)
    names = exact_sums.united(each.columns for each in tables)
    found = []
    for each in tables:
        nothing = plain(column_of(cp.zeros(len(each), dtype=cp.int64)))
        known = {name: each[name] if name in each.columns else nothing for name in names}
        found.append(table(known))
    return found


def update(grouping: Grouping, column: plc.Column, unusual: bool) -> list[str]:
    """Add the state ``xsum`` of a column of rows to a pass; the names of its outputs."""
    grouping.aggregator.count(column)
    if not unusual:
        grouping.aggregator.exact_sum(column)
        return [exact_sums.COUNT, _USED, *(f"{_BIN}{k}" for k in range(EXACT_BINS))]
    labels = [exact_sums.COUNT]
    values = array_of(plc.unary.cast(whole(column), FLOAT64), 0.0)
    for name, rows in zip(exact_sums.SPECIAL, _not_finite(values), strict=True):
        if bool(rows.any()):
            ones = plc.unary.cast(column_of(rows), plc.DataType(plc.TypeId.INT8))
            grouping.aggregator.total(ones)
            labels.append(name)
    for first, part in _parts(values):
        grouping.another().exact_sum(column_of(part))
        labels += [f"{first}{_USED}", *(f"{first}{_BIN}{k}" for k in range(EXACT_BINS))]
    return labels


def _not_finite(values: cp.ndarray) -> list[cp.ndarray]:
    return [cp.isnan(values), cp.isposinf(values), cp.isneginf(values)]


def _parts(values: cp.ndarray) -> list[tuple[int, cp.ndarray]]:
    """Columns that add up to the values, each with the first of its bins."""
    place, slices = exact_sums.sliced(values, cp)
    some = place[values != 0]
    if len(some) == 0:
        return []
    parts = []
    for first in range(int(some.min()), int(some.max()) + len(slices), EXACT_BINS):
        part = cp.zeros(len(values))
        for i, of_bin in enumerate(slices):
            inside = (place + i >= first) & (place + i < first + EXACT_BINS)
            scale = exact_sums.WIDTH * (place + i) - exact_sums.ONE
            kept = cp.where(inside, of_bin, 0).astype(cp.float64)
            part += cp.ldexp(kept, scale.astype(cp.int32))
        if bool(part.any()):
            parts.append((first, part))
    return parts


def settled_rows(groups: Any, plan: Plan) -> tuple[Any, frozenset[int]]:
    """The table of a pass over rows with the fields of exact sums, or the states that were unusual.

    Parameters
    ----------
    groups : DataFrame
    plan : Plan

    Returns
    -------
    groups : DataFrame
    unusual : frozenset of int
        Numbers of the states whose rows have to be read again.
    """
    unusual = []
    for i in _binned(plan):
        fields = _fields(groups, i)
        made = _of_slots(fields)
        if made is None:
            unusual.append(i)
        else:
            groups = _replaced(groups, i, exact_sums.settled(made, cp))
    return groups, frozenset(unusual)


def _of_slots(fields: Fields) -> Fields | None:
    """The fields with each bin in its own column; None where bins of a group are too far apart."""
    if _USED in fields:
        bins = [fields[f"{_BIN}{k}"] for k in range(EXACT_BINS)]
        digits = decoded(fields[_USED], bins)
        if digits is None:
            return None
        return {exact_sums.COUNT: fields[exact_sums.COUNT]} | _labelled(digits)
    digits = {}
    for name in fields:
        if name.endswith(_USED):
            start = int(name.removesuffix(_USED))
            bins = [fields[f"{start}{_BIN}{k}"] for k in range(EXACT_BINS)]
            of_part = {j: bins[j % EXACT_BINS] for j in range(start, start + EXACT_BINS)}
            digits |= {j: values for j, values in of_part.items() if bool(values.any())}
    others = {n: fields[n] for n in (exact_sums.COUNT, *exact_sums.SPECIAL) if n in fields}
    return others | _labelled(digits)


def _labelled(digits: exact_sums.Digits) -> Fields:
    return {exact_sums.label(j): digits[j] for j in sorted(digits)}


def merge(grouping: Grouping, stacked: Any, prefix: str) -> list[str]:
    """Add an exact sum of partials to passes: it may have 70 fields. Their labels."""
    labels = [name for name in stacked.columns if name.startswith(prefix)]
    for i, name in enumerate(labels):
        aggregator = grouping.another() if i and i % _FIELDS == 0 else grouping.aggregator
        aggregator.total(view(stacked[name]))
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
            made = exact_sums.total(fields, cp)
            n = fields[exact_sums.COUNT]
            if output.aggregation == "mean":
                made = made / cp.maximum(n, 1)
            # as in cuDF, null of no values
            known = keep_where(column_of(made), is_positive(column_of(n)))
            groups[f"o{i}"] = plain(known)
    return groups


def _binned(plan: Plan) -> list[int]:
    return [i for i, use in enumerate(plan.states) if STATES[use.state].binned]


def _fields(groups: Any, state: int) -> Fields:
    """The fields of one exact sum, all int64 without nulls."""
    prefix = f"s{state}."
    names = [name for name in groups.columns if name.startswith(prefix)]
    return {name.removeprefix(prefix): array_of(view(groups[name]), 0) for name in names}


def _replaced(groups: Any, state: int, fields: Fields) -> Any:
    prefix = f"s{state}."
    columns = {n: groups[n] for n in groups.columns if not n.startswith(prefix)}
    made = {prefix + name: plain(column_of(values)) for name, values in fields.items()}
    return table(columns | made)
