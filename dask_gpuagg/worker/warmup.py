"""Kernels compiled or loaded before the first query needs them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from dask._expr import optimize_until
from dask.dataframe import from_pandas

from dask_gpuagg.cuda.aggregate import prepare
from dask_gpuagg.cuda.query.instantiations import UNITS, first_units
from dask_gpuagg.cuda.runtime import kernels
from dask_gpuagg.dtypes import dtype_class
from dask_gpuagg.frontend import logical
from dask_gpuagg.plan import Plan, Unsupported
from dask_gpuagg.reporting.events import dry_run
from dask_gpuagg.settings import task_settings, using

USUAL = ("sum", "count", "mean", "min", "max")
# kernels for few groups; others are compiled when a query has more
_USUAL_UNITS = first_units(tuple(UNITS), sampled=True)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Example:
    """A group-by whose kernels are made ready."""

    plan: Plan
    # of the result, empty
    meta: Any
    # parts of the translation unit (see ``dask_gpuagg.cuda.query.query``); all if empty
    units: tuple[str, ...] = ()


def usual_examples() -> list[Example]:
    """Each of ``USUAL`` of a float64 column, by an int64 and by a string key, without nulls."""
    frame = pd.DataFrame({"i": np.arange(2), "s": ["a", "b"], "v": np.zeros(2)})
    rows = from_pandas(frame, npartitions=1)
    queries = [getattr(rows.groupby(key).v, name)() for key in ("i", "s") for name in USUAL]
    return [
        replace(example, units=_USUAL_UNITS) for query in queries for example in examples_of(query)
    ]


def examples_of(collection: Any) -> list[Example]:
    """The group-bys of a collection; Unsupported if there are none, or none for the device.

    Aggregations that stock Dask refuses need the plugin on when the collection is made.
    """
    tuned = optimize_until(collection.expr, "tuned-logical")
    nodes = {node._name: node for node in tuned.walk() if logical.is_aggregation(node)}
    if not nodes:
        raise Unsupported("an example query without a group-by")
    examples: list[Example] = []
    for query in map(logical.read, nodes.values()):
        if query.plan not in [example.plan for example in examples]:
            examples.append(Example(query.plan, query.meta))
    return examples


def warm(examples: Sequence[Example], go_on: Callable[[], bool] = lambda: True) -> str:
    """Run group-bys on two rows, and compile or load the kernels that they need for more.

    It stops where ``go_on`` returns false, and returns a text: no error leaves this function, which
    has no query to answer.
    """
    started, done = time.perf_counter(), 0
    try:
        for example in examples:
            if not go_on():
                break
            _rehearse(example)
            done += 1
    except Exception as error:
        message = f"failed after {done} of {len(examples)} group-bys: {error!r}"
        _logger.warning("warming the kernel cache %s", message)
        return message
    return f"ready for {done} group-bys after {time.perf_counter() - started:.1f} s"


def _rehearse(example: Example) -> None:
    from dask_gpuagg.engines.device import engine

    plan = example.plan
    keys = [_two_rows(key.dtype) for key in plan.keys]
    columns = [_two_rows(column.dtype) for column in plan.columns]
    before = set(kernels.known())
    waits = replace(task_settings(), compile="wait")
    with dry_run(), using(waits):
        partial = engine.partial(keys, columns, None, plan)
        if plan.is_one_table:
            engine.direct_of_columns(keys, columns, plan, engine.shape_of(example.meta))
        # partials are small: the kernels that the rehearsal itself used suffice for them
        prepare(set(kernels.known()) - before, *example.units)
        merged = engine.combine([partial, partial], plan)
        engine.finalize([merged], plan, example.meta)


def _two_rows(dtype: Any) -> Any:
    import cudf

    if dtype_class(dtype) in ("string", "category"):
        texts = cudf.Series(["a", "b"])
        return texts if dtype_class(dtype) == "string" else texts.astype("category")
    return cudf.Series([0, 1]).astype(dtype)
