"""Workers that die, leave, pause and join, and futures that go, while chunks of a query run."""

import gc
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import psutil
import pytest
from distributed import Client, KilledWorker, LocalCluster, Status, futures_of, wait

import dask_gpuagg
from dask_gpuagg.cluster import cluster_problem
from dask_gpuagg.planning.nodes import GroupByChunkDirect, GroupByChunks
from dask_gpuagg.reporting.runs import session
from tests.cluster.conftest import scheduler, worker
from tests.comparison import assert_same
from tests.workers import workers_of

ROWS, PARTITIONS = 2400, 24
# seconds that any query here may take; a query that hangs fails its test
PATIENCE = 60
CHUNKED = (GroupByChunks, GroupByChunkDirect)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two processes that are started again when they die, and stay paused when a test says so."""
    with (
        dask.config.set(
            {
                "distributed.worker.memory.pause": False,
                # a nanny is closed whose worker is being started again when this has passed
                "distributed.deploy.lost-worker-timeout": "1 hour",
            }
        ),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, timeout=PATIENCE) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def _two_workers(client: Client) -> Iterator[None]:
    client.wait_for_workers(2, timeout=PATIENCE)
    with dask.config.set({"gpuagg.fallback": "raise"}):
        yield


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return pd.DataFrame({"k": rng.integers(0, 40, ROWS), "v": rng.integers(-99, 99, ROWS) / 4})


def expected() -> pd.Series:
    return frame().groupby("k").v.sum()


def held(npartitions: int = PARTITIONS) -> Any:
    """A persisted collection, which can be computed again where it is lost."""
    # a name of its own, so that no test reads what another one left
    rows = dd.from_pandas(frame().assign(unlike=time.time()), npartitions=npartitions).persist()
    wait(rows, timeout=PATIENCE)
    return rows


def planned(query: Any) -> Any:
    """The query with its chunks chosen, so that what happens later is a surprise."""
    optimized = query.optimize(fuse=False)
    assert any(True for kind in CHUNKED for _ in optimized.expr.find_operations(kind))
    return optimized


def right(client: Client, query: Any) -> None:
    assert_same(client.compute(query).result(timeout=PATIENCE), expected())


def workers(client: Client) -> list[str]:
    return sorted(workers_of(client))


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kill(client: Client, address: str) -> None:
    (pid,) = client.run(os.getpid, workers=[address]).values()
    os.kill(pid, signal.SIGKILL)


class Once:
    """Do something the first time that it is called in a worker.

    Metadata is made in the client's process, where it does nothing.
    """

    def __init__(self, marker: Path, slow: float = 0.0) -> None:
        self.marker, self.slow, self.client = str(marker), slow, os.getpid()

    def __call__(self) -> None:
        if os.getpid() == self.client:
            return
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self.slow:
            time.sleep(self.slow)
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def total(at: str, once: Callable[[], None]) -> dd.Aggregation:
    """A sum in one of whose steps something happens once."""

    def chunk(grouped: Any) -> Any:
        if at == "partial":
            once()
        return grouped.sum()

    def merge(grouped: Any) -> Any:
        if at == "merge":
            once()
        return grouped.sum()

    return dd.Aggregation("total", chunk, merge)


def test_a_task_that_kills_every_worker_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = os.getpid()
    # each worker takes seconds to start again
    monkeypatch.setattr(client.cluster.scheduler, "allowed_failures", 1)

    def dying() -> None:
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)

    query = planned(held().groupby("k").v.agg(total("partial", dying)))
    with pytest.raises(KilledWorker, match=r"gpuagg_chunk.* on 2 different workers"):
        client.compute(query).result(timeout=PATIENCE)


def test_a_worker_dies_with_its_partitions_before_the_query_runs(client: Client) -> None:
    ddf = held()
    query = planned(ddf.groupby("k").v.sum())
    kill(client, workers(client)[0])
    right(client, query)
    # and planned anew, from where the partitions lie then
    client.wait_for_workers(2, timeout=PATIENCE)
    wait(ddf, timeout=PATIENCE)
    right(client, planned(ddf.groupby("k").v.sum()))


def test_a_worker_joins_and_retires(client: Client) -> None:
    query = planned(held().groupby("k").v.sum())
    before = set(workers(client))
    with worker("", client):
        right(client, query)
        ddf = held()
        (joined,) = set(workers(client)) - before
        assert (joined,) in client.who_has(futures_of(ddf)).values()
        again = [planned(ddf.groupby("k").v.sum(split_out=outputs)) for outputs in (1, 3)]
        client.retire_workers([joined])
        assert joined not in workers(client)
        for query in again:
            right(client, query)


def test_all_partitions_move_before_the_query_runs(client: Client) -> None:
    ddf = held()
    query = planned(ddf.groupby("k").v.sum())
    one, other = workers(client)
    places = client.who_has(futures_of(ddf))
    moved = {key: other if place == (one,) else one for key, place in places.items()}

    async def move(dask_scheduler: Any) -> None:
        # a copy that a worker has no time for is not made
        while any(len(dask_scheduler.tasks[key].who_has) < 2 for key in moved):
            await dask_scheduler.replicate(keys=list(moved), n=2)
        for key, place in places.items():
            await dask_scheduler.delete_worker_data(place[0], [key], "moved by a test")

    client.run_on_scheduler(move)
    assert {k: tuple(v) for k, v in client.who_has(futures_of(ddf)).items()} == {
        key: (place,) for key, place in moved.items()
    }
    right(client, query)


@pytest.mark.parametrize("when", ["before planning", "after planning"])
def test_a_paused_worker(client: Client, when: str) -> None:
    def turn(status: Status) -> None:
        def change(dask_worker: Any) -> None:
            dask_worker.status = status

        client.run(change, workers=[address])
        until(lambda: client.run_on_scheduler(status_of) == status.name)

    def status_of(dask_scheduler: Any) -> str:
        return str(dask_scheduler.workers[address].status.name)

    address = workers(client)[0]
    ddf = held()
    assert (address,) in client.who_has(futures_of(ddf)).values()
    query = planned(ddf.groupby("k").v.sum())
    turn(Status.paused)
    try:
        right(client, ddf.groupby("k").v.sum() if when == "before planning" else query)
    finally:
        turn(Status.running)


def test_a_cancelled_query_is_asked_again(client: Client, tmp_path: Path) -> None:
    marker = tmp_path / "began"
    ddf = held()

    def ask() -> Any:
        return planned(ddf.groupby("k").v.agg(total("partial", once)))

    once = Once(marker, slow=1.0)
    future = client.compute(ask())
    until(marker.exists)
    future.cancel()
    # the scheduler's notice also cancels what has the same name by then (distributed's
    # issue 8215, stock Dask too): messages come in order, so this one comes after it
    client.submit(time.time, pure=False).result(timeout=PATIENCE)
    right(client, ask())
    with pytest.raises(CancelledError):
        future.result(timeout=PATIENCE)


def test_queries_at_once_of_two_clients(client: Client) -> None:
    ddf = held()
    name = f"shared-{time.time()}"
    client.publish_dataset(ddf, name=name)

    def ask(number: int) -> None:
        asker = client if number % 2 else second
        shared = ddf if number % 2 else second.get_dataset(name)
        with dask_gpuagg.enabled():
            right(asker, shared.groupby("k").v.sum(split_out=1 + number % 3))

    with (
        Client(client.scheduler.address, set_as_default=False, timeout=PATIENCE) as second,
        ThreadPoolExecutor(4) as threads,
    ):
        session.reset()
        list(threads.map(ask, range(8)))
    assert session.planned
    assert not session.fallbacks
    client.unpublish_dataset(name)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("send", [Client.persist, Client.compute])
def test_the_collection_is_released_when_its_query_was_sent(
    client: Client, send: Any, outputs: int
) -> None:
    ddf = held()
    keys = [future.key for future in futures_of(ddf)]
    result = send(client, planned(ddf.groupby("k").v.sum(split_out=outputs)))
    del ddf
    gc.collect()
    until(lambda: not any(client.refcount.get(key) for key in keys))
    future = result if send is Client.compute else client.compute(result)
    assert_same(future.result(timeout=PATIENCE), expected())


def test_many_queries_leave_nothing_behind(client: Client) -> None:
    ddf = held(6)

    def level(dask_scheduler: Any) -> tuple[int, int, int]:
        managed = sum(state.nbytes for state in dask_scheduler.workers.values())
        keys = sum(len(state.has_what) for state in dask_scheduler.workers.values())
        return managed, keys, len(dask_scheduler.tasks)

    def tasks(dask_worker: Any) -> int:
        return len(dask_worker.state.tasks)

    def memory() -> int:
        gc.collect()
        return int(psutil.Process().memory_info().rss)

    def settled() -> Any:
        gc.collect()
        deadline, before = time.monotonic() + PATIENCE, None
        while (result := (client.run_on_scheduler(level), client.run(tasks))) != before:
            assert time.monotonic() < deadline
            before = result
            time.sleep(0.3)
        return result, len(client.futures)

    def ask(first: int, last: int) -> None:
        for i in range(first, last):
            future = client.compute(ddf[ddf.v > i].groupby("k").v.sum(split_out=1 + i % 2))
            future.result(timeout=PATIENCE)

    ask(0, 20)
    after_few, resident = settled(), client.run(memory)
    ask(20, 110)
    assert settled() == after_few
    # 90 queries that leave 300 kB each would show; what the allocators keep is less
    more = {address: used - resident[address] for address, used in client.run(memory).items()}
    assert max(more.values()) < 27e6, more


def test_a_restart_between_planning_and_running(client: Client) -> None:
    ddf = held()
    ours = planned(ddf.groupby("k").v.sum())
    read = dd.from_pandas(frame(), npartitions=PARTITIONS).groupby("k").v.sum().optimize()
    client.restart(timeout=PATIENCE)
    # the futures are gone, for stock Dask too
    with dask.config.set({"gpuagg.enabled": False}):
        stock = client.compute(ddf.groupby("k").v.sum())
    for lost in (client.compute(ours), client.compute(ddf.groupby("k").v.sum()), stock):
        with pytest.raises(CancelledError):
            lost.result(timeout=PATIENCE)
    right(client, read)
    right(client, planned(held().groupby("k").v.sum()))


def test_a_scheduler_that_is_started_again(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    query = dd.from_pandas(frame(), npartitions=PARTITIONS).groupby("k").v.sum()
    with ExitStack() as both:
        with ExitStack() as first:
            address = first.enter_context(scheduler("", tmp_path, port))
            client = both.enter_context(Client(address, timeout=PATIENCE))
            first.enter_context(worker("", client))
            right(client, planned(held().groupby("k").v.sum()))
        # as long as there is none, nothing is asked of it
        until(lambda: client.status != "running")
        assert cluster_problem(client) == "the client is not connected to its scheduler"
        assert dask_gpuagg.check_cluster(client) == cluster_problem(client)
        assert both.enter_context(scheduler("", tmp_path, port)) == address
        until(lambda: client.status == "running")
        both.enter_context(worker("", client))
        right(client, query)
        right(client, planned(held().groupby("k").v.sum()))
        # before its scheduler goes
        client.close()
