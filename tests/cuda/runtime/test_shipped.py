"""Machine code that a wheel brings: who takes it, and who does not."""

import functools
from pathlib import Path

import pytest

from dask_gpuagg.cuda import warm
from dask_gpuagg.cuda.query.instantiations import TranslationUnit
from dask_gpuagg.cuda.runtime import compiler
from dask_gpuagg.cuda.runtime.compiler import CompileError, cached, compile_source

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC's bindings are not installed")

TINY = TranslationUnit("__global__ void tiny() {}\n", {"tiny": "tiny"})
OTHER = TranslationUnit("__global__ void other() {}\n", {"other": "other"})
ABSENT = TranslationUnit("__global__ void absent() {}\n", {"absent": "absent"})


@pytest.fixture
def packed(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of archives, and nothing in the cache."""
    folder = tmp_path / "cubins"
    monkeypatch.setattr(warm, "work", lambda everything: {"a": [TINY], "b": [OTHER, TINY]})
    assert warm.main(["--architecture", "sm_80", "--pack", str(folder)]) == 0
    for entry in cache.iterdir():
        entry.unlink()
    monkeypatch.setattr(compiler, "SHIPPED", folder)
    monkeypatch.setattr(compiler, "driver_version", lambda: 99_000)
    for read in ("_index", "_archive"):  # without what is cached of the wheel
        function = getattr(compiler, read).__wrapped__
        monkeypatch.setattr(compiler, read, functools.cache(function))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_86"])
def test_no_compiler_is_needed(
    packed: None, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on later architectures of a generation."""
    expected = [(unit, compile_source(unit, "sm_80")) for unit in (TINY, OTHER)]

    def missing() -> str:
        raise CompileError("no NVRTC")

    monkeypatch.setattr(compiler, "compiler_version", missing)
    for unit, compiled in expected:
        assert cached(unit, architecture) == compiled
    with pytest.raises(CompileError, match="no NVRTC"):
        cached(ABSENT, architecture)


def test_others_are_compiled(packed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another generation, another query, other kernels, and for an older driver."""
    assert cached(TINY, "sm_90") is None
    assert cached(ABSENT, "sm_80") is None
    assert cached(TINY, "sm_80") is not None
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "sources_hash", lambda: "other kernels")
        assert cached(TINY, "sm_80") is None
    monkeypatch.setattr(compiler, "driver_version", lambda: 12_000)
    assert cached(TINY, "sm_80") is None
