"""What the tests of the kernel cache share."""

import warnings
from pathlib import Path
from typing import Any

import dask

from dask_gpuagg.cuda.query.instantiations import TranslationUnit
from dask_gpuagg.cuda.runtime.compiler import cubin

TINY = TranslationUnit(
    '#include "core/types.cuh"\nnamespace gpuagg {\n__global__ void tiny() {}\n}\n',
    {"tiny": "gpuagg::tiny"},
)


def other(unit: TranslationUnit, number: int = 0) -> TranslationUnit:
    """The same kernels from another source."""
    return unit._replace(source=f"{unit.source}// {number}\n")


def entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def warned(setting: Any) -> list[str]:
    """The warnings of two sources, each compiled twice."""
    with (
        dask.config.set({"gpuagg.kernel-cache": setting}),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for unit in (TINY, TINY, other(TINY), other(TINY)):
            assert cubin(unit, "sm_90").code.startswith(b"\x7fELF")
    return [str(w.message) for w in caught]
