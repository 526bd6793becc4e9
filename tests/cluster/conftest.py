"""Clusters of local processes, and workers that are not like the others."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import dask
import pytest
from distributed import Client

import dask_gpuagg
from tests.running import environment
from tests.workers import cluster_of, workers_of

# installed in a process before anything else is imported: the package is not there
WITHOUT_THE_PACKAGE = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "dask_gpuagg":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""

# another version of the package, whatever is installed
ANOTHER_VERSION = """
import sys, types
version = types.ModuleType("dask_gpuagg._version")
version.__version__ = "0.0.1"
sys.modules["dask_gpuagg._version"] = version
"""

WORKER = """
import asyncio
from distributed import Worker

async def main():
    async with Worker({address!r}, nthreads=1, dashboard=False, port={port}) as worker:
        await worker.finished()

asyncio.run(main())
"""

SCHEDULER = """
import asyncio
from distributed import Scheduler

async def main():
    async with Scheduler(host="127.0.0.1", port={port}, dashboard=False) as scheduler:
        with open({file!r}, "w") as file:
            file.write(scheduler.address + "\\n")
        await scheduler.finished()

asyncio.run(main())
"""


@contextlib.contextmanager
def process(code: str) -> Iterator[subprocess.Popen[str]]:
    """Python running some code until the context ends."""
    running = subprocess.Popen([sys.executable, "-c", code], env=environment(), text=True)
    try:
        yield running
    finally:
        running.kill()
        running.wait()


@contextlib.contextmanager
def worker(prelude: str, client: Client, port: int = 0) -> Iterator[None]:
    """One more worker of a cluster, in whose process ``prelude`` has run first."""
    before = len(workers_of(client))
    address = client.scheduler.address
    with process(prelude + WORKER.format(address=address, port=port)):
        client.wait_for_workers(before + 1, timeout=60)
        yield


@contextlib.contextmanager
def scheduler(prelude: str, folder: Path, port: int = 0) -> Iterator[str]:
    """Address of a scheduler in whose process ``prelude`` has run first."""
    file = folder / "address"
    file.unlink(missing_ok=True)
    with process(prelude + SCHEDULER.format(file=str(file), port=port)) as running:
        while not (file.exists() and file.read_text().endswith("\n")):
            assert running.poll() is None
        yield file.read_text().strip()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A cluster of two processes."""
    with cluster_of(2) as client:
        yield client


@pytest.fixture
def small() -> Iterator[Client]:
    """A cluster of one worker in this process, for tests that change it."""
    # tcp: workers in other processes are going to join
    with cluster_of(1, processes=False, protocol="tcp", host="127.0.0.1") as client:
        yield client


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "warn"}):
        yield
