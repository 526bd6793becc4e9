"""Sorted results with several outputs: each has a range of the keys, one after the other.

The keys of the partials are sampled, quantiles of them are the bounds of the ranges, and partials
are split by these. Where keys have no order that all partials share, as Python objects, and where
groups are only known together, one sorted output is made and divided.
"""

from __future__ import annotations

from typing import Any

from dask._task_spec import List, Task, TaskRef
from dask.dataframe.dask_expr._expr import Expr

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.plan import Plan
from dask_gpuagg.planning.nodes import Reduction, merged, unknown
from dask_gpuagg.planning.query import GroupByQuery
from dask_gpuagg.planning.route import Route, Routing
from dask_gpuagg.tasks.ranges import (
    gpuagg_range_bounds,
    gpuagg_range_keys,
    gpuagg_range_split,
)


def asked(npartitions: int, split_out: Any) -> Routing:
    """The decision for a sorted result whose ``split_out`` the user gave.

    Parameters
    ----------
    npartitions : int
        Of the input.
    split_out : int or True
    """
    outputs = npartitions if split_out is True else int(split_out)
    if outputs == 1:
        return Routing(Route.TREE, 1, "sort=True asks for one sorted output")
    return Routing(Route.RANGES, outputs, f"sort=True and split_out={split_out} were asked for")


def have_ranges(query: GroupByQuery) -> bool:
    """Whether partials can be split by ranges of keys that they know.

    Parameters
    ----------
    query : GroupByQuery
    """
    plan, device = query.plan, engine_name(query.meta) == DEVICE
    if query.frame.npartitions == 1 or (query.chunks is not None and len(query.chunks) == 1):
        return False
    classes = {dtype_class(key.dtype) for key in plan.keys}
    if "category" in classes and (device or not plan.observed):
        return False
    # what cuDF calls objects is text
    return not classes & ({"other"} if device else {"object", "other"})


class GroupByRanges(Reduction):
    """Partials split by ranges of keys; every output merges its pieces in partition order."""

    _parameters = ["frame", "plan", "_meta", "outputs", "decision"]
    _prefix = "gpuagg_exchange_sorted"

    def _divisions(self) -> tuple[None, ...]:
        return unknown(self.outputs)

    def _layer(self) -> dict[Any, Task]:
        token, plan, outputs = self.deterministic_token, self.plan, self.outputs
        layer: dict[Any, Task] = {}
        samples, splits = [], []
        bounds = f"gpuagg_range_bounds-{token}"
        for i in range(self.frame.npartitions):
            partial = TaskRef((self.frame._name, i))
            sample, split = (f"gpuagg_range_keys-{token}", i), (f"gpuagg_range_split-{token}", i)
            layer[sample] = Task(sample, gpuagg_range_keys, partial, plan)
            given = (partial, TaskRef(bounds), plan, outputs)
            layer[split] = Task(split, gpuagg_range_split, *given)
            samples.append(TaskRef(sample))
            splits.append(split)
        layer[bounds] = Task(bounds, gpuagg_range_bounds, List(*samples), plan, outputs)
        for j in range(outputs):
            layer |= merged((self._name, j), splits, plan, self._meta, (j, outputs))
        return layer


def in_ranges(partial: Expr, plan: Plan, meta: Any, decision: Routing) -> GroupByRanges:
    """The nodes above the partials of a plan."""
    return GroupByRanges(partial, plan, meta, decision.outputs, decision)
