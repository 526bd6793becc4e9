"""What ``dask-gpuagg warm`` compiles is what the engine asks for."""

from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dask_gpuagg.cuda import warm
from dask_gpuagg.cuda.runtime import kernels
from dask_gpuagg.worker.plugin import examples_of

pytestmark = pytest.mark.device

SPECS: dict[str, dict[str, list[str]]] = {
    "sum of float64": {"a": ["sum"]},
    "sum of int64": {"b": ["sum"]},
    "mean of float64": {"a": ["mean"]},
    "mean and std of float64": {"a": ["mean", "std"]},
    "five": {"a": ["sum", "count", "min", "max"], "c": ["mean"]},
    warm.WHOLE: {"a": ["median"]},
}
BY = {"int64": ["k"], "int32": ["j"], "string": ["s"], "two int64": ["k", "l"]}


def rows() -> pd.DataFrame:
    numbers = np.arange(100)
    return pd.DataFrame({
        "k": numbers % 7, "l": numbers % 3, "j": (numbers % 5).astype("int32"),
        "s": pd.Series([f"name {i % 9}" for i in numbers], dtype="str"),
        "a": numbers.astype("float64"), "b": numbers, "c": numbers.astype("float32"),
    })  # fmt: skip


def test_every_aggregation_is_tried() -> None:
    assert list(SPECS) == [*warm.AGGREGATIONS, warm.WHOLE]


@pytest.mark.parametrize("key", BY)
def test_queries_are_those_of_the_engine(key: str) -> None:
    import cudf

    from dask_gpuagg.engines.device import engine

    frame = rows()
    on_device: Any = cudf.from_pandas(frame)
    # as readers of files give them, by 32-bit offsets
    on_device["s"] = cudf.Series.from_arrow(pa.array(frame["s"].tolist(), pa.string()))
    for spec in SPECS.values():
        query = dd.from_pandas(frame, npartitions=1).groupby(BY[key]).agg(spec)
        (example,) = examples_of(query)
        plan = example.plan
        keys = [on_device[c] for c in BY[key]]
        columns = [on_device[c.label] for c in plan.columns]
        partial = engine.partial(keys, columns, None, plan)
        engine.direct_of_columns(keys, columns, plan, engine.shape_of(example.meta))
        merged = engine.combine([partial, partial], plan)
        engine.finalize([merged], plan, example.meta)
    assert {query for query, _ in warm.common(key)} <= set(kernels.known_queries())
