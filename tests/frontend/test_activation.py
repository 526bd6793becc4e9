"""Activation: what is patched, when, for whom, and for which versions of Dask."""

import asyncio
import contextvars
import random
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._expr import Expr
from dask.dataframe.dask_expr import _groupby as G

import dask_gpuagg
from dask_gpuagg.frontend import activation, contract, hook
from dask_gpuagg.reporting.runs import session
from dask_gpuagg.settings import BadSetting
from dask_gpuagg.tasks import tasks
from tests.running import ROOT, run_python

PATCHED = [(Expr, "lower_once"), (G.GroupBy, "aggregate")]
FINALIZE = tasks.gpuagg_finalize
STOCK = {(owner, name): owner.__dict__[name] for owner, name in PATCHED}


def patched() -> bool:
    """Whether any of Dask's functions is not Dask's own; never a mixture of both."""
    changed = [owner.__dict__[name] is not STOCK[owner, name] for owner, name in PATCHED]
    assert len(set(changed)) == 1, changed
    return changed[0]


@pytest.fixture(autouse=True)
def _stock_afterwards() -> Iterator[None]:
    assert not patched()
    with dask.config.set(scheduler="synchronous"):
        yield
    dask_gpuagg.disable()
    assert not patched()


def frame(rows: int = 400) -> pd.DataFrame:
    values = np.arange(rows)
    return pd.DataFrame({"k": values % 7, "v": values * 0.5})


@pytest.fixture
def ddf():
    return dd.from_pandas(frame(), npartitions=4)


def plans(query) -> bool:
    """Whether our plan runs the group-by of a query that is lowered here and now."""
    nodes = query.optimize(fuse=False).expr.walk()
    return any(type(node).__module__.startswith("dask_gpuagg") for node in nodes)


def sums(ddf):
    return ddf.groupby("k").v.sum()


class TestSwitching:
    def test_importing_changes_nothing(self):
        code = (
            "from dask._expr import Expr; before = Expr.lower_once\n"
            "import dask_gpuagg\n"
            "assert Expr.lower_once is before and not dask_gpuagg.is_enabled()"
        )
        assert run_python("-c", code).returncode == 0

    def test_enabling_twice_is_undone_by_disabling_once(self):
        dask_gpuagg.enable()
        once = Expr.lower_once
        dask_gpuagg.enable()
        assert Expr.lower_once is once
        dask_gpuagg.disable()
        assert not patched()

    def test_the_hook_is_what_runs_queries(self, ddf):
        assert not plans(sums(ddf))
        dask_gpuagg.enable()
        assert plans(sums(ddf))
        dask_gpuagg.disable()
        assert not plans(sums(ddf))

    def test_enable_is_for_all_threads(self, ddf):
        dask_gpuagg.enable()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(dask_gpuagg.is_enabled).result()
            assert pool.submit(plans, sums(ddf)).result()


