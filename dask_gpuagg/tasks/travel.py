"""Partials of the device on their way between workers: one buffer for each table.

Small ones travel through the host whatever the protocol: a message from device memory to device
memory costs more than their bytes.
"""

from __future__ import annotations

import pickle
from typing import Any

from distributed.protocol import dask_deserialize, dask_serialize, serialize
from distributed.protocol.cuda import cuda_deserialize, cuda_serialize
from distributed.protocol.serialize import deserialize

from dask_gpuagg.engines import packing
from dask_gpuagg.tasks.unify import DTYPES

# Partials of fewer bytes travel as bytes of the host.
SMALL = 1 << 20

Header = dict[str, Any]


class DevicePartial(dict[str, Any]):
    """A partial of the device; Dask finds its serializers by the class."""


def to_device_frames(partial: DevicePartial) -> tuple[Header, list[Any]]:
    """What travels where a message may be of device memory."""
    return _frames(partial, SMALL, ("cuda", "dask", "pickle"))


def to_host_frames(partial: DevicePartial) -> tuple[Header, list[Any]]:
    """What travels through the host, or leaves the device."""
    return _frames(partial, None, ("dask", "pickle"))


def _frames(
    partial: DevicePartial, small: int | None, serializers: tuple[str, ...]
) -> tuple[Header, list[Any]]:
    """A header and buffers, of the host where these have at most so many bytes, or in any case."""
    tables = {name: table for name, table in partial.items() if name != DTYPES}
    module = packing()
    if not module.may_be_packed(tables):
        header, frames = serialize(dict(partial), serializers=serializers, on_error="raise")
        return {"by": header}, frames
    described, buffers = module.pack(tables)
    if small is None or sum(buffer.nbytes for buffer in buffers) <= small:
        buffers = [module.on_host(buffer) for buffer in buffers]
    return {"packed": pickle.dumps((described, partial.get(DTYPES)))}, buffers


def from_frames(header: Header, frames: list[Any]) -> DevicePartial:
    """The partial of what came."""
    if "by" in header:
        return DevicePartial(deserialize(header["by"], frames))
    module = packing()
    described, dtypes = pickle.loads(header["packed"])
    buffers = [f if hasattr(f, "__cuda_array_interface__") else module.on_device(f) for f in frames]
    made = DevicePartial(module.unpack(described, buffers))
    if dtypes is not None:
        made[DTYPES] = dtypes
    return made


cuda_serialize.register(DevicePartial, to_device_frames)
dask_serialize.register(DevicePartial, to_host_frames)
cuda_deserialize.register(DevicePartial, from_frames)
dask_deserialize.register(DevicePartial, from_frames)
