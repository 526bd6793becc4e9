"""One query of every kernel under compute-sanitizer: ``python -m tests.sanitize [tool ...]``.

The tools are memcheck, racecheck, initcheck and synccheck; by default all. Needs a GPU, cuDF and
``compute-sanitizer``, of the CUDA toolkit, on the path or in ``$CUDA_HOME/bin``. Only our kernels
are checked. What libcudf's kernels write would count as never written for initcheck. So that tool
sees all kernels, of a few queries whose columns are copied as they are, and what it finds in
kernels of others is left out. ``--part 2/4`` runs every fourth query from the second on: processes
may share the GPU. ``--only steps,exact`` runs those whose name has one of these words.

The exit status is 0 if no tool has found anything and all answers are right.
"""

import argparse
import math
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Our kernels are in this namespace, which is a part of their names.
NAMESPACE = "gpuagg"
FOUND = 9
# Before each line that a tool prints.
MARK = "========= "
# Queries that a tool is not fooled by; by default all.
ONLY = {"initcheck": ("--copied",)}
# Under a tool a kernel takes a thousand times as long, so that keys of few rows are sampled too.
ROWS = 20_000
SAMPLED_FROM = 16_384
# Of fewer rows no decision gains by keys that are numbers of steps.
STEPPED_ROWS = 2_000_000


def command_of(
    sanitizer: str, tool: str, python: Sequence[str], part: str = "1/1", only: str = ""
) -> list[str]:
    """The command that runs a part of the queries under a tool."""
    # the CUDA bindings ask the driver for functions that it may not have
    given = ["--tool", tool, "--report-api-errors", "no"]
    if tool == "initcheck":
        given += ["--print-limit", "100000"]
    else:
        given += ["--error-exitcode", str(FOUND), "--kernel-name", f"kns={NAMESPACE}"]
    if tool == "memcheck":
        given += ["--leak-check", "no"]
    return [sanitizer, *given, *python, *queries_of(part, only), *ONLY.get(tool, ())]


def ours(lines: Iterable[str]) -> Iterator[str]:
    """What a process prints under a tool, of the tool's findings only those in our kernels.

    A finding is a line of ``MARK`` and text, and the indented ones behind it.
    """
    finding: list[str] = []
    for line in chain(lines, [""]):
        if finding and line.startswith(f"{MARK} "):
            finding.append(line)
            continue
        places = [each for each in finding if each.startswith(f"{MARK}    at ")]
        if any(f"{NAMESPACE}::" in place for place in places):
            yield from finding
        finding = [line] if line.startswith(MARK) else []
        if line and not line.startswith(MARK.rstrip()):
            yield line


def found_by(command: Sequence[str], tool: str) -> bool:
    """Whether a tool finds something in our kernels, or an answer is wrong; prints what it does."""
    if tool != "initcheck":
        return subprocess.run(command, check=False).returncode != 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as running:
        found = False
        assert running.stdout is not None
        for line in ours(running.stdout):
            found = found or line.startswith(MARK)
            print(line, end="", flush=True)
    return found or running.returncode != 0


def queries_of(part: str, only: str = "") -> list[str]:
    """What Python is given to run a part of the queries."""
    named = ["--only", only] if only else []
    return ["-m", "tests.sanitize", "--part", part, *named, "--queries"]


def sanitizer_of(environment: dict[str, str]) -> str | None:
    """The path of compute-sanitizer; None if it is not installed."""
    found = shutil.which("compute-sanitizer", path=environment.get("PATH"))
    home = environment.get("CUDA_HOME")
    if found is None and home:
        found = shutil.which("compute-sanitizer", path=str(Path(home) / "bin"))
    return found


