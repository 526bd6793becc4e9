"""Device memory of a worker: the most that was in use, and what has been spilled."""

from __future__ import annotations

from typing import Any

from dask.sizeof import sizeof

from dask_gpuagg.engines.device.memory import resources, spill_manager


def usage(worker: Any) -> dict[str, int]:
    """Bytes that a worker reports with each heartbeat.

    Parameters
    ----------
    worker : distributed.Worker

    Returns
    -------
    dict of str to int
        ``peak_bytes``: the most that was allocated at a time, where an RMM resource counts it, as
        that of ``GpuWorker``'s pool does. ``spilled_bytes``: what dask-cuda and cuDF have in host
        memory of the device's data.
    """
    found = {"spilled_bytes": spilled_by_worker(worker) + spilled_by_cudf()}
    peak = peak_bytes()
    return found if peak is None else {"peak_bytes": peak, **found}


def peak_bytes() -> int | None:
    """The most bytes that RMM has handed out at a time; ``None`` where nothing counts them."""
    counts = (getattr(resource, "allocation_counts", None) for resource in resources())
    return next((int(found.peak_bytes) for found in counts if found is not None), None)


def spilled_by_worker(worker: Any) -> int:
    """Bytes of device data that dask-cuda's ``DeviceHostFile`` has moved to the host."""
    data = getattr(worker, "data", None)
    keys, host = getattr(data, "device_keys", ()), getattr(data, "host", {})
    # tasks change both meanwhile
    values = [host.get(key) for key in tuple(keys)]
    return sum(sizeof(value) for value in values if value is not None)


def spilled_by_cudf() -> int:
    """Bytes of buffers that cuDF has moved to the host; 0 where its option ``spill`` is off."""
    manager = spill_manager()
    if manager is None:
        return 0
    return sum(buffer.size for buffer in manager.buffers() if buffer.is_spilled)
