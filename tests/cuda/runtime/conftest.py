"""Fixtures of the kernel cache."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dask_gpuagg.cuda.query.instantiations import TranslationUnit
from dask_gpuagg.cuda.runtime import compiler, disk_cache
from dask_gpuagg.cuda.runtime.compiler import Compiled, compile_source, headers


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The calls of NVRTC."""
    made = []

    def counted(unit: TranslationUnit, architecture: str) -> Compiled:
        made.append((unit.source, architecture))
        return compile_source(unit, architecture)

    monkeypatch.setattr(compiler, "compile_source", counted)
    return made


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing remembered of the files of ``kernels/``, of NVRTC or of warnings given."""
    remembered: Sequence[Any] = (
        *(headers, compiler.sources_hash),
        *(compiler.compiler_version, disk_cache._warn),
    )
    for function in remembered:
        function.cache_clear()
    yield
    for function in remembered:
        function.cache_clear()
