"""Measuring on one GPU: calls in turns, device times of kernels, peaks of memory, origin."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from benchmarks.machine import provenance


def prepare() -> None:
    """One RMM pool for all arms, and for CuPy, and one CPU core.

    Where the scheduler moves a process from core to core between two calls, its own time grows,
    and how often it does is chance.
    """
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import cupy as cp
    import dask
    import rmm
    from rmm.allocators.cupy import rmm_cupy_allocator

    rmm.reinitialize(pool_allocator=True, initial_pool_size=60 << 30)
    dask.config.set({"gpuagg.compile": "wait"})
    cp.cuda.set_allocator(rmm_cupy_allocator)


def name() -> str:
    """A worker's GPU, and the newest CUDA that its driver has."""
    from cuda.bindings import runtime

    from dask_gpuagg.cuda.runtime.driver import current_device

    return f"{current_device().name}, CUDA {runtime.cudaDriverGetVersion()[1]}"


def report_head(at: str | None) -> dict[str, Any]:
    """Where a result was made: machine, commit, GPU, versions, hash of the kernels."""
    import cudf
    from cuda.bindings import runtime

    from dask_gpuagg.cuda.runtime.compiler import sources_hash
    from dask_gpuagg.cuda.runtime.driver import current_device

    return {
        **provenance(at),
        "gpu": current_device().name,
        "driver": runtime.cudaDriverGetVersion()[1],
        "cudf": cudf.__version__,
        "kernels": sources_hash(),
        "cores": len(os.sched_getaffinity(0)),
    }


def timed(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Milliseconds of each call by the wall clock, a number a repetition, after a first one."""
    import cupy as cp

    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    cp.cuda.Device().synchronize()
    order, shuffled = list(calls.items()), random.Random(1)
    for _ in range(repeats):
        # what runs before an arm is chance
        shuffled.shuffle(order)
        for name, call in order:
            start = time.perf_counter()
            result = call()
            cp.cuda.Device().synchronize()
            times[name].append((time.perf_counter() - start) * 1e3)
            del result
    return times


def device_time(call: Callable[..., Any], repeats: int) -> dict[str, float]:
    """Median milliseconds of each kernel of a call that takes a stopwatch."""
    from dask_gpuagg.cuda.runtime.driver import Stopwatch

    laps: list[dict[str, float]] = []
    for _ in range(repeats):
        stopwatch = Stopwatch()
        call(stopwatch)
        laps.append(stopwatch.milliseconds())
    # a call like one before it may leave out a step
    names = dict.fromkeys(name for lap in laps for name in lap)
    return {name: statistics.median(lap.get(name, 0.0) for lap in laps) for name in names}


def peak_bytes(call: Callable[[], Any]) -> int:
    """Device memory that a call takes at most beyond its input and its result."""
    import rmm

    with resource(rmm.mr.StatisticsResourceAdaptor) as counted:
        result = call()
        counts = counted.allocation_counts
        peak = int(counts.peak_bytes - counts.current_bytes)
        del result
    return peak


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Allocations inside take so many bytes together, at most."""
    import rmm

    with resource(lambda before: rmm.mr.LimitingResourceAdaptor(before, limit)):
        yield


@contextmanager
def resource(make: Callable[[Any], Any]) -> Iterator[Any]:
    """Memory of the device is of another resource inside, made of the one before."""
    import rmm

    before = rmm.mr.get_current_device_resource()
    inside = make(before)
    rmm.mr.set_current_device_resource(inside)
    try:
        yield inside
    finally:
        rmm.mr.set_current_device_resource(before)


def decision_fields(decision: Any) -> dict[str, Any]:
    """A decision as JSON, without the hot keys: up to 384, in it and in its estimate."""
    fields: dict[str, Any] = asdict(decision)
    for record in (fields, fields["estimate"] or {}):
        record.pop("hot", None)
    return fields


def aggregator_of(keys: list[Any], aggregations: list[tuple[Any, list[str]]]) -> Any:
    """Our pass over columns, before it runs: key columns, and names for each value column."""
    from dask_gpuagg.engines.device.aggregator import Aggregator

    aggregator = Aggregator(keys, False)
    for column, names in aggregations:
        for name in names:
            getattr(aggregator, name)(column)
    return aggregator


def engine_arm(
    frame: Any, spec: Mapping[str, Any], keys: list[str], **options: Any
) -> Callable[[], Any]:
    """The device engine on a DataFrame: what one partition costs inside a Dask task."""
    import dask_cudf

    from dask_gpuagg import enabled
    from dask_gpuagg.engines.device.engine import shape_of
    from dask_gpuagg.frontend import logical
    from dask_gpuagg.tasks.tasks import gpuagg_direct

    with enabled():
        lazy = dask_cudf.from_cudf(frame.head(10), npartitions=1)
        read = logical.read(lazy.groupby(keys, observed=True, **options).agg(spec).expr)
    shape = shape_of(read.meta)
    return lambda: gpuagg_direct(frame, None, *keys, plan=read.plan, shape=shape)
