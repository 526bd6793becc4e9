"""The columns of one group-by in device memory, and calls of its kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.call.call import Call, NeedsWholeColumns, Piece
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import ColumnStruct
from dask_gpuagg.cuda.query.types import PRESENT
from dask_gpuagg.cuda.runtime.driver import Device, Stopwatch
from dask_gpuagg.cuda.runtime.kernels import Kernels, kernels_of


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


class Part(NamedTuple):
    """Keys and inputs of some rows, columns as the query describes them."""

    keys: Sequence[DeviceColumn]
    inputs: Sequence[DeviceColumn]
    rows: int


@dataclass(frozen=True)
class Columns:
    """What the calls of one group-by have in common, whatever represents the keys.

    Attributes
    ----------
    parts : sequence of Part
        One behind the other, the rows.
    least : int
        How many groups there are at least.
    meanwhile : callable, optional
        Called once by each call while its kernels run.
    """

    parts: Sequence[Part]
    device: Device
    stream: Any
    stopwatch: Stopwatch | None
    about: tuple[str, ...] = ()
    least: int = 0
    meanwhile: Callable[[], None] | None = None

    @cached_property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts)

    def call(self, query: Query, extra: Sequence[ColumnStruct] = (), codes: Any = None) -> Call:
        """A call of the kernels of a query, with the columns that represent its keys.

        Raises
        ------
        NeedsWholeColumns
            For several parts of a query whose kernels look at rows again.
        """
        parts = [part for part in self.parts if part.rows] or self.parts[:1]
        if len(parts) > 1 and not query.form.is_read_once:
            raise NeedsWholeColumns(f"keys that are {query.form.name}")
        query, kernels = prepared(query, self.device)
        pieces, first = [], 0
        for part in parts:
            columns = _structs(query, part, extra, first)
            pieces.append(Piece(columns, first, first + part.rows))
            first += part.rows
        handle = self.stream.__cuda_stream__()[1]
        nulls = sum(
            column.nulls
            for part in parts
            for column, value in zip(part.inputs, query.inputs, strict=True)
            if value.ctype != PRESENT
        )
        return Call(
            query=query,
            kernels=kernels,
            device=self.device,
            pieces=tuple(pieces),
            rows=self.rows,
            values=query.values - nulls / max(self.rows, 1),
            stream=self.stream,
            handle=handle,
            stopwatch=self.stopwatch,
            codes=codes,
            about=self.about,
            least=self.least,
            meanwhile=self.meanwhile,
        )


def _structs(
    query: Query, part: Part, extra: Sequence[ColumnStruct], first: int
) -> ctypes.Array[ColumnStruct]:
    """The columns of a part whose rows are numbered from ``first`` on."""
    flat = []
    for key, kind in zip(part.keys, query.keys, strict=True):
        flat.append(ColumnStruct(key.data, key.mask, key.offset - first))
        if kind.string:
            flat.append(ColumnStruct(key.characters, 0, key.size))
    flat += [ColumnStruct(c.data, c.mask, c.offset - first) for c in part.inputs]
    words = query.form.made_words
    flat += [ColumnStruct() for _ in range(words)]
    flat += extra or [ColumnStruct() for _ in range(query.extra_columns - words)]
    return (ColumnStruct * max(len(flat), 1))(*flat)


_prepared: Cache[tuple[Query, Device], tuple[Query, Kernels]] = Cache(1024)


def prepared(query: Query, device: Device) -> tuple[Query, Kernels]:
    """The kernels of a query, and the query as first seen, with the properties it has cached."""
    return _prepared.of((query, device), lambda: (query, kernels_of(query, device)))


def forget_prepared() -> None:
    """Ask for the kernels of all queries again."""
    _prepared.clear()
