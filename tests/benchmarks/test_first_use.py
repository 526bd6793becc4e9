"""The results file of ``benchmarks.first_use``, without a GPU."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_use


def test_the_file_is_written_after_each_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is cut leaves what was measured before."""
    path = tmp_path / "made.json"
    times = {"planning_s": 2.5, "first_s": 0.4, "second_s": 0.3, "warm_s": 0.25}
    record = {"query": "a sum", "rows": 10, "arm": "stock", "kernels": ["libcudf"], **times}

    def cut() -> Iterator[dict[str, Any]]:
        yield record
        raise KeyboardInterrupt

    monkeypatch.setattr(
        first_use, "in_a_process", lambda _, commit: {"gpu": "a GPU", "commit": commit}
    )
    monkeypatch.setattr(first_use, "queries_records", cut)
    with pytest.raises(KeyboardInterrupt):
        first_use.main(["--commit", "abc", "--out", str(path)])
    made = json.loads(path.read_text())
    assert made == {"gpu": "a GPU", "commit": "abc", "queries": [record]}
    assert capsys.readouterr().out.strip().endswith(f"s: {record}")
