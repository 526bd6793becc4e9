"""Partials divided by the hash of their keys, and merges of tables that share their order."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.device.frames import on_device

pytestmark = pytest.mark.usefixtures("raising")


@pytest.mark.parametrize("groups", [1 << 19, 3 << 18])
def test_a_merge_expects_at_least_the_groups_of_the_largest_partial(groups: int) -> None:
    """Both partitions have the same keys in one order: the sample meets each of them twice."""
    import cudf
    import cupy as cp

    part = cudf.DataFrame({"k": cp.arange(groups) * 7, "v": cp.ones(groups)})
    ddf = on_device(cudf.concat([part, part], ignore_index=True), 2)
    made = ddf.groupby("k").v.sum().compute(scheduler="synchronous")
    assert len(made) == groups
    assert bool((made == 2.0).all())
    run = dask_gpuagg.last_runs()[-1]
    assert (run.step, run.rows, run.restarted) == ("finalize", 2 * groups, False)
    assert run.decision.estimate is not None
    assert run.decision.estimate.groups >= groups


@pytest.mark.parametrize("rows", [0, 1, 5_000])
def test_equal_keys_are_in_one_part(rows: int) -> None:
    import cudf

    from dask_gpuagg.engines.device.tables import hash_partitioned

    rng = np.random.default_rng(rows)
    whole = pd.DataFrame(
        {"a": rng.integers(-3, 40, rows), "b": rng.choice([-0.0, 0.0, 1.5, np.nan], rows)}
    )
    whole["c"] = rng.random(rows)
    table = cudf.from_pandas(whole, nan_as_null=True)
    divided, ends = hash_partitioned(table, 2, 8)
    local = divided.to_pandas()
    pieces = [local.iloc[a:b] for a, b in pairwise([0, *ends])]
    assert len(pieces) == 8
    found = pd.concat(pieces, keys=range(8), names=["part", None]).reset_index(0)
    assert sorted(found["c"]) == sorted(whole["c"])
    of_key = found.assign(b=found["b"].fillna(9) + 0.0).groupby(["a", "b"])["part"].nunique()
    assert (of_key == 1).all()
    if rows > 1:
        assert found["part"].nunique() == 8
