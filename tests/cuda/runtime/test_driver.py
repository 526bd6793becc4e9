"""Machines without a GPU, a driver or the bindings: a reason, and no traceback."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest

from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.cuda.runtime.compiler import Compiled
from dask_gpuagg.cuda.runtime.driver import Device
from tests.running import environment

runtime = pytest.importorskip("cuda.bindings.runtime", reason="CUDA's bindings are not installed")

DEVICE = Device(0, "none", "sm_90", 132, 227 << 10)
STATUS = runtime.cudaError_t
CODE = Compiled(b"code", {kernel: f"lowered {kernel}" for kernel in ("hgb", "fold")})


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ((STATUS.cudaSuccess, 1), None),
        ((STATUS.cudaSuccess, 0), "no CUDA device"),
        ((STATUS.cudaErrorNoDevice, 0), "no usable CUDA device (cudaErrorNoDevice)"),
        (
            (STATUS.cudaErrorInsufficientDriver, 0),
            "no usable CUDA device (cudaErrorInsufficientDriver)",
        ),
    ],
)
def test_reason_by_runtime_status(
    returned: tuple[Any, int], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "cudaGetDeviceCount", lambda: returned)
    assert driver.unavailable() == reason


def test_missing_driver_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(runtime, "cudaGetDeviceCount", missing)
    assert "no CUDA driver (libcuda.so.1" in str(driver.unavailable())


def test_missing_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert "bindings cannot be imported" in str(driver.unavailable())


HIDDEN = """
import warnings; warnings.simplefilter("error")
import dask.dataframe as dd, pandas as pd, dask_gpuagg
from types import SimpleNamespace
dask_gpuagg.enable()
worker = SimpleNamespace(metrics={})
dask_gpuagg.GpuWorker().setup(worker)
frame = pd.DataFrame({"k": [1, 2, 1], "v": [1, 2, 3]})
query = dd.from_pandas(frame, npartitions=2).groupby("k").v.sum()
print(query.compute(scheduler="threads").to_dict(), dask_gpuagg.explain(query).groupbys[0].engine)
print(worker.metrics["dask_gpuagg"](worker)["unavailable"])
"""


def test_hidden_devices_count_as_none() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN],
        env=environment() | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    result, reason = done.stdout.splitlines()
    assert result == "{1: 4, 2: 2} host"
    assert "CUDA" in reason
    assert done.stderr == ""


def test_a_stopwatch_destroys_every_event_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver as bindings

    made, gone = itertools.count(), []
    done = bindings.CUresult.CUDA_SUCCESS
    calls: dict[str, Any] = {
        "cuEventCreate": lambda flags: (done, next(made)),
        "cuEventRecord": lambda event, stream: (done,),
        "cuEventSynchronize": lambda event: (done,),
        "cuEventElapsedTime": lambda first, last: (done, 0.5),
        "cuEventDestroy": lambda event: (done, gone.append(event))[:1],
    }
    for name, call in calls.items():
        monkeypatch.setattr(bindings, name, call)
    watch = driver.Stopwatch()
    for name in ("fill", "fill", "again"):
        watch.stop(name, watch.start(0), 0)
    assert watch.milliseconds() == {"fill": 1.0, "again": 0.5}
    assert sorted(gone) == list(range(6))
    watch.stop("fill", watch.start(0), 0)
    watch.start(0)  # its kernel was not launched
    watch.destroy()
    watch.destroy()
    assert sorted(gone) == list(range(9)) == list(range(next(made)))
    assert watch.is_done()
