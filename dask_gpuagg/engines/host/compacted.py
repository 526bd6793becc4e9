"""Quantiles from compacted samples, whose error has a bound that depends on nothing but the number.

Values have weights that are powers of two, a level for each power. A level that holds more than
``CAPACITY`` values is compacted: sorted, and every other value goes to the next level (Munro and
Paterson 1980; Manku, Rajagopalan and Lindsay 1998; Agarwal et al. 2012, section 3). A compaction at
a level moves the rank of any value by at most the weight of the level, and takes at least
``CAPACITY`` values of that weight. So of ``n`` values ``rank_error(n)`` bounds what all of them
together move, however partials were merged. Up to ``CAPACITY`` values of a group are all kept.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from dask_gpuagg.engines.host.hyperloglog import Codes, Entries, mixed
from dask_gpuagg.engines.host.ordered import order_within
from dask_gpuagg.engines.host.reducer import Fields
from dask_gpuagg.engines.host.update import floats_of

# values of a level that are kept
CAPACITY = 2048

# the level of what stands for a group without values
_NOTHING = -1


def rank_error(n: int) -> int:
    """By how many ranks a quantile of ``n`` values is off at most.

    Parameters
    ----------
    n : int

    Returns
    -------
    int
    """
    level, error = 0, 0
    while n > CAPACITY << level:
        error += (n // (CAPACITY << level)) << level
        level += 1
    return error


def update(codes: Codes, n: int, values: pd.Series) -> Entries:
    """Values and levels of the rows of a partition."""
    valid = values.notna().to_numpy()
    floats, kept = floats_of(values)[valid], codes[valid].astype(np.int64)
    missing = np.flatnonzero(np.bincount(kept, minlength=n) == 0)
    level = np.zeros(len(kept) + len(missing), np.int8)
    level[len(kept) :] = _NOTHING
    fields = {"v": np.append(floats, np.full(len(missing), np.nan)), "w": level}
    return merge(np.append(kept, missing), n, fields)


def merge(codes: Codes, n: int, fields: Fields) -> Entries:
    """Values and levels, of which no level has too many."""
    values, levels = fields["v"], fields["w"]
    level = 0
    while level <= levels.max(initial=_NOTHING):
        here = levels == level
        full = np.bincount(codes[here], minlength=n) > CAPACITY
        if full.any():
            here &= full[codes]
            kept = _every_other(codes[here], values[here], level)
            codes = np.append(codes[~here], kept[0])
            values = np.append(values[~here], kept[1])
            levels = np.append(levels[~here], kept[2])
        level += 1
    return codes, {"v": values, "w": levels}


def _every_other(
    codes: Codes, values: npt.NDArray[np.float64], level: int
) -> tuple[Codes, npt.NDArray[np.float64], npt.NDArray[np.int8]]:
    """Compact the values of groups at a level; the last one of an odd number stays there."""
    groups, numbers, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    # NumPy sorts integers of 16 bits by radix
    narrow = np.uint16 if len(groups) <= 1 << 16 else np.int64
    values = values[np.argsort(numbers.astype(narrow), kind="stable")]
    kept, levels = [], []
    for run in np.split(values, np.cumsum(sizes)[:-1]):
        ordered = np.sort(run)
        even = len(run) // 2 * 2
        half = ordered[_coin(ordered, level) : even : 2]
        kept += [half, ordered[even:]]
        levels.append(np.repeat((level + 1, level), (len(half), len(run) - even)))
    counts = [len(of_group) for of_group in levels]
    return np.repeat(groups, counts), np.concatenate(kept), np.concatenate(levels).astype(np.int8)


def _coin(ordered: npt.NDArray[np.float64], level: int) -> int:
    """0 or 1, by the values: a task that is run again makes the same sketch."""
    bits = mixed(ordered[len(ordered) // 2 :][:1] + 0.0)
    return int(bits[0] >> np.uint64(level)) & 1


def finish(codes: Codes, n: int, fields: Fields, q: float = 0.5) -> npt.NDArray[np.float64]:
    """Values at a rank, interpolated between two ranks as pandas does."""
    order = order_within(codes, n, fields["v"])
    codes, values, levels = codes[order], fields["v"][order], fields["w"][order]
    weights = np.where(levels == _NOTHING, 0, np.int64(1) << np.maximum(levels, 0).astype(np.int64))
    until = np.cumsum(weights)
    ends = np.searchsorted(codes, np.arange(n), side="right")
    total = np.append(0, until)[ends]
    start = np.append(0, total[:-1])
    sizes = total - start
    wanted = q * (sizes - 1)
    low = np.floor(wanted).astype(np.int64)
    made = np.full(n, np.nan)
    some = sizes > 0
    below, above = (
        values[np.searchsorted(until, (start + rank)[some], side="right")]
        for rank in (low, np.minimum(low + 1, sizes - 1))
    )
    with np.errstate(invalid="ignore"):
        between = below + (above - below) * (wanted - low)[some]
    made[some] = np.where((below == above) | ((wanted - low)[some] == 0), below, between)
    return made
