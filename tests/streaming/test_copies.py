"""Copies through pinned buffers, by a driver whose device is the host's memory."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numba import types

from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.streaming import copies as module
from dask_gpuagg.streaming.copies import Copy, Pinned

STREAM = 7


class Driver:
    """Copies at once, and fails from some copy on."""

    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2, CU_EVENT_BLOCKING_SYNC=1)
    CUresult = int

    def __init__(self, fails_at: int | None = None) -> None:
        self.fails_at = fails_at
        self.pinned, self.refusal = 1 << 40, "CUDA_ERROR_OUT_OF_MEMORY"
        self.copies = 0
        self.memory: list[Any] = []
        self.events: list[int] = []
        self.recorded: set[int] = set()
        self.lock = threading.Lock()

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[int, int]:
        if size > self.pinned:
            raise driver.DriverError("no pinned memory", self.refusal)
        self.memory.append(np.zeros(size, np.uint8))
        return 0, self.memory[-1].ctypes.data

    def cuEventCreate(self, flags: int) -> tuple[int, int]:
        self.events.append(len(self.events) + 1)
        return 0, self.events[-1]

    def calls(self) -> module.Calls:
        """What the compiled loops call."""
        u64 = ctypes.c_uint64

        def function(made: Any, arguments: int) -> module.Function:
            kind = ctypes.CFUNCTYPE(ctypes.c_int, *[u64] * arguments)
            return module.Function(kind(made), arguments)

        copy = function(self._copy, 4)
        memory = module.Function(ctypes.CDLL(None).memcpy, 3, types.uint64)
        return module.Calls(
            function(lambda event: 0, 1), function(self._record, 2), copy, copy, memory
        )

    def _record(self, event: int, stream: int) -> int:
        assert stream == STREAM
        self.recorded.add(event)
        return 0

    def _copy(self, target: int, source: int, size: int, stream: int) -> int:
        assert stream == STREAM
        with self.lock:
            self.copies += 1
            if self.fails_at is not None and self.copies > self.fails_at:
                return 999
        ctypes.memmove(target, source, size)
        return 0


class Together(Driver):
    """Lets each thread wait at its first copy until all threads are there."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = threading.Barrier(1)
        self.own = threading.local()

    def _copy(self, target: int, source: int, size: int, stream: int) -> int:
        if not hasattr(self.own, "begun"):
            self.own.begun = True
            self.barrier.wait(30)
        return super()._copy(target, source, size, stream)


def checked(returned: tuple[Any, ...]) -> Any:
    """As the driver's module has it, without the bindings."""
    if returned[0]:
        raise driver.DriverError(f"CUDA driver: {returned[0]}")
    return returned[1] if returned[1:] else None


def pinned(monkeypatch: pytest.MonkeyPatch, made: Driver, begun: list[int]) -> Pinned:
    monkeypatch.setattr(module, "bindings", lambda: made)
    monkeypatch.setattr(module, "checked", checked)
    monkeypatch.setattr(module, "calls", made.calls)
    monkeypatch.setattr(module, "_BUFFER_BYTES", 64)
    monkeypatch.setattr(module, "_THREADS", 3)
    return Pinned(STREAM, lambda: begun.append(threading.get_ident()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(lengths=st.lists(st.integers(0, 900), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_bytes_arrive_and_come_back(lengths: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    sources = [rng.integers(0, 256, n, dtype=np.uint8) for n in lengths]
    device = np.zeros(sum(lengths), np.uint8)
    places = device.ctypes.data + np.cumsum([0, *lengths[:-1]])
    begun: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        made = pinned(patch, Driver(), begun)
        made.copy([Copy(s, int(at)) for s, at in zip(sources, places, strict=True)])
        assert np.array_equal(device, np.concatenate(sources))
        found = made.fetch([(int(at), n) for at, n in zip(places, lengths, strict=True)][::-1])
        assert np.array_equal(found, np.concatenate(sources[::-1]))
    assert len(set(begun)) == len(begun)
    if sum(lengths):
        assert begun


def test_an_error_is_raised_when_no_copy_runs_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Driver(fails_at=5)
    made = pinned(monkeypatch, fake, [])
    source, device = np.ones(64 * 40, np.uint8), np.zeros(64 * 40, np.uint8)
    with pytest.raises(driver.DriverError):
        made.copy([Copy(source, device.ctypes.data)])
    # each thread ends with its first failure
    assert fake.copies == 5 + made._threads
    fake.fails_at = None
    made.copy([Copy(source, device.ctypes.data)])
    assert device.all()


def test_an_interrupt_is_raised_when_no_copy_runs_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads would write to memory that is released with what has called them."""
    fake = Driver()
    made = pinned(monkeypatch, fake, [])
    source, device = np.ones(64 * 40, np.uint8), np.zeros(64 * 40, np.uint8)
    goes_on = threading.Event()
    copied = fake._copy
    monkeypatch.setattr(fake, "_copy", lambda *given: goes_on.wait(30) and copied(*given))
    monkeypatch.setattr(made, "_calls", fake.calls())
    waits: list[bool] = []
    real = module.wait

    def interrupted(started: Any) -> Any:
        waits.append(all(each.done() for each in started))
        if len(waits) == 1:
            raise KeyboardInterrupt
        goes_on.set()
        return real(started)

    monkeypatch.setattr(module, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.copy([Copy(source, device.ctypes.data)])
    assert waits == [False, False]
    assert device.all()


@pytest.mark.parametrize(("room", "threads"), [(64 * 6, 3), (64 * 5, 3), (64 * 2, 1), (64, 1)])
def test_less_pinned_memory_makes_fewer_buffers(
    monkeypatch: pytest.MonkeyPatch, room: int, threads: int
) -> None:
    fake = Driver()
    fake.pinned = room
    monkeypatch.setattr(module, "cpu_count", lambda: 8)
    made = pinned(monkeypatch, fake, [])
    assert made._threads == threads
    source, device = np.arange(900).astype(np.uint8), np.zeros(900, np.uint8)
    made.copy([Copy(source, device.ctypes.data)])
    assert np.array_equal(device, source)


def test_no_pinned_memory_is_an_error_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Driver()
    fake.pinned = 63
    with pytest.raises(MemoryError, match="no pinned host memory of 64 bytes"):
        pinned(monkeypatch, fake, [])
    fake.refusal = "CUDA_ERROR_NOT_INITIALIZED"
    with pytest.raises(driver.DriverError):
        pinned(monkeypatch, fake, [])


def test_copies_of_several_threads_keep_their_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Together()
    made = pinned(monkeypatch, fake, [])
    # else one thread may have done all before another starts, and uses its own buffers alone
    fake.barrier = threading.Barrier(made._threads)
    rng = np.random.default_rng(2)
    sources = [rng.integers(0, 256, 64 * 100, dtype=np.uint8) for _ in range(4)]
    targets = [np.zeros_like(source) for source in sources]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda s, t: made.copy([Copy(s, t.ctypes.data)]), sources, targets))
    for source, target in zip(sources, targets, strict=True):
        assert np.array_equal(source, target)
    assert fake.recorded == set(fake.events)


def test_loops_run_where_numba_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("upload", "download"):
        monkeypatch.setattr(module, name, getattr(module, name).py_func)
    made = pinned(monkeypatch, Driver(), [])
    source, device = np.arange(900).astype(np.uint8), np.zeros(900, np.uint8)
    made.copy([Copy(source, device.ctypes.data)])
    assert np.array_equal(made.fetch([(device.ctypes.data, 900)]), source)
