"""Wrappers that stay: results whose partitions only we know outlive the plugin.

Dask's nodes that combine frames ask for such results from the first one on, as long as the process
lives, also while the plugin is off. Persisted results are recognized by their names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from dask.dataframe.dask_expr._collection import FrameBase
from dask.dataframe.dask_expr._concat import Concat
from dask.dataframe.dask_expr._expr import (
    AlignGetitem,
    MapOverlapAlign,
    MapPartitions,
    MaybeAlignPartitions,
)

from dask_gpuagg.frontend import patches
from dask_gpuagg.frontend.by_labels import by_labels, has_own_hash
from dask_gpuagg.frontend.persisted_outputs import OWN_HASH
from dask_gpuagg.frontend.sorted_outputs import PERSISTED, combined, has_ranges

# whether Dask's functions are wrapped: not empty then
_wrapped: list[bool] = []


def stay_right() -> None:
    """Wrap how Dask's nodes that combine frames are lowered, and how collections are persisted."""
    with patches.lock:
        if _wrapped:
            return
        owners: set[Any] = {Concat, MapOverlapAlign, AlignGetitem, MapPartitions}
        for owner in owners | _kinds(MaybeAlignPartitions):
            # what is inherited from another of them is wrapped there
            if owner in owners or "_lower" in vars(owner):
                owner._lower = _asks_first(owner._lower)
        frame: Any = FrameBase
        frame.__dask_postpersist__ = _named(FrameBase.__dask_postpersist__)
        _wrapped.append(True)


def _kinds(owner: type) -> set[Any]:
    return {owner}.union(*map(_kinds, owner.__subclasses__()))


def _asks_first(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def lower(self: Any) -> Any:
        made = combined(self)
        made = by_labels(self) if made is None else made
        return original(self) if made is None else made

    return lower


def _named(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def postpersist(self: FrameBase) -> Any:
        rebuild, (*state, name) = original(self)
        if has_ranges(self.expr):
            name = f"{PERSISTED}{name}"
        elif has_own_hash(self.expr):
            name = f"{OWN_HASH}{name}"
        return rebuild, (*state, name)

    return postpersist
