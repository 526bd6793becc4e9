"""The pool of a stream, with RMM and the driver replaced."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from dask_gpuagg.cuda.runtime.driver import DriverError
from tests.engines.device.stand_ins import without_rapids

POOL = "a pool"


class CudaMemoryResource:
    """RMM's default."""


class CudaAsyncViewMemoryResource:
    """A pool of the driver's."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle


def replaced(monkeypatch: pytest.MonkeyPatch, resource: Any) -> tuple[Any, Any, MagicMock]:
    """The module, RMM with its current resource, and a driver that makes one pool."""
    current = [resource]
    mr = SimpleNamespace(
        CudaMemoryResource=CudaMemoryResource,
        CudaAsyncViewMemoryResource=CudaAsyncViewMemoryResource,
        get_current_device_resource=lambda: current[-1],
        set_current_device_resource=current.append,
    )
    driver = MagicMock()
    driver.cuMemPoolCreate.return_value = (0, POOL)
    for name in ("cuMemPoolSetAttribute", "cuCtxSynchronize", "cuMemPoolTrimTo"):
        getattr(driver, name).return_value = (0,)
    monkeypatch.delitem(sys.modules, "dask_gpuagg.streaming.gpu", raising=False)
    with without_rapids(rmm=SimpleNamespace(mr=mr)):
        module = importlib.import_module("dask_gpuagg.streaming.gpu")
    monkeypatch.delitem(sys.modules, "dask_gpuagg.streaming.gpu")
    monkeypatch.setattr(module, "bindings", lambda: driver)
    monkeypatch.setattr(module, "checked", lambda returned: returned[-1])
    return module, mr, driver


def test_a_stream_has_a_pool_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CudaMemoryResource()
    module, mr, driver = replaced(monkeypatch, plain)
    for _ in range(2):
        with module.pooled(3):
            assert mr.get_current_device_resource().handle == POOL
        assert mr.get_current_device_resource() is plain
    driver.cuMemPoolCreate.assert_called_once_with(driver.CUmemPoolProps.return_value)
    assert driver.CUmemPoolProps.return_value.location.id == 3
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    driver.cuuint64_t.assert_called_once_with(2**64 - 1)
    driver.cuMemPoolSetAttribute.assert_called_once_with(
        POOL, threshold, driver.cuuint64_t.return_value
    )
    ends = [
        name for name, *_ in driver.mock_calls if name in ("cuCtxSynchronize", "cuMemPoolTrimTo")
    ]
    assert ends == ["cuCtxSynchronize", "cuMemPoolTrimTo"] * 2
    assert driver.cuMemPoolTrimTo.mock_calls == [call(POOL, 0)] * 2


def test_the_resource_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    own = object()
    module, mr, driver = replaced(monkeypatch, own)
    with module.pooled(0):
        assert mr.get_current_device_resource() is own
    assert mr.get_current_device_resource() is own
    assert driver.mock_calls == []


def test_a_driver_without_pools_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CudaMemoryResource()
    module, mr, driver = replaced(monkeypatch, plain)
    driver.cuMemPoolCreate.side_effect = DriverError("no pools", "CUDA_ERROR_NOT_SUPPORTED")
    for _ in range(2):
        with module.pooled(0):
            assert mr.get_current_device_resource() is plain
    assert driver.cuMemPoolCreate.call_count == 1
    assert not driver.cuMemPoolTrimTo.called


def test_the_pool_is_given_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = CudaMemoryResource()
    module, mr, driver = replaced(monkeypatch, plain)
    with pytest.raises(ValueError, match="broken"), module.pooled(0):
        raise ValueError("broken")
    assert mr.get_current_device_resource() is plain
    driver.cuMemPoolTrimTo.assert_called_once_with(POOL, 0)
