"""What the program that runs compute-sanitizer does without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import sanitize


def test_each_tool_gets_a_command_that_fails_where_it_finds_something() -> None:
    for tool in sanitize.TOOLS:
        command = sanitize.command_of("compute-sanitizer", tool, ["python"])
        assert command[command.index("--tool") + 1] == tool
        # initcheck sees what all kernels write
        assert ("--kernel-name" in command) == (tool != "initcheck")
        if tool != "initcheck":
            assert command[command.index("--error-exitcode") + 1] == "9"
        of_python = command[command.index("python") :]
        assert of_python[:5] == ["python", "-m", "tests.sanitize", "--part", "1/1"]
        assert of_python[5:] == ["--queries", *(["--copied"] if tool == "initcheck" else [])]
        part = sanitize.command_of("compute-sanitizer", tool, ["python"], "2/4")
        assert [a for a, b in zip(part, command, strict=True) if a != b] == ["2/4"]


FOUND_IN = """\
========= Uninitialized __global__ memory read of size 8 bytes
=========     at void {}<int>(T1)+0x40
=========     by thread (0,0,0) in block (1,0,0)
=========         Host Frame: launched by gpuagg::nothing
"""


def test_only_findings_in_our_kernels_count() -> None:
    head, tail = "========= COMPUTE-SANITIZER\n", "========= ERROR SUMMARY: 2 errors\n"
    copy = "========= Host API uninitialized memory access\n=========     Saved backtrace\n"
    mine, theirs = FOUND_IN.format("gpuagg::hgb"), FOUND_IN.format("cudf::copy")
    text = head + theirs + "right: one\n=========\n" + mine + copy + mine + theirs + tail + "end\n"
    lines = text.splitlines(keepends=True)
    assert "".join(sanitize.ours(lines)) == "right: one\n" + mine + mine + "end\n"
    assert list(sanitize.ours([])) == []


@pytest.mark.parametrize(
    ("printed", "code", "found"),
    [
        (FOUND_IN.format("gpuagg::hgb"), 0, True),
        (FOUND_IN.format("cudf::copy"), 0, False),
        ("wrong", 1, True),
        ("right", 0, False),
    ],
)
def test_initcheck_is_judged_by_what_it_prints(
    printed: str, code: int, found: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    program = f"import sys; print({printed!r}, end=''); sys.exit({code})"
    assert sanitize.found_by([sys.executable, "-c", program], "initcheck") == found
    assert ("gpuagg" in capfd.readouterr().out) == (found and not code)


def test_each_query_is_in_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    monkeypatch.setattr(sanitize, "frame", lambda: None)
    made = [(str(i), lambda i=i: ran.append(i)) for i in range(7)]
    monkeypatch.setattr(sanitize, "queries", lambda rows, copies: iter(made))
    for number in (1, 2, 3):
        assert sanitize.main(["--part", f"{number}/3", "--queries"]) == 0
    assert sorted(ran) == list(range(7))
    ran.clear()
    for number in (1, 2):
        assert sanitize.main(["--part", f"{number}/2", "--only", "2,5,6", "--queries"]) == 0
    assert ran == [2, 6, 5]
    for wrong in ("0/3", "4/3", "x"):
        with pytest.raises(ValueError, match=r".*"):
            sanitize.part_of(wrong)


def test_queries_go_on_after_one_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ValueError("a wrong answer")

    monkeypatch.setattr(sanitize, "frame", lambda: None)
    made = [("one", fail), ("two", lambda: None), ("three", fail)]
    monkeypatch.setattr(sanitize, "queries", lambda rows, copies: iter(made))
    assert sanitize.main(["--queries"]) == 1
    said = capsys.readouterr()
    assert said.out == "wrong: one\nright: two\nwrong: three\n"
    assert said.err.count("ValueError: a wrong answer") == 2


def test_rows_have_keys_of_every_kind_of_steps() -> None:
    """As ``keys/steps.py`` looks for them in a sample."""
    rows = sanitize.frame()
    assert (rows["strided"] % 2**20 == 0).all()
    cents = rows["cents"] * 100
    assert (cents.round() / 100 == rows["cents"]).all()
    assert (cents.round() != cents).any()
    assert rows["whole"].isna().any()
    assert (rows["whole"].dropna() % 1 == 0).all()
    assert rows["name"].str.len().nunique() > 10
    assert {label for keys in sanitize.STEPS for label in keys} <= set(rows)


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

    def found_by(command: list[str], tool: str) -> bool:
        ran.append(command[2] if command[1] == "--tool" else "no tool")
        assert ran[-1] == tool
        return tool == "racecheck"

    monkeypatch.setattr(sanitize, "sanitizer_of", lambda _: "compute-sanitizer")
    monkeypatch.setattr(sanitize, "found_by", found_by)
    assert sanitize.main([]) == 1
    assert ran == ["no tool", *sanitize.TOOLS]
    assert "found by: racecheck" in capsys.readouterr().out
    assert sanitize.main(["memcheck"]) == 0
