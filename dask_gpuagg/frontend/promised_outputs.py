"""What is done to a result in the number of partitions that it was promised.

Where ``split_out`` is open, Dask promises one partition, and decides when the group-by is
optimized: by its own rule one for up to 15 partitions, by ours as many as the result needs. What
reads partitions by number, or as many as were promised, gets the one of the promise, or sees how
many there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from dask.dataframe.dask_expr._collection import (
    DataFrame,
    FrameBase,
    Series,
    from_graph,
    new_collection,
)
from dask.dataframe.dask_expr._expr import (
    Blockwise,
    Expr,
    MapPartitions,
    Partitions,
    Sample,
    Split,
)
from dask.dataframe.dask_expr._merge import Merge
from dask.dataframe.dask_expr._reductions import ApplyConcatApply
from dask.dataframe.dask_expr._repartition import Repartition
from dask.dataframe.dask_expr._shuffle import BaseSetIndexSortValues, ShuffleBase

from dask_gpuagg.frontend import logical
from dask_gpuagg.frontend.alignment import by_dask, decided, is_partition_wise, is_result
from dask_gpuagg.frontend.partitioned_by import has_other_index
from dask_gpuagg.frontend.persisted_outputs import PersistedOutputs, as_one
from dask_gpuagg.frontend.sorted_outputs import gathers_other
from dask_gpuagg.frontend.trees import inputs, reached
from dask_gpuagg.planning.nodes import unknown
from dask_gpuagg.planning.route import Route, Routing

# nodes made for the number of partitions that their input had when the expression was written
BY_NUMBER = (Partitions, Sample, Split)
# attribute of an expression: whether the number of its partitions is not decided
_LEFT_OPEN = "_gpuagg_left_open"
# methods that go through as many partitions
LOOPS: tuple[tuple[type, str], ...] = (
    (DataFrame, "iterrows"),
    (DataFrame, "itertuples"),
    (DataFrame, "to_records"),
    (Series, "__iter__"),
    (FrameBase, "to_dask_array"),
)


def decide_by_promise(node: Any) -> Expr | None:
    """Give group-bys the one output of the promise where the node above them counts on it.

    It reads partitions by number, gives a function a whole input, joins by several levels, or
    combines rows that were moved with others.

    Parameters
    ----------
    node : Expr

    Returns
    -------
    Expr or None
        The node with ``split_out`` filled in below it; ``None`` if there is nothing to do.
    """
    reason, counted_on = "its partitions are read by number", []
    if isinstance(node, BY_NUMBER):
        counted_on = _apart(node.frame)
    elif isinstance(node, Merge):
        reason = "Dask joins by a MultiIndex in one partition only"
        counted_on = inputs(node) if _is_by_levels(node) else []
    elif isinstance(node, Blockwise):
        reason, counted_on = "a function gets it whole", _whole_inputs(node)
    if not counted_on and is_partition_wise(node) and not gathers_other(node):
        reason = "it is combined with rows that were moved to other partitions"
        counted_on = _moved_inputs(node)
    # what is combined with outputs that are given follows those
    found = [g for below in counted_on if below.npartitions == 1 for g in _open(below)]
    return _with_one(node, found, reason) if found else None


def _is_by_levels(merge: Any) -> bool:
    """Whether frames are joined by an index of several levels, which Dask cannot shuffle by."""
    sides = ((merge.left, merge.left_index), (merge.right, merge.right_index))
    return any(by_index and frame._meta.index.nlevels > 1 for frame, by_index in sides)


def _apart(frame: Any) -> list[Any]:
    """A frame, and below it what nodes have rows of that do not combine partition by partition.

    One after the other, as in ``concat``, or beside a larger frame in ``merge``, inputs of one
    partition were counted.
    """
    below = filter(_leaves_open, reached(frame, _leaves_open))
    others = (node for node in below if not is_partition_wise(node))
    return [frame, *(each for node in others for each in inputs(node))]


def _whole_inputs(node: Any) -> list[Any]:
    """The inputs of a function by partitions that gets them whole, as was promised."""
    frames = inputs(node)
    opened = list(filter(_is_left_open, frames)) if len(frames) > 1 else []
    sources = _sources(frames) if opened else []
    # the number of partitions may cost a computation, as after set_index
    if len(sources) < 2:
        return []
    if any(below.npartitions > 1 for below in frames):
        return [below for below in opened if node._broadcast_dep(below)]
    # group-bys that are beside each other alone decide together
    alone = all(logical.is_aggregation(source) and _is_open(source) for source in sources)
    return [] if alone else opened


def _moved_inputs(node: Any) -> list[Any]:
    """The inputs that a node combines by labels, where rows of some are not where others are."""
    frames = [frame for frame in inputs(node) if frame.ndim > 0]
    if len(frames) < 2 or not any(map(_is_left_open, frames)):
        return []
    moving = [list(filter(_moves, reached(frame, _leaves_open))) for frame in frames]
    below = list(itertools.chain(*moving))
    # a sample is partition-wise, and takes as many partitions as it was promised
    apart = any(isinstance(node, BY_NUMBER) for node in below)
    # of one result, labels as the group-by gave them beside others
    labels = {frozenset(n._name for n in nodes if has_other_index(n)) for nodes in moving}
    apart = apart or len(labels) > 1
    return frames if apart or (below and len(_sources(frames)) > 1) else []


def _is_moved(expr: Any) -> bool:
    """Whether rows are in other partitions than where group-bys below have put them."""
    return any(map(_moves, reached(expr, _leaves_open)))


def _moves(node: Any) -> bool:
    """Whether a node brings rows to other partitions, or gives them labels of others."""
    if is_result(node):
        return isinstance(node, PersistedOutputs) and not node.placed
    if isinstance(node, Repartition):
        # results that are divided again are decided together (alignment.py)
        return not any(map(is_result, node.walk()))
    if isinstance(node, ApplyConcatApply):
        return bool(node.should_shuffle)
    # a function may do it, and what Dask calls by rows does not
    if type(node) is MapPartitions or has_other_index(node):
        return True
    return isinstance(node, (*BY_NUMBER, BaseSetIndexSortValues, ShuffleBase))


def _sources(frames: list[Any]) -> list[Any]:
    """The nodes whose partitions frames have."""
    found = {n._name: n for f in frames for n in reached(f, lambda n: isinstance(n, Blockwise))}
    return [
        n for n in found.values() if n.ndim > 0 and not (isinstance(n, Blockwise) and inputs(n))
    ]


def with_decided_inputs(group_by: Any) -> Any:
    """A group-by of results whose outputs are decided: how many it has depends on theirs.

    Dask decides from the root down.

    Parameters
    ----------
    group_by : Expr
    """
    rewritten: dict[str, Any] = {}
    operands = [
        operand.rewrite(kind="tune", rewritten=rewritten)
        if isinstance(operand, Expr) and any(map(_is_open, operand.walk()))
        else operand
        for operand in group_by.operands
    ]
    return type(group_by)(*operands)


def _with_one(node: Any, group_bys: list[Any], reason: str) -> Any:
    """A node above group-bys with one output of each."""
    return decided(node, group_bys, [Routing(Route.TREE, 1, reason)] * len(group_bys))


def _open(expr: Any) -> list[Any]:
    """The group-bys on which the number of partitions depends, not decided; also persisted."""
    return list(filter(_is_open, reached(expr, _leaves_open)))


def _is_left_open(expr: Any) -> bool:
    """Whether ``_open`` finds any; kept with the expression, as each node above it asks."""
    kept = vars(expr)
    if _LEFT_OPEN not in kept:
        below = inputs(expr) if _leaves_open(expr) else []
        kept[_LEFT_OPEN] = _is_open(expr) or any(map(_is_left_open, below))
    return bool(kept[_LEFT_OPEN])


def _leaves_open(node: Any) -> bool:
    """Whether a node has as many partitions as its inputs let it have."""
    if is_result(node) or isinstance(node, Repartition) or node.ndim == 0:
        return False
    return not isinstance(node, ApplyConcatApply) or node.should_shuffle


def _is_open(node: Any) -> bool:
    return is_result(node) and "split_out" in node._parameters and node.operand("split_out") is None


def on_decided(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """A method on a collection that has the partitions of the optimized one."""
    return original(self.optimize() if _open(self.expr) else self, *args, **kwargs)


def on_one(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """A method that Dask has for one partition only, on a collection of one."""
    found = _open(self.expr) if self.npartitions == 1 else []
    reason = "the median of one partition is exact"
    frame = new_collection(_with_one(self.expr, found, reason)) if found else self
    return original(frame, *args, **kwargs)


def persist(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """A collection persisted by its method, which optimizes it first."""
    made = original(self, *args, **kwargs)
    return as_one(made, not _is_moved(self.expr)) if _has_one_by_dask(self) else made


def postpersist(_: Callable[..., Any], self: Any) -> Any:
    """How ``dask.persist`` makes a collection of the partitions that were computed."""
    # what all collections inherit may have been wrapped after this wrapper was made (staying.py)
    rebuild, state = FrameBase.__dask_postpersist__(self)
    promised = _has_one_by_dask(self)
    placed = promised and not _is_moved(self.expr)
    return with_all_partitions, (rebuild, promised, placed, self._name, *state)


def _has_one_by_dask(collection: Any) -> bool:
    """Whether a result has one partition by Dask's rule, as one that is persisted so has."""
    found = _open(collection.expr)
    rules = [by_dask(g).outputs for g in found if not isinstance(g, PersistedOutputs)]
    # the number of partitions may cost a computation, as after set_index
    return bool(found) and set(rules) <= {1} and collection.npartitions == 1


def with_all_partitions(
    futures: Any,
    rebuild: Any,
    promised: bool,
    placed: bool,
    asked: str,
    meta: Any,
    divisions: Any,
    name: str,
) -> Any:
    """A collection of which Dask's own function keeps as many partitions as were promised.

    ``dask.persist`` has the partitions alone, and ``dask.optimize`` a whole graph: there those of
    the collection itself are among others.

    Parameters
    ----------
    futures : dict
        The partitions by their keys, or a graph.
    rebuild : callable
        Dask's own function.
    promised : bool
        Whether the collection has one partition, as a program reads it.
    placed : bool
        Whether groups are in the partitions where a group-by has put them.
    asked : str
        The name of the expression that was persisted.
    meta, divisions, name
        What Dask knows of the collection that was persisted.
    """
    own = [(asked, i) for i in range(len(divisions) - 1)]
    if len(own) < len(futures) and all(key in futures for key in own):
        return from_graph(futures, meta, divisions, own, name)
    if len(futures) != len(divisions) - 1:
        divisions = unknown(len(futures))
    made = rebuild(futures, meta, divisions, name)
    return as_one(made, placed) if promised else made
