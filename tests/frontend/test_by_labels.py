"""Results of group-bys are combined by their keys, whatever partitions each of them has."""

from __future__ import annotations

import datetime
import functools
import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dask_gpuagg
from dask_gpuagg.frontend.persisted_outputs import OWN_HASH

ROWS, FEW = 400, 40


@pytest.fixture(autouse=True)
def _synchronous() -> Iterator[None]:
    config = {"scheduler": "synchronous", "gpuagg.fallback": "raise"}
    with dask.config.set(config | {"dataframe.convert-string": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Concatenating dataframes")
        with dask_gpuagg.enabled():
            yield


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 97, ROWS)
    frame = pd.DataFrame({"k": keys, "x": np.arange(ROWS) + 1.0, "y": rng.integers(1, 9, ROWS)})
    frame["text"] = pd.Series([f"o{n}" for n in keys], dtype="str")
    frame["object"] = pd.Series([int(n) for n in keys], dtype=object)
    days = [datetime.date.fromordinal(730_000 + int(n)) for n in keys]
    frame["day"] = pd.Series(days, dtype=pd.ArrowDtype(pa.date32()))
    frame["category"] = frame.text.astype("category")
    return frame


FRAME = rows()
SOME = FRAME[FRAME.x > 90]


def collection() -> Any:
    return dd.from_pandas(FRAME, npartitions=5, sort=False)


# how a result comes to its partitions: the number that is left to us, and that is given
RESULTS: dict[str, Callable[[Any], Any]] = {
    "open": lambda g: g().sum(),
    "kept, one": lambda g: g().sum().persist(),
    "kept, several": lambda g: _small(lambda: g().sum().persist()),
    "given": lambda g: g().sum(split_out=3),
    "kept, given": lambda g: g().sum(split_out=3).persist(),
    "sorted": lambda g: g(sort=True).sum(),
    "sorted, given": lambda g: g(sort=True).sum(split_out=3),
}


def _small(make: Callable[[], Any]) -> Any:
    with dask.config.set({"gpuagg.output-bytes": FEW * 16}):
        return make()


COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "divide": lambda a, b: a.x / b.y,
    "fill": lambda a, b: a.add(b, fill_value=0),
    "by rows": lambda a, b: a.div(b.y, axis=0),
    "nested": lambda a, b: (a.x / b.y) * b.y - a.x,
    "function": lambda a, b: np.add(a.x, b.y),
    "assign": lambda a, b: a.assign(z=b.y),
    "align": lambda a, b: a.align(b)[1],
    "columns": lambda a, b: (pd if _is_pandas(a) else dd).concat([a, b.add_prefix("b_")], axis=1),
    "merge": lambda a, b: a.merge(b, left_index=True, right_index=True),
    "loc": lambda a, b: (a.x / b.y).loc[10:50],
}


def _is_pandas(frame: Any) -> bool:
    return isinstance(frame, pd.DataFrame)


def same(got: Any, want: Any) -> None:
    got, want = (pd.DataFrame(each).sort_index() for each in (got, want))
    pd.testing.assert_frame_equal(got, want, check_dtype=False, check_index_type=False)


def grouped(frame: Any, by: str = "k") -> Callable[..., Any]:
    # stock Dask loses columns that are chosen of the group-by and then of the result
    chosen = frame[[by, "x", "y"]]
    return lambda **options: chosen.groupby(by, observed=True, **options)


@pytest.mark.parametrize("name", COMBINED)
@pytest.mark.parametrize("left", RESULTS)
def test_any_two_results_are_combined(left: str, name: str) -> None:
    want = COMBINED[name](grouped(FRAME)().sum(), grouped(SOME)().sum())
    for right in RESULTS:
        refused = {left, right} <= {"given", "kept, given"} and left + right != "givengiven"
        if name == "columns" and refused:
            continue  # stock Dask refuses other numbers of groups in as many partitions
        d = collection()
        a, b = RESULTS[left](grouped(d)), RESULTS[right](grouped(d[d.x > 90]))
        same(COMBINED[name](a, b).compute(), want)


def _columns(lib: Any, frame: Any, keep: Callable[[Any], Any] = lambda result: result) -> Any:
    total, fewer = keep(frame.groupby("k").x.sum()), frame[frame.x > 300].groupby("k")
    ratio = (total / fewer.x.mean()).rename("ratio")
    return lib.concat([total.rename("total"), ratio, keep(fewer[["y"]].max())], axis=1)


