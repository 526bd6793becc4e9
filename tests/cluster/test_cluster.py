"""The plan on a cluster: the answers of one process, and clusters that cannot run it."""

import asyncio
import gc
import json
import os
import signal
import socket
import time
import weakref

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.dask_expr._shuffle import P2PShuffle
from distributed import Client, LocalCluster, futures_of, wait
from hypothesis import Phase, given, settings

import dask_gpuagg
from dask_gpuagg.cluster import cluster_problem
from dask_gpuagg.planning import lower
from dask_gpuagg.reporting.fallbacks import FallbackWarning, UnsupportedGroupBy
from dask_gpuagg.reporting.runs import session
from tests.cluster.conftest import ANOTHER_VERSION, WITHOUT_THE_PACKAGE, scheduler, worker
from tests.comparison import compare, same
from tests.correctness.test_order import DATA, everything
from tests.data import partitioned
from tests.running import run_python
from tests.strategies import cases
from tests.test_properties import PLANS, check, comparable
from tests.workers import workers_of

ROWS = 2000


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "k": rng.integers(0, 50, ROWS),
            "s": rng.choice(["a", "bb", "é", None], ROWS),
            "c": pd.Categorical(rng.choice(["x", "y"], ROWS), categories=["x", "y", "z"]),
            "v": rng.random(ROWS) + 1e9,
            "i": pd.array(rng.integers(0, 9, ROWS), dtype="Int8"),
            "t": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 99, ROWS), unit="D"),
        }
    )


@pytest.fixture(scope="module")
def ddf():
    return dd.from_pandas(frame(), npartitions=20)


QUERIES = {
    "times and text": lambda d, **kw: d.groupby("k").agg(
        {"i": ["var", "idxmax"], "t": ["min", "mean", "last"], "s": ["first", "nunique", "max"]},
        **kw,
    ),
    "two keys": lambda d, **kw: d.groupby(["s", "k"], dropna=False).agg({"v": "var"}, **kw),
    "categories": lambda d, **kw: d.groupby("c", observed=False).agg({"v": "sum"}, **kw),
}


@pytest.mark.parametrize("split_out", [None, 3])
def test_the_same_bits_as_in_one_process(client, ddf, split_out):
    """The client's setting counts on its workers."""
    spec = {"v": ["sum", "mean"], "i": ["mean"]}
    with dask.config.set({"gpuagg.deterministic": True, "gpuagg.fallback": "raise"}):
        one_partition = dd.from_pandas(frame(), npartitions=1).groupby("k").agg(spec)
        result = ddf.groupby("k").agg(spec, split_out=split_out).compute()
    expected = one_partition.compute(scheduler="synchronous")
    pd.testing.assert_frame_equal(result.sort_index(), expected.sort_index(), check_exact=True)


@pytest.mark.parametrize("options", [{}, {"split_out": 3, "shuffle_method": "p2p"}], ids=str)
@pytest.mark.parametrize("name", QUERIES)
def test_the_same_answer_as_in_one_process(client, ddf, name, options):
    query = QUERIES[name](ddf, **options)
    # p2p, the default while there is a client, needs a cluster
    expected = QUERIES[name](ddf, shuffle_method="tasks").compute(scheduler="synchronous")
    session.reset()
    same(query.compute(), expected)
    assert session.planned
    assert not session.fallbacks


@pytest.mark.parametrize(("method", "split_out"), [(None, None), ("p2p", 3), ("tasks", True)])
def test_every_aggregation_answers_as_pandas(client, method, split_out):
    options = {"split_out": split_out, "shuffle_method": method}
    with dask.config.set({"gpuagg.fallback": "raise"}):
        compare(everything, partitioned(DATA, 12), options=options)


