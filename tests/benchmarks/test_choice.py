"""The choice of kernel judged by every kernel forced, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import choice, kernels
from dask_gpuagg.cuda.choice.costs import shipped

CASES = choice.cases(choice.RESULT)
COSTS = shipped(CASES[0].device).costs


def test_what_was_written_is_read() -> None:
    """Queries and decisions are those that the file has."""
    cells = json.loads(choice.RESULT.read_text())["cells"]
    for case, cell in zip(CASES, cells, strict=True):
        assert (
            json.loads(json.dumps(choice.query_fields(case.query))).items()
            >= {
                name: cell["query"][name] for name in ("keys", "states", "outputs", "chosen")
            }.items()
        )
        assert set(case.kernels) == {run["decision"]["kernel"] for run in cell["kernels"].values()}
        for measured in case.kernels.values():
            assert 0 < measured.ms <= sum(measured.kernel_ms.values())


def test_the_command_judges_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kernels.main(["--judge", str(choice.RESULT)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("| dense ") == sum(case.label.startswith("dense") for case in CASES)
    assert "chosen within 10 % of the best kernel" in shown
    # partitions that take three times as long are not the best kernel any more
    report = json.loads(choice.RESULT.read_text())
    for cell in report["cells"]:
        for run in cell["kernels"].values():
            if run["decision"]["kernel"] == "pgb":
                run["kernels_ms"] = {name: 3 * ms for name, ms in run["kernels_ms"].items()}
    slow = tmp_path / "families.json"
    slow.write_text(json.dumps(report))
    assert kernels.main(["--judge", str(slow)]) == 1
