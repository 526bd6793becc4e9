"""Run the kernels of a query over columns in device memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask_gpuagg.cuda.algorithms.sgb import encode, encode_range, may_be_narrow
from dask_gpuagg.cuda.attempts import decide, group
from dask_gpuagg.cuda.call import (
    Call,
    Columns,
    DeviceColumn,
    Made,
    NeedsWholeColumns,
    Part,
    Run,
    prepared,
    run_of,
    write,
)
from dask_gpuagg.cuda.choice import summary
from dask_gpuagg.cuda.choice.decision import Decision, Hgb
from dask_gpuagg.cuda.dictionary import units_of_dictionary
from dask_gpuagg.cuda.keys.words import representations_of
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import Counters
from dask_gpuagg.cuda.query.tuning import OUTPUTS_AT_MOST
from dask_gpuagg.cuda.runtime import kernels
from dask_gpuagg.cuda.runtime.driver import Stopwatch, current_device
from dask_gpuagg.cuda.sampling.sample import Sample

__all__ = [
    "Aggregated", "DeviceColumn", "Made", "NeedsWholeColumns", "Part", "Run", "aggregate",
]  # fmt: skip


@dataclass
class Aggregated:
    """Keys, or if they are gathered the rows to gather them from, outputs, and the report."""

    keys: list[Made]
    outputs: list[Made]
    run: Run
    gathered: bool
    # only where rows are to be encoded: it holds the table
    call: Call | None = None
    # numbers of the rows' groups that are there already, in the order of the keys
    codes: Any | None = None

    def encode(self, order: int = 0) -> Any:
        """The number of every row's group, int32, after a call with ``encoded``; see ``encode``."""
        if self.codes is not None:
            return self.codes
        assert self.call is not None
        return encode(self.call, self.run.groups, order)


def aggregate(
    query: Query,
    parts: Sequence[Part],
    stream: Any,
    forced: str = "auto",
    stopwatch: Stopwatch | None = None,
    encoded: bool = False,
    about: tuple[str, ...] = (),
    least: int = 0,
    meanwhile: Callable[[], None] | None = None,
) -> Aggregated:
    """Group fewer than 2**31 rows and reduce every group.

    Parameters
    ----------
    query : Query
    parts : sequence of Part
    stream : rmm.pylibrmm.stream.Stream
        All memory is taken from RMM's current resource, and all work done, on it.
    forced : str
        ``auto`` or one of ``choose.KERNELS``.
    stopwatch : Stopwatch, optional
        Takes the device time of every kernel.
    encoded : bool
        Whether ``Aggregated.encode`` will be called.
    about : tuple of str
        Names of what is grouped by: their previous partition's decision may be reused.
    least : int
        Groups that there are at least, which a sample may not show.
    meanwhile : callable, optional
        Work for the result that needs no group: called while kernels run.

    Raises
    ------
    MemoryError
        RMM's, when device memory does not suffice. Nothing stays allocated.
    KernelsUnavailable
        When a kernel could not be compiled or loaded. Nothing stays allocated.
    NeedsWholeColumns
        When a kernel that the rows need does not take them in several parts.
    """
    if encoded and len(parts) > 1:
        raise NeedsWholeColumns("the number of every row's group")
    if len(query.outputs) > OUTPUTS_AT_MOST:
        raise ValueError(f"at most {OUTPUTS_AT_MOST} outputs, not {len(query.outputs)}")
    started = time.perf_counter()
    device = current_device()
    asked, _ = prepared(query, device)
    columns = Columns(parts, device, stream, stopwatch, about, least, meanwhile)
    decision: Decision | None = None
    sampled = forced == "auto" and columns.rows >= summary.SAMPLED_FROM
    if encoded and sampled and may_be_narrow(asked):
        call = columns.call(asked)
        decision = decide(call, forced, Sample(call), encoded)
        # a table that fits shared memory is faster
        by_range = None if isinstance(decision, Hgb) else _by_range(call, decision, started)
        if by_range is not None:
            return by_range
    keys, call, run, counters = group(columns, asked, forced, encoded, decision)
    run = run._replace(seconds=time.perf_counter() - started)
    made_keys, outputs = write(call, counters)
    made_keys = keys.decoded(call, made_keys, run.groups)
    if keys.why:
        why = f"{keys.why}; {run.decision.why}"
        run = run._replace(decision=replace(run.decision, why=why))
    return Aggregated(made_keys, outputs, run, keys.is_gathered, call if encoded else None)


def _by_range(call: Call, decision: Decision, started: float) -> Aggregated | None:
    """Groups and codes from the range of the keys."""
    call.args.rows = call.rows
    numbered = encode_range(call)
    if numbered is None:
        return None
    keys, codes, groups = numbered
    why = "the keys lie in a narrow range"
    decision = Decision(kernel="range", why=why, estimate=decision.estimate)
    seconds = time.perf_counter() - started
    run = run_of(call, decision, Counters(groups=groups), seconds=seconds)
    return Aggregated([Made(key, None, 0) for key in keys], [], run, False, codes=codes)


# Units of the kernels that choose a form of the keys and make their words.
_FORM_UNITS = ("bytes", "ranges", "codes", "words", "verify")


def prepare(queries: Iterable[Query], *units: str) -> None:
    """Compile, side by side, or load what calls of many rows need: some units, or all.

    Raises
    ------
    KernelsUnavailable
    """
    device, units_of_queries = current_device(), []
    for query in queries:
        for form in representations_of(query):
            # whatever is called then needs these as well
            always = [u for u in _FORM_UNITS if u in form.units]
            names = (*units, *(always if units else ()))
            units_of_queries.append((prepared(form, device)[1], names))
        for form, likely in units_of_dictionary(query, many_keys=False):
            units_of_queries.append((prepared(form, device)[1], likely))
    kernels.prepare(units_of_queries)
