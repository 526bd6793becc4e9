"""Whether the scheduler and all workers are able to run our tasks.

A worker that cannot import this package fails while it unpickles the task, shuts itself down,
and the query hangs. So versions are compared before a planned query is sent.
"""

from __future__ import annotations

import math
import sys
import time
import weakref
from typing import Any

from dask_gpuagg._version import __version__
from dask_gpuagg.cluster.places import identities, patience, seen_workers

# sent as text: without the package a function of ours cannot be unpickled there
_PROBE = "__import__('dask_gpuagg._version', fromlist=['__version__']).__version__"

# to ask a scheduler that is gone takes as long as a connection is tried
_NOT_CONNECTED = "the client is not connected to its scheduler"

# per client: the workers that were found to be fine, as ``places.identities`` has them
_checked: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()

# per client: when it was found that some worker does not answer
_silent: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
# seconds for which that is taken for true: each query would wait for it
_SILENT_FOR = 60.0


def current_client() -> Any | None:
    """The ``distributed`` client that a computation would use, if any."""
    # before it is imported there is no client, nor while another thread imports it
    default_client = getattr(sys.modules.get("distributed"), "default_client", None)
    if default_client is None:
        return None
    try:
        return default_client()
    except ValueError:
        return None


def protocol() -> str:
    """By which the current client talks to its cluster, ``tcp`` say; empty without one."""
    client = current_client()
    scheduler = None if client is None else client.scheduler
    return "" if scheduler is None else str(scheduler.address).partition("://")[0]


def cluster_problem(client: Any | None = None) -> str | None:
    """Why a cluster cannot run planned queries.

    Parameters
    ----------
    client : distributed.Client, optional
        The current client by default.

    Returns
    -------
    str or None
        ``None`` when there is no cluster or nothing is wrong with it.
    """
    client = client or current_client()
    if client is None:
        return None
    if client.asynchronous:
        if client in _checked:
            return None
        return "the client is asynchronous: await dask_gpuagg.check_cluster(client) once before"
    if client.status != "running":
        return _NOT_CONNECTED
    if client not in _checked:
        return _check_now(client)
    workers = seen_workers(client)
    try:
        workers = workers or frozenset(
            client.run_on_scheduler(identities, callback_timeout=patience())
        )
    except TimeoutError:
        return _no_answer()
    return None if workers <= _checked[client] else _check_now(client)


def is_checked(client: Any) -> bool:
    """Whether the scheduler and all workers of a client were found to be fine once."""
    return client in _checked


def check_cluster(client: Any | None = None) -> Any:
    """Compare the package's version on the client, the scheduler and every worker.

    Parameters
    ----------
    client : distributed.Client, optional
        The current client by default.

    Returns
    -------
    str or None
        What is wrong, or ``None``. For an asynchronous client, an awaitable of it; queries of
        such a client run stock until it has been awaited.
    """
    client = client or current_client()
    if client is None:
        return None
    if not client.asynchronous:
        return _check_now(client) if client.status == "running" else _NOT_CONNECTED

    async def check() -> str | None:
        limit = patience()
        try:
            workers = await client.run(eval, _PROBE, on_error="return", callback_timeout=limit)
            try:
                scheduler = await client.run_on_scheduler(eval, _PROBE, callback_timeout=limit)
            except ImportError as error:
                scheduler = error
            problem = _verdict(scheduler, workers)
            if problem is None:
                found = await client.run_on_scheduler(identities, callback_timeout=limit)
                _keep(client, workers, found)
        except TimeoutError:
            return _no_answer()
        return problem

    return check()


def _check_now(client: Any) -> str | None:
    if time.monotonic() - _silent.get(client, -math.inf) < _SILENT_FOR:
        return _no_answer()
    limit = patience()
    try:
        workers = client.run(eval, _PROBE, on_error="return", callback_timeout=limit)
        try:
            scheduler = client.run_on_scheduler(eval, _PROBE, callback_timeout=limit)
        except ImportError as error:
            scheduler = error
        problem = _verdict(scheduler, workers)
        if problem is None:
            found = client.run_on_scheduler(identities, callback_timeout=limit)
            _keep(client, workers, found)
    except TimeoutError:
        _silent[client] = time.monotonic()
        return _no_answer()
    return problem


def _no_answer() -> str:
    return f"the scheduler or a worker did not answer within {patience():g} s"


def _keep(client: Any, workers: dict[str, Any], found: dict[str, str]) -> None:
    """Remember the workers that were asked, as they are named on the scheduler."""
    _silent.pop(client, None)
    _checked[client] = frozenset(name for name, address in found.items() if address in workers)


def _verdict(scheduler: Any, workers: dict[str, Any]) -> str | None:
    places = {"the scheduler": scheduler}
    places |= {f"worker {address}": found for address, found in workers.items()}
    for place, found in places.items():
        if isinstance(found, BaseException):
            return f"{place} cannot import dask_gpuagg: {found}"
        if found != __version__:
            return f"{place} has dask_gpuagg {found}, the client has {__version__}"
    return None
