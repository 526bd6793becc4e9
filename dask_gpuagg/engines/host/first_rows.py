"""The first or last rows of each group, in their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg.engines.host.grouping import group


def key_table(keys: Sequence[pd.Series]) -> pd.DataFrame:
    """Keys of rows as a table, without the labels of the rows."""
    return pd.DataFrame({f"k{i}": key.array for i, key in enumerate(keys)}, copy=False)


def rows_within(keys: pd.DataFrame, dropna: bool, n: int, last: bool) -> npt.NDArray[np.int64]:
    """Positions of at most ``n`` rows of each group, ascending.

    Parameters
    ----------
    keys : DataFrame of shape (rows, keys)
    dropna : bool
        Leave out rows of which a key is null.
    n : int
    last : bool
        The last rows and not the first.
    """
    groups = group([keys[name] for name in keys], dropna)
    codes = groups.codes[::-1] if last else groups.codes
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes, minlength=groups.n)
    within = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = order[within < n]
    chosen = np.sort(len(codes) - 1 - chosen if last else chosen)
    return chosen if groups.kept is None else np.flatnonzero(groups.kept)[chosen]
