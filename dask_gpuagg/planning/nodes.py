"""The physical expression nodes: what a planned group-by is lowered to.

``GroupByPartial`` turns every partition into a partial; the nodes that take several partitions at a
time are in ``chunk_nodes.py``. Then one of

* ``GroupByTree``: partials are combined ``split_every`` at a time, down to one output;
* ``GroupByExchange``: partials are split by key hash and each output merges its pieces;
* ``GroupByPieces`` + Dask's shuffle + ``GroupByMerge``: the same through p2p or disk, where the
  user or the cluster asks for it;
* ``GroupByMerge`` alone, when the input is already partitioned by the keys;

makes the outputs, and ``GroupByGather`` brings several finished outputs to one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from dask._task_spec import List, Task, TaskRef
from dask.dataframe.dask_expr._expr import Blockwise, Expr
from dask.dataframe.dask_expr._reductions import TreeReduce

from dask_gpuagg.engines import HOST, engine_name, engine_of
from dask_gpuagg.plan import Plan
from dask_gpuagg.planning.chunks import Chunks
from dask_gpuagg.planning.promised import Promised
from dask_gpuagg.tasks.key_sample import gpuagg_sample_partition
from dask_gpuagg.tasks.tasks import (
    gpuagg_combine,
    gpuagg_cut,
    gpuagg_direct,
    gpuagg_divide,
    gpuagg_finalize,
    gpuagg_gather,
    gpuagg_merge,
    gpuagg_partial,
    gpuagg_pieces,
    gpuagg_split,
    pieces_table,
)


class Quiet(Expr):
    """Leaves the long operands out of ``pprint()``; ``explain()`` prints them."""

    def _tree_repr_argument_construction(self, i: int, op: Any, header: str) -> str:
        if i < len(self._parameters) and self._parameters[i] in (
            "plan",
            "_meta",
            "meta",
            "promised",
        ):
            return header
        if isinstance(op, Chunks):
            return f"{header} {op}"
        if i < len(self._parameters) and self._parameters[i] == "decision":
            # the route is that of the node, which may be another than the decision's
            return f"{header} ({op.reason})"
        described: str = super()._tree_repr_argument_construction(i, op, header)  # type: ignore[no-untyped-call]
        return described


class _OfRows(Quiet, Blockwise):
    """Shared by the nodes that read the input; their last operands are the keys."""

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


class GroupByPartial(_OfRows):
    """Every partition reduced to a partial; operands: frame, plan, then the keys."""

    _parameters = ["frame", "plan"]
    operation: Any = staticmethod(gpuagg_partial)

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        return pd.DataFrame()

    def _divisions(self) -> tuple[None, ...]:
        return unknown(self.frame.npartitions)

    def _broadcast_dep(self, dep: Expr) -> bool:
        return bool(dep.npartitions == 1 and self.frame.npartitions > 1)

    def _task(self, name: Any, index: int) -> Task:
        args = [self._blockwise_arg(op, index) for op in self._args]
        return Task(name, self.operation, *args, plan=self.plan)

    def __str__(self) -> str:
        keys = ", ".join(str(k.label) for k in self.plan.keys)
        return f"GroupByPartial(by=[{keys}])"


class GroupBySampled(GroupByPartial):
    """The keys of some rows of every partition, for an estimate; operands: those of a partial."""

    operation = staticmethod(gpuagg_sample_partition)


class GroupByDirect(_OfRows):
    """The only partition made an output; operands: frame, plan, meta, decision, then the keys."""

    _parameters = ["frame", "plan", "meta", "decision"]
    operation = staticmethod(gpuagg_direct)

    @property
    def _meta(self) -> Any:
        return self.operand("meta")

    @functools.cached_property
    def _name(self) -> str:
        return f"gpuagg_direct-{self.deterministic_token}"

    def _divisions(self) -> tuple[None, ...]:
        return unknown(1)

    def _task(self, name: Any, index: int) -> Task:
        args = [self._blockwise_arg(op, index) for op in self._args]
        shape = engine_of(self._meta).shape_of(self._meta)
        return Task(name, gpuagg_direct, *args, plan=self.plan, shape=shape)


class Reduction(Quiet):
    """Shared by the nodes whose output is the user's result."""

    @property
    def _meta(self) -> Any:
        return self.operand("_meta")

    @functools.cached_property
    def _name(self) -> str:
        return f"{self._prefix}-{self.deterministic_token}"


class GroupByTree(Reduction, TreeReduce):
    """Partials combined ``split_every`` at a time, finalized into one output, by Dask's tree."""

    _parameters = [*TreeReduce._parameters, "decision"]
    _prefix = "gpuagg_tree"

    @classmethod
    def build(
        cls, partial: Expr, plan: Plan, meta: Any, split_every: Any, decision: Any
    ) -> GroupByTree:
        """The tree over the partials of a plan."""
        promised = Promised(meta, plan)
        return cls(
            partial,
            cls,
            promised,
            gpuagg_combine,
            gpuagg_finalize,
            {"plan": plan},
            {"plan": plan, "meta": promised.sent},
            split_every,
            decision,
        )

    @property
    def _meta(self) -> Any:
        return self.operand("_meta").meta

    def _tree_repr_lines(self, indent: int = 0, recursive: bool = True) -> list[str]:
        lines = self.frame._tree_repr_lines(2) if recursive else []
        header = f"GroupByTree: {self.decision} split_every={self.split_every}"
        return [" " * indent + line for line in [header, *lines]]


