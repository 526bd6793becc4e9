"""The physical nodes: what a planned group-by is lowered to.

A *source* makes partials: ``GroupByPartial`` one of each partition, ``GroupByChunks`` one of each
chunk, as it is or in pieces. A *merge* makes finished outputs of them:

* ``GroupByTree`` combines partials ``split_every`` at a time, down to one output;
* ``GroupByExchange`` splits partials by key hash, and each output merges its pieces;
* ``GroupByMerge`` makes one output of each partition: of pieces that one of Dask's shuffles has
  brought together (``GroupByPieces``), where the user or the cluster asks for it, and of partials
  where the input is already partitioned by the keys;
* ``GroupByDirect`` and ``GroupByChunkDirect`` finish the only partition or chunk in its task;
* ``GroupByNarrowed`` finds quantiles in two passes over chunks whose rows stay where they are.

A *sink* makes as many outputs as Dask announced: ``GroupByGather`` of several, ``GroupByDivide`` of
one. Every node tells its tasks, for ``explain()``.
"""

from __future__ import annotations

import functools
import operator
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from dask._task_spec import List, Task, TaskRef
from dask.base import tokenize
from dask.dataframe.dask_expr._expr import Blockwise, Expr
from dask.dataframe.dask_expr._reductions import TreeReduce

from dask_gpuagg.engines import HOST, engine_name, engine_of
from dask_gpuagg.plan import Plan
from dask_gpuagg.planning.chunks import Chunks, Sent, chunk_task
from dask_gpuagg.planning.query import Route
from dask_gpuagg.tasks.narrowing import (
    gpuagg_aim,
    gpuagg_count_sides,
    gpuagg_pick,
    gpuagg_recount_sides,
    gpuagg_sample_rows,
    gpuagg_widen,
)
from dask_gpuagg.tasks.tasks import (
    gpuagg_barrier,
    gpuagg_chunk,
    gpuagg_chunk_direct,
    gpuagg_combine,
    gpuagg_direct,
    gpuagg_divide,
    gpuagg_finalize,
    gpuagg_gather,
    gpuagg_merge,
    gpuagg_partial,
    gpuagg_pieces,
    gpuagg_sample_partition,
    gpuagg_split,
    pieces_table,
)


class Promised:
    """The metadata of a result, as it travels to the scheduler; tasks get what the engine reads.

    Parameters
    ----------
    meta : DataFrame or Series
        Empty.
    plan : Plan
    """

    def __init__(self, meta: Any, plan: Plan) -> None:
        self.meta = meta
        shaped = engine_name(meta) == HOST or plan.shape != "groups"
        self.sent = meta if shaped else engine_of(meta).shape_of(meta)

    def __dask_tokenize__(self) -> Any:
        return ("dask_gpuagg.Promised", tokenize(self.sent))

    def __reduce__(self) -> tuple[Any, ...]:
        data = None if self.sent is self.meta else pickle.dumps(self.meta)
        return _Received, (self.sent, data)


class _Received:
    """``Promised`` after unpickling: metadata of cuDF stays bytes until a node reads it."""

    def __init__(self, sent: Any, data: bytes | None) -> None:
        self.sent = sent
        self._data = data

    @functools.cached_property
    def meta(self) -> Any:
        return self.sent if self._data is None else pickle.loads(self._data)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Received, (self.sent, self._data)


class GroupByNode(Expr):
    """A step of a planned group-by: what it is called, how it prints, and its tasks in numbers.

    Attributes
    ----------
    route : Route or None
        That of a query with this node; ``None`` of a source and a sink.
    """

    route: Route | None = None
    _prefix: str
    # what ``steps`` calls the tasks of a node that has one for each of its partitions
    _step: str

    @functools.cached_property
    def _name(self) -> str:
        return f"{self._prefix}-{self.deterministic_token}"

    @property
    def _meta(self) -> Any:
        """Of a result; a partial has no metadata that Dask could use."""
        return self.promised.meta if "promised" in self._parameters else _NO_COLUMNS

    def _divisions(self) -> tuple[None, ...]:
        return (None,) * (self._number() + 1)

    def _number(self) -> int:
        return int(self.outputs if "outputs" in self._parameters else self.frame.npartitions)

    def steps(self) -> dict[str, int]:
        """The number of this node's tasks, by what ``explain()`` calls them."""
        return {step: number for step, number in self._steps() if number}

    def _steps(self) -> list[tuple[str, int]]:
        return [(self._step, self.npartitions)]

    def _tree_repr_argument_construction(self, i: int, op: Any, header: str) -> str:
        parameter = self._parameters[i] if i < len(self._parameters) else ""
        if parameter in ("plan", "promised"):
            return header
        if isinstance(op, Chunks):
            return f"{header} {op}"
        if parameter == "decision":
            # the route is that of the node, which may be another than the decision's
            return f"{header} ({op.reason})"
        described: str = super()._tree_repr_argument_construction(i, op, header)  # type: ignore[no-untyped-call]
        return described


