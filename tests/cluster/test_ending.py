"""Worker processes that end while they compile."""

import time
from pathlib import Path

from dask_gpuagg.cuda.runtime import compiler
from tests.workers import cluster_of


def begin(path: Path) -> None:
    """A task that begins what is done in the background."""

    def work() -> None:
        path.write_text("begun")
        time.sleep(0.5)
        path.write_text("done")

    compiler.submit(work)
    while not path.exists():
        time.sleep(0.001)


def test_what_a_task_has_begun_is_completed(tmp_path: Path) -> None:
    """NVRTC's static objects must not be destroyed under a thread that compiles."""
    path = tmp_path / "progress"
    with cluster_of(1) as client:
        client.submit(begin, path).result(timeout=60)
        process = client.cluster.workers[0].process.process
    assert path.read_text() == "done"
    assert process.exitcode == 0
