"""The columns of one group-by in device memory, and calls of its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.call.call import Call, ColumnStruct
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import PRESENT
from dask_gpuagg.cuda.runtime.driver import Device, Kernels, Stopwatch, kernels_of


class DeviceColumn(NamedTuple):
    """A column in device memory.

    Attributes
    ----------
    data : int
        Address of the values (of the offsets, for strings).
    mask : int
        Address of the validity bits, 0 without.
    offset : int
        Rows to skip in both.
    characters, size : int
        Address of a string column's bytes, and how many they are.
    nulls : int
        Rows without a value.
    """

    data: int
    mask: int = 0
    offset: int = 0
    characters: int = 0
    size: int = 0
    nulls: int = 0


@dataclass(frozen=True)
class Columns:
    """What the calls of one group-by have in common, whatever represents the keys."""

    keys: Sequence[DeviceColumn]
    inputs: Sequence[DeviceColumn]
    rows: int
    device: Device
    stream: Any
    stopwatch: Stopwatch | None
    about: tuple[str, ...] = ()

    def call(self, query: Query, extra: Sequence[ColumnStruct] = (), codes: Any = None) -> Call:
        """A call of the kernels of a query, with the columns that represent its keys."""
        query, kernels = prepared(query, self.device)
        flat = []
        for key, part in zip(self.keys, query.keys, strict=True):
            flat.append(ColumnStruct(key.data, key.mask, key.offset))
            if part.string:
                flat.append(ColumnStruct(key.characters, 0, key.size))
        flat += [ColumnStruct(c.data, c.mask, c.offset) for c in self.inputs]
        flat += extra or [ColumnStruct() for _ in range(query.extra_columns)]
        columns = (ColumnStruct * max(len(flat), 1))(*flat)
        handle = self.stream.__cuda_stream__()[1]
        nulls = [
            c.nulls for c, v in zip(self.inputs, query.inputs, strict=True) if v.ctype != PRESENT
        ]
        return Call(
            query=query,
            kernels=kernels,
            device=self.device,
            columns=columns,
            rows=self.rows,
            values=query.values - sum(nulls) / max(self.rows, 1),
            stream=self.stream,
            handle=handle,
            stopwatch=self.stopwatch,
            codes=codes,
            about=self.about,
        )


_prepared: Cache[tuple[Query, Device], tuple[Query, Kernels]] = Cache(1024)


def prepared(query: Query, device: Device) -> tuple[Query, Kernels]:
    """The kernels of a query, and the query as first seen, with the properties it has cached."""
    return _prepared.of((query, device), lambda: (query, kernels_of(query, device)))


def forget_prepared() -> None:
    """Ask for the kernels of all queries again."""
    _prepared.clear()
