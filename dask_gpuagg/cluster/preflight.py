"""Whether the scheduler and all workers are able to run our tasks.

A worker that cannot import this package fails while it unpickles the task, shuts itself down,
and the query hangs. So versions are compared before a planned query is sent.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from dask_gpuagg._version import __version__
from dask_gpuagg.cluster.places import seen_workers

# sent as text: without the package a function of ours cannot be unpickled there
_PROBE = "__import__('dask_gpuagg._version', fromlist=['__version__']).__version__"

# per client: the worker addresses that were found to be fine
_checked: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()


def current_client() -> Any | None:
    """The ``distributed`` client that a computation would use, if any."""
    distributed = sys.modules.get("distributed")
    if distributed is None:  # without the import there is no client
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


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
    workers = seen_workers(client)
    if workers is None:
        workers = frozenset(client.scheduler_info(n_workers=-1)["workers"])
    if client in _checked and workers <= _checked[client]:
        return None
    return _check_now(client)


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
        return _check_now(client)

    async def check() -> str | None:
        workers = await client.run(eval, _PROBE, on_error="return")
        try:
            scheduler = await client.run_on_scheduler(eval, _PROBE)
        except ImportError as error:
            scheduler = error
        return _verdict(client, scheduler, workers)

    return check()


def _check_now(client: Any) -> str | None:
    workers = client.run(eval, _PROBE, on_error="return")
    try:
        scheduler = client.run_on_scheduler(eval, _PROBE)
    except ImportError as error:
        scheduler = error
    return _verdict(client, scheduler, workers)


def _verdict(client: Any, scheduler: Any, workers: dict[str, Any]) -> str | None:
    places = {"the scheduler": scheduler}
    places |= {f"worker {address}": found for address, found in workers.items()}
    for place, found in places.items():
        if isinstance(found, BaseException):
            return f"{place} cannot import dask_gpuagg: {found}"
        if found != __version__:
            return f"{place} has dask_gpuagg {found}, the client has {__version__}"
    _checked[client] = frozenset(workers)
    return None
