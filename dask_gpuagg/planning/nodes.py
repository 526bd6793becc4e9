"""The physical nodes: what a planned group-by is lowered to.

They form a chain of a source, a merge and a sink. A *source* makes partials: ``GroupByPartial`` one
of each partition, ``GroupByChunks`` one of each chunk, as it is or in pieces; ``GroupByJoinSide``
joins those of one side of a merge with the other side. A *merge* makes finished outputs of them:

* ``GroupByTree`` combines partials ``split_every`` at a time, down to one output;
* ``GroupByExchange`` splits partials by key hash, and each output merges its pieces;
* ``GroupByMerge`` makes one output of each partition: of pieces that one of Dask's shuffles has
  brought together (``GroupByPieces``), where the user or the cluster asks for it, and of partials
  where the input is already partitioned by the keys;
* ``GroupByDirect`` and ``GroupByChunkDirect`` finish the only partition or chunk in its task;
* ``GroupByNarrowed`` finds quantiles in two passes over chunks whose rows stay where they are.

Where Dask announced several outputs, the task that finishes all groups divides them. The *sink*
``GroupByGather`` makes fewer outputs of several. What has one task for a partition is a
``Blockwise``, which Dask fuses with its neighbours. Every node tells its tasks, for ``explain()``.
"""

import functools
import operator
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from dask._task_spec import List, Task, TaskRef
from dask.base import tokenize
from dask.dataframe.dask_expr._expr import Blockwise, Elemwise, Expr
from dask.dataframe.dask_expr._reductions import TreeReduce

from dask_gpuagg.engines import HOST, engine_name, engine_of
from dask_gpuagg.plan import Plan
from dask_gpuagg.planning.chunks import Chunks, Route
from dask_gpuagg.tasks import tasks


class Promised:
    """The metadata of a result, as it travels to the scheduler; tasks get what the engine reads.

    Metadata of cuDF stays bytes there until a node reads it.
    """

    _data: bytes

    def __init__(self, meta: Any, plan: Plan) -> None:
        self.meta = meta
        self.on_device = engine_name(meta) != HOST
        self.sent = engine_of(meta).shape_of(meta) if plan.shape == "groups" else meta

    @functools.cached_property
    def meta(self) -> Any:
        """The empty result."""
        return pickle.loads(self._data)

    def __dask_tokenize__(self) -> Any:
        return ("dask_gpuagg.Promised", tokenize(self.sent))

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if "_data" in state:
            state.pop("meta", None)
        elif self.sent is not self.meta:
            state["_data"] = pickle.dumps(state.pop("meta"))
        return state


