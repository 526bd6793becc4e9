"""Groups by several sets of keys in one pass over the rows, as SQL's ``GROUPING SETS`` has them.

Rows are grouped once, by all keys; the states of those groups are merged to the groups by fewer.
The operators are those of Gray et al. 1997 (docs/how-it-works.md#sources).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from dask.dataframe.dask_expr._collection import new_collection

from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.extended import GroupingSet, extend
from dask_gpuagg.plan import Unsupported
from dask_gpuagg.reporting.fallbacks import UnsupportedGroupBy

_FLAGS = {"split_every": 8, "split_out": 1, "shuffle_method": None}


def grouping_sets(
    frame: Any,
    sets: Sequence[Sequence[Hashable]],
    aggregations: Any = None,
    *,
    dropna: bool = True,
    sort: bool = False,
    **named: Any,
) -> dict[tuple[Hashable, ...], Any]:
    """Aggregate by several sets of keys in one pass over the rows.

    Parameters
    ----------
    frame : dask.dataframe.DataFrame
        Of pandas or cuDF.
    sets : sequence of sequence of labels
        Columns to group by, a sequence for each result; an empty one takes all rows as one group.
        A string is one column.
    aggregations : str, callable, list or dict, optional
        As ``.agg`` takes them. Without labels of columns, all are aggregated that are in no set.
    dropna : bool
        Whether rows with a null key have no group; they have one by their other keys.
    sort : bool
        Whether results are sorted by key.
    **named
        Named aggregations, as ``.agg`` takes them.

    Returns
    -------
    dict of tuple to DataFrame
        For each set what ``frame.groupby(keys).agg(...)`` gives, lazy and in one partition; of
        all rows one row, or none where there are no rows. Computed together, by ``dask.compute``,
        they read the input once.

    Raises
    ------
    ValueError
        For a set that has a key twice, and where no set has a key.
    UnsupportedGroupBy
        For aggregations that cannot be merged from groups: ``first``, ``last``, ``idxmin`` and
        ``idxmax``, which depend on the order of rows, and those that the plugin does not run.

    Notes
    -----
    The plugin has to be on where the results are computed. The groups by all keys are in one
    partition while they are merged.
    """
    asked = list(map(_labels, sets))
    keys = list(dict.fromkeys(key for one in asked for key in one))
    if not keys:
        raise ValueError("grouping sets need a key")
    groupby = frame.groupby(keys, dropna=dropna, sort=sort, observed=True)
    try:
        finest = extend(groupby, aggregations, _FLAGS, named)
        found = {}
        for one in asked:
            meta = finest._meta.reset_index(drop=True)
            if one:
                meta.index = _index_of(frame._meta[list(one)])
            operands = dict(zip(finest._parameters, finest.operands, strict=False))
            operands["result_meta"] = meta
            kept = tuple(map(keys.index, one))
            node = GroupingSet(*operands.values(), kept, *finest.by)
            logical.read(node)
            found[one] = new_collection(node)
    except Unsupported as refusal:
        raise UnsupportedGroupBy(f"grouping sets cannot run: {refusal.reason}") from refusal
    return found


def _index_of(columns: Any) -> Any:
    """The empty columns as the index of a result."""
    index = columns.set_index(list(columns.columns)).index
    dtype = columns.dtypes.iloc[0]
    # pandas makes one of int64 of an empty column of smaller integers
    return index.astype(dtype) if index.nlevels == 1 and index.dtype != dtype else index


def _labels(of: Sequence[Hashable]) -> tuple[Hashable, ...]:
    # else a string would be one column for each of its letters
    labels = (of,) if isinstance(of, str) else tuple(of)
    for label, times in Counter(labels).items():
        if times > 1:
            raise ValueError(f"the grouping set {list(labels)} has the key {label!r} {times} times")
    return labels


def rollup(
    frame: Any, by: Sequence[Hashable], aggregations: Any = None, **given: Any
) -> dict[tuple[Hashable, ...], Any]:
    """Aggregate by all keys, then by one less from the right, down to all rows as one group.

    Parameters
    ----------
    frame : dask.dataframe.DataFrame
    by : sequence of labels
        Columns, the coarsest first.
    aggregations : str, callable, list or dict, optional
    **given
        As for ``grouping_sets``, which it calls.

    Returns
    -------
    dict of tuple to DataFrame
        The finest first.

    Examples
    --------
    >>> found = dask_gpuagg.rollup(ddf, ["origin", "dest"], {"delay": "mean"})  # doctest: +SKIP
    >>> by_both, by_origin, in_all = dask.compute(*found.values())  # doctest: +SKIP
    """
    keys = _labels(by)
    sets = [keys[:n] for n in range(len(keys), -1, -1)]
    return grouping_sets(frame, sets, aggregations, **given)
