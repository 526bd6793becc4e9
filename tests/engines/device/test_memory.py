"""The steps where device memory does not suffice, without a GPU."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dask_gpuagg.engines.device.memory import (
    OutOfDeviceMemory,
    Spilled,
    first_that_fits,
    free_cached,
    limit_of_resource,
    on_device,
    out_of_memory,
    requested_bytes,
    resources,
    spill_manager,
)


class Buffer:
    """Something that a step has allocated."""


def failing(message: str, seen: list[weakref.ref[Buffer]]) -> int:
    held = Buffer()
    seen.append(weakref.ref(held))
    raise MemoryError(message)


def test_steps_are_taken_until_one_fits_and_those_before_hold_nothing() -> None:
    seen: list[weakref.ref[Buffer]] = []

    def last() -> int:
        assert [of() for of in seen] == [None, None]
        return 7

    steps = [lambda: failing("first", seen), lambda: failing("second", seen), last, int]
    gc.disable()
    try:
        assert first_that_fits(steps, MemoryError) == 7
    finally:
        gc.enable()


def test_the_first_message_is_the_errors() -> None:
    seen: list[weakref.ref[Buffer]] = []
    steps = [lambda: failing("first", seen), lambda: failing("second", seen)]
    with pytest.raises(OutOfDeviceMemory, match=r"does not suffice for 9 rows: .*first") as caught:
        first_that_fits(steps, lambda refused: out_of_memory("9 rows", refused, held=3 << 30))
    assert "3.0 GiB held by finished tables" in str(caught.value)
    assert [of() for of in seen] == [None, None]


def test_an_error_that_knows_its_sizes_is_raised_as_it_is() -> None:
    known = out_of_memory("4 rows", "Requested bytes 512")

    def inner() -> int:
        raise known

    with pytest.raises(OutOfDeviceMemory) as caught:
        first_that_fits([lambda: failing("whole", []), inner], MemoryError)
    assert caught.value is known
    assert "512 B requested" in str(caught.value)


def test_other_errors_are_raised_at_once() -> None:
    def broken() -> int:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        first_that_fits([broken, int], MemoryError)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Exceeded memory limit 4096; failed at: ...; Requested bytes 8192", 8192),
        ("maximum pool size exceeded (failed to allocate 2.5 GiB): out of memory", 5 << 29),
        ("std::bad_alloc: out_of_memory: CUDA error (failed to allocate 512 bytes) at: x", 512),
        ("std::bad_alloc", None),
    ],
)  # fmt: skip
def test_bytes_of_the_allocation_by_its_message(message: str, expected: int | None) -> None:
    assert requested_bytes(message) == expected


def test_the_limit_of_a_resource_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the outermost one: memory that the device has free is not there for it."""
    plain = SimpleNamespace()
    pool = SimpleNamespace(pool_size=lambda: 5 << 20, get_upstream=lambda: plain)
    counted = SimpleNamespace(get_upstream=lambda: pool)
    for resource, expected in ((plain, None), (pool, 5 << 20), (counted, 5 << 20)):
        mr = SimpleNamespace(get_current_device_resource=lambda of=resource: of)
        monkeypatch.setitem(sys.modules, "rmm", SimpleNamespace(mr=mr))
        assert limit_of_resource() == expected
        assert limit_of_resource(pools=False) is None
    assert "RMM's resource is limited to 5.0 MiB" in str(out_of_memory("x", "Requested bytes 1"))


def test_a_limit_is_told_from_a_pool_that_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = SimpleNamespace(get_allocation_limit=lambda: 3 << 20)
    pool = SimpleNamespace(pool_size=lambda: 5 << 20, get_upstream=lambda: limit)
    mr = SimpleNamespace(get_current_device_resource=lambda: pool)
    monkeypatch.setitem(sys.modules, "rmm", SimpleNamespace(mr=mr))
    assert limit_of_resource() == 5 << 20
    assert limit_of_resource(pools=False) == 3 << 20
    assert list(resources()) == [pool, limit]


def test_cudf_spills_only_where_it_was_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "cudf.core.buffer.spill_manager"
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert spill_manager() is None
    asked: list[int] = []
    manager = SimpleNamespace(spill_device_memory=lambda nbytes: asked.append(nbytes))
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(get_global_manager=lambda: manager))
    free_cached()
    assert asked == [sys.maxsize]


class SpillableColumn:
    """Of cuDF, of which the buffers are brought back while somebody has access."""

    def __init__(self, *children: SpillableColumn, masked: bool = False) -> None:
        self.plc_column, self.accessed, self.device = self, False, {"data": False, "mask": False}
        self._children, self._masked = children, masked

    @contextmanager
    def access(self, **how: str) -> Iterator[None]:
        assert how == {"mode": "read", "scope": "internal"}
        self._let(True)
        yield
        self._let(False)

    def _let(self, accessed: bool) -> None:
        self.accessed = accessed
        for child in self._children:
            child._let(accessed)

    def data(self) -> Any:
        return _Buffer(self, "data")

    def null_mask(self) -> Any:
        return _Buffer(self, "mask") if self._masked else None

    def children(self) -> tuple[SpillableColumn, ...]:
        return self._children

    def to_pylibcudf(self) -> list[bool]:
        """Which buffers are there, before and after those of the children."""
        below = [each for child in self._children for each in child.to_pylibcudf()]
        return [self.device["data"], *below, *([self.device["mask"]] if self._masked else [])]


class _Buffer:
    def __init__(self, column: SpillableColumn, name: str) -> None:
        self._column, self._name = column, name

    @property
    def ptr(self) -> int:
        assert self._column.accessed, "the buffer would never be spilled again"
        self._column.device[self._name] = True
        return 1


@pytest.mark.parametrize("spills", [False, True])
def test_spilled_columns_are_brought_back(spills: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = SimpleNamespace() if spills else None
    module = SimpleNamespace(get_global_manager=lambda: manager)
    monkeypatch.setitem(sys.modules, "cudf.core.buffer.spill_manager", module)
    column: Any = SpillableColumn(SpillableColumn(masked=True), masked=True)
    # where cuDF spills nothing, no buffer is asked for
    assert on_device(column) == [spills] * 4
    assert not column.accessed


def test_tables_come_back_as_they_left() -> None:
    tables = {"groups": pd.DataFrame({"k0": np.arange(5), "s0.sum": np.linspace(0, 1, 5)})}
    spilled = Spilled.of(tables)
    assert sum(memoryview(buffer).nbytes for buffer in spilled.buffers) >= 80
    pd.testing.assert_frame_equal(spilled.restored()["groups"], tables["groups"])


def test_without_a_device_nothing_is_cached() -> None:
    assert free_cached() is None
