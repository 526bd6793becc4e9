"""Partials on their way between workers, with stand-ins for tables and buffers of the device."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from distributed.protocol import deserialize, serialize
from distributed.utils import nbytes

from dask_gpuagg.tasks import tasks, travel
from dask_gpuagg.tasks.travel import SMALL, DevicePartial

CUDA, DASK = ("cuda", "dask", "pickle"), ("dask", "pickle")


class Buffer:
    """Bytes that say that they lie on a device."""

    def __init__(self, data: bytes) -> None:
        self.data, self.nbytes = data, len(data)
        self.__cuda_array_interface__ = {"shape": (len(data),)}


def pack(tables: dict[str, Any]) -> tuple[Any, list[Any]]:
    return list(tables), [Buffer(pickle.dumps(table)) for table in tables.values()]


def unpack(described: Any, buffers: list[Any]) -> dict[str, Any]:
    return {name: pickle.loads(b.data) for name, b in zip(described, buffers, strict=True)}


@pytest.fixture(autouse=True)
def packing(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    module = SimpleNamespace(
        may_be_packed=lambda tables: True,
        pack=pack,
        unpack=unpack,
        on_host=lambda buffer: memoryview(buffer.data),
        on_device=lambda data: Buffer(bytes(data)),
    )
    monkeypatch.setattr(travel, "packing", lambda: module)
    return module


def partial_of(rows: int) -> DevicePartial:
    return DevicePartial(groups=pd.DataFrame({"k0": range(rows), "s0.sum": 0.5}))


def travelled(partial: DevicePartial, families: tuple[str, ...]) -> tuple[Any, list[Any]]:
    header, frames = serialize(partial, serializers=families, on_error="raise")
    assert header["serializer"] == families[0]
    return deserialize(header, frames), frames


@pytest.mark.parametrize("families", [CUDA, DASK], ids="+".join)
@pytest.mark.parametrize("rows", [0, 10, SMALL // 8])
def test_a_table_is_one_frame(families: tuple[str, ...], rows: int) -> None:
    partial = partial_of(rows)
    after, frames = travelled(partial, families)
    assert type(after) is DevicePartial
    pd.testing.assert_frame_equal(after["groups"], partial["groups"])
    (one,) = frames
    stays = families == CUDA and rows == SMALL // 8
    assert isinstance(one, Buffer) == stays
    assert stays or nbytes(one) > 0


def test_several_tables_and_the_dtypes_found() -> None:
    partial = partial_of(3)
    partial["pairs0"] = pd.DataFrame({"k0": [1], "v": ["a"]})
    partial["dtypes"] = (pd.Int64Dtype(),)
    for families in (CUDA, DASK):
        after, frames = travelled(partial, families)
        assert len(frames) == 2
        assert list(after) == ["groups", "pairs0", "dtypes"]
        assert after["dtypes"] == (pd.Int64Dtype(),)


def test_what_cannot_be_packed_travels_table_by_table(packing: SimpleNamespace) -> None:
    packing.may_be_packed = lambda tables: False
    packing.pack = None
    partial = partial_of(3)
    for families in (CUDA, DASK):
        after, _ = travelled(partial, families)
        assert type(after) is DevicePartial
        pd.testing.assert_frame_equal(after["groups"], partial["groups"])


def test_partials_of_the_host_travel_as_they_are() -> None:
    partial = {"groups": pd.DataFrame({"k0": [1]})}
    assert tasks.sent(partial) is partial


def test_partials_of_the_device_get_their_serializers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "engine_name", lambda _: tasks.DEVICE)
    assert type(tasks.sent({"groups": pd.DataFrame({"k0": [1]})})) is DevicePartial
