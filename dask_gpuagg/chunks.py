"""Chunks: the partitions that one task takes, and the tasks that are run inside of it.

The partitions of a persisted collection lie on workers. A chunk takes those of one worker, up to
a share of its memory: it costs one task, and on the device one call of the kernels, however many
partitions it has. What is done to a partition before it is grouped, partition by partition, is
done inside the task.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from dask._task_spec import Task
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Blockwise, Expr, Projection
from dask.dataframe.dask_expr.io import IO, FromGraph

from dask_gpuagg.distributed.places import Place, Places, ask
from dask_gpuagg.settings import settings

# functions of the user's may cost anything: each keeps a task of its own
USER_FUNCTIONS = (E.MapPartitions, E.Apply, E.Map)

# A GPU's chunk is one call of the kernels, which work beside the partitions themselves.
DEVICE_SHARE = 4
# On the host a task of so many bytes lasts long enough that what the task itself costs is little.
HOST_BYTES = 32 << 20

# how long an answer about places is good: planning asks more than once for the same query
_GOOD_FOR = 1.0
_recent: OrderedDict[tuple[Any, str], tuple[float, Places]] = OrderedDict()
_REMEMBERED = 16
_lock = Lock()


Parts = tuple[tuple[Any, ...], tuple[Any, ...]]


@dataclass(frozen=True)
class Chunks:
    """What the tasks of a chunked group-by take. Dask does not look into it.

    It travels to the scheduler as tasks: expressions would take the metadata of their inputs with
    them, which lie on the GPU.

    Attributes
    ----------
    frame : Expr
        The input, lowered.
    by : tuple
        Labels, callables, or lowered expressions.
    buckets : tuple of tuple of int
        The partitions of each task.
    workers : int
        On how many workers the partitions lie.
    """

    frame: Expr
    by: tuple[Any, ...]
    buckets: tuple[tuple[int, ...], ...]
    workers: int

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        by = tuple(b._name if isinstance(b, Expr) else b for b in self.by)
        return ("dask_gpuagg.Chunks", self.frame._name, by, self.buckets)

    def __reduce__(self) -> tuple[Any, ...]:
        made = tuple(self.parts(bucket) for bucket in range(len(self.buckets)))
        return Sent, (made, self.__dask_tokenize__(), str(self))

    def __len__(self) -> int:
        return len(self.buckets)

    def __str__(self) -> str:
        partitions = sum(map(len, self.buckets))
        tasks = _counted(len(self.buckets), "task")
        return (
            f"{_counted(partitions, 'partition')} in {tasks} on {_counted(self.workers, 'worker')}"
        )

    def parts(self, bucket: int) -> Parts:
        """What one chunk's task is made of.

        Parameters
        ----------
        bucket : int

        Returns
        -------
        parts : tuple
            For each partition the tasks to run, dependencies first, and for the frame and each
            key its key in their results, or what the user gave.
        keys : tuple
            Of what the tasks read from outside.
        """
        roots = (self.frame, *self.by)
        inside, outside = _region([self.frame, *_expressions(self.by)])
        nodes = {node._name: node for node in inside}
        # straight to the data: the tasks of a persisted collection are only other names for it
        alias = {
            (node._name, i): key
            for node in outside
            if isinstance(node, FromGraph)
            for i, key in enumerate(node.operand("keys"))
        }
        parts = []
        outer: dict[Any, None] = {}
        for index in self.buckets[bucket]:
            tasks: dict[Any, Task] = {}
            sources = []
            for root in roots:
                if not isinstance(root, Expr):
                    sources.append((False, root))
                    continue
                place = 0 if root.npartitions == 1 else index
                key = (root._name, place)
                _add_tasks(key, nodes, tasks, alias)
                key = alias.get(key, key)
                sources.append((True, key))
                if key not in tasks:
                    outer[key] = None
            for task in tasks.values():
                outer |= dict.fromkeys(d for d in task.dependencies if d not in tasks)
            parts.append((tuple(tasks.values()), tuple(sources)))
        return tuple(parts), tuple(outer)


@dataclass(frozen=True)
class Sent:
    """Chunks as the scheduler has them.

    Attributes
    ----------
    made : tuple
        For each chunk its ``parts``.
    token : tuple
    text : str
    """

    made: tuple[Parts, ...]
    token: tuple[Any, ...]
    text: str

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return self.token

    def __len__(self) -> int:
        return len(self.made)

    def __str__(self) -> str:
        return self.text

    def parts(self, bucket: int) -> Parts:
        """What one chunk's task is made of; see ``Chunks.parts``."""
        return self.made[bucket]


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _add_tasks(
    key: Any, nodes: dict[str, Any], tasks: dict[Any, Task], alias: dict[Any, Any]
) -> None:
    """The task of a key and all that it needs of some nodes, dependencies first."""
    name, index = key
    if key in tasks or name not in nodes:
        return
    task = nodes[name]._task(key, index)
    for needed in task.dependencies:
        _add_tasks(needed, nodes, tasks, alias)
    tasks[key] = task.substitute(alias) if not alias.keys().isdisjoint(task.dependencies) else task


