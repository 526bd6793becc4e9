"""``GpuWorker``: it reports, and does no harm where there is no GPU."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

import dask_gpuagg
from dask_gpuagg.cuda import driver
from dask_gpuagg.distributed import worker


def test_without_a_gpu_the_reason_is_in_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "unavailable", lambda: "no CUDA device")
    fake = SimpleNamespace(metrics={})
    worker.GpuWorker().setup(fake)
    report = fake.metrics["dask_gpuagg"](fake)
    assert report == {"version": dask_gpuagg.__version__, "unavailable": "no CUDA device"}


def test_it_pickles_and_takes_the_configured_pool() -> None:
    import dask

    with dask.config.set({"gpuagg.pool": "3GB"}):
        plugin = pickle.loads(pickle.dumps(dask_gpuagg.GpuWorker()))
    assert plugin.pool == "3GB"
    assert dask_gpuagg.GpuWorker("1GB").pool == "1GB"


def test_unknown_attributes_stay_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'gpu_worker'"):
        dask_gpuagg.gpu_worker  # noqa: B018
