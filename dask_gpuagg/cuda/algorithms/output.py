"""From a table to columns: memory for keys and outputs, and the kernel that writes them."""

from __future__ import annotations

import ctypes
from typing import Any

from dask_gpuagg.cuda.call import Call, Made, mask_bytes, number_groups
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import Counters, Target
from dask_gpuagg.cuda.query.tuning import EXTRA_SLOTS
from dask_gpuagg.cuda.query.types import TYPE_BYTES

# Columns of so few bytes are written before the host knows how many groups there are: it then waits
# once, for the columns, instead of for the groups and again for them.
_EARLY_BYTES = 1 << 25
# A column may keep so many times its bytes, and some more.
_LOOSEST = 1.5
_SMALL = 1 << 21
# Of ``Args.groups``: as many as the device has counted (kernels/output/output.cuh).
_COUNTED = 0xFFFFFFFF

Buffers = list[tuple[Any, Any]]


def collect_early(call: Call, most: int | None = None) -> Counters:
    """Number the groups and write a small table's columns, all before anything is waited for.

    The table must be final unless the counters say otherwise. ``most`` is the most groups that it
    may have, where its slots are more.
    """
    number_groups(call)
    room = (call.args.table.slots if most is None else most) + EXTRA_SLOTS
    if room * sum(TYPE_BYTES[ctype] for ctype, _ in call.query.columns_out) <= _EARLY_BYTES:
        call.early = columns_for(call, room)
        _launch(call, call.early, _COUNTED, room)
    return call.counters()


def columns_for(call: Call, room: int) -> Buffers:
    """Memory for the columns of so many groups, with their masks where they may have nulls."""
    return [
        (call.buffer(room * TYPE_BYTES[ctype]), call.mask(room) if nullable else None)
        for ctype, nullable in call.query.columns_out
    ]


def targets_of(buffers: Buffers) -> ctypes.Array[Target]:
    """What kernels write columns to."""
    return (Target * len(buffers))(
        *(Target(data.ptr, mask.ptr if mask else None) for data, mask in buffers)
    )


def no_targets(query: Query) -> ctypes.Array[Target]:
    """No columns, for kernels that do not write them now."""
    return (Target * len(query.columns_out))()


def write(call: Call, counters: Counters) -> tuple[list[Made], list[Made]]:
    """Keys and outputs of all groups; gathered or coded keys have one column."""
    groups, types, early = counters.total, call.query.columns_out, call.early
    keys = call.query.key_outputs
    nulls: list[int | None] = [None] * keys
    nulls += counters.nulls[: len(types) - keys]
    buffers = early
    if buffers is None:
        masked = [nullable and n != 0 for (_, nullable), n in zip(types, nulls, strict=True)]
        buffers = [
            (call.buffer(groups * TYPE_BYTES[ctype]), call.mask(groups) if has_mask else None)
            for (ctype, _), has_mask in zip(types, masked, strict=True)
        ]
        if groups:
            _launch(call, buffers, groups, groups)
    columns = []
    for (ctype, nullable), n, (data, mask) in zip(types, nulls, buffers, strict=True):
        mask = None if n == 0 else mask
        if early is not None:
            data = _cut(call, data, groups * TYPE_BYTES[ctype])
            if mask is not None:
                mask.resize(mask_bytes(groups), call.stream)
        columns.append(Made(data, mask, n if nullable else 0))
    call.args.groups = groups
    return columns[:keys], columns[keys:]


def _cut(call: Call, data: Any, size: int) -> Any:
    """The beginning of a buffer; a copy where it would hold on to much more than it needs."""
    import rmm

    if data.size > _LOOSEST * size + _SMALL:
        return rmm.DeviceBuffer(ptr=data.ptr, size=size, stream=call.stream)
    data.resize(size, call.stream)
    return data


def _launch(call: Call, buffers: Buffers, groups: int, room: int) -> None:
    call.args.groups = groups
    call.launch_over("write", room, call.args, call.columns, targets_of(buffers))
