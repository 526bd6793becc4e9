"""Where groups lie, as far as other parts of a query depend on it.

Dask combines results with unknown divisions partition by partition where they have as many. Ours
have each group in the partition of its key's hash, stock Dask's may have it elsewhere, so either
all results in several partitions are planned or none. cuDF combines some results row by row, and
kernels write groups in no order: these results are sorted by their keys.

Dask keeps the names of the columns that a shuffle has divided rows by, and a merge on them shuffles
no more. Groups have these columns in their index. Some of Dask's nodes look for them among the
columns alone, and raise, or keep a name whose values have become others, and a merge loses rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from dask._expr import _ExprSequence
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.utils import is_index_like
from pandas.api.types import is_dict_like

from dask_gpuagg.engines import DEVICE, HOST, engine_name
from dask_gpuagg.engines.host.exchange import hashed_by_dask
from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.contract import OTHER_INDEX
from dask_gpuagg.plan import Unsupported

# nodes for which cuDF goes by position
_BY_POSITION = (E.Filter, E.FilterAlign, E.Mask, E.MaskAlign, E.Where)

# the values of an index level that is no more
_LOST = object()


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
    """Find which group-bys of a query, which is not lowered yet, depend on each other.

    A group-by may be lowered before all that combine it.
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
    if len(group_bys) < 2:
        return {}
    planned = [g._name for g in group_bys if not logical.refusals(g)]
    if len(planned) == len(group_bys):
        return {}
    reason = "it is combined with a group-by that stock Dask runs"
    return {name: Unsupported(reason) for name in planned}


def _group_bys(root: Any) -> list[Any]:
    """The group-by aggregations of an expression, each once."""
    return list({node._name: node for node in root.walk() if logical.is_aggregation(node)}.values())


def mapping(original: Callable[[Any], Any], self: Any) -> Any:
    """Columns by which the output is partitioned as by Dask, so that merges need no shuffle.

    For some dtypes Dask hashes the representation in a partition, and our plan hashes the value.
    """
    claimed = original(self)
    if not claimed or not logical.is_aggregation(self) or not self.need_to_shuffle:
        return claimed
    meta = self.frame._meta
    if engine_name(meta) != HOST:
        return claimed
    try:
        keys = [logical.key_column(by, meta) for by in self.by]
    except Unsupported:  # stock Dask runs it
        return claimed
    return claimed if all(hashed_by_dask(key.dtype) for key in keys) else set()


def renamed_mapping(original: Callable[[Any], Any], self: Any) -> Any:
    """The columns that partitions are divided by, as one of ``RELABELLING`` names them.

    A name is left out where an index level and a column, or two columns, have it.
    """
    frame = self.frame
    if is_index_like(frame._meta):
        return original(self)
    divided_by = frame.unique_partition_mapping_columns_from_shuffle
    if not divided_by:
        return set()
    levels, columns = list(frame._meta.index.names), _columns(frame._meta)
    before = levels + columns
    if isinstance(self, E.ResetIndex) and not self.drop:
        after = _columns(self._meta)
    elif _has_other_index(self):
        after = [_LOST] * len(levels) + _columns(self._meta)
    else:
        after = list(self._meta.index.names) + _columns(self._meta)
    names = {
        old: new
        for old, new in zip(before, after, strict=True)
        if new is not _LOST and before.count(old) == after.count(new) == 1
    }
    renamed: set[Hashable] = set()
    for name in divided_by:
        if not isinstance(name, tuple):
            renamed.update({names[name]} if name in names else ())
        elif all(one in names for one in name):
            renamed.add(tuple(names[one] for one in name))
    return renamed


def _columns(meta: Any) -> list[Hashable]:
    return list(meta.columns) if meta.ndim == 2 else [meta.name]


def _has_other_index(node: Any) -> bool:
    """Whether a node that renames gives rows other labels too."""
    if isinstance(node, E.RenameSeries):
        index = node.operand("index")
        return callable(index) or is_dict_like(index)
    return isinstance(node, (E.ResetIndex, *OTHER_INDEX))
