"""Chunks: which partitions a task takes, and that answers do not depend on it."""

import functools
import gc
import pickle
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import Task
from dask.base import tokenize
from dask.dataframe.dask_expr import from_graph
from distributed import Client, default_client, futures_of, wait
from hypothesis import given
from hypothesis import strategies as st

import dask_gpuagg
from dask_gpuagg import cluster
from dask_gpuagg.cluster import Place, Places, WorkerSize
from dask_gpuagg.planning import bucketing
from dask_gpuagg.planning.bucketing import (
    HOST_BYTES,
    HOST_SHARE,
    buckets_of,
    held_by,
    partitions_of_tasks,
)
from dask_gpuagg.planning.nodes import GroupByChunkDirect, GroupByChunks, GroupByPartial
from tests.comparison import same
from tests.workers import workers_of

PARTITIONS = 24
DEVICE = 1 << 20


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        Client(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as made,
        dask.config.set({"gpuagg.fallback": "raise"}),
        dask_gpuagg.enabled(),
    ):
        yield made


def frame(rows: int = 2400) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "k": rng.integers(0, 40, rows),
            "s": rng.choice(["a", "bb", "é", None], rows),
            "c": pd.Categorical(rng.choice(["x", "y"], rows), categories=["x", "y", "z"]),
            "v": rng.random(rows) + 1e6,
            "i": pd.array(rng.integers(0, 9, rows), dtype="Int8"),
            "row": np.arange(rows),
        }
    )


def held(client: Client, pdf: pd.DataFrame, workers: list[int]) -> Any:
    """A persisted collection whose partitions lie on workers by number, in turn.

    ``persist`` leaves to the scheduler where they lie, which may take an idle worker.
    """
    addresses = sorted(workers_of(client))
    size, name = len(pdf) // PARTITIONS, f"held-{uuid.uuid4().hex}"
    futures = {
        (name, i): client.submit(
            pdf.iloc[i * size : (i + 1) * size].copy,
            key=(name, i),
            workers=[addresses[workers[i % len(workers)]]],
        )
        for i in range(PARTITIONS)
    }
    wait(list(futures.values()))
    return from_graph(futures, pdf.iloc[:0], (None,) * (PARTITIONS + 1), list(futures), "held")


def nodes(query: Any, kind: type) -> list[Any]:
    return list(query.optimize(fuse=False).expr.find_operations(kind))


QUERIES = {
    "sum": lambda d: d.groupby("k").v.sum(),
    "size": lambda d: d.groupby("k").size(),
    "several": lambda d: d.groupby(["k", "s"], dropna=False).agg({"v": ["sum", "std"], "i": "max"}),
    "order": lambda d: d.groupby("k").agg({"row": ["first", "last"], "s": "first"}),
    "sorted": lambda d: d.groupby("k", sort=True).v.mean(),
    "whole rows": lambda d: d.groupby("k").v.median(),
    "mixed kinds": lambda d: d.groupby("k").agg({"v": ["median", "sum"], "s": ["nunique", list]}),
    "labels": lambda d: d.groupby("k").v.idxmax(),
    "categories": lambda d: d.groupby("c", observed=False).v.sum(),
    "series as key": lambda d: d.groupby(d.k % 7).v.sum(),
    "function as key": lambda d: d.groupby(lambda i: i % 5).v.sum(),
    "filtered": lambda d: d[d.v > 1e6 + 0.5].assign(z=d.v * 2).groupby("k").z.sum(),
    "values": lambda d: d.groupby("k").c.value_counts(),
    "several outputs": lambda d: d.groupby("k").v.sum(split_out=3),
    "custom": lambda d: d.groupby("k").v.agg(
        dd.Aggregation("total", lambda g: g.sum(), lambda g: g.sum())
    ),
}


@functools.cache
def by_partitions(client: Client, name: str) -> Any:
    """The result of a query by a task for each partition."""
    ddf = held(client, frame(), [0])
    with dask.config.set({"gpuagg.chunk": 1}):
        assert not nodes(QUERIES[name](ddf), GroupByChunks)
        return QUERIES[name](ddf).compute()


@pytest.mark.parametrize(
    ("name", "workers"),
    [*((name, [0, 0, 1]) for name in QUERIES), ("several", [0]), ("sorted", [0]), ("order", [0])],
)
def test_answers_are_those_of_a_task_for_each_partition(
    client: Client, name: str, workers: list[int]
) -> None:
    got = QUERIES[name](held(client, frame(), workers)).compute()
    expected = by_partitions(client, name)
    same(got, expected)
    if name == "sorted":
        assert list(got.index) == list(expected.index)


def test_one_worker_has_one_task(client: Client) -> None:
    query = held(client, frame(), [0]).groupby("k", sort=True).v.sum()
    (node,) = nodes(query, GroupByChunkDirect)
    assert str(node.chunks) == "24 partitions in 1 task on 1 worker"
    layer = node._layer()
    assert [key for key, task in layer.items() if isinstance(task, Task)] == [(node._name, 0)]
    assert layer.keys() - {(node._name, 0)} == {future.key for future in futures_of(query)}
    assert "24 partitions in 1 task on 1 worker" in str(dask_gpuagg.explain(query))


