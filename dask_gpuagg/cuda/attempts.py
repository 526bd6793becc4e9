"""Attempts at a group-by, until one holds all groups: representation of the keys, decision, run.

The query that was asked for is ``asked``. ``call.query`` is the same with its keys in one
representation, ``decision.partition_query(call.query)`` what its partitions are compiled for.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from dask_gpuagg.cuda.ahead import begin
from dask_gpuagg.cuda.algorithms.direct import direct
from dask_gpuagg.cuda.algorithms.hash_tables import hgb, lphga
from dask_gpuagg.cuda.algorithms.key_runs import sgb
from dask_gpuagg.cuda.algorithms.pgb import pgb
from dask_gpuagg.cuda.algorithms.sp_ega import sp_ega
from dask_gpuagg.cuda.call.call import Args, Call, Counters, NeedsWholeColumns, Run, zero
from dask_gpuagg.cuda.call.inputs import Columns
from dask_gpuagg.cuda.choice import choose, summary, tables
from dask_gpuagg.cuda.choice.choose import that_fits, with_less_memory
from dask_gpuagg.cuda.choice.costs import known
from dask_gpuagg.cuda.choice.decision import (
    Decision,
    Direct,
    Hgb,
    Lphga,
    Partitioned,
    Sgb,
    SpEga,
)
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.dictionary import dictionary_of, is_known, may_have_dictionary
from dask_gpuagg.cuda.keys.codes import make_codes
from dask_gpuagg.cuda.keys.ranges import Numbering, remember_out_of_range
from dask_gpuagg.cuda.keys.words import make_words, narrowed, verified
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.runtime.background import KernelsCompiling
from dask_gpuagg.cuda.sampling import repeat
from dask_gpuagg.cuda.sampling.sample import Sample, estimated, numbering_of, sampled

# The report, and the counters from which columns are made.
Done = tuple[Run, Counters]

_ALGORITHMS: dict[type[Decision], Callable[[Call, Any], Done | None]] = {
    Direct: direct,
    Hgb: hgb,
    Lphga: lphga,
    Partitioned: pgb,
    Sgb: sgb,
    SpEga: sp_ega,
}
# Those that read rows one after another.
_IN_PIECES = (direct, hgb, lphga, pgb)


class Grouped(NamedTuple):
    """All groups, not yet as columns: the call that has made them, its report and counters."""

    call: Call
    run: Run
    counters: Counters


@dataclass
class Attempt:
    """A kernel, and the call that it makes the groups of.

    Attributes
    ----------
    call : Call
    decision : Decision
    remember : callable, optional
        Takes the report of an attempt that holds all groups.
    check : callable, optional
        Launched before the kernels, which then do nothing for rows unlike those expected.
    rehashed : bool
        Whether all rows go to a table in global memory that grows, because the kernel of the
        decision did not take them.
    spares_memory : bool
        Whether another attempt may follow where device memory does not suffice for this one.
    doubted : bool
        Whether it took all rows, but some word may stand for several keys, or for none.
    refused : str, optional
        What the allocator said where device memory did not suffice.
    """

    call: Call
    decision: Decision
    remember: Callable[[Run], None] | None = None
    check: Callable[[], None] | None = None
    rehashed: bool = False
    spares_memory: bool = False
    doubted: bool = False
    refused: str | None = None

    def run(self) -> Done | None:
        """The groups; None, and nothing left of the attempt, if it cannot take all rows.

        Raises
        ------
        NeedsWholeColumns
        """
        call, algorithm = self.call, self._algorithm()
        if len(call.pieces) > 1 and algorithm not in _IN_PIECES:
            raise NeedsWholeColumns(self.decision.kernel)
        arguments, held = Args.from_buffer_copy(call.args), len(call.held)
        call.check = self.check
        done = None
        try:
            done = algorithm(call, self.decision)
        except KernelsCompiling:
            # what it would have launched next compiles side by side with what it lacks
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

    def _algorithm(self) -> Callable[[Call, Any], Done | None]:
        if self.rehashed:
            return lphga
        return next(run for of, run in _ALGORITHMS.items() if isinstance(self.decision, of))


def group(
    columns: Columns, asked: Query, forced: str, encoded: bool, decision: Decision | None = None
) -> Grouped:
    """Group rows by the first attempt that holds all groups.

    Parameters
    ----------
    columns : Columns
    asked : Query
    forced : str
        ``auto`` or the kernel that is wanted.
    encoded : bool
        Whether rows will be looked up in the table of the groups.
    decision : Decision, optional
        Where it has been made for the keys as they come.

    Returns
    -------
    Grouped

    Raises
    ------
    MemoryError
        Where device memory does not suffice for any attempt.
    """
    if columns.rows == 0:
        call = columns.call(asked)
        return Grouped(call, Run(decide(call, forced, None), 0, 0), Counters())
    for attempt in _attempts(columns, asked, forced, encoded, decision):
        done = attempt.run()
        if done is None:
            continue
        call, (run, counters) = attempt.call, done
        if call.query.family == "Hashed":
            counters = verified(call, counters)
        if not _is_doubted(call, counters):
            if attempt.remember is not None:
                attempt.remember(run)
            return Grouped(call, run, counters)
        attempt.doubted = True
        call.held.clear()
        call.dictionary = None
    raise AssertionError("keys by row are never in doubt")


def _attempts(
    columns: Columns, asked: Query, forced: str, encoded: bool, decision: Decision | None
) -> Iterator[Attempt]:
    """Each is asked for when those before have failed."""
    for call in _representations(columns, asked, forced, encoded):
        _begin(call)
        if call.query.coded:
            make_codes(call)
        elif call.query.made_words:
            make_words(call)
        yield from _of_representation(columns, call, forced, encoded, decision)
        decision = None
        # in doubt: the buffers of this representation are released before the next is made
        call.held.clear()


def _representations(columns: Columns, asked: Query, forced: str, encoded: bool) -> Iterator[Call]:
    """Calls with narrower representations of the keys first, keys by row last."""
    query, extra, codes = asked, None, None
    texts = not encoded and forced == "auto" and may_have_dictionary(columns, asked)
    if texts and is_known(columns, asked):
        yield from _by_dictionary(columns, asked)
    if asked.made_words and columns.rows >= summary.SAMPLED_FROM:
        slots = not encoded and forced in ("auto", "direct", "pgb", "pgb_ur", "pgb_fold")
        query, extra, codes = narrowed(columns.call(asked), slots)
    if texts and query.family == "Hashed":
        yield from _by_dictionary(columns, asked)
    yield columns.call(query, extra or (), codes)
    if codes is not None and codes.near:
        # values that the sample has none of
        remember_out_of_range(asked, columns.about)
        query, extra, codes = narrowed(columns.call(asked), slots)
        yield columns.call(query, extra, codes)
    if query.coded:
        # keys unlike those of the sample
        query = replace(query, coded=False)
        yield columns.call(query)
    if query.ranged:
        # values outside of the ranges that the sample saw
        query = replace(query, ranged=False, two_words=False, stepped=False)
        remember_out_of_range(query, columns.about)
        yield columns.call(query)
    # two keys share a word: so rare that doing everything again is the best answer
    yield columns.call(replace(query, by_row=True))


def _by_dictionary(columns: Columns, asked: Query) -> Iterator[Call]:
    """The call by the numbers of a dictionary, if there is one."""
    dictionary = None
    with suppress(MemoryError):  # hashed strings need no numbers beside them
        dictionary = dictionary_of(columns, asked)
    if dictionary is not None:
        call = dictionary.columns.call(dictionary.query)
        call.dictionary = dictionary
        yield call


def _begin(call: Call) -> None:
    """Counters, and what else of the arguments no kernel chooses."""
    args, query = call.args, call.query
    args.counters = call.allocate(ctypes.sizeof(Counters)).ptr
    args.rows = args.end = call.rows
    args.probes = tables.PROBES
    if _may_be_doubted(query):
        zero(call, args.counters, ctypes.sizeof(Counters) // 4)
    if query.family == "Ranged":
        for columns, _, _ in call.pieces:
            ranges = columns[len(columns) - len(query.keys)]
            ranges.mask = args.counters + Counters.doubt.offset


def _may_be_doubted(query: Query) -> bool:
    """Whether a word may turn out to stand for several keys, or for none."""
    return query.made_words > 0 or query.family == "Ranged"


def _is_doubted(call: Call, counters: Counters) -> bool:
    """Whether it did, after all rows were grouped."""
    if call.dictionary is not None:
        return bool(call.dictionary.is_full())
    return _may_be_doubted(call.query) and bool(counters.doubt)


def _of_representation(
    columns: Columns, call: Call, forced: str, encoded: bool, decision: Decision | None
) -> Iterator[Attempt]:
    """Attempts with the representation of one call; none after one that is in doubt.

    The previous partition's decision is repeated first. Keys that fit a word may be numbered by
    the combinations of their values instead.
    """
    query, remember = call.query, None
    if decision is None:
        before = None if encoded else repeat.expectation(call, forced)
        sample = Sample(call) if before is not None or sampled(call, forced) else None
        if before is not None and sample is not None:
            attempt = _repeated(columns, call, forced, sample, before)
            yield attempt
            repeat.refused(call, forced)
            if attempt.doubted and before.numbering is None:
                return
            if attempt.doubted:
                # values that only the sample has none of
                remember_out_of_range(query, call.about)
        decision = decide(call, forced, sample, encoded)
        if sample is not None and not encoded:
            if query.may_fill or query.may_be_stepped:
                yield from _numbered(columns, call, forced, sample, decision)
            remember = partial(_remember, call, forced, sample, decision, None)
    # words that were made for other values than occur
    if (query.coded or query.two_words) and call.counters().doubt:
        return
    if encoded and isinstance(decision, Partitioned | Sgb | SpEga):
        # they leave no table in which rows could be looked up by linear probing
        decision = choose.decide(query, call.rows, decision.estimate, call.device, "lphga")
    yield from _decided(call, decision, forced, remember)


def _repeated(
    columns: Columns, call: Call, forced: str, sample: Sample, before: repeat.Expectation
) -> Attempt:
    """The decision for earlier rows, which holds where the device finds this sample alike."""
    target = call
    if before.numbering is not None:
        target = columns.call(before.numbering.query, before.numbering.columns)
        _begin(target)
    return Attempt(
        target,
        before.decision,
        partial(repeat.judge, call, forced),
        partial(repeat.check, call, sample, before, target.args.counters),
        # these rows may need much less memory than those before
        spares_memory=True,
    )


def _numbered(
    columns: Columns, call: Call, forced: str, sample: Sample, decision: Decision
) -> Iterator[Attempt]:
    """Attempts with the keys numbered by their values' combinations, if these get slots."""
    numbering = numbering_of(call, sample, decision)
    if numbering is None or decision.estimate is None:
        return
    codes = math.prod(codes for _, codes in numbering.ranges)
    # words of hot keys are others
    estimate = replace(
        decision.estimate.within(codes), bounds=(0, codes - 1), ascending=False, hot=()
    )
    other = _decision(call, numbering.query, estimate, forced)
    if not (isinstance(other, Direct) or (isinstance(other, Partitioned) and other.window)):
        return
    if numbering.query.stepped:
        other = replace(other, why=f"{numbering.said}; {other.why}")
    numbered = columns.call(numbering.query, numbering.columns)
    _begin(numbered)
    remember = partial(_remember, call, forced, sample, other, numbering)
    yield from _decided(numbered, other, forced, remember)
    remember_out_of_range(call.query, call.about)


