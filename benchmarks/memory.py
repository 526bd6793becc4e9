"""Peak memory of one query, above what the loaded data take.

The kernel keeps a process's largest resident size and, on Linux, lets the process reset it. So the
peak is exact, not sampled: settle, reset, run, read. Elsewhere the high-water mark cannot be reset
and ``getrusage`` gives it since the process began; loading may then hide a small query.

Run as a module, this measures one query in a separate process and prints JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import psutil
import pyarrow as pa

from benchmarks import arms
from benchmarks.machine import ROOT
from benchmarks.queries import QUERIES, Query

# Enough for the plugin's compiled loops, which small partitions do without.
WARM_UP_ROWS = 200_000
TIME_LIMIT = 3600


def settle() -> None:
    """Give back what earlier work left behind: cycles, Arrow's pool, the C library's free lists."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak() -> int:
    """Forget the process's high-water mark and return its present resident bytes."""
    settle()
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")
    return int(psutil.Process().memory_info().rss)


def peak() -> int:
    """Return the process's high-water mark in bytes."""
    if sys.platform == "linux":
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure_here(query: Query, folder: Path, partitions: int, name: str) -> dict[str, Any]:
    """Load the data and measure one query with the threaded scheduler in this process."""
    # Code that is loaded at first use is no part of the query's memory.
    arms.run(query, arms.load_local(folder, 2, rows=WARM_UP_ROWS), name)
    frame = arms.load_local(folder, partitions)
    baseline = reset_peak()
    done = arms.run(query, frame, name)
    return {"baseline_bytes": baseline, "peak_bytes": peak() - baseline, "error": done.error}


def measure_in_process(
    query: Query, folder: Path, partitions: int, threads: int, name: str
) -> dict[str, Any]:
    """Measure one query in a fresh process, with the threaded scheduler."""
    command = [sys.executable, "-m", "benchmarks.memory", query.name, name, str(folder.resolve())]
    command += [str(partitions), str(threads)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=TIME_LIMIT
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no result in {TIME_LIMIT} s"}
    except subprocess.CalledProcessError as error:
        # Killed for memory, most likely: a negative code is the signal.
        last = error.stderr.strip().splitlines()[-1:] or [""]
        return {"error": f"exit code {error.returncode} {last[0]}".strip()}
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def measure_on_workers(query: Query, frame: Any, client: Any, name: str) -> dict[str, Any]:
    """Measure one query on a cluster that holds the data, summed over the workers.

    The client's copy of the result is not counted. A worker that was restarted on the way has no
    peak to read, so a failed query has none.
    """
    before = client.run(reset_peak)
    done = arms.run(query, frame, name)
    after = client.run(peak)
    if done.error is not None or set(before) != set(after):
        return {"error": done.error or "a worker was restarted"}
    growth = [after[worker] - before[worker] for worker in before]
    return {
        "baseline_bytes": sum(before.values()),
        "peak_bytes": sum(growth),
        "largest_worker_bytes": max(growth),
        "error": None,
    }


def median_peak(measured: Sequence[dict[str, Any]]) -> float | None:
    """Return the median of ``peak_bytes`` over the measurements that did not fail."""
    peaks = [one["peak_bytes"] for one in measured if one["error"] is None]
    return statistics.median(peaks) if peaks else None


def main() -> None:
    """Measure one query in this process and print the outcome as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("query", choices=list(QUERIES))
    parser.add_argument("arm", choices=arms.ARMS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("partitions", type=int)
    parser.add_argument("threads", type=int)
    arguments = parser.parse_args()
    arms.prepare([arguments.arm])
    query = QUERIES[arguments.query]
    with dask.config.set(scheduler="threads", num_workers=arguments.threads):
        measured = measure_here(query, arguments.folder, arguments.partitions, arguments.arm)
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