def test_a_chunk_has_the_partitions_of_one_worker(client: Client) -> None:
    ddf = held(client, frame(), [0, 1])
    with dask_gpuagg.enabled():
        (node,) = nodes(ddf.groupby("k", sort=True).v.sum(), GroupByChunks)
    assert node.chunks.buckets == (tuple(range(0, 24, 2)), tuple(range(1, 24, 2)))


def test_order_needs_partitions_that_follow_each_other(client: Client) -> None:
    ddf = held(client, frame(), [0, 0, 1])
    (node,) = nodes(ddf.groupby("k").row.first(), GroupByChunks)
    assert node.chunks.buckets[:4] == ((0, 1), (2,), (3, 4), (5,))


def test_a_chunk_travels_without_metadata(client: Client) -> None:
    ddf = held(client, frame(), [0])
    (node,) = nodes(ddf[ddf.v > 0].groupby("k").v.sum(), GroupByChunkDirect)
    again = pickle.loads(pickle.dumps(node.chunks))
    assert not hasattr(again, "frame")
    assert (len(again), str(again), again.parts[0]) == (1, str(node.chunks), node.chunks.parts[0])
    assert tokenize(again) == tokenize(node.chunks)


def sent_elsewhere(query: Any) -> Any:
    again = pickle.loads(pickle.dumps(query.optimize()))
    for future in futures_of(again):  # as Client.get_dataset does
        future.bind_client(default_client())
    return again


LATER = {
    "delayed partitions": lambda query: query.to_delayed(),
    "a delayed argument": lambda query: dask.delayed(pd.Series.copy)(query),
    "sent elsewhere": sent_elsewhere,
}


@pytest.mark.parametrize(("workers", "outputs"), [([0], 1), ([0, 1], 3)])
@pytest.mark.parametrize("kind", LATER)
def test_what_outlives_the_collection_holds_its_partitions(
    client: Client, kind: str, workers: list[int], outputs: int
) -> None:
    ddf = held(client, frame(), workers)
    keys = [future.key for future in futures_of(ddf)]
    later = LATER[kind](ddf.groupby("k").v.sum(split_out=outputs))
    del ddf
    gc.collect()
    assert all(client.refcount[key] for key in keys)
    found = client.gather(client.compute(later))
    got = pd.concat(found) if isinstance(found, list) else found
    same(got, frame().groupby("k").v.sum())


@pytest.mark.parametrize(
    ("chunk", "tasks"), [(1, 24), (5, 5), (24, 1), ("1GB", 1), ("auto", 1)], ids=str
)
def test_the_setting(client: Client, chunk: Any, tasks: int) -> None:
    ddf = held(client, frame(), [0])
    with dask.config.set({"gpuagg.chunk": chunk}):
        query = ddf.groupby("k").v.sum()
        chunks = [
            n.chunks for kind in (GroupByChunks, GroupByChunkDirect) for n in nodes(query, kind)
        ]
        made = sum(map(len, chunks)) + sum(n.npartitions for n in nodes(query, GroupByPartial))
        assert made == tasks
        same(query.compute(), frame().groupby("k").v.sum())


