"""Where a result came from: machine, versions, commit, date; and how much memory a process takes.

Linux keeps a process's largest resident size and lets the process reset it. So the peak is exact,
not sampled: settle, reset, run, read.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import gc
import importlib
import multiprocessing
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]

PACKAGES = (
    *("dask", "distributed", "pandas", "pyarrow", "numpy", "dask-gpuagg", "polars", "duckdb"),
    *("cudf-cu12", "cudf-cu13", "dask-cuda", "distributed-ucxx-cu12", "distributed-ucxx-cu13"),
)


def arguments(
    program: str, about: str | None, out: Path | None = None, where: str = "results file"
) -> argparse.ArgumentParser:
    """Return a parser with the options of every program; ``about`` is its docstring."""
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{program}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--commit", help="where the tree is no git checkout")
    parser.add_argument("--out", type=Path, default=out, help=where)
    return parser


def example(name: str) -> Any:
    """Import a module of ``examples/``."""
    if (folder := str(ROOT / "examples")) not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def number(text: str) -> int:
    """A whole number, as 1e9 too: the type of an option."""
    return int(float(text))


def in_a_process(call: Callable[..., Any], *arguments: Any, limit: float | None = None) -> Any:
    """Call a function in a fresh process, and return its result or why there is none, as text."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, call, arguments))
    process.start()
    sender.close()
    try:
        if not receiver.poll(limit):
            process.kill()
            return f"no result within {limit:g} s, start and data included"
        return receiver.recv()
    except EOFError:
        process.join()
        # killed for memory, most likely: a negative code is the signal
        return f"failed: exit code {process.exitcode}"
    finally:
        process.join()


def _send(sender: Connection, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        sender.send(call(*arguments))
    except Exception as error:
        sender.send(f"failed: {type(error).__name__}: {error}")
        raise


def provenance(at: str | None = None) -> dict[str, Any]:
    """Return date, commit (``at`` if given), package versions and machine, ready for JSON."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": at or commit(),
        "versions": versions(),
        "machine": describe(),
    }


def versions() -> dict[str, str]:
    """Return the version of Python and of those packages that are installed."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def commit() -> str | None:
    """Return the commit, ``-dirty`` appended when anything but results differs from it."""
    head = _git("rev-parse", "HEAD")
    if head is None:
        return None
    changes = _git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return f"{head}-dirty" if changes else head


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def describe() -> dict[str, Any]:
    """Return the CPU, how many of its cores this process may use, memory and system."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def settle() -> None:
    """Give back what earlier work left behind: cycles, Arrow's pool, the C library's free lists."""
    import pyarrow as pa

    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)


def reset_peak() -> int:
    """Forget the process's high-water mark and return its present resident bytes."""
    settle()
    Path("/proc/self/clear_refs").write_text("5")
    return int(psutil.Process().memory_info().rss)


def peak() -> int:
    """Return the process's high-water mark in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
