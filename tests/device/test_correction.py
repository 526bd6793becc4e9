"""Calls on a device whose constants are derived correct them, at no wait of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dask_gpuagg.cuda.choice import correction, costs
from dask_gpuagg.cuda.runtime.driver import Stopwatch, current_device

ROWS = 8_000_000


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Constants by which scattering takes a tenth of its time, as of a device never measured."""
    device = current_device()
    made = costs.shipped(device).costs
    fast = replace(
        made,
        bandwidth=10 * made.bandwidth,
        load_ps=made.load_ps / 10,
        move_ps=made.move_ps / 10,
        run_ps=made.run_ps / 10,
    )
    known = costs.Known(fast, "derived from nothing", derived=True)
    monkeypatch.setattr(costs, "shipped", lambda device: known)
    monkeypatch.setattr(correction, "_LEAST_MS", 0.005)
    correction.forget()
    costs.uncorrected.cache_clear()
    yield
    correction.forget()
    costs.uncorrected.cache_clear()


def test_first_calls_correct_the_constants(derived: None) -> None:
    import cupy as cp
    import pylibcudf as plc

    from dask_gpuagg.engines.device.aggregator import Aggregator

    current_device()
    rng = cp.random.default_rng(1)
    keys = rng.integers(-(2**63), 2**63 - 1, 500_000, dtype="int64")
    # in no period: a sample of rows that lie evenly would meet the same keys again
    k = keys[cp.random.permutation(ROWS) % len(keys)]
    v = cp.ones(ROWS, dtype="float64")
    cp.cuda.get_current_stream().synchronize()
    key, value = (plc.Column.from_cuda_array_interface(array) for array in (k, v))
    for _ in range(12):
        aggregator = Aggregator([key], False)
        aggregator.sum(value)
        _, (sums,), run = aggregator.run("pgb")
        total: Any = plc.reduce.reduce(sums, plc.aggregation.sum(), sums.type()).to_py()
        assert (run.groups, total) == (len(keys), ROWS)
    corrections = costs.known(current_device()).costs.corrections
    assert 1.3 < corrections["scatter"] <= 3
    assert "scatter" in costs.known(current_device()).source


def test_laps_are_known_without_waiting() -> None:
    import rmm

    from dask_gpuagg.cuda.runtime.driver import fill

    current_device()
    stream = rmm.pylibrmm.stream.DEFAULT_STREAM
    handle = stream.__cuda_stream__()[1]
    buffer = rmm.DeviceBuffer(size=1 << 30, stream=stream)
    watch = Stopwatch()
    assert watch.is_done()
    for name in ("fill", "fill", "again"):
        started = watch.start(handle)
        for _ in range(20):
            fill(buffer.ptr, 1, 1 << 30, handle)
        watch.stop(name, started, handle)
    assert not watch.is_done()
    assert watch.laps() == {"fill": 2, "again": 1}
    stream.synchronize()
    assert watch.is_done()
    assert set(watch.milliseconds()) == {"fill", "again"}
