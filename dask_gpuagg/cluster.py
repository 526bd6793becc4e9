"""Questions to a cluster: whether it can run our tasks, and where its data lies.

A worker that cannot import this package fails while it unpickles the task, shuts itself down,
and the query hangs. So versions are compared before a planned query is sent.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import dask
from dask.utils import parse_timedelta

from dask_gpuagg._version import __version__

HERE = "this process"

# sent as text: without the package a function of ours cannot be unpickled there
_PROBE = "__import__('dask_gpuagg._version', fromlist=['__version__']).__version__"

# by client: the workers that can run our tasks, as ``identities`` has them
_checked: WeakKeyDictionary[Any, frozenset[str]] = WeakKeyDictionary()
# when a worker or the scheduler did not answer
_silent: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
# the time of the last request, and the workers then
_workers: WeakKeyDictionary[Any, tuple[float, frozenset[str]]] = WeakKeyDictionary()
# bytes of the GPUs of workers
_device_memory: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()

# seconds for which a worker is taken for silent: each query would wait for it
_SILENT_FOR = 60.0
# seconds for which an answer is reused: planning asks several times for one query
GOOD_FOR = 1.0


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
    """Protocol of the current client's cluster, such as ``tcp``; empty without a client."""
    client = current_client()
    scheduler = None if client is None else client.scheduler
    return "" if scheduler is None else str(scheduler.address).partition("://")[0]


def cluster_problem(client: Any | None = None) -> str | None:
    """Say why the cluster of a client, or the current one, cannot run planned queries.

    ``None`` without a cluster, or where nothing is wrong with it.
    """
    client = client or current_client()
    if client is None:
        return None
    if client.asynchronous:
        if client in _checked:
            return None
        return "the client is asynchronous: await dask_gpuagg.check_cluster(client) once before"
    if client.status == "running" and client in _checked:
        requested, workers = _workers.get(client, (-math.inf, frozenset()))
        if not workers or time.monotonic() - requested >= GOOD_FOR:
            try:
                identified = client.run_on_scheduler(identities, callback_timeout=patience())
            except TimeoutError:
                return _no_answer()
            workers = frozenset(identified)
        if workers <= _checked[client]:
            return None
    problem: str | None = check_cluster(client)
    return problem


def is_checked(client: Any) -> bool:
    """Whether the scheduler and all workers of a client have passed the check once."""
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
    # to ask a scheduler that is gone takes as long as a connection is tried
    if not client.asynchronous and client.status != "running":
        return "the client is not connected to its scheduler"
    return client.sync(_check, client)


async def _check(client: Any) -> str | None:
    """Compare the versions, and remember the workers that were asked where nothing is wrong."""
    if time.monotonic() - _silent.get(client, -math.inf) < _SILENT_FOR:
        return _no_answer()
    limit = patience()
    try:
        workers = await client.run(eval, _PROBE, on_error="return", callback_timeout=limit)
        try:
            scheduler = await client.run_on_scheduler(eval, _PROBE, callback_timeout=limit)
        except ImportError as error:
            scheduler = error
        versions = {f"worker {address}": version for address, version in workers.items()}
        for place, version in {"the scheduler": scheduler, **versions}.items():
            if isinstance(version, BaseException):
                return f"{place} cannot import dask_gpuagg: {version}"
            if version != __version__:
                return f"{place} has dask_gpuagg {version}, the client has {__version__}"
        identified = await client.run_on_scheduler(identities, callback_timeout=limit)
    except TimeoutError:
        _silent[client] = time.monotonic()
        return _no_answer()
    _silent.pop(client, None)
    _checked[client] = frozenset(name for name, address in identified.items() if address in workers)
    return None


def _no_answer() -> str:
    return f"the scheduler or a worker did not answer within {patience():g} s"


class Place(NamedTuple):
    """The data of one key: the address of a running worker that holds it, and its bytes there."""

    worker: str
    nbytes: int


class WorkerSize(NamedTuple):
    """The resources of one worker.

    The bytes of its GPU are 0 where it has none or was not asked, and those of the host where they
    are not limited.
    """

    threads: int
    device_memory: int
    memory: int = 0


class Places(NamedTuple):
    """Places of the keys that a running worker holds, and the running workers by address."""

    of_key: Mapping[Any, Place]
    workers: Mapping[str, WorkerSize]


def ask(client: Any, keys: Sequence[Any], device: bool) -> Places:
    """Ask the scheduler for the places of keys, and each worker once for its device memory."""
    limit = patience()
    held, running, everyone = client.run_on_scheduler(look_up, list(keys), callback_timeout=limit)
    _workers[client] = time.monotonic(), frozenset(everyone)
    of_key = {key: Place(*place) for key, place in zip(keys, held, strict=True) if place}
    # without the workers that are gone
    memory = {n: nbytes for n, nbytes in _device_memory.get(client, {}).items() if n in everyone}
    name_of = {address: name for name, address in everyone.items()}
    new = [address for address in running if device and name_of[address] not in memory]
    if new:
        answers = client.run(device_bytes, workers=new, on_error="return", callback_timeout=limit)
        # workers of the host beside those of GPUs cannot import what it needs
        numbers = {address: answer for address, answer in answers.items() if type(answer) is int}
        memory |= {name_of[address]: numbers.get(address, 0) for address in new}
    _device_memory[client] = memory
    sizes = {
        address: WorkerSize(threads, memory.get(name_of[address], 0), nbytes)
        for address, (threads, nbytes) in running.items()
    }
    return Places(of_key, sizes)


def device_memory(client: Any) -> list[int]:
    """Bytes of the GPUs of the workers that were asked for them; empty if none was, or has one."""
    return [nbytes for nbytes in _device_memory.get(client, {}).values() if nbytes]


def device_bytes() -> int:
    """Bytes of the memory of a worker's GPU; ``ask`` runs it there."""
    import cupy  # only such workers have it
    import dask_cudf  # noqa: F401  registers sizeof for cuDF, without which Dask underestimates partitions

    return int(cupy.cuda.Device().mem_info[1])


def look_up(
    keys: Sequence[Any], dask_scheduler: Any = None
) -> tuple[list[tuple[str, int] | None], dict[str, tuple[int, int]], dict[str, str]]:
    """Answer ``ask`` on the scheduler, in plain tuples, which cost little to send."""
    running = {w.address: w for w in dask_scheduler.workers.values() if w.status.name == "running"}
    held: list[tuple[str, int] | None] = []
    for task in map(dask_scheduler.tasks.get, keys):
        # always the same of several copies, so that a repeated query gets the same name
        holders = (
            sorted(w.address for w in task.who_has or () if w.address in running) if task else ()
        )
        held.append((holders[0], max(task.nbytes, 0)) if holders else None)
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


class Gathered(NamedTuple):
    """Answers by the address of a worker, or ``HERE``, and why others are missing."""

    answers: dict[str, Any]
    missing: dict[str, str]


def gather(ask: Callable[..., Any], *args: Any) -> Gathered:
    """Call a function of this package, which pickles by name, here and on every worker.

    The workers of an asynchronous client cannot be waited for: their answers are missing.
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
        by_worker = client.run(ask, *args, on_error="return", callback_timeout=patience())
    except TimeoutError:
        return Gathered(answers, {"the workers": f"no answer within {patience():g} s"})
    for worker, answer in by_worker.items():
        if isinstance(answer, BaseException):
            missing[worker] = repr(answer)
        else:
            answers[worker] = answer
    return Gathered(answers, missing)
