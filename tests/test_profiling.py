"""``profile``, ``fallbacks`` and ``last_runs``: what ran, on whatever scheduler."""

import contextlib
import cProfile
import functools
import gc
import html.parser
import json
import os
import pstats
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.cache import Cache
from dask_gpuagg.cuda.aggregate import Run
from dask_gpuagg.cuda.choice.decision import Decision
from dask_gpuagg.reporting import runs
from dask_gpuagg.reporting.events import Fallback, FellBack, Planned
from dask_gpuagg.reporting.runs import session
from tests.running import run_python

ROWS, PARTITIONS, GROUPS = 2_000, 20, 50
DATA = pd.DataFrame({"k": np.arange(ROWS) % GROUPS, "v": np.arange(ROWS) * 0.5, "c": 1j})


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    runs.forget()
    session.reset()
    with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "silent"}):
        yield


@pytest.fixture(scope="module")
def ddf() -> Any:
    return dd.from_pandas(DATA, npartitions=PARTITIONS)


class Checker(html.parser.HTMLParser):
    """Fails on a tag that is closed and not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("br", "line", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(markup: str) -> str:
    """The text of well-formed HTML."""
    checker = Checker()
    checker.feed(markup)
    checker.close()
    assert checker.open == []
    return checker.text


def steps(p: dask_gpuagg.profile) -> dict[str, Any]:
    return {step.step: step for step in p.steps}


class TestProfile:
    @pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
    def test_a_tree(self, ddf: Any, scheduler: str) -> None:
        with dask.config.set(scheduler=scheduler), dask_gpuagg.profile() as p:
            ddf.groupby("k").agg({"v": ["sum", "mean"]}, split_out=1).compute()
        by_step = steps(p)
        assert list(by_step) == ["partial", "combine", "finalize"]
        partial, last = by_step["partial"], by_step["finalize"]
        assert (partial.query, partial.engine) == ("sum of v, mean of v by k", "host")
        assert (partial.calls, partial.rows, partial.nbytes) == (PARTITIONS, ROWS, ROWS * 16)
        assert partial.groups == by_step["combine"].rows == PARTITIONS * GROUPS
        assert (last.calls, last.groups) == (1, GROUPS)
        assert 0 < partial.longest <= partial.seconds
        assert sum(step.seconds for step in p.steps) < p.seconds or scheduler == "threads"
        assert (p.planned, p.fallbacks, p.kernels, p.notes) == (1, (), (), ())

    def test_one_partition_and_files(self, tmp_path: Any, ddf: Any) -> None:
        ddf[["k", "v"]].to_parquet(tmp_path, overwrite=True)
        with dask.config.set({"scheduler": "synchronous", "gpuagg.chunk": 4}):
            with dask_gpuagg.profile() as p:
                dd.read_parquet(tmp_path).groupby("k").v.sum().compute()
            assert steps(p)["chunk"].rows == ROWS
            with dask_gpuagg.profile() as p:
                ddf.partitions[:1].groupby("k").v.sum().compute()
            assert steps(p)["partial"].rows == ROWS // PARTITIONS

    def test_blocks_do_not_see_each_others_queries(self, ddf: Any) -> None:
        query = ddf.groupby("k").v.sum()
        with dask.config.set(scheduler="synchronous"):
            query.compute()
            with dask_gpuagg.profile() as outer:
                with dask_gpuagg.profile() as first:
                    query.compute()
                with dask_gpuagg.profile() as second:
                    pass
                query.compute()
        assert [p.planned for p in (first, second, outer)] == [1, 0, 1]
        calls = [{s.step: s.calls for s in p.steps} for p in (first, second, outer)]
        assert calls[0]["partial"] == PARTITIONS
        assert calls[1] == {}
        assert calls[2]["partial"] == 2 * PARTITIONS

    def test_fallbacks_each_time_and_the_line(self, ddf: Any) -> None:
        for _ in range(2):
            with dask.config.set(scheduler="synchronous"), dask_gpuagg.profile() as p:
                ddf.groupby("k").c.sum().compute()
            ((fallback, number),) = p.fallbacks
            assert (fallback.what, fallback.how) == ("group-by .sum()", "runs with stock Dask")
            assert "complex128" in fallback.reason
            assert fallback.line.startswith(f"{__file__}:")
            assert (number, p.planned) == (1, 0)

    def test_an_error_ends_it_as_well(self, ddf: Any) -> None:
        p = dask_gpuagg.profile()
        with contextlib.suppress(ZeroDivisionError), p:
            ddf.groupby("k").v.sum().compute(scheduler="synchronous")
            raise ZeroDivisionError
        assert steps(p)["partial"].calls == PARTITIONS

    def test_kernels_and_failed_tasks(self, ddf: Any) -> None:
        """As the device engine notes them."""
        (explained,) = dask_gpuagg.explain(ddf.groupby("k").v.sum()).groupbys
        run = Run(Decision(kernel="hgb", why="few"), 10, 2, bytes_read=160, seconds=0.5)
        with dask_gpuagg.profile() as p:
            with runs.task(explained.plan, "partial") as done:
                runs.note_run(run)
                runs.note_run(run)
                done.saw("device", 20, 4, 320)
            with contextlib.suppress(MemoryError), runs.task(explained.plan, "combine") as done:
                done.saw("device", 4, 2)
                raise MemoryError
        (kernel,) = p.kernels
        assert (kernel.kernel, kernel.calls, kernel.rows, kernel.nbytes) == ("hgb", 2, 20, 320)
        assert kernel.rows_per_second == 20
        (step,) = p.steps
        assert (step.engine, step.rows) == ("device", 20)
        assert "partial: hgb" in str(p)
        assert "partial: hgb" in shown(p._repr_html_())

    def test_text_html_and_json_say_the_same(self, ddf: Any) -> None:
        data = DATA.rename(columns={"v": "<script>alert(1)</script>"})
        with dask.config.set(scheduler="synchronous"), dask_gpuagg.profile() as p:
            rows = dd.from_pandas(data, npartitions=3)
            rows.groupby("k")["<script>alert(1)</script>"].sum().compute()
            ddf.groupby("k").c.sum().compute()
        markup = p._repr_html_()
        assert "<script>" not in markup
        for text in (str(p), repr(p), shown(markup)):
            for part in ("sum of <script>", "partial", "finalize", "complex128", "1 fallback;"):
                assert part in text
        assert json.loads(p.to_json()) == p.to_dict()
        assert [s["step"] for s in p.to_dict()["steps"]] == [s.step for s in p.steps]

    def test_before_its_end(self) -> None:
        with dask_gpuagg.profile() as p:
            assert str(p) == "profile: the block has not ended"
            assert "has not ended" in shown(p._repr_html_())

    def test_many_columns_and_long_names_are_abbreviated(self) -> None:
        wide = pd.DataFrame(np.ones((4, 30)), columns=["n" * 500 + str(i) for i in range(30)])
        with dask.config.set(scheduler="synchronous"), dask_gpuagg.profile() as p:
            dd.from_pandas(wide.assign(k=1), npartitions=2).groupby("k").sum().compute()
        (query,) = {step.query for step in p.steps}
        assert query.endswith("and 26 more by k")
        assert len(query) < 600


def test_fallbacks_of_a_session(ddf: Any) -> None:
    with dask.config.set(scheduler="synchronous"):
        ddf.groupby("k").v.sum().compute()
        for _ in range(3):
            ddf.groupby("k").c.sum().compute()
        (ddf.c * 2).groupby(ddf.k).sum().compute()
    fallbacks = dask_gpuagg.fallbacks()
    assert fallbacks.planned == 1
    assert [number for _, number in fallbacks.entries] == [1, 1]
    lines = str(fallbacks).splitlines()
    assert lines[0] == "1 group-by planned, 2 fallbacks"
    assert "1 × group-by .sum() runs with stock Dask: sum of dtype complex128" in lines[1]
    assert "complex128" in shown(fallbacks._repr_html_())
    assert json.loads(json.dumps(fallbacks.to_dict()))["fallbacks"][0]["queries"] == 1
    assert len(fallbacks) == 2


class TestBounds:
    """Nothing of what is recorded grows for ever."""

    def test_totals(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runs, "_TOTALS", 5)
        for i in range(20):
            runs.note_run(Run(Decision(kernel=f"kernel{i}", why=""), 1, 1))
        totals = runs.session.measured().totals
        assert [step.kernel for step in totals] == [f"kernel{i}" for i in range(15, 20)]

    def test_names_and_fallbacks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runs, "_NAMES", 5)
        monkeypatch.setattr(runs, "_FALLBACKS", 3)
        counts = runs.Recorder()
        for i in range(20):
            counts(Planned(SimpleNamespace(_name=f"query {i}"), None, None, None))
            counts(FellBack(Fallback("what", "how", f"reason {i}"), f"query {i}"))
        assert list(counts.planned) == [f"query {i}" for i in range(15, 20)]
        assert len(counts.fallbacks) == 5
        read = counts.measured()
        assert read.planned == 20
        assert [f.reason for f in read.fallbacks] == ["reason 17", "reason 18", "reason 19"]

    def test_plans_of_users_functions_are_not_kept(self, ddf: Any) -> None:
        mine = dd.Aggregation("mine", lambda s: s.sum(), lambda s: s.sum())
        ddf.groupby("k").agg({"v": mine}).compute(scheduler="synchronous")
        latest = dask_gpuagg.last_runs()
        assert {run.plan for run in latest} == {None}
        assert latest[0].step == "partial"


def test_a_profile_keeps_no_data() -> None:
    frame = DATA.copy()
    reference = weakref.ref(frame)
    with dask_gpuagg.profile() as p:
        query = dd.from_pandas(frame, npartitions=3, sort=False).groupby("k").v.nunique()
        query.compute(scheduler="synchronous")
        del query, frame
        gc.collect()
        assert reference() is None  # not even inside the block
    assert p.planned == 1


def test_threads_lose_nothing(ddf: Any) -> None:
    (explained,) = dask_gpuagg.explain(ddf.groupby("k").v.sum()).groupbys

    def some(number: int) -> None:
        for _ in range(200):
            with runs.task(explained.plan, "partial") as done:
                done.saw("host", 1, 1, 1)

    with dask_gpuagg.profile() as p, ThreadPoolExecutor(8) as pool:
        list(pool.map(some, range(8)))
    assert (steps(p)["partial"].calls, steps(p)["partial"].nbytes) == (1600, 1600)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_while_another_thread_records() -> None:
    code = """