def frame(number: int = ROWS) -> pd.DataFrame:
    """Keys of one word, of two columns, in steps, and text; values with nulls."""
    rng = np.random.default_rng(1)
    made = pd.DataFrame(
        {"k": rng.integers(0, 3_000, number) * 7, "few": rng.integers(0, 40, number)}
    )
    made["wide"] = rng.integers(-(2**62), 2**62, 500)[rng.integers(0, 500, number)]
    made["text"] = made["k"].astype(str).str.zfill(12)
    made["i"] = rng.integers(-(2**40), 2**40, number)
    made["f"] = rng.normal(1.0, 1.0, number)
    made["n"] = pd.array(rng.integers(0, 9, number), dtype="Int64")
    made.loc[rng.random(number) < 0.2, "n"] = pd.NA
    made["strided"] = rng.integers(-1_500, 1_500, number) * 2**20
    names = np.array([f"{i:x}" * (1 + i % 12) for i in range(300)], object)
    made["name"] = names[rng.integers(0, 300, number)]
    return made


def copied(rows: pd.DataFrame, labels: list[str]) -> list[Any]:
    """Columns of the device that no kernel has made, their validity bits neither."""
    import pyarrow as pa
    import pylibcudf as plc
    import rmm

    def on_device(buffer: Any) -> Any:
        # validity bits are read by words
        padded = np.zeros(-(-buffer.size // 64) * 64, np.uint8)
        padded[: buffer.size] = np.frombuffer(buffer, np.uint8)
        return rmm.DeviceBuffer.to_device(padded)

    def column(array: pa.Array) -> Any:
        *_, data = found = array.buffers()
        valid = None if found[0] is None else on_device(found[0])
        children = []
        if pa.types.is_string(array.type):
            ends = plc.DataType(plc.TypeId.INT32)
            children = [plc.Column(ends, len(array) + 1, on_device(found[1]), None, 0, 0, [])]
        kind = plc.DataType.from_arrow(array.type)
        return plc.Column(kind, len(array), on_device(data), valid, array.null_count, 0, children)

    table = pa.Table.from_pandas(rows[labels], preserve_index=False)
    chosen = [each.combine_chunks() for each in table.columns]
    text = [pa.types.is_large_string(each.type) for each in chosen]
    return [column(a.cast(pa.string()) if t else a) for a, t in zip(chosen, text, strict=True)]


def queries(rows: pd.DataFrame, copies: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    """Names, and calls that raise where an answer is wrong; of ``copied`` columns alone."""
    import dask
    import dask_cudf

    import dask_gpuagg
    from dask_gpuagg.cuda.choice import choose
    from tests.device.test_kernels import aggregated, assert_equal, by_pandas

    wanted = {"i": ["sum", "min", "max", "size"], "f": ["sum", "min", "var"], "n": ["sum", "count"]}

    def kernel(name: str, keys: list[str]) -> None:
        made, _ = aggregated(rows, keys, wanted, name, on_device=copied)
        assert_equal(made, by_pandas(rows, keys, wanted))

    of_keys = (["k"], ["few"], ["few", "wide"], ["text"], ["name"])
    for name in ("auto", *choose.KERNELS):
        for keys in of_keys[:1] if copies and name != "auto" else of_keys:
            yield f"{name} by {', '.join(keys)}", lambda n=name, k=keys: kernel(n, k)

    def stepped() -> None:
        from dask_gpuagg.cuda.keys import ranges

        # the second time as for rows before
        rows = frame(STEPPED_ROWS)
        with patch.object(ranges, "STEPPED_ROWS", 0):
            for _ in range(2):
                made, run = aggregated(rows, ["strided"], wanted, on_device=copied)
                assert_equal(made, by_pandas(rows, ["strided"], wanted))
                assert "keys lie 1,048,576 apart" in run.decision.why, run.decision.why

    yield "by steps of strided", stepped

    def exact(name: str, key: str) -> None:
        made, _ = aggregated(rows, [key], {"f": ["exact_total"]}, name, on_device=copied)
        expected = rows.groupby(key).f.apply(math.fsum)
        pd.testing.assert_series_equal(made["f.exact_total"], expected, check_names=False)

    for name, key in (("auto", "few"), ("auto", "k"), ("lphga", "k"), ("pgb", "k")):
        yield f"{name}, exact sums by {key}", lambda n=name, k=key: exact(n, k)

    if copies:
        return

    def merged_exactly() -> None:
        import cudf

        collection = dask_cudf.from_cudf(cudf.DataFrame(rows[["k", "f"]]), 3)
        settings = {"scheduler": "synchronous", "gpuagg.deterministic": True}
        with dask_gpuagg.enabled(), dask.config.set(settings):
            made: Any = collection.groupby("k").f.sum().compute()
        expected = rows.groupby("k").f.apply(math.fsum)
        pd.testing.assert_series_equal(made.to_pandas().sort_index(), expected)

    yield "exact sums of three partitions", merged_exactly

    def whole(partitions: int) -> None:
        import cudf

        collection = dask_cudf.from_cudf(cudf.DataFrame(rows[["k", "f", "i"]]), partitions)
        with dask_gpuagg.enabled(), dask.config.set({"scheduler": "synchronous"}):
            made: Any = collection.groupby("k").f.agg(["median", "nunique", "first"]).compute()
        theirs = rows.groupby("k").f.agg(["median", "nunique", "first"])
        pd.testing.assert_frame_equal(made.to_pandas().sort_index(), theirs, check_dtype=False)

    yield "whole groups of one partition", lambda: whole(1)
    yield "whole groups of three partitions", lambda: whole(3)


def run_queries(number: int, parts: int, copies: bool, only: Sequence[str] = ("",)) -> int:
    """Run each query of a part once, of those whose name has some of the words; how many failed."""
    import dask

    from dask_gpuagg.cuda.choice import summary

    rows, failed = frame(), 0
    chosen = (q for q in queries(rows, copies) if any(word in q[0] for word in only))
    settings = {"gpuagg.compile": "wait", "gpuagg.fallback": "raise"}
    with dask.config.set(settings), patch.object(summary, "SAMPLED_FROM", SAMPLED_FROM):
        for name, run in islice(chosen, number - 1, None, parts):
            try:
                run()
            except Exception:
                failed += 1
                print("wrong:", name, flush=True)
                traceback.print_exc()
            else:
                print("right:", name, flush=True)
    return failed


def part_of(text: str) -> tuple[int, int]:
    """A part of the queries: its number, from 1 on, and how many there are."""
    number, _, parts = text.partition("/")
    if not 1 <= int(number) <= int(parts):
        raise ValueError(text)
    return int(number), int(parts)


def main(arguments: Sequence[str]) -> int:
    """Run the queries, or each tool over them; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize")
    parser.add_argument("tools", nargs="*", metavar="tool", help=", ".join(TOOLS))
    parser.add_argument("--part", default="1/1", help="of the queries, as 2/4")
    parser.add_argument("--only", default="", metavar="WORD,...", help="queries with such names")
    parser.add_argument("--queries", action="store_true", help="run them without a tool")
    parser.add_argument("--copied", action="store_true", help="those of copied columns alone")
    given = parser.parse_args(arguments)
    if given.queries:
        only = given.only.split(",")
        return min(1, run_queries(*part_of(given.part), given.copied, only))
    unknown = set(given.tools) - set(TOOLS)
    if unknown:
        print(f"there is no tool {', '.join(sorted(unknown))}: {', '.join(TOOLS)}", file=sys.stderr)
        return 2
    sanitizer = sanitizer_of(dict(os.environ))
    if sanitizer is None:
        print(
            "compute-sanitizer is not installed: it is a part of the CUDA toolkit", file=sys.stderr
        )
        return 2
    # without the tool first: what is compiled is cached then
    commands = {"no tool": [sys.executable, *queries_of(given.part, given.only)]}
    for tool in given.tools or TOOLS:
        commands[tool] = command_of(sanitizer, tool, [sys.executable], given.part, given.only)
    failed = []
    for tool, command in commands.items():
        print(f"== {tool}", flush=True)
        if found_by(command, tool):
            failed.append(tool)
    print("found by: " + ", ".join(failed) if failed else "nothing found")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
