"""Group-bys of each kind, and what is done with their results: partitions are stock Dask's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

import dask_gpuagg

Query = Callable[[Any], Any]

_rng = np.random.default_rng(4)
ROWS = pd.DataFrame(
    {
        "k": _rng.permutation(960) % 120,
        "j": _rng.integers(0, 4, 960),
        "x": _rng.normal(size=960),
        "y": _rng.integers(0, 100, 960),
    }
)
# of a collection of such rows; each is answered by stock Dask too
QUERIES: dict[str, Query] = {
    **{
        f"{name}{'' if given is None else f', split_out={given}'}": (
            lambda d, name=name, given=given: getattr(d.groupby("k").x, name)(
                **({} if given is None else {"split_out": given})
            )
        )
        for name in ("sum", "mean", "var", "first", "nunique", "median")
        for given in (None, 1, 3, True)
    },
    "agg": lambda d: d.groupby("k").agg({"x": ["sum", "mean"], "y": "max"}),
    "agg, split_out=5": lambda d: d.groupby("k").agg({"x": ["sum", "std"]}, split_out=5),
    "agg of a median": lambda d: d.groupby("k").agg({"x": "median"}),
    "sorted medians": lambda d: d.groupby("k", sort=True).x.median(),
    "named": lambda d: d.groupby("k").agg(total=("x", "sum"), most=("y", "max")),
    "two keys": lambda d: d.groupby(["k", "j"]).x.sum(),
    "an expression": lambda d: d.groupby(d.k % 5).x.sum(),
    "sorted": lambda d: d.groupby("k", sort=True).x.sum(),
    "sorted, split_out=3": lambda d: d.groupby("k", sort=True).x.sum(split_out=3),
    "null keys": lambda d: d.groupby("k", dropna=False).x.count(),
    "size": lambda d: d.groupby("k").size(),
    "of a filter": lambda d: d[d.x > 0].groupby("k").x.sum(),
    "of a result": lambda d: d.groupby(["k", "j"]).x.sum().reset_index().groupby("k").x.sum(),
    "of shuffled rows": lambda d: d.shuffle("k", npartitions=4).groupby("k").x.sum(split_out=2),
}
# of which dask-cudf refuses the sort or the dtype
ON_THE_HOST: dict[str, Query] = {
    "value_counts": lambda d: d.groupby("k").j.value_counts(),
    "idxmin": lambda d: d.groupby("k").x.idxmin(),
    "list": lambda d: d.groupby("k").x.agg(list),
    "unique": lambda d: d.groupby("k").j.unique(),
}


def partitions(query: Query, collection: Any) -> tuple[Any, ...]:
    """What Dask tells of the partitions of a result, and how many there are in the end."""
    result = query(collection)
    tuned = result.optimize()
    # of the logical node, where others ask for them
    keys = result.expr.unique_partition_mapping_columns_from_shuffle
    return (
        (result.npartitions, result.divisions, keys),
        (tuned.npartitions, tuned.divisions),
        len(result.to_delayed()),
        len(tuned.map_partitions(len).compute()),
    )


def both(query: Query, collection: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The partitions with the plugin, and by stock Dask."""
    dask_gpuagg.disable()
    theirs = partitions(query, collection)
    with dask_gpuagg.enabled():
        return partitions(query, collection), theirs
