"""Grouping sets and rollup give what a group-by by each set gives, in one pass over the rows."""

from __future__ import annotations

import functools
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_gpuagg
from dask_gpuagg import UnsupportedGroupBy, grouping_sets, rollup

pytestmark = pytest.mark.usefixtures("raising")

ROWS = 2_000
RNG = np.random.default_rng(0)
DATA = pd.DataFrame(
    {
        "a": RNG.integers(0, 4, ROWS),
        "b": pd.Series(RNG.choice(["x", "y", None], ROWS)),
        "c": pd.Categorical(RNG.choice(list("pq"), ROWS), categories=list("qpr")),
        "n": pd.array(RNG.integers(0, 3, ROWS), dtype="Int64"),
        "v": RNG.normal(1e6, 1.0, ROWS).round(3),
        "i": RNG.integers(0, 50, ROWS),
    }
)
DATA.loc[RNG.random(ROWS) < 0.1, ["n", "v"]] = pd.NA
SETS = [["a", "b"], ["b"], ["c", "n"], ["n"], ["a", "b", "c", "n"], []]
SPEC = {
    "v": ["sum", "mean", "var", "count", "median", "min", "size"],
    "i": ["nunique", "sum", "max", "prod"],
}


def lazy(npartitions: int, data: pd.DataFrame = DATA) -> Any:
    return dd.from_pandas(data, npartitions=npartitions, sort=False)


def by_pandas(rows: pd.DataFrame, keys: tuple[Any, ...], spec: Any, dropna: bool = True) -> Any:
    if keys:
        return rows.groupby(list(keys), dropna=dropna, observed=True).agg(spec).sort_index()
    return rows.groupby(np.zeros(len(rows), int)).agg(spec)


def compare(ours: Any, theirs: Any) -> None:
    ours = ours.sort_index()
    # the keys as values: levels of an index of several have any order
    pd.testing.assert_frame_equal(
        ours.index.to_frame(index=False).astype(object),
        theirs.index.to_frame(index=False).astype(object),
        check_names=ours.index.names != [None],
    )
    pd.testing.assert_frame_equal(
        ours.reset_index(drop=True),
        theirs.reset_index(drop=True),
        check_dtype=False,
        rtol=1e-9,
    )


@pytest.mark.parametrize("npartitions", [1, 3, 20])
@pytest.mark.parametrize("dropna", [True, False])
def test_each_is_a_group_by(dropna: bool, npartitions: int) -> None:
    rows = lazy(npartitions)
    found = grouping_sets(rows, SETS, SPEC, dropna=dropna)
    assert list(found) == list(map(tuple, SETS))
    together = dask.compute(*found.values())
    whole = rows.compute()
    for keys, ours in zip(found, together, strict=True):
        compare(ours, by_pandas(whole, keys, SPEC, dropna))
        meta = found[keys]._meta
        assert list(ours.dtypes) == list(meta.dtypes)
        assert ours.index.names == meta.index.names
        assert (ours.columns == meta.columns).all()
        pd.testing.assert_frame_equal(found[keys].compute(), ours)


def test_rows_are_read_once() -> None:
    found = rollup(lazy(20), ["a", "b", "n"], SPEC)
    assert list(found) == [("a", "b", "n"), ("a", "b"), ("a",), ()]
    with dask_gpuagg.profile() as p:
        dask.compute(*found.values())
    assert p.planned == 4
    rows = {step.step: 0 for step in p.steps}
    calls = dict(rows)
    for step in p.steps:
        rows[step.step] += step.rows
        calls[step.step] += step.calls
    assert (rows["partial"], calls["partial"]) == (ROWS, 20)
    assert (calls["fold"], calls["finalize"]) == (4, 4)


def test_explain_says_so() -> None:
    found = rollup(lazy(20), ["a", "n"], {"v": "sum"})
    explained = dask_gpuagg.explain(list(found.values())).groupbys
    assert [len(one.plan.keys) for one in explained] == [2, 1, 1]
    for one, collection in zip(explained, found.values(), strict=True):
        assert dict(one.physical.tasks) == {"partial": 20, "combine": 4, "fold": 1, "finalize": 1}
        assert str(one.physical) == "tree into 1 output"
        assert collection.npartitions == 1
    assert "keys     all rows" in str(explained[-1])


@pytest.mark.parametrize(
    "spec",
    [
        {"v": "list"},
        {"v": ["any", "all", "sem", "std"]},
        {"v": "nunique_approx", "i": functools.partial(pd.Series.var, ddof=0)},
        {"v": ["quantile", "median"]},
    ],
    ids=["whole", "states", "approximate", "quantiles"],
)
def test_every_kind(spec: Any) -> None:
    rows = lazy(7)
    found = rollup(rows, ["a", "b"], spec)
    whole = rows.compute()
    for keys, ours in zip(found, dask.compute(*found.values()), strict=True):
        if keys:
            direct = rows.groupby(list(keys), sort=False).agg(spec).compute()
            pd.testing.assert_frame_equal(ours.sort_index(), direct.sort_index(), rtol=1e-9)
        else:
            assert len(ours) == 1
            constant = whole.assign(z=0)
            direct = lazy(1, constant).groupby("z").agg(spec, split_out=1)
            pd.testing.assert_frame_equal(ours, direct.compute().reset_index(drop=True), rtol=1e-9)


def test_largest_values() -> None:
    found = rollup(lazy(7), ["a"], high=pd.NamedAgg("i", "nlargest", n=2), n=("v", "count"))
    ours, total = dask.compute(*found.values())
    for key, group in DATA.groupby("a"):
        assert ours.high[key] == sorted(group.i, reverse=True)[:2]
    assert total.high.tolist() == [sorted(DATA.i, reverse=True)[:2]]
    assert total.n.tolist() == [DATA.v.count()]


