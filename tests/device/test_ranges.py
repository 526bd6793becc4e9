"""Sorted results with several outputs on dask-cudf collections: each has a range of the keys."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.planning.ranges import GroupByRanges
from tests.device.frames import random_rows

pytestmark = pytest.mark.usefixtures("raising")

ROWS, PARTITIONS = 40_000, 5


def collection(dtype: str = "float64") -> Any:
    import dask_cudf

    return dask_cudf.from_cudf(random_rows(ROWS, dtype), npartitions=PARTITIONS)


def parts(query: Any) -> list[Any]:
    assert query.npartitions == query.optimize().npartitions
    return [part.to_pandas() for part in dask.compute(*query.to_delayed())]


def has_ranges(query: Any) -> bool:
    return any(isinstance(n, GroupByRanges) for n in query.optimize(fuse=False).expr.walk())


@pytest.mark.parametrize("dropna", [True, False])
@pytest.mark.parametrize(
    "by", ["i", "f", "t", "s", ["s", "i"], ["u", "f"], ["t", "s", "u"]], ids=str
)
def test_outputs_are_sorted_one_after_the_other(by: Any, dropna: bool) -> None:
    grouped = collection().groupby(by, sort=True, dropna=dropna, observed=True)
    spec = {"v": ["sum", "count", "nunique", "median"]}
    whole = grouped.agg(spec, split_out=1).compute().to_pandas()
    query = grouped.agg(spec, split_out=4)
    assert has_ranges(query)
    made = parts(query)
    assert len(made) == 4
    assert all(len(part) for part in made)
    pd.testing.assert_frame_equal(pd.concat(made), whole)


def test_partitions_of_several_dtypes() -> None:
    import cudf
    import dask.dataframe as dd

    halves = [random_rows(ROWS, "float32").iloc[: ROWS // 2], random_rows(ROWS).iloc[ROWS // 2 :]]
    halves[0]["i"] = halves[0]["i"].astype("int32")
    meta = random_rows(ROWS).iloc[:0]
    ddf = dd.from_map(lambda n: halves[n], [0, 1], meta=meta)
    for by in ("i", "f"):
        made = parts(ddf.groupby(by, sort=True).agg({"v": "sum"}, split_out=3))
        want = cudf.concat(halves).groupby(by, sort=True).agg({"v": "sum"}).to_pandas()
        got = pd.concat(made)
        assert got.index.is_monotonic_increasing
        assert got.index.is_unique
        np.testing.assert_array_equal(got["v"], want["v"])


def test_what_has_no_ranges_is_one_result_that_is_divided() -> None:
    grouped = collection().groupby("c", sort=True, observed=True)
    query = grouped.agg({"v": ["sum"]}, split_out=2)
    assert not has_ranges(query)
    made = parts(query)
    assert [list(part.index) for part in made] == [["d", "b"], ["c", "a"]]


def test_explain_says_so() -> None:
    (found,) = dask_gpuagg.explain(
        collection().groupby("i", sort=True).agg({"v": "sum"}, split_out=4)
    ).groupbys
    assert "by ranges of keys" in str(found.physical)


OPERATIONS: dict[str, Any] = {
    "add": lambda a, b: a.add(b, fill_value=0),
    "columns": lambda a, b: (a.v * 2 + a.u).to_frame("w"),
    "series": lambda a, b: (a.v - b.u).to_frame("w"),
    "assign": lambda a, b: a.assign(w=b.v),
    "persisted": lambda a, b: (a.v.persist() + b.v.persist()).to_frame("w"),
    "repartitioned": lambda a, b: (again(a, 6).v + again(b, 6).v).to_frame("w"),
    "cumulative": lambda a, b: a.cumsum(),
    "merge": lambda a, b: a.merge(b, left_index=True, right_index=True),
}


def again(result: Any, number: int) -> Any:
    return result.repartition(npartitions=number) if hasattr(result, "dask") else result


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_answer_as_of_one_sorted_partition(
    name: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ddf = collection()[["i", "u", "v"]].astype({"u": "int64"})
    whole = ddf.compute().to_pandas()
    few = ddf[ddf.v > 80]
    a, b = (f.groupby("i", sort=True).sum(split_out=4) for f in (ddf, few))
    if refused:
        monkeypatch.setattr("dask_gpuagg.frontend.hook.cluster_problem", lambda: "too old")
    with dask.config.set({"gpuagg.fallback": "silent"} if refused else {}):
        query = OPERATIONS[name](a, b)
        got = pd.concat(parts(query))
    monkeypatch.setattr(pd.Series, "persist", lambda self: self, raising=False)
    want = OPERATIONS[name](whole.groupby("i").sum(), whole[whole.v > 80].groupby("i").sum())
    if name not in ("columns", "cumulative"):  # of other labels cuDF has an order of its own
        got, want = got.sort_index(), want.sort_index()
    pd.testing.assert_frame_equal(got, want, check_dtype=False, check_index_type=False)


def test_outputs_are_balanced_whatever_the_keys() -> None:
    import cudf
    import dask_cudf

    rng = np.random.default_rng(2)
    keys = np.concatenate([rng.zipf(1.3, 90_000) % 10**9, rng.lognormal(9, 3, 90_000).astype(int)])
    for order in (np.sort(keys), rng.permutation(keys)):
        ddf = dask_cudf.from_cudf(cudf.DataFrame({"k": order, "x": 1}), npartitions=9)
        sizes = [len(p) for p in parts(ddf.groupby("k", sort=True).agg({"x": "sum"}, split_out=6))]
        assert max(sizes) < 2 * min(sizes)
        assert sum(sizes) == len(np.unique(keys))


def test_bounds_do_not_depend_on_the_order_of_groups() -> None:
    """Groups of a partial come in another order each time."""
    grouped = collection().groupby(["s", "i"], sort=True)
    found = [[len(p) for p in parts(grouped.agg({"v": "sum"}, split_out=5))] for _ in range(4)]
    assert all(sizes == found[0] for sizes in found)
