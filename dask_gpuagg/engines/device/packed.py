"""Tables of the device as one buffer each, by libcudf, with what cuDF knows of their columns.

A table of cuDF has a buffer for each column and each null mask, and each is a message of its own
where a partial travels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import cudf
import cupy as cp
import numpy as np
import pandas as pd
import pylibcudf as plc
import rmm
from cudf.core.column import ColumnBase

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.device.groups import as_column, frame_of


class _Categories(NamedTuple):
    """Stands for a dtype of categories, whose values are a table of their own."""

    ordered: bool


class Described(NamedTuple):
    """What is packed, without its values.

    Attributes
    ----------
    tables : tuple of (str, tuple of (str, dtype))
        Name of each table, and label and dtype of its columns.
    categories : tuple of dtype
        Of the values of categories, in the order in which columns of categories come.
    metadata : tuple of bytes
        libcudf's, one for each buffer: those of the tables, then those of the categories.
    """

    tables: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
    categories: tuple[Any, ...]
    metadata: tuple[bytes, ...]


def may_be_packed(tables: dict[str, Any]) -> bool:
    """Whether all columns are of dtypes that need no more than is described."""
    return all(_is_described(c.dtype) for table in tables.values() for c in _columns(table))


def pack(tables: dict[str, Any]) -> tuple[Described, list[Any]]:
    """Tables as buffers of the device.

    Parameters
    ----------
    tables : dict of str to DataFrame
        For which ``may_be_packed`` holds.

    Returns
    -------
    described : Described
    buffers : list of pylibcudf.gpumemoryview
    """
    wholes = [[c.to_pylibcudf() for c in _columns(table)] for table in tables.values()]
    found = [c.dtype.categories._column for c in _of_categories(tables)]
    wholes += [[column.to_pylibcudf()] for column in found]
    made = [plc.contiguous_split.pack(plc.Table(columns)).release() for columns in wholes]
    described = Described(
        tuple((name, tuple(_described(table))) for name, table in tables.items()),
        tuple(column.dtype for column in found),
        tuple(bytes(metadata) for metadata, _ in made),
    )
    return described, [buffer for _, buffer in made]


def unpack(described: Described, buffers: Sequence[Any]) -> dict[str, Any]:
    """The tables again.

    Parameters
    ----------
    described : Described
    buffers : sequence
        Of the device, as ``pack`` has made them or copies of these.
    """
    wholes = [
        plc.contiguous_split.unpack_from_memoryviews(memoryview(m), plc.gpumemoryview(b)).columns()
        for m, b in zip(described.metadata, buffers, strict=True)
    ]
    tables = len(described.tables)
    of_categories = iter(
        cudf.Index._from_column(as_column(columns[0], dtype))
        for columns, dtype in zip(wholes[tables:], described.categories, strict=True)
    )
    made = {}
    for (name, labels), columns in zip(described.tables, wholes, strict=False):
        dtypes = [_dtype(dtype, of_categories) for _, dtype in labels]
        pairs = zip(labels, columns, dtypes, strict=True)
        made[name] = frame_of({label: as_column(c, dtype) for (label, _), c, dtype in pairs})
    return made


def on_host(buffer: Any) -> memoryview:
    """A buffer of the device in host memory."""
    return memoryview(cp.asarray(buffer).get())


def on_device(data: Any) -> Any:
    """A buffer of the host in device memory."""
    return rmm.DeviceBuffer.to_device(memoryview(data).cast("B"))


def _columns(table: Any) -> tuple[ColumnBase, ...]:
    return tuple(table._data.values())


def _of_categories(tables: dict[str, Any]) -> Iterator[ColumnBase]:
    for table in tables.values():
        yield from (c for c in _columns(table) if dtype_class(c.dtype) == "category")


def _described(table: Any) -> Iterator[tuple[str, Any]]:
    for label, column in table._data.items():
        known = dtype_class(column.dtype) == "category"
        yield label, _Categories(bool(column.dtype.ordered)) if known else column.dtype


def _dtype(described: Any, of_categories: Iterator[Any]) -> Any:
    if not isinstance(described, _Categories):
        return described
    return cudf.CategoricalDtype(next(of_categories), described.ordered)


def _is_described(dtype: Any) -> bool:
    if dtype_class(dtype) == "category":
        return _is_described(dtype.categories.dtype)
    plain = isinstance(dtype, np.dtype | pd.StringDtype | pd.DatetimeTZDtype)
    return plain or dtype_class(dtype) == "decimal"
