"""What is done to a result in the number of partitions that it was promised.

Where ``split_out`` is open, Dask promises one partition, and decides when the group-by is
optimized: by its own rule one for up to 15 partitions, by ours as many as the result needs. What
reads partitions by number, or as many as were promised, gets the one of the promise, or sees how
many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dask.dataframe.dask_expr._collection import DataFrame, FrameBase, Series
from dask.dataframe.dask_expr._expr import Expr, Partitions, Sample, Split

from dask_gpuagg.frontend.alignment import below_partition_wise
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
    """Give the group-bys of a node that reads partitions by number the one output of the promise.

    Parameters
    ----------
    node : Expr
        One of ``BY_NUMBER``.

    Returns
    -------
    Expr or None
        The node with ``split_out`` filled in below it; ``None`` if there is nothing to do.
    """
    if node.frame.npartitions > 1:
        return None  # what is combined with outputs that are given follows those
    one = Routing(Route.TREE, 1, "its partitions are read by number")
    found = _open(node.frame)
    for group_by in found:
        node = node.substitute(group_by, group_by.substitute_parameters({"split_out": one}))
    return node if found else None


def _open(expr: Any) -> list[Any]:
    """The group-bys whose outputs are those of an expression, and not decided."""
    below = below_partition_wise(expr).values()
    return [g for g in below if "split_out" in g._parameters and g.operand("split_out") is None]


def on_decided(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """A method on a collection that has the partitions of the optimized one."""
    return original(self.optimize() if _open(self.expr) else self, *args, **kwargs)


def with_all_partitions(
    original: Callable[..., Any], futures: Any, meta: Any, divisions: Any, name: str
) -> Any:
    """A persisted collection, of which ``dask.persist`` keeps the partitions that were promised."""
    if len(futures) != len(divisions) - 1:
        divisions = unknown(len(futures))
    return original(futures, meta, divisions, name)
