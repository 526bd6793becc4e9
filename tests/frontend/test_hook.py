"""The wrappers: queries that outlive the switch, and fallbacks."""

import contextlib
import inspect
import pickle
import warnings
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.frontend import hook, logical
from dask_gpuagg.planning import chunks as chunks_module
from dask_gpuagg.reporting.events import Planned
from dask_gpuagg.reporting.fallbacks import FallbackWarning, UnsupportedGroupBy
from dask_gpuagg.reporting.runs import session
from tests.comparison import same
from tests.reporting import listening


@pytest.fixture(autouse=True)
def _stock_afterwards() -> Iterator[None]:
    with dask.config.set(scheduler="synchronous"):
        yield
    dask_gpuagg.disable()


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
    session.reset()
    query.compute()
    assert not (session.planned and session.fallbacks)
    return bool(session.planned)


class TestCollectionsOutliveTheSwitch:
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


class TestFallback:
    """``value_counts`` by categories with ``observed=False`` is left to stock Dask."""

    def query(self, ddf, name: str = "c"):
        return ddf.assign(c=ddf.k.astype("category")).groupby(name, observed=False).v.value_counts()

    def test_warns_once_per_line_with_the_reason(self, ddf):
        dask_gpuagg.enable()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for limit in (1, 2):
                self.query(ddf[ddf.w > limit]).compute()
            here = inspect.currentframe().f_lineno
        (warning,) = [w for w in caught if issubclass(w.category, FallbackWarning)]
        assert "value_counts with observed=False is not supported" in str(warning.message)
        assert ".value_counts()" in str(warning.message)
        assert (warning.filename, warning.lineno) == (__file__, here - 1)

    def test_another_reason_warns_on_the_same_line(self, ddf):
        dask_gpuagg.enable()
        one, two = self.query(ddf), ddf.assign(v=ddf.v * (1 + 0j)).groupby("k").v.sum()
        with pytest.warns(FallbackWarning) as caught:
            dask.compute(one, two)
        messages = [str(w.message) for w in caught if w.category is FallbackWarning]
        reasons = [text.partition(": ")[2] for text in messages]
        assert len(reasons) == 2
        assert "complex" in reasons[0] + reasons[1]

    def test_silent_and_raise(self, ddf):
        with dask.config.set({"gpuagg.fallback": "raise"}):
            expected = self.query(ddf).compute()  # the setting does not concern stock Dask
            dask_gpuagg.enable()
            with pytest.raises(UnsupportedGroupBy, match="observed=False"):
                self.query(ddf).compute()
        with warnings.catch_warnings(), dask.config.set({"gpuagg.fallback": "silent"}):
            warnings.simplefilter("error", FallbackWarning)
            assert not runs_planned(self.query(ddf[ddf.w > 7]))
            pd.testing.assert_series_equal(self.query(ddf).compute(), expected)

    @pytest.mark.parametrize("where", ["physical", "route"])
    def test_a_bug_in_the_planner_becomes_a_fallback(self, ddf, monkeypatch, where):
        monkeypatch.setattr(hook, where, broken(f"a bug in {where}"))
        dask_gpuagg.enable()
        columns = ["v", "w"] if where == "route" else ["w", "v"]
        with pytest.warns(FallbackWarning, match=f"a bug in {where}"):
            got = ddf.groupby("k")[columns].sum().compute()
        pd.testing.assert_frame_equal(got.sort_index(), frame().groupby("k")[columns].sum())
        failure = pytest.raises(UnsupportedGroupBy, match=f"a bug in {where}")
        with dask.config.set({"gpuagg.fallback": "raise"}), failure:
            ddf.groupby("k")[columns].sum().compute()

    @pytest.mark.parametrize("split_out", [1, 3])
    def test_beside_a_group_by_that_stock_dask_runs(self, ddf, split_out):
        def query(f, **options):
            # sums of complex numbers are not in the registry
            refused = f.assign(v=f.v * (1 + 0j)).groupby("k").v.sum(**options)
            return refused + f.groupby("k").w.max(**options)

        session.reset()
        with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": "silent"}):
            got = query(ddf, split_out=split_out).compute()
        pd.testing.assert_series_equal(got.sort_index(), query(frame()))
        # with a single output each, partners need not agree on where the groups are
        assert len(session.planned) == (split_out == 1)
        others = [r for r in session.fallbacks.values() if "complex" not in r]
        beside = ["it is combined with a group-by that stock Dask runs"]
        assert others == ([] if split_out == 1 else beside)

    @pytest.mark.parametrize(("where", "low"), [("hook._place", 8), ("logical.refusals", 9)])
    def test_a_bug_beside_stock_becomes_a_fallback(self, ddf, monkeypatch, where, low):
        monkeypatch.setattr(f"dask_gpuagg.frontend.{where}", broken(f"a bug in {where}"))
        dask_gpuagg.enable()
        query = combined(ddf[ddf.w > low], split_out=3)
        with pytest.warns(FallbackWarning, match=f"a bug in {where}") as caught:
            got = query.compute()
        assert len(caught) == 2
        pd.testing.assert_series_equal(got.sort_index(), combined(frame()[frame().w > low]))
        with dask.config.set({"gpuagg.fallback": "silent"}):
            assert not runs_planned(query)

    def test_a_bug_beside_stock_concerns_no_query_without_group_by(self, ddf, monkeypatch):
        monkeypatch.setattr(hook, "_place", broken("a bug"))
        dask_gpuagg.enable()
        with dask.config.set({"gpuagg.fallback": "raise"}):
            assert (ddf.v + ddf.w).sum().compute() == (frame().v + frame().w).sum()


