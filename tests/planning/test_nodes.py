"""Planned queries as collections: their nodes, what is read, and what can be done with them."""

import pickle
from types import SimpleNamespace
from typing import ClassVar

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.dask_expr._expr import Expr
from dask.dataframe.dask_expr.io import ReadParquet
from dask.dataframe.dask_expr.io.io import FusedIO
from dask.order import order
from dask.utils import key_split

import dask_gpuagg
from dask_gpuagg.plan import Requested
from dask_gpuagg.planning import lower
from dask_gpuagg.planning.chunks import Chunks
from dask_gpuagg.planning.nodes import GroupByExchange, GroupByGather, GroupByMerge, Promised
from dask_gpuagg.reporting.runs import session
from tests.comparison import same
from tests.data import plan_of
from tests.merging import pieces_of
from tests.planning.test_chunks import nodes

pytestmark = pytest.mark.usefixtures("plugin", "synchronous")


def frame(rows: int = 400) -> pd.DataFrame:
    values = np.arange(rows)
    return pd.DataFrame({"k": values % 7, "v": values * 0.5, "w": values, "unused": 1.5})


@pytest.fixture(scope="module")
def ddf():
    return dd.from_pandas(frame(), npartitions=40)


class TestNames:
    QUERIES: ClassVar = {
        "tree": lambda ddf: ddf.groupby("k").v.sum(),
        "exchange": lambda ddf: ddf.groupby("k").v.sum(split_out=3),
        "merge": lambda ddf: ddf.groupby("k").v.sum(split_out=3, shuffle_method="tasks"),
    }

    @pytest.mark.parametrize("route", QUERIES)
    def test_the_decision_shows_on_the_dashboard(self, ddf, route):
        graph = self.QUERIES[route](ddf).optimize().__dask_graph__()
        prefixes = {key_split(key) for key in graph}
        assert any("gpuagg" in p and route in p for p in prefixes), prefixes
        assert any("gpuagg" in p and "partial" in p for p in prefixes), prefixes

    @pytest.mark.parametrize("route", QUERIES)
    def test_the_decision_shows_in_pprint(self, ddf, route, capsys):
        self.QUERIES[route](ddf).optimize().pprint()
        printed = capsys.readouterr().out
        assert f"GroupBy{route.capitalize()}: " in printed
        assert "GroupByPartial" in printed
        reason = "at most 400 groups" if route == "tree" else "split_out=3 was asked for"
        assert reason in printed
        assert max(map(len, printed.splitlines())) < 200

    def test_equal_queries_have_equal_names_and_others_do_not(self, ddf):
        def name(**kwargs) -> str:
            return ddf.groupby("k").v.sum(**kwargs).optimize().expr._name

        assert name(split_out=3) == name(split_out=3)
        assert len({name(), name(split_out=3), name(split_out=4), name(split_every=2)}) == 4


