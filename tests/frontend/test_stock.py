"""What stock Dask would do is what it does."""

from __future__ import annotations

import gc
import json
import logging
import weakref
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.dask_expr.io import FromPandas

import dask_gpuagg
from dask_gpuagg.frontend import hook
from dask_gpuagg.frontend.stock import StockPlan

ROWS = 600
DATA = pd.DataFrame(
    {
        "k": np.arange(ROWS) % 7,
        "n": pd.Series(np.arange(ROWS) % 5).astype("Int64").where(np.arange(ROWS) % 5 > 0),
        "c": pd.Categorical(np.array(list("ab"))[np.arange(ROWS) % 2], categories=list("abz")),
        "v": np.arange(ROWS) * 0.5 + 1e9,
        "i": np.arange(ROWS, dtype="int32") + 60_000,
    }
)


@pytest.fixture(autouse=True)
def _off() -> Any:
    with dask.config.set({"scheduler": "synchronous", "gpuagg.fallback": "raise"}):
        yield
    assert not dask_gpuagg.is_enabled()


def rows(npartitions: int) -> Any:
    return dd.from_pandas(DATA, npartitions=npartitions, sort=False)


def stock(query: Any) -> StockPlan:
    """Of the last group-by of a query."""
    found = dask_gpuagg.explain(query).groupbys[-1].stock
    assert found is not None
    return found


ACCEPTED = {
    "sum": lambda d: d.groupby("k").v.sum(),
    "mean": lambda d: d.groupby("k")[["v"]].mean(),
    "std": lambda d: d.groupby("k").i.std(),
    "agg": lambda d: d.groupby(["k", "i"]).agg({"v": ["sum", "var", "first"]}),
    "median": lambda d: d.groupby("k").v.median(),
    "median in agg": lambda d: d.groupby("k").agg({"v": "median"}),
    "nunique": lambda d: d.groupby("k").i.nunique(),
    "split_out": lambda d: d.groupby("k").v.sum(split_out=3),
    "split_every": lambda d: d.groupby("k", sort=True).v.sum(split_every=3),
    "all at once": lambda d: d.groupby("k", sort=True).v.sum(split_every=False),
    "series": lambda d: d.groupby(d.k + 1).v.max(),
    "tasks": lambda d: d.groupby("k").v.sum(split_out=2, shuffle_method="tasks"),
    "aligned": lambda d: d.shuffle("k", npartitions=4).groupby("k").v.sum(split_out=4),
}


@pytest.mark.parametrize("npartitions", [1, 4, 20])
@pytest.mark.parametrize("name", ACCEPTED)
def test_outputs_and_tasks_are_those_of_its_graph(name: str, npartitions: int) -> None:
    query = ACCEPTED[name](rows(npartitions))
    found = stock(query)
    lowered = query.optimize()
    inputs = lowered.expr.find_operations(FromPandas)
    others = sum(len(node._layer()) for node in inputs)
    assert found.refusal == ""
    assert found.outputs == lowered.npartitions
    if name != "aligned":  # the shuffle is the input's
        assert found.tasks == len(lowered.__dask_graph__()) - others
    route, methods = found.route, ("disk", "tasks", "p2p")
    assert route.startswith("tree") == any("TreeReduce" in str(n) for n in lowered.expr.walk())
    assert route.endswith(tuple(f"by {method}" for method in methods)) == (
        route.startswith("shuffle")
    )
    assert (name == "aligned") == (route == "each partition by itself")
    assert ("all rows" in route) == name.startswith("median")
    with dask_gpuagg.enabled():
        assert stock(ACCEPTED[name](rows(npartitions))) == found


def test_what_the_plugin_chooses_for_an_input_is_not_stocks() -> None:
    query = rows(20).groupby(["k", "i"]).v.sum().reset_index().groupby("k").v.max()
    outer = stock(query)
    assert outer.route == "tree of 2 partials, at once"
    with dask_gpuagg.enabled():
        distinct = rows(20).groupby("k").v.nunique().reset_index().groupby("k").v.max()
        assert str(stock(distinct)) == "each partition by itself: 2 outputs, 22 tasks"
    with dask_gpuagg.enabled():
        refused = rows(3).groupby("k").agg({"v": "sem"}).reset_index().groupby("k").v.max()
        assert stock(refused).refusal == "a group-by of the input"


def test_the_method_is_that_of_the_cluster() -> None:
    from distributed import Client

    query = rows(20).groupby("k").v.sum(split_out=2)
    assert str(stock(query)) == "shuffle of 20 partials by disk: 2 outputs, 30 tasks"
    with Client(processes=False, n_workers=1, dashboard_address=None):
        assert stock(query).route == "shuffle of 20 partials by p2p"
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        assert stock(query).route == "shuffle of 20 partials by tasks"


