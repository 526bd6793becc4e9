"""Group-bys that are combined: ``a.groupby(k).x.sum() / b.groupby(k).x.sum()``.

Dask combines such results partition by partition, so they must agree on the number of outputs
and on where each group is. Stock Dask gets there by a rule that knows the number of input
partitions only; ours depends on the data, so partners have to decide together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dask.dataframe.dask_expr import _groupby as G
from dask.dataframe.dask_expr._concat import Concat
from dask.dataframe.dask_expr._expr import Blockwise, Expr, MaybeAlignPartitions
from dask.dataframe.dask_expr._repartition import Repartition

from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.trees import inputs, reached
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.planning.lower import choose_outputs
from dask_gpuagg.planning.route import Route, Routing
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy, note_fallback

# nodes that combine their inputs partition by partition; the others than the first kind do so
# where they do not know better, as for any two group-bys of different frames
PARTITION_WISE = (Blockwise, MaybeAlignPartitions, Concat)


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
    found = _below(node)
    return [group_by for group_by, _ in found.values()] if len(found) > 1 else []


def _below(node: Expr) -> dict[str, tuple[Any, set[bool]]]:
    """The group-bys that a node combines by name, and whether they are repartitioned first."""
    found: dict[str, tuple[Any, set[bool]]] = {}
    stack = [(below, False) for below in inputs(node)] if _combines(node) else []
    seen = set()
    while stack:
        below, repartitioned = stack.pop()
        if (below._name, repartitioned) in seen:
            continue
        seen.add((below._name, repartitioned))
        if logical.is_aggregation(below):
            found.setdefault(below._name, (below, set()))[1].add(repartitioned)
        elif _is_partition_wise(below):
            stack.extend((b, repartitioned) for b in inputs(below))
        elif isinstance(below, Repartition):
            stack.extend((b, True) for b in inputs(below))
    return found


def below_partition_wise(node: Expr) -> dict[str, Any]:
    """The group-bys whose outputs are the partitions of a node, by name."""
    found = filter(logical.is_aggregation, reached(node, _leads_on))
    return {group_by._name: group_by for group_by in found}


def _combines(node: Expr) -> bool:
    return _is_partition_wise(node) and len(inputs(node)) > 1


def _is_partition_wise(node: Any) -> bool:
    return isinstance(node, PARTITION_WISE) and not (isinstance(node, Concat) and node.axis != 1)


def _leads_on(node: Any) -> bool:
    return _is_partition_wise(node) and not logical.is_aggregation(node)


def decide_together(node: Expr) -> Expr | None:
    """Give all partners of a node that leave ``split_out`` open the same decision.

    They follow a partner whose ``split_out`` is given.

    Parameters
    ----------
    node : Expr

    Returns
    -------
    Expr or None
        The node with ``split_out`` filled in below it; ``None`` if there is nothing to do.
    """
    found = _below(node)
    # .median() has no split_out: Dask fixes its outputs
    group_bys = [g for g, _ in found.values() if "split_out" in g._parameters]
    undecided = [g for g in group_bys if g.operand("split_out") is None]
    if not undecided:
        return None
    if len(set().union(*(ways for _, ways in found.values()))) > 1:
        # the numbers of outputs that Dask promised when the query was written
        decisions = [_by_dask(g) for g in undecided]
    elif len(group_bys) < 2:
        return None
    else:
        given = {g.npartitions for g in group_bys if g.operand("split_out") is not None}
        if len(given) > 1:  # no number of outputs suits all
            return None
        decisions = [_as_given(*given) if given else _common(undecided)] * len(undecided)
    return decided(node, undecided, decisions)


def decided(node: Any, group_bys: Sequence[Any], decisions: Sequence[Routing]) -> Expr:
    """A node with ``split_out`` of group-bys below it filled in."""
    result: Any = node
    for group_by, decision in zip(group_bys, decisions, strict=True):
        one = group_by.substitute_parameters({"split_out": decision})
        result = result.substitute(group_by, one)
    substituted: Expr = result
    return substituted


def _by_dask(group_by: Any) -> Routing:
    outputs = G._adjust_split_out_for_group_keys(group_by.frame.npartitions, group_by.by)
    route = Route.TREE if outputs == 1 else Route.EXCHANGE
    return Routing(route, outputs, "Dask's own rule: combined with outputs that are repartitioned")


def _as_given(outputs: int) -> Routing:
    route = Route.TREE if outputs == 1 else Route.EXCHANGE
    return Routing(route, outputs, f"combined with a group-by of {outputs} outputs")


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


def runs_beside_stock(node: Expr, by_position: bool = False) -> list[str]:
    """Names of partners that must run with stock Dask because another one has to.

    Parameters
    ----------
    node : Expr
    by_position : bool
        Whether the node takes groups by position: then their order matters, too.

    Returns
    -------
    list of str
        Empty when all can be planned, or when each gives a single output anyway.
    """
    group_bys = partners(node)
    if not by_position and not any(g.npartitions > 1 for g in group_bys):
        return []
    # by name: comparing expressions with == makes another expression
    admitted = [g._name for g in group_bys if not logical.refusals(g)]
    return admitted if len(admitted) < len(group_bys) else []
