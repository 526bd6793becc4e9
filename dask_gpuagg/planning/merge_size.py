"""How much of a result one task merges, in bytes, and into how many pieces more is exchanged."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.utils import get_default_shuffle_method

from dask_gpuagg.cluster.preflight import protocol
from dask_gpuagg.engines import DEVICE, dtypes_of, engine_name
from dask_gpuagg.planning.bucketing import gpus
from dask_gpuagg.planning.query import GroupByQuery

# "Partitions of around 100 MB", Dask's best practices
BYTES_ON_HOST = 100_000_000
# Threads merge larger results faster in pieces, whose tables fit the caches of a core; two pieces
# gain nothing over one. Through p2p, which copies and serializes them, one is faster than several.
# The notebook has the figures.
MERGED_ON_HOST = 16 << 20
PIECES_ON_HOST = (4, 16)
# Pieces of a result that fill a GPU.
PIECES_OF_A_GPU = 32
# What one GPU receives from the others, and merges, in the time that the additional tasks of an
# exchange take: through the host, and directly. The notebook has the figures.
MOVED_TO_ONE_GPU = 64 << 20
MOVED_DIRECTLY = 1 << 30
_DIRECT = ("ucx", "ucxx")

# assumed of a key or value whose dtype does not say it
_TEXT_BYTES = 16


@dataclass(frozen=True, slots=True)
class MergeSize:
    """The sizes that decide between merging in one task and an exchange.

    Attributes
    ----------
    row_bytes : int
        Of one group in a result.
    most : int
        Bytes of one piece of an exchange, at most.
    merged : int
        Bytes of a result that one task merges; more of them are exchanged.
    pieces : int
        Pieces of an exchange that serve speed alone, at most.
    least : int
        Pieces of an exchange, at least.
    """

    row_bytes: int
    most: int
    merged: int
    pieces: int = 1
    least: int = 1

    @property
    def groups(self) -> int:
        """The most groups of a result that one task merges."""
        return min(self.merged, self.most) // self.row_bytes

    def pieces_of(self, groups: int) -> int:
        """Number of tasks that merge a result of so many groups."""
        if groups <= self.groups:
            return 1
        nbytes = groups * self.row_bytes
        for_speed = min(math.ceil(nbytes / self.merged), self.pieces)
        return max(math.ceil(nbytes / self.most), for_speed, self.least)


def merge_size(query: GroupByQuery, workers: int | None = None) -> MergeSize:
    """The sizes for a query.

    Parameters
    ----------
    query : GroupByQuery
    workers : int, optional
        On how many workers its input lies; by default those of the cluster.

    Returns
    -------
    MergeSize
    """
    row_bytes = bytes_of_a_group(query)
    if engine_name(query.meta) != DEVICE:
        least, pieces = PIECES_ON_HOST
        merged = BYTES_ON_HOST if get_default_shuffle_method() == "p2p" else MERGED_ON_HOST
        return MergeSize(row_bytes, BYTES_ON_HOST, merged, pieces, least)
    number, memory = gpus()
    number = number if workers is None else workers
    most = memory // PIECES_OF_A_GPU or BYTES_ON_HOST
    if number <= 1:
        return MergeSize(row_bytes, most, most)
    moved = MOVED_DIRECTLY if protocol() in _DIRECT else MOVED_TO_ONE_GPU
    return MergeSize(row_bytes, most, moved // (number - 1), number, number)


def bytes_of_a_group(query: GroupByQuery) -> int:
    """Bytes of one group in the result of a query: its keys and outputs, roughly."""
    keys = sum(size_of(key.dtype) for key in query.plan.keys)
    meta = query.meta
    columns = [meta.dtype] if meta.ndim == 1 else [dtype for _, dtype in dtypes_of(meta)]
    return max(keys + sum(map(size_of, columns)), 1)


def size_of(dtype: Any) -> int:
    """Bytes of a value, roughly."""
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return int(dtype.itemsize)
    inner = getattr(dtype, "numpy_dtype", None)
    fixed = isinstance(inner, np.dtype) and inner.kind != "O"
    return int(inner.itemsize) + 1 if fixed and inner is not None else _TEXT_BYTES
