"""Device memory of which the n-th allocation fails."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_made: list[Failing] = []


class Failing:
    """Counts allocations and refuses some of them.

    Parameters
    ----------
    n : int
        How many are granted before one is refused.
    once : bool
        Whether only one is refused, or all behind it too.
    """

    def __init__(self, n: int, once: bool) -> None:
        import rmm

        self.allocations = 0
        self._n, self._once = n, once
        self._of = rmm.mr.get_current_device_resource()
        callback = rmm.mr.CallbackMemoryResource(self._allocate, self._deallocate)
        self.resource = rmm.mr.StatisticsResourceAdaptor(callback)

    def disarm(self) -> None:
        """Refuse nothing any more."""
        self._n = sys.maxsize

    def held(self) -> int:
        """Bytes that were not given back."""
        return int(self.resource.allocation_counts.current_bytes)

    def _allocate(self, size: int, stream: Any) -> int:
        before = self.allocations
        self.allocations += 1
        if before == self._n or (before > self._n and not self._once):
            raise MemoryError(f"allocation {before} is refused; Requested bytes {size}")
        return int(self._of.allocate(size, stream))

    def _deallocate(self, pointer: int, size: int, stream: Any) -> None:
        self._of.deallocate(pointer, size, stream)


@contextmanager
def current(resource: Any) -> Iterator[None]:
    """Context manager: RMM's current resource is another one."""
    import rmm

    before = rmm.mr.get_current_device_resource()
    rmm.mr.set_current_device_resource(resource)
    try:
        yield
    finally:
        rmm.mr.set_current_device_resource(before)


@contextmanager
def failing(n: int, once: bool) -> Iterator[Failing]:
    """Context manager: the current memory resource is one that fails."""
    made = Failing(n, once)
    # whatever it has allocated is given back to it, cycles that are found later included
    _made.append(made)
    with current(made.resource):
        yield made


def numbers() -> Iterator[int]:
    """Each of the first allocations, and some of the later ones.

    All of them where ``GPUAGG_ALLOCATIONS`` is ``all``.
    """
    every = os.environ.get("GPUAGG_ALLOCATIONS") == "all"
    n = 0
    while n < 5_000:
        yield n
        n += 1 if every or n < 40 else max(n // 8, 5)
    raise AssertionError("a query of so few rows makes so many allocations")
