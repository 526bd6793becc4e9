"""Which of the kernels and libcudf makes a call's groups, told without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import dask
import pytest

from dask_gpuagg.cuda.runtime import background
from dask_gpuagg.cuda.runtime.background import KernelsCompiling
from dask_gpuagg.cuda.runtime.compiler import CompileError
from tests.cuda.specialisations import TABLE
from tests.engines.device import stand_ins
from tests.engines.device.stand_ins import without_rapids

QUERY = TABLE["5 aggregations by int64"]


@pytest.fixture
def calls() -> Iterator[ModuleType]:
    """The module, with stand-ins for what it imports of RAPIDS."""
    with without_rapids():
        yield stand_ins.module("aggregator")


@pytest.fixture
def run(calls: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Who was asked for the groups, in turn; the last one has made them."""

    def run(
        *, compiles: bool = True, full: bool = False, rows: int = 1_000, hashes: bool = True
    ) -> list[str]:
        asked: list[str] = []

        def by_kernels(*_: Any) -> str:
            asked.append("waits" if background.waits() else "kernels")
            if not background.waits():
                raise KernelsCompiling("being compiled")
            if not compiles:
                raise CompileError("no such instruction")
            return "groups"

        def by_libcudf(*_: Any) -> Any:
            asked.append("libcudf")
            if full:
                raise MemoryError
            return [], [], SimpleNamespace(groups=7)

        monkeypatch.setattr(calls, "_by_kernels", by_kernels)
        monkeypatch.setattr(calls.libcudf, "aggregate", by_libcudf)
        monkeypatch.setattr(calls.libcudf, "hashes", lambda _: hashes)
        monkeypatch.setattr(calls, "compile_ahead", lambda *a: asked.append(f"ahead {a[1:]}"))
        keys = [SimpleNamespace(size=lambda: rows)]
        try:
            with dask.config.set({"gpuagg.fallback": "silent"}):
                calls.grouped(QUERY, keys, [], calls.How())
        except MemoryError:
            asked.append("MemoryError")
        return asked

    return run


def test_libcudf_serves_while_kernels_compile(run: Callable[..., list[str]]) -> None:
    assert run() == ["kernels", "ahead (1000,)", "libcudf", "ahead (1000, 7)"]


def test_what_memory_lacks_for_waits(run: Callable[..., list[str]]) -> None:
    assert run(full=True) == ["kernels", "ahead (1000,)", "libcudf", "waits"]
    assert run(full=True, compiles=False) == [
        *("kernels", "ahead (1000,)", "libcudf", "waits", "libcudf", "MemoryError")
    ]


def test_many_rows_that_would_be_sorted_wait(run: Callable[..., list[str]]) -> None:
    many = {"rows": 10**8, "hashes": False}
    assert run(**many) == ["kernels", "waits"]
    assert run(**many, compiles=False) == ["kernels", "waits", "libcudf"]
    assert run(rows=10**8) == [*("kernels", f"ahead ({10**8},)", "libcudf", f"ahead ({10**8}, 7)")]


def test_calls_that_wait_are_not_served(run: Callable[..., list[str]]) -> None:
    with dask.config.set({"gpuagg.compile": "wait"}):
        assert run() == ["waits"]
        assert run(compiles=False) == ["waits", "libcudf"]
