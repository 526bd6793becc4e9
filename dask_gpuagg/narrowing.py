"""Quantiles of groups whose rows stay where they are: what is looked for, and from how many rows.

An exact quantile is one or two order statistics of its group. Few groups of many rows need no
exchange of rows for it (Floyd, Rivest 1975: SELECT; Munro, Paterson 1980: selection in passes):

1. **sample**: of each chunk one row in ``stride``, at places that do not depend on the values;
2. **aim**: the samples together give, for each group and quantile, a bracket ``low, high`` that is
   likely to hold the order statistics. Where they show that there are many more groups than was
   thought, most rows would be inside: then all rows are brought together at once;
3. **count**: each chunk counts the rows below a bracket, at its ends, inside and above, and keeps
   those inside;
4. **widen**: the counts of all chunks tell the rank of each end. A bracket that misses gives way to
   one that holds the ranks for sure;
5. **recount**: once more for such groups; mostly there are none, and nothing is read;
6. **pick**: the ranks that are left are looked up among the rows that were kept.

So the result is exact whatever the sample was; a bad sample costs a pass over the rows. Brackets
that hold by guarantee, from local quantiles of each chunk, would save the step of the second count,
two short tasks; but each chunk would have to order its rows in each group, which takes much longer
than reading them twice. Counting digits, as a radix sort does, takes six to eight passes.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_gpuagg.aggregations import Kind
from dask_gpuagg.plan import Output, Plan
from dask_gpuagg.states import STATES

# A bracket's width on either side, in standard deviations of a rank in the sample, and in ranks:
# one of 150,000 brackets misses its quantile.
ERRORS = 4.5
SPARE = 3.0

# with the others quantiles of integers are integers again, unless a group is empty
_FLOATS = ("linear", "midpoint")


@dataclass(frozen=True, slots=True)
class Target:
    """A quantile of each group: a position in ``Plan.columns``, and from 0 to 1."""

    column: int
    q: float


def targets(plan: Plan) -> tuple[Target, ...]:
    """The quantiles that a plan looks for, each once."""
    return tuple(dict.fromkeys(target_of(o) for o in plan.outputs if o.kind is Kind.WHOLE))


def target_of(output: Output) -> Target:
    """The quantile that an output is made of."""
    assert output.column is not None
    return Target(output.column, float(dict(output.parameters).get("q", 0.5)))


def interpolation_of(output: Output) -> str:
    """The interpolation between two order statistics, in pandas' words."""
    return str(dict(output.parameters).get("interpolation", "linear"))


def is_narrowed(plan: Plan) -> bool:
    """Whether all whole groups of a plan are quantiles of plain numbers."""
    outputs = [output for output in plan.outputs if output.kind is Kind.WHOLE]
    return (
        plan.shape == "groups"
        and bool(outputs)
        and all(_is_quantile(output, plan) for output in outputs)
        and not any(STATES[use.state].by_partition for use in plan.states)
    )


def _is_quantile(output: Output, plan: Plan) -> bool:
    if output.aggregation not in ("median", "quantile"):
        return False
    target = target_of(output)
    dtype = plan.columns[target.column].dtype
    plain = isinstance(dtype, np.dtype) and dtype.kind in "iuf" and dtype != np.float16
    return plain and 0 <= target.q <= 1 and interpolation_of(output) in _FLOATS


def stride_of(rows: int, groups: int) -> int:
    """Rows of which one is sampled, a power of two.

    A sample of one row in r is r times smaller than the input, and brackets of a group of n rows
    hold ``ERRORS * sqrt(r / n)`` of them. Both travel and are sorted, so their sum is minimised.
    """
    of_group = max(rows / max(groups, 1), 1.0)
    best = (2.0 * math.sqrt(of_group) / ERRORS) ** (2.0 / 3.0)
    return int(2 ** max(1, round(math.log2(max(best, 1.0)))))


def rows_inside(rows: int, groups: int, stride: int) -> int:
    """Rows that the brackets of one quantile are expected to hold, at most.

    Exact for medians and groups of one size; skewed groups have less in all.
    """
    of_group = max(rows / max(groups, 1), 1.0)
    return round(rows * share_inside(np.array([of_group / stride])))


def share_inside(sampled: npt.NDArray[Any]) -> float:
    """The share of all rows that the brackets of one quantile are expected to hold, at most.

    ``sampled`` are the rows of each group in the sample; of a group of few all rows are inside.
    """
    of_brackets = ERRORS * np.sqrt(sampled) + 2 * SPARE + 2
    return float(np.minimum(sampled, of_brackets).sum() / (sampled.sum() or 1))
