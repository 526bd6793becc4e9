"""The physical expression nodes: what a planned group-by is lowered to.

``GroupByPartial`` turns every partition into a partial. Then one of

* ``GroupByTree``: partials are combined ``split_every`` at a time, down to one output;
* ``GroupByExchange``: partials are split by key hash and each output merges its pieces;
* ``PartialTable`` + Dask's shuffle + ``GroupByMerge``: the same through p2p or disk, where the
  user or the cluster asks for it;
* ``GroupByMerge`` alone, when the input is already partitioned by the keys;

makes the outputs, and ``GroupByGather`` brings several finished outputs to one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import pandas as pd
from dask._task_spec import List, Task, TaskRef
from dask.dataframe.dask_expr._expr import Blockwise, Expr
from dask.dataframe.dask_expr._reductions import TreeReduce
from dask.dataframe.groupby import _groupby_raise_unaligned, _is_aligned
from dask.dataframe.utils import is_index_like, is_series_like

from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.engines import column_of, engine_of, host
from dask_gpuagg.plan import Column, Plan
from dask_gpuagg.runs import task

PARTITION = "_partitions"


def gpuagg_partial(frame: Any, *by: Any, plan: Plan, ordinal: int | None = None) -> host.Partial:
    """Task: one partition to one partial.

    Parameters
    ----------
    frame : DataFrame or Series
    *by : labels, Series, Index or callables
        As the user gave them, per partition.
    plan : Plan
    ordinal : int, optional
        Number of the partition, when the exchange may lose the order.

    Raises
    ------
    TypeError
        When a column's dtype is not the one that the metadata promised.
    ValueError
        When a key Series is not aligned with the frame.
    """
    keys, columns = _inputs_of(frame, by, plan)
    with task(plan, "partial"):
        return engine_of(frame).partial(keys, columns, frame.index, plan, ordinal)  # type: ignore[no-any-return]


def gpuagg_direct(frame: Any, *by: Any, plan: Plan, shape: Any) -> Any:
    """Task: the only partition to the output."""
    keys, columns = _inputs_of(frame, by, plan)
    with task(plan, "direct"):
        return engine_of(frame).direct(keys, columns, plan, shape)


def gpuagg_combine(partials: Sequence[host.Partial], plan: Plan) -> host.Partial:
    """Task: several partials to one."""
    with task(plan, "combine"):
        return engine_of(partials[0]).combine(partials, plan)  # type: ignore[no-any-return]


def gpuagg_finalize(
    partials: Sequence[host.Partial],
    plan: Plan,
    meta: Any,
    bucket: tuple[int, int] | None = None,
) -> Any:
    """Task: the last partials to an output."""
    with task(plan, "finalize"):
        return engine_of(partials[0]).finalize(partials, plan, meta, bucket)


def gpuagg_split(partial: host.Partial, plan: Plan, buckets: int) -> list[host.Partial]:
    """Task: one partial to one piece per output, by key hash."""
    return engine_of(partial).split(partial, plan, buckets)  # type: ignore[no-any-return]


def gpuagg_table(partial: host.Partial, name: str, plan: Plan, buckets: int) -> pd.DataFrame:
    """Task: one table of a partial, with the output that each row belongs to."""
    table = partial[name]
    keys = [table[f"k{i}"] for i in range(len(plan.keys))]
    return table.assign(**{PARTITION: engine_of(table).bucket_of(keys, buckets)})


def gpuagg_merge(*tables: Any, plan: Plan, meta: Any, bucket: tuple[int, int] | None = None) -> Any:
    """Task: the shuffled tables of one output, or one whole partial, to that output."""
    if isinstance(tables[0], dict):
        return gpuagg_finalize(tables, plan, meta, bucket)
    # p2p goes through Arrow, which gives Arrow's strings back as pandas' own
    tables = tuple(_keys_as_planned(table, plan) for table in tables)
    named = dict(zip(plan.tables, tables, strict=True))
    return gpuagg_finalize([named], plan, meta, bucket)


def _keys_as_planned(table: pd.DataFrame, plan: Plan) -> pd.DataFrame:
    wanted = {f"k{i}": k.dtype for i, k in enumerate(plan.keys)}
    changed = {
        name: dtype
        for name, dtype in wanted.items()
        if table[name].dtype != dtype and dtype_class(dtype) != "category"
    }
    return table.astype(changed) if changed else table


def gpuagg_gather(outputs: Sequence[Any], plan: Plan, meta: Any) -> Any:
    """Task: finished outputs to one, sorted by key if the plan says so."""
    return engine_of(outputs[0]).gather(outputs, plan, meta)


def gpuagg_select(whole: Any, plan: Plan, bucket: tuple[int, int]) -> Any:
    """Task: the groups of a finished output that belong to one of several outputs."""
    return engine_of(whole).select(whole, plan, bucket)


def _inputs_of(frame: Any, by: Sequence[Any], plan: Plan) -> tuple[list[Any], list[Any]]:
    """The key and value columns of a partition, checked against the plan."""
    if not all(_is_aligned(frame, key) for key in by):
        _groupby_raise_unaligned(frame, by=list(by))
    keys = [_checked(_resolve(frame, b), k) for b, k in zip(by, plan.keys, strict=True)]
    columns = [
        _checked(frame if frame.ndim == 1 else column_of(frame, c.label), c) for c in plan.columns
    ]
    return keys, columns


def _resolve(frame: Any, by: Any) -> pd.Series:
    """Values of one key of a partition."""
    if is_series_like(by):
        return by
    if is_index_like(by):
        return by.to_series()
    if callable(by):
        return frame.index.map(by).to_series()
    # asking the frame itself: cuDF would make a pandas index of its labels first
    if frame.ndim == 2 and by in frame:
        return column_of(frame, by)
    return frame.index.get_level_values(by).to_series()


def _checked(values: pd.Series, column: Column) -> pd.Series:
    """The values, or an error that says which column differs from the metadata and how."""
    found, expected = values.dtype, column.dtype
    if found == expected:
        return values
    if dtype_class(found) == dtype_class(expected) == "category":
        return values  # categories may differ from partition to partition
    # empty partitions may have any dtype, and there are several of strings
    if len(values) == 0 or dtype_class(found) == dtype_class(expected) == "string":
        return values.astype(expected)
    raise TypeError(
        f"column {column.label!r}: expected dtype {expected} from the metadata, "
        f"found {found} in a partition"
    )


class _Quiet(Expr):
    """Leaves the long operands out of ``pprint()``; ``explain()`` prints them."""

    def _tree_repr_argument_construction(self, i: int, op: Any, header: str) -> str:
        if i < len(self._parameters) and self._parameters[i] in (
            "plan",
            "_meta",
            "meta",
            "ordinals",
        ):
            return header
        if i < len(self._parameters) and self._parameters[i] == "decision":
            return f"{header} {op}"
        described: str = super()._tree_repr_argument_construction(i, op, header)  # type: ignore[no-untyped-call]
        return described


class _OfRows(_Quiet, Blockwise):
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
        """What is read of the input; Dask would take the columns of a partial, which has none."""
        return list(self.frame.columns)


class GroupByPartial(_OfRows):
    """Every partition reduced to a partial; operands: frame, plan, ordinals, then the keys."""

    _parameters = ["frame", "plan", "ordinals"]
    operation = staticmethod(gpuagg_partial)

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        return pd.DataFrame()

    def _divisions(self) -> tuple[None, ...]:
        return _unknown(self.frame.npartitions)

    def _broadcast_dep(self, dep: Expr) -> bool:
        return bool(dep.npartitions == 1 and self.frame.npartitions > 1)

    def _task(self, name: Any, index: int) -> Task:
        args = [self._blockwise_arg(op, index) for op in self._args]
        ordinal = index if self.ordinals else None
        return Task(name, gpuagg_partial, *args, plan=self.plan, ordinal=ordinal)

    def __str__(self) -> str:
        keys = ", ".join(str(k.label) for k in self.plan.keys)
        return f"GroupByPartial(by=[{keys}])"


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
        return _unknown(1)

    def _task(self, name: Any, index: int) -> Task:
        args = [self._blockwise_arg(op, index) for op in self._args]
        shape = engine_of(self._meta).shape_of(self._meta)
        return Task(name, gpuagg_direct, *args, plan=self.plan, shape=shape)


class _Reduction(_Quiet):
    """Shared by the nodes whose output is the user's result."""

    @property
    def _meta(self) -> Any:
        return self.operand("_meta")

    @functools.cached_property
    def _name(self) -> str:
        return f"{self._prefix}-{self.deterministic_token}"


