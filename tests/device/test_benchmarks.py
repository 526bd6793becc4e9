"""The arm of the kernels' benchmarks computes what a Dask task does."""

import numpy as np
import pandas as pd


def test_the_engine_by_itself() -> None:
    import cudf

    from benchmarks.gpu import engine_arm

    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"k": rng.integers(0, 9, 1_000), "v": rng.random(1_000)})
    spec = {"v": ["sum", "count"]}
    result = engine_arm(cudf.from_pandas(frame), spec, ["k"])().to_pandas().sort_index()
    pd.testing.assert_frame_equal(result, frame.groupby("k").agg(spec))
