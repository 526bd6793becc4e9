"""Group the rows of columns in device memory, by attempts until one holds all groups.

An attempt is a form of the keys, a kernel, and perhaps less memory. ``requested`` is the query of
the caller, ``call.query`` has its keys in one form, and ``decision.partition_query(call.query)`` is
the query that partitions are compiled for.
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from dask_gpuagg.cuda.ahead import begin
from dask_gpuagg.cuda.algorithms.pgb import pgb
from dask_gpuagg.cuda.algorithms.sgb import encode, encode_range, may_be_narrow, sgb
from dask_gpuagg.cuda.algorithms.tables import direct, hgb, lphga, sp_ega
from dask_gpuagg.cuda.call import (
    Call,
    Columns,
    DeviceColumn,
    Made,
    NeedsWholeColumns,
    Part,
    Run,
    run_of,
    write,
    zero,
)
from dask_gpuagg.cuda.choice import choose, summary, tables
from dask_gpuagg.cuda.choice.choose import with_less_memory
from dask_gpuagg.cuda.choice.costs import known
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Hgb, Lphga, Partitioned, Sgb, SpEga
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.keys import narrowest_keys
from dask_gpuagg.cuda.keys.ranges import RangedKeys, combinations, remember_out_of_range
from dask_gpuagg.cuda.keys.words import Keys, representations_of
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.structs import Args, Counters
from dask_gpuagg.cuda.query.tuning import OUTPUTS_AT_MOST
from dask_gpuagg.cuda.runtime import kernels
from dask_gpuagg.cuda.runtime.compiler import KernelsCompiling
from dask_gpuagg.cuda.runtime.driver import Stopwatch, current_device
from dask_gpuagg.cuda.runtime.kernels import kernels_of
from dask_gpuagg.cuda.sampling import repeat
from dask_gpuagg.cuda.sampling.sample import Sample, estimated, ranged_keys_of, sampled

__all__ = [
    "Aggregated", "DeviceColumn", "Made", "NeedsWholeColumns", "Part", "Run", "aggregate",
]  # fmt: skip


class Aggregated(NamedTuple):
    """Keys, or if they are gathered the rows to gather them from, outputs, and the report."""

    keys: list[Made]
    outputs: list[Made]
    run: Run
    gathered: bool
    # the number of every row's group, int32 and -1 for none, where rows are encoded
    codes: Any | None = None


def aggregate(
    query: Query,
    parts: Sequence[Part],
    stream: Any,
    forced: str = "auto",
    stopwatch: Stopwatch | None = None,
    encoded: bool = False,
    key_labels: tuple[str, ...] = (),
    least: int = 0,
) -> Aggregated:
    """Group fewer than 2**31 rows and reduce every group, on a stream of RMM.

    ``forced`` is ``auto`` or one of ``choose.KERNELS``, and ``encoded`` asks for ``codes``.
    ``key_labels`` names what is grouped by: the decision for its previous partition may be reused.
    There are at least ``least`` groups.

    ``MemoryError`` of RMM, ``KernelsUnavailable``, and ``NeedsWholeColumns`` where a kernel does
    not take rows in several parts, leave nothing allocated.
    """
    if encoded and len(parts) > 1:
        raise NeedsWholeColumns("the number of every row's group")
    if len(query.outputs) > OUTPUTS_AT_MOST:
        raise ValueError(f"at most {OUTPUTS_AT_MOST} outputs, not {len(query.outputs)}")
    started = time.perf_counter()
    device = current_device()
    requested = kernels_of(query, device).query
    columns = Columns(parts, device, stream, stopwatch, key_labels, least)
    decision: Decision | None = None
    many = forced == "auto" and columns.rows >= summary.SAMPLED_FROM
    if encoded and many and may_be_narrow(requested):
        call = columns.call(requested)
        decision = decide(call, forced, Sample(call), encoded)
        call.args.rows = call.rows
        # a table that fits shared memory is faster
        by_range = None if isinstance(decision, Hgb) else encode_range(call)
        if by_range is not None:
            range_keys, codes, groups = by_range
            why = "the keys lie in a narrow range"
            decision = Decision(kernel="range", why=why, estimate=decision.estimate)
            seconds = time.perf_counter() - started
            run = run_of(call, decision, Counters(groups=groups), seconds=seconds)
            return Aggregated([Made(k, None, 0) for k in range_keys], [], run, False, codes)
    keys, call, run, counters = group(columns, requested, forced, encoded, decision)
    run = run._replace(seconds=time.perf_counter() - started)
    made_keys, outputs = write(call, counters)
    made_keys = keys.decoded(call, made_keys, run.groups)
    codes = encode(call, run.groups) if encoded else None
    return Aggregated(made_keys, outputs, run, keys.query.form.is_gathered, codes)


def prepare(queries: Iterable[Query], *units: str) -> None:
    """Compile, side by side, or load some units that calls of many rows need, or all."""
    device, units_of_queries = current_device(), []
    for query in queries:
        forms = representations_of(query)
        units_of_queries += [(kernels_of(form, device), units) for form in forms]
    kernels.prepare(units_of_queries)


# ---- attempts ------------------------------------------------------------------------------------

# The report, and the counters from which columns are made.
Done = tuple[Run, Counters]
Remember = Callable[[Run], None]

_ALGORITHMS: dict[type[Decision], Callable[[Call, Any], Done | None]] = {
    Direct: direct,
    Hgb: hgb,
    Lphga: lphga,
    Partitioned: pgb,
    Sgb: sgb,
    SpEga: sp_ega,
}


class Grouped(NamedTuple):
    """All groups, not yet as columns."""

    keys: Keys
    call: Call
    run: Run
    counters: Counters


@dataclass
class Attempt:
    """A kernel for a call by keys in one form."""

    keys: Keys
    call: Call
    decision: Decision
    # takes the report of an attempt that holds all groups
    remember: Remember | None = None
    # launched before the kernels, which then do nothing for rows unlike those expected
    check: Callable[[], None] | None = None
    # whether all rows go to a table in global memory that grows, instead of the decision's kernel
    rehashed: bool = False
    # whether another attempt may follow where device memory does not suffice for this one
    spares_memory: bool = False
    # whether it took all rows, but some word may stand for several keys, or for none
    ambiguous: bool = False
    # the allocator's message where device memory did not suffice
    refused: str | None = None

    def run(self) -> Done | None:
        """The groups; None, and nothing left of the attempt, if it cannot take all rows."""
        call = self.call
        kind: type[Decision] = Lphga if self.rehashed else type(self.decision)
        if len(call.pieces) > 1 and not kind.takes_pieces:
            raise NeedsWholeColumns(self.decision.kernel)
        algorithm = next(run for base, run in _ALGORITHMS.items() if issubclass(kind, base))
        arguments, held = Args.from_buffer_copy(call.args), len(call.held)
        call.check = self.check
        done = None
        try:
            done = algorithm(call, self.decision)
        except KernelsCompiling:
            # the other kernels of the decision compile side by side with the missing one
            begin(call.query, call.device, self.decision)
            raise
        except MemoryError as error:
            if not self.spares_memory:
                raise
            # not the error itself, whose traceback keeps the attempt's buffers
            self.refused = str(error)
        finally:
            # it refers to the call, which would live until the garbage collector runs
            call.check = None
        if done is None:
            # roll back: release this attempt's buffers
            del call.held[held:]
            call.args, call.early = arguments, None
        return done


def group(
    columns: Columns, requested: Query, forced: str, encoded: bool, decision: Decision | None = None
) -> Grouped:
    """Group rows by the first attempt that holds all groups.

    ``forced`` is ``auto`` or a kernel, ``encoded`` whether rows will be looked up in the table of
    the groups, and ``decision`` that for the keys as they come, where it is taken already.
    """
    if columns.rows == 0:
        keys = Keys(requested)
        call = keys.call(columns)
        return Grouped(keys, call, Run(decide(call, forced, None), 0, 0), Counters())
    for attempt in Ladder(columns, requested, forced, encoded, decision).attempts():
        done = attempt.run()
        if done is None:
            continue
        run, counters = done
        if not attempt.keys.is_ambiguous(counters):
            if attempt.remember is not None:
                attempt.remember(run)
            return Grouped(attempt.keys, attempt.call, run, counters)
        attempt.ambiguous = True
        attempt.call.held.clear()
    raise AssertionError("keys by row are never ambiguous, yet no attempt held all groups")


@dataclass
class Ladder:
    """The attempts at one group-by, see ``group``: each is made when those before have failed."""

    columns: Columns
    requested: Query
    forced: str
    encoded: bool
    decision: Decision | None = None

    def attempts(self) -> Iterator[Attempt]:
        """Attempts by the keys in each form."""
        for keys in self._forms():
            call = _begin(keys, self.columns)
            yield from self._of_form(keys, call)
            self.decision = None
            # the buffers of this form are released before the next is made
            call.held.clear()

    def _forms(self) -> Iterator[Keys]:
        """The keys in narrower forms first, by row last."""
        columns, requested, auto = self.columns, self.requested, self.forced == "auto"
        narrowest = Keys(requested)
        if requested.form.made_words and columns.rows >= summary.SAMPLED_FROM:
            slots = auto or self.forced in ("direct", "pgb", "pgb_ur", "pgb_fold")
            narrowest = narrowest_keys(columns.call(requested), slots and not self.encoded)
        keys: Keys | None = narrowest
        while keys is not None:
            yield keys
            keys = keys.wider(columns)

    def _of_form(self, keys: Keys, call: Call) -> Iterator[Attempt]:
        """Attempts with the keys in one form; the last is one whose words were ambiguous.

        The previous partition's decision is repeated first. Keys that fit a word may be numbered by
        the combinations of their values instead.
        """
        query, forced, encoded = call.query, self.forced, self.encoded
        decision, remember = self.decision, None
        if decision is None:
            before = None if encoded else repeat.expectation(call, forced)
            sample = Sample(call) if before is not None or sampled(call, forced) else None
            if before is not None and sample is not None:
                attempt = self._repeated(keys, call, sample, before)
                yield attempt
                repeat.refused(call, forced)
                if attempt.ambiguous:
                    if before.ranged is None:
                        return
                    # values that only the sample has none of
                    remember_out_of_range(query, call.key_labels)
            decision = decide(call, forced, sample, encoded)
            if sample is not None and not encoded:
                if query.may_fill or query.may_be_stepped:
                    yield from self._ranged(call, sample, decision)
                remember = partial(_remember, call, forced, sample, decision, None)
        # words that were made for other values than occur
        if query.form.is_checked_early and call.counters().ambiguous:
            return
        if encoded and not decision.leaves_table:
            decision = choose.decide(query, call.rows, decision.estimate, call.device, "lphga")
        yield from self._decided(keys, call, decision, remember)

    def _repeated(
        self, keys: Keys, call: Call, sample: Sample, before: repeat.Expectation
    ) -> Attempt:
        """The decision for earlier rows, which holds where the device finds this sample alike."""
        target = call
        if before.ranged is not None:
            keys = before.ranged
            target = _begin(keys, self.columns)
        return Attempt(
            keys,
            target,
            before.decision,
            partial(repeat.judge, call, self.forced),
            partial(repeat.check, call, sample, before, target.args.counters),
            # these rows may need much less memory than those before
            spares_memory=True,
        )

    def _ranged(self, call: Call, sample: Sample, decision: Decision) -> Iterator[Attempt]:
        """Attempts with the keys numbered by their values' combinations, if these get slots."""
        ranged = ranged_keys_of(call, sample, decision)
        if ranged is None or decision.estimate is None:
            return
        codes = combinations(ranged.ranges)
        # words of hot keys are others
        estimate = replace(
            decision.estimate.within(codes), bounds=(0, codes - 1), ascending=False, hot=()
        )
        other = _decision(call, ranged.query, estimate, self.forced)
        if not (isinstance(other, Direct) or (isinstance(other, Partitioned) and other.window)):
            return
        if ranged.step:
            other = replace(other, why=f"keys lie {ranged.step:,} apart; {other.why}")
        remember = partial(_remember, call, self.forced, sample, other, ranged)
        yield from self._decided(ranged, _begin(ranged, self.columns), other, remember)
        remember_out_of_range(call.query, call.key_labels)

    def _decided(
        self, keys: Keys, call: Call, decision: Decision, remember: Remember | None
    ) -> Iterator[Attempt]:
        """The decision, then others where the rows or the memory do not admit it."""
        while True:
            attempt = Attempt(keys, call, decision, remember, spares_memory=self.forced == "auto")
            yield attempt
            if attempt.ambiguous:
                return
            if attempt.refused is not None:
                less = with_less_memory(call.query, call.rows, decision, call.device)
                if less is None:
                    raise MemoryError(attempt.refused)
                decision = less
            elif decision.needs_sampled_keys:
                decision = _other_decision(call, decision, self.forced)
            else:
                break
        yield Attempt(keys, call, decision, remember, rehashed=True)