@settings(max_examples=8, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(case=cases(comparable))
def test_random_group_bys_agree_with_pandas(client, case):
    plans = {"tree": PLANS["tree"], "p2p": {"split_out": 3, "shuffle_method": "p2p"}}
    with dask.config.set({"gpuagg.fallback": "raise"}):
        check(case, plans)


def test_an_exchange_goes_through_p2p(client, ddf):
    lowered = ddf.groupby("k").v.sum(split_out=3).optimize(fuse=False).expr
    assert list(lowered.find_operations(P2PShuffle))
    result = client.compute(dd.dask_expr.new_collection(lowered)).result()
    same(result, frame().groupby("k").v.sum())


def sum_by_the_clients_settings(grouped):
    from dask_gpuagg.settings import task_settings

    here = task_settings()
    return grouped.sum() * int((here.kernel, here.fallback) == ("lphga", "silent"))


def test_workers_see_the_clients_settings(client, ddf):
    total = dd.Aggregation("total", lambda g: g.sum(), sum_by_the_clients_settings)
    with dask.config.set({"gpuagg.kernel": "lphga", "gpuagg.fallback": "silent"}):
        future = client.compute(ddf.groupby("k").agg({"v": total}).v)
    # workers' own settings are others
    assert set(client.run(lambda: dask.config.get("gpuagg.kernel")).values()) == {"auto"}
    same(future.result(), frame().groupby("k").v.sum())


# value, and the words that the reason has to contain
BAD = {
    "missing": (WITHOUT_THE_PACKAGE, "cannot import dask_gpuagg"),
    "another version": (ANOTHER_VERSION, "0.0.1"),
}


class TestUnlikeWorkers:
    """A worker that cannot unpickle our tasks would hang the query."""

    @pytest.mark.parametrize("kind", BAD)
    def test_the_query_runs_stock_and_says_why(self, small, kind):
        prelude, words = BAD[kind]
        data = frame().assign(kind=kind)
        ddf = dd.from_pandas(data, npartitions=4).persist()
        wait(ddf)
        query = ddf.groupby("k").v.max()
        with worker(prelude, small):
            assert words in dask_gpuagg.check_cluster()
            with pytest.warns(FallbackWarning, match=words):
                got = small.compute(query).result(timeout=60)
            assert "stock Dask" in str(dask_gpuagg.explain(query))
            assert words in dask_gpuagg.why_not(query)[0].reason
        same(got, data.groupby("k").v.max())

    def test_a_worker_that_joins_later_is_checked(self, small, ddf):
        """Nothing is sampled there, and what stock Dask cannot run is an error."""

        def part(i: int) -> pd.DataFrame:
            return pd.DataFrame({"k": [i, 1, 2], "v": [0.5, i, 1.5]})

        data = pd.concat(map(part, range(40)))
        query = dd.from_map(part, range(40)).groupby("k").v.min()
        session.reset()
        query.compute()
        assert session.planned
        assert not session.fallbacks
        session.reset()
        with worker(WITHOUT_THE_PACKAGE, small):
            with pytest.warns(FallbackWarning, match="cannot import"):
                same(small.compute(query).result(timeout=60), data.groupby("k").v.min())
            assert not session.planned
            extended = ddf.groupby("k").v.agg(["sum", "nunique"])
            with pytest.raises(UnsupportedGroupBy, match="cannot import"):
                extended.compute()
            with (
                dask.config.set({"gpuagg.fallback": "raise"}),
                pytest.raises(UnsupportedGroupBy, match="cannot import"),
            ):
                ddf.groupby("k").v.max().compute()

    def test_another_worker_at_the_address_of_one_that_was_checked(self, small):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with worker("", small, port):
            assert dask_gpuagg.check_cluster(small) is None
            before = set(workers_of(small))
        while len(workers_of(small)) > 1:
            time.sleep(0.05)
        with worker(ANOTHER_VERSION, small, port):
            assert set(workers_of(small)) == before
            assert "has dask_gpuagg 0.0.1" in cluster_problem(small)

    def test_a_worker_that_does_not_answer_is_waited_for_once(self, small):
        (here,) = small.run(os.getpid).values()
        limit = dask.config.set({"distributed.comm.timeouts.connect": "1s"})
        with worker("", small), limit:
            (there,) = set(small.run(os.getpid).values()) - {here}
            os.kill(there, signal.SIGSTOP)
            started = time.monotonic()
            problem = dask_gpuagg.check_cluster(small)
            assert problem == "the scheduler or a worker did not answer within 1 s"
            assert [cluster_problem(small) for _ in range(20)] == [problem] * 20
            assert time.monotonic() - started < 10
            os.kill(there, signal.SIGCONT)

    def test_the_scheduler_is_checked_too(self, tmp_path):
        prelude, words = BAD["missing"]
        data = frame().assign(scheduler=1)
        with scheduler(prelude, tmp_path) as address, Client(address) as client, worker("", client):
            # of persisted partitions the scheduler would be asked for places
            ddf = dd.from_pandas(data, npartitions=4).persist()
            wait(ddf)
            with pytest.warns(FallbackWarning, match=f"scheduler.*{words}") as warned:
                got = client.compute(ddf.groupby("k").v.min()).result(timeout=60)
        assert len(warned) == 1
        same(got, data.groupby("k").v.min())


def test_an_asynchronous_client_runs_stock_until_the_cluster_was_checked(ddf):
    data = frame().assign(asynchronous=1)
    query = dd.from_pandas(data, npartitions=4).groupby("k").v.sum()

    async def run() -> None:
        async with (
            LocalCluster(
                n_workers=1, processes=False, dashboard_address=None, asynchronous=True
            ) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            session.reset()
            with pytest.warns(FallbackWarning, match="check_cluster"):
                same(await client.compute(query), data.groupby("k").v.sum())
            assert not session.planned
            assert await dask_gpuagg.check_cluster(client) is None
            session.reset()
            same(await client.compute(query), data.groupby("k").v.sum())
            assert session.planned
            assert not session.fallbacks

    asyncio.run(run())


def test_explaining_a_query_holds_no_data(client, ddf):
    """Timers of the client's event loop remember in which context they were started."""
    persisted = ddf.persist()
    futures = [weakref.ref(future) for future in futures_of(persisted)]
    dask_gpuagg.explain(persisted.groupby("k").v.sum())
    del persisted
    gc.collect()
    assert futures
    assert not any(future() for future in futures)


def test_a_group_by_inside_a_task(client):
    def inside() -> int:
        import dask_gpuagg

        part = dd.from_pandas(pd.DataFrame({"k": [1, 2, 1], "v": [1, 2, 3]}), npartitions=2)
        with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "raise"}):
            return part.groupby("k").v.sum().compute(scheduler="synchronous").loc[1]

    assert client.submit(inside).result(timeout=60) == 4


