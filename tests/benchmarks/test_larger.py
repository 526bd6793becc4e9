"""The benchmark of rows beyond the device, without one: its data, its checks, its steps."""

from typing import Any

import pytest

from benchmarks import larger
from dask_gpuagg.streaming.batches import Sizes
from dask_gpuagg.streaming.stream import Stream
from tests.streaming.fake import FakeDevice


@pytest.fixture(params=[True, False], ids=["frame", "drawn"])
def held(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def rows(held: bool, monkeypatch: pytest.MonkeyPatch) -> larger.Rows:
    monkeypatch.setattr(larger, "PARTITION_ROWS", 1 << 12)
    return larger.Rows(30_000, 500, held)


def test_rows_are_grouped_whether_held_or_drawn(rows: larger.Rows, held: bool) -> None:
    result = larger.grouping(rows, held, "auto")()
    assert len(result) == 500
    rows.check(result)
    assert larger.Rows(30_000, 500).counts.tolist() == rows.counts.tolist()


@pytest.mark.parametrize("column", ["sum", "count"])
def test_a_wrong_group_is_found(rows: larger.Rows, held: bool, column: str) -> None:
    result = larger.grouping(rows, held, "auto")().sort_index()
    result.loc[2, column] += 1
    result.loc[400, column] -= 1
    with pytest.raises(AssertionError):
        rows.check(result)


def test_the_time_of_a_step_is_not_that_of_the_steps_that_it_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(larger.time, "perf_counter", lambda: clock[0])

    def takes(seconds: float) -> None:
        clock[0] += seconds

    class Device(FakeDevice):
        def to_host(self, *_: Any) -> None:
            takes(2)

        def to_host_in_parts(self, *_: Any) -> None:
            takes(1)
            self.to_host()

        def merged(self, *_: Any) -> None:
            takes(4)
            raise MemoryError

        partial = to_host

    device, stream = Device(Sizes(1, 1)), object.__new__(Stream)
    monkeypatch.setattr(Stream, "_grouped", lambda _: (takes(8), device.partial()))
    with larger.steps(Device, lambda _: takes(16), lambda: takes(32)) as seconds:
        stream._grouped()
        device.to_host_in_parts()
        with pytest.raises(MemoryError):
            device.merged()
    # the kernels of each step are waited for, the copies before a step that groups
    assert seconds == {"copy": 8 + 16 + 32, "group": 2 + 32, "write": 1 + 2 + 2 * 32, "merge": 4}