class TestRoutes:
    def test_split_out_is_honoured(self, ddf):
        query = ddf.groupby("k").agg({"v": "sum"}, split_out=4)
        assert query.npartitions == 4
        assert query.optimize().npartitions == 4
        parts = dask.compute(*query.to_delayed())
        assert len(parts) == 4
        assert sorted(key for part in parts for key in part.index) == list(range(7))

    def test_split_every_is_honoured(self, ddf):
        def depth(split_every) -> int:
            query = ddf.groupby("k").v.sum(split_every=split_every)
            return len(query.optimize(fuse=False).__dask_graph__())

        # 40 partials by twos: 20 + 10 + 5 + 2 + 1 combinations and the last one
        assert depth(2) > depth(8) > depth(False)
        # and the division into three outputs
        assert depth(False) == 40 + 40 + 1 + 3

    @pytest.mark.parametrize("method", ["tasks", "disk"])
    def test_the_shuffle_method_is_honoured(self, ddf, method):
        query = ddf.groupby("k").v.agg(["sum", "first"], split_out=3, shuffle_method=method)
        assert len(nodes(query, GroupByMerge)) == 1
        same(query.compute(), frame().groupby("k").v.agg(["sum", "first"]))

    def test_on_a_device_splits_are_gone_before_outputs_are_made(self, ddf, monkeypatch):
        query = ddf.groupby("k").agg({"v": ["sum", "mean"]}, split_out=3)
        expected = query.compute().sort_index()
        for on_device in (False, True):
            monkeypatch.setattr(GroupByExchange, "_has_barrier", on_device)
            lowered = query.optimize(fuse=False)
            same(lowered.compute().sort_index(), expected)
            graph = lowered.__dask_graph__()
            place = order(graph, list(lowered.__dask_keys__()))
            of = {name: [] for name in ("gpuagg_piece", "gpuagg_exchange", "gpuagg_barrier")}
            for key, at in place.items():
                of.setdefault(key_split(key), []).append(at)
            assert len(of["gpuagg_piece"]) == 3 * 40
            assert len(of["gpuagg_barrier"]) == (40 if on_device else 0)
            first = min(of["gpuagg_exchange"])
            # a split is released when the last piece is taken out of it
            assert (max(of["gpuagg_piece"]) < first) == on_device
            (found,) = dask_gpuagg.explain(query).groupbys
            assert dict(found.physical.tasks)["exchange"] == 160 + len(of["gpuagg_barrier"])

    def test_sorted_whole_groups_are_gathered(self, ddf, monkeypatch):
        monkeypatch.setattr(lower, "MERGED_ON_HOST", 0)
        query = ddf.groupby("k", sort=True).agg({"v": ["median", "sum"]})
        assert len(nodes(query, GroupByGather)) == 1
        expected = frame().groupby("k").agg({"v": ["median", "sum"]})
        pd.testing.assert_frame_equal(query.compute(), expected)

    @pytest.mark.parametrize("split_out", [1, 3, 8])
    @pytest.mark.parametrize("by", [["c"], ["k", "c"]], ids="-".join)
    def test_unobserved_combinations_appear_once(self, by, split_out):
        data = frame().assign(c=pd.Categorical(["b", "a"] * 200, categories=["b", "a", "never"]))
        lazy = dd.from_pandas(data, npartitions=4).groupby(by, observed=False).v
        expected = data.groupby(by, observed=False).v.sum()
        got = lazy.sum(split_out=split_out).compute()
        assert sorted(got.index) == sorted(expected.index)
        pd.testing.assert_series_equal(got.reindex(expected.index), expected)

    def test_a_shuffled_input_needs_no_exchange(self, ddf):
        query = ddf.shuffle("k", npartitions=4).groupby("k").v.sum(split_out=4)
        assert len(nodes(query, GroupByMerge)) == 1
        assert len(nodes(query, GroupByExchange)) == 0
        same(query.compute(), frame().groupby("k").v.sum())


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    path = tmp_path_factory.mktemp("parquet")
    dd.from_pandas(frame(), npartitions=4).to_parquet(path)
    return dd.read_parquet(path)


class TestProjection:
    """Only the columns that a query needs are read."""

    QUERIES: ClassVar = {
        "shorthand": (lambda d: d.groupby("k").v.sum(), {"k", "v"}),
        "list": (lambda d: d.groupby("k")[["v", "w"]].agg(["sum", "mean"]), {"k", "v", "w"}),
        "dict": (lambda d: d.groupby("k").agg({"v": ["sum", "mean"]}), {"k", "v"}),
        "named": (lambda d: d.groupby("k").agg(a=("w", "max")), {"k", "w"}),
        "size": (lambda d: d.groupby("k").size(), {"k"}),
        "extended": (lambda d: d.groupby("k").agg({"v": ["sum", "nunique"]}), {"k", "v"}),
        "series": (lambda d: d.groupby("k").v.agg(["sem"]), {"k", "v"}),
        "result": (lambda d: d.groupby("k").sum()["w"], {"k", "w"}),
        "expression": (lambda d: d.groupby(d.k % 2).v.sum(), {"k", "v"}),
        "all of it": (lambda d: d.groupby(d.k % 2).max(), {"k", "v", "w", "unused"}),
    }

    def readers(self, query) -> list[ReadParquet]:
        # several files may be read by one task
        fused = [node.operand("_expr") for node in nodes(query, FusedIO)]
        # or by the task that groups them
        chunks = [op for node in nodes(query, Expr) for op in node.operands]
        inside = [op.frame.find_operations(ReadParquet) for op in chunks if isinstance(op, Chunks)]
        return nodes(query, ReadParquet) + fused + [node for found in inside for node in found]

    @pytest.mark.parametrize("name", QUERIES)
    def test_unneeded_columns_are_not_read(self, parquet, name):
        make, needed = self.QUERIES[name]
        query = make(parquet)
        (reader,) = self.readers(query)
        assert set(reader.columns) == needed
        expected = make(frame())
        if isinstance(expected, pd.DataFrame):
            same(query.compute()[expected.columns], expected)
        else:
            same(query.compute(), expected)

    def test_a_filter_adds_only_its_own_column(self, parquet):
        query = parquet[parquet.w > 100].groupby("k").v.sum()
        (reader,) = self.readers(query)
        assert set(reader.columns) == {"k", "v", "w"}
        same(query.compute(), frame()[lambda d: d.w > 100].groupby("k").v.sum())


