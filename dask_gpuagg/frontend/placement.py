"""What the group-bys of one result need to know of each other.

Dask combines results with unknown divisions partition by partition where they have as many. Ours
have each group in the partition of its key's hash, stock Dask's may have it elsewhere, so either
all results in several partitions are planned or none. cuDF combines some results row by row, and
kernels write groups in no order: these results are sorted by their keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dask._expr import _ExprSequence
from dask.dataframe.dask_expr._expr import Filter, FilterAlign, Mask, MaskAlign, Where

from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.frontend import logical
from dask_gpuagg.plan import Unsupported

# nodes for which cuDF goes by position
_BY_POSITION = (Filter, FilterAlign, Mask, MaskAlign, Where)


@dataclass
class Placement:
    """Where the group-bys of a query have their groups.

    Attributes
    ----------
    stock_only : dict of str to Exception
        Names of group-bys that stock Dask has to run, with the reason.
    in_order : set of str
        Names of group-bys whose groups have to be in the order of their keys.
    """

    stock_only: dict[str, Exception] = field(default_factory=dict)
    in_order: set[str] = field(default_factory=set)


def placement_of(root: Any) -> Placement:
    """Find which group-bys of a query depend on each other.

    Parameters
    ----------
    root : Expr
        Of the query, not lowered yet: a group-by may be lowered before all that combine it.

    Returns
    -------
    Placement
    """
    placement = Placement()
    # collections that are computed together are not combined
    for result in root.operands if isinstance(root, _ExprSequence) else [root]:
        group_bys = _group_bys(result)
        try:
            if len(group_bys) > 1:
                _place(placement, result, group_bys)
        except Exception as error:
            # which of them are combined is unknown
            placement.stock_only.update({g._name: error for g in group_bys})
    return placement


def _place(placement: Placement, result: Any, group_bys: list[Any]) -> None:
    placement.stock_only.update(_beside_stock([g for g in group_bys if g.npartitions > 1]))
    for node in result.walk():
        if isinstance(node, _BY_POSITION) and engine_name(node._meta) == DEVICE:
            combined = _group_bys(node)
            refused = _beside_stock(combined)
            placement.stock_only.update(refused)
            if len(combined) > 1 and not refused:
                placement.in_order.update(g._name for g in combined)


def _beside_stock(group_bys: list[Any]) -> dict[str, Exception]:
    """Names of group-bys that stock Dask runs because it has to run one of them."""
    if len(group_bys) < 2 or not any(logical.refusals(g) for g in group_bys):
        return {}
    reason = "it is combined with a group-by that stock Dask runs"
    return {g._name: Unsupported(reason) for g in group_bys if not logical.refusals(g)}


def _group_bys(root: Any) -> list[Any]:
    """The group-by aggregations of an expression, each once."""
    return list({node._name: node for node in root.walk() if logical.is_aggregation(node)}.values())
