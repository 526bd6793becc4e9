"""Results of group-bys that cuDF combines by position: their groups are in the order of the keys.

pandas takes a condition by row labels. cuDF takes those of a Series' ``where`` and ``mask``, and of
filters of a frame, row by row. Two group-bys of the same rows have the same groups, but kernels
write groups in no order, and in another one each time.
"""

from __future__ import annotations

from typing import Any

from dask.dataframe.dask_expr._expr import Filter, FilterAlign, Mask, MaskAlign, Where

from dask_gpuagg.engines import DEVICE, engine_name
from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.alignment import partners

# nodes for which cuDF goes by position
_BY_POSITION = (Filter, FilterAlign, Mask, MaskAlign, Where)


def by_position(node: Any) -> bool:
    """Whether cuDF combines the rows of a node's inputs by position."""
    return isinstance(node, _BY_POSITION) and engine_name(node._meta) == DEVICE


def in_order(root: Any) -> set[str]:
    """Names of the group-bys of a query whose groups have to be in the order of their keys.

    Parameters
    ----------
    root : Expr
        Of the query, not lowered yet: a group-by may be lowered before all that combine it.

    Returns
    -------
    set of str
        Without those that are combined with one that stock Dask runs, whose order is libcudf's.
    """
    names: set[str] = set()
    for node in filter(by_position, root.walk()):
        found = partners(node)
        if not any(map(logical.refusals, found)):
            names.update(group_by._name for group_by in found)
    return names
