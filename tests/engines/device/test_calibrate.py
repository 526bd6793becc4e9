"""From times to constants, and the command that measures them, without a GPU."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_gpuagg.cuda.choice import choose, costs
from dask_gpuagg.cuda.choice.cost_model import Observation, by_model, error_of, fit
from dask_gpuagg.cuda.choice.costs import Costs
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.runtime import driver
from dask_gpuagg.cuda.runtime.driver import Device
from dask_gpuagg.engines.device import calibrate
from dask_gpuagg.engines.device.calibrate import EXPERIMENTS, Experiment
from tests.cuda.choice.test_tables import FIVE, SUM

H200 = Device(0, "NVIDIA H200", "sm_90", 132, 232_448)
START = costs.shipped(H200).costs
# what the experiments do not show
FIXED = ("l2_megabytes", "same_ps")


def simulated(experiment: Experiment, truth: Costs) -> Observation:
    """What an experiment would give on a device of these constants."""
    rows, groups = calibrate.ROWS, experiment.groups
    bounds = (0, groups - 1) if experiment.dense else (-(2**62), 2**62)
    estimate = KeySummary(groups, 4 * groups, 0.0, 1 / groups, bounds=bounds)
    query = FIVE if experiment.five else SUM
    decision = choose.decide(query, rows, estimate, H200, experiment.kernel)
    assert decision.kernel == experiment.kernel
    empty = Observation(query, rows, decision, H200, {})
    names = ("clear", "hgb", "scatter", "aggregate", "lphga", "first_place", "mark_free")
    names += ("next_place", "collect", "write")
    shape = replace(empty, kernel_ms=dict.fromkeys(names, 0.0))
    return replace(empty, kernel_ms=shape.expected(truth))


constants = [name for name in asdict(START) if name not in FIXED]
truths = st.tuples(*[st.floats(0.5, 2.0) for _ in constants]).map(
    lambda by: replace(
        START, **{name: getattr(START, name) * f for name, f in zip(constants, by, strict=True)}
    )
)


@given(truths)
@settings(max_examples=25, deadline=None)
def test_the_constants_of_a_device_are_found(truth: Costs) -> None:
    observations = [simulated(experiment, truth) for experiment in EXPERIMENTS]
    found = fit(observations, START)
    assert error_of(observations, found) < 0.02
    for name in FIXED:
        assert getattr(found, name) == pytest.approx(getattr(START, name), rel=1e-3)


def test_each_constant_is_found() -> None:
    """With one constant changed, that one is found, so the experiments tell all of them apart."""
    for name in constants:
        truth = replace(START, **{name: 1.5 * getattr(START, name)})
        found = fit([simulated(experiment, truth) for experiment in EXPERIMENTS], START)
        for other in constants:
            assert getattr(found, other) == pytest.approx(getattr(truth, other), rel=0.12), name


def test_without_times_nothing_changes() -> None:
    assert asdict(fit([], START)) == pytest.approx(asdict(START))


@pytest.fixture
def gpu(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Costs]:
    """A device that exists in the model only, and its constants."""
    truth = replace(START, run_ps=2 * START.run_ps, access_ps=START.access_ps / 2)
    simulations = [simulated(experiment, truth) for experiment in EXPERIMENTS]
    monkeypatch.setattr(driver, "unavailable", lambda: None)
    monkeypatch.setattr(driver, "driver_version", lambda: 13000)
    monkeypatch.setattr(calibrate, "current_device", lambda: H200)
    monkeypatch.setattr(calibrate, "measured", lambda rows, device: iter(simulations))
    costs.known.cache_clear()
    yield truth
    costs.known.cache_clear()


def test_the_command_keeps_and_prints_what_it_found(
    gpu: Costs, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate.calibrate() == 0
    found = costs.known(H200)
    assert found.source.startswith("measured on 20")
    assert found.costs.run_ps == pytest.approx(gpu.run_ps, rel=0.05)
    assert found.costs.access_ps == pytest.approx(gpu.access_ps, rel=0.05)
    report = json.loads((cache / "costs-nvidia-h200.json").read_text())
    assert report["driver"] == 13000
    assert report["error"] < 0.02
    shown = capsys.readouterr().out
    assert "before: measured on an H200" in shown
    assert all(name in shown for name in asdict(START))
    assert str(cache) in shown


def test_a_directory_that_cannot_be_written(
    gpu: Costs, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.write_text("a file where the directory should be")
    with pytest.warns(UserWarning, match="it is no directory"):
        assert calibrate.calibrate() == 1
    told = capsys.readouterr().err
    assert "no kernel cache to keep the constants in" in told
    assert told.count("\n") == 1
    assert costs.known(H200) == costs.shipped(H200)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(driver, "unavailable", lambda: "no CUDA device")
    assert calibrate.calibrate() == 1
    told = capsys.readouterr()
    assert told.err == "dask-gpuagg calibrate: nothing to measure: no CUDA device\n"
    assert told.out == ""


def test_variants_of_a_kernel_are_added_under_its_name() -> None:
    kernels = ["hgb_runs", "direct_shared", "scatter_wide_narrow"]
    kernels += ["aggregate_narrow", "fold_narrow"]
    alone = by_model(dict.fromkeys((*kernels, "first_place", "clear_target"), 2.0))
    named = ("hgb", "direct", "scatter", "aggregate", "fold", "first_place", "clear_target")
    assert alone == dict.fromkeys(named, 2.0)
    together = by_model({"next_place": 2.0, "next_place_last": 0.5, "mark_free": 0.25})
    assert together == {"next_place": 2.5, "mark_free": 0.25}
