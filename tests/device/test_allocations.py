"""Device memory: what a call takes is given back, also when it does not suffice."""

import gc
import re
from collections.abc import Callable
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.cuda.sampling import repeat
from dask_gpuagg.engines.device.memory import OutOfDeviceMemory
from tests.device.failing import current, failing, numbers
from tests.device.frames import on_device
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
        with current(rmm.mr.LimitingResourceAdaptor(counted, limit)):
            message, groups = attempt(keys, values_[0], kernel)
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
    counted = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_current_device_resource())
    with current(counted):
        for kernel in KERNELS * 5:
            aggregated(frame, ["k"], WANTED, kernel)
        assert counted.allocation_counts.current_bytes == 0


# queries of the columns of ``rows_of``
QUERIES: dict[str, Callable[[Any], Any]] = {
    "few groups": lambda ddf: ddf.groupby("few").v.agg(["sum", "mean", "max"]),
    "many groups": lambda ddf: ddf.groupby("k").v.agg(["sum", "count"]),
    "text": lambda ddf: ddf.groupby("text").v.agg(["sum", "min"]),
    "exchange": lambda ddf: ddf.groupby("k").v.agg(["sum", "count"], split_out=2),
    "whole groups": lambda ddf: ddf.groupby("k").v.agg(["median", "nunique"]),
    "spread": lambda ddf: ddf.groupby(["few", "k"]).v.agg(["var", "first"]),
}


def rows_of(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(15)
    frame = pd.DataFrame({"k": rng.integers(0, 60_000, rows), "v": rng.normal(size=rows)})
    frame["few"] = rng.integers(0, 50, rows)
    frame["text"] = frame["k"].astype(str)
    return frame


def graph_of(name: str, rows: int) -> tuple[Any, Any]:
    """A query on two cuDF partitions that are there: its graph and its keys."""
    # what Dask and cuDF allocate to make a graph is not ours to divide
    query = QUERIES[name](on_device(rows_of(rows), 2).persist()).optimize(fuse=False)
    return dict(query.__dask_graph__()), query.__dask_keys__()


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.usefixtures("raising")
def test_each_failed_allocation_costs_an_answer_or_nothing(name: str, once: bool) -> None:
    """The n-th allocation fails, alone or with all behind it.

    The answer is right, or the error says what was asked; what was taken is given back.
    """
    graph, keys = graph_of(name, 300_000)
    expected = sorted_rows(dask.get(graph, keys))
    errors, held = refusals(graph, keys, expected, once)
    assert not any(held)
    assert all((" requested," in str(error)) == ("Requested" in str(error)) for error in errors)
    # one failure alone never costs the answer
    assert not (once and errors)


def refusals(
    graph: Any, keys: Any, expected: pd.DataFrame, once: bool
) -> tuple[list[OutOfDeviceMemory], list[int]]:
    """Refuse allocations one after the other; return the errors, and the bytes held after each."""
    errors, held = [], []
    for n in numbers():
        repeat.forget()
        with failing(n, once) as memory:
            found, error = outcome(graph, keys)
            asked = memory.allocations
            memory.disarm()
            if error is None:
                pd.testing.assert_frame_equal(sorted_rows(found), expected, rtol=1e-9)
            else:
                errors.append(error)
            del found, error
            gc.collect()
            held.append(memory.held())
        if asked <= n:
            break
    assert n > 5
    # libcudf passes on what was asked for only where the allocator is its own
    assert all("free" in str(error) for error in errors)
    return errors, held


def outcome(graph: Any, keys: Any) -> tuple[Any, OutOfDeviceMemory | None]:
    """The partitions of a result, or the error."""
    try:
        return dask.get(graph, keys), None
    except OutOfDeviceMemory as error:
        return None, error.with_traceback(None)


def sorted_rows(parts: Any) -> pd.DataFrame:
    result: pd.DataFrame = pd.concat([part.to_pandas() for part in parts]).sort_index()
    return result
