"""Sorted results with several outputs: each has a range of the keys, one after the other.

The keys of the partials are sampled, quantiles of them are the bounds of the ranges, and partials
are split by these. Where keys have no order that all partials share, as Python objects, and where
groups are only known together, one sorted output is made and divided.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from dask._task_spec import List, Task, TaskRef
from dask.dataframe.core import split_evenly

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.planning.nodes import Quiet, Reduction, merged, unknown
from dask_gpuagg.planning.query import GroupByQuery
from dask_gpuagg.planning.route import Route, Routing
from dask_gpuagg.tasks.ranges import (
    gpuagg_range_bounds,
    gpuagg_range_keys,
    gpuagg_range_split,
)


def ranges_for(outputs: int) -> Routing:
    """The decision for a sorted result of which several outputs were asked for.

    Parameters
    ----------
    outputs : int
    """
    return Routing(Route.RANGES, outputs, f"sort=True and {outputs} outputs were asked for")


def without_ranges(query: GroupByQuery) -> str | None:
    """Why partials cannot be split by ranges of keys; ``None`` where they can.

    Parameters
    ----------
    query : GroupByQuery
    """
    plan, device = query.plan, engine_name(query.meta) == DEVICE
    if query.frame.npartitions == 1 or (query.chunks is not None and len(query.chunks) == 1):
        return "one task takes all partitions"
    classes = {dtype_class(key.dtype) for key in plan.keys}
    if "category" in classes and not plan.observed:
        return "all combinations of categories are known together only"
    if "category" in classes and device:
        return "partitions on a GPU number categories each in their way"
    # what cuDF calls objects is text
    if classes & ({"other"} if device else {"object", "other"}):
        return "keys are Python objects"
    return None


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
            layer[sample] = Task(sample, gpuagg_range_keys, partial, plan, outputs)
            given = (partial, TaskRef(bounds), plan, outputs)
            layer[split] = Task(split, gpuagg_range_split, *given)
            samples.append(TaskRef(sample))
            splits.append(split)
        layer[bounds] = Task(bounds, gpuagg_range_bounds, List(*samples), plan, outputs)
        return layer | merged(self._name, splits, plan, self._meta, outputs)


class GroupByDivided(Quiet):
    """A sorted result of one partition divided into as many as were promised, of equal size."""

    _parameters = ["frame", "outputs"]

    @property
    def _meta(self) -> Any:
        return self.frame._meta

    @functools.cached_property
    def _name(self) -> str:
        return f"gpuagg_divide_sorted-{self.deterministic_token}"

    def _divisions(self) -> tuple[None, ...]:
        return unknown(self.outputs)

    def _layer(self) -> dict[Any, Task]:
        split = (f"gpuagg_divide-{self.deterministic_token}", 0)
        layer = {split: Task(split, split_evenly, TaskRef((self.frame._name, 0)), self.outputs)}
        for j in range(self.outputs):
            key = (self._name, j)
            layer[key] = Task(key, operator.getitem, TaskRef(split), j)
        return layer
