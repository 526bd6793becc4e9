"""From the sample to the groups: what is decided, by rows before or by these, and done."""

from __future__ import annotations

import contextlib
import ctypes
import math
from dataclasses import replace

from dask_gpuagg.cuda.algorithms.direct import direct
from dask_gpuagg.cuda.algorithms.hash_tables import hgb, lphga
from dask_gpuagg.cuda.algorithms.key_runs import sgb
from dask_gpuagg.cuda.algorithms.pgb import pgb
from dask_gpuagg.cuda.algorithms.sp_ega import sp_ega
from dask_gpuagg.cuda.call.call import Args, Call, Counters, Run, zero
from dask_gpuagg.cuda.call.inputs import Columns
from dask_gpuagg.cuda.choice import choose
from dask_gpuagg.cuda.choice import summary as cardinality
from dask_gpuagg.cuda.choice.costs import known
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Hgb, Partitioned, Sgb, SpEga
from dask_gpuagg.cuda.keys.codes import make_codes
from dask_gpuagg.cuda.keys.words import filling, make_words, range_columns, strayed, verified
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.sampling import repeat
from dask_gpuagg.cuda.sampling.sample import Sample, estimated, sampled

# The report, and the counters from which columns are made.
Done = tuple[Run, Counters]
# The call that was made besides: of another form of the keys, perhaps.
Grouped = tuple[Call, Run, Counters]


def grouped(
    columns: Columns, call: Call, forced: str, encoded: bool, decision: Decision | None = None
) -> Grouped | None:
    """All groups, not yet as columns; None if some word may stand for several keys.

    ``decision`` is the one for this call where it has been made.
    """
    query = call.query
    if call.rows == 0:
        return call, Run(decide(call, forced, None), 0, 0), Counters()
    _begin(call)
    if query.coded:
        make_codes(call)
    elif query.made_words:
        make_words(call)
    done: Done | None = None
    sample = None
    if decision is None:
        if not (encoded or query.coded):
            made, sample = _as_expected(columns, call, forced)
            if made is not None:
                call, done = made[0], made[1:]
        if done is None:
            if sample is None and sampled(call, forced):
                sample = Sample(call)
            decision = decide(call, forced, sample, encoded)
            if sample is not None and query.may_fill and not encoded:
                made = _filling(columns, call, forced, sample, decision)
                if made is not None:
                    return made
    if query.coded and call.counters().doubt:
        return None
    if done is None:
        assert decision is not None
        done = _as_decided(call, decision, forced, encoded, sample)
    run, counters = done
    if query.family == "Hashed":
        counters = verified(call, counters)
    return None if _checked(call.query) and counters.doubt else (call, run, counters)


