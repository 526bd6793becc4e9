"""Activation: what is patched, when, for which versions, and what falls back."""

from __future__ import annotations

import contextlib
import pickle
import warnings
from collections.abc import Iterator

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._expr import Expr
from dask.dataframe.dask_expr import _groupby as G

import dask_gpuagg
from dask_gpuagg import hook
from dask_gpuagg.report import FallbackWarning, UnsupportedGroupBy, tally
from tests.running import run_python

PATCHED = [
    (Expr, "lower_once"),
    (G.GroupByApplyConcatApply, "_tune_down"),
    (G.GroupByReduction, "_tune_down"),
    (G.GroupBy, "aggregate"),
]
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
    return pd.DataFrame({"k": values % 7, "v": values * 0.5, "w": values})


@pytest.fixture
def ddf():
    return dd.from_pandas(frame(), npartitions=40)


def combined(f, **options):
    """Two group-bys that meet again, partition by partition."""
    return f.groupby("k").v.sum(**options) + f.groupby("k").w.max(**options)


def broken(text: str):
    """A function with a bug."""

    def function(*args):
        raise ZeroDivisionError(text)

    return function


def runs_planned(query) -> bool:
    """Compute a query and tell whether our plan ran its group-bys; all or none."""
    tally.reset()
    query.compute()
    assert not (tally.planned and tally.fallbacks)
    return bool(tally.planned)


class TestActivation:
    def test_importing_changes_nothing(self):
        code = (
            "from dask._expr import Expr; before = Expr.lower_once\n"
            "import dask_gpuagg\n"
            "assert Expr.lower_once is before and not dask_gpuagg.is_enabled()"
        )
        assert run_python("-c", code).returncode == 0

    def test_enable_and_disable_restore_the_very_functions(self):
        dask_gpuagg.enable()
        assert patched()
        assert dask_gpuagg.is_enabled()
        dask_gpuagg.disable()
        assert not patched()
        assert not dask_gpuagg.is_enabled()

    def test_enabling_twice_is_undone_by_disabling_once(self):
        dask_gpuagg.enable()
        once = Expr.lower_once
        dask_gpuagg.enable()
        assert Expr.lower_once is once
        dask_gpuagg.disable()
        assert not patched()

    def test_disabling_what_is_off_is_harmless(self):
        dask_gpuagg.disable()
        dask_gpuagg.disable()
        assert not patched()

    def test_the_hook_is_what_runs_queries(self, ddf):
        assert not runs_planned(ddf.groupby("k").v.sum())
        dask_gpuagg.enable()
        assert runs_planned(ddf.groupby("k").v.sum())
        dask_gpuagg.disable()
        assert not runs_planned(ddf.groupby("k").v.sum())

    def test_the_context_ends_with_it(self):
        with dask_gpuagg.enabled():
            assert dask_gpuagg.is_enabled()
        assert not patched()
        assert not dask.config.get("gpuagg.enabled")

    def test_nested_contexts_end_with_the_outermost(self):
        with dask_gpuagg.enabled():
            with dask_gpuagg.enabled():
                pass
            assert dask_gpuagg.is_enabled()
            assert patched()
        assert not patched()

    def test_a_context_inside_enable_leaves_it_on(self):
        dask_gpuagg.enable()
        with dask_gpuagg.enabled():
            pass
        assert dask_gpuagg.is_enabled()

    def test_the_context_ends_with_an_error_too(self):
        with pytest.raises(ZeroDivisionError), dask_gpuagg.enabled():
            raise ZeroDivisionError
        assert not patched()

    def test_the_configuration_pauses_it(self, ddf):
        dask_gpuagg.enable()
        with dask.config.set({"gpuagg.enabled": False}):
            assert not dask_gpuagg.is_enabled()
            assert not runs_planned(ddf.groupby("k").v.sum())
        assert dask_gpuagg.is_enabled()
        assert runs_planned(ddf.groupby("k").v.sum())

    def test_enabled_inside_a_pause_leaves_the_hook(self, ddf):
        dask_gpuagg.enable()
        with dask.config.set({"gpuagg.enabled": False}):
            with dask_gpuagg.enabled():
                assert runs_planned(ddf.groupby("k").v.sum())
            assert not dask_gpuagg.is_enabled()
            dask_gpuagg.explain(ddf.groupby("k").v.sum())
            assert not dask_gpuagg.is_enabled()
        assert dask_gpuagg.is_enabled()
        assert runs_planned(ddf.groupby("k").v.sum())

    @pytest.mark.parametrize(("value", "expected"), [("true", True), ("0", False), ("1", True)])
    def test_the_environment_enables_it_at_import(self, value, expected):
        code = "import dask_gpuagg; print(dask_gpuagg.is_enabled())"
        ran = run_python("-c", code, env={"DASK_GPUAGG__ENABLED": value})
        assert ran.stdout.strip() == str(expected), ran.stderr

    def test_defaults_come_with_the_package(self):
        keys = ("enabled", "fallback", "outputs", "groups-per-output", "sample")
        code = f"import dask, dask_gpuagg; print([dask.config.get('gpuagg.' + k) for k in {keys}])"
        ran = run_python("-c", code)
        assert ran.stdout.strip() == "[False, 'warn', 'auto', 1000000, 'auto']", ran.stderr