class TestBlocks:
    def test_nested_blocks_end_with_the_outermost(self):
        with dask_gpuagg.enabled():
            with dask_gpuagg.enabled():
                pass
            assert dask_gpuagg.is_enabled()
            assert patched()
        assert not patched()

    def test_a_block_ends_with_an_error_too(self):
        with pytest.raises(ZeroDivisionError), dask_gpuagg.enabled():
            raise ZeroDivisionError
        assert not patched()

    def test_disable_acts_inside_a_block(self, ddf):
        with dask_gpuagg.enabled():
            dask_gpuagg.disable()
            assert not dask_gpuagg.is_enabled()
            assert not plans(sums(ddf))
            dask_gpuagg.enable()
            assert plans(sums(ddf))
        assert dask_gpuagg.is_enabled()

    def test_disable_in_an_inner_block_ends_there(self):
        with dask_gpuagg.enabled():
            with dask_gpuagg.enabled():
                dask_gpuagg.disable()
            assert dask_gpuagg.is_enabled()

    def test_a_block_is_for_its_thread_only(self, ddf):
        with dask_gpuagg.enabled(), ThreadPoolExecutor(1) as pool:
            assert not pool.submit(dask_gpuagg.is_enabled).result()
            assert not pool.submit(plans, sums(ddf)).result()
            inside = contextvars.copy_context()
            assert pool.submit(inside.run, plans, sums(ddf)).result()

    def test_what_was_started_in_a_block_ends_with_it(self, ddf):
        with dask_gpuagg.enabled():
            inside = contextvars.copy_context()
            assert inside.run(dask_gpuagg.is_enabled)
        assert not inside.run(dask_gpuagg.is_enabled)
        with ThreadPoolExecutor(1) as pool:
            started, end = threading.Event(), threading.Event()

            def elsewhere() -> None:
                with dask_gpuagg.enabled():
                    started.set()
                    end.wait(60)

            other = pool.submit(elsewhere)
            assert started.wait(60)
            assert patched()  # for the other thread
            assert not inside.run(dask_gpuagg.is_enabled)
            assert not inside.run(plans, sums(ddf))
            end.set()
            other.result()

    def test_coroutines_have_blocks_of_their_own(self):
        async def inside() -> bool:
            with dask_gpuagg.enabled():
                await asyncio.sleep(0)  # the other one runs meanwhile
                return dask_gpuagg.is_enabled()

        async def outside() -> bool:
            return dask_gpuagg.is_enabled()

        async def both() -> list[bool]:
            return await asyncio.gather(inside(), outside())

        assert asyncio.run(both()) == [True, False]


class TestThreads:
    """Eight threads that switch, query, explain and do without."""

    def run(self, act: Callable[[int], None], threads: int = 8) -> None:
        together = threading.Barrier(threads)

        def start(number: int) -> None:
            together.wait(60)
            act(number)

        with ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(start, number) for number in range(threads)]:
                done.result()

    def test_each_query_runs_as_its_block_says(self, ddf):
        wrong = []

        def act(number: int) -> None:
            rng = random.Random(number)
            for _ in range(12):
                match rng.randrange(3):
                    case 0:
                        with dask_gpuagg.enabled():
                            # an aggregation that stock Dask refuses
                            query = ddf.groupby("k").v.agg(["sum", "sem"])
                            answers = (True, dask_gpuagg.is_enabled(), plans(query))
                    case 1:
                        dask_gpuagg.explain(sums(ddf))
                        answers = (False, dask_gpuagg.is_enabled(), plans(sums(ddf)))
                    case _:
                        answers = (False, dask_gpuagg.is_enabled(), plans(sums(ddf)))
                if len(set(answers)) > 1:
                    wrong.append(answers)

        self.run(act)
        assert not wrong
        assert not patched()
        assert not dask_gpuagg.is_enabled()

    def test_switching_the_process(self):
        """The state agrees with itself, whichever thread is last."""

        def act(number: int) -> None:
            rng = random.Random(number)
            for _ in range(200):
                rng.choice([dask_gpuagg.enable, dask_gpuagg.disable])()

        self.run(act)
        assert patched() == dask_gpuagg.is_enabled()

    def test_explaining_plans_nobody_elses_query(self, ddf, monkeypatch):
        inside, looked = threading.Event(), threading.Event()
        choose = hook.route

        def slow(query, expr):
            inside.set()
            assert looked.wait(60)
            return choose(query, expr)

        monkeypatch.setattr(hook, "route", slow)
        with ThreadPoolExecutor(1) as pool:
            explained = pool.submit(dask_gpuagg.explain, sums(ddf))
            assert inside.wait(60)
            assert patched()
            assert not dask_gpuagg.is_enabled()
            planned = plans(sums(ddf))
            looked.set()
            assert explained.result().groupbys[0].plan is not None
        assert not planned


