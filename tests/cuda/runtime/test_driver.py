"""Machines without a GPU, a driver or the bindings: a reason, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event
from typing import Any

import pytest

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.query.instantiations import UNITS, TranslationUnit, first_units
from dask_gpuagg.cuda.runtime import compiler, driver
from dask_gpuagg.cuda.runtime.compiler import Compiled, CompileError, KernelsUnavailable
from dask_gpuagg.cuda.runtime.driver import Device, Kernels, kernels_of
from tests.cuda.specialisations import TABLE
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


# ---- kernels that are unavailable ---------------------------------------------------------------


def compile_by(
    monkeypatch: pytest.MonkeyPatch, cubin: Callable[[TranslationUnit, str], Compiled]
) -> None:
    """Compile by another function, alone and side by side."""
    monkeypatch.setattr(driver, "cubin", cubin)
    monkeypatch.setattr(compiler, "cubin", cubin)


def test_failed_unit_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(unit: TranslationUnit, architecture: str) -> Compiled:
        asked.append((unit, architecture))
        raise CompileError("error: not this one")

    compile_by(monkeypatch, refuse)
    query = TABLE["1 aggregation by int64"]
    kernels = Kernels(query, DEVICE)
    for _ in range(3):
        with pytest.raises(KernelsUnavailable, match="not this one"):
            kernels.launch("hgb", 1, 32, 0)
    for _ in range(2):
        with pytest.raises(KernelsUnavailable):
            kernels.prepare()
    # hgb, and then all others
    assert asked[0] == (query.source("hgb"), "sm_90")
    assert len(asked) == len(query.units)
    assert all((query.source(unit), "sm_90") in asked for unit in query.units)


def test_code_rejected_by_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver as bindings

    status = bindings.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU
    compile_by(monkeypatch, lambda unit, architecture: CODE)
    monkeypatch.setattr(bindings, "cuLibraryLoadData", lambda *_: (status, None))
    kernels = Kernels(TABLE["1 aggregation by int64"], DEVICE)
    with pytest.raises(KernelsUnavailable, match=r"driver does not take.*NO_BINARY_FOR_GPU"):
        kernels.prepare("core")


def test_load_without_memory_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver as bindings

    compiled, loaded = [], []
    full, success = bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY, bindings.CUresult.CUDA_SUCCESS
    answers = [(full, None), (full, None), (success, 7)]

    def compile_unit(unit: TranslationUnit, architecture: str) -> Compiled:
        compiled.append(unit)
        return CODE

    def load(code: bytes, *_: Any) -> Any:
        loaded.append(code)
        return answers[len(loaded) - 1]

    compile_by(monkeypatch, compile_unit)
    monkeypatch.setattr(bindings, "cuLibraryLoadData", load)
    kernels = Kernels(TABLE["1 aggregation by int64"], DEVICE)
    for _ in range(2):
        with pytest.raises(KernelsUnavailable, match="memory does not suffice"):
            kernels.prepare("core")
    kernels.prepare("core")
    kernels.prepare("core")
    # compiled once, loaded until it succeeds, and kept then
    assert len(compiled) == 1
    assert loaded == [b"code"] * 3


def test_units_of_several_queries_are_prepared_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver as bindings

    together, loaded = Barrier(4), []

    def wait(unit: TranslationUnit, architecture: str) -> Compiled:
        together.wait(30)
        return Compiled(unit.source.encode(), {})

    def load(code: bytes, *_: Any) -> Any:
        loaded.append(code)
        return bindings.CUresult.CUDA_SUCCESS, len(loaded)

    compile_by(monkeypatch, wait)
    monkeypatch.setattr(compiler, "_cores", lambda: 4)
    monkeypatch.setattr(bindings, "cuLibraryLoadData", load)
    queries = [TABLE[f"{n} by int64"] for n in ("1 aggregation", "5 aggregations")]
    kernels = [Kernels(query, DEVICE) for query in queries]
    for _ in range(2):  # the second time there is nothing left to do
        driver.prepare([(each, ("core", "hgb")) for each in kernels])
    expected = [query.source(unit).source.encode() for query in queries for unit in ("core", "hgb")]
    assert loaded == expected


def test_first_units_are_those_of_a_query() -> None:
    every = tuple(UNITS)
    few, many = first_units(every, sampled=False), first_units(every, sampled=True)
    assert few[0] == many[0] == "core"
    assert "sample" in set(many) - set(few)
    assert set(few) < set(many) < set(first_units(every, sampled=True, many_keys=True)) < set(every)
    strings, numbers = (TABLE[f"1 aggregation by {key}"].units for key in ("strings", "int64"))
    assert {"bytes", "verify"} <= set(first_units(strings, sampled=True)) <= set(strings)
    assert not {"bytes", "verify"} & set(first_units(numbers, sampled=True))


@pytest.mark.parametrize("call", ["cuLibraryGetKernel", "cuLaunchKernel"])
def test_lazy_load_without_memory(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver as bindings

    full, success = bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY, bindings.CUresult.CUDA_SUCCESS
    compile_by(monkeypatch, lambda unit, architecture: CODE)
    monkeypatch.setattr(bindings, "cuLibraryLoadData", lambda *_: (success, 7))
    monkeypatch.setattr(bindings, "cuLibraryGetKernel", lambda *_: (success, 7))
    monkeypatch.setattr(bindings, "cuKernelGetAttribute", lambda *_: (success, 0))
    monkeypatch.setattr(bindings, "cuKernelSetAttribute", lambda *_: (success,))
    monkeypatch.setattr(bindings, "cuLaunchKernel", lambda *_: (success,))
    kernels = Kernels(TABLE["1 aggregation by int64"], DEVICE)
    with monkeypatch.context() as patch:
        patch.setattr(bindings, call, lambda *_: (full, None))
        with pytest.raises(KernelsUnavailable, match="OUT_OF_MEMORY"):
            kernels.launch("hgb", 1, 32, 0)
    kernels.launch("hgb", 1, 32, 0)


def test_a_query_has_one_set_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_known", Cache(2))
    one, other, third = (
        TABLE[f"{n} aggregation{s} by int64"] for n, s in ((1, ""), (5, "s"), (20, "s"))
    )
    assert kernels_of(one, DEVICE) is kernels_of(one, DEVICE)
    assert driver.known() == (one,)
    assert kernels_of(other, DEVICE) is not kernels_of(one, DEVICE)
    kernels_of(third, DEVICE)
    # the one whose use lies back farthest is dropped
    assert driver.known() == (one, third)


# ---- threads -----------------------------------------------------------------------------------


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were launched, by a driver that does nothing."""
    from cuda.bindings import driver as bindings

    success, launched = bindings.CUresult.CUDA_SUCCESS, []

    def get(handle: int, name: bytes) -> tuple[Any, int]:
        launched.append(name.decode())
        return success, 7

    monkeypatch.setattr(bindings, "cuLibraryLoadData", lambda *_: (success, 7))
    monkeypatch.setattr(bindings, "cuLibraryGetKernel", get)
    monkeypatch.setattr(bindings, "cuKernelGetAttribute", lambda *_: (success, 0))
    monkeypatch.setattr(bindings, "cuKernelSetAttribute", lambda *_: (success,))
    monkeypatch.setattr(bindings, "cuLaunchKernel", lambda *_: (success,))
    return launched


