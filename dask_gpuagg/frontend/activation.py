"""Switching the plugin on and off, and the versions of Dask on which that is done."""

import contextlib
import re
from collections.abc import Iterator

import dask

from dask_gpuagg.frontend import contract, patches
from dask_gpuagg.frontend.hook import hooks
from dask_gpuagg.frontend.patches import is_enabled
from dask_gpuagg.reporting.events import Sink, dry_run
from dask_gpuagg.reporting.fallbacks import warn_user
from dask_gpuagg.settings import settings

__all__ = ["as_if_enabled", "disable", "enable", "enabled", "is_enabled"]

OLDEST_DASK = "2025.5.0"
# the newest one that the tests have run on
NEWEST_DASK = "2026.8.0"

# how many use the wrappers: one for enable(), one for each open block
_users = 0
# later versions of Dask whose canary query was answered right in this process
_trusted: set[str] = set()


def enable() -> None:
    """Run group-by aggregations of Dask DataFrame through our plan, from now on.

    For all threads of the process; ``with enabled():`` is for some lines.

    Raises
    ------
    BadSetting
        When the configuration has a setting that is not allowed.
    RuntimeError
        When the installed Dask is older than the oldest one supported, its internals are not as
        expected, or it is newer than those tested and answers a test query wrong. Nothing is
        changed then.
    """
    with patches.lock:
        if not patches.process_on:
            _acquire()
            patches.process_on = True
    if (block := patches.innermost()) is not None:
        block.on = True


def disable() -> None:
    """Undo ``enable()``, and end the effect of the ``with enabled():`` block around the call."""
    with patches.lock:
        if patches.process_on:
            patches.process_on = False
            _release()
    if (block := patches.innermost()) is not None:
        block.on = False


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Context manager: the plugin on inside, for this thread or coroutine.

    Other threads are not concerned, not even those that are started inside.

    Raises
    ------
    BadSetting, RuntimeError
        As by ``enable()``.
    """
    with _installed(), patches.block():
        yield


@contextlib.contextmanager
def as_if_enabled(sink: Sink = lambda event: None) -> Iterator[None]:
    """Context manager: a dry run of queries, which are tuned and lowered as with the plugin on.

    Its events go to ``sink`` (see ``reporting.events``).
    """
    with _installed(), dry_run(sink):
        yield


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    _acquire()
    try:
        yield
    finally:
        _release()


def _acquire() -> None:
    global _users
    settings()
    with patches.lock:
        if _users == 0:
            _install()
        _users += 1


def _release() -> None:
    global _users
    with patches.lock:
        _users -= 1
        if _users == 0:
            patches.uninstall()


def _install() -> None:
    version = dask.__version__
    if numbers(version) < numbers(OLDEST_DASK):
        raise RuntimeError(
            f"dask_gpuagg hooks into Dask's internals, as they are from {OLDEST_DASK} on; "
            f"Dask {version} is installed. Nothing was changed."
        )
    contract.check()
    patches.install(hooks())
    if numbers(version) <= numbers(NEWEST_DASK) or version in _trusted:
        return
    try:
        with dry_run():
            contract.try_queries()
    except BaseException as error:
        patches.uninstall()
        if not isinstance(error, Exception):
            raise
        raise RuntimeError(
            f"Dask {version} is newer than {NEWEST_DASK}, the newest that dask_gpuagg was tested "
            f"on, and a test query fails there: {error!r}. Nothing was changed."
        ) from error
    _trusted.add(version)
    warn_user(
        f"Dask {version} is newer than {NEWEST_DASK}, the newest that dask_gpuagg was tested on. "
        "Its internals look the same, and test queries are answered right.",
        UserWarning,
    )


def numbers(version: str) -> tuple[int, ...]:
    """The release's numbers, without what marks it as local or in development."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version)[0])[:3]))
