"""One call for some columns: by the kernels, or by libcudf where these cannot run yet or at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pylibcudf as plc
from pylibcudf.utils import _get_stream

from dask_gpuagg.cuda.aggregate import (
    Aggregated,
    NeedsWholeColumns,
    Part,
    Run,
    aggregate,
)
from dask_gpuagg.cuda.ahead import compile_ahead
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.runtime.background import KernelsCompiling, waiting
from dask_gpuagg.cuda.runtime.compiler import KernelsUnavailable
from dask_gpuagg.cuda.runtime.driver import Stopwatch
from dask_gpuagg.engines.device import libcudf
from dask_gpuagg.engines.device.layout import view_of
from dask_gpuagg.engines.device.pieces import Pieces, whole
from dask_gpuagg.settings import task_settings

# Rows from which on kernels take less time to compile than libcudf takes to sort and join.
_SORTED_AT_MOST = 20_000_000


def waits() -> bool:
    """Whether the running task waits for kernels that have to be compiled."""
    return task_settings().compile == "wait"


class How(NamedTuple):
    """What a pass asks for beside its outputs; see ``cuda.aggregate.aggregate``."""

    forced: str = "auto"
    stopwatch: Stopwatch | None = None
    encoded: bool = False
    about: tuple[str, ...] = ()
    least: int = 0
    meanwhile: Callable[[], None] | None = None


class Served(NamedTuple):
    """What libcudf made: key columns, outputs as plain numbers, and the report."""

    keys: list[plc.Column]
    outputs: list[plc.Column]
    run: Run


def grouped(
    query: Query, keys: Sequence[Any], inputs: Sequence[Any], how: How
) -> Aggregated | Served:
    """Group rows and reduce every group.

    Parameters
    ----------
    query : Query
    keys, inputs : sequence of pylibcudf.Column or Pieces
        As the query describes them.
    how : How

    Returns
    -------
    Aggregated or Served

    Notes
    -----
    Under ``gpuagg.compile: background`` a query whose kernels have to be compiled is served by
    libcudf meanwhile. Its rows are too many for that where it would sort them, or where device
    memory does not suffice for it: then the compiler is waited for.
    """
    measured = how.forced != "auto" or how.stopwatch is not None
    compiling, why = False, ""
    try:
        with waiting(measured or waits()):
            return _by_kernels(query, keys, inputs, how)
    except KernelsCompiling as error:
        compiling, why = True, str(error)
    except KernelsUnavailable as error:
        why = libcudf.cause_of(error)
    # outside of the handlers, in which the error keeps the attempt's allocations alive
    if compiling:
        if keys[0].size() <= _SORTED_AT_MOST or libcudf.hashes(query):
            served = _meanwhile(query, keys, inputs, why)
            if served is not None:
                return served
        try:
            return _by_kernels(query, keys, inputs, how)
        except KernelsUnavailable as error:
            why = libcudf.cause_of(error)
    return _served(query, keys, inputs, why)


def _meanwhile(query: Query, keys: Sequence[Any], inputs: Sequence[Any], why: str) -> Served | None:
    """What libcudf makes while kernels compile; None where device memory does not suffice."""
    compile_ahead(query, keys[0].size())
    try:
        served = _served(query, keys, inputs, why)
    except MemoryError:
        for column in (*keys, *inputs):
            if isinstance(column, Pieces):
                column.forget()
        return None
    compile_ahead(query, keys[0].size(), served.run.groups)
    return served


def _served(query: Query, keys: Sequence[Any], inputs: Sequence[Any], why: str) -> Served:
    together = [whole(c) for c in keys], [whole(c) for c in inputs]
    return Served(*libcudf.aggregate(query, *together, why))


def _by_kernels(query: Query, keys: Sequence[Any], inputs: Sequence[Any], how: How) -> Aggregated:
    pieces = [c.columns if isinstance(c, Pieces) else (c,) for c in (*keys, *inputs)]
    parts = []
    for own in zip(*pieces, strict=True):
        views = list(map(view_of, own))
        parts.append(Part(views[: len(keys)], views[len(keys) :], own[0].size()))
    try:
        return aggregate(query, parts, _get_stream(), *how)
    except NeedsWholeColumns:
        if len(parts) == 1:
            raise
    return _by_kernels(query, [whole(c) for c in keys], [whole(c) for c in inputs], how)
