"""The device of a stream: cuDF's columns of host memory, our kernels, and the way back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple

import cudf
import cupy as cp
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pylibcudf as plc
import rmm
from cudf.utils.dtypes import dtype_to_pylibcudf_type
from pylibcudf.types import TypeId
from pylibcudf.utils import _get_stream
from rmm.pylibrmm.stream import Stream as RmmStream

from dask_gpuagg.cuda.runtime.driver import (
    DriverError,
    bindings,
    checked,
    current_device,
    use_device,
)
from dask_gpuagg.engines.device.columns import (
    BOOL8,
    CTYPES,
    INT64,
    BareColumn,
    binary,
    column_at,
    keep_where,
    masked,
    names_of,
    nans_to_nulls,
    reinterpreted,
    scalar,
    table,
    to_series,
    view_at,
)
from dask_gpuagg.engines.device.digits import alike
from dask_gpuagg.engines.device.memory import free_cached, limit_of_resource
from dask_gpuagg.engines.device.passes import merged, states_of_rows
from dask_gpuagg.engines.device.tables import bytes_of, hash_partitioned, slices, stack
from dask_gpuagg.plan import Plan
from dask_gpuagg.states import STATES
from dask_gpuagg.streaming.batches import (
    CODES,
    FLOAT,
    NAT,
    PLAIN,
    TEXT,
    TICKS,
    Batch,
    Image,
    Sizes,
    image_of,
    restored,
    restored_text,
)
from dask_gpuagg.streaming.copies import Copy, Pinned, wait_for


class _Pool(NamedTuple):
    """The driver's handle, and RMM's resource of it."""

    handle: Any
    resource: Any


# by the number of the device; None where the driver has no pools, as on some virtual GPUs
_pools: dict[int, _Pool | None] = {}


@contextmanager
def pooled(ordinal: int) -> Iterator[None]:
    """Allocate from a pool of the current device, for one caller at a time."""
    before = rmm.mr.get_current_device_resource()
    pool = _pool_of(ordinal) if type(before) is rmm.mr.CudaMemoryResource else None
    if pool is None:
        yield
        return
    rmm.mr.set_current_device_resource(pool.resource)
    try:
        yield
    finally:
        # another thread may have set one meanwhile
        if rmm.mr.get_current_device_resource() is pool.resource:
            rmm.mr.set_current_device_resource(before)
        driver = bindings()
        checked(driver.cuCtxSynchronize())
        checked(driver.cuMemPoolTrimTo(pool.handle, 0))


def _pool_of(ordinal: int) -> _Pool | None:
    if ordinal not in _pools:
        driver = bindings()
        properties = driver.CUmemPoolProps()
        properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = ordinal
        # it gives nothing back by itself
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        most = driver.cuuint64_t(2**64 - 1)
        try:
            handle = checked(driver.cuMemPoolCreate(properties))
            checked(driver.cuMemPoolSetAttribute(handle, threshold, most))
        except DriverError:
            _pools[ordinal] = None
        else:
            _pools[ordinal] = _Pool(handle, rmm.mr.CudaAsyncViewMemoryResource(handle))
    return _pools[ordinal]


# To one array, from addresses of the device, and the bytes at each.
Fetch = Callable[[Sequence[tuple[int, int]]], npt.NDArray[np.uint8]]


def on_host(
    columns: Sequence[plc.Column], fetch: Fetch
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Values of columns of one type and fixed width, and which are not null; None where all are.

    Times are returned as ticks. ``fetch`` copies bytes from places of the device.
    """
    kind = columns[0].type().id()
    ctype = CTYPES[kind]
    # f64 of the kernels is f8 of NumPy
    dtype = np.dtype("bool" if kind is TypeId.BOOL8 else f"{ctype[0]}{int(ctype[1:]) // 8}")
    places = []
    for column in columns:
        rows, data = column.size(), column.data()
        start = column.offset() * dtype.itemsize
        places.append((data.ptr + start if data is not None and rows else 0, rows * dtype.itemsize))
    values = fetch(places).view(dtype)
    if not any(map(masked, columns)):
        return values, None
    return values, np.concatenate([_valid(column, fetch) for column in columns])


