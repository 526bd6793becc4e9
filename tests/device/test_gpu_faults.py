"""Workers of two GPUs that are killed in each step of a query, over UCX.

A test by hand, of about a minute: ``pytest tests/device/test_gpu_faults.py -s`` prints each kill.
"""

import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.cluster.test_killed import kill_once
from tests.device.test_threads import gpu_count

KILLS = int(os.environ.get("GPUAGG_KILLS", "5"))
ROWS, PARTITIONS, GROUPS = 2_000_000, 8, 50_000
# seconds that a query, or the start of a worker, may take
PATIENCE = 60

# the step, the function of the device engine that makes it, and the options of the query
STEPS: dict[str, tuple[str, dict[str, Any]]] = {
    "partial": ("partial", {}),
    "merge": ("finalize", {}),
    "exchange": ("split", {"split_out": 2}),
    "merge of pieces": ("finalize", {"split_out": 2}),
}


def rows_of(i: int) -> pd.DataFrame:
    rng = np.random.default_rng(i)
    size = ROWS // PARTITIONS
    return pd.DataFrame({"k": rng.integers(0, GROUPS, size), "v": rng.integers(0, 999, size)})


def on_gpu(i: int, unlike: float) -> Any:
    """A partition; ``unlike`` gives each collection names that no other has."""
    import cudf

    return cudf.DataFrame(rows_of(i))


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """One process for each of two GPUs, started again when it dies."""
    if gpu_count() < 2:
        pytest.skip("2 GPUs are needed")
    if importlib.util.find_spec("distributed_ucxx") is None:
        pytest.skip("distributed-ucxx is not installed")
    import dask
    from dask_cuda import LocalCUDACluster
    from distributed import Client

    with (
        # a nanny is closed whose worker is being started again when this has passed
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        LocalCUDACluster(
            n_workers=2,
            protocol="ucx",
            rmm_pool_size="2GB",
            rmm_track_allocations=True,
            dashboard_address=None,
            CUDA_VISIBLE_DEVICES=[0, 1],
        ) as cluster,
        Client(cluster, timeout=PATIENCE) as client,
        dask.config.set({"gpuagg.fallback": "raise"}),
        dask_gpuagg.enabled(),
    ):
        yield client


@pytest.fixture(scope="module")
def expected() -> pd.Series:
    return pd.concat(map(rows_of, range(PARTITIONS))).groupby("k").v.sum()


def held(client: Any) -> Any:
    """A persisted collection on both GPUs, which can be computed again where it is lost."""
    import dask.dataframe as dd
    from distributed import futures_of, wait

    client.wait_for_workers(2, timeout=PATIENCE)
    meta = on_gpu(0, 0.0).head(0)
    ddf = dd.from_map(on_gpu, range(PARTITIONS), unlike=time.time(), meta=meta).persist()
    wait(ddf, timeout=PATIENCE)
    assert (
        len({place for places in client.who_has(futures_of(ddf)).values() for place in places}) == 2
    )
    return ddf


def right(client: Any, query: Any, expected: pd.Series) -> None:
    found = client.compute(query).result(timeout=PATIENCE).to_pandas().sort_index()
    pd.testing.assert_series_equal(found, expected)


@pytest.mark.parametrize("step", STEPS)
def test_a_worker_is_killed_in_a_step(
    client: Any, expected: pd.Series, tmp_path: Path, step: str
) -> None:
    function, options = STEPS[step]
    for attempt in range(KILLS):
        marker = tmp_path / f"died-{attempt}"
        query = held(client).groupby("k").v.sum(**options).optimize(fuse=False)
        client.run(kill_once, "device", function, str(marker))
        started = time.monotonic()
        right(client, query, expected)
        assert marker.exists()
        print(f"{step}, kill {attempt + 1}: right after {time.monotonic() - started:.1f} s")
