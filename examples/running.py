"""Where the questions of ``db_benchmark.py`` run: threads of this process, or workers on GPUs."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import dask.dataframe as dd
from dask.diagnostics import ProgressBar

import dask_gpuagg

# Larger answers stay on the GPU; of those their sums are compared.
BROUGHT_ROWS = 2_000_000


@dataclass(frozen=True)
class Ran:
    """What came of a query.

    Attributes
    ----------
    answer : DataFrame or collection
    seconds : float
    peak : int
        Bytes of device memory beside the data, at most; 0 where nothing counts them.
    """

    answer: Any
    seconds: float
    peak: int = 0


class Threads:
    """The threads of this process."""

    gpu = False

    def ready(self, x: dd.DataFrame) -> dd.DataFrame:
        """The collection, when all of it is there."""
        len(x)
        return x

    def run(self, query: Any, limit: float | None = None) -> Ran:
        """The answer of a query in this process; nothing stops a thread at a limit."""
        start = time.perf_counter()
        # a bar of its tasks where somebody looks
        with ProgressBar(minimum=2) if sys.stderr.isatty() else nullcontext():
            answer = query.compute()
        return Ran(answer, time.perf_counter() - start)

    def brought(self, answer: Any) -> Any:
        """An answer as a frame of pandas."""
        return answer


class Workers:
    """Workers of a cluster of this machine's GPUs, where data and answers stay."""

    gpu = True

    def __init__(self, client: Any) -> None:
        self.client = client
        client.run(_count)

    def ready(self, x: dd.DataFrame) -> dd.DataFrame:
        """The collection, when all of it is there."""
        from distributed import wait

        wait(x)
        return x

    def run(self, query: Any, limit: float | None = None) -> Ran:
        """The answer of a query, left where it was made.

        Raises
        ------
        TimeoutError
            After ``limit`` seconds; what has begun is then waited for.
        """
        from distributed import futures_of, wait

        self.client.run(_reset)
        start = time.perf_counter()
        answer = query.persist()
        try:
            wait(answer, timeout=limit)
        except TimeoutError:
            self.client.cancel(futures_of(answer))
            # workers end what they have begun; the scheduler knows of none of it
            while any(self.client.run(_running).values()):
                time.sleep(0.1)
            raise
        seconds = time.perf_counter() - start
        for future in futures_of(answer):
            if future.status == "error":
                raise future.exception()
        return Ran(answer, seconds, max(self.client.run(_peak).values()))

    def brought(self, answer: Any) -> Any:
        """An answer as a frame of pandas, where it is not too large; its sums otherwise."""
        rows = len(answer)
        if rows > BROUGHT_ROWS:
            return rows, answer.sum().compute()
        return answer.compute().to_pandas()


@contextlib.contextmanager
def place(gpu: bool) -> Iterator[Threads | Workers]:
    """Where everything runs."""
    if not gpu:
        yield Threads()
        return
    from dask_cuda import LocalCUDACluster
    from distributed import Client

    # the scheduler warns of the start and the end of every shuffle
    logging.getLogger("distributed.shuffle._scheduler_plugin").setLevel(logging.ERROR)
    # what is freed can be taken again, in whatever pieces
    with (
        LocalCUDACluster(rmm_async=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(dask_gpuagg.GpuWorker())
        yield Workers(client)


def _running(dask_worker: Any) -> int:
    return len(dask_worker.state.all_running_tasks)


# on a worker: what counts its memory
_counter: list[Any] = []


def _count() -> None:
    import rmm

    counted = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_current_device_resource())
    rmm.mr.set_current_device_resource(counted)
    counted.push_counters()
    _counter.append(counted)


def _reset() -> None:
    _counter[-1].pop_counters()
    _counter[-1].push_counters()


def _peak() -> int:
    return int(_counter[-1].allocation_counts.peak_bytes) if _counter else 0
