"""Chunks of files: read ahead, in order, in bounded number, and not for nobody."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import Task
from distributed import Client, get_worker

from dask_gpuagg.plan import Plan, Requested
from dask_gpuagg.planning.nodes import GroupByChunkDirect, GroupByChunks, GroupByPartial
from dask_gpuagg.reporting.runs import rows_done, task
from dask_gpuagg.tasks import partials as module
from dask_gpuagg.tasks.reading import ACTIVITY, ROWS_DONE, reading, show_progress
from tests.comparison import same
from tests.data import plan_of
from tests.planning.test_chunks import frame, nodes
from tests.workers import workers_of

pytestmark = pytest.mark.usefixtures("plugin")

FILES = 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    for i, part in enumerate(np.array_split(np.arange(len(frame())), FILES)):
        frame().iloc[part].to_parquet(directory / f"{i}.parquet")
    return directory


def parts(run: Any, number: int) -> list[Any]:
    """Chunks.parts of tasks that call a function with their number."""
    return [
        ((Task(("t", i), run, i),), ((True, ("t", i)), (False, None), (False, "k")))
        for i in range(number)
    ]


def test_filters_and_new_columns_run_inside(folder: Path) -> None:
    ddf = dd.read_parquet(folder)
    with dask.config.set({"gpuagg.chunk": 100, "scheduler": "synchronous"}):
        query = ddf[ddf.v > 1e6 + 0.5].assign(z=ddf.v * 2).groupby("k").z.sum()
        (node,) = nodes(query, GroupByChunkDirect)
        assert str(node.chunks) == "3 partitions in 1 task on 1 worker, 1 read at a time"
        assert len(dict(query.optimize(fuse=False).__dask_graph__())) == 1


def test_what_another_node_reads_is_not_read_twice(folder: Path) -> None:
    ddf = dd.read_parquet(folder)
    with dask.config.set({"gpuagg.chunk": 100, "scheduler": "synchronous"}):
        shared = ddf.groupby("k").v.sum() + ddf.groupby("k").v.max()
        assert len(nodes(shared, GroupByPartial)) == 2
        both = dask.compute(ddf.groupby("k").v.sum(), ddf.v.max())
        same(both[0], frame().groupby("k").v.sum())
        assert both[1] == frame().v.max()


def test_users_readers_have_tasks_of_their_own(folder: Path) -> None:
    ddf = dd.from_map(pd.read_parquet, sorted(folder.iterdir()))
    with dask.config.set({"gpuagg.chunk": 100}):
        assert nodes(ddf.groupby("k").v.sum(), GroupByPartial)


@pytest.mark.parametrize("readers", [1, 3])
def test_partitions_come_in_order_and_few_wait(readers: int) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def read(i: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01 * (i % 3))
        with lock:
            running -= 1
        return i

    with reading(parts(read, 20), readers) as frames:
        assert [got for got, _, _ in frames] == list(range(20))
    assert most <= readers


def test_all_readers_work_while_a_partition_is_used() -> None:
    class Frame:
        """A partition that was read."""

    there: weakref.WeakSet[Frame] = weakref.WeakSet()
    begun = threading.Semaphore(0)

    def read(i: int) -> Frame:
        frame = Frame()
        there.add(frame)
        begun.release()
        return frame

    with reading(parts(read, 9), 3) as frames:
        for i in range(9):
            used = next(frames)
            for _ in range(4 if i == 0 else min(1, 9 - 3 - i)):
                assert begun.acquire(timeout=10)
            assert not begun.acquire(blocking=False)
            assert len(there) == min(3 + 1, 9 - i)
            del used


def test_an_error_of_a_reader_is_raised_and_the_rest_is_not_read() -> None:
    started: list[int] = []

    def read(i: int) -> None:
        started.append(i)
        raise OSError(f"file {i} is not there")

    with pytest.raises(OSError, match="file 0"), reading(parts(read, 20), 2) as frames:
        list(frames)
    assert len(started) < 6


def test_a_partition_is_read_again_where_memory_lacked() -> None:
    """Once what the first reading held is released."""

    class Held:
        """Memory that a reading has allocated."""

    references: list[weakref.ref[Held]] = []

    def read(i: int) -> int:
        held = Held()
        if i == 3 and not references:
            references.append(weakref.ref(held))
            raise MemoryError("no memory for file 3")
        if references and i == 3:
            assert references[0]() is None
        return i

    with reading(parts(read, 6), 2) as frames:
        assert [frame for frame, _, _ in frames] == list(range(6))
    assert references


# of the process: a cluster in it gets copies of functions that are made inside of a test
READ: list[int] = []


def read_slowly(i: int) -> None:
    READ.append(i)
    time.sleep(0.05)


def read_much() -> None:
    with reading(parts(read_slowly, 200), 2) as frames:
        for _ in frames:
            pass


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A cluster of two workers with a thread each, in this process."""
    with Client(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None,
        set_as_default=False,
    ) as client:  # fmt: skip
        yield client


