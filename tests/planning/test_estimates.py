"""Estimates of the number of groups: what the planner learns and does before a query runs."""

import sys
from types import ModuleType
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_gpuagg
from dask_gpuagg.engines.host import engine
from dask_gpuagg.frontend import logical
from dask_gpuagg.planning import route
from dask_gpuagg.planning.chunks import STREAMED_READERS as IN_TASK
from dask_gpuagg.planning.chunks import Chunks, Route, Routing
from dask_gpuagg.planning.route import FEW_PARTITIONS, _recent, dtype_bound, from_samples
from dask_gpuagg.reporting.fallbacks import FallbackWarning, UnsupportedGroupBy
from dask_gpuagg.reporting.runs import session
from dask_gpuagg.tasks.tasks import ROWS_OF_A_SAMPLE, KeySample
from tests.comparison import same
from tests.merging import decision_of, pieces_of

MANY = 40


@pytest.fixture(autouse=True)
def _without_estimates(raising: None) -> None:
    _recent.clear()


def few(i: int) -> pd.DataFrame:
    """A partition of 300 rows and 7 keys, the same ones everywhere."""
    rng = np.random.default_rng(i)
    return pd.DataFrame({"k": rng.integers(0, 7, 300), "v": rng.random(300), "w": i})


def many(i: int) -> pd.DataFrame:
    """A partition of 300 rows with nearly as many keys, out of 8,000."""
    rng = np.random.default_rng(i)
    return pd.DataFrame({"k": rng.integers(0, 8000, 300), "v": rng.random(300), "w": i})


def from_parquet(part, tmp_path):
    dd.from_map(part, range(MANY)).to_parquet(tmp_path)
    return dd.read_parquet(tmp_path)


SOURCES = {
    "from_map": lambda part, tmp_path: dd.from_map(part, range(MANY)),
    "parquet": from_parquet,
    "persisted": lambda part, tmp_path: dd.from_map(part, range(MANY)).persist(),
    "from_pandas": lambda part, tmp_path: dd.from_pandas(
        pd.concat(map(part, range(MANY)), ignore_index=True), npartitions=MANY
    ),
}


