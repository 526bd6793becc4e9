"""The engines: partial, combine and finalize on the host and on the device."""

from __future__ import annotations

import importlib
from collections.abc import Hashable
from types import ModuleType
from typing import Any

from dask_gpuagg.engines.host import engine, narrowed

HOST, DEVICE = "host", "device"
_BY_LIBRARY = {"pandas": HOST, "cudf": DEVICE}


def engine_name(data: Any) -> str | None:
    """Name of the engine that takes a frame, a column or a partial; None if none does.

    Parameters
    ----------
    data : DataFrame, Series or dict of DataFrame
    """
    if isinstance(data, dict):
        data = next(iter(data.values()))
    return _BY_LIBRARY.get(type(data).__module__.partition(".")[0])


def engine_of(data: Any) -> ModuleType:
    """The engine of a frame, a column or a partial, as a module.

    Parameters
    ----------
    data : DataFrame, Series or dict of DataFrame
    """
    return _device("engine") if engine_name(data) == DEVICE else engine


def _device(name: str) -> ModuleType:
    """A module of the device engine. It imports cuDF, which only users of cuDF have."""
    # not from sys.modules: a module is there while another thread still imports it
    return importlib.import_module(f"dask_gpuagg.engines.device.{name}")


def narrowing_of(data: Any) -> ModuleType:
    """The module of an engine that narrows quantiles; see ``engine_of``."""
    return _device("narrowed") if engine_name(data) == DEVICE else narrowed


def dtypes_of(frame: Any) -> list[tuple[Hashable, Any]]:
    """Label and dtype of each column of a DataFrame, in their order."""
    if engine_name(frame) == DEVICE:
        # cuDF makes a pandas object of its dtypes, which takes about a millisecond
        return [(label, column.dtype) for label, column in frame._data.items()]
    return list(frame.dtypes.items())


def column_of(frame: Any, label: Any) -> Any:
    """A column of a frame, as a Series.

    Parameters
    ----------
    frame : DataFrame
    label : label
    """
    if engine_name(frame) == DEVICE:
        return _device("columns").column_at(frame, label)
    return frame[label]