_NO_COLUMNS = pd.DataFrame()


class GroupByPartial(GroupByNode, Blockwise):
    """Every partition reduced to a partial; operands: frame, plan, then the keys."""

    _parameters = ["frame", "plan"]
    _prefix, _step = "gpuagg_partial", "partial"
    operation: Any = staticmethod(gpuagg_partial)

    @property
    def by(self) -> list[Any]:
        """The keys, as the user gave them."""
        keys: list[Any] = self.operands[len(self._parameters) :]
        return keys

    @functools.cached_property
    def _args(self) -> list[Any]:
        return [self.frame, *self.by]

    @property
    def _projection_columns(self) -> list[Any]:
        """The columns that are read of the input; a partial itself has none that Dask knows."""
        return list(self.frame.columns)

    def _broadcast_dep(self, dep: Expr) -> bool:
        return bool(dep.npartitions == 1 and self.frame.npartitions > 1)

    def _given(self) -> dict[str, Any]:
        return {"plan": self.plan}

    def _task(self, name: Any, index: int) -> Task:
        args = [self._blockwise_arg(op, index) for op in self._args]
        return Task(name, self.operation, *args, **self._given())

    def __str__(self) -> str:
        keys = ", ".join(str(k.label) for k in self.plan.keys)
        return f"{type(self).__name__}(by=[{keys}])"


class GroupBySampled(GroupByPartial):
    """The keys of some rows of every partition, for an estimate; operands: those of a partial."""

    _prefix = "gpuagg_sample_partition"
    operation = staticmethod(gpuagg_sample_partition)


class GroupByDirect(GroupByPartial):
    """The only partition made an output; operands: these, then the keys."""

    _parameters = ["frame", "plan", "promised", "decision"]
    _prefix, _step, route = "gpuagg_direct", "direct", Route.DIRECT
    operation = staticmethod(gpuagg_direct)

    def _given(self) -> dict[str, Any]:
        return {"plan": self.plan, "shape": self.promised.sent}


class GroupByChunks(GroupByNode):
    """Chunks reduced to partials; with ``pieces``, a partial is a list of so many by key hash."""

    _parameters = ["chunks", "plan", "pieces"]
    _defaults = {"pieces": None}
    _step = "chunk"

    @property
    def _prefix(self) -> str:  # type: ignore[override]
        return "gpuagg_split" if self.pieces else "gpuagg_chunk"

    def _number(self) -> int:
        return len(self.chunks)

    def _layer(self) -> dict[Any, Any]:
        given = {"plan": self.plan, "pieces": self.pieces}
        layer: dict[Any, Any] = self.chunks.futures()
        return layer | _chunk_tasks(self._name, gpuagg_chunk, self.chunks, **given)


class GroupByChunkDirect(GroupByNode):
    """The only chunk made the outputs."""

    _parameters = ["chunks", "plan", "promised", "outputs", "decision"]
    _prefix, route = "gpuagg_direct", Route.DIRECT

    def _layer(self) -> dict[Any, Any]:
        divided = self.outputs > 1
        name = f"gpuagg_chunk-{self.deterministic_token}" if divided else self._name
        given = {"plan": self.plan, "meta": self.promised.sent, "outputs": self.outputs}
        layer: dict[Any, Any] = self.chunks.futures()
        layer |= _chunk_tasks(name, gpuagg_chunk_direct, self.chunks, **given)
        return layer | _taken_apart((name, 0), self._name, self.outputs) if divided else layer

    def _steps(self) -> list[tuple[str, int]]:
        return [("direct", 1), ("divide", self.outputs if self.outputs > 1 else 0)]