def test_sorted_and_columns_that_are_in_no_set() -> None:
    numbers = DATA[["a", "n", "v", "i"]]
    found = grouping_sets(lazy(5, numbers), [["n"], ["a"]], "sum", sort=True)
    for keys, ours in zip(found, dask.compute(*found.values()), strict=True):
        assert ours.index.is_monotonic_increasing
        compare(ours, numbers.groupby(list(keys))[["v", "i"]].sum())


def test_exact_sums_and_too_few_values() -> None:
    spec = {"v": ["sum", "mean"]}
    with dask.config.set({"gpuagg.deterministic": True}):
        found = rollup(lazy(9), ["a", "b"], spec)
        for keys, ours in zip(found, dask.compute(*found.values()), strict=True):
            compare(ours, by_pandas(DATA, keys, spec))
    found = rollup(lazy(9, DATA[["a", "b", "i"]]), ["a", "b"], "sum", min_count=400)
    ours = dask.compute(*found.values())
    assert [one.i.notna().any() for one in ours] == [False, True, True]


def test_partitions_of_other_dtypes_than_promised() -> None:
    parts = [DATA[["a", "n", "i"]].iloc[:900], DATA[["a", "n", "i"]].iloc[900:]]
    parts[0] = parts[0].assign(i=parts[0].i.astype("float64").where(parts[0].i > 3))
    meta = parts[1].iloc[:0]
    rows = dd.from_map(lambda i: parts[i], [0, 1], meta=meta, enforce_metadata=False)
    found = rollup(rows, ["a", "n"], {"i": ["sum", "nunique"]})
    whole = pd.concat(parts)
    for keys, ours in zip(found, dask.compute(*found.values()), strict=True):
        compare(ours, by_pandas(whole, keys, {"i": ["sum", "nunique"]}))


def test_files(tmp_path: Any) -> None:
    lazy(6).to_parquet(tmp_path)
    rows = dd.read_parquet(tmp_path)
    found = rollup(rows[rows.i > 10], ["a", "b"], SPEC)
    whole = rows.compute()
    for keys, ours in zip(found, dask.compute(*found.values()), strict=True):
        compare(ours, by_pandas(whole[whole.i > 10], keys, SPEC))


def test_no_rows() -> None:
    rows = lazy(3)
    found = rollup(rows[rows.i < 0], ["a", "b"], SPEC)
    assert [len(one) for one in dask.compute(*found.values())] == [0, 0, 0]


OWN = dd.Aggregation("mine", lambda s: s.sum(), lambda s: s.sum())


@pytest.mark.parametrize(
    "asked", ["first", "last", "idxmin", OWN], ids=["first", "last", "idxmin", "own"]
)
def test_the_order_of_rows_is_lost(asked: Any) -> None:
    name = asked if isinstance(asked, str) else "mine"
    with pytest.raises(UnsupportedGroupBy, match=f"{name} may depend on the order of rows"):
        rollup(lazy(3), ["a"], {"v": asked})


def test_what_cannot_be_asked() -> None:
    with pytest.raises(ValueError, match="need a key"):
        grouping_sets(lazy(3), [[], []], {"v": "sum"})
    with pytest.raises(
        ValueError, match=r"the grouping set \['a', 'b', 'a'\] has the key 'a' 2 times"
    ):
        grouping_sets(lazy(3), [["b"], ["a", "b", "a"]], {"v": "sum"})
    with pytest.raises(ValueError, match="has the key 'a' 2 times"):
        rollup(lazy(3), ["a", "a"], {"v": "sum"})
    with pytest.raises(KeyError):
        rollup(lazy(3), ["a", "missing"], {"v": "sum"})
    with pytest.raises(UnsupportedGroupBy, match="skew"):
        rollup(lazy(3), ["a"], {"v": "skew"})


def test_without_the_plugin_it_says_what_to_do() -> None:
    found = rollup(lazy(3), ["a"], {"v": "sum"})
    dask_gpuagg.disable()
    with pytest.raises(RuntimeError, match="enable the plugin"):
        found["a",].compute()


def test_a_string_is_one_column() -> None:
    data = DATA.rename(columns={"a": "key"})
    found = rollup(lazy(3, data), "key", {"v": "count"})
    assert list(found) == [("key",), ()]
    sets = grouping_sets(lazy(3, data), ["key", ["key", "b"]], {"v": "count"})
    assert list(sets) == [("key",), ("key", "b")]
    want = data.groupby("key").agg({"v": "count"})
    for one in (found, sets):
        assert one["key",].compute().sort_index().to_dict() == want.to_dict()


def test_of_no_rows_all_rows_are_no_group() -> None:
    assert rollup(lazy(1, DATA.iloc[:0]), ["a"], {"v": "count"})[()].compute().shape == (0, 1)


@pytest.mark.parametrize(
    "dtype", ["int8", "uint16", "Int16", "float32", "bool", "datetime64[s]", "category"]
)
def test_metadata_has_the_dtype_of_a_key(dtype: str) -> None:
    rows = lazy(2, pd.DataFrame({"k": pd.Series([1, 0, 1]).astype(dtype), "j": 1, "v": 1.0}))
    for keys, found in grouping_sets(rows, [["k"], ["j", "k"]], {"v": "sum"}).items():
        promised = found._meta.index.get_level_values("k").dtype
        assert promised == rows._meta["k"].dtype
        assert found.compute().index.get_level_values("k").dtype == promised, keys
