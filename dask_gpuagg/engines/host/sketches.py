"""Sketches: at most so many entries of each group, from which an output is made.

A sketch is a table with several rows for each group, as the distinct pairs are: the keys, and the
fields of its entries. A group with few values has few entries, and a group without values has one
that stands for nothing. Merging takes the entries of several partials together, in any order.

``nlargest`` and ``nsmallest`` keep so many values, and are exact. ``nunique_approx`` is in
``hyperloglog.py``, ``quantile_approx`` in ``compacted.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.host import compacted, hyperloglog
from dask_gpuagg.engines.host.hyperloglog import Codes, Entries
from dask_gpuagg.engines.host.ordered import order_within
from dask_gpuagg.engines.host.reducer import Fields
from dask_gpuagg.plan import Output, Sketched


class Sketch(NamedTuple):
    """The functions of a sketch.

    Attributes
    ----------
    update : callable
        Group numbers of rows, the number of groups and the values: group numbers and fields of
        entries.
    merge : callable
        Group numbers, the number of groups and the fields of entries: the same of fewer entries.
    finish : callable
        The same: one value for each group. All three also take parameters by name.
    """

    update: Callable[..., Entries]
    merge: Callable[..., Entries]
    finish: Callable[..., npt.NDArray[Any]]


def update(kept: Sketched, codes: Codes, n: int, values: pd.Series) -> Entries:
    """Entries of the rows of one partition.

    Parameters
    ----------
    kept : Sketched
    codes : ndarray of int in ``range(n)``, shape (rows,)
    n : int
        Number of groups.
    values : Series
        Of the same rows.

    Returns
    -------
    codes : ndarray of int, shape (entries,)
        The group of each entry; every group has one.
    fields : dict of str to ndarray, shape (entries,)
    """
    return SKETCHES[kept.aggregation].update(codes, n, values, **dict(kept.parameters))


def merge(kept: Sketched, codes: Codes, n: int, fields: Fields) -> Entries:
    """Entries of several partials as those of one; parameters and result as of ``update``."""
    return SKETCHES[kept.aggregation].merge(codes, n, fields, **dict(kept.parameters))


def finish(output: Output, codes: Codes, n: int, fields: Fields) -> npt.NDArray[Any]:
    """The values of an output from merged entries, one for each group."""
    return SKETCHES[output.aggregation].finish(codes, n, fields, **dict(output.parameters))


def _update_top(codes: Codes, rows: int, values: pd.Series, sign: int, n: int = 5) -> Entries:
    valid = values.notna().to_numpy()
    if not valid.all():
        codes, values = codes[valid], values[valid]
    dtype = {"int": np.int64, "uint": np.uint64}.get(dtype_class(values.dtype), np.float64)
    fields = {"v": values.to_numpy(dtype), "w": np.ones(len(values), np.int8)}
    return _merge_top(codes, rows, fields, sign, n)


def _merge_top(codes: Codes, rows: int, fields: Fields, sign: int, n: int = 5) -> Entries:
    """The first values of each group; one that does not count for a group without any."""
    some = fields["w"] == 1
    codes, values = codes[some], fields["v"][some]
    # the order of the complement of an unsigned integer is the reverse one, as of the negative
    ranked = values if sign > 0 else ~values if values.dtype.kind in "iu" else -values
    order = order_within(codes, rows, ranked)
    codes, values = codes[order], values[order]
    starts = np.append(0, np.cumsum(np.bincount(codes, minlength=rows)))
    first = np.arange(len(codes)) - starts[codes] < n
    codes, values = codes[first], values[first]
    missing = np.flatnonzero(np.bincount(codes, minlength=rows) == 0)
    counts = np.append(np.ones(len(codes), np.int8), np.zeros(len(missing), np.int8))
    values = np.append(values, np.zeros(len(missing), values.dtype))
    return np.append(codes, missing), {"v": values, "w": counts}


def _finish_top(codes: Codes, rows: int, fields: Fields, n: int = 5) -> npt.NDArray[np.object_]:
    # merged entries are in the order of their groups, and of the values in each
    some = fields["w"] == 1
    codes, values = codes[some], fields["v"][some]
    ends = np.cumsum(np.bincount(codes, minlength=rows))
    lists = np.empty(rows, dtype=object)
    start = 0
    objects = values.tolist()
    for i, end in enumerate(ends.tolist()):
        lists[i] = objects[start:end]
        start = end
    return lists


def _of_top(sign: int) -> Sketch:
    """The smallest values, or with a negative sign the largest."""
    return Sketch(partial(_update_top, sign=sign), partial(_merge_top, sign=sign), _finish_top)


SKETCHES: dict[str, Sketch] = {
    "nlargest": _of_top(-1),
    "nsmallest": _of_top(1),
    "nunique_approx": Sketch(hyperloglog.update, hyperloglog.merge, hyperloglog.finish),
    "quantile_approx": Sketch(compacted.update, compacted.merge, compacted.finish),
}
