"""``explain`` and ``why_not``: what would run, and why the rest would not."""

from collections.abc import Iterator

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.dask_expr._expr import Projection
from dask.dataframe.dask_expr.io import FromPandas

import dask_gpuagg
from dask_gpuagg import explain, why_not
from dask_gpuagg.aggregations import REGISTRY
from dask_gpuagg.explain import stages_of
from dask_gpuagg.planning.chunks import Route
from dask_gpuagg.reporting.text import escaped
from tests.test_profiling import shown


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
            "the plugin is OFF (dask_gpuagg.enable() switches it on); if it were on:",
            "group-by .agg(...)",
            "  engine   host",
            "  keys     k",
            "  states   sum of v, count of v",
            "  rows     i",
            "  outputs  mean of v, sum of v, median of i",
            "  groups   at most 400",
            "  merge    tree into 1 output: at most 400 groups (there are 400 rows)",
            "  tasks    4 partial, 1 finalize",
            "  bytes    at most about 15.6 KiB of partials",
        ]

    def test_split_out_is_the_users(self, ddf):
        (explained,) = explain(ddf.groupby("k").v.sum(split_out=3)).groupbys
        assert (explained.decision.route, explained.decision.outputs) == (Route.EXCHANGE, 3)
        assert "split_out=3 was asked for" in str(explained)

    def test_every_group_by_of_a_query_once(self, ddf):
        sums = ddf.groupby("k").v.sum()
        query = sums + ddf.groupby("k").v.count() + sums
        assert sorted(g.what for g in explain(query).groupbys) == [".count()", ".sum()"]

    def test_a_query_without_one(self, ddf):
        assert str(explain(ddf.v + 1)) == "no group-by aggregation"
        assert explain(ddf.v + 1).groupbys == ()

    @pytest.mark.parametrize("name", ["head", "tail"])
    def test_rows_of_groups_stay_dasks(self, ddf, name):
        def rows():
            return getattr(ddf.groupby("k"), name)(2)

        (reason,) = why_not(rows())
        assert reason.reason == "not an aggregation: Dask runs it"
        (reason,) = why_not(ddf.groupby("k"), name)
        assert f"unknown aggregate {name}" in reason.reason
        with dask.config.set({"gpuagg.enabled": False}):
            stock = set(rows().optimize().__dask_graph__())
        assert set(rows().optimize().__dask_graph__()) == stock

    def test_a_stock_fallback_says_why(self, ddf):
        query = ddf.groupby("c", observed=False).v.value_counts()
        (reason,) = why_not(query)
        assert str(reason) == "value_counts: value_counts with observed=False is not supported"
        (explained,) = explain(query).groupbys
        assert explained.engine == "stock Dask"
        assert (explained.plan, explained.decision) == (None, None)
        assert f"because  {reason}" in str(explained)

    def test_nothing_of_the_query_is_computed(self):
        ran = []

        def load(i: int) -> pd.DataFrame:
            ran.append(i)
            return frame()

        query = dd.from_map(load, range(4), meta=frame().iloc[:0]).groupby("k").v.sum()
        explain(query)
        assert ran == []


# each of another route, with few and with many partitions
TRUE = {
    "tree": lambda d: d.groupby("k").v.sum(),
    "tree of two levels": lambda d: d.groupby("k").v.sum(split_every=2),
    "exchange": lambda d: d.groupby("k").agg({"v": ["sum", "mean"]}, split_out=3),
    "sorted": lambda d: d.groupby("k", sort=True).v.mean(),
    "median": lambda d: d.groupby("k").v.median(),
    "sorted median": lambda d: d.groupby("k", sort=True).agg({"v": "median"}),
    "nunique": lambda d: d.groupby("k").i.nunique(),
    "value_counts": lambda d: d.groupby("k").c.value_counts(),
    "unobserved": lambda d: d.groupby("c", observed=False).v.sum(split_out=2),
    "cov": lambda d: d.groupby("k")[["v", "i"]].cov(),
}


