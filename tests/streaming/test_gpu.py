"""The pool of a stream, with RMM and the driver replaced."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dask_gpuagg.cuda.runtime.driver import DriverError
from tests.engines.device.stand_ins import without_rapids


class CudaMemoryResource:
    """RMM's default."""


class CudaAsyncViewMemoryResource:
    """A pool of the driver's."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle


class Driver:
    """Makes pools, and notes what is done to them."""

    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemPool_attribute = SimpleNamespace(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD=4)
    cuuint64_t = int

    def __init__(self, pools: bool = True) -> None:
        self.pools = pools
        self.done: list[Any] = []

    def CUmemPoolProps(self) -> Any:
        return SimpleNamespace(location=SimpleNamespace())

    def cuMemPoolCreate(self, asked: Any) -> tuple[int, str]:
        if not self.pools:
            raise DriverError("no pools", "CUDA_ERROR_NOT_SUPPORTED")
        self.done.append(("create", asked.location.id))
        return 0, f"pool {asked.location.id}"

    def cuMemPoolSetAttribute(self, handle: str, name: int, value: int) -> tuple[int]:
        assert (name, value) == (4, 2**64 - 1)
        return (0,)

    def cuCtxSynchronize(self) -> tuple[int]:
        self.done.append("wait")
        return (0,)

    def cuMemPoolTrimTo(self, handle: str, kept: int) -> tuple[int]:
        self.done.append(("trim", handle, kept))
        return (0,)


def replaced(monkeypatch: pytest.MonkeyPatch, driver: Driver, resource: Any) -> tuple[Any, Any]:
    """The module, and RMM's current resource."""
    state = SimpleNamespace(current=resource)
    mr = SimpleNamespace(
        CudaMemoryResource=CudaMemoryResource,
        CudaAsyncViewMemoryResource=CudaAsyncViewMemoryResource,
        get_current_device_resource=lambda: state.current,
        set_current_device_resource=lambda made: setattr(state, "current", made),
    )
    monkeypatch.delitem(sys.modules, "dask_gpuagg.streaming.gpu", raising=False)
    with without_rapids(rmm=SimpleNamespace(mr=mr)):
        module = importlib.import_module("dask_gpuagg.streaming.gpu")
    monkeypatch.delitem(sys.modules, "dask_gpuagg.streaming.gpu")
    monkeypatch.setattr(module, "bindings", lambda: driver)
    monkeypatch.setattr(module, "checked", lambda made: made[-1] if made[1:] else None)
    return module, state


def test_a_stream_has_a_pool_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, plain = Driver(), CudaMemoryResource()
    module, state = replaced(monkeypatch, driver, plain)
    for _ in range(2):
        with module.pooled(3):
            assert state.current.handle == "pool 3"
        assert state.current is plain
    given_back = ["wait", ("trim", "pool 3", 0)]
    assert driver.done == [("create", 3), *given_back, *given_back]


def test_the_resource_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, own = Driver(), object()
    module, state = replaced(monkeypatch, driver, own)
    with module.pooled(0):
        assert state.current is own
    assert state.current is own
    assert driver.done == []


def test_a_driver_without_pools_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, plain = Driver(pools=False), CudaMemoryResource()
    module, state = replaced(monkeypatch, driver, plain)
    for pools in (False, True):
        driver.pools = pools
        with module.pooled(0):
            assert state.current is plain
    assert driver.done == []


def test_it_is_given_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, plain = Driver(), CudaMemoryResource()
    module, state = replaced(monkeypatch, driver, plain)
    with pytest.raises(ValueError, match="broken"), module.pooled(0):
        raise ValueError("broken")
    assert state.current is plain
    assert driver.done[-1] == ("trim", "pool 0", 0)