class GroupByExchange(Reduction):
    """Partials split by key hash; every output merges its pieces in partition order."""

    _parameters = ["frame", "plan", "_meta", "outputs", "decision"]
    _prefix = "gpuagg_exchange"

    def _divisions(self) -> tuple[None, ...]:
        return unknown(self.outputs)

    def _layer(self) -> dict[Any, Task]:
        layer: dict[Any, Task] = {}
        inputs, outputs = self.frame.npartitions, self.outputs
        for i in range(inputs):
            key = (f"gpuagg_split-{self.deterministic_token}", i)
            partial = TaskRef((self.frame._name, i))
            layer[key] = Task(key, gpuagg_split, partial, self.plan, outputs)
        splits = [(f"gpuagg_split-{self.deterministic_token}", i) for i in range(inputs)]
        return layer | merged(self._name, splits, self.plan, self._meta, outputs)


def merged(
    name: str, splits: Sequence[Any], plan: Plan, meta: Any, outputs: int
) -> dict[Any, Task]:
    """The tasks that take the pieces out of all splits, and merge those of each output."""
    layer: dict[Any, Task] = {}
    piece, cut = (name.replace("exchange", to) for to in ("piece", "cut"))
    cuts = []
    for i, split in enumerate(splits):
        pieces = [(piece, j, i) for j in range(outputs)]
        for j, key in enumerate(pieces):
            layer[key] = Task(key, operator.getitem, TaskRef(split), j)
        if cuts_first(meta):
            layer[cut, i] = Task((cut, i), gpuagg_cut, _refs(pieces))
            cuts.append((cut, i))
    for j in range(outputs):
        refs = _refs([(piece, j, i) for i in range(len(splits))])
        after: dict[str, Any] = {"after": _refs(cuts)} if cuts else {}
        bucket = (j, outputs)
        layer[name, j] = Task((name, j), gpuagg_finalize, refs, plan, meta, bucket, **after)
    return layer


def cuts_first(meta: Any) -> bool:
    """Whether all pieces are taken out of their splits before the first output is made.

    A split holds the pieces of all outputs until the last is taken. On a device its memory is
    needed: the pieces of an output are to be gone when it is made.
    """
    return engine_name(meta) != HOST


class GroupByPieces(Quiet, Blockwise):
    """Every partial as a table of pieces, one for each output, that Dask's shuffles understand."""

    _parameters = ["frame", "plan", "buckets"]
    operation = staticmethod(gpuagg_pieces)

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        nothing = np.zeros(0, np.int64)
        return pieces_table(nothing, nothing, [])

    def _divisions(self) -> tuple[None, ...]:
        return unknown(self.frame.npartitions)

    def _task(self, name: Any, index: int) -> Task:
        partial = self._blockwise_arg(self.frame, index)
        return Task(name, gpuagg_pieces, partial, self.plan, self.buckets, index)


class GroupByMerge(Reduction, Blockwise):
    """One output from each partition of shuffled pieces, or of whole partials."""

    _parameters = ["frame", "plan", "_meta", "decision"]
    _prefix = "gpuagg_merge"
    operation = staticmethod(gpuagg_merge)

    def _divisions(self) -> tuple[None, ...]:
        return unknown(self.frame.npartitions)

    def _task(self, name: Any, index: int) -> Task:
        table = self._blockwise_arg(self.frame, index)
        bucket = (index, self.npartitions)
        return Task(name, gpuagg_merge, table, plan=self.plan, meta=self._meta, bucket=bucket)


class GroupByGather(Reduction):
    """Finished outputs gathered into fewer, sorted if the plan says so.

    Each has every so many-th one, and so the groups whose hash gives its number modulo that of the
    outputs: those of another group-by with as many, which may be combined with it.
    """

    _parameters = ["frame", "plan", "_meta", "outputs"]
    _prefix = "gpuagg_gather"

    def _divisions(self) -> tuple[None, ...]:
        return unknown(self.outputs)

    def _layer(self) -> dict[Any, Task]:
        layer: dict[Any, Task] = {}
        for j in range(self.outputs):
            of_output = range(j, self.frame.npartitions, self.outputs)
            key, keys = (self._name, j), [(self.frame._name, i) for i in of_output]
            layer[key] = Task(key, gpuagg_gather, _refs(keys), self.plan, self._meta)
        return layer


class GroupByDivide(Reduction):
    """A finished output divided by key hash into several."""

    _parameters = ["frame", "plan", "_meta", "outputs"]
    _prefix = "gpuagg_output"

    def _divisions(self) -> tuple[None, ...]:
        return unknown(self.outputs)

    def _layer(self) -> dict[Any, Task]:
        whole = TaskRef((self.frame._name, 0))
        divided = (f"gpuagg_divide-{self.deterministic_token}", 0)
        layer = {divided: Task(divided, gpuagg_divide, whole, self.plan, self.outputs)}
        return layer | taken_apart(divided, self._name, self.outputs)


def taken_apart(divided: Any, name: str, outputs: int) -> dict[Any, Task]:
    """The tasks that take the outputs out of the list of them."""
    keys = [(name, j) for j in range(outputs)]
    return {key: Task(key, operator.getitem, TaskRef(divided), key[1]) for key in keys}


def unknown(npartitions: int) -> tuple[None, ...]:
    """Divisions of that many partitions, unknown."""
    return (None,) * (npartitions + 1)


def _refs(keys: Sequence[Any]) -> List:
    return List(*(TaskRef(key) for key in keys))
