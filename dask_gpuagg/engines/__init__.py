"""The engines: partial, combine and finalize on the host and on the device."""

from __future__ import annotations

import importlib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from dask_gpuagg.engines.host import engine, narrowed, stacking
from dask_gpuagg.engines.protocol import Engine, Narrowing

if TYPE_CHECKING:
    from dask_gpuagg.engines.device import engine as device_engine
    from dask_gpuagg.engines.device import narrowed as device_narrowed

    # modules that are loaded by name are checked here
    _engine: Engine = device_engine
    _narrowing: Narrowing = device_narrowed

HOST, DEVICE = "host", "device"
_BY_LIBRARY = {"pandas": HOST, "cudf": DEVICE}


def engine_name(data: Any) -> str | None:
    """Name of the engine that takes a frame, a column or a partial; None if none does."""
    if isinstance(data, dict):
        data = next(iter(data.values()))
    return _BY_LIBRARY.get(type(data).__module__.partition(".")[0])


def engine_of(data: Any) -> Engine:
    """The engine of a frame, a column or a partial."""
    result: Engine = _device("engine") if engine_name(data) == DEVICE else engine
    return result


def narrowing_of(data: Any) -> Narrowing:
    """Module that narrows quantiles for the engine of a frame; see ``engine_of``."""
    result: Narrowing = _device("narrowed") if engine_name(data) == DEVICE else narrowed
    return result


def _device(name: str) -> Any:
    """A module of the device engine. It imports cuDF, which only users of cuDF have."""
    # not from sys.modules: a module is there while another thread still imports it
    return importlib.import_module(f"dask_gpuagg.engines.device.{name}")


def dtypes_of(frame: Any) -> list[tuple[Hashable, Any]]:
    """Label and dtype of each column of a DataFrame, in their order."""
    if engine_name(frame) == DEVICE:
        # cuDF makes a pandas object of its dtypes, which takes about a millisecond
        return [(label, column.dtype) for label, column in frame._data.items()]
    return list(frame.dtypes.items())


def columns_of(frame: Any, labels: Sequence[Any]) -> Sequence[Any]:
    """Columns of a frame, as Series, by their labels."""
    if engine_name(frame) == DEVICE:
        return [_device("columns").column_at(frame, label) for label in labels]
    return stacking.columns_of(frame, labels)
