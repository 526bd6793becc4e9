"""Device memory: what a call takes is given back, also when it does not suffice."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.device.test_kernels import KERNELS, WANTED, aggregated, columns_of, values


@pytest.mark.parametrize("expected", [False, True])
@pytest.mark.parametrize("kernel", ["hgb", "pgb", "pgb_ur", "pgb_fold", "lphga"])
@pytest.mark.parametrize("key", ["k", "text"])
def test_out_of_memory_leaves_nothing_allocated(key: str, kernel: str, expected: bool) -> None:
    """With ever more memory the call fails at each of its allocations, until it goes through.

    ``expected`` rows have been grouped before, so that their decision is not waited for.
    """
    import rmm

    rng = np.random.default_rng(15)
    rows = 1_000_000
    frame = pd.DataFrame({"k": rng.integers(0, 200_000, rows), "v": rng.normal(size=rows)})
    frame["text"] = frame["k"].astype(str)
    keys, values_ = columns_of(frame, [key]), columns_of(frame, ["v"])
    before = rmm.mr.get_current_device_resource()
    messages: list[str] = []
    limit = 1 << 12
    if expected:
        assert attempt(keys, values_[0], kernel)[0] is None
    while True:
        counted = rmm.mr.StatisticsResourceAdaptor(before)
        rmm.mr.set_current_device_resource(rmm.mr.LimitingResourceAdaptor(counted, limit))
        message, groups = attempt(keys, values_[0], kernel)
        rmm.mr.set_current_device_resource(before)
        assert counted.allocation_counts.current_bytes == 0
        if message is None:
            break
        messages.append(message)
        limit *= 2
    assert groups == frame["k"].nunique()
    assert len(messages) >= 8
    for message in messages:
        assert re.search(r"Exceeded memory limit \d+; .*Requested bytes \d+", message), message


def attempt(keys: list[Any], values: Any, kernel: str) -> tuple[str | None, int]:
    """The allocator's message and no groups, or none and the groups."""
    from dask_gpuagg.engines.device.aggregator import Aggregator

    aggregator = Aggregator(keys, False)
    aggregator.sum(values)
    aggregator.mean(values)
    try:
        return None, aggregator.run(kernel)[2].groups
    except MemoryError as error:
        return str(error), 0


def test_many_calls_leave_nothing_allocated() -> None:
    import rmm

    rng = np.random.default_rng(16)
    frame = pd.DataFrame({"k": rng.integers(0, 99, 300_000)} | values(rng, 300_000))
    before = rmm.mr.get_current_device_resource()
    counted = rmm.mr.StatisticsResourceAdaptor(before)
    rmm.mr.set_current_device_resource(counted)
    try:
        for kernel in KERNELS * 5:
            aggregated(frame, ["k"], WANTED, kernel)
        assert counted.allocation_counts.current_bytes == 0
    finally:
        rmm.mr.set_current_device_resource(before)
