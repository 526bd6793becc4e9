"""Moments that lost digits in the kernels, made again; see ``centred.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cupy as cp
import pylibcudf as plc

from dask_gpuagg.engines.device.centred import LOSS_AT_MOST, centred
from dask_gpuagg.engines.device.columns import (
    array_of,
    column_of,
    floats_of,
    gather,
    like,
    names_of,
    plain,
    present,
    view,
    view_at,
)
from dask_gpuagg.engines.device.groups import Numbering
from dask_gpuagg.engines.device.pieces import whole
from dask_gpuagg.plan import Plan

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
    worst = array_of(losses[0])
    for loss in losses[1:]:
        worst = cp.fmax(worst, array_of(loss))
    return bool((worst > LOSS_AT_MOST).any())


def losses_of(groups: Any) -> list[plc.Column]:
    """The columns of losses."""
    return [view_at(groups, name) for name in names_of(groups) if name.startswith(_LOSS)]


def without_losses(groups: Any) -> Any:
    """The table without them."""
    names = names_of(groups)
    kept = [name for name in names if not name.startswith(_LOSS)]
    return groups if len(kept) == len(names) else groups[kept]


def repaired_rows(groups: Any, keys: Sequence[Any], columns: Mapping[int, Any], plan: Plan) -> Any:
    """The states of rows, the moments that lost digits made again."""

    def parts(state: int, numbering: Numbering) -> Parts:
        (c,) = plan.states[state].columns
        column = like(whole(view(columns[c])), columns[c].dtype)
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
    found = _lost_groups(groups, plan)
    if len(found):
        keys = [like(whole(view(key)), key.dtype) for key in keys]
        own = [groups[f"k{i}"] for i in range(len(keys))]
        lost = [like(gather(view(key), found), key.dtype) for key in own]
        numbering = Numbering.of_keys(keys, lost)
        for i in _moments(groups, plan):
            some, values = parts(i, numbering)
            _repair(groups, i, found, some, *values)
    return without_losses(groups)


def _moments(groups: Any, plan: Plan) -> list[int]:
    names = names_of(groups)
    return [i for i in range(len(plan.states)) if loss_label(i) in names]


def _lost_groups(groups: Any, plan: Plan) -> cp.ndarray:
    losses = [array_of(view_at(groups, loss_label(i))) for i in _moments(groups, plan)]
    if not losses:
        return cp.empty(0, dtype=cp.int32)
    worst = losses[0]
    for loss in losses[1:]:
        worst = cp.fmax(worst, loss)
    return cp.flatnonzero(worst > LOSS_AT_MOST).astype(cp.int32)


def _repair(
    groups: Any,
    state: int,
    found: cp.ndarray,
    some: Numbering,
    counts: cp.ndarray,
    means: cp.ndarray,
    m2: cp.ndarray,
) -> None:
    """Write one state of the groups that lost digits of it; others keep theirs."""
    lost = array_of(view(groups[loss_label(state)]))[found] > LOSS_AT_MOST
    every = {f: array_of(view(groups[f"s{state}.{f}"])).copy() for f in ("mean", "m2")}
    near = every["mean"][found]
    made = centred(cp, some.codes, some.n, counts, means, m2, near)
    for (field, values), new in zip(every.items(), made, strict=True):
        values[found] = cp.where(lost, new, values[found])
        groups[f"s{state}.{field}"] = plain(column_of(values))
