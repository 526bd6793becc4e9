"""A persisted result is read as it would be if it were not persisted."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster, futures_of, wait

import dask_gpuagg
from dask_gpuagg.frontend.persisted_outputs import PersistedOutputs

ROWS, GROUPS = 600, 200
FRAME = pd.DataFrame({"k": np.arange(ROWS) % GROUPS, "x": np.arange(ROWS) + 1.0})
TOTAL, MEAN = FRAME.groupby("k").x.sum(), FRAME.groupby("k").x.mean()


@pytest.fixture(autouse=True)
def _synchronous() -> Iterator[None]:
    config = {"scheduler": "synchronous", "gpuagg.fallback": "raise"}
    with dask.config.set(config), dask_gpuagg.enabled():
        yield


def rows(npartitions: int = 5) -> Any:
    return dd.from_pandas(FRAME, npartitions=npartitions, sort=False)


def _several(make: Callable[[], Any], nbytes: int = 1000) -> Any:
    with dask.config.set({"gpuagg.output-bytes": nbytes}):
        return make()


# how a result is persisted
KEPT: dict[str, Callable[[Any], Any]] = {
    "method": lambda r: r.persist(),
    "function": lambda r: dask.persist(r)[0],
    "twice": lambda r: r.persist().persist(),
    "after another step": lambda r: (r.persist() + 0).persist(),
    "optimized": lambda r: dask.persist(r.persist(optimize_graph=False))[0],
}


@pytest.fixture(params=KEPT)
def kept(request: Any) -> Any:
    made = _several(lambda: KEPT[request.param](rows().groupby("k").x.sum()))
    assert made.npartitions == 1
    assert made.optimize().npartitions > 1
    return made


def looked_up(part: pd.DataFrame, whole: pd.Series) -> pd.Series:
    return part.k.map(whole)


def added(part: pd.Series, other: pd.Series) -> pd.Series:
    return part.add(other, fill_value=0)


def _one() -> Any:
    return rows().groupby("k").x.mean().persist()


def _joined(p: Any) -> Any:
    return p.to_frame("a").join(_mean().to_frame("b"))


def _sorted(p: Any) -> Any:
    return p.to_frame("a").sort_values("a", ascending=False)


def _by_two(name: str, value: str) -> Any:
    frame = FRAME.assign(j=FRAME.k % 7)
    groups = dd.from_pandas(frame, npartitions=5, sort=False).groupby(["k", "j"])
    made = _several(getattr(groups.x, value)().to_frame(name).persist)
    assert isinstance(made.expr, PersistedOutputs)
    return made


def _mean() -> Any:
    # of another number of outputs
    return _several(lambda: rows().groupby("k").x.mean().persist(), 1700)


READ: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "lookup": (
        lambda p: rows().map_partitions(looked_up, p, meta=("z", float)).sum(),
        lambda: FRAME.k.map(TOTAL).sum(),
    ),
    "lookup of as many partitions": (
        lambda p: (
            rows(p.optimize().npartitions)
            .map_partitions(looked_up, p * 2, meta=("z", float), align_dataframes=False)
            .sum()
        ),
        lambda: FRAME.k.map(TOTAL * 2).sum(),
    ),
    "median": (lambda p: (p * 2).median(), lambda: (TOTAL * 2).median()),
    "rolling": (lambda p: p.rolling(2).sum().count(), lambda: GROUPS - 1),
    "eq": (lambda p: p.eq(_mean()).sum(), lambda: TOTAL.eq(MEAN).sum()),
    "lt of an open one": (
        lambda p: p.lt(rows().groupby("k").x.max()).sum(),
        lambda: TOTAL.lt(FRAME.groupby("k").x.max()).sum(),
    ),
    "add": (lambda p: p + _mean(), lambda: TOTAL + MEAN),
    "beside itself": (lambda p: p + p.repartition(npartitions=3), lambda: TOTAL * 2),
    "divided beside another": (
        lambda p: p.repartition(npartitions=3) + _mean(),
        lambda: TOTAL + MEAN,
    ),
    "both divided": (
        lambda p: p.repartition(npartitions=3) + _mean().repartition(npartitions=3),
        lambda: TOTAL + MEAN,
    ),
    "divided beside an open one": (
        lambda p: (
            p.repartition(npartitions=3)
            + _several(lambda: rows().groupby("k").x.mean(), 1700).repartition(npartitions=3)
        ),
        lambda: TOTAL + MEAN,
    ),
    "get_partition": (lambda p: p.get_partition(0), lambda: TOTAL),
    "columns": (lambda p: dd.concat([p, _mean()], axis=1).sum(axis=1), lambda: TOTAL + MEAN),
    "assign": (lambda p: p.to_frame("a").assign(b=_mean()).b, lambda: MEAN),
    "sample": (lambda p: p.sample(frac=1.0), lambda: TOTAL),
    "map": (lambda p: rows().k.map(p).sum(), lambda: FRAME.k.map(TOTAL).sum()),
    "group again": (lambda p: p.reset_index().groupby("k").x.sum(), lambda: TOTAL),
    "beside one partition": (
        lambda p: _one().map_partitions(added, p, meta=("z", float)),
        lambda: MEAN + TOTAL,
    ),
    "eq of one partition": (lambda p: _one().eq(p).sum(), lambda: MEAN.eq(TOTAL).sum()),
    "lookup in one partition": (
        lambda p: rows(1).map_partitions(looked_up, p, meta=("z", float)).size,
        lambda: ROWS,
    ),
    "lookup of a join": (
        lambda p: rows().map_partitions(looked_up, _joined(p).a, meta=("z", float)).sum(),
        lambda: FRAME.k.map(TOTAL).sum(),
    ),
    "partition of a join": (lambda p: _joined(p).get_partition(0).a, lambda: TOTAL),
    "median of a join": (lambda p: _joined(p).a.persist().median(), lambda: TOTAL.median()),
    "partition of distinct rows": (
        lambda p: p.to_frame("a").drop_duplicates().get_partition(0).a,
        lambda: TOTAL,
    ),
    "partition of a sorted one": (
        lambda p: p.to_frame("a").sort_values("a").get_partition(0).a,
        lambda: TOTAL,
    ),
    "partition of two": (
        lambda p: dd.concat([p, _mean()], interleave_partitions=False).partitions[1],
        lambda: MEAN,
    ),
    "sorted, and added": (lambda p: _sorted(p).a + p, lambda: TOTAL * 2),
    "sorted, persisted, and added": (
        lambda p: _several(_sorted(p).persist).a + p,
        lambda: TOTAL * 2,
    ),
    "distinct, and concatenated": (
        lambda p: dd.concat([p.to_frame("a").drop_duplicates(), p], axis=1).sum(axis=1),
        lambda: TOTAL * 2,
    ),
    "sampled, and added": (
        lambda p: p.sample(frac=1.0) + p.repartition(npartitions=1),
        lambda: TOTAL * 2,
    ),
    "beside one that is divided": (
        lambda p: _one().repartition(npartitions=p.optimize().npartitions) + p,
        lambda: TOTAL + MEAN,
    ),
    "join by two levels": (
        lambda p: _by_two("a", "sum").join(_by_two("b", "mean")).reset_index().set_index("k").b,
        lambda: MEAN,
    ),
    "where": (lambda p: p.where(_mean() > 300), lambda: TOTAL.where(MEAN > 300)),
}


def same(got: Any, want: Any) -> None:
    if not isinstance(want, pd.Series):
        assert got == want
        return
    pd.testing.assert_series_equal(got.sort_index(), want, check_names=False)


@pytest.mark.parametrize("name", READ)
def test_it_is_read_as_one_partition(kept: Any, name: str) -> None:
    read, want = READ[name]
    same(read(kept).compute(), want())


@pytest.mark.parametrize("name", ["lookup", "median", "rolling", "eq", "add", "map"])
def test_it_outlives_the_plugin(kept: Any, name: str) -> None:
    read, want = READ[name]
    other = _mean()
    with dask.config.set({"gpuagg.enabled": False}), pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "_mean", lambda: other)
        assert kept.optimize().npartitions == 1
        same(read(kept).compute(), want())


def test_what_was_written_with_the_plugin_runs_without_it(kept: Any) -> None:
    lazy = kept + _mean()
    with dask.config.set({"gpuagg.enabled": False}):
        same(lazy.compute(), TOTAL + MEAN)


def test_partitions_stay_apart_where_several_do_as_well(kept: Any) -> None:
    several = kept.optimize().npartitions
    assert (kept * 2 + 1).optimize().npartitions == several
    assert len(kept.to_delayed()) == several
    assert kept.map_partitions(lambda part: part + 1).optimize().npartitions == several


def test_it_is_read_from_a_pickle(kept: Any) -> None:
    read = pickle.loads(pickle.dumps(kept))
    assert isinstance(read.expr, PersistedOutputs)
    same(read.compute(), TOTAL)


@pytest.mark.parametrize("change", [lambda p: p, lambda p: p + 0, lambda p: p / 1], ids="=+/")
def test_the_graph_of_all_is_optimized(kept: Any, change: Callable[[Any], Any]) -> None:
    result, other = dask.optimize(change(kept), _one())
    (alone,) = dask.optimize(change(kept))
    assert result.npartitions == other.npartitions == alone.npartitions == 1
    for each, want in ((result, TOTAL), (alone, TOTAL), (other, MEAN)):
        same(each.compute(), want)
    with (
        dask.config.set({"gpuagg.enabled": False}),
        pytest.raises(NotImplementedError, match="enable"),
    ):
        dask.optimize(kept)


def test_rows_are_optimized_as_they_are() -> None:
    # a graph of several keys for each partition
    (result,) = dask.optimize(rows().persist() + 0)
    assert result.npartitions == 5
    same(result.compute().x, FRAME.x)


def test_without_tuning_it_is_one_partition(kept: Any) -> None:
    with dask.config.set({"optimization.tune.active": False}):
        same((kept + kept.repartition(npartitions=7)).compute(), TOTAL * 2)
        assert (kept + 1).optimize().npartitions == 1
        same((kept + 1).compute(), TOTAL + 1)


def test_where_dask_has_several_partitions_so_has_the_result() -> None:
    for keep in (KEPT["method"], KEPT["function"]):
        made = _several(lambda keep=keep: keep(rows(20).groupby("k").x.sum()))
        assert made.npartitions == made.optimize().npartitions > 1
        same(made.compute(), TOTAL)


def test_one_output_is_persisted_as_it_is() -> None:
    made = rows().groupby("k").x.sum().persist()
    assert made.npartitions == 1
    assert not isinstance(made.expr, PersistedOutputs)


def test_a_second_group_by_is_planned_for_the_partitions_of_the_first() -> None:
    result = rows().groupby("k").x.sum()
    for made in (result, _several(result.persist)):
        again = made.reset_index().groupby("x").k.sum()
        explained = str(_several(lambda again=again: dask_gpuagg.explain(again)))
        assert "one input partition" not in explained
        same(again.compute(), TOTAL.reset_index().groupby("x").k.sum())


def test_on_a_cluster() -> None:
    with (
        LocalCluster(n_workers=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for persist in (client.persist, lambda r: r.persist()):
            made = _several(lambda persist=persist: persist(rows().groupby("k").x.sum()))
            wait(made)
            assert made.npartitions == 1
            assert len(futures_of(made)) == made.optimize().npartitions > 1
            same(client.compute(made).result(timeout=60), TOTAL)
            assert made.median().compute() == TOTAL.median()
            client.publish_dataset(made, name="result", override=True)
            same(client.get_dataset("result").compute(), TOTAL)