class TestItIsTrue:
    """An explanation has the tasks and steps of the graph."""

    @pytest.mark.parametrize(
        ("name", "npartitions"), [*((name, 20) for name in TRUE), ("tree", 1), ("median", 1)]
    )
    def test_tasks_and_route(self, name, npartitions):
        rows = dd.from_pandas(frame(), npartitions=npartitions)
        query = TRUE[name](rows)
        (explained,) = explain(query).groupbys
        physical = explained.physical
        with dask_gpuagg.enabled(), dask_gpuagg.profile() as ran:
            lowered = query.optimize(fuse=False)
            query.compute()
        graph = lowered.__dask_graph__()
        inputs = lowered.expr.find_operations(FromPandas)
        others = sum(len(node._layer()) for node in inputs)
        # columns are taken from the input by tasks of Dask's
        others += sum(len(n._layer()) for n in lowered.expr.find_operations(Projection))
        assert sum(n for _, n in physical.tasks) == len(graph) - others
        assert (physical.partitions, physical.outputs) == (npartitions, lowered.npartitions)
        steps = {step.step for step in ran.steps}
        assert ("exchange" in steps) is (physical.route is Route.EXCHANGE)
        calls = {step.step: step.calls for step in ran.steps}
        assert calls["partial"] == physical.partials == dict(physical.tasks)["partial"]
        assert calls["finalize"] == dict(physical.tasks)["finalize"]
        moved = sum(step.nbytes for step in ran.steps if step.step == "exchange")
        assert physical.nbytes is None or moved <= physical.nbytes

    @pytest.mark.parametrize("together", [list, tuple])
    def test_several_queries_are_explained_as_they_run_together(self, ddf, together):
        queries = together([ddf.groupby("k").v.sum(), ddf.groupby("c").i.max(), ddf.v.sum()])
        assert sorted(g.what for g in explain(queries).groupbys) == [".max()", ".sum()"]
        assert why_not(queries) == []
        assert explain(together([])).groupbys == ()
        one = explain(together([queries[0]]))
        assert str(one) == str(explain(queries[0]))

    def test_partitions_of_files_that_a_task_reads(self, ddf, tmp_path):
        ddf[["k", "v"]].to_parquet(tmp_path)
        with dask.config.set({"gpuagg.chunk": 2}):
            (explained,) = explain(dd.read_parquet(tmp_path).groupby("k").v.sum()).groupbys
        assert dict(explained.physical.tasks)["chunk"] == 2
        assert "chunks   4 partitions in 2 tasks on 1 worker" in str(explained)

    def test_files_that_dask_would_read_as_one_partition(self, ddf, tmp_path):
        wide = pd.DataFrame(
            {f"c{i}": np.arange(48.0) for i in range(20)} | {"k": np.arange(48) % 3}
        )
        dd.from_pandas(wide, npartitions=12).to_parquet(tmp_path)
        rows = dd.read_parquet(tmp_path)
        fused = rows[["k", "c0"]].optimize().npartitions
        (explained,) = explain(rows.groupby("k").c0.sum()).groupbys
        assert fused < 12
        assert (explained.physical.partitions, explained.physical.partials) == (12, fused)

    def test_a_query_that_fails_as_it_is_lowered(self, ddf):
        query = ddf.partitions[0:0].groupby("k").v.sum()
        (explained,) = explain(query).groupbys
        assert explained.engine == "stock Dask"
        assert any("no partitions" in str(r) or "lowered" in str(r) for r in explained.reasons)


def test_where_it_is_off(ddf):
    query, off = ddf.groupby("k").v.sum(), "the plugin is OFF"
    assert str(explain(query)).startswith(off)
    assert off in explain(query)._repr_html_()
    with dask_gpuagg.enabled():
        assert off not in str(explain(query)) + explain(query)._repr_html_()
        with dask.config.set({"gpuagg.enabled": False}):
            assert "by the setting gpuagg.enabled" in str(explain(query))


