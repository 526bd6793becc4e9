"""Tests that need a GPU and RAPIDS; elsewhere one is reported for all, with the reason."""

import importlib.util
from collections.abc import Iterator

import pytest

from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.cuda.sampling import repeat


def _missing() -> str | None:
    if importlib.util.find_spec("cudf") is None:
        return "cuDF is not installed"
    return driver.unavailable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if "tests/device" in item.path.as_posix()]
    for item in ours:
        item.add_marker(pytest.mark.device)
    reason = _missing()
    if reason is not None and ours:
        text = f"{len(ours):,} tests need a GPU, not run: {reason}"
        ours[0].add_marker(pytest.mark.skip(reason=text))
        left_out = set(ours[1:])
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def _without_expectations() -> None:
    """No decision is reused from another test's rows."""
    repeat.forget()


@pytest.fixture(autouse=True, scope="session")
def _waiting() -> Iterator[None]:
    """Kernels are compiled before a call goes on, so that it is they that are tested."""
    import dask

    with dask.config.set({"gpuagg.compile": "wait"}):
        yield
