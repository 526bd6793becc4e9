"""Tests of the reports, and sinks for other tests."""

from collections.abc import Iterator
from contextlib import contextmanager

from dask_gpuagg.reporting.events import Sink, register, unregister


@contextmanager
def listening(sink: Sink, *kinds: type) -> Iterator[None]:
    """Register a sink inside of a block."""
    register(sink, *kinds)
    try:
        yield
    finally:
        unregister(sink)
