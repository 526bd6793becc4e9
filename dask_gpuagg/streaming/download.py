"""Columns of the device to host memory, by copies alone: nothing is allocated on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pylibcudf as plc
from pylibcudf.types import TypeId
from pylibcudf.utils import _get_stream

from dask_gpuagg.cuda.runtime.driver import bindings, checked
from dask_gpuagg.engines.device.columns import CTYPES, masked

# Addresses of the device, and bytes at each, to one array.
Places = Sequence[tuple[int, int]]
Fetch = Callable[[Places], npt.NDArray[np.uint8]]

# NumPy's names of the values that the kernels read.
_NUMBERS = {
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64", "f32": "float32", "f64": "float64",
}  # fmt: skip


def on_host(
    columns: Sequence[plc.Column], fetch: Fetch
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Values of fixed width, and which are not null; None where all are.

    Parameters
    ----------
    columns : sequence of pylibcudf.Column
        Of one type, one behind the other. Times are returned as ticks.
    fetch : callable
        Copies bytes from places of the device.

    Returns
    -------
    values : ndarray
    valid : ndarray of bool, optional
    """
    kind = columns[0].type().id()
    dtype = np.dtype("bool" if kind is TypeId.BOOL8 else _NUMBERS[CTYPES[kind]])
    values = fetch([_values(column, dtype.itemsize) for column in columns]).view(dtype)
    if not any(map(masked, columns)):
        return values, None
    return values, np.concatenate([_valid(column, fetch) for column in columns])


def _values(column: plc.Column, width: int) -> tuple[int, int]:
    rows, data = column.size(), column.data()
    address = data.ptr + column.offset() * width if data is not None and rows else 0
    return address, rows * width


def _valid(column: plc.Column, fetch: Fetch) -> npt.NDArray[np.bool_]:
    rows, offset = column.size(), column.offset()
    if not masked(column):
        return np.ones(rows, bool)
    bits = np.unpackbits(_mask(column, fetch), bitorder="little")
    return bits[offset : offset + rows].astype(bool)


def text_on_host(columns: Sequence[plc.Column], fetch: Fetch) -> pa.ChunkedArray:
    """Columns of text, one behind the other, as Arrow has them."""
    texts = [_text(column, fetch).cast(pa.large_string()) for column in columns]
    return pa.chunked_array(texts)


def _text(column: plc.Column, fetch: Fetch) -> pa.Array:
    rows, offset = column.size(), column.offset()
    if not rows or not column.num_children():
        return pa.nulls(rows, pa.string()) if rows else pa.array([], pa.string())
    child = column.child(0)
    large = child.type().id() is TypeId.INT64
    width = 8 if large else 4
    ends = fetch([(child.data().ptr, (offset + rows + 1) * width)])
    size = int(ends.view(np.int64 if large else np.int32)[-1])
    data = column.data()
    characters = fetch([(data.ptr if data is not None and size else 0, size)])
    mask = pa.py_buffer(_mask(column, fetch)) if masked(column) else None
    buffers = [mask, pa.py_buffer(ends), pa.py_buffer(characters)]
    kind = pa.large_string() if large else pa.string()
    return pa.Array.from_buffers(kind, rows, buffers, -1, offset)


def _mask(column: plc.Column, fetch: Fetch) -> npt.NDArray[np.uint8]:
    """The validity bits, those of the rows before a slice included."""
    return fetch([(column.null_mask().ptr, (column.offset() + column.size() + 7) // 8)])


def fetched(places: Places) -> npt.NDArray[np.uint8]:
    """Bytes of the device, in a copy for each place."""
    made = np.empty(sum(size for _, size in places), np.uint8)
    driver, stream = bindings(), _get_stream().__cuda_stream__()[1]
    at = made.ctypes.data
    for address, size in places:
        if size:
            checked(driver.cuMemcpyDtoHAsync(at, address, size, stream))
        at += size
    checked(driver.cuStreamSynchronize(stream))
    return made
