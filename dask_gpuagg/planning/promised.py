"""The metadata of a result, as it travels to the scheduler and to tasks."""

from __future__ import annotations

import functools
import pickle
from typing import Any

from dask.base import tokenize

from dask_gpuagg.engines import HOST, engine_name, engine_of
from dask_gpuagg.plan import Plan


class Promised:
    """The metadata of a result; tasks get the part that the engine reads.

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