class GroupByNode(Expr):
    """A step of a planned group-by: what it is called, how it prints, and its tasks in numbers.

    ``route`` is that of a query with this node; a source and a sink have none.
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
        return {step: number for step, number in self._steps().items() if number}

    def _steps(self) -> dict[str, int]:
        return {self._step: self.npartitions}

    def _tree_repr_argument_construction(self, i: int, op: Any, header: str) -> str:
        parameter = self._parameters[i] if i < len(self._parameters) else ""
        if parameter in ("plan", "promised", "join"):
            return header
        if isinstance(op, Chunks):
            return f"{header} {op}"
        if parameter == "decision":
            # the route is that of the node, which may be another than the decision's
            return f"{header} ({op.reason})"
        text: str = super()._tree_repr_argument_construction(i, op, header)  # type: ignore[no-untyped-call]
        return text


_NO_COLUMNS = pd.DataFrame()


class DerivedColumns(Elemwise):
    """The columns of each partition that a group-by reads, and the rows; see ``expressions``."""

    _parameters = ["frame", "derived"]
    operation = staticmethod(tasks.gpuagg_derived)


class GroupByPartial(GroupByNode, Blockwise):
    """Every partition reduced to a partial; operands: frame, plan, predicate, then the keys."""

    _parameters = ["frame", "plan", "predicate"]
    _prefix, _step = "gpuagg_partial", "partial"
    operation: Any = staticmethod(tasks.gpuagg_partial)

    @functools.cached_property
    def _args(self) -> list[Any]:
        return [self.frame, self.predicate, *self.operands[len(self._parameters) :]]

    @property
    def _projection_columns(self) -> list[Any]:
        """The columns that are read of the input; a partial itself has none that Dask knows."""
        return list(self.frame.columns)

    def _broadcast_dep(self, dep: Expr) -> bool:
        return bool(dep.npartitions == 1 and self.frame.npartitions > 1)

    def _task(self, name: Any, index: int) -> Task:
        args = [self._blockwise_arg(op, index) for op in self._args]
        more = {"shape": self.promised.sent} if "promised" in self._parameters else {}
        return Task(name, self.operation, *args, plan=self.plan, **more)

    def __str__(self) -> str:
        keys = ", ".join(str(k.label) for k in self.plan.keys)
        return f"{type(self).__name__}(by=[{keys}])"


class GroupByDirect(GroupByPartial):
    """The only partition made an output; operands: these, then the keys."""

    _parameters = ["frame", "plan", "promised", "decision", "predicate"]
    _prefix, _step, route = "gpuagg_direct", "direct", Route.DIRECT
    operation = staticmethod(tasks.gpuagg_direct)


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
        options = {"plan": self.plan, "pieces": self.pieces}
        layer: dict[Any, Any] = self.chunks.layer(self._name, tasks.gpuagg_chunk, **options)
        return layer


class GroupByFinished(GroupByNode):
    """A node whose last task finishes all groups, and divides them by key hash where it has to.

    Dividing them in a task of its own would cost one more round of the scheduler.
    """

    @functools.cached_property
    def _finished(self) -> str:
        return f"{self._prefix}-{self.deterministic_token}"

    @functools.cached_property
    def _name(self) -> str:
        prefix = self._prefix if self._number() == 1 else "gpuagg_output"
        return f"{prefix}-{self.deterministic_token}"

    def _number(self) -> int:
        return int(self.decision.outputs)

    def _layer(self) -> dict[Any, Any]:
        layer, finished = self._tasks(), (self._finished, 0)
        if self._number() == 1:
            return layer
        divided = (f"gpuagg_divide-{self.deterministic_token}", 0)
        arguments = (TaskRef(finished), self.plan, self._number())
        divide = Task(divided, tasks.gpuagg_divide, *arguments)
        layer[finished] = Task.fuse(layer[finished], divide, key=finished)
        return layer | _taken_apart(finished, _keys_of(self))

    def _tasks(self) -> dict[Any, Any]:
        """The tasks without those of the outputs; the last has the key ``(self._finished, 0)``."""
        raise NotImplementedError

    def steps(self) -> dict[str, int]:
        """The number of this node's tasks, by what ``explain()`` calls them."""
        return super().steps() | ({"divide": self._number()} if self._number() > 1 else {})


class GroupByChunkDirect(GroupByFinished):
    """The only chunk made the outputs."""

    _parameters = ["chunks", "plan", "promised", "decision"]
    _prefix, _step, route = "gpuagg_direct", "direct", Route.DIRECT

    def _tasks(self) -> dict[Any, Any]:
        options = {"plan": self.plan, "meta": self.promised.sent}
        layer: dict[Any, Any] = self.chunks.layer(
            self._finished, tasks.gpuagg_chunk_direct, **options
        )
        return layer

    def _steps(self) -> dict[str, int]:
        return {self._step: 1}


class GroupByTree(GroupByFinished, TreeReduce):
    """Partials combined ``split_every`` at a time, finalized at once.

    It is found where Dask's own trees are looked for.
    """

    _parameters = ["frame", "plan", "promised", "decision", "split_every"]
    _prefix, route = "gpuagg_tree", Route.TREE
    # Dask's own print operands that this one has not
    __str__, _tree_repr_lines = Expr.__str__, Expr._tree_repr_lines

    def _tasks(self) -> dict[Any, Any]:
        size = 8 if self.split_every is None else self.split_every
        if size is not False and size < 2:
            raise ValueError("split_every must be greater than 1 or False")
        layer: dict[Any, Any] = {}
        keys, depth = _keys_of(self.frame), 1
        while size and len(keys) > size:
            batches = [keys[i : i + size] for i in range(0, len(keys), size)]
            keys = [(self._finished, depth, i) for i in range(len(batches))]
            for key, batch in zip(keys, batches, strict=True):
                layer[key] = Task(key, tasks.gpuagg_combine, _refs(batch), self.plan)
            depth += 1
        last, sent = (self._finished, 0), self.promised.sent
        layer[last] = Task(last, tasks.gpuagg_finalize, _refs(keys), self.plan, sent)
        return layer

    def _steps(self) -> dict[str, int]:
        return {"combine": len(self._tasks()) - 1, "finalize": 1}


