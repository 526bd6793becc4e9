"""Group-bys that are combined: ``a.groupby(k).x.sum() / b.groupby(k).x.sum()``.

Dask combines such results partition by partition, so they must agree on the number of outputs
and on where each group is. Stock Dask gets there by a rule that knows the number of input
partitions only; ours depends on the data, so partners have to decide together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dask.dataframe.dask_expr._expr import Blockwise, Expr, MaybeAlignPartitions
from dask.dataframe.dask_expr._repartition import Repartition

from dask_gpuagg.frontend import logical
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.planning.lower import choose_outputs
from dask_gpuagg.planning.route import Route, Routing
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy, note_fallback

# nodes that combine their inputs partition by partition; the second kind does so where it does
# not know better, as for any two group-bys of different frames
PARTITION_WISE = (Blockwise, MaybeAlignPartitions)


def partners(node: Expr) -> list[Any]:
    """The distinct group-by aggregations whose partitions a node combines.

    Parameters
    ----------
    node : Expr

    Returns
    -------
    list of Expr
        Found below the node through partition-wise operations and repartitioning; empty if fewer
        than two.
    """
    if not isinstance(node, PARTITION_WISE) or len(_inputs(node)) < 2:
        return []
    found: dict[str, Any] = {}
    stack = _inputs(node)
    while stack:
        below = stack.pop()
        if logical.is_aggregation(below):
            found[below._name] = below
        elif isinstance(below, (*PARTITION_WISE, Repartition)):
            stack.extend(_inputs(below))
    return list(found.values()) if len(found) > 1 else []


def _inputs(node: Any) -> list[Any]:
    return list(node.dependencies())


def decide_together(node: Expr) -> Expr | None:
    """Give all partners of a node that leave ``split_out`` open the same decision.

    Parameters
    ----------
    node : Expr

    Returns
    -------
    Expr or None
        The node with ``split_out`` filled in below it; ``None`` if there is nothing to do.
    """
    # .median() has no split_out: Dask fixes its outputs
    group_bys = [p for p in partners(node) if "split_out" in p._parameters]
    undecided = [p for p in group_bys if p.operand("split_out") is None]
    if len(undecided) < 2:
        return None
    decision = _common(undecided)
    result: Any = node
    for partner in undecided:
        decided = partner.substitute_parameters({"split_out": decision})
        result = result.substitute(partner, decided)
    substituted: Expr = result
    return substituted


def _common(group_bys: list[Any]) -> Routing:
    # where groups are placed in different ways, one output each is the only common ground
    try:
        if any(logical.refusals(g) for g in group_bys):
            return Routing(Route.TREE, 1, "combined with a group-by that stock Dask runs")
        decisions = [choose_outputs(logical.read(g)) for g in group_bys]
    except Unsupported as refusal:
        return Routing(Route.TREE, 1, refusal.reason)
    except UnsupportedGroupBy:
        raise
    except Exception as error:
        # decided separately, they could differ
        reason = f"the planner failed: {error!r}"
        for group_by in group_bys:
            what = logical.describe(group_by)
            note_fallback(group_by._name, what, reason, cause=error, how="has one output")
        return Routing(Route.TREE, 1, reason)
    widest = max(decisions, key=lambda d: d.outputs)
    return replace(widest, reason=f"{widest.reason}; combined with another group-by")


def runs_beside_stock(node: Expr) -> list[str]:
    """Names of partners that must run with stock Dask because another one has to.

    Parameters
    ----------
    node : Expr

    Returns
    -------
    list of str
        Empty when all can be planned, or when each gives a single output anyway.
    """
    group_bys = partners(node)
    if not any(g.npartitions > 1 for g in group_bys):
        return []
    # by name: comparing expressions with == makes another expression
    admitted = [g._name for g in group_bys if not logical.refusals(g)]
    return admitted if len(admitted) < len(group_bys) else []
