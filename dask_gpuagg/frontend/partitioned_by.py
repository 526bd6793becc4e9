"""Columns by which partitions are divided, after nodes that give labels other names or values.

Dask keeps the names of the columns that a shuffle has divided rows by, and a merge on them shuffles
no more. Groups have these columns in their index. Some of Dask's nodes look for them among the
columns alone, and raise, or keep a name whose values have become others, and a merge loses rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._shuffle import SetIndexBlockwise
from dask.dataframe.utils import is_index_like
from pandas.api.types import is_dict_like

# other values in the index; RenameSeries with a function or a mapping too
_OTHER_INDEX = (E.AssignIndex, E.AddPrefixSeries, E.ToTimestamp)

# the values of an index level that is no more
_LOST = object()

# nodes whose own answer is replaced, with their subclasses
RELABELLING = (
    *(E.RenameFrame, E.RenameSeries, E.RenameAxis, E.AddPrefix, E.AddSuffix),
    *(E.ToFrame, E.ResetIndex),
    *_OTHER_INDEX,
)


def carried(original: Callable[[Any], Any], self: Any) -> Any:
    """The columns that partitions are divided by, under their new names.

    Parameters
    ----------
    original : callable
        Dask's own.
    self : Expr
        One of ``RELABELLING``.

    Returns
    -------
    set
        Names, and tuples of names of several columns. What a name means has to be clear before and
        after: it is left out where an index level and a column, or two columns, have it.
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
    elif has_other_index(self):
        after = [_LOST] * len(levels) + _columns(self._meta)
    else:
        after = list(self._meta.index.names) + _columns(self._meta)
    names = {
        old: new
        for old, new in zip(before, after, strict=True)
        if new is not _LOST and before.count(old) == after.count(new) == 1
    }
    found: set[Hashable] = set()
    for one in divided_by:
        if not isinstance(one, tuple):
            found.update({names[one]} if one in names else ())
        elif all(name in names for name in one):
            found.add(tuple(names[name] for name in one))
    return found


def _columns(meta: Any) -> list[Hashable]:
    return list(meta.columns) if meta.ndim == 2 else [meta.name]


def has_other_index(node: Any) -> bool:
    """Whether a node gives rows other labels than its input has."""
    if isinstance(node, E.RenameSeries):
        index = node.operand("index")
        return callable(index) or is_dict_like(index)
    return isinstance(node, (E.ResetIndex, SetIndexBlockwise, *_OTHER_INDEX))
