"""Run the kernels of a query over columns in device memory."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from dask_gpuagg.cuda import cardinality, expectation, geometry
from dask_gpuagg.cuda.call import (
    OUTPUTS_AT_MOST,
    Args,
    Call,
    Column,
    Counters,
    Made,
    Run,
    run_of,
    zero,
)
from dask_gpuagg.cuda.coded import decoded, make_codes
from dask_gpuagg.cuda.costs import known
from dask_gpuagg.cuda.decision import Decision
from dask_gpuagg.cuda.direct import direct
from dask_gpuagg.cuda.driver import (
    Device,
    Kernels,
    Stopwatch,
    current_device,
    kernels_of,
)
from dask_gpuagg.cuda.encoding import encode, encode_range, may_be_narrow
from dask_gpuagg.cuda.estimate import Sample, estimated, sampled
from dask_gpuagg.cuda.forms import forms_of, make_words, narrowed, shortened, verified
from dask_gpuagg.cuda.hashed import hgb, lphga
from dask_gpuagg.cuda.output import write
from dask_gpuagg.cuda.partitioned import pgb
from dask_gpuagg.cuda.parts import PRESENT
from dask_gpuagg.cuda.runs import sgb
from dask_gpuagg.cuda.source import Query
from dask_gpuagg.cuda.two_phase import sp_ega

# The report, and the counters from which columns are made.
Done = tuple[Run, Counters]

__all__ = ["Aggregated", "DeviceColumn", "Made", "Run", "aggregate"]


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


@dataclass
class Aggregated:
    """Keys, or if they are gathered the rows to gather them from, outputs, and the report."""

    keys: list[Made]
    outputs: list[Made]
    run: Run
    gathered: bool
    # only where rows are to be encoded: it holds the table
    call: Call | None = None
    # made already, in the order of the keys
    codes: Any | None = None

    def encode(self, order: int = 0) -> Any:
        """The number of every row's group: a buffer of int32, -1 for rows of no group.

        Only after a call with ``encoded``.

        Parameters
        ----------
        order : int
            Address of the numbers, int32, of the groups that come first, second, ...; 0 for the
            order in which the columns have them.
        """
        if self.codes is not None:
            return self.codes
        assert self.call is not None
        return encode(self.call, self.run.groups, order)


def aggregate(
    query: Query,
    keys: Sequence[DeviceColumn],
    inputs: Sequence[DeviceColumn],
    rows: int,
    stream: Any,
    forced: str = "auto",
    stopwatch: Stopwatch | None = None,
    encoded: bool = False,
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
        ``auto`` or one of ``geometry.KERNELS``.
    stopwatch : Stopwatch, optional
        Takes the device time of every kernel.
    encoded : bool
        Whether ``Aggregated.encode`` will be called.

    Returns
    -------
    Aggregated

    Raises
    ------
    MemoryError
        RMM's, when device memory does not suffice. Nothing stays allocated.
    KernelsUnavailable
        When a kernel could not be compiled or loaded. Nothing stays allocated.
    """
    if len(query.outputs) > OUTPUTS_AT_MOST:
        raise ValueError(f"at most {OUTPUTS_AT_MOST} outputs, not {len(query.outputs)}")
    started = time.perf_counter()
    # the one that was seen first has worked out much already
    device = current_device()
    query, _ = _prepared(query, device)
    columns = _Columns(keys, inputs, rows, device, stream, stopwatch)
    decision: Decision | None = None
    if encoded and forced == "auto" and rows >= cardinality.SAMPLED_FROM and may_be_narrow(query):
        call = columns.call(query)
        decision = _decide(call, forced, Sample(call), encoded)
        by_range = _by_range(call, decision, started)
        if by_range is not None:
            return by_range
    extra: list[Column] = []
    codes = None
    if query.made_words and rows >= cardinality.SAMPLED_FROM:
        query, extra, codes = narrowed(columns.call(query))
    made = _grouped(columns.call(query, extra, codes), forced, encoded, decision)
    if made is None and query.coded:
        # keys unlike those of the sample
        query = shortened(columns.call(replace(query, coded=False)))
        made = _grouped(columns.call(query), forced, encoded)
    if made is None and query.ranged:
        # values outside of the ranges that the sample saw
        query = replace(query, ranged=False)
        made = _grouped(columns.call(query), forced, encoded)
    if made is None:
        # two keys share a word: so rare that doing everything again is the best answer
        query = replace(query, by_row=True)
        made = _grouped(columns.call(query), forced, encoded)
    assert made is not None, "keys by row are never in doubt"
    call, run, counters = made
    run = run._replace(seconds=time.perf_counter() - started)
    made_keys, outputs = write(call, counters)
    if call.query.coded:
        made_keys = decoded(call, made_keys[0].data, run.groups)
    gathered = call.query.gathered
    return Aggregated(made_keys, outputs, run, gathered, call if encoded else None)


