"""What is done to a result in the number of partitions that it was promised.

Where ``split_out`` is open, Dask promises one partition, and decides when the group-by is
optimized: by its own rule one for up to 15 partitions, by ours as many as the result needs. What
reads partitions by number, or as many as were promised, gets the one of the promise, or sees how
many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask.dataframe.dask_expr._collection import DataFrame, FrameBase, Series, new_collection
from dask.dataframe.dask_expr._expr import Blockwise, Expr, Partitions, Sample, Split

from dask_gpuagg.frontend.alignment import below_partition_wise, by_dask, decided, is_result
from dask_gpuagg.frontend.persisted_outputs import PersistedOutputs, as_one
from dask_gpuagg.planning.nodes import unknown
from dask_gpuagg.planning.route import Route, Routing

# nodes made for the number of partitions that their input had when the expression was written
BY_NUMBER = (Partitions, Sample, Split)
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

    It reads partitions by number, or a partition that it was promised goes to all of another input.

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
        counted_on = [node.frame]
    elif isinstance(node, Blockwise):
        reason, inputs = "each partition of another frame gets it whole", node.dependencies()
        # the number of partitions may cost a computation, as after set_index
        opened = [below for below in inputs if _open(below)] if len(inputs) > 1 else []
        if opened and any(below.npartitions > 1 for below in inputs):
            counted_on = [below for below in opened if node._broadcast_dep(below)]
    # what is combined with outputs that are given follows those
    found = [g for below in counted_on if below.npartitions == 1 for g in _open(below)]
    return _with_one(node, found, reason) if found else None


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
    """The group-bys whose outputs are those of an expression, and not decided; also persisted."""
    return list(filter(_is_open, below_partition_wise(expr).values()))


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
    return as_one(made) if _has_one_by_dask(self) else made


def postpersist(_: Callable[..., Any], self: Any) -> Any:
    """How ``dask.persist`` makes a collection of the partitions that were computed."""
    # what all collections inherit may have been wrapped after this wrapper was made (staying.py)
    rebuild, state = FrameBase.__dask_postpersist__(self)
    return with_all_partitions, (rebuild, _has_one_by_dask(self), *state)


def _has_one_by_dask(collection: Any) -> bool:
    """Whether a result has one partition by Dask's rule, as one that is persisted so has."""
    found = _open(collection.expr)
    rules = [by_dask(g).outputs for g in found if not isinstance(g, PersistedOutputs)]
    # the number of partitions may cost a computation, as after set_index
    return bool(found) and set(rules) <= {1} and collection.npartitions == 1


def with_all_partitions(
    futures: Any, rebuild: Any, promised: bool, meta: Any, divisions: Any, name: str
) -> Any:
    """A persisted collection, of which ``dask.persist`` keeps the partitions that were promised.

    Parameters
    ----------
    futures : dict
        The partitions by their keys.
    rebuild : callable
        Dask's own function.
    promised : bool
        Whether the collection has one partition, as a program reads it.
    meta, divisions, name
        What Dask knows of the collection that was persisted.
    """
    if len(futures) != len(divisions) - 1:
        divisions = unknown(len(futures))
    made = rebuild(futures, meta, divisions, name)
    return as_one(made) if promised else made
