"""Partials of the device as they travel between workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from tests.device.frames import ROWS, arrow, frame

FAMILIES = (("cuda", "dask", "pickle"), ("dask", "pickle"))


def tables(start: int, stop: int) -> dict[str, Any]:
    """Every class of column, nulls among them, as a slice of rows."""
    return {"groups": frame(arrow()).iloc[start:stop].reset_index(drop=True)}


def travelled(partial: Any, families: tuple[str, ...]) -> tuple[Any, list[Any]]:
    """A partial after a journey, and its frames; those of the host as other bytes."""
    from distributed.protocol import deserialize, serialize

    header, frames = serialize(partial, serializers=families, on_error="raise")
    there = [f if hasattr(f, "__cuda_array_interface__") else bytes(f) for f in frames]
    return deserialize(header, there), frames


def on_device(frames: list[Any]) -> list[bool]:
    return [hasattr(f, "__cuda_array_interface__") for f in frames]


def assert_same(one: Any, other: Any) -> None:
    assert list(one) == list(other)
    for name in one:
        if name == "dtypes":
            assert one[name] == other[name]
            continue
        left, right = one[name], other[name]
        assert list(left.columns) == list(right.columns)
        for label in left.columns:
            assert left[label].dtype == right[label].dtype
            assert left[label].to_arrow().to_pylist() == right[label].to_arrow().to_pylist()


@pytest.fixture
def partial_of() -> Callable[..., Any]:
    import distributed  # noqa: F401  without it nothing travels

    from dask_gpuagg.tasks.tasks import sent

    return sent


@pytest.mark.parametrize("families", FAMILIES, ids=["cuda", "dask"])
@pytest.mark.parametrize("span", [(0, ROWS), (7, 250), (33, 34), (5, 5)], ids=str)
def test_every_dtype_travels(
    families: tuple[str, ...], span: tuple[int, int], partial_of: Callable[..., Any]
) -> None:
    before = partial_of(tables(*span))
    after, frames = travelled(before, families)
    assert type(after) is type(before)
    assert_same(before, after)
    # the table, and the values of two columns of categories
    assert len(frames) == 3
    assert not any(on_device(frames))


@pytest.mark.parametrize("families", FAMILIES, ids=["cuda", "dask"])
def test_large_partials_stay_on_the_device_where_they_may(
    families: tuple[str, ...], partial_of: Callable[..., Any]
) -> None:
    import cudf
    import cupy as cp

    from dask_gpuagg.tasks.travel import SMALL

    rows = SMALL // 8
    groups = cudf.DataFrame({"k0": cp.arange(rows), "s0.sum": cp.arange(rows) / 3})
    before = partial_of({"groups": groups})
    after, frames = travelled(before, families)
    assert on_device(frames) == ["cuda" in families]
    assert_same(before, after)


def test_several_tables_and_dtypes_found(partial_of: Callable[..., Any]) -> None:
    import cudf

    before = partial_of(
        {
            "groups": cudf.DataFrame({"k0": [1, 2], "s0.sum": [0.5, None]}),
            "pairs0": cudf.DataFrame({"k0": [1, 1, 2], "v": ["a", "b", None]}),
            "dtypes": (pd.StringDtype(na_value=float("nan")),),
        }
    )
    for families in FAMILIES:
        after, frames = travelled(before, families)
        assert len(frames) == 2
        assert_same(before, after)


def test_what_cannot_be_described_travels_as_cudf_sends_it(partial_of: Callable[..., Any]) -> None:
    import cudf

    groups = cudf.DataFrame({"k0": [1, 2], "v0": [[1.0, 2.0], None]})
    before = partial_of({"groups": groups})
    for families in FAMILIES:
        after, _ = travelled(before, families)
        assert type(after) is type(before)
        assert_same(before, after)


def test_spilling_to_the_host_and_back(partial_of: Callable[..., Any]) -> None:
    host_file = pytest.importorskip("dask_cuda.device_host_file")
    before = partial_of(tables(0, ROWS))
    from dask_cuda.is_device_object import is_device_object

    assert is_device_object(before)
    after = host_file.host_to_device(host_file.device_to_host(before))
    assert_same(before, after)


def test_pickles(partial_of: Callable[..., Any]) -> None:
    import pickle

    before = partial_of(tables(0, 40))
    after = pickle.loads(pickle.dumps(before, protocol=pickle.HIGHEST_PROTOCOL))
    assert type(after) is type(before)
    assert_same(before, after)