class GroupByJoined(GroupByNode):
    """Consecutive partials combined, of which an exchange has fewer pieces."""

    _parameters = ["frame", "plan", "number"]
    _prefix, _step = "gpuagg_join", "combine"

    def _number(self) -> int:
        return int(self.number)

    def _layer(self) -> dict[Any, Task]:
        partials, layer = _keys_of(self.frame), {}
        for i, key in enumerate(_keys_of(self)):
            start, stop = (len(partials) * end // self.number for end in (i, i + 1))
            layer[key] = Task(key, tasks.gpuagg_combine, _refs(partials[start:stop]), self.plan)
        return layer


class GroupByJoinSide(GroupByNode):
    """Partials of one side of a merge, joined with the partitions of the other side.

    One side or the other has one partition, which all tasks read: Dask would compute it in each of
    them, were they fused. ``reason`` says why rows are reduced before they are merged.
    """

    _parameters = ["frame", "other", "plan", "join", "reason"]
    _prefix, _step = "gpuagg_join_side", "join"

    def _number(self) -> int:
        return max(int(self.frame.npartitions), int(self.other.npartitions))

    def _layer(self) -> dict[Any, Task]:
        layer = {}
        for i, key in enumerate(_keys_of(self)):
            sides = (self.frame, self.other)
            refs = (TaskRef((side._name, min(i, side.npartitions - 1))) for side in sides)
            layer[key] = Task(key, tasks.gpuagg_join_side, *refs, self.plan, self.join)
        return layer


class GroupByExchange(GroupByNode):
    """Partials split by key hash, where they are not; outputs merge pieces in partition order."""

    _parameters = ["frame", "plan", "promised", "outputs", "decision"]
    _prefix, route = "gpuagg_exchange", Route.EXCHANGE

    @property
    def _splits(self) -> bool:
        return not (isinstance(self.frame, GroupByChunks) and self.frame.pieces)

    @property
    def _has_barrier(self) -> bool:
        return bool(self.promised.on_device)

    def _layer(self) -> dict[Any, Task]:
        layer: dict[Any, Task] = {}
        token, plan, outputs = self.deterministic_token, self.plan, self.outputs
        split, piece, barrier = (f"gpuagg_{step}-{token}" for step in ("split", "piece", "barrier"))
        splits = _keys_of(self.frame)
        if self._splits:
            partials, splits = splits, [(split, i) for i in range(len(splits))]
            for key, partial in zip(splits, partials, strict=True):
                layer[key] = Task(key, tasks.gpuagg_split, TaskRef(partial), plan, outputs)
        barriers = []
        for i, key in enumerate(splits):
            pieces = [(piece, j, i) for j in range(outputs)]
            layer |= _taken_apart(key, pieces)
            # A split holds the pieces of all outputs until the last is taken. On a device its
            # memory is needed: the pieces of an output are to be gone when it is made.
            if self._has_barrier:
                layer[barrier, i] = Task((barrier, i), tasks.gpuagg_barrier, _refs(pieces))
                barriers.append((barrier, i))
        after: dict[str, Any] = {"after": _refs(barriers)} if barriers else {}
        for j, key in enumerate(_keys_of(self)):
            of_output = _refs([(piece, j, i) for i in range(len(splits))])
            arguments = (of_output, plan, self.promised.sent, (j, outputs))
            layer[key] = Task(key, tasks.gpuagg_finalize, *arguments, **after)
        return layer

    def _steps(self) -> dict[str, int]:
        of_a_partial = self._splits + self.outputs + self._has_barrier
        return {"exchange": self.frame.npartitions * of_a_partial, "finalize": self.outputs}


class GroupByPieces(GroupByNode, Blockwise):
    """Every partial as a table of pieces, one for each output, that Dask's shuffles understand."""

    _parameters = ["frame", "plan", "buckets"]
    _prefix, _step = "gpuagg_pieces", "exchange"
    operation = staticmethod(tasks.gpuagg_pieces)

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        nothing = np.zeros(0, np.int64)
        return tasks.pieces_table(nothing, nothing, [])

    def _task(self, name: Any, index: int) -> Task:
        partial = self._blockwise_arg(self.frame, index)
        return Task(name, self.operation, partial, self.plan, self.buckets, index)


class GroupByMerge(GroupByNode, Blockwise):
    """One output from each partition of shuffled pieces, or of whole partials."""

    _parameters = ["frame", "plan", "promised", "decision"]
    _prefix, _step = "gpuagg_merge", "finalize"
    operation = staticmethod(tasks.gpuagg_merge)

    @property
    def route(self) -> Route:  # type: ignore[override]
        """Pieces come by an exchange of Dask's."""
        return Route.ALIGNED if isinstance(self.frame, GroupByNode) else Route.EXCHANGE

    def _task(self, name: Any, index: int) -> Task:
        table = self._blockwise_arg(self.frame, index)
        bucket = (index, self.npartitions)
        return Task(name, self.operation, table, plan=self.plan, meta=self._meta, bucket=bucket)


class GroupByNarrowed(GroupByFinished):
    """Quantiles of groups by brackets, in two passes over the chunks."""

    _parameters = ["chunks", "plan", "promised", "decision", "stride", "max_inside"]
    _prefix, route = "gpuagg_narrowed", Route.NARROWED

    def _tasks(self) -> dict[Any, Any]:
        token, plan = self.deterministic_token, self.plan
        layer: dict[Any, Any] = {}

        def of_chunks(step: str, run: Any, **options: Any) -> List:
            name = f"gpuagg_{step}-{token}"
            layer.update(self.chunks.layer(name, run, plan=plan, **options))
            return _refs([(name, i) for i in range(len(self.chunks))])

        def of_all(step: str, run: Any, *arguments: Any) -> TaskRef:
            key = f"gpuagg_{step}-{token}"
            layer[key] = Task(key, run, *arguments, plan)
            return TaskRef(key)

        sampled = of_chunks("sample_rows", tasks.gpuagg_sample_rows, stride=self.stride)
        aim = of_all("aim", tasks.gpuagg_aim, sampled, self.max_inside)
        counted = of_chunks("count_sides", tasks.gpuagg_count_sides, aim=aim)
        wider = of_all("widen", tasks.gpuagg_widen, aim, counted)
        again = of_chunks("recount_sides", tasks.gpuagg_recount_sides, wider=wider)
        last, passes = (self._finished, 0), (aim, counted, wider, again)
        layer[last] = Task(last, tasks.gpuagg_pick, *passes, plan, self.promised.sent)
        return layer

    def _steps(self) -> dict[str, int]:
        of_chunks = dict.fromkeys(("sample", "count", "recount"), len(self.chunks))
        return of_chunks | {"aim": 1, "widen": 1, "finalize": 1}


class GroupByGather(GroupByNode):
    """Finished outputs gathered into fewer, sorted if the plan says so.

    Each has every so many-th one, and so the groups whose hash gives its number modulo that of the
    outputs: those of another group-by with as many, which may be combined with it.
    """

    _parameters = ["frame", "plan", "promised", "outputs"]
    _prefix, _step = "gpuagg_gather", "gather"

    def _layer(self) -> dict[Any, Task]:
        layer: dict[Any, Task] = {}
        parts = _keys_of(self.frame)
        for j, key in enumerate(_keys_of(self)):
            of_output = _refs(parts[j :: self.outputs])
            layer[key] = Task(key, tasks.gpuagg_gather, of_output, self.plan, self.promised.sent)
        return layer


def _keys_of(node: Expr) -> list[Any]:
    return [(node._name, i) for i in range(node.npartitions)]


def _taken_apart(several: Any, keys: Sequence[Any]) -> dict[Any, Task]:
    """The tasks that take results out of the list of them."""
    return {key: Task(key, operator.getitem, TaskRef(several), j) for j, key in enumerate(keys)}


def _refs(keys: Sequence[Any]) -> List:
    return List(*(TaskRef(key) for key in keys))