class TestVersions:
    @pytest.mark.parametrize("version", ["2024.1.0", "2099.1.0", "2026.8.0+local"])
    def test_an_untested_dask_is_refused_and_nothing_changed(self, monkeypatch, version):
        monkeypatch.setattr(dask, "__version__", version)
        with pytest.raises(RuntimeError) as caught:
            dask_gpuagg.enable()
        assert version in str(caught.value)
        assert all(tested in str(caught.value) for tested in hook.TESTED_DASK)
        assert not patched()
        assert not dask.config.get("gpuagg.enabled")

    def test_the_installed_dask_is_tested(self):
        assert dask.__version__ in hook.TESTED_DASK

    def test_changed_internals_are_refused_and_nothing_changed(self, monkeypatch):
        parameters = ["frame", "something", *G.GroupbyAggregationBase._parameters[1:]]
        monkeypatch.setattr(G.GroupbyAggregationBase, "_parameters", parameters)
        with pytest.raises(RuntimeError, match="internals"):
            dask_gpuagg.enable()
        assert not patched()
        assert not dask.config.get("gpuagg.enabled")


class TestCollectionsOutliveTheSwitch:
    def test_built_before_enable_runs_through_the_plan(self, ddf):
        query = ddf.groupby("k").agg({"v": ["mean", "sum"]})
        dask_gpuagg.enable()
        assert runs_planned(query)

    def test_built_while_enabled_runs_stock_after_disable(self, ddf):
        with dask_gpuagg.enabled():
            query = ddf.groupby("k").agg({"v": ["mean", "sum"]})
        assert not runs_planned(query)

    @pytest.mark.parametrize("pause", [False, True])
    def test_an_extended_aggregation_cannot_and_says_so(self, ddf, pause):
        with dask_gpuagg.enabled():
            query = ddf.groupby("k").agg({"v": ["sum", "nunique"]})
            assert runs_planned(query)
        ways = [contextlib.nullcontext()]
        if pause:
            dask_gpuagg.enable()
            ways = [dask.config.set({"gpuagg.enabled": False})]
        with ways[0], pytest.raises(RuntimeError, match=r"enable.*nunique|nunique.*enable"):
            query.compute()

    def test_optimized_while_enabled_computes_after_disable(self, ddf):
        with dask_gpuagg.enabled():
            query = ddf.groupby("k").v.agg(["sum", "nunique"])
            lowered = query.optimize()
            expected = query.compute()
        pd.testing.assert_frame_equal(lowered.compute(), expected)