def _valid(column: plc.Column, fetch: Fetch) -> npt.NDArray[np.bool_]:
    rows, offset = column.size(), column.offset()
    if not masked(column):
        return np.ones(rows, bool)
    # the bits of the rows before a slice included
    mask = fetch([(column.null_mask().ptr, (offset + rows + 7) // 8)])
    return np.unpackbits(mask, bitorder="little")[offset : offset + rows].astype(bool)


# Two batches, the table and the copies of the rows of one, and the groups found: each at most so
# small a part of the device's memory.
_SHARE_OF_A_BATCH = 12

# States that are values, in the dtype of their column.
_OF_VALUES = ("min", "max", "first", "last", "osum")

# One stream keeps the link to the device busy, and its batches are sized for the whole memory.
_busy = Lock()
# by the number of the device
_gpus: dict[int, Gpu] = {}

# The images of each column, and its buffer in device memory.
Loaded = tuple[list[list[Image]], list[Any]]


class Gpu:
    """The current GPU, as the device of a ``Stream``."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        # RMM's own streams and the legacy default stream, on which kernels run, wait for each other
        self._copying = RmmStream(cp.cuda.Stream(non_blocking=True))
        self._handle = self._copying.__cuda_stream__()[1]
        self._pinned = Pinned(self._handle, self.begin)

    def sizes(self) -> Sizes:
        """Sizes of batches that fit the memory, or what a limit leaves of it."""
        total, limit = int(cp.cuda.Device().mem_info[1]), limit_of_resource(pools=False)
        return Sizes.of_memory(total if limit is None else min(total, limit), _SHARE_OF_A_BATCH)

    def begin(self) -> None:
        """Make the device the thread's own."""
        use_device(self._ordinal)

    def load(self, batch: Batch) -> Loaded:
        """Start the copies of a batch; the images of each column, and its buffer.

        A column of text has no buffer: it is copied when the columns are made.
        """
        rows = [
            [
                image_of(column).rows(each.start, each.stop)
                for column in (*each.part.keys, *each.part.columns)
            ]
            for each in batch
        ]
        return self._started([list(pieces) for pieces in zip(*rows, strict=True)], self._copying)

    def _started(self, images: list[list[Image]], owner: Any) -> Loaded:
        """The images of columns, whose copies have begun, and their buffers, of a stream."""
        buffers: list[Any] = []
        copies: list[Copy] = []
        for pieces in images:
            if pieces[0].kind == TEXT:
                buffers.append(None)
                continue
            sources = [piece.values.view(np.uint8) for piece in pieces if len(piece)]
            buffer = rmm.DeviceBuffer(size=sum(map(len, sources)), stream=owner)
            ends = itertools.accumulate(map(len, sources), initial=0)
            copies += [Copy(source, buffer.ptr + at) for source, at in zip(sources, ends)]  # noqa: B905
            buffers.append(buffer)
        if owner is not self._copying:
            wait_for(self._handle, owner.__cuda_stream__()[1])
        self._pinned.copy(copies)
        return images, buffers

    def partial(self, loaded: Loaded, plan: Plan, parts: int) -> list[Any]:
        """The groups of loaded rows, divided by key hash; the copied columns are released."""
        images, buffers = loaded
        stream = _get_stream().__cuda_stream__()[1]
        wait_for(stream, self._handle)
        try:
            columns = [_column(*pair) for pair in zip(images, buffers, strict=True)]
            keys, values = columns[: len(plan.keys)], columns[len(plan.keys) :]
            del columns
            keep_nulls = not plan.dropna or plan.drops_late

            def grouped(keys: list[Any], values: list[Any]) -> Any:
                return states_of_rows(keys, dict(enumerate(values)), None, plan, keep_nulls)

            if parts == 1:
                return [grouped(keys, values)]
            if plan.order_sensitive:
                # the order of rows would be lost; groups have none
                return self.divided(grouped(keys, values), plan, parts)
            rows = table({f"c{i}": column for i, column in enumerate((*keys, *values))})
            del keys, values
            pieces = slices(*hash_partitioned(rows, len(plan.keys), parts))
            wait_for(self._handle, stream)
            del rows
            buffers.clear()
            return [
                grouped(columns[: len(plan.keys)], columns[len(plan.keys) :])
                for columns in (
                    [column_at(rows, name) for name in names_of(rows)] for rows in pieces
                )
            ]
        finally:
            # the buffers return to the copying stream, which must not fill them before
            wait_for(self._handle, stream)

    def merged(self, tables: list[Any], plan: Plan) -> Any:
        """The groups of several tables, in the order of their rows.

        The tables in the list become slices of one, also where memory lacks: none is held twice.
        """
        ends = list(itertools.accumulate(map(len, tables)))
        whole = stack(alike(tables, plan))
        tables[:] = slices(whole, ends)
        return merged(whole, plan)

    def divided(self, groups: Any, plan: Plan, parts: int) -> list[Any]:
        """A table divided by key hash, as ``partial`` does: slices of one, released together."""
        return slices(*hash_partitioned(groups, len(plan.keys), parts))

    def nbytes(self, groups: Any) -> int:
        """Bytes of a table."""
        # parts have many tables: a Series of each column would take longer than a part's kernels
        return bytes_of([BareColumn(column) for column in groups._data.values()])

    def to_host(self, tables: list[Any], plan: Plan, like_: Batch) -> pd.DataFrame:
        """Tables that share no group as a table of the host engine."""
        part, tables = like_[0].part, alike(tables, plan)
        columns: dict[str, Any] = {}
        for i, known in enumerate(part.keys):
            if isinstance(known.dtype, pd.StringDtype):
                texts = [column_at(each, f"k{i}").to_arrow() for each in tables]
                text = pa.chunked_array([part.cast(pa.large_string()) for part in texts])
                columns[f"k{i}"] = restored_text(text, known.dtype)
            else:
                keys = [view_at(each, f"k{i}") for each in tables]
                columns[f"k{i}"] = restored(*on_host(keys, self._fetch), known.dtype)
        for i, use in enumerate(plan.states):
            record = STATES[use.state]
            # bins of exact sums are 0 of no rows, as their number is
            identity = dict(zip(record.fields, record.identity, strict=True))
            for field in record.fields_in(tables[0].columns, f"s{i}."):
                empty = identity.get(field, 0)
                name = f"s{i}.{field}"
                of = part.columns[use.columns[0]].dtype if use.columns else None
                fields = [view_at(each, name) for each in tables]
                columns[name] = _field(fields, use.state, empty, of, self._fetch)
        return pd.DataFrame(columns, copy=False)

    def _fetch(self, places: Sequence[tuple[int, int]]) -> npt.NDArray[np.uint8]:
        """Bytes of the device."""
        wait_for(self._handle, _get_stream().__cuda_stream__()[1])
        return self._pinned.fetch(places)

    def to_host_in_parts(self, groups: Any, plan: Plan, like_: Batch, parts: int) -> list[Any]:
        """A table divided by key hash, as tables of the host engine: slices of one."""
        groups, ends = hash_partitioned(groups, len(plan.keys), parts)
        return slices(self.to_host([groups], plan, like_), ends)

    def from_host(self, tables: list[pd.DataFrame], plan: Plan) -> Any:
        """Tables of ``to_host``, of equal dtypes, as one on the device."""
        # NaN is null in keys and values, and a result in sums and moments
        names, stream = list(tables[0].columns), _get_stream()
        nullable = [name for name in names if name[0] == "k"]
        nullable += [
            f"s{i}.{field}"
            for i, use in enumerate(plan.states)
            if use.state in _OF_VALUES
            for field in STATES[use.state].fields
        ]

        def image(groups: pd.DataFrame, name: Any) -> Image:
            result = image_of(groups[name])
            plain = result.kind == FLOAT and name not in nullable
            return replace(result, kind=PLAIN) if plain else result

        try:
            # buffers of the kernels' stream are released behind the kernels that read them
            images = [[image(groups, name) for groups in tables] for name in names]
            loaded = self._started(images, stream)
        finally:
            wait_for(stream.__cuda_stream__()[1], self._handle)
        columns = [_column(*pair) for pair in zip(*loaded, strict=True)]
        return table(dict(zip(names, columns, strict=True)))

    def release(self) -> None:
        """Give back what is cached."""
        free_cached()


@contextmanager
def exclusive() -> Iterator[Gpu | None]:
    """The current GPU, for one stream of this process at a time; None without pinned memory.

    Its pinned buffers are kept: to make them takes longer than a short query.
    """
    with _busy:
        ordinal = current_device().ordinal
        if ordinal not in _gpus:
            with suppress(MemoryError):
                _gpus[ordinal] = Gpu(ordinal)
        with pooled(ordinal):
            yield _gpus.get(ordinal)


def _column(pieces: Sequence[Image], buffer: Any) -> Any:
    """A Series of what was copied."""
    kind, dtype = pieces[0].kind, pieces[0].dtype
    if kind == TEXT:
        chunks = [chunk for piece in pieces for chunk in piece.values.chunks]
        text = pa.chunked_array(chunks, pieces[0].values.type).combine_chunks()
        kind = pa.string() if text.nbytes < np.iinfo(np.int32).max else pa.large_string()
        return cudf.Series.from_arrow(text.cast(kind))
    rows = sum(map(len, pieces))
    if kind == TICKS:
        ticks = plc.Column(INT64, rows, buffer, None, 0, 0, [])
        nullable = keep_where(ticks, binary("NOT_EQUAL", ticks, scalar(NAT, ticks), BOOL8))
        return to_series(reinterpreted(nullable, dtype_to_pylibcudf_type(dtype)), dtype)
    column = plc.Column(dtype_to_pylibcudf_type(dtype), rows, buffer, None, 0, 0, [])
    if kind == FLOAT:
        column = nans_to_nulls(column)
    elif kind == CODES:
        column = keep_where(column, binary("NOT_EQUAL", column, scalar(-1, column), BOOL8))
    return to_series(column, dtype)


def _field(columns: list[plc.Column], state: str, empty: Any, of: Any, fetch: Fetch) -> Any:
    """A field of a state as the host engine has it."""
    values, valid = on_host(columns, fetch)
    if state in _OF_VALUES:
        return restored(values, valid, of)
    if valid is None:
        return values
    return np.where(valid, values, np.nan if empty is None else values.dtype.type(empty))
