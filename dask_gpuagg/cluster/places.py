"""Which workers hold the partitions of persisted collections, by one request to the scheduler."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask
from dask.utils import parse_timedelta

_RUNNING = "running"


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


# per client: the time of the last request, and the workers of the cluster
_seen: weakref.WeakKeyDictionary[Any, tuple[float, frozenset[str]]] = weakref.WeakKeyDictionary()
# seconds for which an answer is reused: planning asks several times for one query
GOOD_FOR = 1.0

# per client: the device memory of its workers, by identity
_device_memory: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary()


def ask(client: Any, keys: Sequence[Any], device: bool) -> Places:
    """Ask the scheduler of a client for the places of some keys.

    Parameters
    ----------
    client : distributed.Client
        One that is not asynchronous.
    keys : sequence of keys
    device : bool
        Whether the device memory of the workers is asked too: of each worker, once.

    Returns
    -------
    Places
    """
    limit = patience()
    held, running, everyone = client.run_on_scheduler(look_up, list(keys), callback_timeout=limit)
    _seen[client] = time.monotonic(), frozenset(everyone)
    of_key = {key: Place(*place) for key, place in zip(keys, held, strict=True) if place}
    # without the workers that are gone
    known = _device_memory.get(client, {})
    memory = {name: known[name] for name in everyone if name in known}
    address_of = {name: address for name, address in everyone.items() if address in running}
    new = {name: a for name, a in address_of.items() if name not in memory} if device else {}
    if new:
        asked = list(new.values())
        # workers of the host beside those of GPUs cannot import what it needs
        found = client.run(device_bytes, workers=asked, on_error="return", callback_timeout=limit)
        memory |= {name: _bytes_or_none(found.get(address)) for name, address in new.items()}
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
    """What ``ask`` runs on a worker with a GPU: the bytes of its memory."""
    import cupy  # only such workers have it
    import dask_cudf  # noqa: F401  registers sizeof for cuDF, without which Dask underestimates partitions

    return int(cupy.cuda.Device().mem_info[1])


def look_up(
    keys: Sequence[Any], dask_scheduler: Any = None
) -> tuple[list[tuple[str, int] | None], dict[str, tuple[int, int]], dict[str, str]]:
    """What ``ask`` runs on the scheduler: plain tuples, which cost little to send."""
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