@pytest.mark.parametrize("keep", [lambda r: r, lambda r: r.persist()], ids=["open", "kept"])
def test_columns_of_results_with_other_groups_are_beside_each_other(keep: Any) -> None:
    def columns() -> Any:
        made = _columns(dd, collection(), keep)
        assert made.optimize().npartitions > 1
        return made.compute()

    same(_small(columns), _columns(pd, FRAME))


@pytest.mark.parametrize(
    "moved",
    [
        lambda r: r.rename(lambda k: k + 1).to_frame("a"),
        lambda r: r.to_frame("a").sort_values("a"),
        lambda r: r.to_frame("a").map_partitions(lambda part: part.set_axis(part.index + 1)),
    ],
)
def test_groups_with_other_labels_are_not_taken_for_those_of_the_key(moved: Any) -> None:
    groups = collection().groupby("k")
    a, b = moved(groups.x.sum(split_out=3)), groups.y.max(split_out=3)
    lazy = dd.concat([a, b], axis=1)
    assert "ConcatIndexed" not in {type(n).__name__ for n in lazy.optimize(fuse=False).expr.walk()}


@pytest.mark.parametrize("left", RESULTS)
def test_a_result_is_filtered_by_any_other(left: str) -> None:
    want = grouped(FRAME)().sum()
    for right in RESULTS:
        a, b = RESULTS[left](grouped(collection())), RESULTS[right](grouped(collection()))
        same(a[a.x > b.y * 50].compute(), want[want.x > want.y * 50])


def test_the_cases_have_the_partitions_that_they_are_named_for() -> None:
    made = {name: RESULTS[name](grouped(collection())) for name in RESULTS}
    assert made["kept, one"].npartitions == 1
    assert made["kept, several"].optimize().npartitions > 3
    assert made["kept, given"].npartitions == made["sorted, given"].npartitions == 3


@pytest.mark.parametrize("by", [["k", "text"], "text", "category"])
def test_keys_and_columns_of_several_levels(by: Any) -> None:
    def ratio(frame: Any, some: Any, keep: Callable[[Any], Any], **given: Any) -> Any:
        spec = {"x": ["sum", "mean"], "y": ["max"]}
        one = keep(frame.groupby(by, observed=True).agg(spec))
        return one.sub(some.groupby(by, observed=True).agg(spec, **given))

    d = collection()
    got = ratio(d, d[d.x > 90], lambda result: result.persist(), split_out=3)
    same(got.compute(), ratio(FRAME, SOME, lambda result: result))


def test_a_series_without_a_name_gets_none() -> None:
    lazy = collection().groupby("k").size().persist() * collection().groupby("k").size(split_out=3)
    assert lazy.compute().name is None
    same(lazy.compute(), FRAME.groupby("k").size() ** 2)


def test_a_frame_of_known_divisions() -> None:
    local = dd.from_pandas(SOME.groupby("k").x.sum(), npartitions=4)
    for split_out in (None, 3):
        lazy = collection().groupby("k").x.sum(split_out=split_out) / local
        same(lazy.compute(), FRAME.groupby("k").x.sum() / SOME.groupby("k").x.sum())


def test_what_is_no_result_is_left_to_dask() -> None:
    unknown = [dd.from_pandas(FRAME, npartitions=n).clear_divisions() for n in (2, 3)]
    with pytest.raises(TypeError):
        (unknown[0].x + unknown[1].x).compute()


def test_labels_of_columns_are_left_to_dask() -> None:
    groups = collection().groupby("k")
    with pytest.raises(TypeError):
        (groups[["x", "y"]].sum(split_out=3) - groups.x.sum().persist()).compute()


def after_assign(d: Any, some: Any, by: str, **given: Any) -> Any:
    total, fewer = d.groupby(by).x.sum(**given), some.groupby(by).y.sum(**given)
    return total.where(fewer > 9) / d.groupby(by).x.mean(**given)


@pytest.mark.parametrize("by", ["k", "object", "day"])
def test_groups_that_dask_has_placed_meet_those_that_we_have(by: str) -> None:
    d = collection()
    got = after_assign(d, d[d.x > 90], by, split_out=3)
    assert got.npartitions == got.optimize().npartitions == 3
    same(got.compute(), after_assign(FRAME, SOME, by))
    twice = got.add(after_assign(d, d[d.x > 300], by, split_out=3), fill_value=0)
    other = after_assign(FRAME, FRAME[FRAME.x > 300], by)
    same(twice.compute(), after_assign(FRAME, SOME, by).add(other, fill_value=0))


