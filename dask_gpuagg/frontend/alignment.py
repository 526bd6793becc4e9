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
from dask.dataframe.dask_expr._shuffle import SortIndexBlockwise

from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.persisted_outputs import PersistedOutputs
from dask_gpuagg.frontend.sorted_outputs import gathered
from dask_gpuagg.frontend.trees import inputs
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
    found = [result for result, _ in _below(node).values() if logical.is_aggregation(result)]
    return found if len(found) > 1 else []


def _below(node: Expr) -> dict[str, tuple[Any, set[bool]]]:
    """The results that a node combines by name, and whether they are repartitioned first.

    Results are group-bys, and those that are persisted as one partition.
    """
    found: dict[str, tuple[Any, set[bool]]] = {}
    stack = [(below, False) for below in inputs(node)] if _combines(node) else []
    seen = set()
    while stack:
        below, repartitioned = stack.pop()
        if (below._name, repartitioned) in seen:
            continue
        seen.add((below._name, repartitioned))
        if is_result(below):
            found.setdefault(below._name, (below, set()))[1].add(repartitioned)
        elif is_partition_wise(below):
            stack.extend((b, repartitioned) for b in inputs(below))
        elif isinstance(below, Repartition):
            stack.extend((b, True) for b in inputs(below))
    return found


def _combines(node: Expr) -> bool:
    return is_partition_wise(node) and len(inputs(node)) > 1


def is_partition_wise(node: Any) -> bool:
    """Whether a node combines its inputs partition by partition."""
    return isinstance(node, PARTITION_WISE) and not (isinstance(node, Concat) and node.axis != 1)


def is_result(node: Any) -> bool:
    """Whether a node is a group-by, or a result that is persisted as one partition."""
    return logical.is_aggregation(node) or isinstance(node, PersistedOutputs)


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
    results = [result for result, _ in found.values() if "split_out" in result._parameters]
    undecided = [result for result in results if result.operand("split_out") is None]
    kept = [result for result in undecided if isinstance(result, PersistedOutputs)]
    ways = set().union(*(ways for _, ways in found.values()))
    if undecided and (len(ways) > 1 or (kept and True in ways and len(found) > 1)):
        return _divided_again(node, undecided)
    # .median() has no split_out: Dask fixes its outputs
    group_bys = [g for g in results if not isinstance(g, PersistedOutputs)]
    undecided = [g for g in group_bys if g.operand("split_out") is None]
    given = {g.npartitions for g in group_bys if g.operand("split_out") is not None}
    # one decides by itself; where several numbers are given, none suits all
    if not undecided or len(group_bys) < 2 or len(given) > 1:
        return None
    decision = _as_given(*given) if given else _common(undecided)
    return decided(node, undecided, [decision] * len(undecided))


def _divided_again(node: Any, results: Sequence[Any]) -> Expr:
    """Results with the outputs that Dask promised when the query was written.

    Two that are persisted are divided at the same groups where both are in the order of their keys.
    """
    made = node
    for result in results:
        if isinstance(result, PersistedOutputs):
            made = made.substitute(result, SortIndexBlockwise(gathered(result.frame)))
    group_bys = [g for g in results if not isinstance(g, PersistedOutputs)]
    return decided(made, group_bys, [by_dask(g) for g in group_bys])


def decided(node: Any, group_bys: Sequence[Any], decisions: Sequence[Routing]) -> Expr:
    """A node with ``split_out`` of group-bys below it filled in."""
    result: Any = node
    for group_by, decision in zip(group_bys, decisions, strict=True):
        one = group_by.substitute_parameters({"split_out": decision})
        result = result.substitute(group_by, one)
    substituted: Expr = result
    return substituted


def by_dask(group_by: Any) -> Routing:
    """As many outputs as Dask's own rule gives a group-by.

    Parameters
    ----------
    group_by : Expr
    """
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