@pytest.mark.parametrize("shape", ["frame", "series"])
def test_results_of_objects_are_objects_where_dask_promised_strings(monkeypatch, shape):
    """Older releases of Dask do: they make the metadata from strings."""
    data = pd.DataFrame(
        {"k": [1, 2, 1], "x": pd.Series([Decimal(1), Decimal(4), Decimal(2)], dtype=object)}
    )
    read = hook.logical.read

    def as_older_dask(expr):
        query = read(expr)
        return replace(query, meta=query.meta.astype("str"))

    def query(f):
        return f.groupby("k").x.first() if shape == "series" else f.groupby("k")[["x"]].first()

    monkeypatch.setattr(hook.logical, "read", as_older_dask)
    with dask_gpuagg.enabled(), dask.config.set({"dataframe.convert-string": False}):
        got = query(dd.from_pandas(data, npartitions=2)).compute()
    same(got, query(data))


@pytest.mark.parametrize("split_out", [1, 3])
def test_a_planned_query_pickles_and_computes_without_the_hook(ddf, split_out: int):
    with dask_gpuagg.enabled():
        query = ddf.groupby("k").agg({"v": ["mean", "std", "nunique"]}, split_out=split_out)
        lowered, expected = query.optimize(), query.compute()
    copy = pickle.loads(pickle.dumps(lowered))
    assert copy._name == lowered._name
    for planned in (lowered, copy):
        # the order of groups, which ``compute()`` brings together at once, is another
        pd.testing.assert_frame_equal(planned.compute().sort_index(), expected.sort_index())


def lowered_plan(tuned):
    """The plan of the only group-by of a query."""
    events: list[Planned] = []
    with listening(events.append, Planned):
        tuned.lower_completely()
    (plan,) = {event.node._name: event.query.plan for event in events}.values()
    return plan


@pytest.mark.parametrize("lowered", [False, True], ids=["as it is", "to another"])
def test_a_group_by_is_read_once(ddf, monkeypatch, lowered):
    calls = {"parts": 0, "chunks": 0}
    parts, chunked = logical._parts, chunks_module.chunked

    def count(name, original):
        def counted(*args, **kwargs):
            calls[name] += 1
            return original(*args, **kwargs)

        return counted

    dask_gpuagg.enable()
    source = ddf.repartition(npartitions=10) if lowered else ddf
    query = source.groupby("k").agg({"v": ["sum", "mean"]})
    monkeypatch.setattr(logical, "_parts", count("parts", parts))
    monkeypatch.setattr(chunks_module, "chunked", count("chunks", chunked))
    same(query.compute(), frame().groupby("k").agg({"v": ["sum", "mean"]}))
    # above an input that Dask replaces the node is another one
    times = 2 if lowered else 1
    assert calls == {"parts": 1, "chunks": times}
    query.compute()  # partitions may have moved
    assert calls["chunks"] == 2 * times


def test_settings_changed_after_tuning_are_those_of_lowering(ddf):
    dask_gpuagg.enable()
    tuned = ddf.groupby("k").v.sum().expr.simplify().rewrite(kind="tune", rewritten={})
    for kernel in ("auto", "hgb"):
        with dask.config.set({"gpuagg.kernel": kernel}):
            assert lowered_plan(tuned).settings.kernel == kernel


@pytest.mark.parametrize(
    "repartition",
    [
        {"freq": "12h"},
        {"partition_size": "1KiB"},
        {"npartitions": 3},
        {"npartitions": 6},
        {"npartitions": 9},
    ],
    ids=str,
)
def test_repartitioned_inputs_are_planned(raising, repartition):
    hours = pd.date_range("2026-01-01", periods=60, freq="h")
    pdf = pd.DataFrame({"k": np.arange(60) % 7, "v": np.arange(60.0)}, index=hours)
    ddf = dd.from_pandas(pdf, npartitions=6).repartition(**repartition)
    for rows, all_rows in ((ddf, pdf), (ddf[ddf.v > 9], pdf[pdf.v > 9])):
        query = rows.groupby("k").v.sum()
        assert runs_planned(query)
        expected = all_rows.groupby("k").v.sum()
        pd.testing.assert_series_equal(query.compute().sort_index(), expected)
