"""Columns that are computed below a group-by, by one kernel for each partition."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pylibcudf as plc
from pylibcudf.utils import _get_stream

from dask_gpuagg import expressions
from dask_gpuagg.cuda.call import Launcher, mask_bytes
from dask_gpuagg.cuda.query.instantiations import deriving
from dask_gpuagg.cuda.runtime.driver import Device, current_device, fill
from dask_gpuagg.cuda.runtime.kernels import Kernels, OneUnit
from dask_gpuagg.engines.device.columns import DTYPES, FEW_STAY, as_column, frame_of, view_at
from dask_gpuagg.expressions import Derived, Read, inputs_of, text_of

_TYPES = {dtype: kind for kind, dtype in DTYPES.items() if isinstance(dtype, np.dtype)}


def derived(frame: Any, columns: Derived) -> Any:
    """The columns of a partition that a group-by reads, without the rows that leave.

    Those may stay where their key becomes null.
    """
    reads = inputs_of([*columns.steps.values(), columns.predicate])
    inputs = [view_at(frame, read.label) for read in reads]
    as_promised = all(str(frame._data[read.label].dtype) == read.dtype for read in reads)
    if not len(frame) or not as_promised or any(column.null_count() for column in inputs):
        return expressions.derived(frame, columns)
    result, bits, staying = _run(columns, inputs)
    dtypes: dict[str, Any] = {label: np.dtype(step.dtype) for label, step in columns.steps.items()}
    for label, tree in columns.columns:
        if isinstance(tree, Read):
            result[label], dtypes[label] = view_at(frame, tree.label), frame._data[tree.label].dtype
    if bits is not None:
        result = _filtered(result, bits, staying, columns.nullable)
    return frame_of({label: as_column(column, dtypes[label]) for label, column in result.items()})


def _filtered(
    columns: dict[str, plc.Column], bits: Any, staying: int, nullable: str | None
) -> dict[str, plc.Column]:
    """Leave out rows: their key becomes null, or the others are copied."""
    rows = next(iter(columns.values())).size()
    if staying == rows:
        return columns
    if nullable is not None and staying >= rows * FEW_STAY:
        key = columns[nullable]
        if not key.null_count():
            if key.offset():  # the bits are those of a whole column
                key = key.copy()
            return columns | {nullable: key.with_mask(bits, rows - staying)}
    stays = plc.transform.mask_to_bools(bits.ptr, 0, rows)
    table = plc.Table(list(columns.values()))
    copied = plc.stream_compaction.apply_retention_mask(table, stays).columns()
    return dict(zip(columns, copied, strict=True))


def _run(
    derived: Derived, inputs: Sequence[plc.Column]
) -> tuple[dict[str, plc.Column], Any | None, int]:
    """Launch the kernel: computed columns, the bits of rows that stay, and their number."""
    rows = inputs[0].size()
    device = current_device()
    on = Launcher(kernels=_kernels(derived, device), device=device, stream=_get_stream())
    outputs, addresses = {}, []
    for column in inputs:
        width = plc.types.size_of(column.type())
        addresses.append(column.data().ptr + column.offset() * width)
    for label, step in derived.steps.items():
        kind = plc.DataType(_TYPES[np.dtype(step.dtype)])
        buffer = on.buffer(rows * plc.types.size_of(kind))
        outputs[label] = plc.Column(kind, rows, buffer, None, 0, 0, [])
        addresses.append(buffer.ptr)
    bits = counter = None
    if derived.predicate is not None:
        bits, counter = on.buffer(mask_bytes(rows)), on.buffer(4)
        fill(counter.ptr, 0, 4, on.handle)
    pointers = (ctypes.c_void_p * len(addresses))(*addresses)
    ends = (ctypes.c_void_p(0 if b is None else b.ptr) for b in (bits, counter))
    on.launch_over("derive", rows, pointers, *ends, ctypes.c_uint64(rows))
    return outputs, bits, rows if counter is None else on.read_number(counter.ptr)


@lru_cache(64)
def _kernels(derived: Derived, device: Device) -> Kernels:
    return Kernels(OneUnit(deriving(text_of(derived))), device)
