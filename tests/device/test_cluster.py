"""dask-cudf on a GPU cluster: partials cross processes, results equal the one-process run."""

import importlib.util
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.device.frames import on_device
from tests.device.test_threads import gpu_count

PROTOCOLS = ("tcp", "ucx")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cluster_equals_one_process(protocol: str, workers: int) -> None:
    import dask
    from dask_cuda import LocalCUDACluster
    from distributed import Client

    if workers > gpu_count():
        pytest.skip(f"{workers} GPUs are needed")
    if protocol == "ucx" and importlib.util.find_spec("distributed_ucxx") is None:
        pytest.skip("distributed-ucxx is not installed")
    rng = np.random.default_rng(1)
    rows = 200_000
    pdf = pd.DataFrame(
        {
            "k": rng.integers(0, 5_000, rows),
            "s": rng.choice(["a", "bc", "def"], rows),
            "f": rng.normal(size=rows),
            "v": pd.Series(rng.integers(0, 9, rows)).astype("Int32").mask(rng.random(rows) < 0.3),
        }
    )
    spec: dict[str, Any] = {"f": ["sum", "var", "first", "last"], "v": ["count", "min", "mean"]}
    with dask.config.set({"gpuagg.fallback": "raise"}), dask_gpuagg.enabled():
        ddf = on_device(pdf, 8)
        for split_out in (1, 3):
            query = ddf.groupby(["k", "s"]).agg(spec, split_out=split_out)
            alone = query.compute(scheduler="synchronous").to_pandas().sort_index()
            with (
                LocalCUDACluster(
                    n_workers=workers, protocol=protocol, rmm_pool_size="2GB",
                    dashboard_address=None, CUDA_VISIBLE_DEVICES=list(range(workers)),
                ) as cluster,
                Client(cluster),
            ):  # fmt: skip
                together = query.compute().to_pandas().sort_index()
            pd.testing.assert_frame_equal(alone, together, rtol=1e-10)