class GroupByTree(GroupByNode, TreeReduce):
    """Partials combined ``split_every`` at a time, finalized into one output, by Dask's tree."""

    _parameters = [*TreeReduce._parameters, "decision"]
    _prefix, route = "gpuagg_tree", Route.TREE

    @classmethod
    def build(
        cls, partial: Expr, plan: Plan, promised: Promised, split_every: Any, decision: Any
    ) -> GroupByTree:
        """The tree over the partials of a plan."""
        finalize = {"plan": plan, "meta": promised.sent}
        steps = (gpuagg_combine, gpuagg_finalize, {"plan": plan}, finalize)
        return cls(partial, cls, promised, *steps, split_every, decision)

    @property
    def _meta(self) -> Any:
        return self.operand("_meta").meta

    def _number(self) -> int:
        return 1

    def _steps(self) -> list[tuple[str, int]]:
        return [("combine", len(self._layer()) - 1), ("finalize", 1)]

    def _tree_repr_lines(self, indent: int = 0, recursive: bool = True) -> list[str]:
        lines = self.frame._tree_repr_lines(2) if recursive else []
        header = f"GroupByTree: {self.decision} split_every={self.split_every}"
        return [" " * indent + line for line in [header, *lines]]


class GroupByExchange(GroupByNode):
    """Partials split by key hash, where they are not; outputs merge pieces in partition order."""

    _parameters = ["frame", "plan", "promised", "outputs", "decision"]
    _prefix, route = "gpuagg_exchange", Route.EXCHANGE

    @property
    def _splits(self) -> bool:
        return not (isinstance(self.frame, GroupByChunks) and self.frame.pieces)

    def _layer(self) -> dict[Any, Task]:
        layer: dict[Any, Task] = {}
        token, plan, outputs = self.deterministic_token, self.plan, self.outputs
        split, piece, barrier = (f"gpuagg_{step}-{token}" for step in ("split", "piece", "barrier"))
        partials = [(self.frame._name, i) for i in range(self.frame.npartitions)]
        splits = [(split, i) for i in range(len(partials))] if self._splits else partials
        if self._splits:
            for key, partial in zip(splits, partials, strict=True):
                layer[key] = Task(key, gpuagg_split, TaskRef(partial), plan, outputs)
        barriers = []
        for i, key in enumerate(splits):
            pieces = [(piece, j, i) for j in range(outputs)]
            layer |= {
                of: Task(of, operator.getitem, TaskRef(key), j) for j, of in enumerate(pieces)
            }
            if has_barrier(self.promised.sent):
                layer[barrier, i] = Task((barrier, i), gpuagg_barrier, _refs(pieces))
                barriers.append((barrier, i))
        after: dict[str, Any] = {"after": _refs(barriers)} if barriers else {}
        for j in range(outputs):
            key, of = (self._name, j), _refs([(piece, j, i) for i in range(len(splits))])
            given = (of, plan, self.promised.sent, (j, outputs))
            layer[key] = Task(key, gpuagg_finalize, *given, **after)
        return layer

    def _steps(self) -> list[tuple[str, int]]:
        of_a_partial = self._splits + self.outputs + has_barrier(self.promised.sent)
        exchanged = self.frame.npartitions * of_a_partial
        return [("exchange", exchanged), ("finalize", self.outputs)]


def has_barrier(meta: Any) -> bool:
    """Whether all pieces are taken out of their splits before the first output is made.

    A split holds the pieces of all outputs until the last is taken. On a device its memory is
    needed: the pieces of an output are to be gone when it is made.
    """
    return engine_name(meta) != HOST


class GroupByPieces(GroupByNode, Blockwise):
    """Every partial as a table of pieces, one for each output, that Dask's shuffles understand."""

    _parameters = ["frame", "plan", "buckets"]
    _prefix, _step = "gpuagg_pieces", "exchange"
    operation = staticmethod(gpuagg_pieces)

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        nothing = np.zeros(0, np.int64)
        return pieces_table(nothing, nothing, [])

    def _task(self, name: Any, index: int) -> Task:
        partial = self._blockwise_arg(self.frame, index)
        return Task(name, gpuagg_pieces, partial, self.plan, self.buckets, index)


