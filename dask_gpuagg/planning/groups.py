"""How many groups a group-by will have: bounds from metadata, estimates from samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from dask_gpuagg.engines.host.grouping import group
from dask_gpuagg.tasks.key_sample import KeySample

_BOOLEAN, _BYTE = 2, 256


@dataclass(frozen=True, slots=True)
class GroupEstimate:
    """Expected number of groups.

    Attributes
    ----------
    groups : int, optional
        ``None`` when nothing is known.
    bound : bool
        Whether ``groups`` is an upper bound rather than an estimate.
    how : str
        Where the number comes from, in words.
    rows : int, optional
        Rows of groups, about, where a sample of rows tells.
    pair_bytes : int, optional
        Bytes of the distinct pairs of key and value, about, of the column that has most.
    """

    groups: int | None
    bound: bool
    how: str
    rows: int | None = None
    pair_bytes: int | None = None


def dtype_bound(dtype: Any) -> int | None:
    """Largest number of distinct keys (null included) that a dtype admits, if small.

    Parameters
    ----------
    dtype : numpy.dtype or ExtensionDtype

    Returns
    -------
    int or None
    """
    if isinstance(dtype, pd.CategoricalDtype):
        unknown = "__UNKNOWN_CATEGORIES__" in map(str, dtype.categories[:1])
        return None if unknown else len(dtype.categories) + 1
    numpy_dtype = getattr(dtype, "numpy_dtype", dtype)
    if not isinstance(numpy_dtype, np.dtype):
        return None
    if numpy_dtype.kind == "b":
        return _BOOLEAN + 1
    if numpy_dtype.kind in "iu" and numpy_dtype.itemsize == 1:
        return _BYTE + 1
    return None


def from_metadata(dtypes: Sequence[Any], rows: int | None) -> GroupEstimate:
    """Upper bound on the groups from the keys' dtypes and the number of rows.

    Parameters
    ----------
    dtypes : sequence of dtypes
        Of the keys.
    rows : int, optional
        Upper bound on the number of input rows, where known.

    Returns
    -------
    GroupEstimate
    """
    bounds = [dtype_bound(dtype) for dtype in dtypes]
    product: int | None = 1
    for bound in bounds:
        product = None if bound is None or product is None else product * bound
    if product is not None and (rows is None or product <= rows):
        return GroupEstimate(product, True, "the keys' dtypes admit no more")
    if rows is not None:
        return GroupEstimate(rows, True, f"there are {rows:,} rows")
    return GroupEstimate(None, False, "the metadata does not bound the groups")


def from_samples(samples: Sequence[Sequence[pd.Series]], npartitions: int) -> GroupEstimate:
    """Estimate the number of groups from the distinct keys of some partitions.

    Parameters
    ----------
    samples : sequence of sequences of Series
        For each sampled partition its distinct keys, one Series per key column.
    npartitions : int
        Number of partitions the samples were drawn from.

    Returns
    -------
    GroupEstimate

    Notes
    -----
    Capture and recapture (Petersen 1896, Lincoln 1930): two partitions with ``a`` and ``b``
    distinct keys of which ``c`` are shared point to ``a * b / c`` keys in all. Without shared
    keys (sorted or clustered data) every partition is taken to bring keys of its own. The
    pair that points to most keys counts: too many expected groups cost an exchange, too few
    the memory of a worker.
    """
    counts, shared, groups = _overlaps(samples)
    how = f"sampled {len(samples)} of {npartitions} partitions"
    if len(samples) == npartitions:
        return GroupEstimate(groups, False, how)
    most = round(sum(counts) / len(counts) * npartitions)
    return GroupEstimate(_recaptured(counts, shared, groups, most), False, how)


def from_key_samples(samples: Sequence[KeySample], npartitions: int) -> GroupEstimate:
    """Estimate the number of groups from the distinct keys of some rows of some partitions.

    Parameters
    ----------
    samples : sequence of KeySample
    npartitions : int
        Number of partitions the samples were drawn from.

    Returns
    -------
    GroupEstimate

    Notes
    -----
    Capture and recapture, as in ``from_samples``. Where samples share no keys, a partition has as
    many as the repetitions within its sample point to: of ``n`` keys, ``t`` rows repeat about
    ``t * t / 2 n``. Of keys of which few have most rows, all this finds too few.
    """
    counts, shared, groups = _overlaps([sample.keys for sample in samples])
    of_partitions = map(_keys_of_a_partition, counts, samples)
    most = round(sum(of_partitions) / len(counts) * npartitions)
    how = f"sampled rows of {len(samples)} of {npartitions} partitions"
    rows = round(sum(sample.rows for sample in samples) / len(samples) * npartitions)
    return GroupEstimate(_recaptured(counts, shared, groups, most), False, how, rows)


def _keys_of_a_partition(distinct: int, sample: KeySample) -> int:
    taken, repeated = sample.taken, sample.taken - distinct
    if sample.rows == taken or repeated >= distinct:
        return distinct
    return min(sample.rows, taken * taken // (2 * repeated)) if repeated else sample.rows


def _recaptured(
    counts: list[int], shared: dict[tuple[int, int], int], groups: int, most: int
) -> int:
    """The most keys to which a pair of samples points, but no more than ``most``."""
    pairs = (
        round(counts[a] * counts[b] / both) if both else most for (a, b), both in shared.items()
    )
    return max(min(most, max(pairs, default=0)), groups)


def _overlaps(
    samples: Sequence[Sequence[pd.Series]],
) -> tuple[list[int], dict[tuple[int, int], int], int]:
    """Distinct keys of each sample, of which each pair shares how many, and those of all."""
    counts = [len(sample[0]) for sample in samples]
    columns = [
        pd.concat(parts, ignore_index=True) if len(parts) > 1 else parts[0]
        for parts in zip(*samples, strict=True)
    ]
    groups = group(columns, dropna=False)
    seen = np.zeros((len(samples), groups.n), dtype=bool)
    sample_of_row = np.repeat(np.arange(len(samples)), counts)
    seen[sample_of_row, groups.codes] = True
    pairs = combinations(range(len(samples)), 2)
    return counts, {(a, b): int((seen[a] & seen[b]).sum()) for a, b in pairs}, groups.n