def test_a_launch_waits_for_no_other_unit(
    loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling, finish = Event(), Event()

    def compile_unit(unit: TranslationUnit, architecture: str) -> Compiled:
        if "fold" in unit.kernels:
            compiling.set()
            assert finish.wait(60)
        return CODE

    compile_by(monkeypatch, compile_unit)
    kernels = Kernels(TABLE["1 aggregation by int64"], DEVICE)
    with ThreadPoolExecutor(1) as pool:
        fold = pool.submit(kernels.launch, "fold", 1, 32, 0)
        assert compiling.wait(60)
        kernels.launch("hgb", 1, 32, 0)  # compiled meanwhile
        kernels.launch("hgb", 1, 32, 0)  # and known
        assert not fold.done()
        finish.set()
        fold.result(60)
    assert loads == ["lowered hgb", "lowered fold"]


def test_threads_share_a_compilation(loads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    threads, compiled = 8, []
    start = Barrier(threads)

    def compile_unit(unit: TranslationUnit, architecture: str) -> Compiled:
        compiled.extend(unit.kernels)
        return CODE

    def launch(number: int) -> None:
        start.wait(60)
        kernels_of(TABLE["1 aggregation by int64"], DEVICE).launch("hgb", 1, 32, 0)

    monkeypatch.setattr(driver, "_known", Cache(2))
    compile_by(monkeypatch, compile_unit)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(launch, range(threads)))
    assert compiled == ["hgb"]
