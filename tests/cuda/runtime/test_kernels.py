"""Kernels that are compiled, loaded and launched, or cannot be, without a GPU."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Semaphore
from typing import Any

import pytest

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.query.instantiations import UNITS, TranslationUnit, first_units
from dask_gpuagg.cuda.runtime import compiler
from dask_gpuagg.cuda.runtime import kernels as kernels_module
from dask_gpuagg.cuda.runtime.compiler import (
    Compiled,
    CompileError,
    KernelsCompiling,
    KernelsUnavailable,
    waiting,
)
from dask_gpuagg.cuda.runtime.driver import Device
from dask_gpuagg.cuda.runtime.kernels import Kernels, kernels_of
from tests.cuda.specialisations import TABLE
from tests.running import run_python

bindings = pytest.importorskip("cuda.bindings.driver", reason="CUDA's bindings are not installed")
SUCCESS, FULL = bindings.CUresult.CUDA_SUCCESS, bindings.CUresult.CUDA_ERROR_OUT_OF_MEMORY

DEVICE = Device(0, "none", "sm_90", 132, 227 << 10)
CODE = Compiled(b"code", {kernel: f"lowered {kernel}" for kernel in ("hgb", "fold")})


# ---- kernels that are unavailable ---------------------------------------------------------------


def compile_by(
    monkeypatch: pytest.MonkeyPatch, cubin: Callable[[TranslationUnit, str], Compiled]
) -> Kernels:
    """The kernels of a query, compiled by another function whatever the user's cache holds."""
    monkeypatch.setattr(kernels_module, "cached", lambda *_: None)
    monkeypatch.setattr(kernels_module, "cubin", cubin)
    monkeypatch.setattr(compiler, "cubin", cubin)
    return Kernels(TABLE["1 aggregation by int64"], DEVICE)


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
    status = bindings.CUresult.CUDA_ERROR_NO_BINARY_FOR_GPU
    kernels = compile_by(monkeypatch, lambda unit, architecture: CODE)
    monkeypatch.setattr(bindings, "cuLibraryLoadData", lambda *_: (status, None))
    with pytest.raises(KernelsUnavailable, match=r"driver does not take.*NO_BINARY_FOR_GPU"):
        kernels.prepare("core")


def test_load_without_memory_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, loaded = [], []
    answers = [(FULL, None), (FULL, None), (SUCCESS, 7)]

    def compile_unit(unit: TranslationUnit, architecture: str) -> Compiled:
        compiled.append(unit)
        return CODE

    def load(code: bytes, *_: Any) -> Any:
        loaded.append(code)
        return answers[len(loaded) - 1]

    kernels = compile_by(monkeypatch, compile_unit)
    monkeypatch.setattr(bindings, "cuLibraryLoadData", load)
    for _ in range(2):
        with pytest.raises(KernelsUnavailable, match="memory does not suffice"):
            kernels.prepare("core")
    kernels.prepare("core")
    kernels.prepare("core")
    # compiled once, loaded until it succeeds, and kept then
    assert len(compiled) == 1
    assert loaded == [b"code"] * 3


def test_units_of_several_queries_are_prepared_together(monkeypatch: pytest.MonkeyPatch) -> None:
    together, loaded = Barrier(4), []

    def wait(unit: TranslationUnit, architecture: str) -> Compiled:
        together.wait(30)
        return Compiled(unit.source.encode(), {})

    def load(code: bytes, *_: Any) -> Any:
        loaded.append(code)
        return SUCCESS, len(loaded)

    compile_by(monkeypatch, wait)
    slots = Semaphore(4)
    monkeypatch.setattr(compiler, "_cores_free", lambda process: slots)
    monkeypatch.setattr(bindings, "cuLibraryLoadData", load)
    queries = [TABLE[f"{n} by int64"] for n in ("1 aggregation", "5 aggregations")]
    kernels = [Kernels(query, DEVICE) for query in queries]
    for _ in range(2):  # the second time there is nothing left to do
        kernels_module.prepare([(each, ("core", "hgb")) for each in kernels])
    expected = [query.source(unit).source.encode() for query in queries for unit in ("core", "hgb")]
    assert loaded == expected


def test_first_units_are_those_of_a_query() -> None:
    every = tuple(UNITS)
    few, many = first_units(every, sampled=False), first_units(every, sampled=True)
    assert few[0] == many[0] == "core"
    assert "sample" in set(many) - set(few)
    assert set(few) < set(many) < set(first_units(every, sampled=True, many_keys=True)) < set(every)
    strings, numbers = (TABLE[f"1 aggregation by {key}"].units for key in ("strings", "int64"))
    assert {"bytes", "words"} <= set(first_units(strings, sampled=True)) <= set(strings)
    assert not {"bytes", "words"} & set(first_units(numbers, sampled=True))


@pytest.mark.parametrize("call", ["cuLibraryGetKernel", "cuLaunchKernel"])
def test_lazy_load_without_memory(
    call: str, loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = compile_by(monkeypatch, lambda unit, architecture: CODE)
    with monkeypatch.context() as patch:
        patch.setattr(bindings, call, lambda *_: (FULL, None))
        with pytest.raises(KernelsUnavailable, match="OUT_OF_MEMORY"):
            kernels.launch("hgb", 1, 32, 0)
    kernels.launch("hgb", 1, 32, 0)


def test_a_query_has_one_set_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_module, "_known", Cache(2))
    one, other = (TABLE[f"{n} by int64"] for n in ("1 aggregation", "5 aggregations"))
    assert kernels_of(one, DEVICE) is kernels_of(one, DEVICE)
    assert kernels_of(other, DEVICE) is not kernels_of(one, DEVICE)
    assert set(kernels_module.known_queries()) == {one, other}


