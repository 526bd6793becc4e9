"""Chunks of cuDF partitions: the answers of a task for each partition, persisted and from files."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from distributed import Future

import dask_gpuagg
from dask_gpuagg.planning import bucketing
from dask_gpuagg.planning.nodes import GroupByChunkDirect, GroupByChunks
from tests.device.frames import on_device
from tests.planning.test_chunks import QUERIES as OF_PANDAS

PARTITIONS = 12
ROWS = 24_000

ALIKE = ("sum", "size", "several", "order", "sorted", "whole rows", "series as key", "values")
QUERIES = {name: OF_PANDAS[name] for name in (*ALIKE, "several outputs")} | {
    "mixed kinds": lambda d: d.groupby("k").agg({"v": ["median", "sum"], "s": ["nunique"]}),
    "labels": lambda d: d.groupby("k").v.agg("idxmax"),
    "categories": lambda d: d.groupby("c").v.sum(),
    "unobserved": lambda d: d.groupby("c", observed=False).v.sum(),
    "times": lambda d: d.groupby("t").agg({"v": "sum", "i": "count"}),
    "filtered": lambda d: d[d.v > 0.5].assign(z=d.v * 2).groupby("k").z.sum(),
    "matrix": lambda d: d.groupby("k")[["v", "row"]].corr(),
    "many groups": lambda d: d.groupby("row").agg({"v": ["sum", "max"]}),
}


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    times = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 99, ROWS), unit="D")
    return pd.DataFrame(
        {
            "k": rng.integers(0, 400, ROWS),
            "s": rng.choice(["a", "bb", "é", None], ROWS),
            "c": pd.Categorical(rng.choice(["x", "y"], ROWS), categories=["x", "y", "z"]),
            "v": rng.random(ROWS),
            "i": pd.Series(rng.integers(0, 9, ROWS)).astype("Int32").mask(rng.random(ROWS) < 0.3),
            "t": times,
            "row": np.arange(ROWS),
        }
    )


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    from dask_cuda import LocalCUDACluster
    from distributed import Client

    with (
        LocalCUDACluster(n_workers=1, rmm_pool_size="4GB", dashboard_address=None) as cluster,
        Client(cluster) as made,
        dask.config.set({"gpuagg.fallback": "raise"}),
        dask_gpuagg.enabled(),
    ):
        # tells workers how many bytes partitions have
        made.run(importlib.import_module, "dask_cudf")
        yield made


@pytest.fixture(scope="module")
def inputs(client: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    import dask_cudf
    from distributed import wait

    folder: Path = tmp_path_factory.mktemp("files")
    plain = frame()
    size = ROWS // PARTITIONS
    for i in range(PARTITIONS):
        plain.iloc[i * size : (i + 1) * size].to_parquet(folder / f"{i:02}.parquet")
    held = on_device(plain, PARTITIONS).persist()
    # a partition whose integers are floats, one that is empty, one whose nulls are its own
    odd = held.map_partitions(_odd, meta=held._meta).persist()
    wait([held, odd])
    read = {
        "files": dask_cudf.read_parquet(folder, blocksize=None),
        # of several files Dask makes one partition
        "joined files": dask_cudf.read_parquet(folder),
    }
    return {"persisted": held, "unlike its metadata": odd, **read}


def _odd(part: Any) -> Any:
    first = int(part["row"].iloc[0]) if len(part) else 0
    number = first * PARTITIONS // ROWS
    if number == 2:
        return part.assign(row=part["row"].astype("float64"))
    if number == 4:
        return part.iloc[:0]
    return part.assign(v=part["v"].mask(part["v"] < 0.2)) if number == 6 else part


def _sorted(result: Any) -> pd.DataFrame:
    plain = result.to_pandas() if hasattr(result, "to_pandas") else result
    table = plain.to_frame() if plain.ndim == 1 else plain
    table = table.set_axis([f"o{i}" for i in range(table.shape[1])], axis=1)
    table.index = table.index.set_names([f"k{i}" for i in range(table.index.nlevels)])
    table = table.reset_index()
    return table.sort_values(list(table.columns), ignore_index=True)


@pytest.mark.parametrize("kind", ["persisted", "unlike its metadata", "files", "joined files"])
@pytest.mark.parametrize("name", QUERIES)
def test_answers_are_those_of_a_task_for_each_partition(
    inputs: dict[str, Any], kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucketing, "BYTES_OF_A_READ", 1)
    ddf = inputs[kind]
    if kind.endswith("files") and name in ("categories", "unobserved", "values"):
        pytest.skip("files hold no categories for cuDF")
    query = QUERIES[name](ddf)
    chunked = (GroupByChunkDirect, GroupByChunks)
    assert list(query.optimize(fuse=False).expr.find_operations(chunked))
    got = _sorted(query.compute())
    with dask.config.set({"gpuagg.chunk": 1}):
        expected = _sorted(QUERIES[name](ddf).compute())
    pd.testing.assert_frame_equal(got, expected, rtol=1e-10)


@pytest.mark.parametrize("limit", ["100kB", "300kB", 5])
def test_several_chunks_on_one_gpu(inputs: dict[str, Any], limit: Any) -> None:
    with dask.config.set({"gpuagg.chunk": limit}):
        query = inputs["persisted"].groupby(["k", "s"]).agg({"v": ["sum", "var", "first"]})
        (node,) = query.optimize(fuse=False).expr.find_operations(GroupByChunks)
        assert 1 < len(node.chunks) < PARTITIONS
        got = _sorted(query.compute())
    expected = frame().groupby(["k", "s"]).agg({"v": ["sum", "var", "first"]})
    pd.testing.assert_frame_equal(got, _sorted(expected), rtol=1e-10, check_dtype=False)


def test_a_query_runs_in_one_task(inputs: dict[str, Any]) -> None:
    for kind in ("persisted", "files"):
        graph = dict(inputs[kind].groupby("k").v.sum().optimize(fuse=False).__dask_graph__())
        assert sum(not isinstance(task, Future) for task in graph.values()) == 1