def _expressions(by: Iterable[Any]) -> list[Expr]:
    return [b for b in by if isinstance(b, Expr)]


def _region(roots: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
    """Nodes whose tasks run inside of chunks, and the nodes that these read."""
    npartitions = roots[0].npartitions
    inside: dict[str, Expr] = {}
    outside: dict[str, Expr] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node._name in inside or node._name in outside:
            continue
        if (
            isinstance(node, Blockwise)
            and not isinstance(node, (*USER_FUNCTIONS, IO))
            and node.npartitions in (1, npartitions)
        ):
            inside[node._name] = node
            stack += node.dependencies()
        else:
            outside[node._name] = node
    return list(inside.values()), list(outside.values())


def chunked(frame: Expr, by: Sequence[Any], in_order: bool, device: bool) -> Chunks | None:
    """The chunks of an input, or ``None`` where each partition has a task of its own.

    Parameters
    ----------
    frame : Expr
        Lowered.
    by : sequence
        Labels, callables, or lowered expressions.
    in_order : bool
        Whether a chunk may only have partitions that follow each other.
    device : bool
        Whether the partitions are cuDF's.

    Returns
    -------
    Chunks or None
    """
    if settings().chunk.partitions == 1 or frame.npartitions == 1:
        return None
    frame = _unprojected(frame, by)
    roots = [frame, *_expressions(by)]
    sources = persisted(_region(roots)[1])
    places = None if sources is None else places_of(sources, device)
    if sources is None or places is None:
        return None
    held = [_place(sources, places, i, frame.npartitions) for i in range(frame.npartitions)]
    buckets = buckets_of(held, places, in_order, device)
    if len(buckets) == len(held):
        return None
    workers = {place.worker for place in held if place is not None}
    return Chunks(frame, tuple(by), buckets, len(workers))


def _unprojected(frame: Expr, by: Sequence[Any]) -> Expr:
    """The frame with columns that nobody reads: to choose columns costs a frame a partition."""
    while (
        isinstance(frame, Projection)
        and frame.ndim == frame.frame.ndim == 2
        and frame.frame._meta.columns.is_unique
        and all(isinstance(b, Expr) or _is_among(b, frame._meta.columns) for b in by)
    ):
        frame = frame.frame
    return frame


def _is_among(by: Any, columns: Any) -> bool:
    return not callable(by) and by in columns


def persisted(nodes: Sequence[Expr]) -> list[FromGraph] | None:
    """The nodes, if all of them are futures of a cluster, one for each partition."""
    sources = []
    for node in nodes:
        if not isinstance(node, FromGraph) or len(node.operand("keys")) != node.npartitions:
            return None
        layer = dict(node.operand("layer"))
        if not layer or not all(hasattr(layer.get(k), "client") for k in node.operand("keys")):
            return None
        sources.append(node)
    return sources or None


def places_of(sources: Sequence[FromGraph], device: bool) -> Places | None:
    """Where the futures of persisted collections lie; ``None`` if that cannot be asked."""
    keys = [key for source in sources for key in source.operand("keys")]
    first = sources[0]
    client = dict(first.operand("layer"))[first.operand("keys")[0]].client
    if client is None or client.asynchronous or client.status != "running":
        return None
    name = (client.id, "".join(source._name for source in sources))
    with _lock:
        asked, known = _recent.get(name, (-math.inf, Places({}, {})))
    if time.monotonic() - asked < _GOOD_FOR:
        return known
    known = ask(client, keys, device)
    if len(known.of_key) < len(set(keys)):
        return known  # the rest may be there the next time
    with _lock:
        _recent[name] = time.monotonic(), known
        while len(_recent) > _REMEMBERED:
            _recent.popitem(last=False)
    return known


def _place(
    sources: Sequence[FromGraph], places: Places, index: int, npartitions: int
) -> Place | None:
    """Where most of a partition's data lies, and the bytes of all of it."""
    found = [
        places.of_key.get(source.operand("keys")[index if source.npartitions == npartitions else 0])
        for source in sources
    ]
    known = [place for place in found if place is not None]
    if len(known) < len(found):
        return None
    largest = max(known, key=lambda place: place.nbytes)
    return Place(largest.worker, sum(place.nbytes for place in known))


def buckets_of(
    held: Sequence[Place | None], places: Places, in_order: bool, device: bool
) -> tuple[tuple[int, ...], ...]:
    """Divide partitions into chunks, each of what one worker holds.

    Parameters
    ----------
    held : sequence of Place or None
        One per partition; what has no place has a chunk of its own.
    places : Places
    in_order : bool
        Whether a chunk may only have partitions that follow each other.
    device : bool

    Returns
    -------
    tuple of tuple of int
        In the order of their first partitions.
    """
    buckets: list[list[int]] = [[i] for i, place in enumerate(held) if place is None]
    of_worker: dict[str, list[int]] = {}
    for i, place in enumerate(held):
        if place is not None:
            of_worker.setdefault(place.worker, []).append(i)
    for worker, partitions in of_worker.items():
        sizes = {i: place.nbytes for i in partitions if (place := held[i]) is not None}
        most, least = _bounds(places, worker, device)
        runs = _runs(partitions) if in_order else [partitions]
        for run in runs:
            buckets += _divided(run, sizes, most, min(least, len(run)))
    return tuple(sorted(map(tuple, buckets)))


def _bounds(places: Places, worker: str, device: bool) -> tuple[int, int]:
    """How many bytes a chunk of a worker may have, and into how many they are divided at least."""
    limit, size = settings().chunk, places.workers[worker]
    if limit.nbytes is not None:
        return limit.nbytes, 1
    if device:
        # one chunk keeps the whole GPU busy, however many threads a worker has
        return max(size.device_memory // DEVICE_SHARE, 1), 1
    return HOST_BYTES, size.threads


def _runs(partitions: Sequence[int]) -> list[list[int]]:
    """Runs of partitions that follow each other."""
    runs: list[list[int]] = []
    for i in partitions:
        if runs and runs[-1][-1] == i - 1:
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs


def _divided(
    partitions: Sequence[int], sizes: dict[int, int], most: int, least: int
) -> list[list[int]]:
    """Partitions in chunks of about equal bytes, in their order."""
    most_partitions = settings().chunk.partitions
    if most_partitions is not None:
        starts = range(0, len(partitions), most_partitions)
        return [list(partitions[i : i + most_partitions]) for i in starts]
    total = sum(sizes[i] for i in partitions)
    number = min(max(least, math.ceil(total / most)), len(partitions))
    chunks: list[list[int]] = [[] for _ in range(number)]
    seen = 0
    for place, i in enumerate(partitions):
        # by the middle of the partition; by its number where none has bytes
        middle = (seen + sizes[i] / 2) / total if total else (place + 0.5) / len(partitions)
        chunks[min(int(middle * number), number - 1)].append(i)
        seen += sizes[i]
    return [chunk for chunk in chunks if chunk]