def _decided(
    call: Call, decision: Decision, forced: str, remember: Callable[[Run], None] | None
) -> Iterator[Attempt]:
    """The decision, then others where the rows or the memory do not admit it.

    Raises
    ------
    MemoryError
        With the allocator's message, where no kernel needs less.
    """
    query, costs = call.query, known(call.device).costs
    while True:
        attempt = Attempt(call, decision, remember, spares_memory=forced == "auto")
        yield attempt
        if attempt.doubted:
            return
        if attempt.refused is not None:
            device, values = call.device, call.values
            less = with_less_memory(query, call.rows, decision, device, costs, values)
            if less is None:
                raise MemoryError(attempt.refused)
            decision = less
        elif isinstance(decision, Sgb | Direct):
            decision = choose.decide_again(
                query, call.rows, decision, call.device, forced, costs, call.values
            )
        else:
            break
    yield Attempt(call, decision, remember, rehashed=True)


def _remember(
    call: Call,
    forced: str,
    sample: Sample,
    decision: Decision,
    numbering: Numbering | None,
    run: Run,
) -> None:
    """Keep a decision that did well for the next partition."""
    well = run.decision is decision and not run.restarted
    repeat.keep(call, forced, decision if well else None, sample.numbers, run.spilled, numbering)


def decide(call: Call, forced: str, sample: Sample | None, encoded: bool = False) -> Decision:
    """The kernel for the rows that the sample is of."""
    estimate = estimated(call, forced, sample) if sample else None
    if encoded and estimate is not None:
        # rows are looked up by linear probing, so no other way of finding a slot will do
        estimate = replace(estimate, bounds=summary.ANY_WORD)
    return _decision(call, call.query, estimate, forced)


def _decision(call: Call, query: Query, estimate: KeySummary | None, forced: str) -> Decision:
    """The best kernel of those that device memory has room for."""
    costs, device = known(call.device).costs, call.device
    decision = choose.decide(query, call.rows, estimate, device, forced, costs, call.values)
    if forced != "auto":
        return decision
    return that_fits(query, call.rows, decision, device, call.has_room, costs, call.values)
