"""What a worker reports of its device memory, with RMM, dask-cuda and cuDF replaced."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.worker import plugin
from dask_gpuagg.worker.plugin import usage

HOST_WORKER = SimpleNamespace(data={"a": 1})


class Resource:
    """A memory resource above another one."""

    def __init__(self, upstream: Any = None, **more: Any) -> None:
        self.upstream = upstream
        vars(self).update(more)

    def get_upstream(self) -> Any:
        return self.upstream


@pytest.mark.parametrize("above", [0, 1, 2])
def test_the_peak_is_that_of_the_resource_that_counts(
    monkeypatch: pytest.MonkeyPatch, above: int
) -> None:
    resource = Resource(
        Resource(), allocation_counts=SimpleNamespace(peak_bytes=12, current_bytes=1)
    )
    for _ in range(above):
        resource = Resource(resource)
    mr = SimpleNamespace(get_current_device_resource=lambda: resource)
    monkeypatch.setitem(sys.modules, "rmm", SimpleNamespace(mr=mr))
    assert usage(HOST_WORKER) == {"peak_bytes": 12, "spilled_bytes": 0}


def test_spilled_data_is_that_of_the_device_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rmm", raising=False)
    host = {"spilled": bytearray(1000), "of the host": bytearray(500)}
    data = SimpleNamespace(device_keys={"spilled", "on the device"}, host=host)
    buffers = [SimpleNamespace(size=70, is_spilled=True), SimpleNamespace(size=5, is_spilled=False)]
    manager = SimpleNamespace(buffers=lambda: buffers)
    name = "cudf.core.buffer.spill_manager"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(get_global_manager=lambda: manager))
    assert 1070 <= usage(SimpleNamespace(data=data))["spilled_bytes"] < 1400
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(get_global_manager=lambda: None))
    assert 1000 <= usage(SimpleNamespace(data=data))["spilled_bytes"] < 1330


class CudaMemoryResource(Resource):
    """What RMM has by default."""


class PoolMemoryResource(Resource):
    """A pool."""


class StatisticsResourceAdaptor(Resource):
    """Counts what the one below hands out."""

    allocation_counts = SimpleNamespace(peak_bytes=7)


@pytest.fixture
def set_resources(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """RMM's resource, and those that are set after it."""
    current: list[Any] = [CudaMemoryResource()]
    mr = SimpleNamespace(
        CudaMemoryResource=CudaMemoryResource,
        PoolMemoryResource=PoolMemoryResource,
        StatisticsResourceAdaptor=StatisticsResourceAdaptor,
        get_current_device_resource=lambda: current[-1],
        set_current_device_resource=current.append,
    )
    monkeypatch.setitem(sys.modules, "rmm", SimpleNamespace(mr=mr))
    monkeypatch.setattr(driver, "unavailable", lambda: None)
    monkeypatch.setattr(driver, "current_device", lambda: SimpleNamespace(name="a GPU"))
    return current


def test_the_plugin_counts_what_its_pool_hands_out(set_resources: list[Any]) -> None:
    worker = SimpleNamespace(metrics={}, data={}, nanny=None)
    plugin.GpuWorker("1 GB", examples=[]).setup(worker)
    report = worker.metrics["dask_gpuagg"](worker)
    assert report["memory"] == "PoolMemoryResource"
    assert (report["peak_bytes"], report["spilled_bytes"]) == (7, 0)
    assert isinstance(set_resources[-1].upstream, PoolMemoryResource)


@pytest.mark.parametrize("counted", [False, True])
def test_a_process_gets_no_second_pool(set_resources: list[Any], counted: bool) -> None:
    """A plugin that is set up again, or after dask-cuda, leaves the pool that is there."""
    if counted:
        first = SimpleNamespace(metrics={}, data={}, nanny=None)
        plugin.GpuWorker("1 GB", examples=[]).setup(first)
    else:
        set_resources.append(PoolMemoryResource(set_resources[-1]))
    before = list(set_resources)
    for pool in ("1 GB", "2 GB"):
        worker = SimpleNamespace(metrics={}, data={}, nanny=None)
        plugin.GpuWorker(pool, examples=[]).setup(worker)
        assert worker.metrics["dask_gpuagg"](worker)["memory"] == "PoolMemoryResource"
    assert set_resources == before
