"""Sorted results with several outputs on clusters, and where these lack the package."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import dask
import dask.dataframe as dd
import pandas as pd
import pytest
from distributed import Client, LocalCluster

import dask_gpuagg
from dask_gpuagg.reporting.fallbacks import FallbackWarning
from tests.cluster.conftest import WITHOUT_THE_PACKAGE, scheduler, worker
from tests.frontend.test_sorted_outputs import FRAME, IN_ORDER, OUTPUTS, Results, same, values

COMPARED = ("itself", "add", "add hashed", "concat columns", "persisted", "map two", "cumulative")


@pytest.fixture(autouse=True)
def _objects() -> Iterator[None]:
    with dask.config.set({"dataframe.convert-string": False}):
        yield


def stock(name: str) -> pd.DataFrame:
    with dask.config.set({"scheduler": "synchronous"}):
        return values(IN_ORDER[name](Results("k", None)))


@pytest.mark.parametrize("name", COMPARED)
def test_operations_answer_as_of_one_sorted_partition(client: Client, name: str) -> None:
    want = stock(name)
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "raise"}):
        same(values(IN_ORDER[name](Results("k", OUTPUTS))), want, ordered=True)


@pytest.mark.parametrize("name", COMPARED)
def test_workers_without_the_package(small: Client, name: str) -> None:
    want = stock(name)
    with (
        worker(WITHOUT_THE_PACKAGE, small),
        dask_gpuagg.enabled(),
        pytest.warns(FallbackWarning, match="cannot import"),
    ):
        got = small.compute(IN_ORDER[name](Results("k", OUTPUTS))).result(timeout=60)
    same(got, want, ordered=True)


def test_a_killed_worker_costs_a_recomputation() -> None:
    """The bounds are the same when they are made again, for some of the outputs."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
        dask_gpuagg.enabled(),
    ):
        pids = list(client.run(os.getpid).values())
        query = dd.from_pandas(FRAME, npartitions=8).map_partitions(slowly)
        query = query.groupby("k", sort=True).agg({"x": ["sum", "median"]}, split_out=5)
        futures = client.compute(query.to_delayed())
        time.sleep(0.7)
        assert not all(future.done() for future in futures)
        os.kill(pids[0], signal.SIGKILL)
        parts = client.gather(futures)
    want = FRAME.groupby("k").agg({"x": ["sum", "median"]})
    pd.testing.assert_frame_equal(pd.concat(parts), want)


def slowly(part: pd.DataFrame) -> pd.DataFrame:
    time.sleep(0.2)
    return part


def test_a_scheduler_without_the_package(tmp_path: Path) -> None:
    with (
        scheduler(WITHOUT_THE_PACKAGE, tmp_path) as address,
        Client(address) as client,
        worker("", client),
        dask_gpuagg.enabled(),
    ):
        ddf = dd.from_pandas(FRAME, npartitions=4)
        query = ddf.groupby("k", sort=True).x.sum(split_out=3)
        with pytest.warns(FallbackWarning, match="scheduler.*cannot import"):
            parts = client.gather(client.compute(query.to_delayed()))
        assert len(parts) == 3
    pd.testing.assert_series_equal(pd.concat(parts), FRAME.groupby("k").x.sum())
