"""The decision where a pool is little larger than the input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dask_gpuagg.cuda import aggregate as attempts

ROWS = 40_000_000
# beside the input: a table of the groups, and the rows that it had no first place for
_ROOM = 480 << 20


@pytest.fixture
def pool() -> Iterator[Any]:
    """A pool that does not grow."""
    import rmm

    before = rmm.mr.get_current_device_resource()
    size = (ROWS * 16 + _ROOM) // 256 * 256
    rmm.mr.set_current_device_resource(
        rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), size, size)
    )
    yield
    rmm.mr.set_current_device_resource(before)


@pytest.mark.parametrize("stride", [1, 2**40 + 7])
def test_rows_whose_copies_have_no_room(
    stride: int, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided before anything is tried: no attempt is refused its memory."""
    import cupy as cp
    import pylibcudf as plc
    import rmm

    from dask_gpuagg.engines.device.aggregator import Aggregator

    def refused(*_: Any) -> None:
        raise AssertionError("an attempt was made for which memory did not suffice")

    monkeypatch.setattr(attempts, "with_less_memory", refused)
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


@pytest.mark.parametrize("kind", ["plain", "pool", "limited"])
def test_what_there_is_room_for(kind: str) -> None:
    """Nothing is kept of what was asked for."""
    import rmm

    from dask_gpuagg.cuda.call import Launcher
    from dask_gpuagg.cuda.runtime.driver import current_device, free_bytes

    device = current_device()
    before = rmm.mr.get_current_device_resource()
    made: Any = rmm.mr.CudaMemoryResource()
    if kind == "pool":
        made = rmm.mr.PoolMemoryResource(made, 64 << 20, 64 << 20)
    elif kind == "limited":
        made = rmm.mr.LimitingResourceAdaptor(made, 64 << 20)
    rmm.mr.set_current_device_resource(made)
    try:
        call = Launcher(
            kernels=Any,  # type: ignore[arg-type]
            device=device,
            stream=rmm.pylibrmm.stream.DEFAULT_STREAM,
        )
        free = free_bytes()
        for _ in range(3):
            assert call.has_room([1 << 20] * 8)
            assert call.has_room([32 << 20])
            assert not call.has_room([free + (1 << 30)])
            assert call.has_room([48 << 20] * 2) == (kind == "plain")
        assert free_bytes() >= free - (64 << 20)
    finally:
        rmm.mr.set_current_device_resource(before)