class GroupByMerge(GroupByNode, Blockwise):
    """One output from each partition of shuffled pieces, or of whole partials."""

    _parameters = ["frame", "plan", "promised", "decision"]
    _prefix, _step = "gpuagg_merge", "finalize"
    operation = staticmethod(gpuagg_merge)

    @property
    def route(self) -> Route:  # type: ignore[override]
        """Pieces come by an exchange of Dask's."""
        return Route.ALIGNED if isinstance(self.frame, GroupByNode) else Route.EXCHANGE

    def _task(self, name: Any, index: int) -> Task:
        table = self._blockwise_arg(self.frame, index)
        bucket = (index, self.npartitions)
        return Task(name, gpuagg_merge, table, plan=self.plan, meta=self._meta, bucket=bucket)


class GroupByNarrowed(GroupByNode):
    """Quantiles of groups by brackets, in two passes over the chunks; one output."""

    _parameters = ["chunks", "plan", "promised", "decision", "stride", "most"]
    _prefix, route = "gpuagg_narrowed", Route.NARROWED

    def _number(self) -> int:
        return 1

    def _layer(self) -> dict[Any, Any]:
        token, plan = self.deterministic_token, self.plan
        layer: dict[Any, Any] = self.chunks.futures()
        # the same tasks for all passes: partitions of a frame in this process are made once
        chunks = self.chunks.sent()

        def of_chunks(step: str, run: Any, **given: Any) -> List:
            tasks = _chunk_tasks(f"gpuagg_{step}-{token}", run, chunks, plan=plan, **given)
            layer.update(tasks)
            return _refs(list(tasks))

        def of_all(step: str, run: Any, *arguments: Any) -> TaskRef:
            key = f"gpuagg_{step}-{token}"
            layer[key] = Task(key, run, *arguments, plan)
            return TaskRef(key)

        sampled = of_chunks("sample_rows", gpuagg_sample_rows, stride=self.stride)
        aim = of_all("aim", gpuagg_aim, sampled, self.most)
        counted = of_chunks("count_sides", gpuagg_count_sides, aim=aim)
        wider = of_all("widen", gpuagg_widen, aim, counted)
        again = of_chunks("recount_sides", gpuagg_recount_sides, wider=wider)
        last, found = (self._name, 0), (aim, counted, wider, again)
        layer[last] = Task(last, gpuagg_pick, *found, plan, self.promised.sent)
        return layer

    def _steps(self) -> list[tuple[str, int]]:
        of_chunks = [(step, len(self.chunks)) for step in ("sample", "count", "recount")]
        return [*of_chunks, ("aim", 1), ("widen", 1), ("finalize", 1)]


class GroupByGather(GroupByNode):
    """Finished outputs gathered into fewer, sorted if the plan says so.

    Each has every so many-th one, and so the groups whose hash gives its number modulo that of the
    outputs: those of another group-by with as many, which may be combined with it.
    """

    _parameters = ["frame", "plan", "promised", "outputs"]
    _prefix, _step = "gpuagg_gather", "gather"

    def _layer(self) -> dict[Any, Task]:
        layer: dict[Any, Task] = {}
        for j in range(self.outputs):
            of_output = range(j, self.frame.npartitions, self.outputs)
            key, keys = (self._name, j), [(self.frame._name, i) for i in of_output]
            layer[key] = Task(key, gpuagg_gather, _refs(keys), self.plan, self.promised.sent)
        return layer


class GroupByDivide(GroupByNode):
    """A finished output divided by key hash into several."""

    _parameters = ["frame", "plan", "promised", "outputs"]
    _prefix = "gpuagg_output"

    def _layer(self) -> dict[Any, Task]:
        whole = TaskRef((self.frame._name, 0))
        divided = (f"gpuagg_divide-{self.deterministic_token}", 0)
        layer = {divided: Task(divided, gpuagg_divide, whole, self.plan, self.outputs)}
        return layer | _taken_apart(divided, self._name, self.outputs)

    def _steps(self) -> list[tuple[str, int]]:
        return [("divide", 1 + self.outputs)]


def _chunk_tasks(name: str, run: Any, chunks: Chunks | Sent, **given: Any) -> dict[Any, Task]:
    keys = [(name, i) for i in range(len(chunks))]
    return {key: chunk_task(key, run, chunks, i, **given) for i, key in enumerate(keys)}


def _taken_apart(divided: Any, name: str, outputs: int) -> dict[Any, Task]:
    """The tasks that take the outputs out of the list of them."""
    keys = [(name, j) for j in range(outputs)]
    return {key: Task(key, operator.getitem, TaskRef(divided), key[1]) for key in keys}


def _refs(keys: Sequence[Any]) -> List:
    return List(*(TaskRef(key) for key in keys))
