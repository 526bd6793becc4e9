"""Host partitions that the GPU groups: those of the dtypes that the plan has, the others not."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from dask_gpuagg.engines import HOST, engine_name
from dask_gpuagg.plan import Plan
from dask_gpuagg.reporting.events import Fallback, FellBack, emit
from dask_gpuagg.streaming.choice import is_as_promised, streams
from dask_gpuagg.streaming.stream import partials_of
from dask_gpuagg.tasks.reading import this_task

# Of its memory: three batches are held at a time, and what is read ahead of them.
_SHARE_OF_A_WORKER = 16
_NOT_PINNED = FellBack(
    Fallback(
        "a group-by of host partitions", "runs on the host", "the host has no pinned memory left"
    )
)


def goes_to_device(column: Any, plan: Plan) -> bool:
    """Whether the GPU groups partitions with such a column of pandas."""
    return engine_name(column) == HOST and streams(plan)


def streamed_partials(
    parts: Iterator[Any], plan: Plan, otherwise: Callable[[Any], dict[str, Any]]
) -> list[dict[str, Any]]:
    """The partials of host partitions, in their order, as the host engine makes them.

    Parameters
    ----------
    parts : iterator of Inputs
    plan : Plan
    otherwise : callable
        Makes the partial of a partition of other dtypes, on the host.
    """
    gpu = importlib.import_module("dask_gpuagg.streaming.gpu")
    made: list[dict[str, Any]] = []
    with gpu.exclusive() as device:
        if device is None:
            emit(_NOT_PINNED)
        for exact, run in groupby(parts, lambda part: _is_exact(part, plan)):
            if exact and device is not None:
                made += partials_of(run, plan, device, _most_bytes())
            else:
                made += map(otherwise, run)
    return made


def _most_bytes() -> int | None:
    """Of a batch, by the memory limit of the worker that this task runs on; None without one."""
    worker, _ = this_task()
    limit = None if worker is None else worker.memory_manager.memory_limit
    return limit // _SHARE_OF_A_WORKER if limit else None


def _is_exact(part: Any, plan: Plan) -> bool:
    return part.dtypes is None and is_as_promised(part.keys, part.columns, plan)
