"""Chunks: the partitions that one task takes, and the tasks that are run inside of it.

The partitions of a persisted collection lie on workers. A chunk takes those of one worker, up to
a share of its memory: it costs one task, and on the device one call of the kernels, however many
partitions it has. On the device a chunk of files is read ahead of the kernels. What is done to a
partition before it is grouped, partition by partition, is done inside the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from dask._task_spec import Task, TaskRef
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Blockwise, Expr
from dask.dataframe.dask_expr.io import IO, FromGraph, FromPandas
from dask.dataframe.dask_expr.io.io import FusedIO
from dask.dataframe.dask_expr.io.parquet import ReadParquet
from dask.tokenize import normalize_token

from dask_gpuagg.reporting.text import count_text
from dask_gpuagg.tasks.parquet import as_read

# The cost of users' functions is unknown: each keeps its own task, and none is run to decide.
USER_FUNCTIONS = (E.MapPartitions, E.Apply, E.Map)

# nodes of Dask that read files, which our tasks may read ahead
READERS = (ReadParquet, FusedIO)
# The same where one task streams partitions through a GPU: those of a frame of this process too.
STREAMED_READERS = (*READERS, FromPandas)

Parts = tuple[tuple[Any, ...], tuple[Any, ...]]


@dataclass(frozen=True)
class Chunks:
    """The inputs of the tasks of a chunked group-by, opaque to Dask.

    They are sent to the scheduler as tasks: expressions would take metadata with them, which may be
    on the GPU.

    Attributes
    ----------
    frame : Expr
        The input, lowered.
    by : tuple
        Labels, callables, or lowered expressions.
    buckets : tuple of tuple of int
        The partitions of each task.
    workers : int
        On how many workers the partitions lie; 0 where any may read them.
    readers : int
        How many partitions are read at a time; 0 where they are persisted.
    text_keys : tuple of str, optional
        Columns may stay where the reader has put them, those named here as dictionaries.
    inside : tuple of types
        The nodes that read, whose tasks run inside of the chunks.
    """

    frame: Expr
    by: tuple[Any, ...]
    buckets: tuple[tuple[int, ...], ...]
    workers: int
    readers: int = 0
    text_keys: tuple[str, ...] | None = None
    inside: tuple[type, ...] = READERS

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        # callables by what they are: as texts they may look alike
        by = tuple(b._name if isinstance(b, Expr) else normalize_token(b) for b in self.by)
        given = (self.buckets, self.readers, self.text_keys)
        return ("dask_gpuagg.Chunks", self.frame._name, by, *given)

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.sent(),)

    def sent(self) -> Sent:
        """The same as the scheduler has it, with the tasks made."""
        made = tuple(self.parts(bucket) for bucket in range(len(self.buckets)))
        return Sent(made, self.readers, self.__dask_tokenize__(), str(self), self.futures())

    def __len__(self) -> int:
        return len(self.buckets)

    def __str__(self) -> str:
        partitions = count_text(sum(map(len, self.buckets)), "partition")
        text = f"{partitions} in {count_text(len(self), 'task')}"
        text += f" on {count_text(self.workers, 'worker')}" if self.workers else ""
        return f"{text}, {self.readers} read at a time" if self.readers else text

    @cached_property
    def region(self) -> tuple[list[Expr], list[Expr]]:
        """Nodes whose tasks run inside of chunks, and the nodes that these read."""
        return region_of([self.frame, *expressions(self.by)], self.inside)

    @cached_property
    def _alias(self) -> dict[Any, Any]:
        # the tasks of a persisted collection only rename the data, so they are skipped
        return {
            (node._name, i): key
            for node in self.region[1]
            if isinstance(node, FromGraph)
            for i, key in enumerate(node.operand("keys"))
        }

    @cached_property
    def _made(self) -> dict[int, Parts]:
        return {}

    def divided(self, number: int) -> Chunks:
        """The same partitions in up to ``number`` times as many tasks."""
        buckets = []
        for bucket in self.buckets:
            parts = min(number, len(bucket))
            ends = [len(bucket) * i // parts for i in range(parts + 1)]
            buckets += [bucket[a:b] for a, b in pairwise(ends)]
        return replace(self, buckets=tuple(buckets))

    def futures(self) -> dict[Any, Any]:
        """The futures that the tasks read, by key.

        They belong to the graph: a delayed result, or a query that was sent elsewhere, may outlive
        the collection that holds them here.
        """
        return {
            key: future
            for node in self.region[1]
            if isinstance(node, FromGraph)
            for key, future in dict(node.operand("layer")).items()
        }

    def parts(self, bucket: int) -> Parts:
        """The tasks that one chunk runs, and their inputs.

        Parameters
        ----------
        bucket : int

        Returns
        -------
        parts : tuple
            For each partition the tasks to run, dependencies first, and for the frame and each
            key its key in their results, or what the user gave.
        keys : tuple
            Keys of the inputs that other tasks provide.
        """
        # a scheduler in the client's process finds the same object, and asks again
        if bucket not in self._made:
            self._made[bucket] = self._parts_of(bucket)
        return self._made[bucket]

    def _parts_of(self, bucket: int) -> Parts:
        roots, alias = (self.frame, *self.by), self._alias
        nodes = {node._name: node for node in self.region[0]}
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
            made = list(tasks.values())
            if self.text_keys is not None:
                made = [as_read(task, self.text_keys) for task in made]
            parts.append((tuple(made), tuple(sources)))
        return tuple(parts), tuple(outer)


@dataclass(frozen=True)
class Sent:
    """Chunks as the scheduler has them.

    Attributes
    ----------
    made : tuple
        For each chunk its ``parts``.
    readers : int
    token : tuple
    text : str
    held : dict
        Its ``futures``.
    """

    made: tuple[Parts, ...]
    readers: int
    token: tuple[Any, ...]
    text: str
    held: dict[Any, Any]

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return self.token

    def __len__(self) -> int:
        return len(self.made)

    def __str__(self) -> str:
        return self.text

    def sent(self) -> Sent:
        """Itself; see ``Chunks.sent``."""
        return self

    def futures(self) -> dict[Any, Any]:
        """The futures that the tasks read, by key; see ``Chunks.futures``."""
        return dict(self.held)

    def parts(self, bucket: int) -> Parts:
        """The tasks that one chunk runs; see ``Chunks.parts``."""
        return self.made[bucket]


def _same(sent: Sent) -> Sent:
    return sent


def chunk_task(key: Any, run: Any, chunks: Chunks | Sent, index: int, **given: Any) -> Task:
    """The task of one chunk; without inputs from other tasks it is marked as a data producer."""
    parts, outer = chunks.parts(index)
    refs, readers = map(TaskRef, outer), chunks.readers
    return Task(key, run, parts, outer, *refs, readers=readers, _data_producer=not outer, **given)


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


def expressions(by: Iterable[Any]) -> list[Expr]:
    """The keys that are computed."""
    return [b for b in by if isinstance(b, Expr)]


def region_of(roots: Sequence[Expr], readers: tuple[type, ...]) -> tuple[list[Expr], list[Expr]]:
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
            and not isinstance(node, USER_FUNCTIONS)
            and (isinstance(node, readers) or not isinstance(node, IO))
            and node.npartitions in (1, npartitions)
        ):
            inside[node._name] = node
            stack += node.dependencies()
        else:
            outside[node._name] = node
    return list(inside.values()), list(outside.values())
