"""Fixtures of all tests, profiles of the property tests, slow tests.

``GPUAGG_HYPOTHESIS=deep pytest tests/test_properties.py`` looks for new failures at random and
for longer; what it finds is kept in ``.hypothesis`` and tried first the next time. The default
profile tries the same examples in every run, so that a run says something about a change; ``fast``
tries the first few of them. All print a line that reproduces a failure.

``make test-fast`` leaves out the tests marked ``slow``: those that use a cluster, and those of the
files and folders in ``SLOW``; of the files in ``SAMPLED``, every fifth test is run.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest
from hypothesis import HealthCheck, Phase, settings

import dask_gpuagg
from dask_gpuagg.cache import Cache

TESTS = Path(__file__).parent
# Files and folders that take long: they compile kernels, start processes, or try all plans.
SLOW = (
    "benchmarks/test_end_to_end.py",
    "cluster",
    "correctness/test_order.py",
    "correctness/test_tpch.py",
    "cuda/query",
    "cuda/runtime",
    "test_cli.py",
    "test_properties.py",
    "test_upstream.py",
    "test_wheel.py",
    "worker",
)
# Hundreds of combinations of parameters each.
SAMPLED = (
    "correctness/test_dtypes.py",
    "correctness/test_keys.py",
    "correctness/test_numerics.py",
    "engines/host/test_states.py",
)
# Fixtures that start processes.
CLUSTERS = {"client", "small"}

_COMMON = {
    "deadline": None,
    "print_blob": True,
    # a failure is made smaller, but not explained: that takes minutes with queries this slow
    "phases": set(Phase) - {Phase.explain},
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("ci", max_examples=30, derandomize=True, **_COMMON)
settings.register_profile("fast", max_examples=8, derandomize=True, **_COMMON)
settings.register_profile("deep", max_examples=5_000, **_COMMON)
settings.load_profile(os.environ.get("GPUAGG_HYPOTHESIS", "ci"))


def pytest_configure() -> None:
    """Refuse lists of slow tests that name what does not exist."""
    if missing := [path for path in SLOW + SAMPLED if not (TESTS / path).exists()]:
        raise pytest.UsageError(f"slow tests in tests/conftest.py: no {', '.join(missing)}")


# before the option -m selects
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests."""
    slow, sampled = ({TESTS / path for path in paths} for paths in (SLOW, SAMPLED))
    seen: Counter[Path] = Counter()
    for item in items:
        left_out = item.path in sampled and seen[item.path] % 5 > 0
        seen[item.path] += 1
        in_slow = not slow.isdisjoint((item.path, *item.path.parents))
        if left_out or in_slow or CLUSTERS & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def _no_line_was_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of a parametrized test is warned of in each of its tests."""
    monkeypatch.setattr("dask_gpuagg.reporting.fallbacks._warned", Cache(1000))


@pytest.fixture(scope="module")
def plugin() -> Iterator[None]:
    """The plugin on, and an error for a group-by that it does not run; stock Dask afterwards."""
    with dask.config.set({"gpuagg.fallback": "raise"}), dask_gpuagg.enabled():
        yield


@pytest.fixture(scope="module")
def synchronous() -> Iterator[None]:
    """Tasks run one after the other in this thread: small queries are quicker that way."""
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """An empty kernel cache."""
    folder = tmp_path / "kernels"
    with dask.config.set({"gpuagg.kernel-cache": str(folder)}):
        yield folder


@pytest.fixture
def raising() -> Iterator[None]:
    """The plugin on, synchronous, and a fallback is an error."""
    with (
        dask.config.set({"scheduler": "synchronous", "gpuagg.fallback": "raise"}),
        dask_gpuagg.enabled(),
    ):
        yield
