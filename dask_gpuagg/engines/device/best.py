"""``nlargest`` and ``nsmallest`` on the device: the best values, at most ``n`` of each group.

Partials keep them in a table with the keys and ``v``, and a row of null for each group without
values. The table of several partials is reduced to another by the same steps.
"""

from __future__ import annotations

from typing import Any

import cudf
import cupy as cp
import pylibcudf as plc

from dask_gpuagg.cuda.algorithms import sgb
from dask_gpuagg.engines.device.columns import (
    NOWHERE,
    array_of,
    column_of,
    gather,
    like,
    names_of,
    present,
    table,
    view,
)
from dask_gpuagg.engines.device.groups import Numbering, counts_of
from dask_gpuagg.engines.device.operations import nans_to_nulls
from dask_gpuagg.engines.device.whole_groups import by_kernels, values_of
from dask_gpuagg.plan import Output, Sketched


def entries(groups: Any, numbering: Numbering, values: Any, kept: Sketched) -> Any:
    """The best values of rows.

    Parameters
    ----------
    groups : DataFrame
        The keys ``k0``, … of the groups.
    numbering : Numbering
        Of the rows.
    values : Series
        Of all rows.
    kept : Sketched

    Returns
    -------
    DataFrame
        The keys and ``v``, at least one row for each group.
    """
    codes, found = _best(numbering, values, kept.aggregation, **dict(kept.parameters))
    missing = cp.flatnonzero(counts_of(codes, len(groups)) == 0)
    rows = cp.concatenate([codes, missing]).astype(cp.int32)
    made = {n: like(gather(view(groups[n]), rows), groups[n].dtype) for n in names_of(groups)}
    if len(codes) == 0:
        column = plc.Column.all_null_like(view(values), len(rows))
    else:
        nowhere = cp.full(len(missing), NOWHERE, dtype=cp.int32)
        places = cp.concatenate([cp.arange(len(codes), dtype=cp.int32), nowhere])
        column = gather(column_of(found), places)
    return table(made | {"v": like(column, values.dtype)})


def lists(output: Output, numbering: Numbering, values: Any) -> Any:
    """A list of each group's best values, of no value an empty one."""
    codes, found = _best(numbering, values, output.aggregation, **dict(output.parameters))
    ends = cp.cumsum(counts_of(codes, numbering.n))
    offsets = cp.zeros(numbering.n + 1, dtype=cp.int32)
    offsets[1:] = ends
    children = [column_of(offsets), column_of(found)]
    kind = plc.DataType(plc.TypeId.LIST)
    made = plc.Column(kind, numbering.n, None, None, 0, 0, children)
    return like(made, cudf.ListDtype(values.dtype))


def _best(
    numbering: Numbering, values: Any, aggregation: str, n: int = 5
) -> tuple[cp.ndarray, cp.ndarray]:
    """Group numbers, ascending, and values, of each group the best one first."""
    column, rows = nans_to_nulls(view(values)), len(values)
    made = None
    if rows <= sgb.ROWS_AT_MOST:
        made = by_kernels(lambda: numbering.sorted(rows).ascending(column))
    ascending, starts = made or _by_library(numbering, column)
    starts = starts.astype(cp.int64)
    kept = cp.minimum(cp.diff(starts), min(n, NOWHERE))
    ends = cp.cumsum(kept)
    total = int(ends[-1]) if len(ends) else 0
    codes = cp.searchsorted(ends, cp.arange(total), side="right")
    place = cp.arange(total) - (ends - kept)[codes]
    largest = aggregation == "nlargest"
    at = starts[codes + 1] - 1 - place if largest else starts[codes] + place
    taken = ascending[at]
    dtype = getattr(values.dtype, "numpy_dtype", values.dtype)
    return codes, taken if made is None else values_of(taken, dtype)


def _by_library(numbering: Numbering, column: plc.Column) -> tuple[cp.ndarray, cp.ndarray]:
    """The values of each group in ascending order, and where each begins; nulls are left out."""
    taken = gather(column, numbering.rows)
    kept = present(taken)
    some, found = numbering.where(kept), array_of(taken, 0)[kept]
    order = cp.argsort(found)
    order = order[cp.argsort(some.codes[order], kind="stable")]
    starts = cp.zeros(numbering.n + 1, dtype=cp.int64)
    starts[1:] = cp.cumsum(some.size)
    return found[order], starts
