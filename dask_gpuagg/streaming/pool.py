"""A pool of device memory for a stream, where RMM has its default resource.

``cudaFree`` waits for all that the device does, and so for the copies. The pool is the driver's. It
is kept, and what is free of it after a stream is given back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import rmm

from dask_gpuagg.cuda.runtime.driver import DriverError, bindings, checked


class _Pool(NamedTuple):
    """The driver's handle, and RMM's resource of it."""

    handle: Any
    resource: Any


# by the number of the device; None where the driver has no pools, as on some virtual GPUs
_pools: dict[int, _Pool | None] = {}


@contextmanager
def pooled(ordinal: int) -> Iterator[None]:
    """Allocate from a pool, for one caller at a time.

    Parameters
    ----------
    ordinal : int
        Of the current device.
    """
    before = rmm.mr.get_current_device_resource()
    pool = _pool_of(ordinal) if type(before) is rmm.mr.CudaMemoryResource else None
    if pool is None:
        yield
        return
    rmm.mr.set_current_device_resource(pool.resource)
    try:
        yield
    finally:
        # another thread may have set one meanwhile
        if rmm.mr.get_current_device_resource() is pool.resource:
            rmm.mr.set_current_device_resource(before)
        driver = bindings()
        checked(driver.cuCtxSynchronize())
        checked(driver.cuMemPoolTrimTo(pool.handle, 0))


def _pool_of(ordinal: int) -> _Pool | None:
    if ordinal not in _pools:
        try:
            handle = _created(ordinal)
        except DriverError:
            _pools[ordinal] = None
        else:
            _pools[ordinal] = _Pool(handle, rmm.mr.CudaAsyncViewMemoryResource(handle))
    return _pools[ordinal]


def _created(ordinal: int) -> Any:
    """A pool that gives nothing back by itself."""
    driver = bindings()
    asked = driver.CUmemPoolProps()
    asked.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    asked.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    asked.location.id = ordinal
    handle = checked(driver.cuMemPoolCreate(asked))
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    checked(driver.cuMemPoolSetAttribute(handle, threshold, driver.cuuint64_t(2**64 - 1)))
    return handle
