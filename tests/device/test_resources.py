"""Queries by every kind of RMM's resources, and with what spills: the same answers, or an error."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import dask
import pandas as pd
import pytest

import dask_gpuagg
from tests.comparison import same
from tests.device.failing import current
from tests.device.frames import on_device
from tests.device.test_allocations import QUERIES, graph_of, rows_of, sorted_rows
from tests.running import run_python

GIB = 1 << 30
KINDS: dict[str, Callable[[Any], Any]] = {
    "driver": lambda mr: mr.CudaMemoryResource(),
    "pool": lambda mr: mr.PoolMemoryResource(mr.CudaMemoryResource(), GIB // 4),
    "arena": lambda mr: mr.ArenaMemoryResource(mr.CudaMemoryResource(), GIB),
    "async": lambda mr: mr.CudaAsyncMemoryResource(),
    "managed": lambda mr: mr.ManagedMemoryResource(),
    "pool of managed": lambda mr: mr.PoolMemoryResource(mr.ManagedMemoryResource(), GIB // 4),
    "limited": lambda mr: mr.LimitingResourceAdaptor(mr.CudaMemoryResource(), GIB),
    "counted": lambda mr: mr.StatisticsResourceAdaptor(mr.CudaMemoryResource()),
    "tracked": lambda mr: mr.TrackingResourceAdaptor(mr.CudaMemoryResource()),
}
DONE = "all answers are right"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.usefixtures("raising")
def test_answers_are_the_same_by_each_kind(name: str, kind: str) -> None:
    import rmm

    graph, keys = graph_of(name, 200_000)
    expected = sorted_rows(dask.get(graph, keys))
    with current(KINDS[kind](rmm.mr)):
        got = sorted_rows(dask.get(graph, keys))
        gc.collect()
    pd.testing.assert_frame_equal(got, expected, rtol=1e-9)


def by_pandas(name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """What a query has to give; pandas knows no ``split_out``."""
    result: pd.DataFrame = QUERIES["many groups" if name == "exchange" else name](rows)
    return result


def all_right(ddf: Any, rows: pd.DataFrame, get: Callable[[Any], Any]) -> None:
    """Every query, twice; ``get`` computes it as pandas."""
    with dask.config.set({"gpuagg.fallback": "raise"}), dask_gpuagg.enabled():
        for name in [*QUERIES, *QUERIES]:
            made, expected = get(QUERIES[name](ddf)), by_pandas(name, rows)
            same(made, expected, check_dtype=False, check_index_type=False, rtol=1e-9)


def with_cudfs_spilling() -> None:
    """In a process of its own: partitions of more bytes than cuDF leaves on the device."""
    import cudf  # noqa: F401  (spill_manager() looks whether it is loaded)

    from dask_gpuagg.engines.device.memory import spill_manager
    from dask_gpuagg.worker.plugin import spilled_by_cudf

    assert spill_manager() is not None
    rows = rows_of(1_000_000)
    with dask.config.set(scheduler="synchronous"):
        ddf = on_device(rows, 8).persist()
        # of a frame that nobody has asked for its addresses
        assert spilled_by_cudf() > 0
        all_right(ddf, rows, lambda query: query.compute().to_pandas())
    print(DONE)


def test_with_cudfs_spilling() -> None:
    """It moves buffers to the host whose addresses nobody has asked for."""
    made = run_python(
        "-c",
        "from tests.device.test_resources import with_cudfs_spilling as run; run()",
        env={"CUDF_SPILL": "1", "CUDF_SPILL_DEVICE_LIMIT": str(16 << 20)},
        path=[entry for entry in sys.path if entry],
        timeout=300,
    )
    assert made.returncode == 0, made.stderr
    assert DONE in made.stdout


def test_with_dask_cudas_spilling() -> None:
    """Persisted partitions of more bytes than a worker keeps on its device."""
    from dask_cuda import LocalCUDACluster
    from distributed import Client, wait

    rows = rows_of(1_000_000)
    with (
        LocalCUDACluster(
            n_workers=1,
            device_memory_limit="16MB",
            dashboard_address=None,
            CUDA_VISIBLE_DEVICES=[0],
        ) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(dask_gpuagg.GpuWorker(examples=[]))
        ddf = on_device(rows, 8).persist()
        wait(ddf)

        def get(query: Any) -> Any:
            # On the worker: of a result that is larger than its limit, which is read from the host
            # twice, cuDF loses the names of a MultiIndex.
            return client.compute(query.to_backend("pandas")).result(timeout=60)

        all_right(ddf, rows, get)
        (spilled,) = client.run(spilled_bytes).values()
        assert spilled > 0


def spilled_bytes(dask_worker: Any) -> int:
    """What a worker reports with its heartbeats."""
    return int(dask_worker.metrics["dask_gpuagg"](dask_worker)["spilled_bytes"])
