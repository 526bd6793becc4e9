"""Cached properties of Dask's expressions, without the lock that Python 3.11 gives them.

There each cached property has one lock for all objects. Some of Dask's compute while they hold it:
the number of partitions after ``sort_values`` depends on the data. A scheduler in the same process,
as of a ``LocalCluster``, reads the same property of what it is to compute, in another thread, and
both wait for ever. Python 3.12 has no such lock: two threads may find the same value twice.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from dask._expr import Expr

# the locks that were taken away
_locks: list[tuple[Any, Any]] = []


def take_away() -> None:
    """Take the locks away; does nothing where cached properties have none."""
    for cached in _cached_properties(Expr):
        if hasattr(cached, "lock"):
            _locks.append((cached, cached.lock))
            cached.lock = contextlib.nullcontext()


def give_back() -> None:
    """Undo ``take_away``."""
    for cached, lock in reversed(_locks):
        cached.lock = lock
    _locks.clear()


def _cached_properties(owner: type) -> Iterator[Any]:
    for attribute in vars(owner).values():
        if isinstance(attribute, functools.cached_property):
            yield attribute
    kinds: list[type] = owner.__subclasses__()
    for kind in kinds:
        yield from _cached_properties(kind)
