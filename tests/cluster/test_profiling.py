"""Runs on the workers of a cluster: ``profile``, ``last_runs`` and ``fallbacks`` ask them."""

import time
from typing import Any

import dask
import dask.dataframe as dd
import pytest

import dask_gpuagg
from dask_gpuagg.reporting import runs
from dask_gpuagg.reporting.runs import session
from tests.test_profiling import DATA, PARTITIONS, ROWS, steps
from tests.workers import workers_of


@pytest.fixture(scope="module")
def ddf() -> Any:
    return dd.from_pandas(DATA, npartitions=PARTITIONS)


@pytest.fixture(autouse=True)
def _fresh(client: Any) -> None:
    runs.forget()
    session.reset()
    client.run(runs.forget)
    client.run(forget_fallbacks)


def test_workers_are_asked(client: Any, ddf: Any) -> None:
    query = ddf.groupby("k").v.sum()
    with dask_gpuagg.profile() as p:
        query.compute()
    by_step = steps(p)
    assert (by_step["partial"].rows, by_step["partial"].calls) == (ROWS, PARTITIONS)
    assert by_step["partial"].workers == 2
    assert (p.planned, p.notes) == (1, ())
    with dask_gpuagg.profile() as again:
        query.compute()
    assert steps(again)["partial"].rows == ROWS


def test_the_latest_runs_are_the_workers(client: Any, ddf: Any) -> None:
    query = ddf.groupby("k").v.max()
    query.compute()
    latest = dask_gpuagg.last_runs()
    assert sum(run.rows for run in latest if run.step == "partial") == ROWS
    assert {run.decision.kernel for run in latest} == {"host"}
    (explained,) = dask_gpuagg.explain(query).groupbys
    assert len(explained.runs) == len(latest)
    assert "ran      partial, host: 20 tasks from 2,000 rows to 1,000, " in str(explained)


def test_workers_report_the_rows_that_are_done(client: Any, ddf: Any) -> None:
    def done() -> int:
        workers = workers_of(client).values()
        return sum(worker["metrics"].get("group-by rows", 0) for worker in workers)

    before = sum(client.run(runs.rows_done).values())
    ddf.groupby("k").v.min().compute()
    assert sum(client.run(runs.rows_done).values()) == before + ROWS
    deadline = time.monotonic() + 60
    while done() != before + ROWS:  # it travels with the heartbeat
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_fallbacks_of_a_query_inside_of_a_task(client: Any) -> None:
    client.submit(falls_back).result()
    fallbacks = dask_gpuagg.fallbacks()
    assert any("complex128" in entry.reason for entry, _ in fallbacks.entries)
    client.run(forget_fallbacks)


def test_a_worker_that_does_not_answer_is_named(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {"tcp://a:1": OSError("gone")}
    monkeypatch.setattr(type(client), "run", lambda *args, **kwargs: broken)
    with dask_gpuagg.profile() as p:
        pass
    assert p.notes == ("missing: tcp://a:1 (OSError('gone'))",)

    def silent(*args: Any, **kwargs: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(type(client), "run", silent)
    with dask_gpuagg.profile() as p:
        pass
    assert p.notes == ("missing: the workers (no answer within 30 s)",)


def falls_back() -> None:
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "silent"}):
        rows = dd.from_pandas(DATA, npartitions=2)
        rows.groupby("k").c.sum().compute(scheduler="synchronous")


def forget_fallbacks() -> None:
    session.reset()