class GroupByTree(_Reduction, TreeReduce):
    """Partials combined ``split_every`` at a time, finalized into one output: Dask's own tree."""

    _parameters = [*TreeReduce._parameters, "decision"]
    _prefix = "gpuagg_tree"

    @classmethod
    def build(
        cls, partial: Expr, plan: Plan, meta: Any, split_every: Any, decision: Any
    ) -> GroupByTree:
        """The tree over the partials of a plan."""
        return cls(
            partial,
            cls,
            meta,
            gpuagg_combine,
            gpuagg_finalize,
            {"plan": plan},
            {"plan": plan, "meta": meta},
            split_every,
            decision,
        )

    def _tree_repr_lines(self, indent: int = 0, recursive: bool = True) -> list[str]:
        lines = self.frame._tree_repr_lines(2) if recursive else []
        header = f"GroupByTree: {self.decision} split_every={self.split_every}"
        return [" " * indent + line for line in [header, *lines]]


class GroupByExchange(_Reduction):
    """Partials split by key hash; every output merges its pieces in partition order."""

    _parameters = ["frame", "plan", "_meta", "outputs", "decision"]
    _prefix = "gpuagg_exchange"

    def _divisions(self) -> tuple[None, ...]:
        return _unknown(self.outputs)

    def _layer(self) -> dict[Any, Task]:
        layer: dict[Any, Task] = {}
        inputs, outputs = self.frame.npartitions, self.outputs
        for i in range(inputs):
            key = (f"gpuagg_split-{self.deterministic_token}", i)
            partial = TaskRef((self.frame._name, i))
            layer[key] = Task(key, gpuagg_split, partial, self.plan, outputs)
        for j in range(outputs):
            pieces = [(f"gpuagg_piece-{self.deterministic_token}", j, i) for i in range(inputs)]
            for i, piece in enumerate(pieces):
                split = TaskRef((f"gpuagg_split-{self.deterministic_token}", i))
                layer[piece] = Task(piece, operator.getitem, split, j)
            key = (self._name, j)
            layer[key] = Task(
                key, gpuagg_finalize, _refs(pieces), self.plan, self._meta, (j, outputs)
            )
        return layer


