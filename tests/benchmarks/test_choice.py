"""Forced kernels: how they are measured, judged and drawn, without a GPU."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import choice, kernels
from dask_gpuagg.cuda.choice import choose, partitions
from dask_gpuagg.cuda.choice.cost_model import expected_kernel_ms
from dask_gpuagg.cuda.choice.costs import shipped
from dask_gpuagg.cuda.choice.summary import KeySummary
from dask_gpuagg.cuda.query.query import Query
from dask_gpuagg.cuda.query.types import KernelState, KeyPart, ValuePart
from dask_gpuagg.cuda.runtime.driver import Device

H200 = Device(0, "NVIDIA H200", "sm_90", 132, 232_448)
COSTS = shipped(H200).costs
ROWS = 10**8
GROUPS = (16, 1 << 12, 1 << 20, 1 << 24)
QUERY = Query(
    (KeyPart("i64", False),),
    False,
    (ValuePart("f64", False),),
    (KernelState("FloatSum", (0,)),),
    (),
)


class Simulated:
    """An aggregator whose kernels take what ``slow`` makes of the model's time."""

    query = QUERY

    def __init__(self, groups: int, slow: Callable[[str], float]) -> None:
        self.estimate = KeySummary(groups, groups, 0.0, 1 / groups, bounds=(0, groups))
        self.slow = slow

    def run(self, forced: str, stopwatch: Any = None) -> Any:
        made = choose.decide(QUERY, ROWS, self.estimate, H200, forced)
        if stopwatch is not None:
            expected = {"sgb": 5.0}
            if made.kernel != "sgb":
                tile = partitions.tile_of(QUERY, H200, made)
                expected = expected_kernel_ms(COSTS, QUERY, ROWS, made, H200.multiprocessors, tile)
            slow = self.slow(made.kernel)
            stopwatch.update({"sample": 0.01} | {n: ms * slow for n, ms in expected.items()})
        groups = self.estimate.groups
        run = SimpleNamespace(decision=made, groups=groups, spilled=0, restarted=False)
        return [], [], run


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes what the part ``families`` measures of simulated kernels."""

    def device_time(call: Callable[..., Any], repeats: int) -> dict[str, float]:
        times: dict[str, float] = {}
        call(times)
        return times

    monkeypatch.setattr(kernels, "current_device", lambda: H200)
    monkeypatch.setattr(choice, "known", shipped)
    monkeypatch.setattr(kernels, "device_time", device_time)
    monkeypatch.setattr(kernels, "peak_bytes", lambda call: 0)
    monkeypatch.setattr(kernels, "timed", lambda calls, repeats: {n: [1.0] for n in calls})

    def write(slow: Callable[[str], float], limit: float = 100.0) -> Path:
        made = []
        options = Namespace(kernels=None, repeats=1, limit=limit)
        for cell in kernels.chosen("families", ["families/dense/*"]):
            groups = cell.labels["groups"]
            if groups in GROUPS:
                aggregator = Simulated(groups, slow)
                monkeypatch.setattr(kernels, "forced_pass", lambda *_, it=aggregator: it)
                of = kernels.measure_forced(cell, range(ROWS), options)
                made.append({**cell.labels, **of})
        head = {"gpu": "a GPU", "kernels": "", "device": asdict(H200), "rows": ROWS}
        path = tmp_path / "families.json"
        path.write_text(json.dumps(head | {"cells": made}))
        return path

    return write


def as_expected(name: str) -> float:
    return 1.0


def admitted(groups: int) -> set[str]:
    """The bits of ``direct`` do not fit a block for more keys, few groups are too large to fold."""
    left_out = {"direct"} if groups > 1 << 20 else {"pgb_fold"} if groups <= 1 << 12 else set()
    return set(choose.KERNELS) - left_out


def test_what_is_written_is_read(result: Callable[..., Path]) -> None:
    found = choice.cases(result(as_expected))
    assert len(found) == 8
    for case in found:
        assert case.query == QUERY
        assert set(case.kernels) == admitted(case.made)
        for name, made in case.kernels.items():
            again = Simulated(case.made, as_expected).run(name)[2].decision
            assert made.decision == again
            if made.modelled:
                expected = choice.expected_ms(case, made, COSTS)
                assert made.ms == pytest.approx(expected + 0.01)
        assert not case.kernels["sgb"].modelled


def test_the_best_kernel_is_found_in_the_measurements(result: Callable[..., Path]) -> None:
    """Partitions that take longer than the model knows are not the best kernel any more."""
    for slow, good in ((1.05, True), (3.0, False)):
        found = choice.cases(result(lambda name, by=slow: by if name == "pgb" else 1.0))
        judgement = choice.verdict(found, COSTS)
        ratios = []
        for case in found:
            times = {name: made.ms for name, made in case.kernels.items()}
            ratios.append(times[choice.chosen(case, COSTS)] / min(times.values()))
        assert judgement.near == sum(ratio <= 1.1 for ratio in ratios) / 8
        assert judgement.worst == max(ratios)
        assert judgement.good == good


def test_the_command_judges_one_file(
    result: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for slow, status in ((1.0, 0), (3.0, 1)):
        path = result(lambda name, by=slow: by if name == "pgb" else 1.0)
        assert kernels.main(["--judge", str(path)]) == status
        shown = capsys.readouterr().out
        assert shown.count("| dense ") == 8
        assert "chosen within 10 % of the best kernel" in shown
        assert "measured with other kernels than these" in shown
