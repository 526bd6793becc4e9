"""Ranges of keys: rows are placed as the sorted groups are, whatever the dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_gpuagg.decomposition import make_plan
from dask_gpuagg.engines.host import engine
from dask_gpuagg.engines.host.finish import sort_order
from dask_gpuagg.engines.host.ranges import ranges_of
from dask_gpuagg.plan import Column, Plan, Requested, StateUse
from tests.data import KEYS

ORDERED = [name for name in KEYS if KEYS[name].dtype != object]


def plan_of(*dtypes: Any) -> Plan:
    keys = tuple(Column(f"key{i}", dtype) for i, dtype in enumerate(dtypes))
    return Plan(keys, (), (StateUse("size", ()),), ())


def tables(*keys: Any) -> dict[str, pd.DataFrame]:
    columns = {f"k{i}": pd.Series(key).array for i, key in enumerate(keys)}
    return {"groups": pd.DataFrame(columns | {"s0.n": np.arange(len(keys[0]))})}


def split(partials: list[dict[str, pd.DataFrame]], plan: Plan, outputs: int) -> list[pd.DataFrame]:
    """The keys of each output."""
    samples = [engine.sampled_keys(each, plan, 1000) for each in partials]
    bounds = engine.bounds_of(samples, plan, outputs)
    pieces = [engine.split_in_ranges(each, plan, bounds, outputs) for each in partials]
    return [
        pd.concat([piece[j]["groups"] for piece in pieces], ignore_index=True)
        for j in range(outputs)
    ]


@pytest.mark.parametrize("name", ORDERED)
@pytest.mark.parametrize("several", [False, True])
def test_outputs_follow_each_other_in_the_order_of_groups(name: str, several: bool):
    key = KEYS[name].reset_index(drop=True)
    keys = [np.arange(len(key)) % 3, key] if several else [key]
    half = len(key) // 2
    partials = [tables(*(k[:half] for k in keys)), tables(*(k[half:] for k in keys))]
    made = split(partials, plan_of(*(pd.Series(k).dtype for k in keys)), 3)
    columns = [f"k{i}" for i in range(len(keys))]
    whole = pd.concat(made, ignore_index=True)
    order = sort_order([whole[c].array for c in columns])
    number = np.repeat(np.arange(3), [len(part) for part in made])
    assert (np.diff(number[order]) >= 0).all(), made
    # equal keys are neighbours in the order, and never in two outputs
    assert len(whole) == len(key)
    inside = [set(map(str, part[columns].itertuples(index=False))) for part in made]
    assert not (inside[0] & inside[1])
    assert not (inside[1] & inside[2])
    assert not (inside[0] & inside[2])


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([0.5, -0.0, 0.0, np.nan, np.inf]))),
    st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([0.5, 0.0, np.nan])), max_size=5),
)
def test_a_row_belongs_behind_the_bounds_that_are_not_above_it(rows: Any, bounds: Any):
    def order(pair: tuple[int, float]) -> tuple[int, float, float]:
        null = pair[1] != pair[1]
        return pair[0], null, 0.0 if null else pair[1]

    bounds = sorted(bounds, key=order)
    frames = [pd.DataFrame(each, columns=["k0", "k1"]) for each in (rows, bounds)]
    frames = [f.astype({"k0": "int64", "k1": "float64"}) for f in frames]
    want = [sum(order(b) <= order(row) for b in bounds) for row in rows]
    assert ranges_of(*frames).tolist() == want


def test_codes_of_many_keys_are_numbered_where_their_product_is_too_wide():
    rng = np.random.default_rng(5)
    # masked numbers have as many codes as values
    frame = pd.DataFrame({f"k{i}": pd.array(rng.integers(0, 10**9, 4000)) for i in range(8)})
    frame = frame.astype("Int64")
    bounds = frame.sort_values(list(frame)).iloc[[1000, 2000, 3000]].reset_index(drop=True)
    got = ranges_of(frame, bounds)
    assert np.bincount(got).tolist() == [1000, 1000, 1000, 1000]
    assert (np.diff(got[np.lexsort([frame[c] for c in reversed(list(frame))])]) >= 0).all()


def test_bounds_do_not_depend_on_the_order_of_rows():
    """Partials of a GPU have their groups in another order each time."""
    rng = np.random.default_rng(7)
    keys, text = np.arange(50_000), pd.Series(np.arange(50_000)).astype("str")
    for name in ("groups", "rows"):
        plan = plan_of(keys.dtype, text.dtype)
        if name == "rows":
            wanted = [Requested("v", "median", "v")]
            flags = {"dropna": True, "observed": True, "sort": True}
            plan = make_plan(plan.keys, [Column("v", keys.dtype)], wanted, **flags)
            assert plan.tables == ("rows",)
        found = []
        for _ in range(2):
            order = rng.permutation(np.repeat(np.arange(50_000), 1 if name == "groups" else 2))
            table = pd.DataFrame({"k0": keys[order], "k1": text.array.take(order)})
            sample, parts = engine.sampled_keys({name: table}, plan, 500)
            assert parts == 128
            assert 300 < len(sample) < 500
            found.append(engine.bounds_of([(sample, parts)], plan, 4))
        pd.testing.assert_frame_equal(*found)
        assert abs(found[0]["k0"] - [12_500, 25_000, 37_500]).max() < 4_000


def test_outputs_have_as_many_keys_whichever_partials_have_them():
    """Keys of all partials count once, and those of small ones as much as those of large ones."""
    everywhere, many = np.arange(2_000), np.arange(5_000, 15_000)
    partials = [tables(everywhere) for _ in range(6)]
    partials += [tables(many), tables(np.append(everywhere, np.arange(15_000, 15_100)))]
    made = split(partials, plan_of(np.dtype("int64")), 4)
    sizes = [part["k0"].nunique() for part in made]
    assert sum(sizes) == 12_100
    assert max(sizes) < 1.6 * min(sizes)


def test_partials_of_several_dtypes_share_the_bounds():
    floats = tables(np.array([0.5, 1.0, np.nan, 3.5]))
    made = split([tables(np.arange(8)), floats], plan_of(np.dtype("int64")), 3)
    assert made[0]["k0"].max() < made[1]["k0"].min()
    assert made[2]["k0"].isna().sum() == 1
    assert [1.0 in part["k0"].array for part in made].count(True) == 1


def categories(values: str, order: str) -> pd.Series:
    return pd.Series(pd.Categorical(list(values), categories=list(order)))


UNORDERED = {
    "objects": (np.dtype(object), [pd.Series([1, "a"], dtype=object), pd.Series([2, "b"])]),
    "other categories": (
        pd.CategoricalDtype(list("ab")),
        [categories("ab", "ab"), categories("ba", "ba")],
    ),
    "text for categories": (pd.CategoricalDtype(list("ba")), [pd.Series(["a", "b"], dtype="str")]),
    "numbers for text": (pd.Series(dtype="str").dtype, [pd.Series([10, 9])]),
    "no rows": (np.dtype("int64"), [pd.Series([], dtype="int64")]),
}


@pytest.mark.parametrize("name", UNORDERED)
def test_keys_without_an_order_that_all_share_go_to_one_output(name: str):
    dtype, keys = UNORDERED[name]
    made = split([tables(key) for key in keys], plan_of(dtype), 3)
    assert [len(part) for part in made] == [sum(map(len, keys)), 0, 0]
