"""Wrapping functions of Dask, and where the wrappers act.

Installing a wrapper changes a class for the whole process; whether it acts is decided for the
thread or coroutine that calls it.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dask_gpuagg.cache import after_fork
from dask_gpuagg.reporting.events import is_dry_run
from dask_gpuagg.settings import switch

Hook = tuple[type, str, Any]

lock = threading.RLock()


@after_fork
def _reset_lock() -> None:
    global lock
    lock = threading.RLock()


# the attributes before they were wrapped; None where the class inherited one
_originals: dict[tuple[type, str], Any] = {}


class Block:
    """A ``with enabled():`` block inside another; contexts copied inside it may outlive it."""

    on: bool | None = True  # None after its end

    def __init__(self, outer: Block | None) -> None:
        self.outer = outer


# the switch of the process
process_on = False
# the block of this thread or coroutine
_innermost: ContextVar[Block | None] = ContextVar("_innermost", default=None)


def innermost() -> Block | None:
    """The open block that this code is in."""
    block = _innermost.get()
    while block is not None and block.on is None:
        block = block.outer
    return block


@contextmanager
def block() -> Iterator[None]:
    """Context manager: a block for this thread or coroutine, and everything that it starts."""
    inner = Block(innermost())
    _innermost.set(inner)
    try:
        yield
    finally:
        inner.on = None
        # not by a token: a generator may be closed in another context than it was started in
        if _innermost.get() is inner:
            _innermost.set(inner.outer)


def is_enabled() -> bool:
    """Whether group-bys computed in this thread or coroutine are offered to the planner.

    Returns
    -------
    bool
        In a ``with enabled():`` block true; otherwise whether ``enable()`` or ``disable()`` was
        called last. False in any case while the configuration ``gpuagg.enabled`` is false.
    """
    inner = innermost()
    on = process_on if inner is None else bool(inner.on)
    return on and switch() is not False


def install(hooks: list[Hook]) -> None:
    """Wrap functions of Dask; the caller holds the lock."""
    for hook in hooks:
        _wrap(*hook)


def install_late(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    """Wrap one more function, of a module that is imported only now."""
    with lock:
        if _originals and (owner, name) not in _originals:
            _wrap(owner, name, wrapper)


def uninstall() -> None:
    """Restore Dask's functions; the caller holds the lock."""
    for (owner, name), original in _originals.items():
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    _originals.clear()


def _wrap(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    attribute = inspect.getattr_static(owner, name, None)
    _originals[owner, name] = owner.__dict__.get(name)
    if attribute is None:
        # Dask has no such method: the wrapper is a descriptor
        setattr(owner, name, wrapper)
        return
    is_property = isinstance(attribute, functools.cached_property)
    original: Any = attribute.func if is_property else getattr(owner, name)

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_enabled() or is_dry_run():
            return wrapper(original, self, *args, **kwargs)
        return original(self, *args, **kwargs)

    wrapped.__name__ = name
    wrapped.__doc__ = original.__doc__
    value: Any = wrapped
    if name == "_meta":
        value = functools.cached_property(wrapped)
        value.__set_name__(owner, name)
    elif is_property:
        # only metadata is the same with and without the plugin, and may be cached
        value = property(wrapped)
    setattr(owner, name, value)
