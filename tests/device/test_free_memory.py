"""The kernel where a pool is little larger than the input."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.device.failing import current

ROWS = 40_000_000
# beside the input: a table of the groups and the result, and no copies of the rows
_ROOM = 256 << 20


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
    counts = cp.zeros(groups, "int32")
    draw = cp.ElementwiseKernel(
        "int64 groups, int64 stride, raw int32 counts", "int64 k, int64 v",
        """
        unsigned long long hash = (i ^ i >> 16) * 0xff51afd7ed558ccdull;
        hash = (hash ^ hash >> 33) * 0xc4ceb9fe1a85ec53ull;
        long long group = (hash ^ hash >> 33) % groups;
        k = group * stride; v = i;
        atomicAdd((int*)&counts[group], 1);
        """, "draw_rows",
    )  # fmt: skip
    draw(groups, stride, counts, k, v)
    present, expected = int((counts > 0).sum()), (int(counts[counts > 0].min()), int(counts.max()))
    del counts
    # the kernels run on a stream of their own
    cp.cuda.get_current_stream().synchronize()
    aggregator = Aggregator([keys], False)
    aggregator.sum(values)
    aggregator.size()
    (made,), (sums, sizes), run = aggregator.run()
    assert "device memory has no room for pgb" in run.decision.why
    assert run.decision.kernel in ("sp_ega", "direct")
    assert run.groups == made.size() == present
    total = plc.reduce.reduce(sums, plc.aggregation.sum(), sums.type()).to_py()
    assert total == ROWS * (ROWS - 1) // 2
    least = plc.reduce.reduce(sizes, plc.aggregation.min(), sizes.type()).to_py()
    most = plc.reduce.reduce(sizes, plc.aggregation.max(), sizes.type()).to_py()
    assert (least, most) == expected
