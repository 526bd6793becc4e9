"""The first or last rows of each group, in their order; see ``host.first_rows``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cudf
import cupy as cp

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines.device.columns import like, table, view
from dask_gpuagg.engines.device.operations import nans_to_nulls

_ROW = "row"


def key_table(keys: Sequence[Any]) -> Any:
    """Keys of rows as a table; NaN and null are one key."""
    found = {}
    for i, key in enumerate(keys):
        floats = dtype_class(key.dtype) == "float"
        found[f"k{i}"] = like(nans_to_nulls(view(key)), key.dtype) if floats else key
    return table(found)


def rows_within(keys: Any, dropna: bool, n: int, last: bool) -> cp.ndarray:
    """Positions of at most ``n`` rows of each group, ascending; cuDF finds them."""
    names = list(keys.columns)
    numbers = cudf.Series(cp.arange(len(keys), dtype=cp.int64))
    rows = table({name: keys[name] for name in names} | {_ROW: numbers})
    if dropna and any(keys[name].has_nulls for name in names):
        rows = rows.dropna(subset=names)
    if len(rows) == 0:  # cuDF fails where there is no group
        return cp.empty(0, dtype=cp.int64)
    grouped = rows.groupby(names, dropna=False, sort=False)
    found = grouped.tail(n) if last else grouped.head(n)
    return cp.sort(found[_ROW].values)
