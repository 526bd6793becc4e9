"""Measure the constants of the cost model on the GPU of this machine: ``dask-gpuagg calibrate``."""

from __future__ import annotations

import datetime
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from dask_gpuagg._version import __version__
from dask_gpuagg.cuda.choice import costs
from dask_gpuagg.cuda.choice.cost_model import Observation, by_model, error_of, fit
from dask_gpuagg.cuda.choice.costs import Costs
from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.cuda.runtime.disk_cache import cache_directory
from dask_gpuagg.cuda.runtime.driver import Device, Stopwatch, current_device
from dask_gpuagg.cuda.sampling import repeat

ROWS = 1 << 25
_REPEATS = 3


@dataclass(frozen=True)
class Experiment:
    """A group-by of synthetic columns by one kernel.

    Keys are ``dense``, from 0 to ``groups``, or as many of 64 random bits. ``five`` are sum, count,
    least and greatest of float64 and the mean of float32; else there is the sum alone.
    """

    kernel: str
    groups: int
    dense: bool = True
    five: bool = True


# Each constant determines the time of some of these: bandwidth that of few groups, updates that of
# thousands, crowding that of random keys, runs that of many partitions, and cache misses that of
# many groups in a global table.
EXPERIMENTS = tuple(
    Experiment(kernel, groups, dense, five)
    for groups, dense, kernels in (
        (64, True, ("hgb",)),
        (1_000, True, ("hgb",)),
        (6_000, True, ("hgb",)),
        (6_000, False, ("hgb",)),
        (1 << 16, True, ("pgb", "lphga", "sp_ega")),
        (1 << 20, False, ("pgb", "sp_ega")),
        (1 << 20, True, ("pgb", "lphga")),
        (1 << 23, True, ("pgb", "pgb_ur", "lphga")),
    )
    for kernel in kernels
    for five in (False, True)
)


def calibrate(rows: int = ROWS) -> int:
    """Measure, fit, keep and print the constants of the current device.

    Returns 1 where there is no GPU to measure, or no place to keep the constants.
    """
    reason = driver.unavailable()
    if reason is not None:
        print(f"dask-gpuagg calibrate: nothing to measure: {reason}", file=sys.stderr)
        return 1
    device = current_device()
    directory = cache_directory()
    if directory is None:
        print("dask-gpuagg calibrate: no kernel cache to keep the constants in", file=sys.stderr)
        return 1
    path = costs.path_of(device, directory)
    before = costs.shipped(device)
    l2_megabytes = device.l2_bytes / 1e6 or before.costs.l2_megabytes
    observations = list(measured(rows, device))
    fitted = fit(observations, replace(before.costs, l2_megabytes=l2_megabytes))
    more = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "driver": driver.driver_version(),
        "dask_gpuagg": __version__,
        "rows": rows,
        "error": error_of(observations, fitted),
    }
    try:
        costs.write(path, device, fitted, more)
    except OSError as error:
        print(f"dask-gpuagg calibrate: {path} cannot be written: {error}", file=sys.stderr)
        return 1
    # what was decided by the old ones
    repeat.forget()
    print(report(device, before, fitted, observations))
    print(f"kept in {path}")
    return 0


def measured(rows: int, device: Device) -> Iterator[Observation]:
    """Run the experiments; the median of a few times, each kernel by itself."""
    for kind, experiments in groupby(EXPERIMENTS, attrgetter("groups", "dense")):
        columns = _columns(rows, *kind)
        for experiment in experiments:
            aggregator = aggregator_of(columns, experiment.five)
            run = aggregator.run(experiment.kernel)[2]
            repeats: list[dict[str, float]] = []
            for _ in range(_REPEATS):
                stopwatch = Stopwatch()
                run = aggregator.run(experiment.kernel, stopwatch)[2]
                repeats.append(stopwatch.milliseconds())
            if run.restarted or run.decision.kernel != experiment.kernel:
                # a table or a tile of it does not fit this device: the other experiments must do
                continue
            times = {name: statistics.median(ms[name] for ms in repeats) for name in repeats[0]}
            yield Observation(
                aggregator.query,
                rows,
                run.decision,
                device,
                by_model(times),
            )


def report(
    device: Device, used: costs.Known, fitted: Costs, observations: list[Observation]
) -> str:
    """The constants beside those that were used before, and how well they explain the times."""
    lines = [f"{device.name}, before: {used.source}", f"{'':16} {'before':>10} {'measured':>10}"]
    before = asdict(used.costs)
    lines += [
        f"{name:16} {before[name]:10.4g} {value:10.4g}" for name, value in asdict(fitted).items()
    ]
    lines.append(f"typical error of a kernel {error_of(observations, fitted):.0%}")
    return "\n".join(lines)


def _columns(rows: int, groups: int, dense: bool) -> tuple[Any, Any, Any]:
    import cupy as cp
    import pylibcudf as plc

    rng = cp.random.default_rng(1)
    key = rng.integers(0, groups, rows, dtype="int64")
    if not dense:
        key = rng.integers(-(2**63), 2**63 - 1, groups, dtype="int64")[key]
    arrays = (key, rng.random(rows), rng.random(rows, dtype="float32"))
    # the kernels run on their own stream
    cp.cuda.get_current_stream().synchronize()
    key, v, w = (plc.Column.from_cuda_array_interface(array) for array in arrays)
    return key, v, w


def aggregator_of(columns: tuple[Any, Any, Any], five: bool) -> Any:
    """An aggregator of a sum, or of five aggregations, as ``Experiment`` has them.

    The columns are a key and values: int64, float64 and float32.
    """
    from dask_gpuagg.engines.device.aggregator import Aggregator

    key, v, w = columns
    aggregator = Aggregator([key], False)
    aggregator.sum(v)
    if five:
        for aggregation in (aggregator.count, aggregator.min, aggregator.max):
            aggregation(v)
        aggregator.mean(w)
    return aggregator
