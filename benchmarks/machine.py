"""What a result must say about where it came from: machine, versions, commit, date."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]

PACKAGES = ("dask", "distributed", "pandas", "pyarrow", "numpy", "dask-gpuagg")


def provenance() -> dict[str, Any]:
    """Return date, commit, package versions and machine, ready for JSON."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(),
        "machine": describe(),
    }


def versions() -> dict[str, str | None]:
    """Return the version of Python and of every package that matters; None: not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    if found["dask-gpuagg"] is None:
        # Run from a checkout that is not installed: the package still knows its version.
        try:
            from dask_gpuagg._version import __version__
        except ImportError:
            pass
        else:
            found["dask-gpuagg"] = __version__
    return found


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
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
