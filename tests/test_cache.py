import gc
import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dask_gpuagg.cache import Cache, OfObjects
from tests.running import run_python


def test_the_value_used_least_recently_is_dropped() -> None:
    cache: Cache[str, int] = Cache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)
    assert "a" in cache
    assert "b" not in cache
    assert cache.keys() == ["a", "c"]


def test_a_value_is_made_once() -> None:
    cache: Cache[str, int] = Cache(2)
    calls: list[int] = []

    def make() -> int:
        calls.append(1)
        return len(calls)

    assert [cache.of("a", make) for _ in range(3)] == [1, 1, 1]
    cache.drop("a")
    assert cache.of("a", make) == 2
    cache.clear()
    assert cache.keys() == []


def test_threads_that_ask_for_one_key_wait_for_the_one_that_makes_it() -> None:
    cache: Cache[str, object] = Cache(2)
    begun, go_on, calls = threading.Event(), threading.Event(), []

    def make() -> object:
        calls.append(1)
        begun.set()
        assert go_on.wait(10)
        return object()

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.of, "a", make)
        assert begun.wait(10)
        others = [pool.submit(cache.of, "a", make) for _ in range(3)]
        # another key does not wait, and a key that is being made is not there
        assert cache.of("b", lambda: "made meanwhile") == "made meanwhile"
        assert cache.get("a") is None
        assert "a" not in cache
        go_on.set()
        got = {id(future.result(10)) for future in [first, *others]}
    assert len(got) == len(calls) == 1


def test_a_failure_is_raised_and_tried_again() -> None:
    cache: Cache[str, int] = Cache(2)
    with pytest.raises(ZeroDivisionError):
        cache.of("a", lambda: 1 // 0)
    assert "a" not in cache
    assert cache.of("a", lambda: 5) == 5


class Buffer:
    """Stands for device memory that a caller holds while it asks."""


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
def test_a_failure_keeps_nothing_of_those_who_wait_alive() -> None:
    cache: Cache[str, int] = Cache(2)
    begun, go_on, requested = threading.Event(), threading.Event(), threading.Event()
    held: list[weakref.ref[Buffer]] = []

    def fail() -> int:
        begun.set()
        assert go_on.wait(10)
        raise KeyError("missing")

    def make() -> None:
        try:
            cache.of("a", fail)
        except KeyError:
            return

    def wait() -> None:
        buffer = Buffer()
        held.append(weakref.ref(buffer))
        requested.set()
        try:
            cache.of("a", lambda: 1)
        except KeyError:
            return

    threads = [threading.Thread(target=make), threading.Thread(target=wait)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    assert requested.wait(10)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert held[0]() is None


FORK = """
import os, sys, threading
import dask_gpuagg
from dask_gpuagg.cache import Cache, OfObjects
from dask_gpuagg.frontend import patches

cache, making, end = Cache(4), threading.Event(), threading.Event()
cache.put("made", 1)

def make():
    making.set()
    end.wait(60)
    return "parent's"

def hold():
    with patches.lock, cache._lock:
        held.set()
        end.wait(60)

held = threading.Event()
threads = [threading.Thread(target=cache.of, args=("key", make))]
threads[0].start()
making.wait(60)
threads.append(threading.Thread(target=hold))
threads[1].start()
held.wait(60)
child = os.fork()
if child == 0:
    dask_gpuagg.enable()
    print(cache.of("key", lambda: "child's"), cache.get("made"), flush=True)
    os._exit(0)
end.set()
for thread in threads:
    thread.join()
_, status = os.waitpid(child, 0)
print(cache.get("key"), status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_while_another_thread_makes_a_value() -> None:
    """The child has neither the thread nor what it was making, and waits for neither."""
    ran = run_python("-W", "ignore", "-c", FORK, timeout=60)
    assert ran.stdout.splitlines() == ["child's 1", "parent's 0"], ran.stderr


def test_values_of_objects_are_found_by_the_objects_themselves() -> None:
    values: OfObjects[int] = OfObjects(2)
    first, equal = [1], [1]
    assert values.of(first, lambda: 10) == 10
    assert values.of(first, lambda: 11) == 10
    assert values.of(equal, lambda: 12) == 12
    assert values.of(first, lambda: 13) == 10
    # the one that was made first is dropped
    values.of([2], lambda: 14)
    assert values.of(equal, lambda: 15) == 12
    assert values.of(first, lambda: 16) == 16
    values.clear()
    assert values.of(equal, lambda: 17) == 17


@pytest.mark.usefixtures("uncollected")
def test_a_failure_keeps_nothing_of_its_caller_alive() -> None:
    cache: Cache[str, int] = Cache(2)

    def ask() -> weakref.ref[Buffer]:
        buffer = Buffer()
        with pytest.raises(ZeroDivisionError):
            cache.of("a", lambda: 1 // 0)
        return weakref.ref(buffer)

    assert ask()() is None
