"""Columns of the device to host memory, by copies alone: nothing is allocated on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pylibcudf as plc
from pylibcudf.types import TypeId
from pylibcudf.utils import _get_stream

from dask_gpuagg.cuda.runtime.driver import bindings, checked
from dask_gpuagg.engines.device.layout import CTYPES, masked

Fetch = Callable[[int, int], npt.NDArray[np.uint8]]

# NumPy's names of the values that the kernels read.
_NUMBERS = {
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8",
    "u16": "uint16", "u32": "uint32", "u64": "uint64", "f32": "float32", "f64": "float64",
}  # fmt: skip


def on_host(
    column: plc.Column, fetch: Fetch
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Values of fixed width, and which are not null; None where all are.

    Parameters
    ----------
    column : pylibcudf.Column
        Times are returned as ticks.
    fetch : callable
        Copies so many bytes from an address of the device.

    Returns
    -------
    values : ndarray
    valid : ndarray of bool, optional
    """
    kind = column.type().id()
    dtype = np.dtype("bool" if kind is TypeId.BOOL8 else _NUMBERS[CTYPES[kind]])
    rows, offset = column.size(), column.offset()
    data = column.data()
    address = data.ptr + offset * dtype.itemsize if data is not None and rows else 0
    values = fetch(address, rows * dtype.itemsize).view(dtype)
    if not masked(column):
        return values, None
    bits = np.unpackbits(_mask(column, fetch), bitorder="little")
    return values, bits[offset : offset + rows].astype(bool)


def text_on_host(column: plc.Column, fetch: Fetch) -> pa.Array:
    """A column of text as an array of Arrow."""
    rows, offset = column.size(), column.offset()
    if not rows or not column.num_children():
        return pa.nulls(rows, pa.string()) if rows else pa.array([], pa.string())
    child = column.child(0)
    large = child.type().id() is TypeId.INT64
    width = 8 if large else 4
    ends = fetch(child.data().ptr, (offset + rows + 1) * width)
    size = int(ends.view(np.int64 if large else np.int32)[-1])
    data = column.data()
    characters = fetch(data.ptr if data is not None and size else 0, size)
    mask = pa.py_buffer(_mask(column, fetch)) if masked(column) else None
    buffers = [mask, pa.py_buffer(ends), pa.py_buffer(characters)]
    kind = pa.large_string() if large else pa.string()
    return pa.Array.from_buffers(kind, rows, buffers, -1, offset)


def _mask(column: plc.Column, fetch: Fetch) -> npt.NDArray[np.uint8]:
    """The validity bits, those of the rows before a slice included."""
    return fetch(column.null_mask().ptr, (column.offset() + column.size() + 7) // 8)


def fetched(address: int, size: int) -> npt.NDArray[np.uint8]:
    """Bytes of the device, in one copy."""
    made = np.empty(size, np.uint8)
    if size:
        driver, stream = bindings(), _get_stream().__cuda_stream__()[1]
        checked(driver.cuMemcpyDtoHAsync(made.ctypes.data, address, size, stream))
        checked(driver.cuStreamSynchronize(stream))
    return made
