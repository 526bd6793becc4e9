"""Queries whose kernels are compiled meanwhile: libcudf's answers first, then the kernels'."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

from dask_gpuagg import last_runs
from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.algorithms import select, sgb
from dask_gpuagg.cuda.runtime import kernels
from dask_gpuagg.cuda.runtime.compiler import CompileError, KernelsUnavailable
from tests.comparison import same
from tests.device.frames import on_device

ROWS = 200_000
QUERIES = {
    "sum": lambda d: d.groupby("k").v.sum(),
    "several": lambda d: d.groupby("k").agg({"v": ["sum", "min", "mean"], "i": ["count", "max"]}),
    "spread": lambda d: d.groupby("k").v.var(),
    "order": lambda d: d.groupby("k").agg({"i": ["first", "last"]}),
    "text": lambda d: d.groupby("s").v.sum(),
    "nulls kept": lambda d: d.groupby("n", dropna=False).v.sum(),
    "median": lambda d: d.groupby("k").v.median(),
    "nunique": lambda d: d.groupby("k").i.nunique(),
}


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raising: None) -> Iterator[None]:
    """No kernel has been compiled, by this process or another."""
    forget_kernels()
    monkeypatch.setattr(kernels, "_known", Cache(1024))
    with dask.config.set({"gpuagg.kernel-cache": str(tmp_path), "gpuagg.compile": "background"}):
        yield
    forget_kernels()


def forget_kernels() -> None:
    # those that serve all queries
    for algorithm in (select, sgb):
        algorithm._kernels.cache_clear()


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    made = pd.DataFrame(
        {
            "k": rng.integers(0, 300, ROWS),
            "s": rng.choice(["a", "bb", "a longer string that is hashed"], ROWS),
            "v": rng.normal(0, 1, ROWS),
            "i": rng.integers(0, 99, ROWS),
        }
    )
    made["n"] = made["k"].astype("Int64").mask(rng.random(ROWS) < 0.2)
    return made


def query_of(name: str) -> Any:
    return QUERIES[name](on_device(frame(), 1))


def check(made: Any, name: str) -> None:
    expected = QUERIES[name](frame())
    same(made.to_pandas(), expected, check_dtype=False, check_index_type=False, rtol=1e-9)


@pytest.mark.parametrize("name", QUERIES)
def test_the_first_call_is_served_by_libcudf_and_later_ones_by_kernels(
    name: str, fresh: None
) -> None:
    for _ in range(40):
        made = query_of(name).compute()
        check(made, name)
        run = last_runs()[-1]
        if run.decision.kernel != "libcudf":
            return
        assert "being compiled" in run.decision.why
        time.sleep(0.5)
    pytest.fail("the kernels were not compiled in twenty seconds")


def test_the_first_call_does_not_wait(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    caller, is_over = threading.current_thread(), threading.Event()

    def later(*_: Any) -> Any:
        assert threading.current_thread() is not caller, "compiled by the call itself"
        is_over.wait(60)
        raise KernelsUnavailable("the test is over")

    monkeypatch.setattr(kernels, "cubin", later)
    try:
        check(query_of("several").compute(), "several")
        assert last_runs()[-1].decision.kernel == "libcudf"
    finally:
        is_over.set()


def test_rows_for_which_memory_does_not_suffice_wait(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dask_gpuagg.engines.device import libcudf

    def full(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(libcudf, "aggregate", full)
    check(query_of("several").compute(), "several")
    assert last_runs()[-1].decision.kernel != "libcudf"


@pytest.mark.parametrize("name", ["median", "nunique"])
def test_many_rows_are_sorted_by_kernels_from_the_first_call_on(
    name: str, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libcudf's sort takes memory that may not suffice."""
    from dask_gpuagg.engines.device import library

    monkeypatch.setattr(library, "_WAITS_FROM_ROWS", 1)
    for by_libcudf in ("_quantile", "_distinct_values"):
        monkeypatch.setattr(library, by_libcudf, None)
    check(query_of(name).compute(), name)


def test_a_query_that_waits(fresh: None) -> None:
    with dask.config.set({"gpuagg.compile": "wait"}):
        check(query_of("sum").compute(), "sum")
    assert last_runs()[-1].decision.kernel != "libcudf"


def test_a_compiler_that_fails_meanwhile(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """libcudf serves in the end, also where the call has waited for the kernels."""
    from dask_gpuagg.engines.device import libcudf

    def refuse(*_: Any) -> Any:
        raise CompileError("no such instruction")

    aggregate, tries = libcudf.aggregate, []

    def once(*arguments: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise MemoryError
        return aggregate(*arguments)

    monkeypatch.setattr(kernels, "cubin", refuse)
    monkeypatch.setattr(libcudf, "aggregate", once)
    with dask.config.set({"gpuagg.fallback": "silent"}):
        check(query_of("spread").compute(), "spread")
    assert last_runs()[-1].decision.kernel == "libcudf"


def test_medians_without_a_compiler(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise CompileError("NVRTC cannot be loaded")

    monkeypatch.setattr(kernels, "cached", missing)
    with dask.config.set({"gpuagg.fallback": "silent"}):
        check(query_of("median").compute(), "median")
