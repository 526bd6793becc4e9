"""Caches of a process: bounded, shared by threads, usable after a fork."""

import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def after_fork(reset: Callable[[], None]) -> Callable[[], None]:
    """Call a function in every fork, where threads that held locks are not there."""
    os.register_at_fork(after_in_child=reset)
    return reset


class Cache(Generic[K, V]):
    """The values used last, up to a limit, by key."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._values: OrderedDict[K, Future[V]] = OrderedDict()
        _caches.add(self)

    def get(self, key: K) -> V | None:
        """The value of a key; ``None`` where there is none, or it is still being made."""
        with self._lock:
            future = self._values.get(key)
            if future is None or not future.done():
                return None
            self._values.move_to_end(key)
        return future.result()

    def put(self, key: K, value: V) -> None:
        """Remember a value, in the place of an earlier one."""
        future: Future[V] = Future()
        future.set_result(value)
        with self._lock:
            self._add(key, future)

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key, made where there is none.

        ``make`` is called without the lock, so that other keys do not wait; of several threads that
        ask for one key, one calls it and the others wait. It must not ask for the key that it
        makes. Its error is raised in every thread that waits; the next call tries again.
        """
        with self._lock:
            future = self._values.get(key)
            if future is not None:
                self._values.move_to_end(key)
            else:
                mine: Future[V] = Future()
                self._add(key, mine)
        if future is not None:
            try:
                return future.result()
            finally:
                del future  # an error holds this frame, and the future the error
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                if self._values.get(key) is mine:
                    del self._values[key]
            mine.set_exception(error)
            del mine
            raise
        mine.set_result(value)
        return value

    def drop(self, key: K) -> None:
        """Forget a key, if it is there."""
        with self._lock:
            self._values.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()

    def __contains__(self, key: K) -> bool:
        with self._lock:
            future = self._values.get(key)
            return future is not None and future.done()

    def keys(self) -> list[K]:
        """The keys, the one whose use lies back farthest first."""
        with self._lock:
            return list(self._values)

    def _add(self, key: K, future: Future[V]) -> None:
        self._values[key] = future
        self._values.move_to_end(key)
        while len(self._values) > self._limit:
            self._values.popitem(last=False)

    def _after_fork(self) -> None:
        """Replace the lock in the child, where no thread holds it or computes values."""
        self._lock = Lock()
        done = [(key, future) for key, future in list(self._values.items()) if future.done()]
        self._values = OrderedDict(done)


class OfObjects(Generic[V]):
    """Values of the latest objects, up to a limit, looked up by identity.

    Comparing equal objects may take longer than making the value. Objects live as long as their
    values are here.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # replaced as a whole, so that readers need no lock
        self._entries: tuple[tuple[Any, V], ...] = ()

    def of(self, key: Any, make: Callable[[], V]) -> V:
        """The value of an object, made where there is none; threads may make it twice."""
        for other, value in self._entries:
            if other is key:
                return value
        value = make()
        self._entries = (*self._entries, (key, value))[-self._limit :]
        return value

    def clear(self) -> None:
        """Forget everything."""
        self._entries = ()


_caches: weakref.WeakSet[Cache[Any, Any]] = weakref.WeakSet()


@after_fork
def _all_after_fork() -> None:
    for cache in list(_caches):
        cache._after_fork()
