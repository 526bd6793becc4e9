"""Keys that fit a word as the numbers of what their columns hold, which a sample shows."""

from __future__ import annotations

from dask_gpuagg.cuda.call.call import Call
from dask_gpuagg.cuda.choice.decision import Decision, Direct, Hgb, Partitioned, Sgb
from dask_gpuagg.cuda.keys import steps
from dask_gpuagg.cuda.keys.ranges import Numbering, numbered_by_ranges
from dask_gpuagg.cuda.keys.steps import numbered_by_steps
from dask_gpuagg.cuda.sampling.sample import Sample

# Groups that lie in steps, at least: fewer have one hash table in shared memory either way.
_STEPPED_GROUPS = 1000


def numbering_of(call: Call, sample: Sample, decision: Decision) -> Numbering | None:
    """The numbers by which keys may have slots that they have not as they are.

    Parameters
    ----------
    call : Call
    sample : Sample
        Of its rows.
    decision : Decision
        For the keys as they are.

    Returns
    -------
    Numbering or None
        None where there are too many numbers, or where another decision would be no better.
    """
    query, estimate = call.query, decision.estimate
    if estimate is None or isinstance(decision, Sgb):
        return None
    if query.may_fill:
        # one hash table in shared memory takes packed words faster than their numbers are made
        if isinstance(decision, Hgb):
            return None
        return numbered_by_ranges(query, sample.ranges, call.rows, call.about)
    dense = isinstance(decision, Direct) or (isinstance(decision, Partitioned) and decision.window)
    few = call.rows < steps.STEPPED_ROWS or estimate.groups < _STEPPED_GROUPS
    if dense or few or estimate.skewed:
        return None
    return numbered_by_steps(query, sample.some_words(), estimate.bounds, call.rows, call.about)
