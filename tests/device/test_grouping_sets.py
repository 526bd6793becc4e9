"""Grouping sets and rollup on dask-cudf collections, against pandas."""

from __future__ import annotations

import dask
import numpy as np
import pandas as pd
import pytest

from dask_gpuagg import grouping_sets, rollup

pytestmark = pytest.mark.usefixtures("raising")

ROWS = 30_000
SPEC = {
    "v": ["sum", "mean", "var", "count", "median", "min"],
    "i": ["nunique", "sum", "max"],
}
SETS = [["a", "s"], ["s"], ["f"], ["a", "s", "f"], []]


def data() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "a": rng.integers(0, 40, ROWS),
            "s": pd.Series(rng.choice(["x", "y", "zz", None], ROWS)),
            "f": rng.integers(0, 5, ROWS) / 4,
            "v": rng.normal(1e6, 1.0, ROWS),
            "i": rng.integers(0, 500, ROWS),
        }
    )
    frame.loc[rng.random(ROWS) < 0.1, ["f", "v"]] = np.nan
    return frame


@pytest.mark.parametrize("npartitions", [1, 7])
@pytest.mark.parametrize("dropna", [True, False])
def test_each_is_a_group_by(dropna: bool, npartitions: int) -> None:
    import cudf
    import dask_cudf

    rows = data()
    ddf = dask_cudf.from_cudf(cudf.from_pandas(rows), npartitions=npartitions)
    found = grouping_sets(ddf, SETS, SPEC, dropna=dropna)
    for keys, ours in zip(found, dask.compute(*found.values()), strict=True):
        by = list(keys) or np.zeros(ROWS, int)
        theirs = rows.groupby(by, dropna=dropna).agg(SPEC)
        # of no values cuDF's sum is null
        theirs[("v", "sum")] = theirs[("v", "sum")].where(theirs[("v", "count")] > 0)
        keyed = [f"k{i}" for i in range(max(len(keys), 1))]
        tables = []
        for one in (ours.to_pandas(), theirs):
            one = one.copy()
            one.columns = range(one.shape[1])
            one.index.names = keyed
            table = one.reset_index()
            tables.append(table.sort_values(keyed, na_position="last", ignore_index=True))
        mine, wanted = tables
        for name in keyed:
            a, b = (t[name].astype(object).where(t[name].notna(), None) for t in tables)
            assert a.tolist() == b.tolist()
        np.testing.assert_allclose(
            mine.drop(columns=keyed).to_numpy("float64"),
            wanted.drop(columns=keyed).to_numpy("float64"),
            rtol=1e-9,
        )
        assert list(ours.dtypes) == list(found[keys]._meta.dtypes)


def test_largest_values_and_categories() -> None:
    import cudf
    import dask_cudf

    rows = data().assign(s=lambda d: d.s.astype("category"))
    ddf = dask_cudf.from_cudf(cudf.from_pandas(rows), npartitions=5)
    found = rollup(ddf, ["s", "a"], high=pd.NamedAgg("i", "nlargest", n=2), sort=True)
    fine, coarse, total = (one.to_pandas() for one in dask.compute(*found.values()))
    assert total.high.map(list).tolist() == [sorted(rows.i, reverse=True)[:2]]
    for key, group in rows.groupby("s", observed=True):
        assert list(coarse.high[key]) == sorted(group.i, reverse=True)[:2]
    assert len(fine) == rows.dropna(subset="s").groupby(["s", "a"], observed=True).ngroups


@pytest.mark.parametrize("dtype", ["int8", "uint16", "float32", "bool", "str", "datetime64[s]"])
def test_metadata_has_the_dtype_of_a_key(dtype: str) -> None:
    import cudf
    import dask_cudf

    column = cudf.Series([1, 0, 1]).astype(dtype)
    rows = dask_cudf.from_cudf(cudf.DataFrame({"k": column, "v": [1.0, 2.0, 3.0]}), npartitions=2)
    found = grouping_sets(rows, [["k"]], {"v": "sum"})[("k",)]
    # Dask gives text another dtype as it makes the collection
    assert found._meta.index.dtype == rows._meta["k"].dtype
    assert found.compute().index.dtype == rows.compute()["k"].dtype


def test_sums_of_nans_stay_nan() -> None:
    """To cuDF a NaN is a number; leaving out null keys must not make a null of it."""
    import cudf
    import dask_cudf

    rows = cudf.DataFrame({"k": [1, 1, 2, 2, None], "j": [1, 2, 1, 2, 1]})
    rows["v"] = cudf.Series(np.array([1, np.nan, 3, 4, 5], "float32"), nan_as_null=False)
    found = rollup(dask_cudf.from_cudf(rows, npartitions=2), ["k", "j"], {"v": ["sum", "mean"]})
    coarse = found[("k",)].compute().sort_index()
    theirs = rows.groupby("k", sort=True).agg({"v": ["sum", "mean"]})
    for mine, wanted in zip(coarse.to_arrow().columns, theirs.to_arrow().columns, strict=True):
        # as text, in which a NaN is itself and no null
        assert str(mine.to_pylist()) == str(wanted.to_pylist())