def test_medians_by_brackets(client, monkeypatch):
    """Rows stay on the workers that hold them; partitions of both meet in brackets and counts."""
    monkeypatch.setattr(lower, "ROWS_FROM", 0)
    monkeypatch.setattr(lower, "ROWS_OF_A_GROUP", 10)
    held = dd.from_pandas(frame(), npartitions=20, sort=False).persist()
    wait(held)
    query = held.groupby("k").agg({"v": ["median", "max"], "i": "sum"})
    assert "quantiles narrowed" in str(dask_gpuagg.explain(query))
    expected = frame().groupby("k").agg({"v": ["median", "max"], "i": "sum"})
    same(query.compute(), expected)
    assert "count, host: " in str(dask_gpuagg.explain(query))
    pdf, some = frame(), 1e9 + 0.5
    again = held[held.v > some].groupby("c", observed=False).v.median()
    same(again.compute(), pdf[pdf.v > some].groupby("c", observed=False).v.median())


@pytest.mark.parametrize(
    ("most", "value"), [(100_000_000, "v"), (1_000, "s")], ids=["tree", "exchange"]
)
def test_distinct_values_by_few_groups(client, ddf, monkeypatch, most, value):
    monkeypatch.setattr(lower, "BYTES_ON_HOST", most)
    query = ddf.groupby("k")[value].nunique(split_out=None)
    assert query.optimize().npartitions == 2
    exchanged = any(isinstance(node, P2PShuffle) for node in query.optimize().expr.walk())
    assert exchanged == (most == 1_000)
    same(query.compute().sort_index(), frame().groupby("k")[value].nunique())


def test_the_doctor_examines_a_cluster_by_its_address(client):
    ran = run_python(
        *("-m", "dask_gpuagg", "doctor", "--json", "--scheduler", client.scheduler.address)
    )
    report = json.loads(ran.stdout)
    assert report["healthy"] is (ran.returncode == 0)
    places = {check["place"] for check in report["checks"]}
    assert len(places) == 4, ran.stderr  # here, two workers, the cluster
    (versions,) = (check for check in report["checks"] if check["name"] == "versions")
    assert (
        versions["found"] == f"dask-gpuagg {dask_gpuagg.__version__} on the scheduler and 2 workers"
    )
