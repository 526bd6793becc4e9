"""Constants of the device that runs this, from few rows."""

from collections.abc import Iterator
from pathlib import Path

import dask
import pytest

from dask_gpuagg.cuda.choice import costs
from dask_gpuagg.cuda.choice.cost_model import expected_kernel_ms
from dask_gpuagg.cuda.runtime.driver import current_device
from dask_gpuagg.engines.device import calibrate


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with dask.config.set({"gpuagg.kernel-cache": str(tmp_path)}):
        costs.known.cache_clear()
        yield tmp_path
    costs.known.cache_clear()


def test_constants_are_measured_and_used(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.calibrate(rows=1 << 20) == 0
    assert costs.known(current_device()).source.startswith("measured on 20")
    assert "kept in" in capsys.readouterr().out


def test_the_model_knows_the_kernels_that_run() -> None:
    device = current_device()
    seen = list(calibrate.measured(1 << 20, device))
    asked = {experiment.kernel for experiment in calibrate.EXPERIMENTS}
    assert {observation.decision.kernel for observation in seen} == asked
    for one in seen:
        known = costs.known(device).costs
        expected = expected_kernel_ms(known, one.query, one.rows, one.decision, one.device)
        assert set(expected) <= set(one.kernel_ms)