# ---- threads -----------------------------------------------------------------------------------


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were launched, by a driver that does nothing."""
    launched = []

    def get(handle: int, name: bytes) -> tuple[Any, int]:
        launched.append(name.decode())
        return SUCCESS, 7

    monkeypatch.setattr(bindings, "cuLibraryLoadData", lambda *_: (SUCCESS, 7))
    monkeypatch.setattr(bindings, "cuLibraryGetKernel", get)
    monkeypatch.setattr(bindings, "cuKernelGetAttribute", lambda *_: (SUCCESS, 0))
    monkeypatch.setattr(bindings, "cuKernelSetAttribute", lambda *_: (SUCCESS,))
    monkeypatch.setattr(bindings, "cuLaunchKernel", lambda *_: (SUCCESS,))
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

    kernels = compile_by(monkeypatch, compile_unit)
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

    monkeypatch.setattr(kernels_module, "_known", Cache(2))
    compile_by(monkeypatch, compile_unit)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(launch, range(threads)))
    assert compiled == ["hgb"]


# ---- the background ----------------------------------------------------------------------------


@pytest.fixture
def finish(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Lets the compiler finish; nothing is in the disk cache."""
    monkeypatch.setattr(kernels_module, "cached", lambda *_: None)
    event = Event()
    yield event
    event.set()


def test_a_call_that_does_not_wait_is_served_later(
    loads: list[str], finish: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile_unit(unit: TranslationUnit, architecture: str) -> Compiled:
        compiled.extend(unit.kernels)
        assert finish.wait(60)
        return CODE

    kernels = compile_by(monkeypatch, compile_unit)
    with waiting(False):
        for _ in range(2):
            with pytest.raises(KernelsCompiling, match="unit hgb"):
                kernels.launch("hgb", 1, 32, 0)
        begun = kernels._code["hgb"]
        finish.set()
        begun.result(60)
        kernels.launch("hgb", 1, 32, 0)
    assert (loads, compiled) == (["lowered hgb"], ["hgb"])


def test_a_call_that_waits_joins_what_has_begun(
    loads: list[str], finish: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile_unit(unit: TranslationUnit, architecture: str) -> Compiled:
        compiled.append(threading.current_thread().name)
        assert finish.wait(60)
        return CODE

    kernels = compile_by(monkeypatch, compile_unit)
    assert not kernels.begin("hgb")
    threading.Timer(0.1, finish.set).start()
    kernels.launch("hgb", 1, 32, 0)
    assert loads == ["lowered hgb"]
    (thread,) = compiled
    assert thread.startswith("gpuagg-compile")


def test_what_the_disk_cache_has_is_not_waited_for(
    loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels_module, "cached", lambda *_: CODE)
    with waiting(False):
        Kernels(TABLE["1 aggregation by int64"], DEVICE).launch("hgb", 1, 32, 0)
    assert loads == ["lowered hgb"]


def test_a_failure_in_the_background_is_one_for_later_calls(
    finish: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile_unit(unit: TranslationUnit, architecture: str) -> Compiled:
        raise CompileError("no such instruction")

    kernels = compile_by(monkeypatch, compile_unit)
    kernels.begin("hgb")
    assert kernels._code["hgb"].exception(60)
    with waiting(False), pytest.raises(KernelsUnavailable, match="no such instruction") as raised:
        kernels.launch("hgb", 1, 32, 0)
    assert not isinstance(raised.value, KernelsCompiling)


ENDS = """
import time
from dask_gpuagg.cuda.runtime import compiler

def work():
    time.sleep(0.2)
    print("done", flush=True)

for _ in range(100):
    compiler.submit(work)
time.sleep(0.3)
"""


def test_a_program_ends_without_what_has_not_begun() -> None:
    ran = run_python("-c", ENDS)
    assert 0 < len(ran.stdout.splitlines()) < 100
    assert ran.stderr == ""


# threads of Dask's workers are daemons, and threads are what those are that start them
BEGINS = """
import threading, time
from dask_gpuagg.cuda.runtime import compiler

def work():
    begun.set()
    time.sleep(0.5)
    print("done", flush=True)

begun = threading.Event()
threading.Thread(target=compiler.submit, args=[work], daemon=True).start()
begun.wait(60)
"""


def test_a_program_ends_after_what_a_daemon_thread_has_begun() -> None:
    ran = run_python("-c", BEGINS)
    assert (ran.stdout, ran.stderr) == ("done\n", "")


def test_a_missing_compiler_is_a_failure_of_the_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise CompileError("NVRTC cannot be loaded")

    monkeypatch.setattr(kernels_module, "cached", missing)
    kernels = Kernels(TABLE["1 aggregation by int64"], DEVICE)
    assert kernels.begin("hgb")
    with waiting(False), pytest.raises(KernelsUnavailable, match="cannot be loaded") as raised:
        kernels.launch("hgb", 1, 32, 0)
    assert not isinstance(raised.value, KernelsCompiling)


def test_what_fails_by_another_error_is_tried_again_by_the_call(
    loads: list[str], finish: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []

    def compile_unit(unit: TranslationUnit, architecture: str) -> Compiled:
        tries.append(threading.current_thread().name)
        if len(tries) == 1:
            raise OSError("the disk is full")
        return CODE

    kernels = compile_by(monkeypatch, compile_unit)
    kernels.begin("hgb")
    assert isinstance(kernels._code["hgb"].exception(60), OSError)
    with waiting(False):
        kernels.launch("hgb", 1, 32, 0)
    assert loads == ["lowered hgb"]
    assert tries[1] == threading.current_thread().name
