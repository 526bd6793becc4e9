"""How long the kernels of a common query take to compile, and which of them its calls wait for.

A query is called again and again, with an empty kernel cache, until our kernels serve it; libcudf
serves it meanwhile. All of it runs in one process, which forgets between two queries what it has
compiled. ``benchmarks.first_use`` runs it and keeps what it says.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

ROWS = 50_000_000
GROUPS = (1_000, 1_000_000, 50_000_000)
# Keys side by side, anywhere in 64 bits, and text.
KEYS = ("int64", "int64 of 64 bits", "string")
# Odd, so that no two numbers have the same product modulo 2**64, and these lie in no steps.
SCATTERING = 0x9E3779B97F4A7C15 - 2**64
SPECS: dict[str, dict[str, list[str]]] = {
    "one sum": {"v": ["sum"]},
    "five": {"v": ["sum", "count", "min", "max"], "w": ["mean"]},
}
# A query that is not served after so many seconds is left.
PATIENCE = 20.0
COMMAND = (sys.executable, "-m", "benchmarks.first_compiling")


class Compiled(NamedTuple):
    """One unit that was compiled: what it is made of, and when, by ``time.perf_counter``."""

    source: Any
    begin: float
    end: float


def records(rows: int = ROWS) -> Iterator[dict[str, Any]]:
    """What the child says: first about the machine, then a record of each query."""
    command = [*COMMAND, str(rows)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, command)


def span(compiled: Sequence[Compiled], begun: float) -> float | None:
    """Seconds until the last of some units was compiled; None for no unit."""
    return max(one.end for one in compiled) - begun if compiled else None


def record(
    compiled: Sequence[Compiled], needed: set[Any], begun: float, served: float | None
) -> dict[str, Any]:
    """What was compiled for a query.

    Parameters
    ----------
    compiled : sequence of Compiled
    needed : set
        Sources of those that the call which our kernels served has loaded.
    begun : float
        When the first call began, by ``time.perf_counter``.
    served : float, optional
        When our kernels' first answer was there; None if they did not answer in time.

    Returns
    -------
    dict
        Seconds from ``begun`` on, and of each unit: its kernels, begin, end, whether it was needed.
    """
    waited_for = [one for one in compiled if one.source in needed]
    return {
        "needed_s": span(waited_for, begun),
        "all_s": span(compiled, begun),
        "served_s": None if served is None else served - begun,
        "of_one_core_s": sum(one.end - one.begin for one in waited_for),
        "units": [
            [
                " ".join(one.source.kernels),
                round(one.begin - begun, 3),
                round(one.end - begun, 3),
                one.source in needed,
            ]
            for one in sorted(compiled, key=lambda one: one.begin)
        ],
    }


class Compilations:
    """Units compiled since they were last asked for."""

    def __init__(self) -> None:
        from dask_gpuagg.cuda.runtime import compiler

        self._compiled: list[Compiled] = []
        original = compiler.compile_source

        def timed(unit: Any, architecture: str, *more: str) -> Any:
            begin = time.perf_counter()
            code = original(unit, architecture, *more)
            self._compiled.append(Compiled(_Source.of(unit), begin, time.perf_counter()))
            return code

        compiler.compile_source = timed

    def taken(self) -> list[Compiled]:
        """What was compiled, when all that has begun is."""
        settle()
        seen, self._compiled = self._compiled, []
        return seen


def settle() -> None:
    """Wait until all that has begun is compiled."""
    for thread in threading.enumerate():
        if thread.name == "gpuagg-compile":
            thread.join()


class _Source(NamedTuple):
    text: str
    kernels: tuple[str, ...]
    expressions: tuple[str, ...]

    @classmethod
    def of(cls, unit: Any) -> _Source:
        return cls(unit.source, tuple(unit.kernels), tuple(unit.kernels.values()))


def loaded() -> set[_Source]:
    """The units that this process has loaded since it forgot them."""
    from dask_gpuagg.cuda.runtime import kernels

    found = set()
    for one in list(kernels._known.keys()):
        units = list(kernels.kernels_of(*one)._libraries.keys())
        found |= {_Source.of(one[0].source(unit)) for unit in units}
    return found


def forget() -> None:
    """What earlier calls have compiled and found out."""
    from dask_gpuagg.cuda.call import inputs
    from dask_gpuagg.cuda.dictionary import forget_dictionaries
    from dask_gpuagg.cuda.runtime import kernels
    from dask_gpuagg.cuda.sampling import repeat

    inputs.forget_prepared()
    kernels._known.clear()
    repeat.forget()
    forget_dictionaries()


def frame(key: str, groups: int, rows: int) -> Any:
    """Rows of one kind of key, in device memory."""
    import cudf
    import cupy as cp

    numbers = cp.arange(rows, dtype="int64") * 2_654_435_761 % groups
    made = cudf.DataFrame({"k": numbers * (SCATTERING if key.endswith("bits") else 1)})
    if key == "string":
        made["k"] = "key " + made["k"].astype(str)
    values = cp.arange(rows, dtype="int64") % 97
    made["v"], made["w"] = values.astype("float64"), values.astype("float32")
    return made


def until_served(rows: Any, spec: dict[str, list[str]], found: Compilations) -> dict[str, Any]:
    """Call a query until our kernels serve it."""
    import cupy as cp
    import dask

    from benchmarks.kernels import engine_arm
    from dask_gpuagg import last_runs

    call = engine_arm(rows, spec, ["k"])
    calls, kernel, served = 0, "libcudf", None
    with tempfile.TemporaryDirectory() as cache, dask.config.set({"gpuagg.kernel-cache": cache}):
        found.taken()
        forget()
        begun = time.perf_counter()
        while served is None and time.perf_counter() - begun < PATIENCE:
            call()
            cp.cuda.Device().synchronize()
            calls, kernel = calls + 1, last_runs()[-1].decision.kernel
            served = None if kernel == "libcudf" else time.perf_counter()
        needed = loaded() if served is not None else set()
        made = record(found.taken(), needed, begun, served)
    return {"kernel": kernel, "calls": calls, **made}


def child(rows: int) -> Iterator[dict[str, Any]]:
    """All queries in this process."""
    import dask
    import rmm

    rmm.reinitialize(pool_allocator=True, initial_pool_size=40 << 30)
    from benchmarks.kernels import report_head

    dask.config.set({"gpuagg.fallback": "silent", "gpuagg.compile": "background"})
    found = Compilations()
    # what NVRTC and cuDF put off until they are used
    until_served(frame("int64", 10, 1_000), {"v": ["min"]}, found)
    yield report_head(None)
    for key in KEYS:
        for groups in GROUPS:
            made = frame(key, groups, rows)
            for name, spec in SPECS.items():
                about = {"query": f"{name} by {key}", "groups": groups}
                yield about | until_served(made, spec, found)
            del made


def line(cell: dict[str, Any]) -> str:
    """One record as a line."""
    seconds = "not served" if cell["needed_s"] is None else f"{cell['needed_s']:.2f} s"
    needed = [unit for unit in cell["units"] if unit[3]]
    return (
        f"compiling {cell['query']}, {cell['groups']:,} groups, {cell['kernel']}: {seconds}, "
        f"{len(needed)} of {len(cell['units'])} units needed, {cell['of_one_core_s']:.2f} s of one "
        "core"
    )


if __name__ == "__main__":
    for each in child(int(float(sys.argv[1]))):
        print(json.dumps(each), flush=True)
