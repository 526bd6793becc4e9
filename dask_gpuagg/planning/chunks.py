"""The group-by as the planner has it, and its chunks: the partitions that one task takes.

The partitions of a persisted collection lie on workers. A chunk takes those of one worker, up to
a share of its memory: it costs one task, and on the device one call of the kernels. There files are
read ahead of the kernels. What is done to each partition before it is grouped is done in the task.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dask._task_spec import DataNode, GraphNode, Task, TaskRef
from dask.dataframe.dask_expr import _expr as E
from dask.dataframe.dask_expr._expr import Blockwise, Expr, Projection
from dask.dataframe.dask_expr.io import IO, FromGraph, FromPandas
from dask.dataframe.dask_expr.io.io import FusedIO
from dask.dataframe.dask_expr.io.parquet import ReadParquet
from dask.tokenize import normalize_token

from dask_gpuagg.cluster import Place, current_client
from dask_gpuagg.dtypes import TEXT, dtype_class
from dask_gpuagg.engines import DEVICE, HOST, engine_name
from dask_gpuagg.plan import Plan
from dask_gpuagg.planning.bucketing import (
    Buckets,
    buckets_of,
    by_file,
    by_size,
    bytes_of_a_row,
    dtypes_in,
    held_by,
    in_even_parts,
    is_fixed,
    located,
    partitions_of_tasks,
    size_of,
    text_keys,
    without_labels,
    workers_of,
)
from dask_gpuagg.reporting.text import count_text
from dask_gpuagg.settings import settings
from dask_gpuagg.streaming import stream
from dask_gpuagg.tasks.reading import as_read, gpuagg_on_chunk

# The cost of users' functions is unknown: each keeps its own task, and none is run to decide.
USER_FUNCTIONS = (E.MapPartitions, E.Apply, E.Map)

# nodes of Dask that read files, which our tasks may read ahead
READERS = (ReadParquet, FusedIO)
# where one task streams partitions through a GPU, those of a frame of this process too
STREAMED_READERS = (*READERS, FromPandas)

# Readers that a task keeps busy: one does not fill a GPU with work, and more decode no faster.
READERS_OF_A_TASK = 4
# Of a text on a GPU, at least.
_OFFSET_BYTES = 4
# Most files of which each is a task where partials are exchanged: tasks times outputs.
MOST_APART = 32

Parts = tuple[tuple[Any, ...], tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Chunks:
    """The inputs of the tasks of a chunked group-by, opaque to Dask.

    The input and its keys are lowered. Each bucket has the partitions of a task. They lie on so
    many ``workers`` (0: any may read them), and so many ``readers`` read at a time (0: they are
    persisted). With ``text_keys`` columns may stay where the reader has put them, those named here
    as dictionaries. The tasks of readers of the types ``inside`` run in the chunks.
    Of the rows those are grouped for which ``predicate`` is true.
    """

    frame: Expr
    by: tuple[Any, ...]
    buckets: tuple[tuple[int, ...], ...]
    workers: int
    readers: int = 0
    text_keys: tuple[str, ...] | None = None
    inside: tuple[type, ...] = READERS
    predicate: Expr | None = None

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return self._token

    @cached_property
    def _token(self) -> tuple[Any, ...]:
        # callables by what they are: as texts they may look alike
        roots = (self.predicate, *self.by)
        names = tuple(b._name if isinstance(b, Expr) else normalize_token(b) for b in roots)
        rest = (self.buckets, self.readers, self.text_keys)
        return ("dask_gpuagg.Chunks", self.frame._name, names, *rest)

    def __getstate__(self) -> dict[str, Any]:
        # the scheduler gets tasks: expressions would take metadata along, which may be on the GPU
        names = ("buckets", "workers", "readers", "_token", "parts", "_futures")
        return {name: getattr(self, name) for name in names}

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
        return region_of([self.frame, *expressions((self.predicate, *self.by))], self.inside)

    def divided(self, number: int) -> Chunks:
        """These partitions in up to ``number`` times as many tasks."""
        runs = (in_even_parts(bucket, min(number, len(bucket))) for bucket in self.buckets)
        return replace(self, buckets=tuple(run for of_bucket in runs for run in of_bucket))

    @cached_property
    def _futures(self) -> dict[Any, Any]:
        """The futures, or the data of this process, that the tasks read, by key."""
        persisted = [node for node in self.region[1] if isinstance(node, FromGraph)]
        return {key: v for node in persisted for key, v in dict(node.operand("layer")).items()}

    def layer(self, name: str, run: Any, **options: Any) -> dict[Any, Any]:
        """The tasks that call a function of each chunk, and the futures that they read.

        These belong to the graph: a delayed result, or a query that was sent elsewhere, may outlive
        the collection that holds them here.
        """
        layer: dict[Any, Any] = {}
        for i, (parts, outer) in enumerate(self.parts):
            layer |= {key: self._futures[key] for key in outer if key in self._futures}
            # without inputs from other tasks it is marked as a data producer
            more = {"readers": self.readers, "_data_producer": not outer, **options}
            refs = map(TaskRef, outer)
            layer[name, i] = Task((name, i), gpuagg_on_chunk, run, parts, outer, *refs, **more)
        return layer

    @cached_property
    def parts(self) -> tuple[Parts, ...]:
        """For each bucket the tasks of its partitions, and the keys that other tasks provide.

        With its tasks, dependencies first, a partition has for the frame, the rows that stay and
        each key its key in their results, or what the user gave.
        """
        inside, outside = self.region
        nodes = {node._name: node for node in inside}
        # the tasks of a persisted collection only rename the data, so they are skipped
        alias = {
            (node._name, i): key
            for node in outside
            if isinstance(node, FromGraph)
            for i, key in enumerate(node.operand("keys"))
        }
        return tuple(self._parts_of(bucket, nodes, alias) for bucket in self.buckets)

    def _parts_of(
        self, bucket: Iterable[int], nodes: dict[str, Any], alias: dict[Any, Any]
    ) -> Parts:
        parts = []
        outer: dict[Any, None] = {}
        for index in bucket:
            tasks: dict[Any, GraphNode] = {}
            sources = []
            for root in (self.frame, self.predicate, *self.by):
                if not isinstance(root, Expr):
                    sources.append((False, root))
                    continue
                key = (root._name, 0 if root.npartitions == 1 else index)
                _add_tasks(key, nodes, tasks, alias)
                key = alias.get(key, key)
                sources.append((True, key))
                if key not in tasks:
                    outer[key] = None
            for task in tasks.values():
                outer |= dict.fromkeys(d for d in task.dependencies if d not in tasks)
            to_run = list(tasks.values())
            if self.text_keys is not None:
                texts = self.text_keys
                to_run = [as_read(t, texts) if isinstance(t, Task) else t for t in to_run]
            parts.append((tuple(to_run), tuple(sources)))
        return tuple(parts), tuple(outer)


def _add_tasks(
    key: Any, nodes: dict[str, Any], tasks: dict[Any, GraphNode], alias: dict[Any, Any]
) -> None:
    """The task of a key and all that it needs of some nodes, dependencies first."""
    name, index = key
    if key in tasks or name not in nodes:
        return
    node = nodes[name]
    task: Any = constant(node) or node._task(key, index)
    for needed in task.dependencies:
        _add_tasks(needed, nodes, tasks, alias)
    tasks[key] = task.substitute(alias) if not alias.keys().isdisjoint(task.dependencies) else task


def constant(node: Any) -> DataNode | None:
    """The task of values that are there, such as those of ``isin``; ``None`` of other nodes."""
    layer = list(node._layer().items()) if isinstance(node, E._DelayedExpr) else []
    if len(layer) != 1 or not isinstance(layer[0][1], DataNode):
        return None
    ((key, data),) = layer
    return DataNode(key, data.value)


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
        if constant(node) is not None:
            inside[node._name] = node
        elif (
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


def chunked(query: GroupByQuery) -> Chunks | None:
    """Divide the input of a query into chunks; ``None`` where each partition is a task."""
    plan, by, device = query.plan, query.by, query.on_device
    if settings().chunk.partitions == 1 or query.frame.npartitions == 1:
        return None
    streamed = not device and settings().engine == "device" and stays_on_host(plan) is None
    frame, predicate = unprojected(query.frame, by), query.predicate
    readers = STREAMED_READERS if streamed else READERS
    inside, outside = region_of([frame, *expressions((predicate, *by))], readers)
    if not outside:
        if query.shared:
            return None
        if device or streamed or settings().chunk.partitions is not None:
            return _of_readers(query, frame, inside, streamed)
        # readers keep all cores of the host busy as it is: a task takes what it took
        return None if plan.reads_labels else _of_files(query, frame, inside)
    places = located(outside, device, query.frame._meta)
    if places is None:
        return None
    held = held_by(outside, places, int(frame.npartitions))
    if device:
        held = _with_read(held, frame, by, outside, plan)
    buckets = buckets_of(held, places, plan.order_sensitive, device, streamed)
    if len(buckets) == len(held):
        return None
    workers = {place.worker for place in held if place is not None}
    return Chunks(frame, tuple(by), buckets, len(workers), inside=readers, predicate=predicate)


def _with_read(
    held: list[Place | None], frame: Expr, by: Sequence[Any], outside: Sequence[Expr], plan: Plan
) -> list[Place | None]:
    """The bytes of partitions that a chunk reads, or computes of them where that is more.

    At most: of unread columns whose width is unknown texts count as their offsets, others as if
    they took no bytes.
    """
    names = {node._name for node in outside}
    computed = [root for root in (frame, *expressions(by)) if root._name not in names]
    read = [column.dtype for column in (*plan.keys, *plan.columns)]
    stored = [dtype for node in outside for dtype in dtypes_in(node._meta)]
    least = sum(map(size_of, filter(is_fixed, stored)))
    least += sum(_OFFSET_BYTES for dtype in stored if dtype_class(dtype) in TEXT)
    share = sum(map(size_of, read)) / least if least and all(map(is_fixed, read)) else 1.0
    times = sum(bytes_of_a_row(root._meta) for root in computed) / max(sum(map(size_of, stored)), 1)
    share = max(min(share, 1.0), times)
    return [p and Place(p.worker, round(p.nbytes * share)) for p in held]


def _of_readers(
    query: GroupByQuery, frame: Expr, inside: Sequence[Expr], streamed: bool
) -> Chunks | None:
    """The chunks of an input that is read by the tasks that group it."""
    kinds = STREAMED_READERS if streamed else READERS
    if not any(isinstance(node, kinds) for node in inside):
        return None
    device, predicate, by = query.on_device, query.predicate, query.by
    # row labels are Dask's, and users' functions may write to what they are given
    as_dask = query.plan.reads_labels
    sizes = list((workers_of(device) or {}).values())
    gpus = sum(size.device_memory > 0 for size in sizes) if device else 0
    number = gpus or len(sizes) or 1
    files = any(isinstance(node, READERS) for node in inside)
    readers = READERS_OF_A_TASK if files and (device or streamed) else 1
    npartitions = int(frame.npartitions)
    reads: Buckets = tuple((i,) for i in range(npartitions))
    if readers > 1 and not as_dask:
        frame, (predicate, *by), reads = by_size(frame, (predicate, *by), inside)
    if settings().chunk.partitions is None:
        buckets = partitions_of_tasks(int(frame.npartitions), number)
    else:
        # of Dask's partitions
        runs = partitions_of_tasks(npartitions, number)
        buckets = tuple(tuple(i for part in run for i in reads[part]) for run in runs)
    if len(buckets) == frame.npartitions:
        return None
    # partitions of the host are as Dask makes them: they are streamed
    texts = () if device and not as_dask and without_labels(frame, by, inside) else None
    return Chunks(frame, tuple(by), buckets, number, readers, texts, kinds, predicate)


def _of_files(query: GroupByQuery, frame: Expr, inside: Sequence[Expr]) -> Chunks | None:
    """The files of each partition, which the host groups one after the other.

    Few files are taken one by one, where partials of rows or pairs would have to be joined.
    """
    plan = query.plan
    by_files = by_file(frame, (query.predicate, *query.by), inside)
    if by_files is None:
        return None
    files, (predicate, *keys), buckets = by_files
    if not plan.is_one_table and sum(map(len, buckets)) <= MOST_APART:
        buckets = tuple((i,) for bucket in buckets for i in bucket)
    columns = [column.label for column in plan.columns]
    if not plan.is_one_table or plan.shape == "values":
        columns += [key.label for key in plan.keys]  # keys of rows, not of groups
    texts = text_keys(files, (predicate, *keys), columns)
    return Chunks(files, tuple(keys), buckets, 0, readers=1, text_keys=texts, predicate=predicate)


def unprojected(frame: Expr, by: Sequence[Any]) -> Expr:
    """The frame without its projections, each of which costs a frame for every partition."""
    while (
        isinstance(frame, Projection)
        and frame.ndim == frame.frame.ndim == 2
        and frame.frame._meta.columns.is_unique
        and all(isinstance(b, Expr) or (not callable(b) and b in frame.columns) for b in by)
    ):
        frame = frame.frame
    return frame


class Route(enum.Enum):
    """The way partials take to the partition that finalizes them; ``DIRECT`` without partials.

    ``NARROWED`` where rows stay, and brackets of quantiles are narrowed in two passes.
    """

    TREE = "tree"
    EXCHANGE = "exchange"
    ALIGNED = "aligned"
    DIRECT = "direct"
    NARROWED = "narrowed"


@dataclass(frozen=True, slots=True)
class Routing:
    """Route of the partials to the outputs that Dask announced, with the reason."""

    route: Route
    #: number of output partitions, as Dask announced it
    outputs: int
    #: why, for ``explain()``
    reason: str
    #: expected number of groups, where anything is known about it
    groups: int | None = None
    #: whether there are at most that many
    bound: bool = False
    #: bytes of the distinct pairs that are merged, where a sample tells
    pair_bytes: int | None = None
    #: tasks that merge the groups of an exchange, before their results are gathered in the outputs;
    #: never fewer than those
    pieces: int = 1

    def __dask_tokenize__(self) -> str:
        return repr(self)


@dataclass(frozen=True)
class GroupByQuery:
    """A logical group-by: its plan, its input and what the user asked of its merging.

    A key is a label, an expression or a callable; ``meta`` is the empty result. ``shared`` says
    whether another part of the same computation reads the input. Of the rows those are grouped for
    which ``predicate`` is true, in words ``rows``.
    The partitions of a frame that is ``reduced`` are partials.
    """

    plan: Plan
    frame: Expr
    by: list[Any]
    meta: Any
    split_every: Any
    shuffle_method: str | None
    shared: bool = False
    predicate: Expr | None = None
    rows: str = ""
    reduced: bool = False

    @property
    def on_device(self) -> bool:
        """Whether partitions are grouped by the device engine, as partitions of cuDF."""
        return engine_name(self.meta) == DEVICE

    @property
    def chunks(self) -> Chunks | None:
        """The chunks in which the partitions are reduced, if there are any."""
        # in Python 3.11 a cached property would let all threads wait for one that asks a scheduler
        attributes = vars(self)
        if "_chunks" not in attributes:
            attributes["_chunks"] = None if self.reduced else chunked(self)
        chunks: Chunks | None = attributes["_chunks"]
        return chunks


def stays_on_host(plan: Plan) -> str | None:
    """Why host partitions stay on the host; of a cluster's GPUs its workers know."""
    return stream.refusal(plan) or (stream.obstacle() if current_client() is None else None)


def where_it_runs(query: GroupByQuery) -> str | None:
    """The engine of a query, as ``explain()`` names it."""
    if query.on_device or settings().engine != "device":
        return engine_name(query.meta)
    reason = stays_on_host(query.plan)
    return f"{HOST}: {reason}" if reason else f"{DEVICE}, pandas partitions are copied to the GPU"
