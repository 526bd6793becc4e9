"""The choice of kernel judged by every kernel forced, without a GPU."""

import json
from pathlib import Path

import pytest

from benchmarks import choice, kernels

CASES = choice.cases(choice.RESULT)


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