def _begin(keys: Keys, columns: Columns) -> Call:
    """A call by the keys in one form, with its counters and their words."""
    call = keys.call(columns)
    args = call.args
    args.counters = call.allocate(ctypes.sizeof(Counters)).ptr
    args.rows = args.end = call.rows
    args.probes = tables.PROBES
    if call.query.form.may_be_ambiguous:
        zero(call, args.counters, ctypes.sizeof(Counters) // 4)
    keys.make(call)
    return call


def _remember(
    call: Call,
    forced: str,
    sample: Sample,
    decision: Decision,
    ranged: RangedKeys | None,
    run: Run,
) -> None:
    """Keep a decision that did well for the next partition."""
    well = run.decision is decision and not run.restarted
    repeat.keep(call, forced, decision if well else None, sample.numbers, run.spilled, ranged)


def decide(call: Call, forced: str, sample: Sample | None, encoded: bool = False) -> Decision:
    """The kernel for the rows of a call, by their sample."""
    estimate = estimated(call, forced, sample) if sample else None
    if encoded and estimate is not None:
        # rows are looked up by linear probing, so no other way of finding a slot will do
        estimate = replace(estimate, bounds=summary.ANY_WORD)
    return _decision(call, call.query, estimate, forced)


def _decision(call: Call, query: Query, estimate: KeySummary | None, forced: str) -> Decision:
    """The kernel that is expected to be the fastest."""
    costs = known(call.device).costs
    return choose.decide(query, call.rows, estimate, call.device, forced, costs, call.values)


def _other_decision(call: Call, decision: Decision, forced: str) -> Decision:
    """Another kernel for rows that are not sorted, or of which many lie outside of a window."""
    estimate = decision.estimate
    if forced == decision.kernel or estimate is None:
        return _decision(call, call.query, estimate, "lphga")
    bounds = summary.ANY_WORD if isinstance(decision, Direct) else estimate.bounds
    estimate = replace(estimate, ascending=False, bounds=bounds)
    return _decision(call, call.query, estimate, forced)