class TestConfiguration:
    def test_false_wins(self, ddf):
        dask_gpuagg.enable()
        with dask.config.set({"gpuagg.enabled": False}):
            assert not dask_gpuagg.is_enabled()
            assert not plans(sums(ddf))
            with dask_gpuagg.enabled():
                assert not dask_gpuagg.is_enabled()
                assert not plans(sums(ddf))
            # what would be done is told all the same
            assert dask_gpuagg.explain(sums(ddf)).groupbys[0].plan is not None
        assert dask_gpuagg.is_enabled()
        assert plans(sums(ddf))

    @pytest.mark.parametrize("value", [True, None])
    def test_true_is_for_the_import_only(self, ddf, value):
        dask_gpuagg.enable()
        dask_gpuagg.disable()
        with dask.config.set({"gpuagg.enabled": value}):
            assert not dask_gpuagg.is_enabled()
            assert not plans(sums(ddf))
            with dask_gpuagg.enabled():
                assert plans(sums(ddf))

    def test_reading_the_configuration_anew_switches_nothing(self):
        code = (
            "import dask, dask.dataframe as dd, pandas as pd, dask_gpuagg\n"
            "f = dd.from_pandas(pd.DataFrame({'k': [1, 2]}), npartitions=1)\n"
            "for turn in (dask_gpuagg.disable, dask_gpuagg.enable):\n"
            "    turn()\n"
            "    dask.config.refresh()\n"
            "    nodes = f.groupby('k').size().optimize(fuse=False).expr.walk()\n"
            "    ours = any(type(n).__module__.startswith('dask_gpuagg') for n in nodes)\n"
            "    print(dask_gpuagg.is_enabled(), ours)"
        )
        ran = run_python("-c", code)
        assert ran.stdout.split() == ["False", "False", "True", "True"], ran.stderr

    @pytest.mark.parametrize(("value", "expected"), [("true", True), ("off", False)])
    def test_the_environment_enables_it_at_import_or_keeps_it_off(self, value, expected):
        code = (
            "import dask_gpuagg; print(dask_gpuagg.is_enabled())\n"
            "dask_gpuagg.enable(); print(dask_gpuagg.is_enabled())"
        )
        ran = run_python("-c", code, env={"DASK_GPUAGG__ENABLED": value})
        assert ran.stdout.split() == [str(expected)] * 2, ran.stderr

    @pytest.mark.parametrize("switch", ["enable", "enabled"])
    def test_a_bad_setting_is_refused_and_nothing_changed(self, switch):
        with dask.config.set({"gpuagg.fallback": "explode"}):
            with pytest.raises(BadSetting, match="explode"):
                getattr(dask_gpuagg, switch)().__enter__()
            assert not patched()
        assert not dask_gpuagg.is_enabled()

    def test_a_bad_setting_is_met_by_the_next_group_by(self, ddf):
        dask_gpuagg.enable()
        with dask.config.set({"gpuagg.chunk": "abc"}):
            assert ddf.v.sum().compute() == frame().v.sum()
            with pytest.raises(BadSetting, match="abc"):
                sums(ddf).compute()
            with pytest.raises(BadSetting, match="abc"):
                dask_gpuagg.explain(sums(ddf))

    def test_importing_survives_a_bad_setting(self):
        code = (
            "import dask_gpuagg\n"
            "try:\n    dask_gpuagg.enable()\n"
            "except dask_gpuagg.BadSetting as error:\n    print(error)"
        )
        ran = run_python("-c", code, env={"DASK_GPUAGG__FALBACK": "raise"})
        assert "gpuagg.falback" in ran.stdout, ran.stderr
        assert "gpuagg.fallback" in ran.stdout