def test_a_query_of_files_asks_for_the_workers_once(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is planned before its inputs are lowered, and after."""
    for i in range(9):
        frame().drop(columns="c").to_parquet(tmp_path / f"{i}.parquet")
    asked: list[Any] = []

    def ask(*args: Any) -> Places:
        asked.append(args)
        return cluster.ask(*args)

    monkeypatch.setattr(bucketing, "ask", ask)
    bucketing._recent.clear()
    with dask.config.set({"gpuagg.chunk": 3}):
        (node,) = nodes(dd.read_parquet(tmp_path).groupby("k").v.sum(), GroupByChunks)
        assert len(node.chunks) == len(workers_of(client))
        assert len(asked) == 1
        monkeypatch.setattr(bucketing, "GOOD_FOR", 0.0)
        assert nodes(dd.read_parquet(tmp_path).groupby("k").v.sum(), GroupByChunks)
        assert len(asked) > 1


def test_what_is_not_there_yet_has_a_task_each(client: Client) -> None:
    def slow(pdf: pd.DataFrame) -> pd.DataFrame:
        time.sleep(0.5)
        return pdf

    ddf = dd.from_pandas(frame(), npartitions=4).map_partitions(slow).persist()
    query = ddf.groupby("k").v.sum()
    assert not nodes(query, GroupByChunkDirect)
    same(query.compute(), frame().groupby("k").v.sum())


def test_users_functions_stay_outside(client: Client) -> None:
    ddf = held(client, frame(), [0]).map_partitions(lambda pdf: pdf)
    assert nodes(ddf.groupby("k").v.sum(), GroupByPartial)


@st.composite
def placed(draw: Any) -> tuple[list[Place | None], Places]:
    workers = [f"w{i}" for i in range(draw(st.integers(1, 4)))]
    place = st.builds(Place, st.sampled_from(workers), st.integers(0, 3 * HOST_BYTES))
    found = draw(st.lists(st.none() | place, min_size=1, max_size=40))
    memory = st.just(0) | st.integers(1 << 26, 1 << 32)
    sizes = {w: WorkerSize(draw(st.integers(1, 4)), DEVICE, draw(memory)) for w in workers}
    return found, Places({}, sizes)


@given(placed(), st.booleans(), st.booleans())
def test_every_partition_is_in_one_chunk(
    case: tuple[list[Place | None], Places], in_order: bool, device: bool
) -> None:
    found, places = case
    buckets = buckets_of(found, places, in_order, device)
    assert sorted(i for bucket in buckets for i in bucket) == list(range(len(found)))
    assert list(buckets) == sorted(buckets)
    for bucket in buckets:
        assert list(bucket) == sorted(bucket)
        assert len({None if (p := found[i]) is None else p.worker for i in bucket}) == 1
        if found[bucket[0]] is None:
            assert len(bucket) == 1
        if in_order:
            assert bucket == tuple(range(bucket[0], bucket[-1] + 1))
        sizes = [p.nbytes for i in bucket if (p := found[i]) is not None]
        most = DEVICE // 4 if device else HOST_BYTES
        if not device and sizes:
            worker = places.workers[next(p.worker for i in bucket if (p := found[i]) is not None)]
            share = worker.memory // (HOST_SHARE * worker.threads)
            most = min(most, share) if worker.memory else most
        # a chunk is cut at the middle of a partition: it may be half of one too large at each end
        assert sum(sizes) <= most + sum(sorted(sizes)[-2:])


def source(name: str, npartitions: int) -> Any:
    keys = [(name, i) for i in range(npartitions)]
    return SimpleNamespace(npartitions=npartitions, operand={"keys": keys}.__getitem__)


def test_a_partition_lies_where_most_of_it_is() -> None:
    a, b = Place("a", 10), Place("b", 30)
    of_key = {("x", 0): a, ("x", 1): a, ("x", 2): a, ("y", 0): b, ("y", 2): Place("b", 3)}
    of_key[("one", 0)] = b
    places = Places(of_key, {})
    assert held_by([source("x", 3)], places, 3) == [a, a, a]
    # a key of another collection; one partition of it is nowhere yet
    both = held_by([source("x", 3), source("y", 3)], places, 3)
    assert both == [Place("b", 40), None, Place("a", 13)]
    # a collection of one partition, which every task reads
    assert held_by([source("x", 3), source("one", 1)], places, 3) == [Place("b", 40)] * 3
    assert held_by([source("one", 1)], places, 1) == [b]


def test_a_chunk_takes_its_share_of_a_workers_memory_limit() -> None:
    memory = 16 << 20
    # the process, which is the test's, has more
    off = dict.fromkeys(("target", "spill", "pause", "terminate"), False)
    with (
        dask.config.set({f"distributed.worker.memory.{name}": no for name, no in off.items()}),
        Client(
            n_workers=1,
            threads_per_worker=2,
            processes=False,
            memory_limit=memory,
            dashboard_address=None,
        ) as client,
        dask_gpuagg.enabled(),
    ):
        ddf = held(client, frame(240_000), [0])
        nbytes = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.total_memory)
        assert nbytes == memory
        (node,) = nodes(ddf.groupby("k").v.sum(), GroupByChunks)
        # 10 MB in chunks of a sixteenth of 16 MiB, one for each thread otherwise
        assert len(node.chunks) >= 8


@given(st.integers(1, 60), st.integers(1, 60))
def test_a_number_of_partitions_is_kept_to(partitions: int, most: int) -> None:
    found = [Place("w", 8)] * partitions
    places = Places({}, {"w": WorkerSize(1, 0)})
    with dask.config.set({"gpuagg.chunk": most}):
        buckets = buckets_of(found, places, in_order=False, device=False)
    assert len(buckets) == -(-partitions // most)
    assert max(map(len, buckets)) <= most


@given(st.integers(1, 500), st.integers(1, 9))
def test_runs_of_partitions_are_even(npartitions: int, tasks: int) -> None:
    runs = partitions_of_tasks(npartitions, tasks)
    assert [i for run in runs for i in run] == list(range(npartitions))
    sizes = [len(run) for run in runs]
    assert len(sizes) >= min(tasks, npartitions)
    assert max(sizes) - min(sizes) <= 1


def test_keys_by_functions_that_look_alike() -> None:
    """NumPy prints long arrays without their middles."""
    rows = pd.DataFrame({"x": np.arange(2_000)})
    tables = [np.zeros(2_000, int), np.zeros(2_000, int)]
    tables[1][900:] = 1
    held = dd.from_pandas(rows, npartitions=12).persist(scheduler="threads")

    def of(row: int, table: Any) -> int:
        return int(table[row])

    with dask_gpuagg.enabled():
        queries = [held.groupby(partial(of, table=table)).x.sum() for table in tables]
        made = dask.compute(*queries, scheduler="threads")
    for ours, table in zip(made, tables, strict=True):
        theirs = rows.groupby(partial(of, table=table)).x.sum()
        assert ours.sort_index().to_dict() == theirs.to_dict()