@dataclass(frozen=True)
class _Columns:
    """What the calls of one group-by have in common, whatever the form of the keys."""

    keys: Sequence[DeviceColumn]
    inputs: Sequence[DeviceColumn]
    rows: int
    device: Device
    stream: Any
    stopwatch: Stopwatch | None

    def call(self, query: Query, extra: Sequence[Column] = (), codes: Any = None) -> Call:
        query, kernels = _prepared(query, self.device)
        flat = []
        for key, part in zip(self.keys, query.keys, strict=True):
            flat.append(Column(key.data, key.mask, key.offset))
            if part.string:
                flat.append(Column(key.characters, 0, key.size))
        flat += [Column(c.data, c.mask, c.offset) for c in self.inputs]
        flat += extra or [Column() for _ in range(query.extra_columns)]
        columns = (Column * max(len(flat), 1))(*flat)
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
        )


def _by_range(call: Call, decision: Decision, started: float) -> Aggregated | None:
    """Groups and codes from the range of the keys, where a table would not fit shared memory."""
    call.args.rows = call.rows
    if decision.kernel in ("hgb", "hgb_runs"):
        return None
    found = encode_range(call)
    if found is None:
        return None
    keys, codes, groups = found
    decision = replace(decision, kernel="range", why="the keys lie in a narrow range")
    seconds = time.perf_counter() - started
    run = run_of(call, decision, Counters(groups=groups), seconds=seconds)
    return Aggregated([Made(key, None, 0) for key in keys], [], run, False, codes=codes)


