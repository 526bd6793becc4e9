"""Run the kernels of a query over columns in device memory."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dask_gpuagg.cuda import geometry
from dask_gpuagg.cuda.driver import (
    Device,
    Kernels,
    Stopwatch,
    current_device,
    fill,
    load,
    read_back,
)
from dask_gpuagg.cuda.geometry import EXTRA_SLOTS, Decision
from dask_gpuagg.cuda.source import TYPE_BYTES, Query

_OUTPUTS_AT_MOST = 60
_SMALL_BLOCK = 256
_SAMPLE_SLOTS = 1 << 17
_MASK_PADDING = 64
_COUNTS = ("rows", "distinct", "once", "twice", "repeats")


class _Column(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("mask", ctypes.c_void_p), ("offset", ctypes.c_int64)]


class _Target(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("mask", ctypes.c_void_p)]


class _Table(ctypes.Structure):
    _fields_ = [
        ("words", ctypes.c_void_p),
        ("cells", ctypes.c_void_p),
        ("slots", ctypes.c_uint32),
        ("limit", ctypes.c_uint32),
    ]


class _Counters(ctypes.Structure):
    _fields_ = [
        ("claimed", ctypes.c_uint32),
        ("homeless", ctypes.c_uint32),
        ("spilled", ctypes.c_uint32),
        ("groups", ctypes.c_uint32),
        ("nulls", ctypes.c_uint32 * _OUTPUTS_AT_MOST),
    ]


class _Args(ctypes.Structure):
    _fields_ = [
        ("counters", ctypes.c_void_p),
        ("table", _Table),
        ("target", _Table),
        ("rows", ctypes.c_uint32),
        ("shared_slots", ctypes.c_uint32),
        ("shared_limit", ctypes.c_uint32),
        ("replicas", ctypes.c_uint32),
        ("slices", ctypes.c_uint32),
        ("spill_limit", ctypes.c_uint32),
        ("probes", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
        ("spill", ctypes.c_void_p),
        ("resume", ctypes.c_void_p),
        ("list", ctypes.c_void_p),
        ("order", ctypes.c_void_p),
    ]


class _Summary(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint32) for name in ("rows", "distinct", "once", "twice", "most", "repeats")
    ]


@dataclass(frozen=True)
class DeviceColumn:
    """A column in device memory.

    Attributes
    ----------
    data : int
        Address of the values (of the offsets, for strings).
    mask : int
        Address of the validity bits, 0 without.
    offset : int
        Rows to skip in both.
    characters : int
        Address of a string column's bytes.
    """

    data: int
    mask: int = 0
    offset: int = 0
    characters: int = 0


@dataclass(frozen=True)
class Made:
    """A column that the kernels wrote: RMM buffers, and how many of its rows are null."""

    data: Any
    mask: Any | None
    nulls: int | None


@dataclass(frozen=True)
class Run:
    """What one call did.

    Attributes
    ----------
    decision : Decision
    rows, groups : int
    spilled : int
        Rows that found no place in a block's table.
    restarted : bool
        Whether the estimate was so low that the work was done again with a larger table.
    bytes_read : int
        Of keys and values, once.
    """

    decision: Decision
    rows: int
    groups: int
    spilled: int = 0
    restarted: bool = False
    bytes_read: int = 0


@dataclass
class Aggregated:
    """Groups as columns: keys (or the rows to gather them from), outputs, and the report."""

    keys: list[Made]
    outputs: list[Made]
    run: Run


@dataclass
class _Call:
    query: Query
    kernels: Kernels
    device: Device
    columns: Any
    rows: int
    stream: Any
    handle: int
    stopwatch: Stopwatch | None = None
    args: _Args = field(default_factory=_Args)
    # buffers that must live until the stream has passed the kernels that use them
    held: list[Any] = field(default_factory=list)

    def allocate(self, size: int) -> Any:
        import rmm

        buffer = rmm.DeviceBuffer(size=max(size, 1), stream=self.stream)
        self.held.append(buffer)
        return buffer

    def launch(self, name: str, blocks: int, threads: int, *args: Any, shared: int = 0) -> None:
        started = self.stopwatch.start(self.handle) if self.stopwatch else None
        self.kernels.launch(
            f"gpuagg_{name}", blocks, threads, self.handle, *args, shared_bytes=shared
        )
        if self.stopwatch:
            self.stopwatch.stop(name, started, self.handle)

    def spread(self, items: int, threads: int, waves: int = 8) -> int:
        """Blocks for a kernel that strides over items."""
        return max(1, min(self.device.multiprocessors * waves, math.ceil(items / threads)))

    def counters(self) -> _Counters:
        counters = _Counters()
        read_back(self.args.counters, counters, self.handle)
        return counters


def aggregate(
    query: Query,
    keys: Sequence[DeviceColumn],
    inputs: Sequence[DeviceColumn],
    rows: int,
    stream: Any,
    forced: str = "auto",
    stopwatch: Stopwatch | None = None,
) -> Aggregated:
    """Group rows and reduce every group.

    Parameters
    ----------
    query : Query
    keys, inputs : sequence of DeviceColumn
        As the query describes them, of ``rows`` rows.
    rows : int
        Below 2**31.
    stream : rmm.pylibrmm.stream.Stream
        All memory is taken from RMM's current resource, and all work done, on it.
    forced : str
        ``auto``, ``hgb`` or ``lphga``.
    stopwatch : Stopwatch, optional
        Takes the device time of every kernel.

    Returns
    -------
    Aggregated

    Raises
    ------
    MemoryError
        RMM's, when device memory does not suffice. Nothing stays allocated.
    """
    if len(query.outputs) > _OUTPUTS_AT_MOST:
        raise ValueError(f"at most {_OUTPUTS_AT_MOST} outputs, not {len(query.outputs)}")
    device = current_device()
    query, kernels = _prepared(query, device)
    flat = []
    for key, part in zip(keys, query.keys, strict=True):
        flat.append(_Column(key.data, key.mask, key.offset))
        if part.string:
            flat.append(_Column(key.characters, 0, 0))
    flat += [_Column(c.data, c.mask, c.offset) for c in inputs]
    columns = (_Column * max(len(flat), 1))(*flat)
    handle = stream.__cuda_stream__()[1]
    call = _Call(query, kernels, device, columns, rows, stream, handle, stopwatch)
    decision = _decide(call, forced)
    if rows == 0:
        return _write(call, Run(decision, 0, 0), _Counters())
    call.args.counters = call.allocate(ctypes.sizeof(_Counters)).ptr
    call.args.rows = rows
    call.args.probes = geometry.PROBES
    run = _hgb(call, decision) if decision.shared_slots else None
    if run is None:
        run = _lphga(call, decision)
    return _write(call, *run)


@cache
def _prepared(query: Query, device: Device) -> tuple[Query, Kernels]:
    """The kernels of a query, and the query itself as first seen, with what it has worked out."""
    return query, load(query.source(), device)


def _decide(call: _Call, forced: str) -> Decision:
    estimate = None
    if call.rows >= geometry.SAMPLED_FROM:
        estimate = _sample(call)
    return geometry.decide(call.query, call.rows, estimate, call.device, forced)


def _sample(call: _Call) -> geometry.Estimate:
    size = ctypes.sizeof(_Summary)
    table = call.allocate(12 * _SAMPLE_SLOTS + size).ptr
    summary = table + 12 * _SAMPLE_SLOTS
    fill(table, 0xFF, 12 * _SAMPLE_SLOTS + size, call.handle)
    pointers = ctypes.c_void_p(table), ctypes.c_void_p(summary)
    rows = ctypes.c_uint32(call.rows)
    call.launch("sample", geometry.SEGMENTS, geometry.SEGMENT, call.columns, rows, *pointers)
    call.launch("summarise", _SAMPLE_SLOTS // 4 // _SMALL_BLOCK, _SMALL_BLOCK, *pointers)
    seen = _Summary()
    read_back(summary, seen, call.handle)
    call.held.clear()
    # counted from one below zero: see estimate/sample.cuh
    sampled, distinct, once, twice, repeats = (
        (getattr(seen, name) + 1) % 2**32 for name in _COUNTS
    )
    return geometry.estimate_groups(
        call.rows, sampled, distinct, once, twice, max(seen.most, 0), repeats
    )


def _table(call: _Call, slots: int) -> _Table:
    fixed, replica = call.query.slot_bytes
    all_slots = slots + EXTRA_SLOTS
    memory = call.allocate(all_slots * (fixed + replica)).ptr
    # half full is where the probes are short; a full table would be probed to its end
    limit = slots - slots // 16 - 1
    return _Table(memory, memory + 8 * all_slots, slots, limit)


def _hgb(call: _Call, decision: Decision) -> tuple[Run, _Counters] | None:
    """Shared-memory tables; None if the merged table was too small, which calls for ``_lphga``."""
    args, query = call.args, call.query
    fixed, replica = query.slot_bytes
    args.table = _table(call, decision.global_slots)
    args.shared_slots = decision.shared_slots
    args.shared_limit = decision.shared_slots - max(1, decision.shared_slots // 32)
    args.replicas = decision.replicas
    args.slices = decision.slices
    args.spill_limit = max(call.rows // 8, 1 << 16)
    warps = decision.blocks * query.threads // 32
    room = min(call.rows, args.spill_limit + warps * 32 * query.unroll)
    args.spill = call.allocate(4 * room).ptr
    args.resume = call.allocate(4 * warps).ptr
    call.launch("clear", call.spread(decision.global_slots, _SMALL_BLOCK), _SMALL_BLOCK, args)
    shared = (decision.shared_slots + EXTRA_SLOTS) * (fixed + decision.replicas * replica)
    kernel = "hgb_sliced" if decision.slices > 1 else decision.kernel
    call.launch(kernel, decision.blocks, query.threads, args, call.columns, shared=shared)
    counters = _collect(call)
    if counters.homeless:
        return None
    spilled = counters.spilled
    if spilled:
        listed = min(spilled, room)
        counters = _take_spilled(call, decision, counters, listed, spilled > args.spill_limit)
        if counters.homeless:
            return None
    return _run(call, decision, counters, spilled=spilled), counters


def _take_spilled(
    call: _Call, decision: Decision, counters: _Counters, listed: int, stopped: bool
) -> _Counters:
    """Rows that found no place, and those that stopped warps left alone, by the global table."""
    args = call.args
    new = listed if not stopped else call.rows
    if decision.estimate is not None and stopped:
        new = min(new, 2 * decision.estimate.most)
    if counters.claimed + new > args.table.limit:
        args.target = _table(call, geometry.safe_slots(counters.claimed + new))
        slots = args.target.slots
        _reset(call, "claimed")
        call.launch("clear_target", call.spread(slots, _SMALL_BLOCK), _SMALL_BLOCK, args)
        blocks = call.spread(args.table.slots, _SMALL_BLOCK)
        call.launch("transfer", blocks, _SMALL_BLOCK, args, call.columns)
        args.table = args.target
    _reset(call, "groups")
    threads = call.query.threads
    rest = _Args.from_buffer_copy(args)
    rest.list, rest.rows, rest.slices, rest.resume = args.spill, listed, 1, None
    call.launch("lphga", call.spread(listed, threads), threads, rest, call.columns)
    if stopped:
        # the same grid, so that each warp goes on where it stopped
        call.launch("lphga", decision.blocks, threads, args, call.columns)
    return _collect(call)


def _lphga(call: _Call, decision: Decision) -> tuple[Run, _Counters]:
    args, threads = call.args, call.query.threads
    slots = geometry.safe_slots(call.rows) if decision.shared_slots else decision.global_slots
    restarted = decision.shared_slots > 0
    while True:
        args.slices, args.replicas = 1, 1
        args.resume = args.list = None
        args.table = _table(call, slots)
        call.launch("clear", call.spread(slots, _SMALL_BLOCK), _SMALL_BLOCK, args)
        blocks = call.spread(call.rows, threads * call.query.unroll)
        call.launch("lphga", blocks, threads, args, call.columns)
        counters = _collect(call)
        if not counters.homeless:
            return _run(call, decision, counters, restarted=restarted), counters
        # half empty by construction, and searched to its end: keys that all want one slot are
        # slow, but they find a place
        slots = args.probes = geometry.safe_slots(call.rows)
        restarted = True


def _collect(call: _Call) -> _Counters:
    slots = call.args.table.slots + EXTRA_SLOTS
    call.args.order = call.allocate(4 * slots).ptr
    call.launch("collect", call.spread(slots, _SMALL_BLOCK), _SMALL_BLOCK, call.args)
    return call.counters()


def _reset(call: _Call, first: str) -> None:
    """Zero a counter, or from ``groups`` on all that ``collect`` makes."""
    from cuda.bindings import driver

    offset = getattr(_Counters, first).offset
    words = 1 if first != "groups" else (ctypes.sizeof(_Counters) - offset) // 4
    driver.cuMemsetD32Async(call.args.counters + offset, 0, words, call.handle)


def _run(call: _Call, decision: Decision, counters: _Counters, **more: Any) -> Run:
    ctypes_read = [k.ctype for k in call.query.keys] + [v.ctype for v in call.query.inputs]
    width = sum(TYPE_BYTES.get(ctype, 0) for ctype in ctypes_read)
    return Run(decision, call.rows, counters.groups, bytes_read=width * call.rows, **more)


def _write(call: _Call, run: Run, counters: _Counters) -> Aggregated:
    import rmm

    query, groups = call.query, run.groups
    if query.packed:
        key_types = [(k.ctype, k.nullable and query.keep_nulls) for k in query.keys]
    else:
        key_types = [("i32", False)]
    types = key_types + [(o.ctype, o.nullable) for o in query.outputs]
    made = []
    for i, (ctype, nullable) in enumerate(types):
        data = rmm.DeviceBuffer(size=groups * TYPE_BYTES[ctype], stream=call.stream)
        mask = None
        output = i - len(key_types)
        nulls: int | None = counters.nulls[output] if output >= 0 else None
        if nullable and nulls != 0:
            words = math.ceil(groups / (8 * _MASK_PADDING)) * _MASK_PADDING
            mask = rmm.DeviceBuffer(size=words, stream=call.stream)
        made.append(Made(data, mask, nulls if nullable else 0))
    if groups:
        targets = (_Target * len(made))(
            *(_Target(m.data.ptr, m.mask.ptr if m.mask else None) for m in made)
        )
        blocks = call.spread(groups, _SMALL_BLOCK)
        call.launch("write", blocks, _SMALL_BLOCK, call.args, call.columns, targets)
    n = len(key_types)
    return Aggregated(made[:n], made[n:], run)
