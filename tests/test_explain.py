"""``explain`` and ``why_not``: what would run, and why the rest would not."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg import explain, why_not
from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.planning.route import Route


@pytest.fixture(autouse=True)
def _stock() -> Iterator[None]:
    """Neither function needs the plugin to be on, nor turns it on."""
    assert not dask_gpuagg.is_enabled()
    with dask.config.set(scheduler="synchronous"):
        yield
    assert not dask_gpuagg.is_enabled()


def frame() -> pd.DataFrame:
    values = np.arange(400)
    return pd.DataFrame(
        {
            "k": values % 7,
            "v": values * 0.5,
            "i": values,
            "s": "text",
            "c": pd.Categorical(["a", "b"] * 200),
        }
    )


@pytest.fixture(scope="module")
def ddf():
    return dd.from_pandas(frame(), npartitions=4)


class TestExplain:
    def test_names_engine_states_outputs_groups_and_merge(self, ddf):
        text = str(explain(ddf.groupby("k").agg({"v": ["mean", "sum"], "i": "median"})))
        assert text.splitlines() == [
            "group-by .agg(...)",
            "  engine   host",
            "  keys     k",
            "  states   fsum(v), count(v)",
            "  rows     i",
            "  outputs  mean(v), sum(v), median(i)",
            "  groups   400",
            "  merge    tree into 1 output: at most 400 groups (there are 400 rows)",
        ]

    @pytest.mark.parametrize("name", ["sum", "mean", "var", "first", "nunique", "median"])
    def test_shorthands(self, ddf, name):
        (found,) = explain(getattr(ddf.groupby("k").v, name)()).groupbys
        assert found.what == f".{name}()"
        assert found.engine == "host"
        assert found.reasons == ()
        assert [o.aggregation for o in found.plan.outputs] == [name]

    def test_an_extended_aggregation(self, ddf):
        with dask_gpuagg.enabled():
            query = ddf.groupby("k").agg({"v": ["sum", "sem", "nunique"]})
        (found,) = explain(query).groupbys
        assert [o.aggregation for o in found.plan.outputs] == ["sum", "sem", "nunique"]
        assert found.engine == "host"

    def test_split_out_is_the_users(self, ddf):
        (found,) = explain(ddf.groupby("k").v.sum(split_out=3)).groupbys
        assert (found.decision.route, found.decision.outputs) == (Route.EXCHANGE, 3)
        assert "split_out=3 was asked for" in str(found)

    def test_sort(self, ddf):
        (found,) = explain(ddf.groupby("k", sort=True).v.sum()).groupbys
        assert "sort=True" in found.decision.reason

    def test_every_group_by_of_a_query_once(self, ddf):
        sums = ddf.groupby("k").v.sum()
        query = sums + ddf.groupby("k").v.count() + sums
        assert sorted(g.what for g in explain(query).groupbys) == [".count()", ".sum()"]

    def test_nested_group_bys(self, ddf):
        query = ddf.groupby("k").v.sum().reset_index().groupby("k").v.max()
        assert sorted(g.what for g in explain(query).groupbys) == [".max()", ".sum()"]

    def test_a_query_without_one(self, ddf):
        assert str(explain(ddf.v + 1)) == "no group-by aggregation"
        assert explain(ddf.v + 1).groupbys == ()
        # apply and transform stay Dask's own affair
        assert explain(ddf.groupby("k").v.transform("sum", meta=("v", "f8"))).groupbys == ()

    def test_a_stock_fallback_says_why(self, ddf):
        (found,) = explain(ddf.groupby("c", observed=False).v.value_counts()).groupbys
        assert found.engine == "stock Dask"
        assert (found.plan, found.decision) == (None, None)
        assert "because  value_counts: value_counts with observed=False" in str(found)

    def test_expressions_and_optimized_collections(self, ddf):
        query = ddf.groupby("k").v.sum()
        assert str(explain(query.expr)) == str(explain(query))

    def test_nothing_of_the_query_is_computed(self):
        ran = []

        def load(i: int) -> pd.DataFrame:
            ran.append(i)
            return frame()

        query = dd.from_map(load, range(4), meta=frame().iloc[:0]).groupby("k").v.sum()
        explain(query)
        assert ran == []

    def test_prints_and_shows_the_same(self, ddf):
        explanation = explain(ddf.groupby("k").v.sum())
        assert repr(explanation) == str(explanation)
        assert pickle.loads(pickle.dumps(explanation)) == explanation

    def test_while_on_it_stays_on(self, ddf):
        with dask_gpuagg.enabled():
            explain(ddf.groupby("k").v.sum())
            assert dask_gpuagg.is_enabled()


class TestWhyNot:
    def test_nothing(self, ddf):
        assert why_not(ddf.groupby("k").agg({"v": ["mean", "sum"]})) == []
        assert why_not(ddf.v + 1) == []

    def test_a_collection_that_falls_back(self, ddf):
        (reason,) = why_not(ddf.groupby("c", observed=False).v.value_counts())
        assert reason.aggregation == "value_counts"
        assert "observed=False" in reason.reason
        assert str(reason) == f"value_counts: {reason.reason}"

    @pytest.mark.parametrize("name", [n for n, r in REGISTRY.items() if r.in_agg])
    def test_no_aggregation_of_the_registry(self, ddf, name):
        column = "s" if "string" in REGISTRY[name].accepts else "v"
        assert why_not(ddf.groupby("k")[[column]], {column: [name]}) == []
        assert why_not(ddf.groupby("k")[column], name) == []

    def test_a_specification_one_reason_per_aggregation(self, ddf):
        spec = {"v": ["sum", "skew", "sem"], "s": ["mean", "first"], "i": "mode"}
        found = why_not(ddf.groupby("k"), spec)
        assert [(r.column, r.aggregation) for r in found] == [
            ("v", "skew"),
            ("s", "mean"),
            ("i", "mode"),
        ]
        assert all(r.reason for r in found)

    def test_a_list(self, ddf):
        found = why_not(ddf.groupby("k").v, ["sum", "skew", "nunique", "kurt"])
        assert [r.aggregation for r in found] == ["skew", "kurt"]

    def test_a_lambda(self, ddf):
        (reason,) = why_not(ddf.groupby("k").v, lambda group: group.sum())
        assert reason.reason

    def test_an_unknown_column_is_an_error_as_in_the_query(self, ddf):
        with pytest.raises(KeyError, match="missing"):
            why_not(ddf.groupby("k"), {"missing": "sum"})

    def test_a_dask_aggregation_is_planned(self, ddf):
        mine = dd.Aggregation("mine", lambda s: s.sum(), lambda s: s.sum())
        assert why_not(ddf.groupby("k"), {"v": [mine, "nunique"]}) == []