class TestFallback:
    """``value_counts`` with ``observed=False`` is one of the things that stock Dask runs."""

    def query(self, ddf, name: str = "k"):
        return ddf.assign(c=ddf.k.astype("category")).groupby(name, observed=False).v.value_counts()

    def test_warns_once_per_query_with_the_reason(self, ddf):
        dask_gpuagg.enable()
        query = self.query(ddf[ddf.w > 1])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            query.optimize()
            query.compute()
            query.compute()
        (warning,) = [w for w in caught if issubclass(w.category, FallbackWarning)]
        assert "value_counts with observed=False" in str(warning.message)
        assert ".value_counts()" in str(warning.message)

    def test_another_query_warns_again(self, ddf):
        dask_gpuagg.enable()
        for limit in (2, 3):
            with pytest.warns(FallbackWarning, match="observed=False"):
                self.query(ddf[ddf.w > limit]).compute()

    def test_two_group_bys_of_one_query_warn_for_each(self, ddf):
        dask_gpuagg.enable()
        one, two = self.query(ddf[ddf.w > 5]), self.query(ddf[ddf.w > 6])
        with pytest.warns(FallbackWarning) as caught:
            dask.compute(one, two)
        assert len(caught) == 2

    def test_the_result_is_stock_dasks(self, ddf):
        expected = self.query(ddf).compute()
        with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "silent"}):
            pd.testing.assert_series_equal(self.query(ddf).compute(), expected)

    def test_silent(self, ddf):
        dask_gpuagg.enable()
        with warnings.catch_warnings(), dask.config.set({"gpuagg.fallback": "silent"}):
            warnings.simplefilter("error", FallbackWarning)
            assert not runs_planned(self.query(ddf[ddf.w > 7]))

    def test_raise(self, ddf):
        dask_gpuagg.enable()
        query = self.query(ddf)
        with (
            dask.config.set({"gpuagg.fallback": "raise"}),
            pytest.raises(UnsupportedGroupBy, match="observed=False"),
        ):
            query.compute()

    def test_raise_does_not_concern_stock_dask(self, ddf):
        with dask.config.set({"gpuagg.fallback": "raise"}):
            self.query(ddf).compute()

    def test_the_tally_names_the_reason(self, ddf):
        tally.reset()
        with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "silent"}):
            self.query(ddf).compute()
            self.query(ddf).compute()
            ddf.groupby("k").v.sum().compute()
        assert dict(tally.reasons()) == {"value_counts with observed=False": 1}
        assert len(tally.planned) == 1

    @pytest.mark.parametrize("where", ["physical", "route"])
    def test_a_bug_in_the_planner_becomes_a_fallback(self, ddf, monkeypatch, where):
        monkeypatch.setattr(hook, where, broken(f"a bug in {where}"))
        dask_gpuagg.enable()
        columns = ["v", "w"] if where == "route" else ["w", "v"]
        with pytest.warns(FallbackWarning, match=f"a bug in {where}"):
            got = ddf.groupby("k")[columns].sum().compute()
        pd.testing.assert_frame_equal(got.sort_index(), frame().groupby("k")[columns].sum())

    def test_a_bug_in_the_estimate_costs_no_answer(self, ddf, monkeypatch):
        monkeypatch.setattr(hook, "choose_outputs", broken("a bug"))
        dask_gpuagg.enable()
        got = ddf.groupby("k").w.max().compute()
        pd.testing.assert_series_equal(got.sort_index(), frame().groupby("k").w.max())

    @pytest.mark.parametrize("split_out", [1, 3])
    def test_beside_a_group_by_that_stock_dask_runs(self, ddf, split_out):
        def query(f, **options):
            # sums of complex numbers are not in the registry
            refused = f.assign(v=f.v * (1 + 0j)).groupby("k").v.sum(**options)
            return refused + f.groupby("k").w.max(**options)

        tally.reset()
        with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "silent"}):
            got = query(ddf, split_out=split_out).compute()
        pd.testing.assert_series_equal(got.sort_index(), query(frame()))
        # with a single output each, partners need not agree on where the groups are
        assert len(tally.planned) == (split_out == 1)
        others = [r for r in tally.reasons() if "complex" not in r]
        beside = ["it is combined with a group-by that stock Dask runs"]
        assert others == ([] if split_out == 1 else beside)

    @pytest.mark.parametrize(
        ("where", "low"), [("hook.runs_beside_stock", 8), ("logical.refusals", 9)]
    )
    def test_a_bug_beside_stock_becomes_a_fallback(self, ddf, monkeypatch, where, low):
        monkeypatch.setattr(f"dask_gpuagg.{where}", broken(f"a bug in {where}"))
        dask_gpuagg.enable()
        query = combined(ddf[ddf.w > low], split_out=3)
        with pytest.warns(FallbackWarning, match=f"a bug in {where}") as caught:
            got = query.compute()
        assert len(caught) == 2
        pd.testing.assert_series_equal(got.sort_index(), combined(frame()[frame().w > low]))
        with dask.config.set({"gpuagg.fallback": "silent"}):
            assert not runs_planned(query)

    @pytest.mark.parametrize("where", ["hook.runs_beside_stock", "logical.refusals"])
    def test_a_bug_beside_stock_is_an_error_in_tests(self, ddf, monkeypatch, where):
        monkeypatch.setattr(f"dask_gpuagg.{where}", broken("a bug"))
        dask_gpuagg.enable()
        with (
            dask.config.set({"gpuagg.fallback": "raise"}),
            pytest.raises(UnsupportedGroupBy, match="a bug") as caught,
        ):
            combined(ddf, split_out=3).compute()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_a_bug_beside_stock_concerns_no_query_without_group_by(self, ddf, monkeypatch):
        monkeypatch.setattr(hook, "runs_beside_stock", broken("a bug"))
        dask_gpuagg.enable()
        with dask.config.set({"gpuagg.fallback": "raise"}):
            assert (ddf.v + ddf.w).sum().compute() == (frame().v + frame().w).sum()

    def test_a_bug_in_the_decision_of_partners_leaves_them_one_output(self, ddf, monkeypatch):
        monkeypatch.setattr("dask_gpuagg.partners.choose_outputs", broken("a bug"))
        dask_gpuagg.enable()
        query = combined(ddf)
        assert query.optimize().npartitions == 1
        pd.testing.assert_series_equal(query.compute().sort_index(), combined(frame()))
        decided = [found.decision for found in dask_gpuagg.explain(query).groupbys]
        assert [d.outputs for d in decided] == [1, 1]
        assert all("a bug" in d.reason for d in decided)

    def test_a_bug_in_the_planner_is_an_error_in_tests(self, ddf, monkeypatch):
        monkeypatch.setattr(hook, "physical", broken("a bug"))
        dask_gpuagg.enable()
        with (
            dask.config.set({"gpuagg.fallback": "raise"}),
            pytest.raises((UnsupportedGroupBy, ZeroDivisionError), match="a bug"),
        ):
            ddf.groupby("k").v.sum().compute()


def test_a_planned_query_pickles_and_computes_without_the_hook(ddf):
    with dask_gpuagg.enabled():
        query = ddf.groupby("k").agg({"v": ["mean", "std", "nunique"]}, split_out=3)
        lowered, expected = query.optimize(), query.compute()
    copy = pickle.loads(pickle.dumps(lowered))
    pd.testing.assert_frame_equal(copy.compute().sort_index(), expected.sort_index())
    assert copy._name == lowered._name