import os, threading
import dask_gpuagg
from dask_gpuagg.reporting import runs

held, end = threading.Event(), threading.Event()

def hold():
    with runs._lock:
        held.set()
        end.wait(60)

holder = threading.Thread(target=hold)
holder.start()
held.wait(60)
child = os.fork()
if child == 0:
    print(*runs.session.measured()[2:], flush=True)
    os._exit(0)
end.set()
holder.join()
print(os.waitpid(child, 0)[1], runs.session.measured().process != "")
"""
    ran = run_python("-W", "ignore", "-c", code, timeout=60)
    assert ran.stdout.splitlines() == ["[] 0 {}", "0 True"], ran.stderr


def test_recording_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Function calls of a task, which do not depend on the machine."""
    # nor on the plans of earlier tests, of which one may be equal
    monkeypatch.setattr(runs, "_plans", Cache(1))
    (explained,) = dask_gpuagg.explain(
        dd.from_pandas(DATA, npartitions=2).groupby("k").v.sum()
    ).groupbys

    def one() -> None:
        with runs.task(explained.plan, "combine") as done:
            done.saw("host", 1, 1)

    one()
    profiler = cProfile.Profile()
    profiler.runcall(functools.partial(list, (one() for _ in range(100))))
    assert pstats.Stats(profiler).total_calls < 100 * 40  # type: ignore[attr-defined]


def test_the_runs_of_workers_in_this_process_are_there_once(ddf: Any) -> None:
    from distributed import Client

    with Client(processes=False, n_workers=2, dashboard_address=None):
        with dask_gpuagg.profile() as p:
            ddf.groupby("k").v.sum().compute()
        assert steps(p)["partial"].rows == ROWS
        assert sum(run.rows for run in dask_gpuagg.last_runs() if run.step == "partial") == ROWS
