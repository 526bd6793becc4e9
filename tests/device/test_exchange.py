"""Partials divided by the hash of their keys, and merges of tables that share their order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.device.frames import arrow, frame, on_device

pytestmark = pytest.mark.usefixtures("raising")


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("buckets", [1, 2, 8, 12])
@pytest.mark.parametrize("key", ["k", "g", "e", "b", "f", "t", "td", "d64", "s", "c"])
def test_each_piece_has_the_rows_of_its_output_in_their_order(
    key: str, buckets: int, second: bool
) -> None:
    import cudf

    from dask_gpuagg.engines.device.tables import bucket_of, split

    rows = frame(arrow()).iloc[3:2_000].reset_index(drop=True)
    table = cudf.DataFrame({"k0": rows[key], "s0.sum": rows["i"], "v1": rows["s"]})
    plan: Any = SimpleNamespace(keys=(None,))
    pieces = split({"groups": table}, plan, buckets, second)
    of_row = bucket_of([table["k0"]], buckets, second)
    assert of_row.dtype == np.int64
    assert len(pieces) == buckets
    for j, piece in enumerate(pieces):
        expected = table[of_row == j].reset_index(drop=True)
        assert [c.dtype for _, c in piece["groups"].items()] == [c.dtype for _, c in table.items()]
        for name in table.columns:
            found, wanted = piece["groups"][name].to_arrow(), expected[name].to_arrow()
            assert repr(found.to_pylist()) == repr(wanted.to_pylist())


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("nulls", [False, True])
def test_integers_have_the_hash_of_their_floats(dtype: str, nulls: bool) -> None:
    import cudf

    from dask_gpuagg.engines.device.tables import bucket_of

    values = cudf.Series([0, 1, 2, 100, 7, 1, 0, 3]).astype(dtype)
    floats = values.astype("float64")
    if nulls:
        kept = cudf.Series([True, True, False, True, True, False, True, True])
        values, floats = values.where(kept, None), floats.where(kept, float("nan"))
    pd.testing.assert_series_equal(
        bucket_of([values], 5).to_pandas(), bucket_of([floats], 5).to_pandas()
    )


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


def test_tables_of_partials_stack_as_cudf_stacks_them() -> None:
    import cudf

    from dask_gpuagg.engines.device.tables import stack

    names = ["k", "g", "i", "b", "f", "t", "td", "d64", "s"]
    rows = frame(arrow())[names].reset_index(drop=True)
    for labels in (names, ["k", "g", "i", "b", "f", "t", "td", "s"]):
        parts = [rows[labels].iloc[a:b] for a, b in ((0, 5), (5, 5), (33, 700), (700, 701))]
        ours, theirs = stack(parts), cudf.concat(parts, ignore_index=True)
        assert list(ours.columns) == list(theirs.columns)
        for name in labels:
            assert ours[name].dtype == theirs[name].dtype
            found, wanted = ours[name].to_arrow(), theirs[name].to_arrow()
            assert repr(found.to_pylist()) == repr(wanted.to_pylist())


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
    pieces = [each.to_pandas() for each in hash_partitioned(table, 2, 8)]
    assert len(pieces) == 8
    found = pd.concat(pieces, keys=range(8), names=["part", None]).reset_index(0)
    assert sorted(found["c"]) == sorted(whole["c"])
    of_key = found.assign(b=found["b"].fillna(9) + 0.0).groupby(["a", "b"])["part"].nunique()
    assert (of_key == 1).all()
    if rows > 1:
        assert found["part"].nunique() == 8
