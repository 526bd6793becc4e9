"""Threads that query at once: on one stream, on streams of their own, and on two GPUs.

A process decides before it imports cuDF whether threads have streams of their own, so the queries
run in processes of theirs.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from tests.comparison import same
from tests.device.frames import on_device
from tests.running import run_python

THREADS = 6
ROUNDS = 3
ROWS = 400_000
# by few keys, many keys and text: shared memory, partitions, and a query whose keys are recoded
KEYS = ("few", "many", "text")
SPEC = {"v": ["sum", "count", "min", "max", "var"], "w": ["mean", "median", "nunique"]}
DONE = "all answers are right"


def rows(thread: int) -> pd.DataFrame:
    """The rows of a thread, which no other thread has."""
    rng = np.random.default_rng(thread)
    frame = pd.DataFrame(
        {
            "few": rng.integers(0, 10 + thread, ROWS),
            "many": rng.integers(0, 100_000, ROWS) * 1_000_003,
            "v": rng.normal(thread, 1.0, ROWS),
            "w": rng.integers(0, 50, ROWS),
        }
    )
    frame["text"] = "name " + (frame["few"] * 7).astype(str)
    return frame


def queries(thread: int, together: threading.Barrier, gpus: int) -> None:
    """What one thread does: its own frames, queries and answers, as often as ``ROUNDS`` says."""
    import cupy as cp

    cp.cuda.Device(thread % gpus).use()
    frame = rows(thread)
    expected = {key: frame.groupby(key).agg(SPEC) for key in KEYS}
    # also the first query, which compiles, is asked by all threads at once
    together.wait()
    for _ in range(ROUNDS):
        ddf = on_device(frame, 1 + thread % 3)
        # threads ask for the same keys at different times
        for key in KEYS[thread % 3 :] + KEYS[: thread % 3]:
            with dask_gpuagg.enabled():
                made = ddf.groupby(key).agg(SPEC).compute(scheduler="synchronous")
            loosely: Any = {"check_dtype": False, "check_index_type": False, "rtol": 1e-9}
            same(made.to_pandas(), expected[key], **loosely)


def main(gpus: int) -> None:
    """All threads at once; an exception of one is that of the process."""
    import dask

    together = threading.Barrier(THREADS)
    settings = {"gpuagg.fallback": "raise", "gpuagg.compile": "wait"}
    with dask.config.set(settings), ThreadPoolExecutor(THREADS) as pool:
        found: list[Any] = [pool.submit(queries, i, together, gpus) for i in range(THREADS)]
        for one in found:
            one.result()
    # by our kernels and not by cuDF's group-by in their place
    kernels = {run.decision.kernel for run in dask_gpuagg.last_runs()}
    assert kernels, "no kernel ran"
    assert "libcudf" not in kernels, kernels
    print(DONE)


@pytest.mark.parametrize("own_streams", [False, True], ids=["one stream", "streams of their own"])
@pytest.mark.parametrize("gpus", [1, 2])
def test_threads_that_query_at_once(gpus: int, own_streams: bool) -> None:
    if gpus > gpu_count():
        pytest.skip(f"{gpus} GPUs are needed")
    made = run_python(
        "-m",
        "tests.device.test_threads",
        str(gpus),
        env={"CUDF_PER_THREAD_STREAM": str(int(own_streams))},
        path=[entry for entry in sys.path if entry],
        timeout=600,
    )
    assert made.returncode == 0, made.stderr
    assert DONE in made.stdout


def gpu_count() -> int:
    from cuda.bindings import runtime

    return int(runtime.cudaGetDeviceCount()[1])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
