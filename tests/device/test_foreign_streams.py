"""Columns that CuPy writes on streams of its own, and answers that it reads there.

The arrays are written behind a kernel that keeps their stream busy: a query that did not wait would
group what was there before. A stream of CuPy's waits for the default one and is waited for, unless
it is made as one that does not; then the program orders the two by events.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.reporting.runs import forget

pytestmark = pytest.mark.usefixtures("raising")

ROWS = 400_000
# cycles: at 2 GHz a fifth of a second
BUSY = 400_000_000
BUSY_KERNEL = """
extern "C" __global__ void wait(long long cycles) {
    long long end = clock64() + cycles;
    while (clock64() < end) {}
}
"""
SPEC = {"v": ["sum", "min", "var"], "w": ["mean", "median", "nunique"]}
STREAMS = pytest.mark.parametrize("non_blocking", [False, True], ids=["waits", "by events"])


class Stream:
    """A stream of CuPy's that has work to do before what is asked of it next."""

    def __init__(self, non_blocking: bool) -> None:
        import cupy as cp

        self._cp, self._events = cp, non_blocking
        self._busy = cp.RawKernel(BUSY_KERNEL, "wait")
        self.stream = cp.cuda.Stream(non_blocking=non_blocking)
        # compiled and loaded, which waits for all streams
        self._busy((1,), (1,), (0,))
        cp.cuda.Device().synchronize()

    def keep_busy(self) -> None:
        with self.stream:
            self._busy((1,), (1,), (BUSY,))

    def before_the_default(self) -> None:
        if self._events:
            self._cp.cuda.Stream.null.wait_event(self.stream.record())
        assert not self.stream.done, "nothing is left to wait for"

    def after_the_default(self) -> None:
        if self._events:
            self.stream.wait_event(self._cp.cuda.Stream.null.record())


def rows(key: str) -> pd.DataFrame:
    rng = np.random.default_rng(12)
    keys = {"few": rng.integers(0, 40, ROWS), "many": rng.integers(0, 90_000, ROWS) * 1_000_003}
    return pd.DataFrame(
        {"k": keys[key], "v": rng.integers(-50, 50, ROWS), "w": rng.integers(0, 90, ROWS)}
    )


# The tasks make partitions of these: a collection that held them would be named by what is in them.
held: list[dict[str, Any]] = []


def partition(number: int) -> Any:
    import cudf

    return cudf.DataFrame(held[number])


def asked(parts: list[dict[str, Any]]) -> Any:
    import cudf
    import dask.dataframe as dd

    held[:] = parts
    meta = cudf.DataFrame(rows("few").head(0))
    # of earlier tests, some of which libcudf serves
    forget()
    with dask_gpuagg.enabled():
        ddf = dd.from_map(partition, range(len(parts)), meta=meta)
        made = ddf.groupby("k").agg(SPEC).compute()
    assert "libcudf" not in {run.decision.kernel for run in dask_gpuagg.last_runs()}
    return made


def pieces(arrays: dict[str, Any], number: int) -> list[dict[str, Any]]:
    ends = np.linspace(0, ROWS, number + 1).astype(int)
    return [{n: a[i:j] for n, a in arrays.items()} for i, j in itertools.pairwise(ends)]


@pytest.fixture(autouse=True)
def _nothing_held() -> Iterator[None]:
    yield
    held.clear()


@STREAMS
@pytest.mark.parametrize("npartitions", [1, 3])
@pytest.mark.parametrize("key", ["few", "many"])
def test_what_a_stream_writes_is_grouped(key: str, npartitions: int, non_blocking: bool) -> None:
    import cupy as cp

    frame, on = rows(key), Stream(non_blocking)
    values = {name: cp.asarray(column.to_numpy()) for name, column in frame.items()}
    asked(pieces(values, npartitions))
    arrays = {name: cp.zeros_like(array) for name, array in values.items()}
    cp.cuda.Device().synchronize()
    on.keep_busy()
    with on.stream:
        for name, array in arrays.items():
            array[:] = values[name]
    on.before_the_default()
    made = asked(pieces(arrays, npartitions)).to_pandas().sort_index()
    expected = frame.groupby("k").agg(SPEC)
    pd.testing.assert_frame_equal(made, expected, check_dtype=False, check_index_type=False)


@STREAMS
@pytest.mark.parametrize("npartitions", [1, 3])
def test_answers_are_read_by_a_stream(npartitions: int, non_blocking: bool) -> None:
    import cupy as cp

    frame, on = rows("many"), Stream(non_blocking)
    values = {name: cp.asarray(column.to_numpy()) for name, column in frame.items()}
    made = asked(pieces(values, npartitions))
    on.after_the_default()
    with on.stream:
        sums = made["v"]["sum"].values.copy()
        keys = made.index.values.copy()
    on.stream.synchronize()
    found = pd.Series(sums.get(), keys.get()).sort_index()
    expected = frame.groupby("k").v.sum()
    pd.testing.assert_series_equal(found, expected, check_names=False, check_index_type=False)
