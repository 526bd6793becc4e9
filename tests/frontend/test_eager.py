"""Group-bys of a merge whose rows are reduced before the merge: as pandas merges and groups."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.base import collections_to_expr
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_gpuagg
from dask_gpuagg.frontend import merges
from dask_gpuagg.planning.nodes import GroupByJoinSide
from tests.announced import partitions
from tests.comparison import assert_same, same

ROWS = 240
RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _of_few_rows(raising: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # the gate has tests of its own
    monkeypatch.setattr(merges, "ROWS_FROM", 0)
    monkeypatch.setattr(merges, "MOST_LEFT", float("inf"))


FACTS = pd.DataFrame(
    {
        "k": RNG.integers(0, 9, ROWS),
        "j": RNG.integers(0, 3, ROWS),
        "text": pd.Series(RNG.choice(list("abc"), ROWS), dtype="str"),
        "x": pd.Series(RNG.normal(size=ROWS)).where(RNG.random(ROWS) < 0.8),
        "y": RNG.integers(-99, 99, ROWS),
    }
)
# 0 has two partners, and 7 and 8 none
DIM = pd.DataFrame(
    {
        "k": [*range(7), 0, 20],
        "region": pd.Series(list("uvwuvwuvz"), dtype="str"),
        "weight": range(9),
    }
)


def joins_of(query: Any) -> list[Any]:
    """The nodes that join partials with another side, as the query is computed."""
    plan = collections_to_expr([query]).optimize(fuse=False)
    return list(plan.find_operations(GroupByJoinSide))


def compare(
    query: Callable[..., Any],
    facts: pd.DataFrame = FACTS,
    *dims: pd.DataFrame,
    npartitions: int = 4,
    of_dims: int = 1,
    joins: int = 1,
    rtol: float = 1e-9,
    **options: Any,
) -> None:
    """Compare with pandas, and all but roundings with the query without the reduction."""
    frames = dims or (DIM,)
    want = query(facts, *frames)
    ddf = dd.from_pandas(facts, npartitions=npartitions, sort=False)
    lazy = query(ddf, *(dd.from_pandas(d, npartitions=of_dims, sort=False) for d in frames))
    assert len(joins_of(lazy)) == joins
    got = lazy.compute()
    assert_same(got, want, meta=lazy._meta, rtol=rtol, atol=rtol, **options)
    with dask.config.set({"gpuagg.eager-merge": False}):
        assert not joins_of(lazy)
        without = lazy.compute()
    same(got, without, check_exact=False, rtol=rtol, atol=rtol)


MERGEABLE = (
    *("sum", "mean", "count", "size", "min", "max", "var", "std", "prod", "any", "all", "sem"),
)


@pytest.mark.parametrize(
    ("name", "how"), [(name, ("inner", "left")[i % 2]) for i, name in enumerate(MERGEABLE)]
)
def test_every_aggregation_of_states_that_merge(name: str, how: str) -> None:
    compare(lambda f, d: f.merge(d, on="k", how=how).groupby("region").y.agg(name))
    compare(
        lambda f, d: f.merge(d, on="k", how=how).groupby("region").agg({"x": [name], "y": name})
    )


FORMS: dict[str, Callable[[Any], Any]] = {
    "method": lambda m: m.groupby("region").x.sum(),
    "size": lambda m: m.groupby("region").size(),
    "min_count": lambda m: m.groupby("region").x.sum(min_count=20),
    "named": lambda m: m.groupby("region").agg(total=("x", "sum"), least=("y", "min")),
    "series": lambda m: m.x.groupby(m.region).sum(),
    "renamed": lambda m: m.rename(columns={"x": "v", "region": "r"}).groupby("r").v.sum(),
    "both sides' keys": lambda m: m.groupby(["j", "region"]).x.sum(),
    "a key that is a value": lambda m: m.groupby("region").agg({"k": "max", "x": "sum"}),
    "sorted": lambda m: m.groupby("region", sort=True).x.sum(),
    "covariances": lambda m: m.groupby("region")[["x", "y"]].cov(),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    # a sum of enough values is of two group-bys
    joins = 2 if form == "min_count" else 1
    compare(lambda f, d: FORMS[form](f.merge(d, on="k")), ordered=form == "sorted", joins=joins)


MERGES: dict[str, Callable[[Any, Any], Any]] = {
    "the values on the right": lambda f, d: d.merge(f, on="k"),
    "right, with the values there": lambda f, d: d.merge(f, on="k", how="right"),
    "two labels": lambda f, d: f.merge(d.rename(columns={"k": "id"}), left_on="k", right_on="id"),
    "several keys": lambda f, d: f.merge(d.assign(j=d.weight % 3), on=["k", "j"]),
    "suffixes": lambda f, d: f.merge(d.assign(x=1), on="k", suffixes=("", "_of_d")),
    "filters": lambda f, d: f[f.y > 0].merge(d[d.weight < 6], on="k"),
    "with nothing": lambda f, d: f.merge(d[d.weight > 1000], on="k", how="left"),
    "by integers and floats": lambda f, d: f.merge(d.assign(k=d.k * 1.0), on="k"),
}


@pytest.mark.parametrize("by", ["region", "k"])
@pytest.mark.parametrize("merge", MERGES)
def test_merges(merge: str, by: str) -> None:
    compare(lambda f, d: MERGES[merge](f, d).groupby(by, dropna=False).agg({"x": ["sum", "var"]}))


def test_another_side_of_several_partitions_meets_all_partials() -> None:
    def query(facts: Any, dim: Any) -> Any:
        by = facts.merge(dim, on="k").groupby(["text", "region"])
        return by.agg({"x": ["mean", "size"]})

    compare(query, of_dims=3, npartitions=20)
    lazy = query(*(dd.from_pandas(d, npartitions=3) for d in (FACTS, DIM)))
    (join,) = joins_of(lazy)
    assert (join.frame.npartitions, join.other.npartitions, join.npartitions) == (1, 3, 3)
    # nothing is shuffled
    steps = {str(key[0]).rpartition("-")[0] for key in lazy.optimize().dask if len(key) > 1}
    assert not any("shuffle" in step or "hash" in step for step in steps), steps


def test_dimensions_one_after_the_other() -> None:
    other = pd.DataFrame({"j": [0, 1, 1, 2], "size": [1, 2, 3, 1]})
    stars: list[Callable[..., Any]] = [
        lambda f, d, o: f.merge(d, on="k").merge(o, on="j").groupby(["size", "region"]).x.sum(),
        lambda f, d, o: o.merge(f.merge(d, on="k", how="left"), on="j").groupby("region").x.mean(),
        lambda f, d, o: f.merge(d, on="k").merge(o, left_on="weight", right_on="j").groupby("size")
        .y.sum(),
    ]  # fmt: skip
    for star in stars:
        compare(star, FACTS, DIM, other, joins=2)


# keys by dtype: the dtype, and the key of a number
KEYS: dict[str, tuple[Any, Callable[[int], Any]]] = {
    "float64": ("float64", float),
    "Int64": ("Int64", int),
    "str": ("str", "t{}".format),
    "object": (object, "t{}".format),
    "category": (pd.CategoricalDtype(list("cab")), "abc".__getitem__),
    "datetime": ("datetime64[ns]", lambda n: pd.Timestamp(2020, 1, 1 + n)),
}
VALUES = {
    "float64": st.floats(-9, 9) | st.none(),
    "float32": st.floats(-9, 9, width=32),
    "int8": st.integers(-128, 127),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "Int64": st.integers(-9, 9) | st.none(),
    "bool": st.booleans(),
}


def _keys(kind: str, numbers: list[int | None]) -> pd.Series:
    dtype, key = KEYS[kind]
    return pd.Series([None if n is None else key(n) for n in numbers], dtype=dtype)


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    numbers = st.integers(0, 2) | st.none()
    kinds = draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2))
    value = draw(st.sampled_from(sorted(VALUES)))
    tables = []
    for rows in (draw(st.integers(0, 30)), draw(st.integers(0, 8))):
        lists = st.lists(numbers, min_size=rows, max_size=rows)
        keys = {f"k{i}": _keys(kind, draw(lists)) for i, kind in enumerate(kinds)}
        kind = draw(st.sampled_from(sorted(KEYS)))
        tables.append(pd.DataFrame(keys | {"g": _keys(kind, draw(lists))}))
    facts, dim = tables
    values = draw(st.lists(VALUES[value], min_size=len(facts), max_size=len(facts)))
    facts["v"] = pd.Series(values, dtype=value)
    by = st.sampled_from(["g_x", "g_y", "k0"])
    return {
        "facts": facts,
        "dim": dim,
        "on": list(dim.columns[:-1]),
        "how": draw(st.sampled_from(["inner", "left"])),
        "by": draw(st.lists(by, min_size=1, max_size=2, unique=True)),
        "flags": {"dropna": draw(st.booleans()), "observed": draw(st.booleans())},
        "names": draw(st.lists(st.sampled_from(MERGEABLE), min_size=1, max_size=3, unique=True)),
        "npartitions": draw(st.sampled_from([1, 3])),
    }


@settings(max_examples=settings.default.max_examples // 2)
@given(cases())
def test_as_pandas_has_it(case: dict[str, Any]) -> None:
    def query(facts: Any, dim: Any) -> Any:
        merged = facts.merge(dim, on=case["on"], how=case["how"])
        return merged.groupby(case["by"], **case["flags"]).agg({"v": case["names"]})

    rtol = 1e-5 if case["facts"].v.dtype == "float32" else 1e-9
    compare(query, case["facts"], case["dim"], npartitions=case["npartitions"], rtol=rtol)


def test_partitions_without_partners_say_nothing_of_dtypes() -> None:
    facts = FACTS.assign(k=np.arange(ROWS) // 60 * 50)  # of which 0 has partners
    compare(lambda f, d: f.merge(d, on="k", how="left").groupby("weight").x.sum(), facts)


@pytest.mark.parametrize("name", ["sum", "prod", "max"])
def test_integers_wrap_as_those_of_merged_rows(name: str) -> None:
    facts = FACTS.assign(y=2**62 + FACTS.y, small=FACTS.y.astype("int8"))
    compare(
        lambda f, d: getattr(f.merge(d, on="k").groupby("region")[["y", "small"]], name)(), facts
    )


@pytest.mark.parametrize(
    ("npartitions", "options"),
    [(1, {}), (20, {}), (4, {"split_out": 1}), (4, {"split_out": 3}), (20, {"split_out": True})],
    ids=str,
)
def test_partitions_are_those_that_dask_announces(npartitions: int, options: Any) -> None:
    dim = dd.from_pandas(DIM, npartitions=1)
    facts = dd.from_pandas(FACTS, npartitions=npartitions, sort=False)

    def query(frame: Any) -> Any:
        return frame.merge(dim, on="k").groupby("region").x.sum(**options)

    ours = partitions(query, facts)
    assert joins_of(query(facts))
    dask_gpuagg.disable()
    assert ours == partitions(query, facts)


LEFT_ALONE: dict[str, Callable[[Any, Any], Any]] = {
    "values of both sides": lambda f, d: f.merge(d, on="k").groupby("j")[["x", "weight"]].sum(),
    "first": lambda f, d: f.merge(d, on="k").groupby("region").x.first(),
    "median": lambda f, d: f.merge(d, on="k").groupby("region").x.median(),
    "value_counts": lambda f, d: f.merge(d, on="k").groupby("region").j.value_counts(),
    "left with several partitions": lambda f, d: f.merge(d, on="k", how="left")
    .groupby("region").x.sum(),
    "outer": lambda f, d: f.merge(d, on="k", how="outer").groupby("region").x.sum(),
    "values of the side that loses rows": lambda f, d: d.merge(f, on="k", how="left")
    .groupby("region").x.sum(),
    "by the index": lambda f, d: f.merge(d.set_index("k"), left_on="k", right_index=True)
    .groupby("region").x.sum(),
    "computed by a function": lambda f, d: f.map_partitions(lambda p: p).merge(d, on="k")
    .groupby("region").x.sum(),
    "indicator": lambda f, d: f.merge(d, on="k", indicator=True).groupby("region").x.sum(),
    "a column of the merge": lambda f, d: f.merge(d, on="k").assign(z=1).groupby("region").z.sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_merged_first(name: str) -> None:
    of_dim = 2 if name in ("outer", "left with several partitions") else 1
    facts = dd.from_pandas(FACTS, npartitions=2, sort=False)
    assert not joins_of(LEFT_ALONE[name](facts, dd.from_pandas(DIM, npartitions=of_dim)))


def _large(keys: int) -> Any:
    rows = pd.DataFrame({"k": np.arange(400_000) % keys, "x": 1.0})
    facts = dd.from_pandas(rows, npartitions=4, sort=False)
    return facts.merge(pd.DataFrame({"k": range(keys), "region": "a"}), on="k").groupby("region")


def test_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert joins_of(_large(1_000).x.sum())
    assert not joins_of(_large(300_000).x.sum())
    with dask.config.set({"gpuagg.sample": "never"}):
        assert not joins_of(_large(1_000).x.sum())
    few = dd.from_pandas(FACTS, npartitions=4)
    assert not joins_of(few.merge(DIM, on="k").groupby("region").x.sum())


def test_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(merges, "MOST_LEFT", 1 / 4)
    for i in range(4):
        FACTS.assign(u=np.arange(ROWS) + i * ROWS).to_parquet(tmp_path / f"{i}.parquet")
    facts = dd.read_parquet(tmp_path)
    many = pd.DataFrame({"u": range(4 * ROWS), "region": "a"})
    assert not joins_of(facts.merge(many, on="u").groupby("region").x.sum())
    query = facts[facts.y > 0].merge(DIM, on="k").groupby("region").x.sum()
    assert joins_of(query)
    rows = pd.concat([FACTS] * 4)
    assert_same(query.compute(), rows[rows.y > 0].merge(DIM, on="k").groupby("region").x.sum())


def test_explain_and_profile_tell() -> None:
    ddf = dd.from_pandas(FACTS, npartitions=4, sort=False)
    query = ddf.merge(DIM, on="k").groupby("region").x.sum()
    (explained,) = dask_gpuagg.explain(query).groupbys
    assert explained.physical.joins == (
        "by k before the merge: about 9 groups of 240 rows (sampled rows of 3 of 4 partitions)",
    )
    assert "\n  reduced  by k before the merge: about 9 groups" in str(explained)
    assert dict(explained.physical.tasks) == {"partial": 4, "join": 4, "finalize": 1}
    assert (explained.physical.partitions, explained.physical.partials) == (4, 4)
    assert not dask_gpuagg.why_not(query)
    with dask_gpuagg.profile() as profile:
        query.compute()
    steps = {(step.step, step.calls) for step in profile.steps}
    assert steps == {("partial", 4), ("join", 4), ("finalize", 1)}


def test_a_partition_of_another_dtype_than_promised() -> None:
    pieces = [FACTS[["k", "y"]], FACTS[["k", "y"]].astype({"y": "float64"}) / 4]
    promised = FACTS[["k", "y"]].iloc[:0]
    facts = dd.from_map(lambda i: pieces[i], [0, 1], meta=promised, enforce_metadata=False)
    query = facts.persist().merge(DIM, on="k").groupby("region").y.agg(["sum", "mean"])
    assert joins_of(query)
    want = pd.concat(pieces).merge(DIM, on="k").groupby("region").y.agg(["sum", "mean"])
    assert_same(query.compute(), want, rtol=1e-9)
