"""Machines without a GPU, a driver or the bindings: a reason, and no traceback."""

import ctypes
import itertools
import queue
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.cuda.runtime.driver import Device
from tests.running import run_python

runtime = pytest.importorskip("cuda.bindings.runtime", reason="CUDA's bindings are not installed")

STATUS = runtime.cudaError_t


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
    done = run_python("-c", HIDDEN, env={"CUDA_VISIBLE_DEVICES": ""})
    result, reason = done.stdout.splitlines()
    assert result == "{1: 4, 2: 2} host"
    assert "CUDA" in reason
    assert done.stderr == ""


def test_the_bandwidth_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    done = STATUS.cudaSuccess
    # of an H100 SXM, kHz and bits
    attributes = {
        runtime.cudaDeviceAttr.cudaDevAttrMemoryClockRate: 2_619_000,
        runtime.cudaDeviceAttr.cudaDevAttrGlobalMemoryBusWidth: 5_120,
    }
    properties = SimpleNamespace(
        name=b"NVIDIA H100 80GB HBM3\0",
        major=9,
        minor=0,
        multiProcessorCount=132,
        sharedMemPerBlockOptin=232_448,
        l2CacheSize=52_428_800,
    )
    monkeypatch.setattr(runtime, "cudaGetDeviceProperties", lambda ordinal: (done, properties))
    monkeypatch.setattr(
        runtime, "cudaDeviceGetAttribute", lambda of, ordinal: (done, attributes[of])
    )
    h100 = driver._device.__wrapped__(0)
    assert h100.bandwidth == pytest.approx(3_352, abs=1)
    assert h100 == Device(
        0, "NVIDIA H100 80GB HBM3", "sm_90", 132, 232_448, 52_428_800, h100.bandwidth
    )


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
    assert watch.milliseconds() == {"fill": 0.5}
    assert sorted(gone) == list(range(9)) == list(range(next(made)))
    assert watch.milliseconds() == {}
    assert len(gone) == 9


class Memory:
    """A driver whose device is the host's memory, and which says where copies went."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pinned: int) -> None:
        from cuda.bindings import driver as bindings

        self.status, self.refusal = bindings.CUresult, "CUDA_ERROR_OUT_OF_MEMORY"
        self.pinned, self.targets, self.kept = pinned, list[int](), list[Any]()
        for name in ("cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuMemHostAlloc"):
            monkeypatch.setattr(bindings, name, getattr(self, name))
        monkeypatch.setattr(driver, "_landings", queue.SimpleQueue())

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, int]:
        if len(self.kept) == self.pinned:
            return getattr(self.status, self.refusal), 0
        self.kept.append(ctypes.create_string_buffer(size))
        return self.status.CUDA_SUCCESS, ctypes.addressof(self.kept[-1])

    def cuMemcpyDtoHAsync(self, target: int, source: int, size: int, stream: int) -> tuple[Any]:
        self.targets.append(target)
        ctypes.memmove(target, source, size)
        return (self.status.CUDA_SUCCESS,)

    def cuStreamSynchronize(self, stream: int) -> tuple[Any]:
        return (self.status.CUDA_SUCCESS,)

    def read(self, words: int) -> bool:
        """Read some words back; whether they came through pinned memory."""
        source = (ctypes.c_uint32 * words)(*range(words))
        into = (ctypes.c_uint32 * words)()
        driver.read_back(ctypes.addressof(source), into, 0)
        assert list(into) == list(range(words))
        return self.targets[-1] in map(ctypes.addressof, self.kept)


def test_what_is_read_back_comes_through_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is used again; large reads, and those of a host that has none, go without."""
    memory = Memory(monkeypatch, pinned=1)
    assert memory.read(7)
    assert memory.read(driver._LANDING_BYTES // 4)
    assert not memory.read(driver._LANDING_BYTES // 4 + 1)
    assert len(memory.kept) == 1
    taken = driver._landing()
    assert taken is not None
    # another thread has it
    assert not memory.read(7)
    driver._landings.put(taken)
    assert memory.read(7)
    assert len(memory.kept) == 1


def test_refusals_other_than_of_memory_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(monkeypatch, pinned=0)
    assert not memory.read(1)
    memory.refusal = "CUDA_ERROR_NOT_INITIALIZED"
    with pytest.raises(driver.DriverError, match="NOT_INITIALIZED"):
        memory.read(1)
