"""The kernel where a pool is little larger than the input."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.device.failing import current

ROWS = 40_000_000
# beside the input: a table of the groups, and the rows that it had no first place for
_ROOM = 480 << 20


@pytest.fixture
def pool() -> Iterator[Any]:
    """A pool that does not grow."""
    import rmm

    size = (ROWS * 16 + _ROOM) // 256 * 256
    with current(rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), size, size)):
        yield


@pytest.mark.parametrize("stride", [1, 2**40 + 7])
def test_rows_whose_copies_have_no_room(stride: int, pool: Any) -> None:
    """They go to one table, once the allocator has refused the copies."""
    import cupy as cp
    import pylibcudf as plc
    import rmm

    from dask_gpuagg.engines.device.aggregator import Aggregator

    groups = 3_000_000

    def column(dtype: plc.TypeId) -> tuple[Any, Any]:
        data = rmm.DeviceBuffer(size=8 * ROWS)
        array = cp.ndarray((ROWS,), "int64", cp.cuda.MemoryPointer(
            cp.cuda.UnownedMemory(data.ptr, 8 * ROWS, data), 0))  # fmt: skip
        return plc.Column(plc.DataType(dtype), ROWS, data, None, 0, 0, []), array

    keys, k = column(plc.TypeId.INT64)
    values, v = column(plc.TypeId.INT64)
    # all groups, spread over the rows by a step that is prime to their number
    step = cp.ElementwiseKernel(
        "int64 groups, int64 stride", "int64 k, int64 v",
        "k = ((unsigned long long)i * 2654435761ull) % groups * stride; v = i", "fill_rows",
    )  # fmt: skip
    step(groups, stride, k, v)
    # the kernels run on a stream of their own
    cp.cuda.get_current_stream().synchronize()
    aggregator = Aggregator([keys], False)
    aggregator.sum(values)
    aggregator.size()
    (made,), (sums, sizes), run = aggregator.run()
    assert "device memory has no room for pgb" in run.decision.why
    assert run.decision.kernel in ("sp_ega", "direct")
    assert run.groups == made.size() == groups
    total = plc.reduce.reduce(sums, plc.aggregation.sum(), sums.type()).to_py()
    assert total == ROWS * (ROWS - 1) // 2
    least = plc.reduce.reduce(sizes, plc.aggregation.min(), sizes.type()).to_py()
    most = plc.reduce.reduce(sizes, plc.aggregation.max(), sizes.type()).to_py()
    assert (least, most) == (ROWS // groups, -(-ROWS // groups))