class TestNoQuery:
    @pytest.mark.parametrize(
        ("query", "named"),
        [
            (5, "builtins.int"),
            (None, "builtins.NoneType"),
            ("query", "builtins.str"),
            (frame(), "pandas.DataFrame"),
            (dask.delayed(sum)([1, 2]), "dask.Delayed"),
            ([1, 2], "builtins.int"),
            ({"a": 1}, "builtins.dict"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_type_error_names_it(self, query, named):
        for ask in (explain, why_not):
            with pytest.raises(TypeError, match=rf"not {named}$"):
                ask(query)

    def test_a_group_by_without_an_aggregation(self, ddf):
        with pytest.raises(TypeError, match="why_not"):
            explain(ddf.groupby("k"))

    def test_the_outputs_of_nunique_are_dasks(self, ddf):
        (explained,) = explain(ddf.groupby("k").v.nunique()).groupbys
        assert "split_out=True, as Dask has it for nunique" in str(explained)


class TestPicture:
    @pytest.mark.parametrize("name", TRUE)
    def test_is_well_formed_and_names_all_columns(self, name):
        npartitions = 20
        query = TRUE[name](dd.from_pandas(frame(), npartitions=npartitions))
        explanation = explain(query)
        text = shown(explanation._repr_html_())
        (explained,) = explanation.groupbys
        columns = stages_of(explained.physical, explained.groups)
        assert columns[0].number == npartitions
        assert columns[-1].number == explained.physical.outputs
        for column in columns:
            assert column.title in text
            assert column.under in text

    def test_labels_are_escaped(self):
        data = frame().rename(columns={"v": "<script>alert(1)</script>"})
        query = dd.from_pandas(data, npartitions=2).groupby("k").sum(numeric_only=True)
        assert "<script>" not in explain(query)._repr_html_()


class TestWhyNot:
    @pytest.mark.parametrize("name", [n for n, r in REGISTRY.items() if r.in_agg])
    def test_no_aggregation_of_the_registry(self, ddf, name):
        column = "s" if "string" in REGISTRY[name].accepts else "v"
        assert why_not(ddf.groupby("k")[[column]], {column: [name]}) == []
        assert why_not(ddf.groupby("k")[column], name) == []

    def test_a_specification_one_reason_per_aggregation(self, ddf):
        spec = {"v": ["sum", "skew", "sem"], "s": ["mean", "first"], "i": "mode"}
        reasons = why_not(ddf.groupby("k"), spec)
        assert [(r.column, r.aggregation) for r in reasons] == [
            ("v", "skew"),
            ("s", "mean"),
            ("i", "mode"),
        ]
        assert all(r.reason for r in reasons)

    @pytest.mark.parametrize(
        ("query", "name"),
        [
            (lambda g: g.v.transform("mean", meta=("v", "f8")), "transform"),
            (lambda g: g.v.apply(sum, meta=("v", "f8")), "apply"),
            (lambda g: g.v.cumsum(), "cumsum"),
            (lambda g: g.v.shift(1, meta=("v", "f8")), "shift"),
            (lambda g: g.v.ffill(), "ffill"),
            (lambda g: g[["v"]].rolling(2).sum(), "rolling"),
        ],
    )
    def test_what_is_no_aggregation_is_left_to_dask(self, ddf, query, name):
        (reason,) = why_not(query(ddf.groupby("k")))
        assert reason.aggregation == name
        assert "Dask runs it" in reason.reason
        assert f"group-by .{name}(...)" in str(explain(query(ddf.groupby("k"))))

    def test_reasons_print_one_a_line(self, ddf):
        reasons = why_not(ddf.groupby("k"), {"v": ["skew", "kurt"]})
        assert repr(reasons).splitlines() == [*map(str, reasons)]
        assert all(escaped(reason) in reasons._repr_html_() for reason in reasons)
        assert repr(why_not(ddf.groupby("k").v.sum())) == "[]"

    def test_a_misspelt_name_has_a_hint(self, ddf):
        (reason,) = why_not(ddf.groupby("k"), {"v": "medain"})
        assert "did you mean 'median'?" in reason.reason

    @pytest.mark.parametrize(
        ("column", "name", "parameters", "words"),
        [
            ("v", "quantile", {"q": [0.1, 0.9]}, "several quantiles at once"),
            ("v", "nlargest", {"n": -1}, "n=-1 is not a number of values"),
            ("s", "nlargest", {"n": 2}, "nlargest of dtype"),
        ],
    )
    def test_an_error_names_the_reason(self, ddf, column, name, parameters, words):
        with dask_gpuagg.enabled(), pytest.raises(ValueError, match=words):
            ddf.groupby("k")[column].agg(name, **parameters)

    def test_an_unknown_column_is_an_error_as_in_the_query(self, ddf):
        with pytest.raises(KeyError, match="missing"):
            why_not(ddf.groupby("k"), {"missing": "sum"})