@pytest.mark.parametrize("by", ["k", "object", "day"])
def test_kept_groups_meet_those_of_stock_dask(by: str) -> None:
    kept = collection().groupby(by).x.sum(split_out=3).persist()
    assert kept.expr.operand("name_prefix").startswith(OWN_HASH) is (by != "k")
    want = FRAME.groupby(by).x.sum() / FRAME.groupby(by).y.max()
    with dask.config.set({"gpuagg.enabled": False}):
        lazy = kept / collection().groupby(by).y.max(split_out=3)
        same(lazy.compute(), want)
    again = (kept * 2).persist() / collection().groupby(by).y.max(split_out=3)
    same(again.compute(), want * 2)


def test_outputs_that_were_left_open_are_known_by_their_name() -> None:
    def ratio(frame: Any, some: Any, keep: Callable[[Any], Any], **given: Any) -> Any:
        kept = keep(frame.groupby("day").x.sum() * 2)
        fewer = some.groupby("day").y.sum(**given)
        return kept / frame.groupby("day").x.mean(**given).where(fewer > 9)

    d = collection()
    (kept,) = _small(lambda: dask.persist(d.groupby("day").x.sum() * 2))
    several = kept.optimize()
    assert several.npartitions > 1
    assert several.expr.operand("name_prefix").startswith(OWN_HASH)
    got = ratio(d, d[d.x > 90], lambda _: kept, split_out=several.npartitions)
    same(got.compute(), ratio(FRAME, SOME, lambda result: result))


def test_results_of_one_hash_are_combined_where_they_are() -> None:
    groups = collection().groupby("day")
    lazy = groups.x.sum(split_out=3).persist() / groups.y.max(split_out=3)
    kinds = {type(node).__name__ for node in lazy.optimize(fuse=False).expr.walk()}
    assert "GroupByExchange" in kinds or "GroupByChunkDirect" in kinds
    assert not kinds & {"SortedOutputs", "GroupByDivided", "RepartitionToMore"}


def test_many_results_are_added_in_no_time() -> None:
    groups = collection().groupby("day")
    results = [groups.x.sum(split_out=3) + i for i in range(40)]
    got = functools.reduce(operator.add, [*results, groups.y.sum(split_out=2)])
    want = FRAME.groupby("day").x.sum() * 40 + 780 + FRAME.groupby("day").y.sum()
    same(got.compute(), want)


def test_a_result_that_is_added_to_itself_is_looked_at_once() -> None:
    total = collection().groupby("k").x.sum()
    for _ in range(50):
        total = total + total
    same(total.compute(), FRAME.groupby("k").x.sum() * 2.0**50)
    kept = collection().groupby("k").x.sum(split_out=2).persist()
    for _ in range(50):
        kept = kept + kept
    got = (kept / collection().groupby("k").x.sum(split_out=3)).compute()
    np.testing.assert_array_equal(got, 2.0**50)


def test_sorted_results_are_added_in_no_time() -> None:
    d = collection()
    results = [d[d.x > i].groupby("k", sort=True).y.sum(split_out=3) for i in range(25)]
    want = [FRAME[FRAME.x > i].groupby("k").y.sum() for i in range(25)]
    same(functools.reduce(operator.add, results).compute(), functools.reduce(operator.add, want))


def _from_delayed(result: Any) -> Any:
    return dd.from_delayed(result.to_delayed(), meta=result._meta)


@pytest.mark.parametrize("right", [lambda r: r.optimize(), _from_delayed])
@pytest.mark.parametrize("left", [lambda r: r.optimize(), _from_delayed])
def test_optimized_results_and_those_of_delayed_objects(left: Any, right: Any) -> None:
    d = collection()
    one = left(_small(lambda: d.groupby("k").x.sum().optimize()))
    other = right(d[d.x > 90].groupby("k").y.sum())
    assert one.npartitions > other.npartitions == 1
    x, y = FRAME.groupby("k").x.sum(), SOME.groupby("k").y.sum()
    same((one / other).compute(), x / y)
    got = dd.concat([one, other], axis=1).compute()
    same(got, pd.concat([x, y], axis=1))


def test_labels_of_unlike_categories_meet_in_one_partition() -> None:
    some = SOME.assign(category=SOME.text.where(SOME.text != "o3").astype("category"))
    kept = _small(lambda: collection().groupby("category", observed=True).x.sum().persist())
    assert kept.optimize().npartitions > 1
    fewer = dd.from_pandas(some, npartitions=2).groupby("category", observed=True, sort=True)
    got = (kept / fewer.y.sum()).compute()
    # text in stock Dask too, where each has one partition
    assert got.index.dtype == FRAME.text.dtype
    want = FRAME.groupby("category", observed=True).x.sum()
    want = want / some.groupby("category", observed=True).y.sum()
    same(got, want.set_axis(want.index.astype("str")))