class PartialTable(_Quiet, Blockwise):
    """One table of every partial, as a DataFrame that Dask's shuffles understand."""

    _parameters = ["frame", "table", "plan", "buckets", "meta"]
    operation = staticmethod(gpuagg_table)

    @functools.cached_property
    def _meta(self) -> pd.DataFrame:
        table: pd.DataFrame = self.operand("meta")
        return table

    @functools.cached_property
    def _args(self) -> list[Any]:
        return [self.frame, self.table, self.plan, self.buckets]

    def _divisions(self) -> tuple[None, ...]:
        return _unknown(self.frame.npartitions)


class GroupByMerge(_Reduction, Blockwise):
    """One output from each partition of shuffled tables (the trailing operands)."""

    _parameters = ["plan", "_meta", "decision"]
    _prefix = "gpuagg_merge"
    operation = staticmethod(gpuagg_merge)

    @functools.cached_property
    def _args(self) -> list[Any]:
        return self.operands[len(self._parameters) :]

    def _divisions(self) -> tuple[None, ...]:
        return _unknown(self._args[0].npartitions)

    def _broadcast_dep(self, dep: Expr) -> bool:
        return False

    def _task(self, name: Any, index: int) -> Task:
        tables = [self._blockwise_arg(op, index) for op in self._args]
        bucket = (index, self.npartitions)
        return Task(name, gpuagg_merge, *tables, plan=self.plan, meta=self._meta, bucket=bucket)


class GroupByGather(_Reduction):
    """Finished outputs brought to one partition, sorted if the plan says so."""

    _parameters = ["frame", "plan", "_meta"]
    _prefix = "gpuagg_gather"

    def _divisions(self) -> tuple[None, ...]:
        return (None, None)

    def _layer(self) -> dict[Any, Task]:
        keys = [(self.frame._name, i) for i in range(self.frame.npartitions)]
        last = (self._name, 0)
        return {last: Task(last, gpuagg_gather, _refs(keys), self.plan, self._meta)}


class GroupBySelect(_Reduction):
    """A finished output divided by key hash into several."""

    _parameters = ["frame", "plan", "_meta", "outputs"]
    _prefix = "gpuagg_select"

    def _divisions(self) -> tuple[None, ...]:
        return _unknown(self.outputs)

    def _layer(self) -> dict[Any, Task]:
        whole = TaskRef((self.frame._name, 0))
        layer = {}
        for j in range(self.outputs):
            key = (self._name, j)
            layer[key] = Task(key, gpuagg_select, whole, self.plan, (j, self.outputs))
        return layer


def _unknown(npartitions: int) -> tuple[None, ...]:
    """Divisions of that many partitions, unknown."""
    return (None,) * (npartitions + 1)


def _refs(keys: Sequence[Any]) -> List:
    return List(*(TaskRef(key) for key in keys))