def _begin(call: Call) -> None:
    """Counters, and what else of the arguments no kernel chooses."""
    args, query = call.args, call.query
    args.counters = call.allocate(ctypes.sizeof(Counters)).ptr
    args.rows = call.rows
    args.probes = choose.PROBES
    if _checked(query):
        zero(call, args.counters, ctypes.sizeof(Counters) // 4)
    if query.family == "Ranged":
        call.columns[len(call.columns) - len(query.keys)].mask = (
            args.counters + Counters.doubt.offset
        )


def _checked(query: Query) -> bool:
    """Whether a word may turn out to stand for several keys, or for none."""
    return query.made_words > 0 or query.family == "Ranged"


def _filling(
    columns: Columns, call: Call, forced: str, sample: Sample, decision: Decision
) -> Grouped | None:
    """The groups by numbers of the keys' combinations; None if these have no slots of their own."""
    # one hash table in shared memory takes packed words faster than their numbers are made
    if decision.estimate is None or isinstance(decision, Sgb | Hgb):
        return None
    form = filling(call.query, sample.ranges, call.rows, call.about)
    if form is None:
        return None
    query, ranges = form
    numbers = 0, math.prod(codes for _, codes in ranges) - 1
    # words of hot keys are others
    estimate = replace(decision.estimate, bounds=numbers, ascending=False, hot=())
    costs = known(call.device).costs
    other = choose.decide(query, call.rows, estimate, call.device, forced, costs, call.values)
    if not (isinstance(other, Direct) or (isinstance(other, Partitioned) and other.window)):
        return None
    made = grouped(columns, columns.call(query, range_columns(ranges)), forced, False, other)
    if made is None:
        strayed(call.query, call.about)
        return None
    run = made[1]
    well = run.decision is other and not run.restarted
    repeat.keep(call, forced, other if well else None, sample.numbers, run.spilled, form)
    return made


def _as_expected(columns: Columns, call: Call, forced: str) -> tuple[Grouped | None, Sample | None]:
    """The groups by the decision for rows before, and the sample where there is such a decision.

    None of the first if these rows turn out to be unlike those.
    """
    known = repeat.expectation(call, forced)
    if known is None:
        return None, None
    target = call
    if known.form is not None:
        query, ranges = known.form
        target = columns.call(query, range_columns(ranges))
        _begin(target)
    sample, held = Sample(call), len(target.held)
    before = Args.from_buffer_copy(target.args)

    def check() -> None:
        pointers = ctypes.c_void_p(sample.summary), known.expected, ctypes.c_void_p(before.counters)
        # by the kernels that took the sample: those of another form may need no other of this unit
        call.launch("check", 1, 32, *pointers)

    target.check = check
    done = None
    # these rows may need much less memory than those before
    with contextlib.suppress(MemoryError):
        try:
            done = _taken(target, known.decision)
        finally:
            # it refers to the call, which would live until the garbage collector runs
            target.check = None
    if done is not None and known.form is not None and done[1].doubt:
        # values that only the sample has none of
        strayed(call.query, call.about)
        done = None
    if done is not None:
        repeat.judge(call, forced, done[0])
        return (target, *done), sample
    repeat.refused(call, forced)
    # as if nothing had been done; what it has allocated goes
    del target.held[held:]
    target.args, target.early = before, None
    return None, sample


def _as_decided(
    call: Call, decision: Decision, forced: str, encoded: bool, sample: Sample | None
) -> Done:
    """The groups by a decision, or by others where the rows do not admit it."""
    query, first = call.query, decision
    if encoded and isinstance(decision, Partitioned | Sgb | SpEga):
        # they leave no table in which rows could be looked up by linear probing
        decision = choose.decide(query, call.rows, decision.estimate, call.device, "lphga")
    done = None
    while done is None and isinstance(decision, Sgb | Direct):
        done = sgb(call, decision) if isinstance(decision, Sgb) else direct(call, decision)
        if done is None:
            costs = known(call.device).costs
            decision = choose.decide_again(
                query, call.rows, decision, call.device, forced, costs, call.values
            )
    done = done or _taken(call, decision) or lphga(call, decision)
    run, _ = done
    if sample is not None and not encoded:
        alike = decision is first and not run.restarted
        repeat.keep(call, forced, decision if alike else None, sample.numbers, run.spilled)
    return done


def _taken(call: Call, decision: Decision) -> Done | None:
    """The groups by the kernel that was decided for; None if it cannot take all rows."""
    match decision:
        case Direct():
            return direct(call, decision)
        case Partitioned():
            return pgb(call, decision)
        case Hgb():
            return hgb(call, decision)
        case SpEga():
            return sp_ega(call, decision)
    return None


def decide(call: Call, forced: str, sample: Sample | None, encoded: bool = False) -> Decision:
    """The kernel for the rows that the sample is of."""
    estimate = estimated(call, forced, sample) if sample else None
    if encoded and estimate is not None:
        # rows are looked up by linear probing, so no other way of finding a slot will do
        estimate = replace(estimate, bounds=cardinality.ANY_WORD)
    costs = known(call.device).costs
    return choose.decide(call.query, call.rows, estimate, call.device, forced, costs, call.values)
