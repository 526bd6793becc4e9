"""Merging in pieces of a chosen size, for results that are small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from dask_gpuagg.planning import lower
from dask_gpuagg.planning.merge_size import MergeSize, bytes_of_a_group
from dask_gpuagg.planning.query import GroupByQuery


@contextmanager
def pieces_of(nbytes: int) -> Iterator[None]:
    """Context manager: one task merges at most so many bytes of a result.

    Parameters
    ----------
    nbytes : int
    """

    def size(query: GroupByQuery, workers: int | None = None) -> MergeSize:
        return MergeSize(bytes_of_a_group(query), nbytes, nbytes)

    with mock.patch.object(lower, "merge_size", size):
        yield