class TestResults:
    """What users do with a result, for one output and for several."""

    @pytest.fixture(params=[None, 3], ids=["one output", "three outputs"])
    def query(self, request, ddf):
        return ddf.groupby("k").agg({"v": "sum", "w": "sum"}, split_out=request.param)

    expected = frame().groupby("k")[["v", "w"]].sum()

    def test_compute(self, query):
        session.reset()
        same(query.compute(), self.expected)
        assert len(session.planned) == 1

    def test_threads(self, query):
        same(query.compute(scheduler="threads"), self.expected)

    def test_to_parquet(self, query, tmp_path):
        query.to_parquet(tmp_path)
        same(pd.read_parquet(tmp_path), self.expected)

    def test_metadata_is_kept(self, query):
        computed = query.compute()
        assert list(query.columns) == list(computed.columns)
        assert query.index.name == computed.index.name == "k"
        assert (query.dtypes == computed.dtypes).all()


def many_groups():
    def part(i: int) -> pd.DataFrame:
        rng = np.random.default_rng(i)
        return pd.DataFrame({"k": rng.integers(0, 5000, 500), "v": rng.random(500)})

    return dd.from_map(part, range(40))


# results of several group-bys combined row by row
ARITHMETIC = {
    "different numbers of groups": lambda d, **options: (
        d[d.k < 2000].groupby("k").v.sum() / d.groupby("k").v.sum()
    ),
    "one number of outputs given": lambda d, **options: (
        d.groupby("k").v.sum(**options) / d[d.k < 4000].groupby("k").v.count()
    ),
    "one repartitioned": lambda d, **options: (
        repartitioned(d.groupby("k").v.sum(), options) / d.groupby("k").v.sum()
    ),
    "another repartitioned": lambda d, **options: (
        d.groupby("k").v.count() / repartitioned(d.groupby("k").v.sum(), options)
    ),
}


@pytest.mark.parametrize("nbytes", [16_000, 10**8])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_results_are_aligned(name, nbytes):
    with pieces_of(nbytes):
        got = ARITHMETIC[name](many_groups(), split_out=3).compute()
    same(got, ARITHMETIC[name](many_groups().compute()))


def repartitioned(result, options):
    """In as many partitions as Dask makes of 40; pandas' results stay as they are."""
    return result.repartition(npartitions=3) if options else result


def test_promised_metadata_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = pd.Series([], dtype="int64", name="k")
    plan = plan_of(meta.to_frame(), ["k"], Requested("k", "count", "k"))
    arrived = pickle.loads(pickle.dumps(Promised(meta, plan)))
    pd.testing.assert_series_equal(arrived.meta, meta)
    pd.testing.assert_series_equal(arrived.sent, meta)
    # as of a collection of cuDF: tasks get the shape, nodes above can have the metadata
    engine = SimpleNamespace(shape_of=lambda meta: ("shape", meta.name))
    monkeypatch.setattr("dask_gpuagg.planning.nodes.engine_name", lambda meta: "device")
    monkeypatch.setattr("dask_gpuagg.planning.nodes.engine_of", lambda meta: engine)
    arrived = pickle.loads(pickle.dumps(Promised(meta, plan)))
    again = pickle.loads(pickle.dumps(arrived))
    assert arrived.sent == again.sent == ("shape", "k")
    pd.testing.assert_series_equal(again.meta, meta)
