"""Questions to a cluster: whether it can run our tasks, and where its data lies.

A worker that cannot import this package fails while it unpickles the task, shuts itself down,
and the query hangs. So versions are compared before a planned query is sent.
"""

from __future__ import annotations

import math
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import dask
from dask.utils import parse_timedelta

from dask_gpuagg._version import __version__

_RUNNING = "running"
HERE = "this process"

# sent as text: without the package a function of ours cannot be unpickled there
_PROBE = "__import__('dask_gpuagg._version', fromlist=['__version__']).__version__"

# to ask a scheduler that is gone takes as long as a connection is tried
_NOT_CONNECTED = "the client is not connected to its scheduler"

# per client: the workers that were found to be fine, as ``identities`` has them
_checked: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()

# per client: when it was found that some worker does not answer
_silent: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
# seconds for which that is taken for true: each query would wait for it
_SILENT_FOR = 60.0

# per client: the time of the last request, and the workers of the cluster
_seen: weakref.WeakKeyDictionary[Any, tuple[float, frozenset[str]]] = weakref.WeakKeyDictionary()
# seconds for which an answer is reused: planning asks several times for one query
GOOD_FOR = 1.0

# per client: the device memory of its workers, by identity
_device_memory: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()


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
                identified = await client.run_on_scheduler(identities, callback_timeout=limit)
                _keep(client, workers, identified)
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
            identified = client.run_on_scheduler(identities, callback_timeout=limit)
            _keep(client, workers, identified)
    except TimeoutError:
        _silent[client] = time.monotonic()
        return _no_answer()
    return problem


def _no_answer() -> str:
    return f"the scheduler or a worker did not answer within {patience():g} s"


def _keep(client: Any, workers: dict[str, Any], identified: dict[str, str]) -> None:
    """Remember the workers that were asked, as they are named on the scheduler."""
    _silent.pop(client, None)
    _checked[client] = frozenset(name for name, address in identified.items() if address in workers)


def _verdict(scheduler: Any, workers: dict[str, Any]) -> str | None:
    places = {"the scheduler": scheduler}
    places |= {f"worker {address}": version for address, version in workers.items()}
    for place, version in places.items():
        if isinstance(version, BaseException):
            return f"{place} cannot import dask_gpuagg: {version}"
        if version != __version__:
            return f"{place} has dask_gpuagg {version}, the client has {__version__}"
    return None


@dataclass(frozen=True, slots=True)
class Place:
    """The worker that holds the data of one key.

    Attributes
    ----------
    worker : str
        Address of a running worker.
    nbytes : int
        As the worker measured it.
    """

    worker: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class WorkerSize:
    """The resources of one worker.

    Attributes
    ----------
    threads : int
    device_memory : int
        Bytes of its GPU; 0 where it has none, or where that was not asked.
    memory : int
        Bytes of the host that it may use; 0 where that is not limited.
    """

    threads: int
    device_memory: int
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Places:
    """Places of keys, and the workers of the cluster.

    Attributes
    ----------
    of_key : mapping of key to Place
        Without the keys that no running worker holds.
    workers : mapping of str to WorkerSize
        The running workers, by address.
    """

    of_key: Mapping[Any, Place]
    workers: Mapping[str, WorkerSize]


def ask(client: Any, keys: Sequence[Any], device: bool) -> Places:
    """Ask the scheduler for the places of keys, and each worker once for its device memory."""
    limit = patience()
    held, running, everyone = client.run_on_scheduler(look_up, list(keys), callback_timeout=limit)
    _seen[client] = time.monotonic(), frozenset(everyone)
    of_key = {key: Place(*place) for key, place in zip(keys, held, strict=True) if place}
    # without the workers that are gone
    remembered = _device_memory.get(client, {})
    memory = {name: remembered[name] for name in everyone if name in remembered}
    address_of = {name: address for name, address in everyone.items() if address in running}
    new = {name: a for name, a in address_of.items() if name not in memory} if device else {}
    if new:
        asked = list(new.values())
        # workers of the host beside those of GPUs cannot import what it needs
        answers = client.run(device_bytes, workers=asked, on_error="return", callback_timeout=limit)
        memory |= {name: _bytes_or_none(answers.get(address)) for name, address in new.items()}
    _device_memory[client] = memory
    of_worker = {address: memory.get(name, 0) for name, address in address_of.items()}
    sizes = {
        address: WorkerSize(threads, of_worker[address], nbytes)
        for address, (threads, nbytes) in running.items()
    }
    return Places(of_key, sizes)


