"""Modules of the device engine, imported with stand-ins for RAPIDS: without a GPU."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import pytest

from dask_gpuagg.engines import device

_PREFIX = f"{device.__name__}."
RAPIDS = (
    "cudf", "cudf.core", "cudf.core.buffer", "cudf.core.column", "cudf.core.column_accessor",
    "cudf.utils", "cudf.utils.dtypes", "cupy", "pylibcudf", "pylibcudf.types", "pylibcudf.utils",
    "rmm", "rmm.pylibrmm", "rmm.pylibrmm.stream", "dask_cudf", "dask_cudf.io",
    "dask_cudf.io.parquet",
)  # fmt: skip


@contextmanager
def without_rapids(**stand_ins: Any) -> Iterator[None]:
    """Import modules of the engine anew inside, and forget them after.

    Parameters
    ----------
    **stand_ins
        By the name of the module, with ``__`` for each dot; all others take any use.
    """
    before = _taken_away()
    with pytest.MonkeyPatch.context() as patch:
        for name in RAPIDS:
            patch.setitem(sys.modules, name, stand_ins.get(name.replace(".", "__"), MagicMock()))
        yield
    _taken_away()  # they hold on to the stand-ins
    for name, module in before.items():
        sys.modules[name] = module
        setattr(device, name.removeprefix(_PREFIX), module)


def _taken_away() -> dict[str, ModuleType]:
    """The modules that are imported, which then are not any more."""
    names = [name for name in sys.modules if name.startswith(_PREFIX)]
    for name in names:
        vars(device).pop(name.removeprefix(_PREFIX), None)
    return {name: sys.modules.pop(name) for name in names}


def module(name: str) -> ModuleType:
    return importlib.import_module(f"{_PREFIX}{name}")
