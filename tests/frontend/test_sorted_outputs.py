"""A sorted result with several outputs is promised these, whatever is done with it afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.frontend.sorted_outputs import SortedOutputs
from dask_gpuagg.planning.ranges import GroupByDivided, GroupByRanges

ROWS, OUTPUTS = 3_000, 4
KEYS = {"ranges": "k", "divided": "o", "refused": "k", "off": "k"}


@pytest.fixture(autouse=True)
def _synchronous() -> Iterator[None]:
    config = {"scheduler": "synchronous", "gpuagg.fallback": "raise"}
    with dask.config.set(config | {"dataframe.convert-string": False}), warnings.catch_warnings():
        # of what Dask assumes of unknown divisions, which is put right
        warnings.filterwarnings("ignore", "Concatenating dataframes")
        yield


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(11)
    keys = rng.integers(0, 400, ROWS)
    frame = pd.DataFrame({"k": keys, "j": rng.integers(0, 6, ROWS)})
    frame["o"] = pd.Series([f"o{n:03}" for n in keys], dtype=object)
    return frame.assign(x=rng.integers(0, 99, ROWS), y=rng.integers(1, 99, ROWS) / 4)


FRAME = rows()


class Results:
    """Two sorted results of other groups, and what they are combined with."""

    def __init__(self, key: str, outputs: int | None) -> None:
        # stock Dask loses columns that are chosen of the group-by and then of the result
        ddf = dd.from_pandas(FRAME, npartitions=7)[[key, "x", "y"]]
        few = ddf[ddf.x > 60]
        self.asked = {} if outputs is None else {"split_out": outputs}
        self.outputs = outputs or 1
        self.a = ddf.groupby(key, sort=True).sum(**self.asked)
        self.b = few.groupby(key, sort=True).sum(**self.asked)
        self.one = few.groupby(key, sort=True).sum()
        # stock Dask cannot combine a sorted result with several unsorted partitions
        given = {} if outputs is None else {"split_out": OUTPUTS}
        self.hashed = few.groupby(key).sum(**given)

    def again(self, number: int, result: Any) -> Any:
        """Another number of partitions; stock Dask adds parts of other groups then."""
        return result.repartition(npartitions=number) if self.asked else result


@contextmanager
def running(mode: str) -> Iterator[None]:
    """What runs a result: our plan, stock Dask for a reason, or the plugin is off."""
    with pytest.MonkeyPatch.context() as patch:
        if mode == "refused":
            patch.setattr(
                "dask_gpuagg.frontend.hook.cluster_problem", lambda: "a worker is too old"
            )
        if mode == "off":
            yield
            return
        with dask_gpuagg.enabled(), dask.config.set({"gpuagg.fallback": POLICY[mode]}):
            yield


POLICY = {"ranges": "raise", "divided": "raise", "refused": "silent"}

Operation = Callable[[Results], Any]
# each with the number of partitions of its result, where that is not of the first result
IN_ORDER: dict[str, Operation] = {
    "itself": lambda r: r.a,
    "projection": lambda r: r.a["y"],
    "columns of one": lambda r: r.a.x * 2 + r.a.y,
    "cumulative": lambda r: r.a.x + r.a.x.cumsum(),
    "both cumulative": lambda r: r.a.x.cumsum() + r.b.x.cumsum(),
    "both joined": lambda r: r.a.join(r.one, rsuffix="_o").y - r.b.join(r.one, rsuffix="_o").y_o,
    "both shifted": lambda r: r.a.x.shift(1) + r.b.x.shift(1),
    "assign own": lambda r: r.a.assign(z=r.a.x - r.a.y),
    "filter": lambda r: r.a[r.a.x > 300],
    "loc": lambda r: r.a.loc[r.a.y > 100, "x"],
    "add": lambda r: r.a + r.b,
    "add series": lambda r: r.a.x + r.b.x,
    "nested": lambda r: (r.a.x * 2 + r.b.x) / (r.b.y + 1) + r.a.y,
    "add method": lambda r: r.a.add(r.b, fill_value=0),
    "add one": lambda r: r.a.x + r.one.x,
    "add to one": lambda r: r.one.x - r.a.x,
    "add hashed": lambda r: r.a.x + r.hashed.x,
    "add to hashed": lambda r: r.hashed.x + r.a.x,
    "other number": lambda r: r.a.x + r.again(2, r.a).y,
    "both repartitioned": lambda r: r.again(6, r.a) + r.again(6, r.b),
    "both fewer": lambda r: r.again(2, r.a) + r.again(2, r.b),
    "assign": lambda r: r.a.assign(z=r.b.x),
    "filter by other": lambda r: r.a[(r.a.x > 0) & (r.b.x > 100)],
    "where": lambda r: r.a.x.where(r.b.x > 100),
    "mask": lambda r: r.a.x.mask(r.b.x > 100, -1),
    "combine first": lambda r: r.b.combine_first(r.a),
    "combine": lambda r: r.a.x.combine(r.b.x, lambda x, y: x - y),
    "align": lambda r: r.a.align(r.b)[1].x,
    "ufunc": lambda r: np.add(r.a.x, r.b.x),
    "concat columns": lambda r: dd.concat([r.a, r.b.rename(columns=str.upper)], axis=1),
    "concat hashed": lambda r: dd.concat([r.a, r.hashed.rename(columns=str.upper)], axis=1),
    "concat rows": lambda r: dd.concat([r.a, r.b]),
    "map partitions": lambda r: r.a.map_partitions(lambda p: p + 1),
    "map two": lambda r: r.a.map_partitions(lambda p, q: p.add(q, fill_value=0), r.b),
    "map own": lambda r: r.a.map_partitions(lambda p, q: p.add(q, axis=0), r.a.x * 2),
    "map hashed": lambda r: r.a.map_partitions(lambda p, q: p.add(q, fill_value=0), r.hashed),
    "map values": lambda r: r.a.x.map(r.b.x.drop_duplicates().rename("m"), meta=("x", "f8")),
    "shift": lambda r: r.a.shift(1),
    "diff": lambda r: r.a.x.diff(),
    "repartition to more": lambda r: r.a.repartition(npartitions=9),
    "repartition to fewer": lambda r: r.a.repartition(npartitions=2),
    "optimized": lambda r: r.a.optimize() + r.b.optimize(),
    "persisted": lambda r: r.a.persist() + r.b.persist(),
    "persisted and hashed": lambda r: r.a.x.persist() + r.hashed.x.persist(),
    "where count": lambda r: r.a.x.where(r.b.x.notnull(), 0),
}
IN_NO_ORDER: dict[str, Operation] = {
    "merge by index": lambda r: r.a.merge(r.b, left_index=True, right_index=True),
    "merge hashed": lambda r: r.a.merge(r.hashed, left_index=True, right_index=True, how="outer"),
    "join": lambda r: r.a.join(r.b, rsuffix="_b", how="left"),
    "merge by columns": lambda r: r.a.reset_index().merge(r.b.reset_index(), on="x")[
        ["x", "y_x", "y_y"]
    ],
    "group again": lambda r: r.a.groupby(r.a.x % 7).y.sum(),
    "drop duplicates": lambda r: r.a.drop_duplicates(subset=["x"]).x,
    "shuffle": lambda r: r.a.shuffle(on="x"),
    "sort values": lambda r: r.a.sort_values("y").y,
    "set index": lambda r: r.a.set_index("x").y.sum(),
    "nlargest": lambda r: r.a.nlargest(7, "y"),
    "isin": lambda r: r.a.x.isin([10, 200, 300]).sum(),
    "mean": lambda r: r.a.mean(),
    "other index": lambda r: r.a.set_index("y").x + r.b.set_index("y").x,
    "values": lambda r: r.a.x.value_counts(),
}


def values(result: Any) -> Any:
    return result.compute() if hasattr(result, "dask") else result


def same(got: Any, want: Any, ordered: bool) -> None:
    if not hasattr(want, "sort_index"):
        assert got == pytest.approx(want)
        return
    if not ordered:
        got, want = (pd.DataFrame(each) for each in (got, want))
        if got.index.name is not None:
            got, want = got.reset_index(), want.reset_index()
        got, want = (each.sort_values(list(each)).reset_index(drop=True) for each in (got, want))
    check = pd.testing.assert_series_equal if want.ndim == 1 else pd.testing.assert_frame_equal
    check(got, want, check_dtype=False)


@pytest.mark.parametrize("mode", KEYS)
@pytest.mark.parametrize("name", [*IN_ORDER, *IN_NO_ORDER])
def test_operations_answer_as_of_one_sorted_partition(name: str, mode: str) -> None:
    operation = (IN_ORDER | IN_NO_ORDER)[name]
    want = operation(Results(KEYS[mode], None))
    with dask_gpuagg.enabled():
        results = Results(KEYS[mode], OUTPUTS)
    with running(mode):
        got = operation(results)
        promised = getattr(got, "npartitions", 1)
        lowered = got.optimize() if hasattr(got, "optimize") else got
        assert getattr(lowered, "npartitions", 1) == promised
        if getattr(got, "ndim", 0):
            assert len(got.to_delayed()) == promised
        computed = values(got)
    same(computed, values(want), name in IN_ORDER)


@pytest.fixture
def results() -> Iterator[Results]:
    with dask_gpuagg.enabled():
        yield Results("k", OUTPUTS)


def test_a_local_frame_is_combined_although_its_divisions_are_known(results: Results) -> None:
    local = FRAME.groupby("k").x.max()
    want = FRAME.groupby("k").x.sum() + local
    pd.testing.assert_series_equal((results.a.x + local).compute(), want)


def test_the_number_is_promised_when_the_expression_is_made(results: Results) -> None:
    result = results.a
    assert isinstance(result.expr, SortedOutputs)
    assert result.npartitions == OUTPUTS
    assert not result.known_divisions
    parts = [result.get_partition(i).compute() for i in range(OUTPUTS)]
    assert [len(part) for part in parts] == [len(p) for p in dask.compute(*result.to_delayed())]
    assert all(before.index.max() < after.index.min() for before, after in pairwise(parts))
    want = FRAME.groupby("k")[["x", "y"]].sum()
    pd.testing.assert_frame_equal(pd.concat(parts), want)
    pd.testing.assert_frame_equal(result.head(5), want.head(5))
    pd.testing.assert_frame_equal(result.tail(5), want.tail(5))
    pd.testing.assert_frame_equal(result.partitions[1:3].compute(), pd.concat(parts[1:3]))
    assert [label for label, _ in result.iterrows()] == list(want.index)
    assert [row.Index for row in result.itertuples()] == list(want.index)
    assert len(result) == len(want)


ASKED: dict[str, tuple[Callable[[Any], Any], int]] = {
    "a number": (lambda g: g.x.sum(split_out=3), 3),
    "by position": (lambda g: g.agg({"x": "sum"}, 8, 3), 3),
    "true": (lambda g: g.x.mean(split_out=True), 7),
    "a function": (lambda g: g.x.sum(split_out=lambda n: n - 2), 5),
    "one": (lambda g: g.x.sum(split_out=1), 1),
    "nothing": (lambda g: g.x.sum(), 1),
    "by default several": (lambda g: g.x.nunique(), 1),
    "named": (lambda g: g.agg(z=("x", "sum"), split_out=3), 3),
    "named of chosen": (
        lambda g: g[["x", "y"]].agg(w=("y", "max"), z=("x", "sum"), split_out=3),
        3,
    ),
    "renamed": (lambda g: g[["x"]].var(split_out=3), 3),
    "squeezed": (lambda g: g.x.var(split_out=3), 3),
    "several aggregations": (lambda g: g.sum(min_count=4, split_out=3), 3),
    "size": (lambda g: g.agg("size", split_out=3), 3),
    "median": (lambda g: g.x.median(split_out=3), 3),
    "of Dask's refused": (lambda g: g.agg({"x": ["nunique", "sem"]}, split_out=3), 3),
    "guarded": (lambda g: g.x.agg("sum", min_count=6, split_out=3), 3),
}


@pytest.mark.parametrize("by", ["k", ["j", "k"]], ids=str)
@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_for(name: str, by: Any) -> None:
    query, outputs = ASKED[name]
    frame = FRAME[["k", "j", "x", "y"]]
    with dask_gpuagg.enabled():
        result = query(dd.from_pandas(frame, npartitions=7).groupby(by, sort=True))
        assert result.npartitions == result.optimize().npartitions == outputs
        computed = result.compute()
    with pytest.MonkeyPatch.context() as patch:
        for owner in ("SeriesGroupBy", "DataFrameGroupBy"):
            for method in ("sum", "mean", "agg", "var", "median"):
                whole = getattr(getattr(pd.api.typing, owner), method)
                patch.setattr(getattr(pd.api.typing, owner), method, without_outputs(whole))
        want = query(frame.groupby(by, sort=True))
    check = pd.testing.assert_series_equal if want.ndim == 1 else pd.testing.assert_frame_equal
    check(computed, want, check_dtype=False)


def without_outputs(whole: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, split_out: Any = None, **kwargs: Any) -> Any:
        return whole(self, *args[:1], **kwargs)

    return method


GROUPED: dict[str, Callable[[Any], Any]] = {
    "series": lambda f: f.x.groupby(f.k, sort=True),
    "computed": lambda f: f.groupby(f.k % 17, sort=True).x,
    "function": lambda f: f.groupby(lambda label: label % 13, sort=True).x,
    "level": lambda f: f.set_index("k").groupby("k", sort=True).x,
    "index": lambda f: (lambda g: g.groupby(g.index, sort=True).x)(f.set_index("k")),
    "several": lambda f: f.groupby(["j", f.k % 7], sort=True).x,
}


@pytest.mark.parametrize("name", GROUPED)
def test_what_is_grouped_by(name: str) -> None:
    grouped = GROUPED[name]
    with dask_gpuagg.enabled():
        ddf = dd.from_pandas(FRAME, npartitions=7)
        few = ddf[ddf.x > 60]
        result, other = grouped(ddf).sum(split_out=4), grouped(few).max(split_out=3)
        assert (result.npartitions, other.npartitions) == (4, 3)
        got, together = dask.compute(result, result - other)
        again = result.reset_index().groupby("x", sort=True).size(split_out=2).compute()
    want = grouped(FRAME).sum()
    pd.testing.assert_series_equal(got, want)
    pd.testing.assert_series_equal(together, want - grouped(FRAME[FRAME.x > 60]).max())
    pd.testing.assert_series_equal(again, want.reset_index().groupby("x").size())


def test_divisions_can_be_read_from_a_result(results: Results) -> None:
    known = results.a.persist().reset_index().set_index("k", sorted=True)
    assert known.known_divisions
    assert known.npartitions == OUTPUTS
    want = FRAME.groupby("k")[["x", "y"]].sum()
    assert (known.divisions[0], known.divisions[-1]) == (want.index[0], want.index[-1])
    got = known.x.rolling(3).sum().compute()
    pd.testing.assert_series_equal(got, want.x.rolling(3).sum())


def test_a_large_frame_keeps_its_partitions_beside_a_result(results: Results) -> None:
    ddf = dd.from_pandas(FRAME, npartitions=7).set_index("k")
    joined = ddf.assign(z=results.b.x)
    lowered = joined.optimize(fuse=False).expr
    assert not any(isinstance(node, GroupByDivided) for node in lowered.walk())
    sums = FRAME[FRAME.x > 60].groupby("k").x.sum()
    assert joined.z.sum().compute() == FRAME.k.map(sums).sum()


def test_without_sort_nothing_is_promised() -> None:
    with dask_gpuagg.enabled():
        grouped = dd.from_pandas(FRAME, npartitions=7).groupby("k")
        assert not any(isinstance(n, SortedOutputs) for n in grouped.x.sum(split_out=4).expr.walk())


def test_columns_that_are_not_wanted_are_not_read(results: Results) -> None:
    simple = results.a["x"].expr.simplify()
    assert [n.columns for n in simple.walk() if not n.dependencies()] == [["k", "x"]]
    both = (results.a.x + results.a.y).optimize(fuse=False).expr
    assert len({n._name for n in both.walk() if isinstance(n, GroupByRanges)}) == 1


def test_what_runs(results: Results) -> None:
    def kinds(result: Any) -> set[type]:
        return {type(node) for node in result.optimize(fuse=False).expr.walk()}

    assert GroupByRanges in kinds(results.a)
    # what is combined has one partition, as without split_out, and is divided then
    combined = kinds(results.a + results.b)
    assert GroupByDivided in combined
    assert GroupByRanges not in combined
    assert GroupByRanges in kinds(results.a * 2 + results.b)
    assert GroupByDivided in kinds(Results("o", OUTPUTS).a)
    assert GroupByDivided not in kinds(results.a.x + results.a.y)


def test_outputs_are_balanced_whatever_the_keys() -> None:
    """Bounds are of distinct keys: neither rows nor the distance of keys count."""
    rng = np.random.default_rng(2)
    keys = np.concatenate([rng.zipf(1.3, 60_000) % 10**9, rng.lognormal(9, 3, 60_000).astype(int)])
    frame = pd.DataFrame({"k": np.sort(keys), "x": 1})
    for rows in (frame, frame.sample(frac=1.0, random_state=1)):
        with dask_gpuagg.enabled():
            result = dd.from_pandas(rows, npartitions=9, sort=False).groupby("k", sort=True)
            result = result.x.sum(split_out=6)
            sizes = result.map_partitions(len).compute()
        assert max(sizes) < 2 * min(sizes)
        assert sizes.sum() == rows.k.nunique()


def test_a_tie_of_the_first_key_is_divided_by_the_second() -> None:
    frame = pd.DataFrame({"k": 1, "j": np.arange(4000) % 1000, "x": 1})
    with dask_gpuagg.enabled():
        grouped = dd.from_pandas(frame, npartitions=5).groupby(["k", "j"], sort=True)
        sizes = grouped.x.sum(split_out=4).map_partitions(len).compute()
    assert max(sizes) <= 260


def test_the_scheduler_and_its_workers_need_no_package_for_what_stock_dask_runs() -> None:
    with running("refused"):
        results = Results("k", OUTPUTS)
        for query in (results.a, results.a + results.b, results.a.x + results.hashed.x):
            lowered = query.optimize(fuse=False).expr
            kinds = {type(node).__module__.partition(".")[0] for node in lowered.walk()}
            assert kinds == {"dask"}


def test_persisted_results_are_known_by_their_names(results: Results) -> None:
    again = (results.a * 2).persist().rename(columns=str.upper).persist()
    assert again.npartitions == OUTPUTS
    got = (again.X + dask.persist(results.b.x)[0]).compute()
    groups = FRAME.groupby("k").x.sum() * 2
    want = groups + FRAME[FRAME.x > 60].groupby("k").x.sum()
    pd.testing.assert_series_equal(got, want, check_names=False)
    plain = dd.from_pandas(FRAME, npartitions=2).persist()
    assert not plain.expr.operand("name_prefix").startswith("gpuagg")


def test_results_outlive_the_plugin(results: Results) -> None:
    a, b = results.a.x.persist(), (results.b.x + 1).optimize()
    dask_gpuagg.disable()
    assert not dask_gpuagg.is_enabled()
    want = FRAME.groupby("k").x.sum() - FRAME[FRAME.x > 60].groupby("k").x.sum() - 1
    pd.testing.assert_series_equal((a - b).compute(), want)


def test_explain_says_how_outputs_are_made(results: Results) -> None:
    explained = dask_gpuagg.explain(results.a)
    assert "into 4 outputs, by ranges of keys: sort=True and 4 outputs were asked" in str(explained)
    assert "ranges of keys" in explained._repr_html_()
    divided = str(dask_gpuagg.explain(Results("o", OUTPUTS).a))
    assert "keys are Python objects" in divided