def test_a_cancelled_task_stops_reading(client: Client) -> None:
    READ.clear()
    worker = next(iter(workers_of(client)))
    future = client.submit(read_much, workers=[worker])
    while len(READ) < 3:
        time.sleep(0.01)
    future.cancel()
    client.submit(int, workers=[worker]).result(timeout=30)  # the thread is free again
    assert len(READ) < 100


def sums() -> Plan:
    rows = pd.DataFrame({"k": [1], "v": [1.0]})
    return plan_of(rows, ["k"], Requested("v", "sum", "v"), sort=False)


def test_partials_are_merged_as_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BYTES_OF_A_CALL", 1)
    monkeypatch.setattr(module, "_FEW_ROWS", 10)
    counts: list[int] = []
    combined = module.combined

    def counted(partials: Any, plan: Any, owned: bool) -> Any:
        counts.append(len(partials))
        return combined(partials, plan, owned)

    monkeypatch.setattr(module, "combined", counted)
    plan = sums()
    # every partition has rows of its own
    data = pd.DataFrame({"k": np.arange(3200), "v": np.arange(3200) / 7})
    progress = [rows_done()]

    def frames() -> Iterator[tuple[pd.DataFrame, list[str], None]]:
        for i in range(0, 3200, 100):
            yield data.iloc[i : i + 100], ["k"], None
            progress.append(rows_done())

    with task(plan, "chunk") as done:
        merged = combined(module.partials_of_stream(frames(), plan, done.saw), plan)
    # each partition is counted while the chunk runs
    assert [rows - progress[0] for rows in progress] == list(range(0, 3300, 100))
    got = merged["groups"].set_index("k0")["s0.sum"]
    same(got.rename_axis("k").rename("v"), data.set_index("k").v)
    assert counts == [2, 4, 7, 13]  # at 200, 500, 1100 and 2300 rows


def test_a_heartbeat_that_reads_the_metrics_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = SimpleNamespace(metrics={"a": 1, "b": 2})
    state = SimpleNamespace(execution_state={"worker": worker, "key": "x"})
    monkeypatch.setattr(sys.modules["distributed.worker"], "thread_state", state)
    reads = iter(worker.metrics.items())
    assert next(reads) == ("a", 1)
    show_progress()
    assert list(reads) == [("b", 2)]
    assert list(worker.metrics) == ["a", "b", ROWS_DONE, ACTIVITY]
    shown = worker.metrics
    show_progress()
    assert worker.metrics is shown


def test_a_partition_lives_no_longer_than_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is read when it is gone."""
    monkeypatch.setattr(module, "_BYTES_OF_A_CALL", 1)
    plan = sums()
    references: list[weakref.ref[Labels]] = []
    read = module.inputs_of

    class Labels:
        """In the place of row labels, which no state reads here."""

    def inputs_of(*given: Any) -> Any:
        labels = Labels()
        references.append(weakref.ref(labels))
        return replace(read(*given), index=labels)

    monkeypatch.setattr(module, "inputs_of", inputs_of)

    def frames() -> Iterator[Any]:
        for i in range(4):
            gc.collect()
            assert [of() for of in references] == [None] * i
            yield pd.DataFrame({"k": np.arange(9), "v": np.full(9, 1.0)}), ["k"], None

    result = module.partials_of_stream(frames(), plan, lambda *_, **__: None)
    assert sum(float(partial["groups"]["s0.sum"].sum()) for partial in result) == 36.0


def test_chunks_of_a_cluster(client: Client, folder: Path) -> None:
    with client.as_current(), dask.config.set({"gpuagg.chunk": 3}):
        query = dd.read_parquet(folder).groupby("k").agg({"v": ["sum", "median"]})
        assert len(nodes(query, GroupByChunks)[0].chunks) == 2
        same(query.compute(), frame().groupby("k").agg({"v": ["sum", "median"]}))


def test_readers_are_on_the_tasks_worker(client: Client) -> None:
    def run() -> set[str]:
        with reading(parts(lambda i: get_worker().address, 6), 2) as frames:
            return {address for address, _, _ in frames}

    for worker in workers_of(client):
        assert client.submit(run, workers=[worker], pure=False).result() == {worker}
