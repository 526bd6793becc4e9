"""What the program that runs compute-sanitizer does without one."""

from __future__ import annotations

import sys

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
