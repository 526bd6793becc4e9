"""Partials divided by ranges of keys; see ``host.ranges``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cupy as cp
import numpy as np
import pylibcudf as plc

from dask_gpuagg.dtypes import NUMERIC, TEXT, dtype_class
from dask_gpuagg.engines.device.columns import like, table, view
from dask_gpuagg.engines.device.exchange import bucket_of, divided_tables, taken
from dask_gpuagg.engines.device.operations import nans_to_nulls
from dask_gpuagg.engines.device.stacking import aligned, stack
from dask_gpuagg.plan import Plan

Partial = dict[str, Any]


def sampled_keys(tables: Partial, plan: Plan, most: int) -> tuple[Any, int]:
    """Some keys of a partial, chosen by their hash; see ``host.sampled_keys``."""
    name = plan.tables[0]
    keys = _keys(tables[name], plan)
    if name != "groups":
        keys = keys.drop_duplicates(ignore_index=True)
    parts = 1
    while parts * most < len(keys):
        parts *= 2
    return _part(keys, parts), parts


def bounds_of(samples: Sequence[tuple[Any, int]], plan: Plan, outputs: int) -> Any:
    """The first keys of all outputs but one; see ``host.bounds_of``."""
    fewest = max(parts for _, parts in samples)
    stacked = stack([_part(k, fewest) if parts < fewest else k for k, parts in samples])
    names = [f"k{i}" for i in range(len(plan.keys))]
    if len(stacked) == 0 or not _have_one_order([stacked[n].dtype for n in names], plan):
        return None
    stacked = stacked.drop_duplicates(ignore_index=True)
    ordered = stacked.sort_values(names, na_position="last", ignore_index=True)
    first = np.arange(1, outputs) * len(ordered) // outputs
    return taken(ordered, cp.asarray(first.astype(np.int32)))


def _part(keys: Any, parts: int) -> Any:
    """The keys whose hash is in the first of so many parts."""
    if parts == 1:
        return keys
    of_row = bucket_of([keys[name] for name in keys.columns], parts).values
    return taken(keys, cp.flatnonzero(of_row == 0).astype(cp.int32))


def split_in_ranges(tables: Partial, plan: Plan, bounds: Any, outputs: int) -> list[Partial]:
    """Divide a partial by ranges of keys into one partial per output; see the host's."""

    def place_of(whole: Any) -> cp.ndarray:
        if bounds is None:
            return cp.zeros(len(whole), cp.int64)
        return _ranges_of(_keys(whole, plan), bounds)

    return divided_tables(tables, place_of, outputs)


def _ranges_of(keys: Any, bounds: Any) -> cp.ndarray:
    """How many bounds are not above each row of keys."""
    bounds, keys = aligned([bounds, keys])
    number = len(keys.columns)
    above = plc.search.upper_bound(
        plc.Table([view(bounds[name]) for name in keys.columns]),
        plc.Table([view(keys[name]) for name in keys.columns]),
        [plc.types.Order.ASCENDING] * number,
        [plc.types.NullOrder.AFTER] * number,
    )
    return like(above, np.dtype("int32")).values.astype(cp.int64)


def _keys(whole: Any, plan: Plan) -> Any:
    """The keys of a table; NaN and null are one key, and so are -0.0 and 0.0."""
    found = {}
    for i in range(len(plan.keys)):
        key = whole[f"k{i}"]
        if dtype_class(key.dtype) == "float":
            key = like(nans_to_nulls(view(key)), key.dtype) + 0.0
        found[f"k{i}"] = key
    return table(found)


def _have_one_order(found: Sequence[Any], plan: Plan) -> bool:
    """Whether all outputs sort keys as their bounds are sorted."""
    for dtype, promised in zip(found, plan.keys, strict=True):
        classes = {dtype_class(dtype), dtype_class(promised.dtype)}
        alike = len(classes) == 1 or classes <= {*NUMERIC} or classes <= {*TEXT}
        if classes & {"category", "other"} or not alike:
            return False
    return True
