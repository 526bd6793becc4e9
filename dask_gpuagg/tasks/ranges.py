"""Tasks of a sorted result with several outputs: each has a range of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_gpuagg.engines import engine_name, engine_of
from dask_gpuagg.plan import Plan
from dask_gpuagg.reporting.runs import task
from dask_gpuagg.tasks.merging import bytes_of, labelled
from dask_gpuagg.tasks.partials import Partial, rows_of
from dask_gpuagg.tasks.tasks import tried
from dask_gpuagg.tasks.unify import DTYPES

# Keys of a sample, at least and for each output: ranges are of equal size up to a few percent.
_KEYS, _KEYS_OF_AN_OUTPUT = 1 << 12, 1 << 8


def gpuagg_range_keys(partial: Partial, plan: Plan, outputs: int) -> tuple[Any, int]:
    """Task: some keys of a partial, and which part of its keys they are."""
    most = max(_KEYS, outputs * _KEYS_OF_AN_OUTPUT)
    keys: tuple[Any, int] = engine_of(partial).sampled_keys(_tables(partial), plan, most)
    return keys


def gpuagg_range_bounds(samples: Sequence[tuple[Any, int]], plan: Plan, outputs: int) -> Any:
    """Task: the first keys of all outputs but one; ``None`` where one output gets all."""
    return engine_of(samples[0][0]).bounds_of(samples, plan, outputs)


def gpuagg_range_split(partial: Partial, bounds: Any, plan: Plan, outputs: int) -> list[Partial]:
    """Task: one partial to one piece per output, by ranges of keys."""
    with task(plan, "exchange") as done:
        tables = _tables(partial)
        pieces = tried(
            partial,
            "splitting a partial",
            lambda: engine_of(partial).split_in_ranges(tables, plan, bounds, outputs),
        )
        rows = rows_of(partial)
        done.saw(engine_name(partial), rows, rows, bytes_of([tables]))
        return [labelled(piece, partial.get(DTYPES)) for piece in pieces]


def _tables(partial: Partial) -> Partial:
    return {name: table for name, table in partial.items() if name != DTYPES}
