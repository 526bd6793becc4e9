"""Groups that no row has, which ``observed=False`` asks for, on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from dask_gpuagg.engines.host.buckets import bucket_of
from dask_gpuagg.engines.host.grouping import group
from dask_gpuagg.engines.host.stacking import stack_series


def expected_groups(keys: list[pd.Series], dropna: bool) -> list[Any]:
    """The groups that ``observed=False`` asks for; none without categorical keys.

    As in pandas: every combination of the categories, with every combination of the other keys
    that occurs.
    """
    categorical = [isinstance(k.dtype, pd.CategoricalDtype) for k in keys]
    if not any(categorical):
        return []
    levels = [_categories(k, dropna) for k, c in zip(keys, categorical, strict=True) if c]
    product = pd.MultiIndex.from_product([np.arange(len(level)) for level in levels])
    plain = [k for k, c in zip(keys, categorical, strict=True) if not c]
    if dropna and plain:
        complete = np.logical_and.reduce([k.notna() for k in plain])
        plain = [k[complete] for k in plain]
    combinations = group(plain, dropna=False) if plain else None
    repeats = combinations.n if combinations is not None else 1
    of_product = np.tile(np.arange(len(product)), repeats)
    of_plain = np.repeat(np.arange(repeats), len(product))
    codes = iter([product.get_level_values(i).to_numpy() for i in range(len(levels))])
    tops, others = iter(levels), iter(combinations.keys if combinations is not None else ())
    return [
        next(tops).take(next(codes)[of_product]) if c else next(others).take(of_plain)
        for c in categorical
    ]


def complete(
    keys: list[Any], expected: list[Any], bucket: tuple[int, int] | None, dtypes: Sequence[Any]
) -> list[Any]:
    """Append the expected groups that are not there behind those that are."""
    pairs = zip(keys, expected, strict=True)
    together = [stack_series([pd.Series(k), pd.Series(e)]) for k, e in pairs]
    codes = group(together, dropna=False).codes
    there = len(keys[0])
    missing = np.flatnonzero(~np.isin(codes[there:], codes[:there]))
    columns = [e.take(missing) for e in expected]
    if bucket is not None and len(missing):
        mine = bucket_of(columns, dtypes, bucket[1]) == bucket[0]
        columns = [c[mine] for c in columns]
    return [
        stack_series([pd.Series(k), pd.Series(c)]).array for k, c in zip(keys, columns, strict=True)
    ]


def _categories(key: pd.Series, dropna: bool) -> Any:
    """All categories of a categorical key as its values; null if it occurs."""
    null = [] if dropna or key.notna().all() else [None]
    return pd.Categorical([*key.cat.categories, *null], dtype=key.dtype)
