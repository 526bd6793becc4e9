"""Many groups on little memory, with nothing tuned."""

import os

import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_gpuagg
from dask_gpuagg.planning.chunks import Route
from tests.workers import cluster_of

ROWS, GROUPS, PARTITIONS = 10_000_000, 5_000_000, 64
# two orders of all keys, each a permutation because the factor is coprime to GROUPS
_STRIDES = np.array([1_000_003, 2_345_671])


def part(i: int) -> pd.DataFrame:
    """Rows of one partition; over all of them every key appears twice, with the values 0 and 1."""
    rows = np.arange(i * ROWS // PARTITIONS, (i + 1) * ROWS // PARTITIONS)
    second = rows // GROUPS
    return pd.DataFrame({"k": rows * _STRIDES[second] % GROUPS, "v": second})


def summary(result: pd.DataFrame) -> pd.DataFrame:
    """Values that identify a right output: its groups, and that both of their rows arrived."""
    good = (result.n == 2) & (result.total == 1)
    return pd.DataFrame(
        {"groups": [len(result)], "good": [good.sum()], "keys": [result.index.to_numpy().sum()]}
    )


def test_five_million_groups_on_two_workers_of_2_gib():
    ddf = dd.from_map(part, range(PARTITIONS))
    with cluster_of(2, memory_limit="2GiB") as client, dask_gpuagg.enabled():
        pids = set(client.run(os.getpid).values())
        query = ddf.groupby("k").agg(n=("v", "count"), total=("v", "sum"))
        (explained,) = dask_gpuagg.explain(query).groupbys
        assert explained.decision.route is Route.EXCHANGE
        assert explained.decision.outputs > 1
        parts = query.map_partitions(summary).compute(timeout=300)
        # a worker that ran out of memory would have been replaced by its nanny
        assert set(client.run(os.getpid).values()) == pids
    assert len(parts) == explained.decision.outputs
    assert parts.groups.sum() == parts.good.sum() == GROUPS
    assert parts["keys"].sum() == GROUPS * (GROUPS - 1) // 2
