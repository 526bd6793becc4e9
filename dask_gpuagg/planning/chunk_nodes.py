"""The physical nodes that read chunks: each of their tasks takes several partitions.

``GroupByChunks`` makes a partial of every chunk, for the nodes that combine partials.
``GroupByChunkDirect`` makes the outputs of the only chunk, and ``GroupByChunkExchange`` splits the
partials in the tasks that make them.
"""

from __future__ import annotations

import functools
from typing import Any

import pandas as pd
from dask._task_spec import Task, TaskRef

from dask_gpuagg.planning.chunks import Chunks, Sent
from dask_gpuagg.planning.nodes import Quiet, Reduction, merged, taken_apart, unknown
from dask_gpuagg.tasks.tasks import (
    gpuagg_chunk,
    gpuagg_chunk_direct,
    gpuagg_chunk_outputs,
    gpuagg_chunk_split,
)


def chunk_task(key: Any, run: Any, chunks: Chunks | Sent, index: int, **given: Any) -> Task:
    """The task of one chunk; without inputs from other tasks it is marked as a data producer."""
    parts, outer = chunks.parts(index)
    refs, readers = map(TaskRef, outer), chunks.readers
    return Task(key, run, parts, outer, *refs, readers=readers, _data_producer=not outer, **given)


class GroupByChunks(Quiet):
    """Chunks reduced to partials."""

    _parameters = ["chunks", "plan"]

    @functools.cached_property
    def _meta(self) -> Any:
        return pd.DataFrame()

    @functools.cached_property
    def _name(self) -> str:
        return f"gpuagg_chunk-{self.deterministic_token}"

    def _divisions(self) -> tuple[None, ...]:
        return unknown(len(self.chunks))

    def _layer(self) -> dict[Any, Any]:
        layer: dict[Any, Any] = self.chunks.futures()
        for i in range(len(self.chunks)):
            key = (self._name, i)
            layer[key] = chunk_task(key, gpuagg_chunk, self.chunks, i, plan=self.plan)
        return layer


class OfChunks(Reduction):
    """Shared by the nodes that make the user's result of chunks."""

    _parameters = ["chunks", "plan", "promised", "outputs", "decision"]

    @property
    def _meta(self) -> Any:
        return self.promised.meta

    def _divisions(self) -> tuple[None, ...]:
        return unknown(self.outputs)


class GroupByChunkDirect(OfChunks):
    """The only chunk made the outputs."""

    _prefix = "gpuagg_direct"

    def _layer(self) -> dict[Any, Any]:
        key, given = (self._name, 0), {"plan": self.plan, "meta": self.promised.sent}
        layer: dict[Any, Any] = self.chunks.futures()
        if self.outputs == 1:
            layer[key] = chunk_task(key, gpuagg_chunk_direct, self.chunks, 0, **given)
            return layer
        whole = (f"gpuagg_chunk-{self.deterministic_token}", 0)
        given["outputs"] = self.outputs
        layer[whole] = chunk_task(whole, gpuagg_chunk_outputs, self.chunks, 0, **given)
        return layer | taken_apart(whole, self._name, self.outputs)


class GroupByChunkExchange(OfChunks):
    """Chunks reduced and split by key hash in one task; every output merges its pieces."""

    _prefix = "gpuagg_exchange"

    def _layer(self) -> dict[Any, Any]:
        layer: dict[Any, Any] = self.chunks.futures()
        inputs, outputs, token = len(self.chunks), self.outputs, self.deterministic_token
        given = {"plan": self.plan, "outputs": outputs}
        for i in range(inputs):
            key = (f"gpuagg_split-{token}", i)
            layer[key] = chunk_task(key, gpuagg_chunk_split, self.chunks, i, **given)
        splits = [(f"gpuagg_split-{token}", i) for i in range(inputs)]
        return layer | merged(self._name, splits, self.plan, self.promised.sent, outputs)