@pytest.mark.parametrize("spec", [{"v": "nunique"}, {"v": ["sum", "sum"]}, {"v": ["sem", "sum"]}])
def test_a_refusal_is_the_error(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"unknown|conflicting") as refused:
        rows(3).groupby("k").agg(spec)
    with dask_gpuagg.enabled():
        query = rows(3).groupby("k").agg(spec)
        assert stock(query).refusal == f"{refused.type.__name__}: {refused.value}"
        assert query._name == rows(3).groupby("k").agg(spec)._name


def test_a_refusal_while_it_is_lowered() -> None:
    query = rows(20).groupby("k")[["v", "i"]].cov()
    with pytest.raises(ValueError, match="Expected iterable"):
        query.compute()
    assert stock(query).refusal.startswith("ValueError: Expected iterable")


def is_pandas(query: Any, expected: Any) -> bool:
    """Whether an answer of stock Dask is that of pandas, the order of rows aside."""
    ours = query.compute().sort_index()
    try:
        pd.testing.assert_index_equal(ours.index, expected.index, exact=False)
        np.testing.assert_allclose(
            ours.to_numpy("float64", na_value=np.nan),
            expected.to_numpy("float64", na_value=np.nan),
            rtol=1e-6,
        )
    except AssertionError:
        return False
    return True


# the note, and a query and a frame for which stock Dask's answer differs so
DIFFERENT = {
    "squares overflow 32 bits": (lambda d: d.groupby("k").i.var(), 3),
    "digits are lost where values are far from zero": (lambda d: d.groupby("k").v.var(), 3),
    "null keys have a group": (lambda d: d.groupby("n").i.mean(), 3),
    "each category has a row in each output": (
        lambda d: d.groupby("c", observed=False).i.count(),
        20,
    ),
    "the label is of the first partition that has the group": (
        lambda d: d.groupby("k").i.idxmax(),
        4,
    ),
}


@pytest.mark.parametrize("note", DIFFERENT)
def test_answers_that_differ(note: str) -> None:
    ask, npartitions = DIFFERENT[note]
    query = ask(rows(npartitions))
    assert any(text.endswith(note) for text in stock(query).differences)
    expected = ask(DATA)
    assert not is_pandas(query, expected.sort_index())
    with dask_gpuagg.enabled():
        assert is_pandas(ask(rows(npartitions)), expected.sort_index())


def test_arguments_that_are_ignored() -> None:
    query = rows(3).groupby("k")[["v"]].agg("sum", min_count=1000)
    assert not query.compute().isna().any(axis=None)
    with dask_gpuagg.enabled():
        query = rows(3).groupby("k")[["v"]].agg("sum", min_count=1000)
        assert stock(query).differences == ("arguments of the functions are ignored",)
        ordered = rows(3).groupby("k", sort=True).v.median()
        assert stock(ordered).differences == ("groups are not sorted",)


def test_answers_that_do_not_differ_have_no_note() -> None:
    for name in ("sum", "series", "nunique"):
        query = ACCEPTED[name](rows(4))
        assert stock(query).differences == ()
        assert is_pandas(query, ACCEPTED[name](DATA).sort_index())


def test_a_profile_has_it_beside_each_query() -> None:
    with dask_gpuagg.enabled(), dask_gpuagg.profile() as p:
        rows(4).groupby("k").i.var().compute()
        rows(4).groupby("k").agg({"v": "nunique"}).compute()
    plans = dict(p.stock)
    assert set(plans) == {step.query for step in p.steps}
    assert plans["nunique of v by k"].refusal == "ValueError: unknown aggregate nunique"
    tree = "stock Dask: tree of 4 partials, at once: 1 output, 5 tasks"
    for text in (str(p), p._repr_html_()):
        assert tree in text
        assert "its answer may differ: var of i (ddof=1): squares overflow 32 bits" in text
        assert "stock Dask: refuses it: ValueError: unknown aggregate nunique" in text
    said = {one["query"]: one for one in json.loads(p.to_json())["stock"]}
    assert said["var of i (ddof=1) by k"]["tasks"] == 5
    assert said["var of i (ddof=1) by k"]["differences"] == list(
        plans["var of i (ddof=1) by k"].differences
    )


def test_a_profile_keeps_no_data() -> None:
    frame = DATA.copy()
    kept = weakref.ref(frame)
    with dask_gpuagg.enabled(), dask_gpuagg.profile() as p:
        query = dd.from_pandas(frame, npartitions=3, sort=False).groupby("k").v.nunique()
        query.compute()
        del query, frame
        gc.collect()
        assert kept() is None  # not even inside the block
    assert "shuffle of 3 partials" in str(p)
    assert "_watch" not in vars(p)


def test_queries_are_described_only_where_somebody_looks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(hook, "asked", fails)
    with dask_gpuagg.enabled():
        assert len(rows(3).groupby("k").v.sum().compute()) == 7
        assert not caplog.records
        with caplog.at_level(logging.ERROR), dask_gpuagg.profile() as p:
            assert len(rows(3).groupby("k").v.sum().compute()) == 7
    assert [record.message for record in caplog.records] == [
        "a planned query could not be described"
    ]
    assert (p.planned, p.stock) == (1, ())