@pytest.mark.parametrize("source", SOURCES)
class TestSources:
    def test_few_groups_are_merged_by_a_tree(self, source, tmp_path):
        ddf = SOURCES[source](few, tmp_path)
        with pieces_of(16_000):
            query = ddf.groupby("k").v.sum()
            assert ddf.npartitions > FEW_PARTITIONS
            decision = decision_of(query)
            assert (decision.route, decision.groups) == (Route.TREE, 7)
            same(query.compute(), ddf.compute().groupby("k").v.sum())

    def test_many_groups_are_merged_by_an_exchange(self, source, tmp_path):
        ddf = SOURCES[source](many, tmp_path)
        with pieces_of(16_000):
            query = ddf.groupby("k").v.sum()
            decision = decision_of(query)
            # the truth is 6,200 groups, and small samples are wide of it; too many is the safe side
            assert 5000 < decision.groups <= 12_000
            assert decision.route is Route.EXCHANGE
            assert decision.pieces == -(-decision.groups // 1000)
            assert "sampled 3 of" in decision.reason
            same(query.compute(), ddf.compute().groupby("k").v.sum())


class Recorded:
    """Calls of a function that makes partitions, or changes them."""

    def __init__(self, part=few) -> None:
        self.part = part
        self.calls: list[int] = []

    def __call__(self, i: int) -> pd.DataFrame:
        self.calls.append(i)
        return self.part(i)

    def __dask_tokenize__(self):
        return ("recorded", id(self))


def make_and_plan(make) -> tuple[Routing, list[int]]:
    """The decision about a query on a recorded input, and the partitions read for it."""
    read = Recorded(many)
    query = make(dd.from_map(read, range(MANY), meta=many(0).iloc[:0]))
    read.calls.clear()
    return decision_of(query), sorted(read.calls)


class TestSampling:
    def test_once_for_explain_and_compute_and_other_aggregations(self):
        read = Recorded()
        ddf = dd.from_map(read, range(MANY), meta=few(0).iloc[:0])
        for query in (ddf.groupby("k").v.sum(), ddf.groupby("k").agg({"v": ["mean", "std"]})):
            dask_gpuagg.explain(query)
            query.optimize()
        assert len(read.calls) == 3

    def test_another_key_is_sampled_again(self):
        read = Recorded()
        ddf = dd.from_map(read, range(MANY), meta=few(0).iloc[:0])
        assert decision_of(ddf.groupby("k").v.sum()).groups == 7
        assert decision_of(ddf.groupby("w").v.sum()).groups == MANY
        assert decision_of(ddf.groupby(["k", "w"]).v.sum()).groups == 7 * MANY
        assert len(read.calls) == 9

    def test_filters_and_projections_are_sampled_with_the_input(self):
        ddf = dd.from_map(few, range(MANY))
        assert decision_of(ddf[ddf.k < 5][["k", "v"]].groupby("k").v.sum()).groups == 5

    def test_never(self):
        with dask.config.set({"gpuagg.sample": "never"}):
            decision, read = make_and_plan(lambda d: d.groupby("k").v.sum())
        assert read == []
        assert (decision.route, decision.groups) == (Route.EXCHANGE, None)
        assert "gpuagg.sample" in decision.reason

    @pytest.mark.parametrize(
        "make",
        [
            lambda d: d.partitions[:FEW_PARTITIONS].groupby("k").v.sum(),
            lambda d: d.groupby("k").v.sum(split_out=5),
            lambda d: d.groupby("k", sort=True).v.sum(split_out=1),
            lambda d: d.groupby("k").v.median(),
            lambda d: d.assign(k=d.k.astype("int8")).groupby("k").v.sum(),
            lambda d: d.assign(k=d.k > 3).groupby(["k"]).v.sum(),
        ],
        ids=["few partitions", "split_out", "sort", "median", "int8", "bool"],
    )
    def test_not_where_the_answer_changes_nothing(self, make):
        _, read = make_and_plan(make)
        assert read == []

    def test_keys_that_repeat_after_half_of_the_partitions(self):
        # the same table twice: two of the sampled partitions hold the same keys
        def part(i: int) -> pd.DataFrame:
            return pd.DataFrame({"k": np.arange(100) + i % 32 * 100, "v": 1.0})

        with pieces_of(16_000):
            decision = decision_of(dd.from_map(part, range(64)).groupby("k").v.sum())
        assert decision.route is Route.EXCHANGE

    def test_empty_partitions(self):
        query = dd.from_map(lambda i: few(i).iloc[:0], range(MANY)).groupby("k").v.sum()
        assert decision_of(query).route is Route.TREE
        assert len(query.compute()) == 0

    def test_null_keys(self):
        ddf = dd.from_map(lambda i: few(i).assign(k=lambda d: d.k.where(d.k > 2)), range(MANY))
        assert decision_of(ddf.groupby("k").v.sum()).groups == 4
        assert decision_of(ddf.groupby("k", dropna=False).v.sum()).groups == 5


def test_samples_of_rows_with_and_without_null_keys_are_two_tasks(monkeypatch):
    """A cluster that has the one would give it for the other."""
    asked: list[tuple[Any, ...]] = []

    def made(graph, keys):
        asked.append(tuple(keys))
        return [dask.get(graph, key) for key in keys]

    monkeypatch.setattr(route, "_computed", made)
    pdf = pd.DataFrame({"k": [1.0, 2.0, np.nan, 3.0] * 10, "v": 1.0})
    ddf = dd.from_pandas(pdf, npartitions=4, sort=False)
    found = []
    for dropna in (True, False):
        query = logical.read(ddf.groupby("k", dropna=dropna).v.sum().expr)
        chunks = Chunks(ddf.optimize(fuse=False).expr, ("k",), ((0, 1, 2, 3),), 1, inside=IN_TASK)
        found.append(route._sample_rows(query, chunks).groups)
    assert found == [3, 4]
    assert set(asked[0]).isdisjoint(asked[1])


class TestNoUserFunctionRuns:
    """Functions of the user's may cost anything; none runs to make a decision."""

    def check(self, make, words: str) -> None:
        ran: list[int] = []

        def user(part):
            ran.append(len(part))
            return part

        query = make(dd.from_map(many, range(MANY)), user)
        ran.clear()
        decision = decision_of(query)
        query.optimize()
        # metadata is made from two rows
        assert sum(ran) < 100
        assert decision.route is Route.EXCHANGE
        assert decision.groups is None
        assert words in decision.reason

    def test_map_partitions(self):
        meta = many(0).iloc[:0]
        self.check(
            lambda d, user: d.map_partitions(user, meta=meta).groupby("k").v.sum(), "MapPartitions"
        )

    def test_apply(self):
        def make(d, user):
            key = d.k.apply(lambda v: user([v])[0], meta=("k", "int64"))
            return d.assign(k=key).groupby("k").v.sum()

        self.check(make, "Apply")

    def test_a_callable_key(self):
        self.check(lambda d, user: d.groupby(lambda v: user([v])[0] % 7).v.sum(), "")

    def test_delayed(self):
        def make(d, user):
            parts = [dask.delayed(lambda i: user(many(i)))(i) for i in range(MANY)]
            return dd.from_delayed(parts, meta=many(0).iloc[:0]).groupby("k").v.sum()

        self.check(make, "")

    def test_expensive_steps_are_not_run_either(self):
        self.check(lambda d, user: d.shuffle("w").groupby("k").v.sum(), "Rearrange")
        self.check(lambda d, user: d.merge(d, on="w").groupby("k_x").v_x.sum(), "erge")


def test_a_frame_in_memory_bounds_the_groups_by_its_rows():
    ddf = dd.from_pandas(many(0), npartitions=MANY)
    decision = decision_of(ddf.groupby("k").v.sum())
    assert decision.groups == 300
    assert "300 rows" in decision.reason
    assert decision.route is Route.TREE


def test_a_frame_that_was_read_anew_is_sampled_anew(tmp_path):
    sizes = []
    for part in (few, many):
        dd.from_map(part, range(MANY)).to_parquet(tmp_path, overwrite=True)
        sizes.append(decision_of(dd.read_parquet(tmp_path).groupby("k").v.sum()).groups)
    assert sizes[0] == 7
    assert sizes[1] > 1000


class TestFailingSamples:
    """The query may run all the same, without an estimate."""

    @pytest.fixture(params=["from_samples", "gpuagg_chunk"])
    def failing(self, monkeypatch, request) -> tuple[Any, Exception]:
        """A group-by whose sample fails by a bug of ours, and the error behind it."""
        error = ZeroDivisionError(f"a bug in {request.param}")
        if request.param == "from_samples":

            def fail(*_):
                raise error

            monkeypatch.setattr("dask_gpuagg.planning.route.from_samples", fail)
        else:
            partial = engine.partial

            def fail_on_keys(keys, columns, index, plan):
                if not columns:
                    raise error
                return partial(keys, columns, index, plan)

            monkeypatch.setattr("dask_gpuagg.engines.host.engine.partial", fail_on_keys)
        return dd.from_map(few, range(MANY)).groupby("k").v.sum(), error

    def test_a_bug_is_reported_and_costs_no_answer(self, failing):
        query, _ = failing
        session.reset()
        with (
            dask.config.set({"gpuagg.fallback": "warn"}),
            pytest.warns(FallbackWarning, match=r"by k .*an estimate.*a bug") as seen,
        ):
            got = query.compute()
        assert {w.filename for w in seen} == {__file__}
        assert any("a bug" in reason for reason in session.fallbacks.values())
        same(got, pd.concat(map(few, range(MANY))).groupby("k").v.sum())

    def test_a_bug_is_an_error_in_tests(self, failing):
        query, error = failing
        with pytest.raises(UnsupportedGroupBy, match="a bug") as caught:
            query.compute()
        assert caught.value.__cause__ is error

    def test_explain_tells_it_and_raises_nothing(self, failing):
        query, _ = failing
        session.reset()
        assert "a bug" in decision_of(query).reason
        assert not session.fallbacks

    def test_an_error_of_the_input_is_the_querys_own(self):
        def broken(i: int) -> pd.DataFrame:
            if i == MANY // 2:
                raise OSError("the disk is gone")
            return few(i)

        query = dd.from_map(broken, range(MANY), meta=few(0).iloc[:0]).groupby("k").v.sum()
        assert "the disk is gone" in decision_of(query).reason
        with pytest.raises(OSError, match="the disk is gone"):
            query.compute()


class TestFewPartitionsThatAreHere:
    """Of a frame of this process rows are read; of anything else nothing is computed."""

    ROWS = 40_000

    def frame(self, keys: int) -> pd.DataFrame:
        order = np.random.default_rng(1).permutation(self.ROWS)
        return pd.DataFrame({"k": order % keys, "j": 1, "v": 1.5})

    @pytest.mark.parametrize("persisted", [False, True])
    @pytest.mark.parametrize("by", ["k", ["k", "j"]])
    def test_many_groups_are_exchanged(self, persisted: bool, by: Any):
        data = self.frame(self.ROWS)
        ddf = dd.from_pandas(data, npartitions=4)
        ddf = ddf.persist() if persisted else ddf
        with pieces_of(200_000), dask.config.set({"gpuagg.chunk": 1}):
            query = ddf.groupby(by).v.sum()
            decision = decision_of(query)
            assert decision.route is Route.EXCHANGE
            assert decision.pieces > 1
            assert self.ROWS / 2 < (decision.groups or 0) <= self.ROWS
            assert "sampled rows of 3 of 4 partitions" in decision.reason
            same(query.compute(), data.groupby(by).v.sum())

    def test_what_has_to_be_computed_is_not(self):
        def refuse(frame: pd.DataFrame) -> pd.DataFrame:
            raise AssertionError("computed")

        ddf = dd.from_pandas(self.frame(50), npartitions=4)
        ddf = ddf.map_partitions(refuse, meta=ddf._meta)
        with pieces_of(1_000):
            decision = decision_of(ddf.groupby("k").v.sum())
        assert (decision.route, decision.groups) == (Route.TREE, None)


def test_a_query_while_another_thread_imports_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask imports it when it plans an exchange; until that is done, the modules have no names."""
    for name in ("distributed", "distributed.client", "distributed.worker"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    data = dd.from_map(few, range(MANY))
    assert decision_of(data.groupby("k").v.count()).groups == 7
    for held in (data, data.persist()):
        assert held.groupby("k").v.count().compute().sum() == 300 * MANY


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([True, False], "bool"),
        ([True, False, None], "boolean"),
        ([True, False, None], pd.ArrowDtype(pa.bool_())),
        (range(-128, 128), "int8"),
        (range(256), "uint8"),
        ([*range(-128, 128), None], "Int8"),
        ([*range(256), None], pd.ArrowDtype(pa.uint8())),
        (["a", "b", None], pd.CategoricalDtype(["a", "b"])),
    ],
)
def test_the_bound_of_a_dtype_holds_and_is_not_far_off(values, dtype):
    column = pd.Series(values, dtype=dtype)
    distinct = column.nunique(dropna=False)
    assert distinct <= dtype_bound(column.dtype) <= distinct + 1


def samples_of(*partitions) -> list[KeySample]:
    """All rows of partitions, whose keys are distinct."""
    keys = [pd.Series(pd.unique(np.asarray(p))) for p in partitions]
    return [KeySample([key], len(key), len(key)) for key in keys]


class TestFromSamples:
    @pytest.mark.parametrize("groups", [1_000, 20_000, 200_000])
    def test_capture_and_recapture_finds_the_population(self, groups):
        rng = np.random.default_rng(groups)
        partitions = [rng.integers(0, groups, 10_000) for _ in range(3)]
        assert groups * 0.9 < from_samples(samples_of(*partitions), 1000) < groups * 1.1

    def test_never_fewer_than_were_seen(self):
        # one shared key of skewed samples would point to fewer than the sample itself holds
        assert from_samples(samples_of(range(1000), [0], [0]), 64) >= 1000

    def test_never_more_than_every_partition_could_bring(self):
        # a single shared key points to 1000 * 1000 / 1 keys, more than 4 partitions hold
        a, b, c = range(1000), range(999, 1999), range(5000, 6000)
        assert from_samples(samples_of(a, b, c), 4) == 4000


def key_samples(keys: np.ndarray, npartitions: int = 32) -> list[KeySample]:
    """Samples of the first, middle and last of equal partitions."""
    size = len(keys) // npartitions
    found = []
    for i in (0, npartitions // 2, npartitions - 1):
        part = keys[i * size : (i + 1) * size]
        taken = part[:: -(-size // ROWS_OF_A_SAMPLE)]
        found.append(KeySample([pd.Series(np.unique(taken))], len(taken), size))
    return found


class TestFromSamplesOfRows:
    @pytest.mark.parametrize("groups", [1, 1000, 30_000, 750_000])
    def test_keys_at_random(self, groups):
        keys = np.random.default_rng(groups).integers(0, groups, 1_000_000)
        found = from_samples(key_samples(keys), 32)
        assert 0.8 * len(np.unique(keys)) <= found <= 1.6 * groups

    @pytest.mark.parametrize("repeats", [1, 2, 200, 5000])
    def test_sorted_keys(self, repeats):
        keys = np.arange(1_000_000) // repeats
        found = from_samples(key_samples(keys), 32)
        # of rows at equal distances nearly as many keys are found as there are, or none repeats
        assert 0.9 * keys[-1] <= found <= 1_000_000

    def test_whole_partitions_that_share_no_key(self):
        samples = [KeySample([pd.Series(np.arange(10) + 10 * i)], 10, 10) for i in range(3)]
        assert from_samples(samples, 20) == 200