class TestVersions:
    @pytest.mark.parametrize("version", ["2024.1.0", "2025.4.1", "2025.4.1+local"])
    def test_an_old_dask_is_refused_and_nothing_changed(self, monkeypatch, version):
        monkeypatch.setattr(dask, "__version__", version)
        with pytest.raises(RuntimeError) as caught:
            dask_gpuagg.enable()
        assert version in str(caught.value)
        assert activation.OLDEST_DASK in str(caught.value)
        assert not patched()
        assert not dask_gpuagg.is_enabled()

    @pytest.mark.parametrize("version", ["2025.5.0", "2025.12.0", "2026.8.0", "2026.8.0+local"])
    def test_a_supported_dask_is_not_tried(self, monkeypatch, version):
        monkeypatch.setattr(dask, "__version__", version)
        monkeypatch.setattr(contract, "try_queries", lambda: pytest.fail("tried"))
        with dask_gpuagg.enabled():
            assert dask_gpuagg.is_enabled()

    @pytest.mark.parametrize("version", ["2026.8.1", "2099.1.0", "2026.9.0.dev3+g12"])
    def test_a_newer_dask_is_tried_once_with_a_warning(self, monkeypatch, ddf, version):
        monkeypatch.setattr(dask, "__version__", version)
        monkeypatch.setattr(activation, "_trusted", set())
        session.reset()
        with pytest.warns(UserWarning, match=re.escape(version)) as caught:
            dask_gpuagg.enable()
        assert [w.filename for w in caught] == [__file__]
        assert not session.planned
        assert plans(sums(ddf))
        dask_gpuagg.disable()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dask_gpuagg.enable()

    @pytest.mark.parametrize(
        ("where", "breakage"),
        [
            ("dask_gpuagg.frontend.hook.physical", lambda *_: 1 / 0),
            ("dask_gpuagg.tasks.tasks.gpuagg_finalize", lambda *_: 1 / 0),
            ("dask_gpuagg.frontend.hook.logical.is_aggregation", lambda _: False),
            # without the first partial
            ("dask_gpuagg.tasks.tasks.gpuagg_finalize", lambda p, *more: FINALIZE(p[1:], *more)),
        ],
        ids=["planning fails", "running fails", "nothing is planned", "the answer is wrong"],
    )
    def test_a_newer_dask_on_which_a_query_fails_is_refused(self, monkeypatch, where, breakage):
        monkeypatch.setattr(dask, "__version__", "2099.1.0")
        monkeypatch.setattr(activation, "_trusted", set())
        monkeypatch.setattr(where, breakage)
        with pytest.raises(RuntimeError, match=r"2099.1.0 is newer .* a test query fails"):
            dask_gpuagg.enable()
        assert not patched()
        assert not dask_gpuagg.is_enabled()

    def test_the_installed_dask_is_supported(self):
        pinned = re.search(r'"dask\[dataframe\]>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
        assert activation.OLDEST_DASK.startswith(pinned[1])

    @pytest.mark.parametrize("kind", [G.GroupbyAggregationBase, G.SingleAggregation])
    def test_other_operands_are_refused_and_nothing_changed(self, monkeypatch, kind):
        parameters = ["frame", "something", *kind._parameters[1:]]
        monkeypatch.setattr(kind, "_parameters", parameters)
        with pytest.raises(RuntimeError, match=f"internals.*{kind.__name__}"):
            dask_gpuagg.enable()
        assert not patched()
        assert not dask_gpuagg.is_enabled()

    def test_other_signatures_are_refused_and_nothing_changed(self, monkeypatch):
        monkeypatch.setattr(Expr, "lower_once", lambda self, more: None)
        with pytest.raises(RuntimeError, match=r"internals.*Expr\.lower_once"):
            dask_gpuagg.enable()
        monkeypatch.undo()
        assert not patched()


def test_no_setting_is_read_past_the_checks():
    package = Path(dask_gpuagg.__file__).parent
    raw = re.compile(r"config\.(get|pop)\(\s*[\"']gpuagg")
    readers = {f.name for f in package.rglob("*.py") if raw.search(f.read_text())}
    assert readers == {"settings.py"}
