"""Sorted results with several outputs on dask-cudf collections: each has a range of the keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg.planning.ranges import GroupByRanges

pytestmark = pytest.mark.usefixtures("raising")

ROWS, PARTITIONS = 40_000, 5


def rows(dtype: str = "float64") -> Any:
    import cudf

    rng = np.random.default_rng(9)
    frame = pd.DataFrame(
        {
            "i": rng.integers(-3000, 3000, ROWS),
            "u": rng.integers(0, 9, ROWS).astype("uint8"),
            "f": pd.array(rng.normal(size=ROWS).round(2) + 0.0, dtype="Float64"),
            "t": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 999, ROWS), "h"),
            "s": pd.Series([f"é{n:x}" if n % 7 else None for n in rng.integers(0, 4000, ROWS)]),
            "c": pd.Categorical(rng.choice(list("dbca"), ROWS), categories=list("dbca")),
            "v": rng.integers(0, 100, ROWS),
        }
    )
    frame.loc[::5, "f"] = pd.NA
    made = cudf.from_pandas(frame)
    made["f"] = made["f"].astype(dtype)
    return made


def collection(dtype: str = "float64") -> Any:
    import dask_cudf

    return dask_cudf.from_cudf(rows(dtype), npartitions=PARTITIONS)


def parts(query: Any) -> list[Any]:
    lowered = query.optimize()
    return [lowered.partitions[i].compute().to_pandas() for i in range(lowered.npartitions)]


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

    halves = [rows("float32").iloc[: ROWS // 2], rows().iloc[ROWS // 2 :]]
    halves[0]["i"] = halves[0]["i"].astype("int32")
    meta = rows().iloc[:0]
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
