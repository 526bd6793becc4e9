"""Results that are persisted with several partitions where Dask has one.

Up to 15 input partitions Dask's own rule gives a group-by one output, so programs read the
persisted result as one: ``median``, ``rolling``, a lookup that ``map_partitions`` gives whole to
each partition of another frame. A persisted result keeps that promise by a node above its
partitions, which the optimizer takes away where several do as well. A result of more inputs has
several partitions by Dask's rule too, and shows them.
"""

from __future__ import annotations

import functools
from typing import Any

from dask._task_spec import Alias
from dask.dataframe.dask_expr._collection import FrameBase, new_collection
from dask.dataframe.dask_expr._expr import Expr

from dask_gpuagg.frontend.patches import acting
from dask_gpuagg.frontend.sorted_outputs import PERSISTED, gathered
from dask_gpuagg.planning.nodes import unknown

# what the names of persisted results begin with that have groups where only our hash puts them
OWN_HASH = "gpuagg_hashed_"
# the same, of those that have groups where an exchange has put them
KEPT = ("gpuagg_kept_", OWN_HASH)


class PersistedOutputs(Expr):
    """The partitions of a persisted result as the one that was promised.

    ``split_out`` is open, as of the group-by, or a decision for one partition. ``placed`` says
    whether groups are in the partitions where a group-by has put them.
    """

    _parameters = ["frame", "split_out", "placed"]
    _defaults = {"split_out": None, "placed": True}

    @functools.cached_property
    def _meta(self) -> Any:
        return self.frame._meta

    def _divisions(self) -> tuple[None, ...]:
        return unknown(1)

    def _tune_down(self) -> Expr:
        """All partitions where nothing above counts on one; only our wrappers can tell that."""
        several: Expr = self.frame
        return several if self.split_out is None and acting() else self._lower()

    def _lower(self) -> Expr:
        whole: Expr = gathered(self.frame)
        return whole

    def _layer(self) -> dict[Any, Any]:
        # dask.optimize takes the graph before anything is lowered
        if not acting():
            raise NotImplementedError(
                "dask.optimize() of a persisted group-by with several partitions needs "
                "dask_gpuagg.enable(); its method .optimize() does not"
            )
        whole: Any = self._lower().lower_completely()
        key = (self._name, 0)
        return {**whole.__dask_graph__(), key: Alias(key, (whole._name, 0))}

    def __dask_graph__(self) -> dict[Any, Any]:
        # older releases of Dask ask for it to see that this is one of its expressions
        return self._layer()


def as_one(collection: FrameBase, placed: bool) -> FrameBase:
    """A persisted collection, with the one partition that it was promised.

    Parameters
    ----------
    collection : FrameBase
        With the partitions that were computed.
    placed : bool
        Whether groups are in the partitions where a group-by has put them.
    """
    expr: Any = collection.expr
    if collection.npartitions == 1:
        return collection
    prefix = expr.operand("name_prefix")
    if placed and not prefix.startswith((*KEPT, PERSISTED)):
        expr = expr.substitute_parameters({"name_prefix": f"{KEPT[0]}{prefix}"})
    made: FrameBase = new_collection(PersistedOutputs(expr, None, placed))
    return made
