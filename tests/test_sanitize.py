"""What the program that runs compute-sanitizer does without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import sanitize


def test_each_tool_gets_a_command_that_fails_where_it_finds_something() -> None:
    for tool in sanitize.TOOLS:
        command = sanitize.command_of("compute-sanitizer", tool, ["python"])
        assert command[command.index("--tool") + 1] == tool
        assert command[command.index("--error-exitcode") + 1] == "9"
        assert command[-4:] == ["python", "-m", "tests.sanitize", "--queries"]


def test_it_is_found_on_the_path_and_in_the_toolkit(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert sanitize.sanitizer_of({"PATH": str(tool.parent)}) == str(tool)
    assert sanitize.sanitizer_of({"PATH": "/nowhere", "CUDA_HOME": str(tmp_path)}) == str(tool)
    assert sanitize.sanitizer_of({"PATH": "/nowhere"}) is None


def test_unknown_tools_and_a_missing_sanitizer_are_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sanitize.main(["memchek"]) == 2
    assert "there is no tool memchek: memcheck" in capsys.readouterr().err
    monkeypatch.setattr(sanitize, "sanitizer_of", lambda _: None)
    assert sanitize.main([]) == 2
    assert "CUDA toolkit" in capsys.readouterr().err


def test_a_tool_that_finds_something_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    class Done:
        def __init__(self, code: int) -> None:
            self.returncode = code

    def run(command: list[str], check: bool) -> Done:
        ran.append(command[2] if command[1] == "--tool" else "no tool")
        return Done(sanitize.FOUND if ran[-1] == "racecheck" else 0)

    monkeypatch.setattr(sanitize, "sanitizer_of", lambda _: "compute-sanitizer")
    monkeypatch.setattr(sanitize.subprocess, "run", run)
    assert sanitize.main([]) == 1
    assert ran == ["no tool", *sanitize.TOOLS]
    assert "found by: racecheck" in capsys.readouterr().out
    assert sanitize.main(["memcheck"]) == 0
