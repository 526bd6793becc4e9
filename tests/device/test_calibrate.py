"""Constants of the device that runs this, from few rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dask
import pytest

from dask_gpuagg.cuda import calibrate, costs
from dask_gpuagg.cuda.driver import current_device


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


def test_every_experiment_runs_by_its_kernel() -> None:
    seen = list(calibrate.measured(1 << 20, current_device()))
    asked = [experiment.kernel for experiment in calibrate.EXPERIMENTS]
    assert [observation.decision.kernel for observation in seen] == asked
    for observation in seen:
        modelled = observation.expected(costs.known(current_device()).costs)
        # all that was launched but the sample
        assert set(observation.laps) - set(modelled) <= {"sample", "summarise", "count_keys"}
