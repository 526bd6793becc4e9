"""What a GPU worker needs before its first query: pooled memory and a warm driver."""

from __future__ import annotations

from typing import Any

import dask
from dask.utils import parse_bytes
from distributed import WorkerPlugin

from dask_gpuagg._version import __version__
from dask_gpuagg.cuda import driver


class GpuWorker(WorkerPlugin):
    """Sets up each worker, also those that join later: ``client.register_plugin(GpuWorker())``.

    Parameters
    ----------
    pool : str or int, optional
        Device memory that RMM takes at once and hands out from then on: bytes, or text such as
        ``"20GB"``. By default the configuration ``gpuagg.pool``; without either, memory stays
        as it is. A resource that dask-cuda or the user has set is left alone.

    Notes
    -----
    The worker's metrics hold what was found: versions, device, memory resource, or why kernels
    cannot run there.
    """

    name = "dask_gpuagg"
    idempotent = True

    def __init__(self, pool: str | int | None = None) -> None:
        self.pool = pool if pool is not None else dask.config.get("gpuagg.pool")

    def setup(self, worker: Any) -> None:
        """Called by the worker."""
        report = setup_device(self.pool)
        worker.metrics["dask_gpuagg"] = lambda _: report


def setup_device(pool: str | int | None) -> dict[str, Any]:
    """Make this process ready for the device engine.

    Parameters
    ----------
    pool : str or int, optional
        As of ``GpuWorker``.

    Returns
    -------
    dict
        ``version`` and either ``unavailable`` (why) or ``device`` and ``memory``.
    """
    report: dict[str, Any] = {"version": __version__}
    obstacle = driver.unavailable()
    if obstacle is not None:
        return report | {"unavailable": obstacle}
    import rmm

    resource = rmm.mr.get_current_device_resource()
    if pool is not None and type(resource) is rmm.mr.CudaMemoryResource:
        resource = rmm.mr.PoolMemoryResource(resource, initial_pool_size=parse_bytes(pool))
        rmm.mr.set_current_device_resource(resource)
    device = driver.current_device()
    return report | {"device": device.name, "memory": type(resource).__name__}