def seen_workers(client: Any) -> frozenset[str] | None:
    """The identities of all workers, if the scheduler was asked a moment ago; else ``None``."""
    asked, workers = _seen.get(client, (-math.inf, frozenset()))
    return workers if time.monotonic() - asked < GOOD_FOR else None


def device_memory(client: Any) -> list[int]:
    """Bytes of the GPUs of the workers that were asked for them; empty if none was, or has one."""
    return [nbytes for nbytes in _device_memory.get(client, {}).values() if nbytes]


def _bytes_or_none(answer: Any) -> int:
    return answer if isinstance(answer, int) else 0


def device_bytes() -> int:
    """Bytes of the memory of a worker's GPU; ``ask`` runs it there."""
    import cupy  # only such workers have it
    import dask_cudf  # noqa: F401  registers sizeof for cuDF, without which Dask underestimates partitions

    return int(cupy.cuda.Device().mem_info[1])


def look_up(
    keys: Sequence[Any], dask_scheduler: Any = None
) -> tuple[list[tuple[str, int] | None], dict[str, tuple[int, int]], dict[str, str]]:
    """Answer ``ask`` on the scheduler, in plain tuples, which cost little to send."""
    running = {w.address: w for w in dask_scheduler.workers.values() if w.status.name == _RUNNING}
    held = [_held(dask_scheduler.tasks.get(key), running) for key in keys]
    sizes = {address: (w.nthreads, int(w.memory_limit or 0)) for address, w in running.items()}
    return held, sizes, identities(dask_scheduler)


def identities(dask_scheduler: Any = None) -> dict[str, str]:
    """The addresses of all workers by names that no other process has; runs on the scheduler.

    A worker may be replaced by another one at its address.
    """
    workers = dask_scheduler.workers.values()
    return {f"{w.address} {getattr(w, 'server_id', '')}": w.address for w in workers}


def patience() -> float:
    """Seconds after which a scheduler or worker that does not answer is taken for silent."""
    return float(parse_timedelta(dask.config.get("distributed.comm.timeouts.connect", "30s")))


def _held(task: Any, running: Mapping[str, Any]) -> tuple[str, int] | None:
    if task is None:
        return None
    # always the same of several copies, so that a repeated query gets the same name
    holders = sorted(w.address for w in task.who_has or () if w.address in running)
    return (holders[0], max(task.nbytes, 0)) if holders else None


class Gathered(NamedTuple):
    """Answers by the address of a worker, or ``HERE``, and why others are missing.

    Attributes
    ----------
    answers : dict of str to object
    missing : dict of str to str
    """

    answers: dict[str, Any]
    missing: dict[str, str]


def gather(ask: Callable[..., Any], *args: Any) -> Gathered:
    """Call a function of this package here and on every worker.

    Parameters
    ----------
    ask : callable
        Of a module, so that it pickles by name.
    *args
        Its arguments.

    Returns
    -------
    Gathered
        Of an asynchronous client, whose workers cannot be waited for, without the workers' answers.
    """
    answers: dict[str, Any] = {HERE: ask(*args)}
    missing: dict[str, str] = {}
    client = current_client()
    if client is None or client.status != "running":
        return Gathered(answers, missing)
    if client.asynchronous:
        reason = "the client is asynchronous, or the call was made on its event loop"
        return Gathered(answers, {"the workers": reason})
    try:
        of_workers = client.run(ask, *args, on_error="return", callback_timeout=patience())
    except TimeoutError:
        return Gathered(answers, {"the workers": f"no answer within {patience():g} s"})
    for worker, answer in of_workers.items():
        if isinstance(answer, BaseException):
            missing[worker] = repr(answer)
        else:
            answers[worker] = answer
    return Gathered(answers, missing)
