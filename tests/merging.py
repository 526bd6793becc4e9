"""Decisions about merging, and merging in pieces of a chosen size for results that are small."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import dask_gpuagg
from dask_gpuagg.planning import route
from dask_gpuagg.planning.chunks import GroupByQuery, Routing
from dask_gpuagg.planning.route import MergeSize, bytes_of_a_group


def decision_of(query: Any) -> Routing:
    """How the only group-by of a query is merged."""
    (explained,) = dask_gpuagg.explain(query).groupbys
    assert explained.decision is not None, explained
    return explained.decision


@contextmanager
def pieces_of(nbytes: int) -> Iterator[None]:
    """Context manager: one task merges at most so many bytes of a result."""

    def size(query: GroupByQuery, workers: int | None = None) -> MergeSize:
        return MergeSize(bytes_of_a_group(query), nbytes, nbytes)

    with mock.patch.object(route, "merge_size", size):
        yield
