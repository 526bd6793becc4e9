"""Our series on the pages that Prometheus reads of workers and of the scheduler."""

from __future__ import annotations

import gc
import urllib.request
import weakref
from collections.abc import Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

import dask_gpuagg
from dask_gpuagg.reporting import prometheus

ROWS, PARTITIONS = 60_000, 4


@pytest.fixture(scope="module")
def served() -> Iterator[Client]:
    """A cluster of one process with metrics."""
    pytest.importorskip("prometheus_client")
    pytest.importorskip("bokeh")
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=2,
            dashboard_address=":0",
            worker_dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def series(address: str) -> dict[tuple[str, ...], float]:
    """The values of our series by name and values of labels, these in the order of their names."""
    from prometheus_client.parser import text_string_to_metric_families

    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert "dask_" in text.replace("dask_groupby", "")  # distributed's own are there as before
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        if family.name.startswith("dask_groupby_")
        for sample in family.samples
        if sample.name.endswith("_total")
    }


def test_a_worker_serves_what_its_tasks_did(served: Client) -> None:
    frame = pd.DataFrame({"k": np.arange(ROWS) % 50, "v": np.arange(ROWS) / 7})
    query = dd.from_pandas(frame, npartitions=PARTITIONS).groupby("k").v.sum()
    (worker,) = served.scheduler_info(n_workers=-1)["workers"].values()
    address = f"http://{worker['host']}:{worker['services']['dashboard']}"
    for runs in (1, 2):
        with dask.config.set({"gpuagg.chunk": 1}):
            query.compute()
        found = series(address)
        assert found["dask_groupby_rows_total",] == runs * ROWS
        assert found["dask_groupby_task_rows_in_total", "host", "partial"] == runs * ROWS
        assert found["dask_groupby_tasks_total", "host", "partial"] == runs * PARTITIONS
        assert found["dask_groupby_task_rows_out_total", "host", "finalize"] == runs * 50
        assert found["dask_groupby_task_seconds_total", "host", "partial"] > 0
        assert found["dask_groupby_task_bytes_total", "host", "partial"] == runs * ROWS * 16


def noted() -> None:
    from dask_gpuagg.cuda.aggregate import Run
    from dask_gpuagg.cuda.choice.decision import Decision
    from dask_gpuagg.reporting.prometheus import export_activity
    from dask_gpuagg.reporting.runs import note_run

    export_activity()
    note_run(Run(Decision(kernel="pgb", why=""), 900, 30, spilled=5, bytes_read=14_400, seconds=2))


def test_kernels_have_series_of_their_own(served: Client) -> None:
    served.run(noted)
    (worker,) = served.scheduler_info(n_workers=-1)["workers"].values()
    found = series(f"http://{worker['host']}:{worker['services']['dashboard']}")
    kernels = {name[0]: value for name, value in found.items() if "pgb" in name}
    assert kernels == {
        "dask_groupby_kernel_calls_total": 1,
        "dask_groupby_kernel_seconds_total": 2,
        "dask_groupby_kernel_rows_total": 900,
        "dask_groupby_kernel_groups_total": 30,
        "dask_groupby_kernel_bytes_total": 14_400,
        "dask_groupby_kernel_groups_expected_total": 30,
        "dask_groupby_kernel_rows_spilled_total": 5,
    }


def test_the_scheduler_serves_fallbacks(served: Client) -> None:
    page = dask_gpuagg.group_by_page(served)
    address = page.rpartition("/")[0]
    frame = pd.DataFrame({"k": [1, 2, 1], "c": [1j, 2, 3]})
    with dask.config.set({"gpuagg.fallback": "silent"}):
        dd.from_pandas(frame, npartitions=2).groupby("k").c.sum().compute()
    served.get_events(dask_gpuagg.dashboard.TOPIC)  # a round trip after the report
    ((name, reason),) = [key for key in series(address) if key[0].endswith("fallbacks_total")]
    assert "complex128" in reason
    assert series(address)[name, reason] == 1


def test_nothing_is_registered_where_nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(prometheus, "_registered", {})
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    prometheus.export_activity()
    assert prometheus._registered == {}


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One of its own, of a process that has exported nothing yet."""
    library = pytest.importorskip("prometheus_client")
    made = library.CollectorRegistry(auto_describe=True)  # as the one of a process is
    monkeypatch.setattr(library, "REGISTRY", made)
    monkeypatch.setattr(prometheus, "_registered", {})
    return made


def test_a_name_that_is_taken_fails_no_query(
    registry: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from prometheus_client import Gauge

    Gauge("dask_groupby_rows_total", "another's", registry=registry)
    frame = pd.DataFrame({"k": [1, 2, 1], "v": [1, 2, 3]})
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster),
        dask.config.set({"gpuagg.chunk": 1}),
    ):
        for _ in range(2):
            found = dd.from_pandas(frame, npartitions=2).groupby("k").v.sum().compute()
            assert found.sort_index().tolist() == [4, 2]
    told = [each.message for each in caplog.records if each.name == "dask_gpuagg"]
    assert len(told) == 1
    assert "Prometheus" in told[0]
    assert "dask_groupby_rows" in told[0]


def test_a_scheduler_that_is_gone_is_not_kept(registry: Any) -> None:
    class Scheduler:
        reasons = ("dtype",)

    def events(of: Scheduler) -> list[dict[str, str]]:
        return [{"reason": reason} for reason in of.reasons]

    def values() -> dict[str, float]:
        found = [s for family in registry.collect() for s in family.samples]
        return {s.labels["reason"]: s.value for s in found if s.name.endswith("_total")}

    schedulers = [Scheduler(), Scheduler()]
    for each in schedulers:
        prometheus.export_fallbacks(each, events)
    assert values() == {"dtype": 1}
    watched = [weakref.ref(each) for each in schedulers]
    del each
    schedulers.clear()
    gc.collect()
    assert [of() for of in watched] == [None, None]
    assert values() == {}