def _grouped(
    call: Call, forced: str, encoded: bool, decision: Decision | None = None
) -> tuple[Call, Run, Counters] | None:
    """All groups, not yet as columns; None if some word may stand for several keys.

    ``decision`` is the one for this call where it has been made.
    """
    query, args = call.query, call.args
    if call.rows == 0:
        return call, Run(_decide(call, forced, None), 0, 0), Counters()
    args.counters = call.allocate(ctypes.sizeof(Counters)).ptr
    args.rows = call.rows
    args.probes = geometry.PROBES
    checked = query.made_words > 0 or query.family == "Ranged"
    if checked:
        zero(call, args.counters, ctypes.sizeof(Counters) // 4)
    if query.family == "Ranged":
        call.columns[len(call.columns) - len(query.keys)].mask = (
            args.counters + Counters.doubt.offset
        )
    if query.coded:
        make_codes(call)
    elif query.made_words:
        make_words(call)
    done = sample = None
    if decision is None:
        if not (encoded or query.coded):
            done, sample = _as_expected(call, forced)
        if done is None:
            if sample is None and sampled(call, forced):
                sample = Sample(call)
            decision = _decide(call, forced, sample, encoded)
    if query.coded and call.counters().doubt:
        return None
    if done is None:
        assert decision is not None
        done = _as_decided(call, decision, forced, encoded, sample)
    run, counters = done
    if query.family == "Hashed":
        counters = verified(call, counters)
    return None if checked and counters.doubt else (call, run, counters)


def _as_expected(call: Call, forced: str) -> tuple[Done | None, Sample | None]:
    """The groups by the decision for rows before, and the sample where there is such a decision.

    None of the first if these rows turn out to be unlike those.
    """
    known = expectation.expectation(call, forced)
    if known is None:
        return None, None
    sample, held = Sample(call), len(call.held)
    before = Args.from_buffer_copy(call.args)

    def check() -> None:
        pointers = ctypes.c_void_p(sample.summary), known.expected, ctypes.c_void_p(before.counters)
        call.launch("check", 1, 32, *pointers)

    call.check = check
    done = None
    # these rows may need much less memory than those before
    with contextlib.suppress(MemoryError):
        try:
            done = _taken(call, known.decision)
        finally:
            # it refers to the call, which would live until the garbage collector runs
            call.check = None
    if done is not None:
        expectation.judge(call, forced, done[0])
        return done, sample
    expectation.refused(call, forced)
    # as if nothing had been done; what it has allocated goes
    del call.held[held:]
    call.args, call.early = before, None
    return None, sample


def _as_decided(
    call: Call, decision: Decision, forced: str, encoded: bool, sample: Sample | None
) -> Done:
    """The groups by a decision, or by others where the rows do not admit it."""
    query, first = call.query, decision
    if encoded and decision.kernel in ("pgb", "pgb_ur", "pgb_fold", "sgb", "sp_ega"):
        # they leave no table in which rows could be looked up by linear probing
        decision = geometry.decide(query, call.rows, decision.estimate, call.device, "lphga")
    done = None
    while done is None and decision.kernel in ("sgb", "direct"):
        if decision.kernel == "sgb":
            done = sgb(call, decision, sort=forced == "sgb")
        else:
            done = direct(call, decision)
        if done is None:
            costs = known(call.device).costs
            decision = geometry.decide_again(
                query, call.rows, decision, call.device, forced, costs, call.values
            )
    done = done or _taken(call, decision) or lphga(call, decision)
    run, _ = done
    if sample is not None and not encoded:
        alike = decision is first and not run.restarted
        expectation.keep(call, forced, decision if alike else None, sample.numbers, run.spilled)
    return done


def _taken(call: Call, decision: Decision) -> Done | None:
    """The groups by the kernel that was decided for; None if it cannot take all rows."""
    if decision.kernel == "direct":
        return direct(call, decision)
    if decision.partitions:
        return pgb(call, decision)
    if decision.shared_slots:
        return hgb(call, decision)
    return sp_ega(call, decision) if decision.kernel == "sp_ega" else None


# What finds out about the form of the keys, and what it needs first.
_FORM_UNITS = ("bytes", "longest", "ranges", "codes", "words", "verify")


@cache
def _prepared(query: Query, device: Device) -> tuple[Query, Kernels]:
    """The kernels of a query, and the query itself as first seen, with what it has worked out."""
    return query, kernels_of(query, device)


def prepare(query: Query, *units: str) -> None:
    """Compile or load what calls of many rows need: some units, or all.

    Raises
    ------
    KernelsUnavailable
    """
    for form in forms_of(query):
        # what finds out about a form and what it needs first comes with whatever is called then
        always = [u for u in _FORM_UNITS if u in form.units]
        kernels_of(form, current_device()).prepare(*units, *(always if units else ()))


def _decide(call: Call, forced: str, sample: Sample | None, encoded: bool = False) -> Decision:
    estimate = estimated(call, forced, sample) if sample else None
    if encoded and estimate is not None:
        # rows are looked up by linear probing, so no other way of finding a slot will do
        estimate = replace(estimate, bounds=cardinality.ANY_WORD)
    costs = known(call.device).costs
    return geometry.decide(call.query, call.rows, estimate, call.device, forced, costs, call.values)
