"""What was promised one partition is whole, however many the group-by makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg

ROWS, GROUPS = 800, 200
FRAME = pd.DataFrame({"k": np.arange(ROWS) % GROUPS, "x": np.arange(ROWS) + 1.0})


@pytest.fixture(autouse=True)
def _several_outputs() -> Iterator[None]:
    config = {"scheduler": "synchronous", "gpuagg.fallback": "raise", "gpuagg.output-bytes": 800}
    with dask.config.set(config), dask_gpuagg.enabled():
        yield


@pytest.fixture(params=[4, 20])
def result(request: Any) -> Any:
    made = dd.from_pandas(FRAME, npartitions=request.param, sort=False).groupby("k").sum()
    assert made.npartitions == 1
    assert made.optimize().npartitions > 1
    return made


READ: dict[str, Callable[[Any], int]] = {
    "get_partition": lambda r: len(r.get_partition(0).compute()),
    "of a column": lambda r: len((r.x * 2).get_partition(0).compute()),
    "of two": lambda r: len((r.x + r.x.max()).get_partition(0).compute()),
    "partitions": lambda r: sum(len(part.compute()) for part in r.partitions),
    "beside itself": lambda r: len(dask.compute(r.get_partition(0), r)[0]),
    "iterrows": lambda r: len(list(r.iterrows())),
    "itertuples": lambda r: len(list(r.itertuples())),
    "iter": lambda r: len(list(r.x)),
    "array": lambda r: r.to_dask_array(lengths=True).shape[0],
    "records": lambda r: len(r.to_records(lengths=True).compute()),
    "sample": lambda r: len(r.sample(frac=1.0).compute()),
    "split": lambda r: sum(len(p.compute()) for p in r.random_split([0.5, 0.5], random_state=1)),
    "of a join": lambda r: len(r.join(r + 1, rsuffix="_r").get_partition(0).compute()),
    "of distinct rows": lambda r: len(r.drop_duplicates().get_partition(0).compute()),
    "of a sorted one": lambda r: len(r.sort_values("x").get_partition(0).compute()),
    "of two, one after the other": lambda r: len(dd.concat([r, r + 1]).get_partition(1).compute()),
    "tuples of distinct rows": lambda r: len(list(r.drop_duplicates().itertuples())),
    "array of distinct rows": lambda r: r.drop_duplicates().to_dask_array(lengths=True).shape[0],
    "persist": lambda r: len(dask.persist(r)[0].compute()),
    "persist both": lambda r: len(dask.persist(r.x, r)[1].compute()),
}


@pytest.mark.parametrize("name", READ)
def test_no_group_is_lost(result: Any, name: str) -> None:
    assert READ[name](result) == GROUPS


def joined(part: pd.DataFrame, whole: pd.DataFrame) -> pd.DataFrame:
    return part.assign(total=part.k.map(whole.x))


RESULTS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda r: r,
    "joined": lambda r: r.join(r.rename(columns={"x": "y"}) + 1),
    "distinct": lambda r: r.drop_duplicates(),
    "sorted": lambda r: r.sort_values("x"),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("npartitions", [1, 3])
def test_a_function_gets_what_is_made_of_a_result_whole(name: str, npartitions: int) -> None:
    result = dd.from_pandas(FRAME, npartitions=4, sort=False).groupby("k").sum()
    parts = dd.from_pandas(FRAME, npartitions=npartitions, sort=False)
    meta = parts._meta.assign(total=1.0)
    got = parts.map_partitions(joined, RESULTS[name](result), meta=meta).compute()
    assert len(got) == ROWS
    assert (got.total == got.k.map(FRAME.groupby("k").x.sum())).all()


def test_a_result_beside_a_larger_frame_is_read_by_number() -> None:
    rows = dd.from_pandas(FRAME, npartitions=2, sort=False)
    groups = dd.from_pandas(FRAME, npartitions=8, sort=False).groupby("k")
    result = groups.sum().rename(columns={"x": "total"})
    assert result.optimize().npartitions > 2
    both = result.reset_index().merge(rows, on="k")
    assert sum(len(part.compute()) for part in both.partitions) == ROWS
    assert len(both.sample(frac=1.0).compute()) == ROWS


MOVED: dict[str, Callable[[Any], Any]] = {
    "sorted": lambda r: r.sort_values("x", ascending=False),
    "distinct": lambda r: r.drop_duplicates(),
    "sampled": lambda r: r.sample(frac=1.0),
    "persisted": lambda r: dask.persist(r.sort_values("x", ascending=False))[0],
}


@pytest.mark.parametrize("name", MOVED)
def test_groups_that_were_moved_meet_others(name: str) -> None:
    groups = dd.from_pandas(FRAME, npartitions=4, sort=False).groupby("k")
    made = MOVED[name](groups.sum())
    want = FRAME.groupby("k").x.sum() + FRAME.groupby("k").x.max()
    for got in (made.x + groups.x.max(), made.x + groups.x.max().persist()):
        pd.testing.assert_series_equal(got.compute().sort_index(), want)


@pytest.mark.parametrize("how", ["inner", "left", "outer"])
def test_results_by_two_keys_are_joined_by_their_index(how: str) -> None:
    frame = FRAME.assign(j=FRAME.k % 7)
    groups = dd.from_pandas(frame, npartitions=4, sort=False).groupby(["k", "j"])
    want = frame.groupby(["k", "j"])
    got = groups.x.sum().to_frame("a").join(groups.x.max().to_frame("b"), how=how).compute()
    pd.testing.assert_series_equal(got.b.sort_index(), want.x.max(), check_names=False)


@pytest.mark.parametrize("npartitions", [4, 20])
@pytest.mark.parametrize("given", ["rows", "outputs"])
def test_a_function_gets_the_whole_result_beside_each_partition(
    npartitions: int, given: str
) -> None:
    rows = dd.from_pandas(FRAME, npartitions=npartitions, sort=False)
    result = rows.groupby("k").sum() * 2
    parts = rows if given == "rows" else rows.groupby("k").sum(split_out=3).reset_index()
    meta = parts._meta.assign(total=1.0)
    got = parts.map_partitions(joined, result, meta=meta).compute()
    totals = FRAME.groupby("k").x.sum() * 2
    assert (got.total.to_numpy() == got.k.map(totals).to_numpy()).all()


def test_a_median_is_exact_that_stock_dask_has_for_one_partition_only(result: Any) -> None:
    want = FRAME.groupby("k").sum().x ** 2
    assert (result.x**2).median().compute() == want.median()
    assert (result**2).median().compute().x == want.median()
    with pytest.raises(NotImplementedError, match="exact median"):
        result.repartition(npartitions=3).x.median()


def test_persisted_partitions_are_those_that_ran(result: Any) -> None:
    (kept,) = dask.persist(result)
    assert kept.optimize().npartitions == result.optimize().npartitions
    pd.testing.assert_frame_equal(kept.compute().sort_index(), FRAME.groupby("k").sum())


def test_outputs_that_are_given_are_read_by_number() -> None:
    groups = dd.from_pandas(FRAME, npartitions=4, sort=False).groupby("k")
    both = groups.x.sum() + groups.x.max(split_out=3)
    assert both.npartitions == 3
    assert sum(len(both.get_partition(i).compute()) for i in range(3)) == GROUPS


def test_whole_results_still_have_several_outputs(result: Any) -> None:
    assert len(result.to_delayed()) == result.optimize().npartitions > 1


def test_without_the_plugin_nothing_changes() -> None:
    with dask.config.set({"gpuagg.enabled": False}):
        groups = dd.from_pandas(FRAME, npartitions=20, sort=False).groupby("k")
        assert len(groups.sum().get_partition(0).compute()) < GROUPS


# what gives rows other labels, in the partitions where they are
LABELS: dict[str, Callable[[Any], Any]] = {
    "a function of the index": lambda r: r.rename(lambda k: k + 1),
    "a function of partitions": lambda r: (
        r.set_axis(r.index + 1)
        if isinstance(r, pd.Series)
        else r.map_partitions(lambda part: part.set_axis(part.index + 1))
    ),
    "a column": lambda r: r.to_frame("a").reset_index().assign(k=_later).set_index("k").a,
}


def _later(frame: Any) -> Any:
    return frame.k + 1


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("keep", [lambda r: r, lambda r: r.persist()], ids=["open", "kept"])
def test_results_with_other_labels_meet_by_them(name: str, keep: Callable[[Any], Any]) -> None:
    def lagged(frame: Any, keep: Callable[[Any], Any]) -> list[Any]:
        total, mean = keep(frame.groupby("k").x.sum()), keep(frame.groupby("k").x.mean())
        before = keep(LABELS[name](total))
        lib = pd if isinstance(frame, pd.DataFrame) else dd
        columns = lib.concat([mean.rename("m"), before.rename("b")], axis=1)
        made = [mean - before, mean.where(before > 900), columns.sum(axis=1)]
        # of a function's result Dask takes partitions for those of what the function was given
        return made if name == "a function of partitions" else [*made, total - before]

    got = lagged(dd.from_pandas(FRAME, npartitions=4, sort=False), keep)
    for one, want in zip(got, lagged(FRAME, lambda r: r), strict=True):
        pd.testing.assert_series_equal(one.compute().sort_index(), want, check_names=False)


def test_columns_of_one_result_stay_in_its_partitions(result: Any) -> None:
    rows = result.reset_index()
    looked_up = rows.assign(y=rows.x * 2, total=rows.k.map(result.x.rename("y")))
    function = result.assign(y=result.map_partitions(lambda part: part.x * 2, meta=("y", float)))
    ratio = result.x / np.sqrt(dd.from_pandas(FRAME, npartitions=4).groupby("k").x.max())
    for made in (looked_up, function, ratio):
        assert made.optimize().npartitions > 1
        assert len(made.compute()) == GROUPS
